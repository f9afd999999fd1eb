"""A zip archive from a stranger, unpacked so that nothing of it lands anywhere else.

Refused, with the reason: links, devices, `..`, absolute paths, drive letters and streams, names
that two file systems would read differently or that are there twice, encryption, unusual
compression, data before or between the entries that readers disagree about, and more than the
limits. An entry that holds more than it says is not read to its end.
"""

from __future__ import annotations

import os
import stat
import struct
import unicodedata
import zipfile
import zlib

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

CHUNK = 1 << 20
END = b"PK\x05\x06"
END_SIZE = 22
LOCAL = b"PK\x03\x04"
LOCAL_SIZE = 30
LONGEST_COMMENT = 0xFFFF
ENCRYPTED = 0x1 | 0x40 | 0x2000
SIGNATURE = (b"MCPB_SIG_V1", b"MCPB_SIG_END")
LONGEST_NAME, LONGEST_PATH, DEEPEST = 255, 1024, 40
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{name}{at}" for name in ("com", "lpt") for at in "0123456789¹²³"]
)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@record
class Bounds:
    """`packed` is the archive itself; the rest is what comes out of it."""

    packed: int = 1 << 30
    total: int = 2 << 30
    entries: int = 50_000


class Refused(SandboxError):  # noqa: N818 - says what is done with the archive
    pass


def extract(file: BinaryIO, place: str, *, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - frozen
    """Unpack into the empty directory `place`; raises Refused and leaves the rest to the caller."""
    frame = check_frame(file, bounds)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if (archive.start_dir, len(entries)) != frame:
                raise Refused("the archive can be read in two ways")
            check_entries(entries, archive.start_dir, file, bounds)
            for entry in entries:
                put(archive, entry, place)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError) as error:
        raise Refused(f"the archive is damaged: {error}") from None
    except (UnicodeError, ValueError) as error:
        raise Refused(f"the archive cannot be read: {error}") from None


def check_frame(file: BinaryIO, bounds: Bounds) -> tuple[int, int]:
    """(place, length) of the list of entries, from the end record, before anybody reads it all."""
    size = file.seek(0, os.SEEK_END)
    if size > bounds.packed:
        raise Refused(f"the archive is larger than {bounds.packed >> 20} MiB")
    start = max(0, size - END_SIZE - LONGEST_COMMENT)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(END)
    if at < 0 or len(tail) - at < END_SIZE:
        raise Refused("it is not a zip archive")
    disk, first, here, count, length, offset, comment = struct.unpack("<4xHHHHIIH", tail[at:][:22])
    rest = tail[at + END_SIZE :]
    if disk or first or here != count:
        raise Refused("the archive has several parts")
    if count == 0xFFFF or offset == 0xFFFFFFFF or length == 0xFFFFFFFF:
        raise Refused("the archive is in the zip64 format, which is for larger ones")
    if count > bounds.entries:
        raise Refused(f"the archive has more than {bounds.entries} entries")
    if not is_signature(rest) and (rest or comment):
        raise Refused("there is something behind the end of the archive")
    if offset + length != start + at:
        raise Refused("there is something before the archive, or inside it, that is not its own")
    return offset, count


def is_signature(data: bytes) -> bool:
    """The block that `mcpb sign` appends. It is not verified: the digest is what is approved."""
    head, foot = SIGNATURE
    if not data.startswith(head) or not data.endswith(foot):
        return False
    size = int.from_bytes(data[len(head) : len(head) + 4], "little")
    return len(data) == len(head) + 4 + size + len(foot)


def check_entries(entries: list[zipfile.ZipInfo], end: int, file: BinaryIO, bounds: Bounds) -> None:
    names: dict[str, str] = {}
    for entry in entries:
        check_entry(entry)
        check_unique(entry, names)
    check_places(entries, end, file)
    if sum(entry.file_size for entry in entries) > bounds.total:
        raise Refused(f"the archive unpacks to more than {bounds.total >> 20} MiB")


