"""SIDs by name, without asking Windows: of packages and of capabilities. Pure.

Windows derives both kinds from a SHA-256 of the name in UTF-16: a package SID from the lower-case
name and the first seven words of the digest, a capability SID from the upper-case name and all
eight. So a plan can name the SIDs of a run before anything was made, and `app_container` compares
them with what Windows says when it is.

Every (root, access) that a policy grants has a capability of its own. A token carries those of its
policy alone: two runs on one machine cannot reach each other's grants, nor undo them. Capabilities
from before Windows 10 have short SIDs (S-1-15-3-1 is internetClient): `network` has those in use.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Reach = Literal["read", "write"]

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


def folded(path: str) -> str:
    r"""One spelling for what the file system takes as one name: `c:\DATA\` and `C:/data`."""
    # NTFS folds one character to one: a sharp s is not two.
    upper = [char.upper() if len(char.upper()) == 1 else char for char in path]
    return "".join(upper).replace("/", "\\").rstrip("\\")


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
