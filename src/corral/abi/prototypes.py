"""Describe structures and exported functions as data. Functions are bound when first called."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

    # These are typeshed's private names for the base classes of ctypes.
    CType = type[ctypes._CDataType]  # noqa: SLF001
    Export = ctypes._NamedFuncPointer  # noqa: SLF001


def fields(kind: CType, names: str) -> list[tuple[str, CType]]:
    """Return structure fields of one type. `names` lists the fields, separated by spaces."""
    return [(name, kind) for name in names.split()]


class MissingFunctionError(OSError):
    """The function is missing on this system, or in this version of the system."""


class Function:
    """A function that a library exports. `find` looks it up, or raises MissingFunctionError.

    `failure` takes a result, and returns an error if the result means a failure. Results are
    integers: a NULL pointer and a void result become 0.
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
