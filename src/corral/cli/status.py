"""`corral status`: which servers of which clients start through corral, and what each may do."""

from __future__ import annotations

import os

from corral.cli import client_files, output, policy_flags
from corral.cli.options import Flag, UsageError, parse
from corral.errors import SandboxError
from corral.manifest import printable
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.cli.options import Options
    from corral.clients.servers import Server

SUMMARY = "show which servers of which clients are wrapped, and what each may do"
USAGE = "usage: corral status [--json] [CLIENT|FILE...]"
FLAGS = (Flag(name="--json", help="as JSON"),)
OUTPUTS = (
    Flag(name="--report", value="FILE", help="", many=True),
    Flag(name="--audit", value="FILE", help="", many=True),
)
SAID = {
    "--profile": "the profile",
    "--policy": "the policy",
    "--read": "read",
    "--write": "change",
    "--allow-net": "reach",
    "--listen": "listen on",
    "--env": "know",
    "--secret": "know the secret",
    "--allow-subprocess": "start processes",
    "--best-effort": "run although limits cannot be held",
    "--allow-install-scripts": "run code while it is installed",
}


def main(options: Options, rest: list[str]) -> int:
    from corral.report import plain

    words = client_files.words(FLAGS, options, rest)
    found = _named(words) if words else _everywhere()
    told = [_file(client, path) for client, path in found]
    if options.has("--json"):
        output.json(plain(tuple(told)))
    else:
        for one in told:
            _tell(one)
        if not told:
            output.say("none of the clients that corral knows has a configuration here")
    return int(any(one.error for one in told))


def _named(words: list[str]) -> list[tuple[str, str]]:
    return [(word, path) for word in words for path in client_files.files_of(word)]


def _everywhere() -> list[tuple[str, str]]:
    """Every client's own files, and those of the project in the current directory."""
    from corral.clients import catalogue

    here = policy_flags.here()
    return [
        (client.name, path)
        for client in catalogue.CLIENTS
        for path in (*catalogue.own_files(client), *catalogue.project_files(client, here))
        if os.path.lexists(path)
    ]


@record
class Row:
    """`corral` is the program that starts it, if one does; `own` whether that is this very one."""

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
    from corral.clients.editing import opened

    try:
        rows = tuple(map(_row, opened(path).servers))
    except SandboxError as error:
        return Told(client=client, path=path, error=error.message)
    return Told(client=client, path=path, servers=rows)


def _row(server: Server) -> Row:
    if not server.wrapped:
        return Row(
            name=server.name,
            scope=server.scope,
            state="left alone" if server.why else "not wrapped",
            why=server.why,
            off=server.off,
            command=server.words if server.command else (),
        )
    return Row(
        name=server.name,
        scope=server.scope,
        state="wrapped",
        off=server.off,
        corral=server.words[0],
        own=_is_own(server.words[0]),
        may=tuple(may(server.flags)),
        command=server.inner,
    )


def _is_own(path: str) -> bool:
    """Anything can be called corral: what is started is this one, or somebody should look."""
    from corral.clients.executable import executable

    try:
        return os.path.samefile(path, executable())
    except (OSError, SandboxError):
        return False


def may(flags: Sequence[str]) -> list[str]:
    """What the flags of `run` in a configuration let the server do, in plain words."""
    try:
        options, rest = parse((*policy_flags.FLAGS, *OUTPUTS), flags)
    except UsageError as error:
        return [f"nothing: it cannot start: {error.message}"]
    if rest:
        return ["nothing: it cannot start: its `--` is missing"]
    found = []
    for name, values in options.values.items():
        listed = ", ".join(values) if any(values) else ""
        if name == "--env":  # a value that is set may be nobody else's business
            listed = ", ".join(value.partition("=")[0] for value in values)
        said = SAID.get(name, name.removeprefix("--").replace("-", " "))
        found.append(f"{said} {listed}".strip())
    return found


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
        if not row.own:
            output.say(printable(f"    it is started by {row.corral}, which is not this corral"))
    if not told.servers and not told.error:
        output.say("  no servers")
