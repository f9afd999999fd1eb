"""Opens a reference: installs or unpacks what it names, and returns the command that starts it."""

import errno
from collections.abc import Callable, Mapping, Sequence

from corral.errors import SandboxError
from corral.policy.approvals import Request
from corral.policy.model import Source
from corral.record import record
from corral.safe_text import printable
from corral.servers.packages.package import SOURCES, fetch_package
from corral.servers.reference import Reference
from corral.servers.server_directory import check_command

NOTHING_KEPT = "nothing of it was started or kept"
PACKAGE_HINT = f"{NOTHING_KEPT}; its authors can tell more"
DISK_HINT = f"{NOTHING_KEPT}; `corral cache ls` shows what could make room"
HINTS = {
    "bundle": f"{NOTHING_KEPT}; is it the right file?",
    "registry": "nothing of it was started; CORRAL_REGISTRY names another registry",
    "client": "name the server's own command, or its package",
}


@record
class Choices:
    """The user's choices for opening a reference.

    `provided` are variables that the user passes, `granted` paths that the user allows. If not
    `complete`, the server is only inspected, so settings may still lack a value. `notify` gets
    lines for the user.
    """

    scripts: bool = False
    extra: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    complete: bool = True
    notify: Callable[[str], None] = lambda _: None


@record
class ReadyServer:
    """A server that can be started: its command, and what it asks for.

    `granted` is what the user's own values for the server allow; `secrets` are such values.
    """

    command: tuple[str, ...]
    request: Request | None = None
    granted: tuple[Source, ...] = ()
    secrets: Mapping[str, str] = {}


def open_reference(reference: Reference, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    """Open a reference; every error gets a hint."""
    hint = HINTS.get(reference.kind, PACKAGE_HINT)
    try:
        return _open(reference, arguments, choices)
    except SandboxError as problem:
        problem.hint = problem.hint or hint
        raise
    except OSError as problem:
        # Any step may meet a full disk or a file that is gone.
        text = f"{printable(reference.text)} cannot be made ready: {problem.strerror}"
        where = f" ({printable(str(problem.filename))})" if problem.filename else ""
        full = problem.errno in {errno.ENOSPC, errno.EDQUOT}
        raise SandboxError(text + where, hint=DISK_HINT if full else hint) from problem


def _open(reference: Reference, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    if reference.kind in SOURCES:
        found = fetch_package(
            reference, scripts=choices.scripts, extra=choices.extra, notify=choices.notify
        )
        command = found.argv()
        # A wheel's .pth line or a program's `#!` line could name any file of the user's.
        check_command(command, found.path(), choices.granted)
        return ReadyServer(command=(*command, *arguments))
    if reference.kind == "bundle":
        from corral.servers.bundles.bundle import open_bundle

        return open_bundle(reference.name, arguments, choices)
    if reference.kind == "registry":
        from corral.servers.registry.lookup import open_server

        return open_server(reference, arguments, choices)
    raise SandboxError(f"{reference.text} leads to another client's server")
