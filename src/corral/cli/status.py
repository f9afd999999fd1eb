"""`corral status`: show which servers of which clients are wrapped, and what each may do."""

import os
import shlex

from corral.cli import client_output, grant, output, wrapped_servers
from corral.cli.option_parser import Flag, Options
from corral.clients import backups, catalogue
from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.corral_path import find_corral, is_same_program
from corral.clients.edit_file import read_client_file
from corral.clients.entry_check import find_unknown_parts, refuse_doubtful
from corral.clients.file_formats import identify
from corral.clients.unwrap import is_untouched
from corral.errors import SandboxError
from corral.platforms import states
from corral.policy.variables import masked
from corral.programs.package_runners import Refusal, parse_runner
from corral.record import record, replace
from corral.safe_text import last_words
from corral.servers.reference import SEPARATORS
from corral.supervisor.report import to_json

SUMMARY = "show which servers of which clients are wrapped, and what each may do"
USAGE = "usage: corral status [--json] [CLIENT|FILE...]"
FLAGS = (Flag(name="--json", help="as JSON"),)
NOT_UNDERSTOOD = "not understood"
CHANGED = "corral had wrapped it, but its entry no longer starts corral"


@record
class ServerStatus:
    name: str
    state: str
    scope: str = ""
    why: str = ""
    off: bool = False
    corral: str = ""  # the corral program that starts the server, if it is wrapped
    own: bool = True  # False if the server is wrapped, but another program named corral starts it
    walled: bool | None = False  # whether this corral starts the server; None for a remote server
    denials: int = 0  # recent denials that the server's flags do not allow yet
    state_bytes: int | None = None  # size of the home that the server keeps; None without one
    unused_homes: int = 0  # homes of the same package that no configured server uses
    refused: str = ""  # why the server would not start now, or ""
    mend: str = ""  # the command that repairs the server's entry, or ""
    hint: str = ""  # what to do before the server can be wrapped, or ""
    may: tuple[str, ...] = ()
    guard: tuple[str, ...] = ()  # the settings for the MCP guard
    command: tuple[str, ...] = ()


@record
class FileStatus:
    client: str
    path: str
    error: str = ""
    hint: str = ""
    servers: tuple[ServerStatus, ...] = ()


def main(options: Options, rest: list[str]) -> int:
    named = [(word, path) for word in rest for path in client_output.find_files(word)]
    found = [
        _read_file(client, path, find_refusals=True)
        for client, path in (named if rest else _find_files())
    ]
    if options.has("--json"):
        output.write_json(to_json(tuple(found)))
    else:
        for file in found:
            _print_file(file)
        if not found:
            output.write_line("none of the clients that corral knows has a configuration here")
            output.write_line("hint: `corral wrap FILE` takes the settings file of any MCP client")
        _print_inventory(found)
    unknown = any(one.state == NOT_UNDERSTOOD for file in found for one in file.servers)
    return int(unknown or any(file.error for file in found))


def _find_files() -> list[tuple[str, str]]:
    """Return (client, file) for each of the clients' own files, this project's files, and other
    files in which corral has wrapped servers.
    """
    return [*wrapped_servers.find_all_files(), *wrapped_servers.find_recorded_files()]


def check_files(words: list[str], *, as_json: bool) -> int:
    """Find servers that are not wrapped, in the named files or else in this project's files.

    Print each of these servers, each wrapped server that `wrap` would now refuse, and each file
    that cannot be read. Ignore servers that `wrap` leaves alone, such as remote servers, if corral
    knows every part of their entries. Return 1 if anything was printed, otherwise 0.
    """
    named = [(word, path) for word in words for path in client_output.find_files(word)]
    files = [_read_file(client, path) for client, path in named or _find_project_files()]
    bad = [
        (file.path, server)
        for file in files
        for server in file.servers
        if server.state in {"not wrapped", NOT_UNDERSTOOD}
        or (server.state == "wrapped" and server.why)
    ]
    found = [(path, one.name, one.why or "does not start through corral") for path, one in bad]
    found += [(file.path, "the file", file.error) for file in files if file.error]
    if as_json:
        output.write_json(to_json(tuple(files)))
    else:
        output.write_lines(f"{path}: {name}: {why}" for path, name, why in found)
        hints = [_advise(path, server) for path, server in bad]
        hints += [file.hint for file in files if file.hint]
        output.write_lines(f"hint: {hint}" for hint in dict.fromkeys(hints))
        output.write_line(f"files checked: {len(files)}, findings: {len(found)}")
    return int(bool(found))


