"""`corral why`: show what the last runs of a server were denied, and how to allow it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise

from corral.cli import grant, output, wrapped_servers
from corral.cli.learn_time import is_over
from corral.cli.option_parser import Flag, Options, UsageError, suggest
from corral.clients.catalogue import NAMES, find_client
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import read_client_file
from corral.clients.server_needs import find_identity_directory
from corral.denials import kept
from corral.denials.records import Denial
from corral.denials.server_id import ServerId
from corral.errors import SandboxError
from corral.policy.server_identity import identify_command
from corral.programs.package_runners import Package, parse_runner
from corral.record import record, replace
from corral.safe_text import last_words
from corral.servers.reference import name_server
from corral.supervisor.report import to_json

SUMMARY = "show what a server's last runs were denied, and how to allow it"
USAGE = "usage: corral why [--json] [CLIENT | [CLIENT:|FILE:]SERVER | COMMAND...]"
FLAGS = (Flag(name="--json", help="as JSON"),)


@record
class ServerDenials:
    """The denials of one server.

    `names` lists the entries (CLIENT:SERVER) in clients' files that start this server through
    corral. For each denial, `granted` says whether the flags of these entries now allow it, and
    `times` says when it last happened.
    """

    command: tuple[str, ...]
    directory: str = ""  # the start directory, if the command may mean another server elsewhere
    elsewhere: tuple[str, ...] = ()  # directories of other runs of the command
    names: tuple[str, ...] = ()
    runs: int = 0
    last_run: int = 0
    failure: str = ""  # how the last run failed
    denials: tuple[Denial, ...] = ()
    granted: tuple[bool, ...] = ()
    times: tuple[int, ...] = ()
    refused: str = ""  # why the server would not start now, if the user named it
    mend: str = ""  # the command that repairs the server's entry in the client's file


def main(options: Options, rest: list[str]) -> int:
    configured = [*wrapped_servers.list_wrapped(), *wrapped_servers.list_recorded()]
    if rest:
        found = _find(rest, configured)
    else:
        servers = dict.fromkeys(run.server for run in kept.load_all())
        found = [_describe(server, configured) for server in servers]
    if options.has("--json"):
        output.write_json(to_json(tuple(found)))
        return 0
    for one in found:
        _print(one, _find_typed_name(one, rest[0]) if len(rest) == 1 else "")
    if not found:
        output.write_line("no run had denials")
    return 0


def _find_typed_name(found: ServerDenials, word: str) -> str:
    """Return CLIENT:SERVER if the user typed only the name of the client, otherwise the word
    itself.
    """
    return next((name for name in found.names if name.startswith(f"{word}:")), word)


Configured = Sequence[tuple[str, str, ConfiguredServer]]


def _find(rest: list[str], configured: Configured) -> list[ServerDenials]:
    """Find servers by their names in clients' files, by the name of their client, or by the command
    that was run.
    """
    if len(rest) == 1:
        named = wrapped_servers.match_wrapped(rest[0]) or _list_of_client(rest[0], configured)
        if named:
            configured = [*configured, *(row for row in named if row not in configured)]
            servers = dict.fromkeys(
                wrapped_servers.identify_entry(path, server) for _, path, server in named
            )
            return [
                _describe(server, configured, named)
                for server in servers
                if not _is_repeated(server, servers)
            ]
    found = _find_typed(identify_command(name_server(rest)))
    if not found and len(rest) == 1:
        found = _find_unwrapped(rest[0])
    if not found and len(rest) == 1 and find_client(rest[0]):
        word = shlex.quote(rest[0])
        raise SandboxError(f"no server of {rest[0]} is wrapped", hint=f"corral wrap {word}")
    if not found:
        names = [*(server.name for _, _, server in configured), *NAMES]
        hint = suggest(rest[0], names, "`corral status` lists the servers of your clients")
        is_name = len(rest) == 1 and os.sep not in rest[0]
        raise (UsageError if is_name else SandboxError)(
            f"no server named {' '.join(rest)} is known, and no denials of it are recorded",
            hint=wrapped_servers.suggest_one_word(rest) or hint,
        )
    return [_describe(server, configured) for server in dict.fromkeys(found)]


def _is_repeated(server: ServerId, servers: Iterable[ServerId]) -> bool:
    """Return whether a description of `server` would only repeat those of other `servers`.

    This is so if the command of `server` contains variables, and each of its stored runs is also a
    run of another server in `servers`.
    """
    runs = kept.load_server(server) if server.has_variables else []
    ran = {run.server.digest for run in runs}
    return bool(ran) and ran <= {one.digest for one in servers}


def _list_of_client(word: str, configured: Configured) -> Configured:
    """Return the wrapped servers of the client that `word` names."""
    client = find_client(word)
    return [row for row in configured if client is not None and row[0] == client.name]


def _find_typed(typed: ServerId) -> list[ServerId]:
    """Return the stored servers whose commands start with the typed words.

    Secrets are masked in stored commands. If runs of exactly the typed command are stored, leave
    out servers whose commands differ from it only in secrets.
    """
    words = typed.command
    stored = dict.fromkeys(run.server for run in kept.load_all())
    found = [one for one in stored if one.command[: len(words)] == words]
    if not any(one.digest == typed.digest for one in stored):
        return found
    return [one for one in found if one.command != words or one.digest == typed.digest]


def _find_unwrapped(word: str) -> list[ServerId]:
    """Return the servers named `word` that have stored runs but are no longer wrapped.

    If none of the servers with this name has stored runs, raise an error with the commands that
    wrap them.
    """
    rows = wrapped_servers.list_unwrapped(word)
    if not rows:
        return []
    error = wrapped_servers.refuse_unwrapped(rows)
    found = [run.server for row in rows for run in kept.load_server(_identify_unwrapped(row))]
    if not found:
        raise error
    output.note(f"{error.message}; hint: {error.hint}" if error.hint else error.message)
    return found


def _identify_unwrapped(row: wrapped_servers.Row) -> ServerId:
    _, path, server = row
    package = parse_runner(server.argv[0], server.argv[1:])
    start = [package.reference] if isinstance(package, Package) else [server.argv[0]]
    used = package.used if isinstance(package, Package) else 0
    words = name_server([*start, *server.argv[1 + used :]])
    return identify_command(words, find_identity_directory(server, path))


def _describe(stored: ServerId, configured: Configured, named: Configured = ()) -> ServerDenials:
    """Describe the stored runs of a server.

    Several entries in clients' files may start this server. A denial is granted if the flags of all
    entries allow it. If the user named some entries, only their flags count, and their names come
    first, because hints use the first name.
    """
    runs = kept.load_server(stored)
    if not named:  # `stored` was read from a run, so leave out runs with any other ServerId
        runs = [run for run in runs if run.server == stored]
    starters = [
        one
        for one in configured
        if stored.is_started_by(wrapped_servers.identify_entry(one[1], one[2]))
    ]
    seen = grant.merge_runs(runs)
    asked = [one for one in starters if one in named] or starters
    flags = [_split_flags(server) for _, _, server in asked]
    refused, mend = _find_refusal(asked) if named else ("", "")
    return ServerDenials(
        command=stored.command,
        directory=stored.directory,
        elsewhere=() if runs else _list_directories(stored),
        names=tuple(
            dict.fromkeys(f"{client}:{server.name}" for client, _, server in (*asked, *starters))
        ),
        runs=len(runs),
        last_run=runs[-1].time if runs else 0,
        failure=runs[-1].failure if runs else "",
        denials=tuple(one.denial for one in seen),
        granted=tuple(
            bool(flags) and all(grant.is_granted(one, has) for has in flags) for one in seen
        ),
        times=tuple(one.time for one in seen),
        refused=refused,
        mend=mend,
    )


def _list_directories(server: ServerId) -> tuple[str, ...]:
    """Return the directories of the stored runs of a server's command, or () if the server's own
    start directory is known.
    """
    runs = [] if server.directory else kept.load_command(server)
    return tuple(dict.fromkeys(run.server.directory for run in runs))


def _split_flags(server: ConfiguredServer) -> list[grant.FlagWords]:
    try:
        return grant.split_flags(server.run_flags)
    except SandboxError:
        return []  # the server has unknown flags, and cannot start


def _find_refusal(rows: Configured) -> tuple[str, str]:
    """Return why one of these servers would not start, and the command that repairs its entry."""
    from corral.cli.stale_entries import find_refusal

    for client, path, server in rows:
        refused, mend = find_refusal(client, read_client_file(path), server)
        if refused:
            return refused, mend
    return "", ""


def _print(found: ServerDenials, word: str) -> None:
    """Print the denials. `word` is the server's name as the user typed it, which hints repeat."""
    stored = ServerId(digest="", command=found.command, directory=found.directory)
    title = ", ".join(found.names) or stored.describe()
    output.write_line(output.Painted(title, "bold"))
    if found.refused:
        output.write_line(f"  it does not start: {found.refused}")
        mend = found.mend or "correct its path in the client's settings"
        output.write_line(f"  hint: {mend}")
    if not found.runs:
        if found.elsewhere:
            output.write_line(
                f"  its command was run in {', '.join(found.elsewhere)}, but the client's file does"
                " not say where the server starts; to see these runs: corral why --"
                f" {stored.describe()}"
            )
        else:
            output.write_line(
                "  no denial and no failed run is recorded; other runs are not recorded"
            )
            if found.names:
                output.write_line(
                    "  a client uses corral only after it was restarted once, after `corral wrap`"
                )
        _point_to_learn(found, word)
        return
    when = grant.format_time(found.last_run)
    output.write_line(f"  last run: {when}" + (f"; {found.failure}" if found.failure else ""))
    if not found.denials:
        # If corral refused the run, no target ran, so say nothing about its denials.
        if not found.failure.startswith(kept.NOT_STARTED):
            cause = "; the server itself failed, or did not find a file" if found.failure else ""
            output.write_line(f"  it had no denials{cause}")
        _point_to_learn(found, word)
        return
    _print_denials(found, word)


