"""Find the tools of the servers in clients' files on this machine, without starting the servers."""

import os
from collections.abc import Sequence

from corral.clients.configured_servers import ConfiguredServer
from corral.clients.find_server import prepare_server, read_own_files
from corral.errors import SandboxError
from corral.policy.pins import find_inspected, find_pinned
from corral.servers import reference

REMOTE = " (remote)"
UNREADABLE = " (not readable)"


def find_tools(server: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return {CLIENT:SERVER: tools} with the tools that each server's last inspection listed. Also
    return a list of the servers that were never inspected and of the files that cannot be read.

    These servers are left out:

    - `server` itself, because it is being inspected
    - servers with pins, because their pins list the tools
    - servers that are disabled or belong to the project in another directory
    """
    known: dict[str, tuple[str, ...]] = {}
    unknown: list[str] = []
    scopes = {"", os.path.realpath(os.curdir)}
    for client, path, one in read_own_files(lambda path: unknown.append(path + UNREADABLE)):
        if one.disabled or one.scope not in scopes:
            continue
        name = f"{client}:{one.name}" + (REMOTE if one.is_remote else "")
        words = _name_words(path, one)
        if words == tuple(server) or (words and find_pinned(words)):
            continue
        if words and (found := find_inspected(words)) is not None:
            known[name] = tuple(tool for _, tool, _ in found.pins)
        else:
            unknown.append(name)
    return known, unknown


def _name_words(path: str, server: ConfiguredServer) -> tuple[str, ...]:
    """Return the command words under which corral stores a server's pins, or () for a remote
    server.
    """
    if server.is_remote:
        return ()
    try:
        argv = prepare_server(path, server).argv
    except SandboxError:
        argv = server.unwrapped_argv
    return tuple(reference.name_server(argv))
