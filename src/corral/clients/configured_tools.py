"""Find the tools of the servers that clients on this machine start, without starting them."""

import os
from collections.abc import Iterator, Mapping, Sequence

from corral.clients import catalogue
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import read_client_file
from corral.clients.find_server import prepare_server
from corral.errors import SandboxError
from corral.policy.pins import find_inspected, find_pinned
from corral.record import record
from corral.servers import reference

REMOTE = " (remote)"
UNREADABLE = " (not readable)"


@record
class ConfiguredTools:
    """The tools of configured servers, by `CLIENT:SERVER`. The `unknown` servers were never
    inspected, so their tools are not known.
    """

    known: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]


def find_tools(server: Sequence[str]) -> ConfiguredTools:
    """Return the tools of other configured servers, as their last inspection listed them.

    Leave out the server with the words `server`, which is inspected now, and servers with pins,
    whose tools are known from the pins.
    """
    known: dict[str, tuple[str, ...]] = {}
    unknown = []
    for name, words in _list_configured():
        if words == tuple(server) or (words and find_pinned(words)):
            continue
        if words and (found := find_inspected(words)) is not None:
            known[name] = tuple(tool for _, tool, _ in found.pins)
        else:
            unknown.append(name)
    return ConfiguredTools(known=known, unknown=tuple(unknown))


def _list_configured() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and the words of each server that a client would start in this directory. For
    a file that cannot be read, yield its path without words.
    """
    here = os.path.realpath(os.curdir)
    for client in catalogue.CLIENTS:
        for path in filter(_has_text, catalogue.own_files(client)):
            try:
                servers = read_client_file(path).servers
            except SandboxError:
                yield path + UNREADABLE, ()
                continue
            for one in servers:
                if not one.disabled and one.scope in {"", here}:
                    name = f"{client.name}:{one.name}" + (REMOTE if one.is_remote else "")
                    yield name, _name_words(path, one)


def _has_text(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _name_words(path: str, server: ConfiguredServer) -> tuple[str, ...]:
    """Return the words under which a server's pins are stored; () if the server is remote."""
    if server.is_remote:
        return ()
    try:
        argv = prepare_server(path, server).argv
    except SandboxError:
        argv = server.unwrapped_argv
    return tuple(reference.name_server(argv))
