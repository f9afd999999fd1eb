"""Unpack an untrusted zip archive without writing anything outside of the given directory.

An archive is refused if it exceeds a limit, or if it contains any of these:

- links or devices
- absolute paths, or names with `..`, a drive letter or an NTFS stream
- names that occur twice, or that file systems interpret differently
- encrypted entries, or a compression method other than deflate
- overlapping entries, or data before the first entry or after the end of the archive, because
  programs interpret such archives differently

If an entry has more data than it declares, the rest is not read.

The list of entries (the central directory) is checked before zipfile reads the archive, because
zipfile has no limit of its own and makes an object for each entry.
"""

import os
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from typing import BinaryIO

from corral.errors import SandboxError
from corral.paths.windows import DEVICES
from corral.record import record
from corral.safe_text import is_visible, shown

END = b"PK\x05\x06"
END_SIZE = 22
LOCATOR = b"PK\x06\x07"
"""The signature of a zip64 locator. If an archive has one, it is directly before the end record."""
LOCATOR_SIZE = 20
LOCAL = b"PK\x03\x04"
LOCAL_SIZE = 30
LISTED = b"PK\x01\x02"
LISTED_SIZE = 46
MAX_COMMENT_LENGTH = 0xFFFF
ENCRYPTED = 0x1 | 0x40 | 0x2000
SIGNATURE = (b"MCPB_SIG_V1", b"MCPB_SIG_END")
MAX_NAME_LENGTH, MAX_PATH_LENGTH, MAX_DEPTH = 255, 1024, 40
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@record
class Limits:
    max_packed_bytes: int = 1 << 30
    max_bytes: int = 2 << 30
    # This limit also counts directories that have no entry of their own, because unpacking makes
    # them.
    max_entries: int = 50_000
    max_list_bytes: int = 32 << 20


class ArchiveError(SandboxError):
    pass


def extract_archive(
    file: BinaryIO,
    directory: str,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> None:
    """Unpack an archive into an empty directory. After an ArchiveError, files that were already
    unpacked are left in the directory, and the caller has to remove them.
    """
    frame = _check_end_record(file, limits)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if (archive.start_dir, len(entries)) != frame:
                raise ArchiveError("the archive can be interpreted in two ways")
            _check_entries(entries, archive.start_dir, file, limits)
            for entry in entries:
                _write_entry(archive, entry, directory)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError) as error:
        raise ArchiveError(f"the archive is damaged: {error}") from None
    except (UnicodeError, ValueError) as error:
        raise ArchiveError(f"the archive cannot be read: {error}") from None


def _check_end_record(file: BinaryIO, limits: Limits) -> tuple[int, int]:
    """Check the record at the end of the archive, before zipfile reads the list of entries. Return
    the offset of this list and its number of entries.
    """
    size = file.seek(0, os.SEEK_END)
    if size > limits.max_packed_bytes:
        raise ArchiveError(f"the archive is larger than {limits.max_packed_bytes >> 20} MiB")
    start = max(0, size - END_SIZE - MAX_COMMENT_LENGTH)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(END)
    if at < 0 or len(tail) - at < END_SIZE:
        raise ArchiveError("the file is not a zip archive")
    disk, first, here, count, length, offset, comment = struct.unpack("<4xHHHHIIH", tail[at:][:22])
    rest = tail[at + END_SIZE :]
    if disk or first or here != count:
        raise ArchiveError("the archive is split into several files")
    file.seek(max(0, start + at - LOCATOR_SIZE))
    # If there is a zip64 locator, zipfile follows it even if the end record is complete without it.
    # It would then read a different list of entries than the one that is checked here.
    is_zip64 = file.read(LOCATOR_SIZE).startswith(LOCATOR)
    if is_zip64 or count == 0xFFFF or offset == 0xFFFFFFFF or length == 0xFFFFFFFF:
        raise ArchiveError("the archive is in the zip64 format, which bundles may not use")
    if count > limits.max_entries:
        raise _too_many(limits)
    if not _is_signature(rest) and (rest or comment):
        raise ArchiveError("there is data after the end of the archive")
    if offset + length != start + at:
        raise ArchiveError("the file has bytes before the archive, or unused bytes inside it")
    if length > limits.max_list_bytes:
        raise ArchiveError(
            f"the archive's list of entries is larger than {limits.max_list_bytes >> 20} MiB"
        )
    file.seek(offset)
    if not _has_entries(file.read(length), count):
        raise ArchiveError("the archive can be interpreted in two ways")
    return offset, count


def _has_entries(listed: bytes, count: int) -> bool:
    """Return whether a list of entries has exactly `count` entries."""
    at = 0
    for _ in range(count):
        header = listed[at : at + LISTED_SIZE]
        if len(header) < LISTED_SIZE or not header.startswith(LISTED):
            return False
        # The three numbers are the lengths of the entry's name, extra field and comment.
        at += LISTED_SIZE + sum(struct.unpack("<HHH", header[28:34]))
    return at == len(listed)


def _is_signature(data: bytes) -> bool:
    """Return whether `data` is a signature block that `mcpb sign` appended. The signature itself is
    not verified.
    """
    head, foot = SIGNATURE
    if not data.startswith(head) or not data.endswith(foot):
        return False
    size = int.from_bytes(data[len(head) : len(head) + 4], "little")
    return len(data) == len(head) + 4 + size + len(foot)