def _print_denials(found: ServerDenials, word: str) -> None:
    missing: dict[str, None] = {}
    rows = zip(found.denials, found.granted, found.times, strict=True)
    for denial, granted, seen in rows:
        notes = ["granted since"] if granted else []
        notes += [f"last on {grant.format_time(seen)}"] if seen < found.last_run else []
        added = f" ({', '.join(notes)})" if notes else ""
        if _is_included(denial, found.denials):
            denial = replace(denial, allow="")  # noqa: PLW2901
        output.write_line(f"  {denial.describe()}{added}")
        if denial.allow and not granted:
            missing[denial.allow] = None
    if len(found.names) > 1:
        output.write_line(
            "  these servers share the denials above, because they start the same command"
        )
    _point_to_learn(found, word)
    if missing and found.names:
        server = _name_first(found, word)
        output.write_line(f"  to allow some of these: corral grant {last_words(server)}")


def _is_included(denial: Denial, others: Sequence[Denial]) -> bool:
    """Return whether the flag of another denial grants the same path and more. The path must then
    not get a grant of its own: with its own read grant, it would stay read-only inside a directory
    with a write grant.
    """
    wider = (one.allow for one in others if one.allow != denial.allow)
    return denial.kind == "path" and any(
        grant.is_allowed(denial, grant.parse_allow(allow)) for allow in wider
    )


