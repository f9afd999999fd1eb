"""Import corral's modules from a single cache file, which contains their compiled code.

Without the cache file Python needs ten system calls and a tenth of a millisecond to find each
module, and a run imports eighty modules. The cache file is in `__pycache__`. It is made from the
`.pyc` files, and is trusted as much as they are. A module is loaded from the cache file only while
the module's source is unchanged.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from types import CodeType

    # The identity of a source file is its mtime and ctime in nanoseconds, its inode and its size.
    Identity = tuple[int, int, int, int]
    # The fields of an entry are: whether the module is a package, the identity of its source file,
    # and the start and length of its code in the cache file.
    Entry = tuple[bool, Identity, int, int]
else:
    # Python has already loaded these classes, so importing `importlib.machinery` is not necessary.
    ModuleSpec, SourceFileLoader = type(__spec__), type(__spec__.loader)

ROOT = os.path.dirname(__file__)
PACKAGE, _, _NAME = __name__.partition(".")
STARTED_WITH = {PACKAGE, f"{PACKAGE}.__main__", __name__}
SUFFIX = os.path.basename(__spec__.cached or "").removeprefix(_NAME)
PATH = os.path.join(ROOT, "__pycache__", f"{PACKAGE}{SUFFIX}.all")
SIZE_BYTES, MAX_INDEX_BYTES = 4, 1 << 16
PYC_HEADER_BYTES, PYC_BITS = 16, 0xFFFFFFFF


class Loader(SourceFileLoader):
    """Loads a module as Python does, but takes its code from the cache file."""

    def __init__(self, name: str, path: str, finder: Finder, code: tuple[int, int]) -> None:
        super().__init__(name, path)
        self._finder = finder
        self._code = code

    def get_code(self, name: str) -> CodeType | None:
        """Return the code from the cache file, or use Python's own loader if the file was closed.

        corral's processes close all descriptors that they do not need, even the cache file's.
        Another file may then get the same number, so `Finder.read` checks which file it reads.
        """
        found = self._finder.read(*self._code)
        if found is None:
            return super().get_code(name)
        code: CodeType = marshal.loads(found)  # noqa: S302 - as Python does
        return code


class Finder:
    """Finds modules in the cache file. `use` adds a Finder to `sys.meta_path`."""

    def __init__(self, fd: int, start: int, entries: dict[str, Entry]) -> None:
        self._fd = fd
        self._file = _number(fd) if fd >= 0 else None
        self._start = start
        self.entries = entries

    def read(self, start: int, length: int) -> bytes | None:
        """Return a part of the cache file, or None if its descriptor was closed or reused."""
        try:
            if sys.platform == "win32" or _number(self._fd) != self._file:
                return None
            return os.pread(self._fd, length, self._start + start)
        except OSError:
            return None

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if (entry := self.entries.get(name)) is None:
            return None
        is_package, identity, start, length = entry
        source = _find_source(name, is_package=is_package)
        try:
            if _identify(os.stat(source)) != identity:
                return None
        except OSError:
            return None
        loader = Loader(name, source, self, (start, length))
        spec = ModuleSpec(name, loader, origin=source)
        spec.has_location = True
        spec.cached = PATH
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(source)]
        return spec


def use() -> None:
    """Import corral's modules from the cache file from now on.

    If there is no cache file, or a different version of Python wrote it, add an empty Finder, so
    that `keep` writes a new cache file. On Windows, do nothing.
    """
    if sys.platform != "win32":
        sys.meta_path.insert(0, _open_file() or Finder(-1, 0, {}))


def _open_file() -> Finder | None:
    if sys.platform == "win32":
        return None
    try:
        fd = os.open(PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    # If a standard stream is closed, `fd` may have its number. The target would then inherit `fd`,
    # so do not use it.
    found = _read_index(fd) if fd > 2 else None
    if found is None:
        os.close(fd)
        return None
    return Finder(fd, *found)


def _read_index(fd: int) -> tuple[int, dict[str, Entry]] | None:
    try:
        head = os.read(fd, MAX_INDEX_BYTES)
        start = SIZE_BYTES + int.from_bytes(head[:SIZE_BYTES], "little")
        version, entries = marshal.loads(head[SIZE_BYTES:start])  # noqa: S302 - as Python does
    except (OSError, ValueError, EOFError, TypeError):
        return None
    return (start, entries) if version == sys.version else None


def keep() -> None:
    """Write the cache file again if this process imported modules that were not loaded from it.

    A failed write is ignored, just as Python ignores a failed write of a `.pyc` file. A process
    that did not call `use` writes nothing, because it does not know which modules the cache file
    contains.
    """
    known = [one.entries for one in sys.meta_path if isinstance(one, Finder)]
    loaded = {name for name in sys.modules if name.partition(".")[0] == PACKAGE} - STARTED_WITH
    if not known or sys.dont_write_bytecode or not any(map(_is_missing, loaded)):
        return
    fresh = f"{PATH}.{os.getpid()}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return
    try:
        with open(fd, "wb") as file:
            file.write(_pack(sorted(loaded.union(*known))))
        os.replace(fresh, PATH)
    except OSError:
        os.unlink(fresh)


def _is_missing(name: str) -> bool:
    return not isinstance(sys.modules[name].__loader__, Loader)


def _pack(names: list[str]) -> bytes:
    """Return the content of the cache file: the length of the index, the index, and the code of
    each module whose `.pyc` file is up to date.
    """
    entries: dict[str, Entry] = {}
    code = b""
    for name in names:
        is_package = os.path.isdir(os.path.join(ROOT, *name.split(".")[1:]))
        found = _read_pyc(_find_source(name, is_package=is_package))
        if found is not None:
            identity, own = found
            entries[name] = (is_package, identity, len(code), len(own))
            code += own
    index = marshal.dumps((sys.version, entries))
    return len(index).to_bytes(SIZE_BYTES, "little") + index + code


def _read_pyc(source: str) -> tuple[Identity, bytes] | None:
    """Return the identity and the code of a source file. Return None if its `.pyc` file is missing
    or out of date.
    """
    directory, name = os.path.split(source)
    try:
        seen = os.stat(source)
        with open(f"{directory}/__pycache__/{name.removesuffix('.py')}{SUFFIX}", "rb") as file:
            header, code = file.read(PYC_HEADER_BYTES), file.read()
    except OSError:
        return None
    time, size = int(seen.st_mtime) & PYC_BITS, seen.st_size & PYC_BITS
    wanted = b"".join(number.to_bytes(4, "little") for number in (0, time, size))
    return (_identify(seen), code) if header[4:] == wanted else None


def _find_source(name: str, *, is_package: bool) -> str:
    path = f"{ROOT}{name.removeprefix(PACKAGE).replace('.', '/')}"
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def _number(fd: int) -> tuple[int, int]:
    seen = os.fstat(fd)
    return seen.st_dev, seen.st_ino


def _identify(seen: os.stat_result) -> Identity:
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_size