def _advise(path: str, server: ServerStatus) -> str:
    """Return the hint for a server that the check does not accept."""
    if server.state == "not wrapped" and not server.hint:
        return f"corral wrap {shlex.quote(path)}"
    by_hand = f"change it by hand in {path}, because corral cannot wrap it as it is"
    return f"{server.name}: {server.hint or by_hand}"


def _find_project_files() -> list[tuple[str, str]]:
    found = [
        (client.name, path)
        for client in catalogue.CLIENTS
        for path in catalogue.project_files(client, os.curdir)
        if os.path.lexists(path)
    ]
    return list({identify(path): (name, path) for name, path in found}.values())


def _read_file(client: str, path: str, *, find_refusals: bool = False) -> FileStatus:
    try:
        file = read_client_file(path)
    except SandboxError as error:
        return FileStatus(client=client, path=path, error=error.message, hint=error.hint or "")
    from corral.cli.stale_entries import find_missing_npm, find_refusal

    records, text = backups.load(file.content.path), file.content.text
    strict = not find_refusals or bool(catalogue.find_project(path))
    parts = find_unknown_parts(path, file.form.load(text), text) if strict else ()
    known = {one.key_path[0] for one in file.servers}
    servers = [
        ServerStatus(name=name, state=NOT_UNDERSTOOD, why=reason, hint=hint)
        for name, reason, hint in parts
        if name not in known
    ]
    for one in file.servers:
        original = records.get(one.key_path)
        shown = _read_server(one, text, original, path, strict=strict)
        if find_refusals:
            refused, mend = find_refusal(client, file, one)
            shown = replace(shown, refused=refused, mend=mend)
        if find_refusals and shown.state == "not wrapped" and not shown.why:
            refusal = wrapped_servers.find_wrap_refusal(client, path, one)
            reason, hint = refusal if any(refusal) else find_missing_npm(one)
            shown = replace(shown, why=reason, hint=hint)
        servers.append(shown)
    return FileStatus(client=client, path=path, servers=tuple(servers))


def _read_server(
    server: ConfiguredServer, text: str, original: Original | None, path: str, *, strict: bool
) -> ServerStatus:
    status = ServerStatus(
        name=server.name, state="not wrapped", scope=server.scope, off=server.disabled
    )
    if server.is_wrapped and server.understood:
        own = _is_this_corral(text, server, original)
        why, hint = _find_doubt(server, path, own=own, strict=strict)
        described = client_output.describe_permissions(server.run_flags, server.inner_argv)
        state_bytes, unused = _measure_homes(path, server)
        return replace(
            status,
            state="wrapped",
            why=why,
            hint=hint,
            corral=server.argv[0],
            own=own,
            walled=own,
            denials=_count_denials(path, server),
            state_bytes=state_bytes,
            unused_homes=unused,
            may=described.may,
            guard=described.guard,
            command=masked(server.inner_argv),
        )
    package = parse_runner(server.argv[0], server.argv[1:])
    refusal = package if isinstance(package, Refusal) and not server.why else None
    why = refusal.why if refusal else server.why
    is_left = refusal.leave_alone if refusal else bool(server.why)
    state, hint = "left alone" if is_left else "not wrapped", refusal.hint if refusal else ""
    if not server.understood:
        state = NOT_UNDERSTOOD
    elif is_left:
        doubt, hint = _find_doubt(server, path, own=False, strict=strict)
        state, why = (NOT_UNDERSTOOD, doubt) if doubt else (state, why)
    if original is not None:  # corral wrapped this server, but its entry was changed since
        why = "; ".join(filter(None, (CHANGED, why)))
    return replace(
        status,
        state=state,
        walled=None if server.is_remote else False,
        why=why,
        hint=hint,
        command=masked(server.argv) if server.command else (),
    )


def _count_denials(path: str, server: ConfiguredServer) -> int:
    try:
        return len(grant.list_open_denials(path, server)) if server.inner_argv else 0
    except SandboxError:
        return 0  # the server has unknown flags, and cannot start


def _measure_homes(path: str, server: ConfiguredServer) -> tuple[int | None, int]:
    """Return the size of the home directory that corral keeps for a server, or None if there is
    none. Also return how many home directories of the same package no configured server uses.

    A package has a home directory for each list of arguments. If the user changes the arguments,
    the old one stays.
    """
    if not server.inner_argv:
        return None, 0
    wanted, homes = wrapped_servers.identify_entry(path, server), states.list_states()
    found = [one for one in homes if one.server.is_started_by(wanted)]
    same = [one for one in homes if one.server.command[:1] == wanted.command[:1]]
    unused = 0
    if wanted.command[0].partition(":")[0] in SEPARATORS and same != found:
        rows = (*wrapped_servers.list_wrapped(), *wrapped_servers.list_recorded())
        used = [wanted, *(wrapped_servers.identify_entry(file, one) for _, file, one in rows)]
        unused = sum(not any(map(one.server.is_started_by, used)) for one in same)
    return sum(states.measure(one.path) for one in found) if found else None, unused


