"""What the steps of one run hand to the steps after them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Kind = TypeVar("Kind")


class Results:
    """What the steps of one run have made so far, at most one value of each type.

    The mechanism that makes a value defines its type, and later steps ask for it by that type. A
    value that holds something of the host has a method `release`, which gives it back.
    """

    def __init__(self) -> None:
        self._values: dict[type, object] = {}

    def add(self, value: object) -> None:
        self._values[type(value)] = value

    def find(self, kind: type[Kind]) -> Kind | None:
        return self._values.get(kind)  # type: ignore[return-value]

    def get(self, kind: type[Kind]) -> Kind:
        value = self.find(kind)
        if value is None:
            raise OSError(0, f"no step before this one made a {kind.__name__}")
        return value

    def release(self) -> None:
        """Give back everything, the newest first; what resists is left to the next sweep. An error
        that is not an OSError is raised after everything else was given back.
        """
        while self._values:
            _, value = self._values.popitem()
            release: Callable[[], None] | None = getattr(value, "release", None)
            if release is None:
                continue
            try:
                release()
            except OSError:
                continue
            except BaseException:
                self.release()
                raise
