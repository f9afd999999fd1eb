"""`corral status`: which servers of which clients start through corral, and what each may do."""

from __future__ import annotations

import os

from corral.cli import client_output, output, what_to_run
from corral.cli.option_parser import Flag
from corral.errors import SandboxError
from corral.policy.variables import masked
from corral.record import record
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.clients.backups import Original
    from corral.clients.configured_servers import Server

SUMMARY = "show which servers of which clients are wrapped, and what each may do"
USAGE = "usage: corral status [--json] [CLIENT|FILE...]"
FLAGS = (Flag(name="--json", help="as JSON"),)


def main(options: Options, rest: list[str]) -> int:
    from corral.supervisor.report import to_json

    words = client_output.words(FLAGS, options, rest)
    found = _named(words) if words else _everywhere()
    told = [_file(client, path) for client, path in found]
    if options.has("--json"):
        output.json(to_json(tuple(told)))
    else:
        for one in told:
            _tell(one)
        if not told:
            output.say("none of the clients that corral knows has a configuration here")
    return int(any(one.error for one in told))


def _named(words: list[str]) -> list[tuple[str, str]]:
    return [(word, path) for word in words for path in client_output.files_of(word)]


def _everywhere() -> list[tuple[str, str]]:
    """Every client's own files, and those of the project in the current directory."""
    from corral.clients import catalogue

    here = what_to_run.current_directory()
    found: dict[str, tuple[str, str]] = {}
    for client in catalogue.CLIENTS:
        for path in (*catalogue.own_files(client), *catalogue.project_files(client, here)):
            if os.path.lexists(path):
                # In the home directory a project's file is the client's own.
                found.setdefault(os.path.realpath(path), (client.name, path))
    return list(found.values())


@record
class Row:
    """`corral` is the program that starts it, if one does; `own` whether corral put it there."""

    name: str
    state: str
    scope: str = ""
    why: str = ""
    off: bool = False
    corral: str = ""
    own: bool = True
    may: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@record
class Told:
    client: str
    path: str
    error: str = ""
    servers: tuple[Row, ...] = ()


def _file(client: str, path: str) -> Told:
    from corral.clients import backups
    from corral.clients.edit_file import opened

    try:
        found = opened(path)
    except SandboxError as error:
        return Told(client=client, path=path, error=error.message)
    records = backups.load(found.content.path)
    rows = tuple(
        _row(server, written=_is_ours(found.content.text, server, records.get(server.at)))
        for server in found.servers
    )
    return Told(client=client, path=path, servers=rows)


def _is_ours(text: str, server: Server, original: Original | None) -> bool:
    """Anything can be called corral: what is started is this one, or what this one wrote."""
    from corral.clients.corral_path import executable, is_same
    from corral.clients.unwrap import untouched

    if original is not None and untouched(text, server, original):
        return True
    try:
        return is_same(server.words[0], executable())
    except SandboxError:
        return False


def _row(server: Server, *, written: bool) -> Row:
    from corral.clients.server_needs import steering

    if not server.wrapped:
        why = server.why or _obstacle(server)
        return Row(
            name=server.name,
            scope=server.scope,
            state="left alone" if server.why else "not wrapped",
            why=why,
            off=server.off,
            command=masked(server.words) if server.command else (),
        )
    return Row(
        name=server.name,
        scope=server.scope,
        state="wrapped",
        why=problem.message if (problem := steering(server)) else "",
        off=server.off,
        corral=server.words[0],
        own=written,
        may=tuple(client_output.may(server.flags, server.inner)),
        command=masked(server.inner),
    )


def _obstacle(server: Server) -> str:
    from corral.programs.package_runners import Refusal, launched

    found = launched(server.words[0], server.words[1:])
    return found.why if isinstance(found, Refusal) else ""


def _tell(told: Told) -> None:
    output.say(f"{output.paint(told.client, 'bold')}  {printable(told.path)}")
    if told.error:
        output.say(f"  {printable(told.error)}")
    for row in told.servers:
        name = f"{row.name} ({row.scope})" if row.scope else row.name
        off = ", switched off" if row.off else ""
        why = f": {row.why}" if row.why else ""
        output.say(printable(f"  {name}  {row.state}{off}{why}"))
        if row.state == "wrapped":
            output.say(printable(f"    may: {'; '.join(row.may) or 'nothing of yours'}"))
        if os.path.isabs(row.corral) and not os.path.exists(row.corral):
            output.say(printable(f"    it cannot start: {row.corral} is not there"))
        elif not row.own:
            output.say(printable(f"    it is started by {row.corral}, which is not this corral"))
    if not told.servers and not told.error:
        output.say("  no servers")
