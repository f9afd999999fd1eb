"""Store the user's approvals of requests. A request is a manifest that a server uses to ask for
grants.

An approval is one small file, whose name is the SHA-256 of the manifest's bytes, the server's
directory, and the real path of every path in the manifest. A changed manifest, a moved server or a
changed symlink is therefore a new request, which needs a new approval. Approvals that other users
could have written are ignored.
"""

import os
from collections.abc import Iterable

from corral.abi.private_directory import make_private_directory
from corral.abi.whole_file import replace_file
from corral.directories import directories, home_directory, is_private, refuse_shared
from corral.disk_hints import disk_hint
from corral.errors import PolicyError, SandboxError
from corral.policy.manifest import MAX_FILE_SIZE, Manifest, parse_bytes, read_file
from corral.policy.model import Source
from corral.policy.path_grants import Refused, make_absolute
from corral.policy.requests import describe_requests
from corral.record import fields, record, replace
from corral.safe_text import is_digest, printable

NAMES = ("corral.toml", "corral.json")
UNUSABLE = (
    "check who owns it: corral stores files there (set XDG_CONFIG_HOME to use another directory)"
)
STORE = "approvals"


@record
class Request:
    """A server's request: its manifest, the server's name, and the digest to approve.

    `asks` describes the settings whose values the user has stored for this server. With the
    approval, the server gets these values too.
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


def request_digest(
    content: bytes, subject: Iterable[str], real_paths: Iterable[tuple[str, str]]
) -> str:
    """Return the digest of a request: the SHA-256 of its manifest, the words that identify the
    server (such as its directory), and the manifest's paths with their real paths.
    """
    from hashlib import sha256

    total = sha256(b"corral approval 1\n")
    groups = [[content], [os.fsencode(text) for text in subject]]
    groups.append([os.fsencode(text) for pair in real_paths for text in pair])
    for group in groups:
        total.update(len(group).to_bytes(8, "big"))
        for part in group:
            # Hash the lengths too, because different inputs could be joined to the same bytes.
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def request_for(directory: str) -> tuple[Manifest, str] | None:
    """Return the request in a server's directory and the digest to approve, or None."""
    root = os.path.realpath(directory)
    found = [path for name in NAMES if os.path.lexists(path := os.path.join(root, name))]
    if not found:
        return None
    if len(found) > 1:
        raise PolicyError(f"{printable(root)} has both {' and '.join(NAMES)}", hint="remove one")
    # Do not follow a symlink: it could point to any of the user's files, and errors would quote the
    # content of that file.
    content = read_file(found[0], follow=False)
    return request_from(parse_bytes(content, found[0]), content, (root,))


def request_from(
    manifest: Manifest, content: bytes, subject: Iterable[str]
) -> tuple[Manifest, str]:
    """Return `manifest` with its real paths filled in (`resolved`), and the digest to approve.

    `content` is the manifest as bytes. `subject` identifies the server.
    """
    real_paths: list[tuple[str, str]] = []
    home = home_directory()
    for text in (*(manifest.read or ()), *(manifest.write or ()), *(manifest.unix_sockets or ())):
        try:
            written = make_absolute(text, manifest.directory or os.getcwd(), home)
        except Refused:
            continue
        real_paths.append((written, os.path.realpath(written)))
    digest = request_digest(content, subject, real_paths)
    return replace(manifest, resolved=tuple(real_paths)), digest


def approve(directory: str, *, expected: str | None = None) -> Approval:
    """Approve the request in a server's directory as it is now. If `expected` is given and differs
    from the request's digest, the request has changed since the user read it: raise PolicyError.
    """
    request = request_for(directory)
    if request is None:
        raise PolicyError(f"{printable(directory)} has no {' or '.join(NAMES)}: nothing to approve")
    manifest, found = request
    if expected is not None and found != expected:
        text = f"the request of {printable(directory)} changed while you read it"
        raise PolicyError(text, hint="read the new request")
    return remember(manifest, found, manifest.directory)


def remember(
    manifest: Manifest, digest: str, subject: str, *, asks: Iterable[str] = ()
) -> Approval:
    import json
    import time

    approval = Approval(
        digest=digest,
        directory=subject,
        approved=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        asks=(*describe_requests(manifest), *asks),
    )
    text = json.dumps({name: getattr(approval, name) for name in fields(approval)})
    write_file(make_store(_store()), digest, text.encode("ascii") + b"\n")
    return approval


def is_approved(digest: str) -> bool:
    return _read(_store(), digest) is not None


def revoke(digest: str) -> bool:
    """Remove an approval. Return False if there was none."""
    if not is_digest(digest):
        return False
    try:
        os.unlink(os.path.join(_store(), digest))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PolicyError(f"{digest} cannot be revoked: {error.strerror}", hint=UNUSABLE) from error
    return True


def list_approvals() -> list[Approval]:
    """Return every valid approval, oldest first."""
    try:
        names = os.listdir(_store())
    except OSError:
        return []
    found = [_read(_store(), name) for name in names if is_digest(name)]
    return sorted((one for one in found if one), key=lambda one: (one.approved, one.digest))


def previous_approval(subject: str) -> Approval | None:
    """Return the latest approval of any request of this server, or None."""
    found = [one for one in list_approvals() if one.directory == subject]
    return found[-1] if found else None


def _store() -> str:
    return os.path.join(directories().config, STORE)


def make_store(directory: str) -> str:
    """Make the store if it is missing. Refuse it if it is a symlink or if other users can write to
    it.
    """
    try:
        make_private_directory(os.path.dirname(directory))
        if not os.path.lexists(directory):
            make_private_directory(directory)
        found = os.lstat(directory)
    except OSError as error:
        raise PolicyError(
            f"{printable(directory)} cannot be created: {error.strerror}",
            hint=disk_hint(error, directory, UNUSABLE),
        ) from error
    refuse_shared(directory, found)
    return directory


def _read(directory: str, name: str) -> Approval | None:
    """Return an approval, or None if the file is not a valid approval."""
    import json

    if not is_digest(name):
        return None
    try:
        refuse_shared(directory, os.lstat(directory))
        content = read_file(os.path.join(directory, name), follow=False, check=refuse_shared_file)
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


def refuse_shared_file(found: os.stat_result) -> None:
    if not is_private(found):
        raise PolicyError("other users could have written this file")


def write_file(directory: str, name: str, content: bytes) -> None:
    """Write a file completely or not at all, even if the machine crashes. Refuse content that is
    too large for `read_file`.
    """
    if len(content) > MAX_FILE_SIZE:
        raise PolicyError(
            f"cannot write to {printable(directory)}: the file is larger than"
            f" {MAX_FILE_SIZE >> 20} MiB"
        )
    try:
        replace_file(os.path.join(directory, name), content)
    except OSError as error:
        raise PolicyError(
            f"{printable(directory)} cannot be written: {error.strerror}",
            hint=disk_hint(error, directory, UNUSABLE),
        ) from error
