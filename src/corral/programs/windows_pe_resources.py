"""Read named resources from a program file, as FindResourceW would find them.

The file is untrusted: every offset is checked, and invalid parts count as missing.
"""

import struct
from collections.abc import Iterator

RT_RCDATA = 10
RESOURCE_DIRECTORY = 2  # IMAGE_DIRECTORY_ENTRY_RESOURCE
PE32, PE32_PLUS = 0x10B, 0x20B
DIRECTORIES_AT = {PE32: 96, PE32_PLUS: 112}
MAX_SECTIONS = 96
MAX_ENTRIES = 4096
SUBDIRECTORY = 1 << 31

Section = tuple[int, int, int, int]


def is_program(raw: bytes) -> bool:
    return raw[:2] == b"MZ"


def resources(raw: bytes) -> dict[str, bytes]:
    """Return the named RT_RCDATA resources, or none for a file that is not a program."""
    try:
        return dict(_resources(raw))
    except (struct.error, IndexError, UnicodeDecodeError):
        return {}


def _resources(raw: bytes) -> Iterator[tuple[str, bytes]]:
    at, sections = _headers(raw)
    base = _file_offset(at, sections)
    if not at or base is None:
        return
    for kind, types in _entries(raw, base, 0):
        if kind != RT_RCDATA or not types & SUBDIRECTORY:
            continue
        for name, languages in _entries(raw, base, types & ~SUBDIRECTORY):
            if not isinstance(name, str) or not languages & SUBDIRECTORY:
                continue
            for _, data in _entries(raw, base, languages & ~SUBDIRECTORY):
                if data & SUBDIRECTORY:
                    continue
                address, size = struct.unpack_from("<II", raw, base + data)
                start = _file_offset(address, sections)
                if start is not None and start + size <= len(raw):
                    yield name, raw[start : start + size]
                    break


def _headers(raw: bytes) -> tuple[int, list[Section]]:
    """Return (address of the resource directory, sections). The address is 0 if there is none."""
    if not is_program(raw):
        return 0, []
    pe = struct.unpack_from("<I", raw, 60)[0]
    if raw[pe : pe + 4] != b"PE\0\0":
        return 0, []
    count, optional_size = struct.unpack_from("<HxxxxxxxxxxxxH", raw, pe + 6)
    optional = pe + 24
    magic = struct.unpack_from("<H", raw, optional)[0]
    at = DIRECTORIES_AT.get(magic, 0)
    if not at or count > MAX_SECTIONS:
        return 0, []
    if struct.unpack_from("<I", raw, optional + at - 4)[0] <= RESOURCE_DIRECTORY:
        return 0, []
    address = struct.unpack_from("<I", raw, optional + at + 8 * RESOURCE_DIRECTORY)[0]
    table = optional + optional_size
    sections = [struct.unpack_from("<IIII", raw, table + 40 * n + 8) for n in range(count)]
    return address, sections


def _file_offset(address: int, sections: list[Section]) -> int | None:
    for _, start, size, offset in sections:
        if start <= address < start + size:
            return offset + address - start
    return None


def _entries(raw: bytes, base: int, at: int) -> Iterator[tuple[str | int, int]]:
    """Yield (name or number, offset) for each entry of one resource directory."""
    named, numbered = struct.unpack_from("<HH", raw, base + at + 12)
    for index in range(min(named + numbered, MAX_ENTRIES)):
        name, offset = struct.unpack_from("<II", raw, base + at + 16 + 8 * index)
        if name & SUBDIRECTORY:
            start = base + (name & ~SUBDIRECTORY)
            length = struct.unpack_from("<H", raw, start)[0]
            yield raw[start + 2 : start + 2 + 2 * length].decode("utf-16-le"), offset
        else:
            yield name, offset
