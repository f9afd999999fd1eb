"""Provide the few parts of ctypes that corral needs on Linux, from the private module `_ctypes`.

Importing `ctypes` would slow down each start by a millisecond, because `ctypes` defines every C
type. If `_ctypes` lacks a name that is needed here, `ctypes` is imported instead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import (
        CDLL,
        PyDLL,
        addressof,
        byref,
        c_char_p,
        c_int,
        c_long,
        c_void_p,
        create_string_buffer,
        get_errno,
        pythonapi,
    )

    __all__ = [
        "CDLL", "PyDLL", "addressof", "byref", "c_char_p", "c_int", "c_long",
        "c_void_p", "create_string_buffer", "get_errno", "pythonapi",
    ]  # fmt: skip
else:
    try:
        import _ctypes
        from _ctypes import addressof, byref, get_errno

        def _simple(name: str, code: str) -> type:
            return type(name, (_ctypes._SimpleCData,), {"_type_": code})  # noqa: SLF001

        c_int, c_long = _simple("c_int", "i"), _simple("c_long", "l")
        c_char, c_char_p = _simple("c_char", "c"), _simple("c_char_p", "z")
        c_void_p = _simple("c_void_p", "P")

        class CDLL:
            """A C library. The GIL is released during each call of its functions."""

            flags = _ctypes.FUNCFLAG_CDECL

            def __init__(self, name: str | None, *, use_errno: bool = False) -> None:
                self._handle = _ctypes.dlopen(name, _ctypes.RTLD_LOCAL)
                flags = self.flags | (_ctypes.FUNCFLAG_USE_ERRNO if use_errno else 0)
                fields = {"_flags_": flags, "_restype_": c_int}
                self._function = type("Function", (_ctypes.CFuncPtr,), fields)

            def __getattr__(self, name: str) -> object:
                return self._function((name, self))

        class PyDLL(CDLL):
            """A C library. The GIL is held during each call of its functions."""

            flags = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI

        def create_string_buffer(init: bytes | int, size: int | None = None) -> object:
            """Return a buffer with the content `init`. If `init` is a number, fill the buffer with
            that many zero bytes.
            """
            if isinstance(init, int):
                return (c_char * init)()
            made = (c_char * (len(init) + 1 if size is None else size))()
            made.value = init
            return made

        pythonapi = PyDLL(None)
    except (ImportError, AttributeError):
        from ctypes import *  # noqa: F403
        from ctypes import get_errno, pythonapi
