"""What came with a server is a request; here the user's approvals of such requests are kept.

An approval is one small file, named by a SHA-256 over the manifest's bytes, the server's directory
and what every path in it leads to: a changed manifest, a moved server or a swapped link is a new
request.
Nothing is approved in doubt: a store that others could have written to holds no approvals.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import directories, home_directory
from corral.errors import PolicyError, SandboxError
from corral.policy.manifest import parse_bytes, read_file
from corral.policy.model import requested_grants
from corral.record import record, replace
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.policy.manifest import Manifest
    from corral.policy.model import Source

NAMES = ("corral.toml", "corral.json")
NOT_OURS = "see whose it is and whether there is room: approvals are kept there"
STORE = "approvals"
DIGITS = frozenset("0123456789abcdef")
LENGTH = 64


@record
class Request:
    """What came with a server: its words, the digest that an approval is for, whose they are.

    `asks` is what it would get besides: values that the user keeps for a server of its name.
    """

    source: Source
    digest: str
    subject: str
    asks: tuple[str, ...] = ()


@record
class Approval:
    digest: str
    directory: str
    approved: str
    asks: tuple[str, ...] = ()


def digest(content: bytes, subject: Iterable[str], leads: Iterable[tuple[str, str]] = ()) -> str:
    """SHA-256 over a manifest, whom it is for (directory or command) and where its paths lead."""
    from hashlib import sha256

    total = sha256(b"corral approval 1\n")
    groups = [[content], [os.fsencode(text) for text in subject]]
    groups.append([os.fsencode(text) for pair in leads for text in pair])
    for group in groups:
        total.update(len(group).to_bytes(8, "big"))
        for part in group:
            # Lengths keep two different inputs from running into the same bytes.
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def request_for(directory: str, *, home: str = "") -> tuple[Manifest, str] | None:
    """The request that came with a server's directory, and the digest that an approval is for."""
    root = os.path.realpath(directory)
    found = [path for name in NAMES if os.path.lexists(path := os.path.join(root, name))]
    if not found:
        return None
    if len(found) > 1:
        raise PolicyError(f"{printable(root)} has both {' and '.join(NAMES)}", hint="keep one")
    # A link could show any file of the user's as a manifest, and quote it in the errors.
    content = read_file(found[0], follow=False)
    return request_from(parse_bytes(content, found[0]), content, (root,), home=home)


def request_from(
    manifest: Manifest, content: bytes, subject: Iterable[str], *, home: str = ""
) -> tuple[Manifest, str]:
    """The same for a manifest that came some other way, as in a bundle: `content` is its bytes."""
    leads = tuple(resolve(manifest, home or home_directory()))
    return replace(manifest, resolved=leads), digest(content, subject, leads)


def resolve(manifest: Manifest, home: str) -> list[tuple[str, str]]:
    """(absolute path as written, real path now) of every path in the manifest."""
    from corral.policy.path_grants import Refused, absolute

    found: list[tuple[str, str]] = []
    texts = (manifest.read or ()) + (manifest.write or ()) + (manifest.unix_sockets or ())
    for text in texts:
        try:
            written = absolute(text, manifest.directory or os.getcwd(), home)
        except Refused:
            continue
        found.append((written, os.path.realpath(written)))
    return found


def approve(directory: str, *, expected: str | None = None, config: str = "") -> Approval:
    """Approve what a directory asks for now. `expected` is the digest that the user was shown."""
    request = request_for(directory)
    if request is None:
        raise PolicyError(f"{printable(directory)} has no {' or '.join(NAMES)}: nothing to approve")
    manifest, found = request
    if expected is not None and found != expected:
        raise PolicyError(f"{printable(directory)} changed while you looked", hint="look again")
    return remember(manifest, found, manifest.directory, config=config)


def remember(
    manifest: Manifest, found: str, subject: str, *, asks: Iterable[str] = (), config: str = ""
) -> Approval:
    import json
    import time

    approval = Approval(
        digest=found,
        directory=subject,
        approved=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        asks=(*requested_grants(manifest), *asks),
    )
    text = json.dumps(
        {
            "digest": found,
            "directory": subject,
            "approved": approval.approved,
            "asks": approval.asks,
        }
    )
    write(checked(store(config)), found, text.encode("ascii") + b"\n")
    return approval


def is_approved(found: str, *, config: str = "") -> bool:
    return read(store(config), found) is not None


def revoke(found: str, *, config: str = "") -> bool:
    """Forget an approval; False if there was none."""
    if not is_digest(found):
        return False
    try:
        os.unlink(os.path.join(store(config), found))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PolicyError(f"{found} cannot be revoked: {error.strerror}", hint=NOT_OURS) from error
    return True


def approvals(*, config: str = "") -> list[Approval]:
    """Every approval in force, oldest first."""
    try:
        names = os.listdir(store(config))
    except OSError:
        return []
    found = [read(store(config), name) for name in names if is_digest(name)]
    return sorted((one for one in found if one), key=lambda one: (one.approved, one.digest))


def previous(subject: str, *, config: str = "") -> Approval | None:
    """What the user last approved of the same server, before it asked for something else."""
    found = [one for one in approvals(config=config) if one.directory == subject]
    return found[-1] if found else None


def is_digest(text: str) -> bool:
    return len(text) == LENGTH and DIGITS.issuperset(text)


def store(config: str) -> str:
    return os.path.join(config or directories().config, STORE)


def private(found: os.stat_result) -> bool:
    """Written by nobody else. Windows has no modes; there the profile's own ACL guards it."""
    if sys.platform == "win32":
        return True
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022


def checked(directory: str) -> str:
    """The store, made if need be, and refused if it is a link or open to others."""
    try:
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(directory)
    except OSError as error:
        raise PolicyError(
            f"{printable(directory)} cannot be made: {error.strerror}", hint=NOT_OURS
        ) from error
    if not stat.S_ISDIR(found.st_mode) or not private(found):
        raise PolicyError(
            f"{printable(directory)} is not a directory that only you can write to",
            hint=f"look at what is in it, then: chmod 700 {printable(directory)}",
        )
    return directory


def read(directory: str, name: str) -> Approval | None:
    """An approval, or None for everything that is not beyond doubt one."""
    import json

    if not is_digest(name):
        return None
    try:
        place = os.lstat(directory)
        if not stat.S_ISDIR(place.st_mode) or not private(place):
            return None
        content = read_file(os.path.join(directory, name), follow=False, check=refuse_shared)
        data: object = json.loads(content)
    except (OSError, ValueError, RecursionError, SandboxError):
        return None
    if not isinstance(data, dict) or data.get("digest") != name:
        return None
    asks = data.get("asks")
    return Approval(
        digest=name,
        directory=str(data.get("directory", "")),
        approved=str(data.get("approved", "")),
        asks=tuple(map(str, asks)) if isinstance(asks, list) else (),
    )


def refuse_shared(found: os.stat_result) -> None:
    if not private(found):
        raise PolicyError("an approval that others could have written")


def write(directory: str, name: str, content: bytes) -> None:
    """All or nothing, even through a crash: a new file takes the name only when it is on disk."""
    path = os.path.join(directory, name)
    fresh = f"{path}.{os.urandom(8).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(fresh, flags, 0o600)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(descriptor)
            os.replace(fresh, path)
        except OSError:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise PolicyError(
            f"the approval cannot be written: {error.strerror}", hint=NOT_OURS
        ) from error
