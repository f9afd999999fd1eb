"""What the steps of one run hand to later ones, and how all of it is undone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.abi.win32 import Handle
    from corral.abi.win32_security import Capabilities
    from corral.platforms.windows.mechanisms.job import Limited
    from corral.platforms.windows.relay.start import Shim


class Scene:
    """`attributes` are (attribute, value, size) for the process to be created, `variables` what
    its environment has on top, `process` is its handle. `undo` is run backwards when the run has
    ended, however far it got.
    """

    def __init__(self) -> None:
        self.job: Limited | None = None
        self.token: Handle | None = None
        self.capabilities: Capabilities | None = None
        self.desktop = ""
        self.shim: Shim | None = None
        self.variables: tuple[tuple[str, str], ...] = ()
        self.attributes: list[tuple[int, int, int]] = []
        self.process = 0
        self.pid = 0
        self.undo: list[Callable[[], object]] = []

    def end(self) -> None:
        """Undo everything; what resists does not keep the rest, and is left to the next sweep."""
        try:
            while self.undo:
                try:
                    self.undo.pop()()
                except OSError:
                    continue
        finally:
            if self.undo:  # something broke that was not expected to: the rest is undone first
                self.end()
