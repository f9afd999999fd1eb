"""Our entries in an object's access list, put in and taken out; nobody else's are touched. Pure.

Works on the self-relative security descriptor that Windows hands out ([MS-DTYP] 2.4.6): entries
that are not ours keep their bytes and their order. Windows' own SetEntriesInAclW would merge and
sort them.
"""

from __future__ import annotations

import struct

from corral.paths.windows import folded
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    Reach = Literal["read", "write"]


ACCESS_ALLOWED = 0
OBJECT_INHERIT, CONTAINER_INHERIT, INHERIT_ONLY, INHERITED = 0x1, 0x2, 0x8, 0x10
DELETE, SYNCHRONIZE = 0x00010000, 0x00100000
GENERIC_READ, GENERIC_EXECUTE = 0x00120089, 0x001200A0  # of files: FILE_GENERIC_READ and so on
GENERIC_WRITE = 0x00120116
RIGHTS: dict[Reach, int] = {
    "read": GENERIC_READ | GENERIC_EXECUTE,
    # Not FILE_DELETE_CHILD, which overrides what the child's own list says; not WRITE_DAC.
    "write": GENERIC_READ | GENERIC_EXECUTE | GENERIC_WRITE,
}

DACL_PRESENT, DACL_PROTECTED, SELF_RELATIVE = 0x0004, 0x1000, 0x8000
# Without the request the kernel drops the mark of a list that follows its parent, and whoever
# edits the parent later would see all entries as the child's own.
DACL_AUTO_INHERIT_REQUIRED, DACL_AUTO_INHERITED = 0x0100, 0x0400
LARGEST = 0xFFFF


class Unusable(Exception):  # noqa: N818 - becomes one line of a refusal
    pass


@record
class Descriptor:
    """`entries` are the raw ACEs in their order."""

    control: int
    revision: int
    entries: tuple[bytes, ...]


def read(raw: bytes) -> Descriptor:
    """Only what has an access list: an object without one is open to everybody, AppContainers
    excepted, and giving it a list would take that away.
    """
    if len(raw) < 20:
        raise Unusable("its security descriptor is cut short")
    control, at = struct.unpack_from("<H", raw, 2)[0], struct.unpack_from("<I", raw, 16)[0]
    if not control & DACL_PRESENT or not at:
        raise Unusable("it has no access list")
    if at + 8 > len(raw):
        raise Unusable("its access list is cut short")
    revision, _, size, count = struct.unpack_from("<BBHH", raw, at)
    entries, place, end = list[bytes](), at + 8, min(at + size, len(raw))
    for _ in range(count):
        length = struct.unpack_from("<H", raw, place + 2)[0] if place + 4 <= end else 0
        if length < 4 or place + length > end:
            raise Unusable("its access list is damaged")
        entries.append(raw[place : place + length])
        place += length
    return Descriptor(control=control, revision=revision, entries=tuple(entries))


def write(found: Descriptor) -> bytes:
    """The list alone: owner and group are not ours to say."""
    body = b"".join(found.entries)
    if 8 + len(body) > LARGEST:
        raise Unusable("its access list is full")
    control = SELF_RELATIVE | DACL_PRESENT | found.control & (DACL_PROTECTED | DACL_AUTO_INHERITED)
    if control & DACL_AUTO_INHERITED:
        control |= DACL_AUTO_INHERIT_REQUIRED
    head = struct.pack("<BBHIIII", 1, 0, control, 0, 0, 0, 20)
    return (
        head + struct.pack("<BBHHH", found.revision, 0, 8 + len(body), len(found.entries), 0) + body
    )


def entries_for(sid: str, access: Reach, *, directory: bool, root: bool) -> tuple[bytes, ...]:
    """A root may be changed inside but not deleted or renamed, what lies below may.

    What is made below later inherits; so nothing has to be watched.
    """
    below = RIGHTS[access] | (DELETE if access == "write" else 0)
    own = RIGHTS[access] if root else below
    if not directory:
        return (_allowed(sid, own, 0),)
    if own == below:
        return (_allowed(sid, own, OBJECT_INHERIT | CONTAINER_INHERIT),)
    inherited = OBJECT_INHERIT | CONTAINER_INHERIT | INHERIT_ONLY
    return (_allowed(sid, own, 0), _allowed(sid, below, inherited))