def _find_doubt(server: ConfiguredServer, path: str, *, own: bool, strict: bool) -> tuple[str, str]:
    """Return why a server is not accepted, and a hint, or two empty strings if it is accepted."""
    try:
        refuse_doubtful(server, path, own=own, strict=strict)
    except SandboxError as error:
        return error.message, error.hint or ""
    return "", ""


def _is_this_corral(text: str, server: ConfiguredServer, original: Original | None) -> bool:
    """Return whether this corral starts the server.

    This is so if the server's lines are unchanged since corral wrote them, or if they name a
    program that is the same file as this corral. The name of the program proves nothing, because
    any program can be named corral.
    """
    if original is not None and is_untouched(text, server, original):
        return True
    try:
        return is_same_program(server.argv[0], find_corral())
    except SandboxError:
        return False


def _print_inventory(files: list[FileStatus]) -> None:
    servers = [(file, one) for file in files for one in file.servers]
    if not servers:
        return
    output.write_line("")
    if len(files) > 1:
        output.write_line(output.Painted("all servers", "bold"))
        rows = [
            (f"  {one.name}", file.client, _format_state(one), "switched off" if one.off else "")
            for file, one in servers
        ]
        output.write_table(rows)
    local = [one for _, one in servers if one.walled is not None]
    wrapped = sum(bool(one.walled) for one in local)
    output.write_line(f"  {wrapped} of {len(local)} servers that run on this machine are wrapped")
    for file in files:
        if file.error:
            output.write_line(f"  not counted: the servers in {file.path}")
        if any(_can_be_wrapped(one) for one in file.servers):
            target = wrapped_servers.name_target(file.client, file.path)
            output.write_line(f"  hint: corral wrap {shlex.quote(target)}")


def _format_state(server: ServerStatus) -> str:
    if server.walled is None:
        return "remote"
    if server.state == "wrapped" and not server.own:
        return "NOT wrapped by this corral"
    return "wrapped" if server.walled else "NOT wrapped"


def _can_be_wrapped(server: ServerStatus) -> bool:
    return server.state == "not wrapped" and not server.off and not server.hint


def _print_file(file: FileStatus) -> None:
    path = f"  {file.path}" if file.path != file.client else ""
    output.write_line(output.Painted(file.client, "bold"), path)
    if file.error:
        output.write_line(f"  {file.error}")
    if file.hint:
        output.write_line(f"  hint: {file.hint}")
    for server in file.servers:
        name = f"{server.name} ({server.scope})" if server.scope else server.name
        off = ", switched off" if server.off else ""
        why = f": {server.why}" if server.why else ""
        output.write_line(f"  {name}  {server.state}{off}{why}")
        if server.hint:
            output.write_line(f"    hint: {server.hint}")
        if server.state == "wrapped":
            permissions = client_output.Permissions(may=server.may, guard=server.guard)
            output.write_lines(permissions.lines())
        if server.denials:
            known = catalogue.find_client(file.client)
            asked = last_words(server.name if known else f"{file.path}:{server.name}")
            output.write_line(
                f"    recent denials: {server.denials}; to see them: corral why {asked}"
            )
        if server.state_bytes is not None:
            output.write_line(
                f"    home directory, kept between runs: {server.state_bytes / 1e6:.1f} MB"
            )
        if server.unused_homes:
            output.write_line(
                f"    homes of this package that no configured server uses: {server.unused_homes};"
                " to see them: corral cache homes"
            )
        if server.refused:
            output.write_line(f"    it does not start: {server.refused}")
            install = f"install the program again, or correct its path in {file.path}"
            output.write_line(f"    hint: {server.mend or install}")
        if os.path.isabs(server.corral) and not os.path.exists(server.corral):
            output.write_line(f"    it cannot start: {server.corral} does not exist")
            words = last_words(file.path, server.name)
            again = f"corral wrap {words}"
            # `wrap` corrects the path only in an entry that is as corral wrote it.
            if not server.own:
                again = (
                    f"corral unwrap {words} && corral wrap {words}, and grant its permissions again"
                )
            output.write_line(f"    hint: install corral there, or: {again}")
        elif not server.own:
            output.write_line(f"    it is started by {server.corral}, which is not this corral")
    if not file.servers and not file.error:
        output.write_line("  no servers")
