"""Add corral's entries to an object's access list, and remove them.

The functions call no system function: they change bytes. They work on the self-relative security
descriptor that Windows returns ([MS-DTYP] 2.4.6), and leave all other entries unchanged and in
order. Windows' own SetEntriesInAclW is not used, because it would merge and sort the entries.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable
from typing import Literal

from corral.abi.win32_security import format_sid, parse_sid
from corral.paths.windows import fold_path
from corral.record import record, replace

Reach = Literal["read", "write"]

ACCESS_ALLOWED, ACCESS_DENIED = 0, 1
CONDITIONAL = 9  # ACCESS_ALLOWED_CALLBACK_ACE: allows access if its condition is true
GENERIC = {0x80000000: 0x00120089, 0x40000000: 0x00120116, 0x20000000: 0x001200A0,
           0x10000000: 0x001F01FF}  # fmt: skip
"""The file rights that each generic right stands for: read, write, execute, all. Windows does not
always replace generic rights when a list is set, so `allowed_rights` replaces them itself.
"""
SPECIFIC = 0x01FFFFFF
CONTAINERS = ("S-1-15-2-1", "S-1-15-2-2")
"""ALL APPLICATION PACKAGES and ALL RESTRICTED APPLICATION PACKAGES. Every target has these SIDs."""
OBJECT_INHERIT, CONTAINER_INHERIT, INHERIT_ONLY, INHERITED = 0x1, 0x2, 0x8, 0x10
OWNER_RIGHTS = "S-1-3-4"
READ_DATA = 0x1
DELETE, SYNCHRONIZE = 0x00010000, 0x00100000
# Windows calls these FILE_GENERIC_READ, FILE_GENERIC_EXECUTE and FILE_GENERIC_WRITE.
GENERIC_READ, GENERIC_EXECUTE = 0x00120089, 0x001200A0
GENERIC_WRITE = 0x00120116
RIGHTS: dict[Reach, int] = {
    "read": GENERIC_READ | GENERIC_EXECUTE,
    # Two rights are left out of a write grant. FILE_DELETE_CHILD on a directory would let the
    # target delete the files in it, whatever their own access lists say. WRITE_DAC would let the
    # target change access lists.
    "write": GENERIC_READ | GENERIC_EXECUTE | GENERIC_WRITE,
}

DACL_PRESENT, DACL_PROTECTED, SELF_RELATIVE = 0x0004, 0x1000, 0x8000
# Without DACL_AUTO_INHERIT_REQUIRED the kernel drops DACL_AUTO_INHERITED. When the parent's list is
# edited later, Windows would then treat the inherited entries as the child's own.
DACL_AUTO_INHERIT_REQUIRED, DACL_AUTO_INHERITED = 0x0100, 0x0400
MAX_SIZE = 0xFFFF


class Unusable(Exception):  # noqa: N818 - becomes one line of a refusal
    pass


@record
class Descriptor:
    control: int
    revision: int
    entries: tuple[bytes, ...]


def read(raw: bytes) -> Descriptor:
    """Parse a security descriptor. Raise Unusable if it is damaged or has no access list.

    An object without an access list is open to all users. They would lose their access if corral
    added a list with its own entries.
    """
    if len(raw) < 20:
        raise Unusable("its security descriptor is truncated")
    control, start = struct.unpack_from("<H", raw, 2)[0], struct.unpack_from("<I", raw, 16)[0]
    if not control & DACL_PRESENT or not start:
        raise Unusable("it has no access list")
    if start + 8 > len(raw):
        raise Unusable("its access list is truncated")
    revision, _, size, count = struct.unpack_from("<BBHH", raw, start)
    entries, at, end = list[bytes](), start + 8, min(start + size, len(raw))
    for _ in range(count):
        length = struct.unpack_from("<H", raw, at + 2)[0] if at + 4 <= end else 0
        if length < 4 or at + length > end:
            raise Unusable("its access list is damaged")
        entries.append(raw[at : at + length])
        at += length
    return Descriptor(control=control, revision=revision, entries=tuple(entries))


def write(found: Descriptor) -> bytes:
    """Return a security descriptor that contains only the access list, without owner and group.

    Raise Unusable if the list is too long.
    """
    body = b"".join(found.entries)
    if 8 + len(body) > MAX_SIZE:
        raise Unusable("its access list is full")
    control = SELF_RELATIVE | DACL_PRESENT | found.control & (DACL_PROTECTED | DACL_AUTO_INHERITED)
    if control & DACL_AUTO_INHERITED:
        control |= DACL_AUTO_INHERIT_REQUIRED
    head = struct.pack("<BBHIIII", 1, 0, control, 0, 0, 0, 20)
    acl = struct.pack("<BBHHH", found.revision, 0, 8 + len(body), len(found.entries), 0)
    return head + acl + body


def entries_for(sid: str, access: Reach, *, directory: bool, root: bool) -> tuple[bytes, ...]:
    """Return the entries that give the capability `sid` access to one object of a granted tree.

    If `root` is true, the object is the tree's root, which the target cannot delete or rename.
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
    """Replace the entries of this SID in a security descriptor with `ours`.

    Return the new descriptor, or None if the SID already has exactly these entries.
    """
    found = read(raw)
    if tuple(entry for entry in found.entries if is_entry_of(entry, sid)) == ours:
        return None
    others = _without(found.entries, sid)
    # Insert `ours` after the object's own entries and before the inherited ones. Windows expects
    # this order.
    at = next((n for n, entry in enumerate(others) if entry[1] & INHERITED), len(others))
    return write(replace(found, entries=(*others[:at], *ours, *others[at:])))