def check_entry(entry: zipfile.ZipInfo) -> None:
    # `filename` ends at the first NUL; `orig_filename` is what is written there.
    name = entry.orig_filename
    check_name(name)
    if entry.flag_bits & ENCRYPTED:
        raise bad(name, "is encrypted")
    if entry.compress_type not in METHODS:
        raise bad(name, "is compressed in an unusual way")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise bad(name, "is a link")
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise bad(name, "is a device, a pipe or a socket")
    if (kind == stat.S_IFDIR) != name.endswith("/") and kind:
        raise bad(name, "is a file and a directory")
    if name.endswith("/") and entry.file_size:
        raise bad(name, "is a directory with content")


def check_name(name: str) -> None:
    if name.startswith(("/", "\\")):
        raise bad(name, "is an absolute path")
    if "\\" in name:
        raise bad(name, "has a backslash in it")
    if ":" in name:
        raise bad(name, "names a drive or a stream")
    if not name.isprintable():
        raise bad(name, "has characters in it that cannot be printed")
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        raise bad(name, "leads out of the archive")
    if len(name) > LONGEST_PATH or len(parts) > DEEPEST:
        raise bad(name, "is too long")
    for part in parts:
        if not part or part == "." or part != part.rstrip(". "):
            raise bad(name, "is not a plain path")
        if len(os.fsencode(part)) > LONGEST_NAME:
            raise bad(name, "is too long")
        if part.partition(".")[0].rstrip().lower() in DEVICES or set(part) & set('<>"|?*'):
            raise bad(name, "is a name that Windows gives another meaning")


def check_unique(entry: zipfile.ZipInfo, names: dict[str, str]) -> None:
    """Two names that one file system takes for the same: the second would replace the first."""
    whole = entry.orig_filename.removesuffix("/")
    key = folded(whole)
    kind = "directory" if entry.orig_filename.endswith("/") else "file"
    if names.get(key) in {"file", "listed"} or (key in names and kind == "file"):
        raise bad(entry.orig_filename, "is there twice")
    names[key] = "file" if kind == "file" else "listed"
    parts = key.split("/")
    for at in range(1, len(parts)):
        above = "/".join(parts[:at])
        if names.setdefault(above, "directory") == "file":
            raise bad(entry.orig_filename, "lies below a file")


def folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def check_places(entries: list[zipfile.ZipInfo], end: int, file: BinaryIO) -> None:
    """The archive starts with its first entry, and no two share a byte."""
    reached = 0
    for at, entry in enumerate(sorted(entries, key=lambda one: one.header_offset)):
        if at == 0 and entry.header_offset:
            raise Refused("there is something before the archive")
        if entry.header_offset < reached:
            raise bad(entry.orig_filename, "overlaps another entry")
        file.seek(entry.header_offset)
        header = file.read(LOCAL_SIZE)
        if len(header) < LOCAL_SIZE or not header.startswith(LOCAL):
            raise bad(entry.orig_filename, "is not where the archive says")
        name, extra = struct.unpack("<HH", header[26:30])
        if not same_name(file.read(name), entry):
            raise bad(entry.orig_filename, "has two names")
        reached = entry.header_offset + LOCAL_SIZE + name + extra + entry.compress_size
    if reached > end:
        raise Refused("the last entry overlaps the list of entries")


def same_name(written: bytes, entry: zipfile.ZipInfo) -> bool:
    return written.decode("utf-8" if entry.flag_bits & 0x800 else "cp437") == entry.orig_filename


def put(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: str) -> None:
    """Write one entry. The reader gives no more than the size that was counted, or an error."""
    path = os.path.join(place, *entry.orig_filename.removesuffix("/").split("/"))
    if entry.orig_filename.endswith("/"):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    runs = bool((entry.external_attr >> 16) & 0o111)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o755 if runs else 0o644)
    with open(descriptor, "wb") as target, archive.open(entry) as source:
        while chunk := source.read(CHUNK):
            target.write(chunk)
        if target.tell() != entry.file_size:
            raise bad(entry.orig_filename, "is shorter than the archive says")


def bad(name: str, why: str) -> Refused:
    return Refused(f"the archive is refused: {shown(name, 200)} {why}")