def grant(raw: bytes, sid: str, ours: tuple[bytes, ...]) -> bytes | None:
    """The descriptor with exactly `ours` for this SID; None if that is how it is."""
    found = read(raw)
    if tuple(entry for entry in found.entries if is_of(entry, sid)) == ours:
        return None
    others = _without(found.entries, (sid,))
    # Canonical order: what is the object's own stands before what it inherited.
    at = next((n for n, entry in enumerate(others) if entry[1] & INHERITED), len(others))
    return write(_changed(found, (*others[:at], *ours, *others[at:])))


def revoke(raw: bytes, sids: Iterable[str]) -> bytes | None:
    """The descriptor without these SIDs' entries, its own and inherited; None if it has none."""
    found = read(raw)
    left = _without(found.entries, tuple(sids))
    return None if left == found.entries else write(_changed(found, left))


def holds(raw: bytes, sid: str) -> bool:
    return any(is_of(entry, sid) for entry in read(raw).entries)


def is_of(entry: bytes, sid: str) -> bool:
    """Whether this is an entry as we make them: plain, allowing, for exactly this SID."""
    return entry[0] == ACCESS_ALLOWED and entry[8:] == sid_bytes(sid)


def _without(entries: tuple[bytes, ...], sids: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(entry for entry in entries if not any(is_of(entry, sid) for sid in sids))


def _changed(found: Descriptor, entries: tuple[bytes, ...]) -> Descriptor:
    return Descriptor(control=found.control, revision=found.revision, entries=entries)


def _allowed(sid: str, mask: int, flags: int) -> bytes:
    raw = sid_bytes(sid)
    return struct.pack("<BBHI", ACCESS_ALLOWED, flags, 8 + len(raw), mask | SYNCHRONIZE) + raw


LONGEST_NAME = 64  # CreateAppContainerProfile's limit
ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. ")


def package_sid(name: str) -> str:
    """Of an AppContainer profile: what DeriveAppContainerSidFromAppContainerName answers."""
    if not name or len(name) > LONGEST_NAME or not ALLOWED.issuperset(name):
        raise ValueError(f"{name!r} cannot be the name of an AppContainer profile")
    return _sid("S-1-15-2", _digest(name.lower()), 7)


def capability_sid(name: str) -> str:
    """Of a capability that has no published SID: what DeriveCapabilitySidsFromName answers."""
    return _sid("S-1-15-3-1024", _digest(name.upper()), 8)


def grant_sid(root: str, access: Reach, identity: tuple[int, int] = (0, 0)) -> str:
    """The capability of one root and what may be done in it.

    With the identity of the object it is of that object alone, whatever gets its name later.
    """
    words = f"{folded(root)}|{identity[0]:x}|{identity[1]:x}"
    return capability_sid(f"corral.{access}.{_digest(words).hex()}")


def sid_bytes(text: str) -> bytes:
    """[MS-DTYP] 2.4.2.2: revision, count, authority (big-endian), sub-authorities."""
    parts = text.split("-")
    if parts[:1] != ["S"] or len(parts) < 3 or not all(part.isdecimal() for part in parts[1:]):
        raise ValueError(f"{text!r} is no SID")
    revision, authority, *rest = map(int, parts[1:])
    if revision != 1 or authority >= 1 << 48 or len(rest) > 15 or any(n >= 1 << 32 for n in rest):
        raise ValueError(f"{text!r} is no SID")
    head = bytes((revision, len(rest))) + authority.to_bytes(6, "big")
    return head + struct.pack(f"<{len(rest)}I", *rest)


def sid_text(raw: bytes) -> str:
    if len(raw) < 8 or raw[0] != 1 or raw[1] > 15 or len(raw) != 8 + 4 * raw[1]:
        raise ValueError(f"{raw.hex()} is no SID")
    words = struct.unpack(f"<{raw[1]}I", raw[8:])
    return "-".join(("S-1", str(int.from_bytes(raw[2:8], "big")), *map(str, words)))


def _digest(name: str) -> bytes:
    import hashlib

    return hashlib.sha256(name.encode("utf-16-le", "surrogatepass")).digest()


def _sid(prefix: str, digest: bytes, words: int) -> str:
    return "-".join((prefix, *map(str, struct.unpack(f"<{words}I", digest[: 4 * words]))))
