"""`corral upgrade`: replace installed servers with newer or older versions."""

from collections.abc import Mapping, Sequence

from corral.cli import approve, interrupts, output, wrapped_servers
from corral.cli.inspect import plan_command
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import SandboxError
from corral.messages.definitions import Pin, compare_pins
from corral.policy.pins import PinnedServer, list_pinned, replace_pins
from corral.policy.requests import describe_requests
from corral.record import record
from corral.safe_text import shell_word
from corral.servers import upgrade
from corral.servers.inspection import inspect_server
from corral.servers.packages.package import SOURCES
from corral.servers.reference import name_server, parse_reference
from corral.servers.server_directory import check_command
from corral.servers.store.store import Entry
from corral.servers.upgrade import Candidate

SUMMARY = "replace installed servers with newer versions, after showing the changes"
USAGE = "usage: corral upgrade [--to VERSION] [--yes] [--dry-run] [--json] [SERVER...]"
FLAGS = (
    Flag(name="--to", value="VERSION", help="use this version of the server, even an older one"),
    Flag(name="--yes", help="upgrade without asking; required if there is no terminal"),
    Flag(name="--dry-run", help="show what would change, and change nothing"),
    Flag(
        name="--json", help="print JSON; without --yes, show what would change but change nothing"
    ),
)
MAX_SHOWN = 10


def main(options: Options, rest: list[str]) -> int:
    version, as_json = options.get("--to") or "", options.has("--json")
    if version and len(rest) != 1:
        raise UsageError("--to needs the name of one server", hint=USAGE)
    selected = _select(rest)
    names = _name_each(selected)

    def read_versions() -> dict[str, object]:
        now = {one.key: one.version for one in upgrade.list_unpinned()}
        return {name: now.get(key) for key, name in names.items()}

    with interrupts.report_changes(
        read_versions, none="no server was upgraded", some="upgraded before that"
    ):
        rows, code = _upgrade(selected, names, version, options)
    if as_json:
        output.write_json(rows)
    elif not rows and not code:
        output.write_line(
            "there is nothing to upgrade: only servers that were installed without a version are"
            " upgraded"
        )
    return code


def _upgrade(
    selected: Sequence[Entry], names: Mapping[str, str], version: str, options: Options
) -> tuple[list[dict[str, object]], int]:
    """Upgrade each server. Return a row for each success, and the last error's exit code, or 0."""
    rows: list[dict[str, object]] = []
    code = 0
    for entry in selected:
        try:
            found = upgrade.find_candidate(entry, version, output.note)
            tools = _compare_tools(found) if found is not None else ()
            done = found is not None and _replace(found, tools, options, names[entry.key])
        except SandboxError as error:
            output.write_error(error)
            code = error.exit_code
            continue
        except (OSError, ValueError, RecursionError) as error:
            # An error in one server must not prevent the upgrade of the others.
            problem = (
                output.from_os_error(error)
                if isinstance(error, OSError)
                else output.from_fault(error)
            )
            output.write_error(problem)
            code = problem.exit_code
            continue
        changed = [line for one in tools for line in one.lines]
        rows.append({**_to_json(entry, found, done=done), "tools": changed})
        if found is None and not options.has("--json"):
            word = "is already installed" if version else "is the newest version"
            output.write_line(f"{names[entry.key]}: {entry.version} {word}")
    return rows, code


def _select(words: list[str]) -> list[Entry]:
    """Return the installed servers that the user named, or all of them if `words` is empty. Leave
    out servers whose version the user chose, because an upgrade does not change them.
    """
    entries = upgrade.list_unpinned()
    found: dict[str, Entry] = {}
    for word in words:
        fitting = upgrade.match_entries(entries, [word, *_find_wrapped(word)])
        if not fitting:
            raise SandboxError(
                f"there is nothing to upgrade: {word} is not installed, or you chose its version",
                hint="`corral cache ls` lists what is installed; a version that you wrote"
                " yourself is not changed",
            )
        found |= {entry.key: entry for entry in fitting}
    return list(found.values()) if words else entries


def _find_wrapped(word: str) -> list[str]:
    """Return the references, such as npm:NAME, with which clients start the server `word`."""
    found = [server.inner_argv[0] for _, _, server in wrapped_servers.match_wrapped(word)]
    return [name_server([one])[0].partition("#")[0] for one in found if parse_reference(one)]


