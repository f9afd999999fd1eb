"""Structures and exported functions as data; functions are looked up at their first call."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    # typeshed's names for what all of them are
    CType = type[ctypes._CDataType]  # noqa: SLF001
    Export = ctypes._NamedFuncPointer  # noqa: SLF001


def fields(kind: CType, names: str) -> list[tuple[str, CType]]:
    """Return the fields of a structure that have the same type, as C declares them in one line."""
    return [(name, kind) for name in names.split()]


class MissingFunctionError(OSError):
    """No such function in this version of the system, or not this system at all."""


class Function:
    """One exported function. `find` returns it by library and name, or raises MissingFunctionError.

    `failure` returns the error that a result means, None for a success. Results are integers: a
    NULL pointer and a void result are 0.
    """

    __slots__ = ("_bound", "_failure", "_find", "arguments", "check", "library", "name", "result")

    def __init__(
        self,
        library: str,
        name: str,
        result: CType | None,
        arguments: tuple[CType, ...],
        *,
        check: str,
        find: Callable[[str, str], Export],
        failure: Callable[[Function, int], OSError | None],
    ) -> None:
        self.library = library
        self.name = name
        self.result = result
        self.arguments = arguments
        self.check = check
        self._find = find
        self._failure = failure
        self._bound: Export | None = None

    def __call__(self, *values: object) -> int:
        value: int = (self._bound or self._bind())(*values) or 0
        error = self._failure(self, value)
        if error is not None:
            raise error
        return value

    def exists(self) -> bool:
        try:
            self._bind()
        except MissingFunctionError:
            return False
        return True

    def _bind(self) -> Export:
        export = self._find(self.library, self.name)
        export.argtypes = self.arguments
        export.restype = self.result
        self._bound = export
        return export
