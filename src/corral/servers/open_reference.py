"""Open a reference: install or unpack the server that it names, and return the command that starts
the server.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from corral import disk_hints
from corral.directories import directories
from corral.errors import SandboxError
from corral.policy.approvals import Request
from corral.policy.model import Source
from corral.record import record
from corral.safe_text import printable
from corral.servers.packages.package import SOURCES, fetch_package
from corral.servers.packages.sources import InstallOptions
from corral.servers.reference import Reference
from corral.servers.server_directory import check_command

NOTHING_KEPT = "the server was not started, and nothing was kept"
PACKAGE_HINT = f"{NOTHING_KEPT}; ask the package's authors about it"
OTHER_CACHE = f"set XDG_CACHE_HOME to another directory that you own; {NOTHING_KEPT}"
HINTS = {
    "bundle": f"{NOTHING_KEPT}; is it the right file?",
    "registry": "the server was not started; CORRAL_REGISTRY=URL selects another registry",
    "client": "name the server's own command, or its package",
}


@record
class Choices:
    install: InstallOptions = InstallOptions()
    config: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()  # names of the variables that the user passes to the server
    granted: tuple[str, ...] = ()  # paths that the user allows the server to use
    # Whether a server is refused if one of its required settings has no value. This is False for
    # `corral inspect`, which only lists the server's tools.
    complete: bool = True
    notify: Callable[[str], None] = lambda _: None


@record
class ReadyServer:
    """A server that can be started.

    `request` contains the permissions that the server requests. `granted` contains the permissions
    that follow from the user's values for the server. `secrets` contains the sensitive values,
    keyed by the names of their variables.
    """

    command: tuple[str, ...]
    request: Request | None = None
    granted: tuple[Source, ...] = ()
    secrets: Mapping[str, str] = {}


def open_reference(reference: Reference, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    """Install or unpack the server that a reference names. If this fails with an error that has no
    hint, add a general one.
    """
    hint = HINTS.get(reference.kind, PACKAGE_HINT)
    try:
        return _open(reference, arguments, choices)
    except SandboxError as problem:
        problem.hint = problem.hint or hint
        raise
    except OSError as problem:
        # Many calls during an installation can raise OSError, for example because the disk is full.
        text = f"{printable(reference.text)} cannot be prepared: {problem.strerror}"
        # If the disk is full, name corral's cache, because corral writes all files of a server
        # there. After a failed copy, `problem.filename` can be the file that was read.
        place = directories().cache if problem.errno in disk_hints.HINTS else problem.filename
        where = f" ({printable(str(place))})" if place else ""
        if problem.errno in disk_hints.HINTS:
            hint = disk_hints.disk_hint(problem, directories().cache, OTHER_CACHE)
        raise SandboxError(text + where, hint=hint) from problem


def _open(reference: Reference, arguments: Sequence[str], choices: Choices) -> ReadyServer:
    if reference.kind in SOURCES:
        found = fetch_package(reference, choices.install, choices.notify)
        command = found.argv()
        # A line in a wheel's .pth file or a program's `#!` line could name any of the user's files.
        # corral would make that file visible to the target, because the command needs it. So refuse
        # a command that needs files which the user has not granted.
        named = [path for path in choices.install.runtimes.values() if os.path.isabs(path)]
        runtimes = [os.path.dirname(os.path.dirname(path)) for path in named]
        check_command(command, found.path(), (*choices.granted, *runtimes))
        return ReadyServer(command=(*command, *arguments))
    if reference.kind == "bundle":
        from corral.servers.bundles.bundle import open_bundle

        return open_bundle(reference.name, arguments, choices)
    if reference.kind == "registry":
        from corral.servers.registry.lookup import open_server

        return open_server(reference, arguments, choices)
    raise SandboxError(
        f"cannot install {reference.text}: it is a server in a client's configuration"
    )