def revoke(raw: bytes, sid: str) -> bytes | None:
    """Return the security descriptor without the entries of this SID.

    Return None if it has no such entries.
    """
    found = read(raw)
    left = _without(found.entries, sid)
    return None if left == found.entries else write(replace(found, entries=left))


def has_entry(raw: bytes, sid: str) -> bool:
    return any(is_entry_of(entry, sid) for entry in read(raw).entries)


def allowed_rights(raw: bytes, sids: Iterable[str], *, below: bool = False) -> int:
    """Return the rights that an access list gives to a process with these SIDs.

    `raw` is the security descriptor with the list. As in Windows ([MS-DTYP] 2.5.3.2), the first
    entry for one of the SIDs that contains a right decides about the right. The condition of a
    conditional entry is assumed to be true. With `below`, entries that apply only to new objects in
    a directory count too.
    """
    wanted = frozenset(map(parse_sid, sids))
    allowed = denied = 0
    for entry in read(raw).entries:
        kind, flags = entry[:2]
        if _subject(entry) not in wanted or (flags & INHERIT_ONLY and not below):
            continue
        rights = _file_rights(struct.unpack_from("<I", entry, 4)[0])
        if kind == ACCESS_DENIED:
            denied |= rights & ~allowed
        else:
            allowed |= rights & ~denied
    return allowed


def is_readable(raw: bytes, sids: Collection[str]) -> bool:
    """Return whether a process with these SIDs may read an object.

    `raw` is the object's security descriptor, and must include the owner.
    """
    own = (OWNER_RIGHTS,) if owner_sid(raw) in sids else ()
    try:
        return bool(allowed_rights(raw, (*sids, *own)) & READ_DATA)
    except Unusable:
        return True  # without an access list every user may read


def owner_sid(raw: bytes) -> str:
    """Return the SID of a descriptor's owner, or "" if the descriptor has no owner."""
    at = struct.unpack_from("<I", raw, 4)[0] if len(raw) >= 20 else 0
    if not at or at + 8 > len(raw):
        return ""
    return format_sid(raw[at : at + 8 + 4 * raw[at + 1]])


def _subject(entry: bytes) -> bytes:
    """Return the SID of an entry that allows or denies access, or b"" for other entries."""
    if entry[0] not in {ACCESS_ALLOWED, ACCESS_DENIED, CONDITIONAL} or len(entry) < 16:
        return b""
    return entry[8 : 16 + 4 * entry[9]]


def _file_rights(mask: int) -> int:
    rights = mask & SPECIFIC
    for generic, meaning in GENERIC.items():
        rights |= meaning if mask & generic else 0
    return rights


def is_entry_of(entry: bytes, sid: str) -> bool:
    """Return whether an entry is one of the kind that corral adds for this SID.

    Such an entry allows access, and names exactly this SID.
    """
    return entry[0] == ACCESS_ALLOWED and entry[8:] == parse_sid(sid)


def _without(entries: tuple[bytes, ...], sid: str) -> tuple[bytes, ...]:
    return tuple(entry for entry in entries if not is_entry_of(entry, sid))


def _allowed(sid: str, mask: int, flags: int) -> bytes:
    raw = parse_sid(sid)
    return struct.pack("<BBHI", ACCESS_ALLOWED, flags, 8 + len(raw), mask | SYNCHRONIZE) + raw


MAX_NAME_LENGTH = 64  # CreateAppContainerProfile's limit
ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. ")


def package_sid(name: str) -> str:
    """Return the SID of the AppContainer profile with this name.

    DeriveAppContainerSidFromAppContainerName returns the same SID.
    """
    if not name or len(name) > MAX_NAME_LENGTH or not ALLOWED.issuperset(name):
        raise ValueError(f"{name!r} cannot be the name of an AppContainer profile")
    return _sid("S-1-15-2", _digest(name.lower()), 7)


def capability_sid(name: str) -> str:
    """Return the SID of the capability with this name, which is not one of Windows' own.

    DeriveCapabilitySidsFromName returns the same SID.
    """
    return _sid("S-1-15-3-1024", _digest(name.upper()), 8)


def grant_sid(root: str, access: Reach, identity: tuple[int, int] = (0, 0)) -> str:
    """Return the SID of the capability for one granted root and one kind of access.

    The SID depends on `identity`, the root's volume and file id. So if another object takes the
    root's path, its SID is different.
    """
    words = f"{fold_path(root)}|{identity[0]:x}|{identity[1]:x}"
    return capability_sid(f"corral.{access}.{_digest(words).hex()}")


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-16-le", "surrogatepass")).digest()


def _sid(prefix: str, digest: bytes, words: int) -> str:
    return "-".join((prefix, *map(str, struct.unpack(f"<{words}I", digest[: 4 * words]))))
