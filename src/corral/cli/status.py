"""`corral status`: which servers of which clients start through corral, and what each may do."""

import os

from corral.cli import client_output, output, what_to_run
from corral.cli.option_parser import Flag, Options
from corral.clients import backups, catalogue
from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.corral_path import find_corral, is_same_program
from corral.clients.edit_file import read_client_file
from corral.clients.server_needs import UnfitError, refuse_unsafe_variables
from corral.clients.unwrap import is_untouched
from corral.errors import SandboxError
from corral.policy.variables import masked
from corral.programs.package_runners import Refusal, parse_runner
from corral.record import record, replace
from corral.supervisor.report import to_json

SUMMARY = "show which servers of which clients are wrapped, and what each may do"
USAGE = "usage: corral status [--json] [CLIENT|FILE...]"
FLAGS = (Flag(name="--json", help="as JSON"),)


@record
class ServerStatus:
    """`corral` is the program that starts the server; `own` says that it is this corral."""

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
class FileStatus:
    client: str
    path: str
    error: str = ""
    servers: tuple[ServerStatus, ...] = ()


def main(options: Options, rest: list[str]) -> int:
    words = client_output.collect_words(FLAGS, options, rest)
    named = [(word, path) for word in words for path in client_output.find_files(word)]
    found = [_read_file(client, path) for client, path in (named if words else _find_all_files())]
    if options.has("--json"):
        output.write_json(to_json(tuple(found)))
    else:
        for file in found:
            _print_file(file)
        if not found:
            output.write_line("none of the clients that corral knows has a configuration here")
    return int(any(file.error for file in found))


def _find_all_files() -> list[tuple[str, str]]:
    """Return every client's own files, and those of the project in the current directory."""
    here = what_to_run.current_directory()
    found: dict[str, tuple[str, str]] = {}
    for client in catalogue.CLIENTS:
        for path in (*catalogue.own_files(client), *catalogue.project_files(client, here)):
            if os.path.lexists(path):
                # In the home directory a project's file is the client's own.
                found.setdefault(os.path.realpath(path), (client.name, path))
    return list(found.values())


def _read_file(client: str, path: str) -> FileStatus:
    try:
        file = read_client_file(path)
    except SandboxError as error:
        return FileStatus(client=client, path=path, error=error.message)
    records, text = backups.load(file.content.path), file.content.text
    servers = [_read_server(one, text, records.get(one.key_path)) for one in file.servers]
    return FileStatus(client=client, path=path, servers=tuple(servers))


def _read_server(server: ConfiguredServer, text: str, original: Original | None) -> ServerStatus:
    status = ServerStatus(
        name=server.name, state="not wrapped", scope=server.scope, off=server.disabled
    )
    if server.is_wrapped:
        return replace(
            status,
            state="wrapped",
            why=_find_unsafe_variables(server),
            corral=server.argv[0],
            own=_is_this_corral(text, server, original),
            may=tuple(client_output.describe_permissions(server.run_flags, server.inner_argv)),
            command=masked(server.inner_argv),
        )
    package = parse_runner(server.argv[0], server.argv[1:])
    return replace(
        status,
        state="left alone" if server.why else "not wrapped",
        why=server.why or (package.why if isinstance(package, Refusal) else ""),
        command=masked(server.argv) if server.command else (),
    )


def _find_unsafe_variables(server: ConfiguredServer) -> str:
    try:
        refuse_unsafe_variables(server)
    except UnfitError as error:
        return error.message
    return ""


def _is_this_corral(text: str, server: ConfiguredServer, original: Original | None) -> bool:
    """Return whether this corral wrote the command, or is the program in it.

    Any program can be named corral.
    """
    if original is not None and is_untouched(text, server, original):
        return True
    try:
        return is_same_program(server.argv[0], find_corral())
    except SandboxError:
        return False


def _print_file(file: FileStatus) -> None:
    output.write_line(output.Painted(file.client, "bold"), f"  {file.path}")
    if file.error:
        output.write_line(f"  {file.error}")
    for server in file.servers:
        name = f"{server.name} ({server.scope})" if server.scope else server.name
        off = ", switched off" if server.off else ""
        why = f": {server.why}" if server.why else ""
        output.write_line(f"  {name}  {server.state}{off}{why}")
        if server.state == "wrapped":
            output.write_line(f"    may: {'; '.join(server.may) or 'nothing of yours'}")
        if os.path.isabs(server.corral) and not os.path.exists(server.corral):
            output.write_line(f"    it cannot start: {server.corral} is not there")
        elif not server.own:
            output.write_line(f"    it is started by {server.corral}, which is not this corral")
    if not file.servers and not file.error:
        output.write_line("  no servers")