def _match_named(found: ServerDenials, word: str) -> list[wrapped_servers.Row]:
    """Return the entries in clients' files that `word` names and that start this server."""
    rows = wrapped_servers.match_wrapped(word) if word else []
    return [row for row in rows if f"{row[0]}:{row[2].name}" in found.names]


def _name_first(found: ServerDenials, word: str) -> str:
    """Return the name of the server for a hint: the typed CLIENT:SERVER, or else SERVER. If several
    clients have a server of this name, return CLIENT:SERVER, because `corral grant SERVER` would
    change all of them.
    """
    if any(row[2].name != word for row in _match_named(found, word)):
        return word
    client, _, server = found.names[0].partition(":")
    is_unique = len(wrapped_servers.match_wrapped(server)) == 1
    return server if find_client(client) and is_unique else found.names[0]


def _point_to_learn(found: ServerDenials, word: str) -> None:
    """Print the command that shows which files the server did not find. These are not recorded as
    denials, because inside the sandbox they simply do not exist.

    For a client's server, this command is `corral wrap --learn`, which watches the server while the
    client uses it. `corral learn` would start the server without a client that sends it messages.
    """
    first = next(iter(found.names), "")
    rows = (*wrapped_servers.list_wrapped(), *wrapped_servers.list_recorded())
    others = (row for row in rows if first == f"{row[0]}:{row[2].name}")
    for client, path, one in (*_match_named(found, word), *others):
        _point_to_wrap(wrapped_servers.name_target(client, path), one)
        return
    command = f"corral learn {shlex.join(found.command)}"
    output.write_line(f"  to see the files that the server did not find: {command}")


def _point_to_wrap(target: str, server: ConfiguredServer) -> None:
    until = dict(pairwise(server.run_flags)).get("--learn-until", "")
    if _is_future(until):
        output.write_line(f"  files that the server does not find are recorded until {until}")
        return
    command = f"corral wrap --learn 2h {last_words(target, server.name)}"
    output.write_line(f"  to record files that the server does not find, for 2 hours: {command}")


def _is_future(time_text: str) -> bool:
    try:
        return not is_over(time_text)
    except UsageError:
        return False  # the time is missing or invalid