def _check_entries(
    entries: list[zipfile.ZipInfo], end: int, file: BinaryIO, limits: Limits
) -> None:
    names: dict[str, str] = {}
    for entry in entries:
        _check_entry(entry)
        _check_unique(entry, names, limits)
    _check_offsets(entries, end, file)
    if sum(entry.file_size for entry in entries) > limits.max_bytes:
        raise ArchiveError(f"the archive unpacks to more than {limits.max_bytes >> 20} MiB")


def _check_entry(entry: zipfile.ZipInfo) -> None:
    # Use `orig_filename`, because it is the whole name in the archive. zipfile cuts `filename` at
    # the first NUL.
    name = entry.orig_filename
    check_name(name)
    if entry.flag_bits & ENCRYPTED:
        raise _bad_entry(name, "is encrypted")
    if entry.compress_type not in METHODS:
        raise _bad_entry(name, "uses an unsupported compression method")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise _bad_entry(name, "is a link")
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise _bad_entry(name, "is a device, a pipe or a socket")
    if (kind == stat.S_IFDIR) != name.endswith("/") and kind:
        raise _bad_entry(name, "is declared as a file and as a directory")
    if name.endswith("/") and entry.file_size:
        raise _bad_entry(name, "is a directory with content")


def check_name(name: str) -> None:
    if name.startswith(("/", "\\")):
        raise _bad_entry(name, "is an absolute path")
    if "\\" in name:
        raise _bad_entry(name, "contains a backslash")
    if ":" in name:
        raise _bad_entry(name, "names a drive or a stream")
    if not all(map(is_visible, name)):
        raise _bad_entry(name, "contains characters that cannot be printed")
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        raise _bad_entry(name, "leads out of the archive")
    if len(name) > MAX_PATH_LENGTH or len(parts) > MAX_DEPTH:
        raise _bad_entry(name, "is too long")
    for part in parts:
        if not part or part == "." or part != part.rstrip(". "):
            raise _bad_entry(name, "has a part that is empty or ends in a dot or a space")
        if len(os.fsencode(part)) > MAX_NAME_LENGTH:
            raise _bad_entry(name, "is too long")
        if part.partition(".")[0].rstrip().upper() in DEVICES or set(part) & set('<>"|?*'):
            raise _bad_entry(name, "is a reserved name on Windows")


def _check_unique(entry: zipfile.ZipInfo, names: dict[str, str], limits: Limits) -> None:
    """Refuse an entry if some file system would treat its name as equal to an earlier name, for
    example because it ignores case. On such a file system both entries would be the same file.

    Each directory in the path of an entry counts as an entry too, because unpacking creates it.
    """
    key = _fold(entry.orig_filename.removesuffix("/"))
    # `_fold` can make a name 18 times longer, because Unicode normalization (NFKC) replaces some
    # characters with several others.
    if len(key) > MAX_PATH_LENGTH:
        raise _bad_entry(entry.orig_filename, "is too long")
    kind = "directory" if entry.orig_filename.endswith("/") else "file"
    if names.get(key) in {"file", "listed"} or (key in names and kind == "file"):
        raise _bad_entry(entry.orig_filename, "occurs twice")
    names[key] = "file" if kind == "file" else "listed"
    parts = key.split("/")
    for at in range(1, len(parts)):
        above = "/".join(parts[:at])
        if names.setdefault(above, "directory") == "file":
            raise _bad_entry(entry.orig_filename, "is below a file")
    if len(names) > limits.max_entries:
        raise _too_many(limits)


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _check_offsets(entries: list[zipfile.ZipInfo], end: int, file: BinaryIO) -> None:
    """Check that the archive begins with its first entry, that no entries overlap, and that each
    entry has the same name in its own header as in the list of entries.
    """
    reached = 0
    for at, entry in enumerate(sorted(entries, key=lambda one: one.header_offset)):
        if at == 0 and entry.header_offset:
            raise ArchiveError("there is data before the archive")
        if entry.header_offset < reached:
            raise _bad_entry(entry.orig_filename, "overlaps another entry")
        file.seek(entry.header_offset)
        header = file.read(LOCAL_SIZE)
        if len(header) < LOCAL_SIZE or not header.startswith(LOCAL):
            raise _bad_entry(entry.orig_filename, "is not where the list of entries says")
        name, extra = struct.unpack("<HH", header[26:30])
        encoding = "utf-8" if entry.flag_bits & 0x800 else "cp437"
        if file.read(name).decode(encoding) != entry.orig_filename:
            raise _bad_entry(entry.orig_filename, "has a different name in its own header")
        reached = entry.header_offset + LOCAL_SIZE + name + extra + entry.compress_size
    if reached > end:
        raise ArchiveError("the last entry overlaps the list of entries")


def _write_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, directory: str) -> None:
    """Write one entry. No limit has to be checked here, because zipfile never returns more data
    than the entry declares, and `_check_entries` has already checked the declared sizes.
    """
    path = os.path.join(directory, *entry.orig_filename.removesuffix("/").split("/"))
    if entry.orig_filename.endswith("/"):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    runs = bool((entry.external_attr >> 16) & 0o111)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o755 if runs else 0o644)
    with open(descriptor, "wb") as target, archive.open(entry) as source:
        shutil.copyfileobj(source, target)
        if target.tell() != entry.file_size:
            raise _bad_entry(entry.orig_filename, "is shorter than declared")


def _too_many(limits: Limits) -> ArchiveError:
    return ArchiveError(f"the archive has more than {limits.max_entries} files and directories")


def _bad_entry(name: str, why: str) -> ArchiveError:
    return ArchiveError(f"the archive is refused: {shown(name, 200)} {why}")
