"""A reference -> what it asks for and the command that starts it."""

from __future__ import annotations

import errno

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import printable
from corral.servers import directory
from corral.servers.packages import package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from corral.policy.approvals import Request
    from corral.policy.model import Source
    from corral.servers.reference import Reference
    from corral.servers.store.store import Entry

KEPT = "nothing of it was started or kept"
ROOM = f"{KEPT}; `corral cache ls` shows what could make room"
HINTS = {
    "npm": f"{KEPT}; its authors can tell more",
    "pypi": f"{KEPT}; its authors can tell more",
    "bundle": f"{KEPT}; is it the right file?",
    "registry": "nothing of it was started; CORRAL_REGISTRY names another registry",
    "client": "name the server's own command, or its package",
}


@record
class Choices:
    """What the user said about how a reference is to be opened.

    `provided` are variables that the user passes; not `complete`: it is only looked at.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    complete: bool = True
    tell: Callable[[str], None] = lambda _: None


@record
class Opened:
    """`granted` is what the user's own values for the server allow; `secrets` are such values."""

    command: tuple[str, ...]
    request: Request | None = None
    granted: tuple[Source, ...] = ()
    secrets: Mapping[str, str] = {}


def open_reference(reference: Reference, arguments: Sequence[str], choices: Choices) -> Opened:
    """Whatever goes wrong on the way is told with what to do about it."""
    try:
        return _open(reference, arguments, choices)
    except SandboxError as problem:
        problem.hint = problem.hint or HINTS[reference.kind]
        raise
    except OSError as problem:
        # A full disk, a file that went away: not worth a place of its own at each step.
        text = f"{printable(reference.text)} cannot be made ready: {problem.strerror}"
        where = f" ({printable(str(problem.filename))})" if problem.filename else ""
        full = problem.errno in {errno.ENOSPC, errno.EDQUOT}
        hint = ROOM if full else HINTS[reference.kind]
        raise SandboxError(text + where, hint=hint) from problem


def _open(reference: Reference, arguments: Sequence[str], choices: Choices) -> Opened:
    match reference.kind:
        case "npm" | "pypi":
            found = package.fetch(
                reference, scripts=choices.scripts, extra=choices.extra, tell=choices.tell
            )
            command = found.argv()
            # A wheel's .pth line or a program's `#!` line would be a grant in disguise.
            directory.check(command, found.path())
            return Opened(command=(*command, *arguments))
        case "bundle":
            return open_bundle(reference.name, arguments, choices)
        case "registry":
            from corral.servers.registry.lookup import open_server

            return open_server(reference, arguments, choices)
        case "client":
            raise SandboxError(f"{reference.text} leads to another client's server")


def open_bundle(path: str, arguments: Sequence[str], choices: Choices) -> Opened:
    from corral.servers.bundles import bundle

    digest = bundle.digest_of(path)
    return open_entry(bundle.unpacked(path, digest), digest, path, arguments, choices)


def open_entry(
    entry: Entry, digest: str, origin: str, arguments: Sequence[str], choices: Choices
) -> Opened:
    """A bundle that is in the store; `origin` is how the user calls it."""
    from corral.servers.bundles import bundle

    start = bundle.open_unpacked(
        entry,
        digest,
        origin,
        arguments,
        config=choices.config,
        provided=choices.provided,
        complete=choices.complete,
    )
    for text in start.warnings:
        choices.tell(f"warning: {text}")
    return Opened(
        command=start.command,
        request=start.request,
        granted=(start.granted,),
        secrets=start.secrets,
    )