@record
class ToolChanges:
    """The differences between a server's pins and the tools of its new version.

    `lines` describes them. `pins` contains the pins of the new version, or is None if that version
    could not be inspected.
    """

    pinned: PinnedServer
    lines: tuple[str, ...]
    pins: tuple[Pin, ...] | None = None


def _compare_tools(found: Candidate) -> tuple[ToolChanges, ...]:
    """For each pinned command that starts this server, start the new version with the command's
    arguments and the default policy. Compare its tools with the pins.
    """
    name = _name(found.current)
    pinned = [one for one in list_pinned() if one.server and name_server(one.server)[0] == name]
    return tuple(_compare_pinned(one, found) for one in pinned)


def _compare_pinned(pinned: PinnedServer, found: Candidate) -> ToolChanges:
    reference, version = parse_reference(pinned.server[0]), found.version
    if reference is None or reference.kind not in SOURCES or found.installed is None:
        return ToolChanges(pinned=pinned, lines=())
    try:
        # Run exactly this installation, and not the reference, because the store may contain the
        # same version with other dependencies.
        command = found.installed.argv()
        check_command(command, found.installed.path())
        seen = inspect_server(plan_command([*command, *pinned.server[1:]], pinned.server)).pins()
    except SandboxError as error:
        why = f"{version} did not answer in a trial with the default policy: {error.message}"
        more = (
            "it may need grants, or different versions of its dependencies; the pins of its tools"
        )
        more += " are not changed"
        return ToolChanges(pinned=pinned, lines=(why, more))
    lines = tuple(compare_pins(pinned.pins, seen))
    return ToolChanges(pinned=pinned, lines=lines, pins=tuple(seen))


def _replace(found: Candidate, tools: Sequence[ToolChanges], options: Options, name: str) -> bool:
    """Show the changes, and replace the installed version if the user agrees."""
    as_json, yes = options.has("--json"), options.has("--yes")
    if not as_json:
        output.write_lines(_describe(found, name))
        output.write_lines([f"  {line}" for one in tools for line in one.lines])
    if options.has("--dry-run") or (as_json and not yes):
        return False
    if not yes and not _agrees(found, name):
        output.write_line(f"{name} stays at {found.current.version}")
        return False
    if found.request is not None and _asks(found):
        approve.remember(found.request)
    found.accept()
    for one in tools:
        if one.pins is not None:
            replace_pins(one.pinned, one.pins)
    if not as_json:
        back = f"corral upgrade --to {found.current.version} {shell_word(name)}"
        output.write_line(f"{name} is at {found.version}; to go back: {back}")
    return True


def _agrees(found: Candidate, name: str) -> bool:
    if not approve.is_on_terminal():
        raise SandboxError(
            f"{name} stays at {found.current.version}: "
            "there is no terminal to ask for confirmation",
            hint=f"corral upgrade --yes --to {found.version} {shell_word(name)}",
        )
    return approve.ask("use the new version?")


def _describe(found: Candidate, name: str) -> list[str]:
    lines = [f"{name}: {found.current.version} -> {found.version}"]
    lines += [f"  {text}" for text in found.changes[:MAX_SHOWN]]
    if len(found.changes) > MAX_SHOWN:
        left = len(found.changes) - MAX_SHOWN
        lines.append(f"  and {left} more; `corral upgrade --dry-run --json` lists them all")
    if found.request is not None:
        lines += [f"  {line}" for line in approve.format_request(found.request)]
    return lines


def _name_each(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the name to print for each cache entry, as {key: name}. If a server is installed for
    several runtimes, print the whole key instead of the name.
    """
    names = [_name(entry) for entry in entries]
    return {
        entry.key: entry.key if names.count(_name(entry)) > 1 else _name(entry) for entry in entries
    }


def _asks(found: Candidate) -> Sequence[str]:
    request = found.request
    return [*describe_requests(request.source.manifest), *request.asks] if request else ()


def _name(entry: Entry) -> str:
    return entry.key.partition(" ")[0]


def _to_json(entry: Entry, found: Candidate | None, *, done: bool) -> dict[str, object]:
    return {
        "server": _name(entry),
        "old": entry.version,
        "new": found.version if found else entry.version,
        "changes": list(found.changes) if found else [],
        "asks": list(_asks(found)) if found else [],
        "upgraded": done,
    }
