"""`corral inspect`: start a server in a sandbox, list its tools, and mark suspicious ones."""

from collections.abc import Sequence

from corral.cli import approve, output, run_flags, what_to_run
from corral.cli.option_parser import Flag, Options
from corral.clients.configured_tools import find_tools
from corral.messages.definitions import LISTS, compare_pins, list_items
from corral.plan.model import Plan
from corral.policy.manifest import COMMAND_LINE, Manifest
from corral.policy.model import Source
from corral.policy.pins import find_pinned, keep_inspected, keep_pins
from corral.safe_text import printable, shown
from corral.servers.inspection import Inspection, inspect_server
from corral.supervisor.report import JSON_VERSION, to_json

SUMMARY = "start a server in a sandbox, list its tools, and mark suspicious ones"
USAGE = what_to_run.USAGE.format("inspect")
FLAGS = (
    *run_flags.FLAGS,
    Flag(
        name="--pin",
        help="store the server's definitions, so that runs with `--pins` can compare them",
    ),
    Flag(name="--yes", help="pin changes without asking; required if there is no terminal"),
    Flag(
        name="--json", help="print JSON: the lists as the server sent them, with marks and denials"
    ),
)
TIMEOUT_MS = 120_000
TIME_LIMIT = Source(
    manifest=Manifest(origin=COMMAND_LINE, limits={"timeout": TIMEOUT_MS}),
    trust="user",
    approved=True,
)
JUDGE = "A person has to judge these marks."
NO_VERDICT = "A server without marks is not necessarily safe."


def main(options: Options, rest: list[str]) -> int:
    plan = plan_inspection(options, what_to_run.replace_runner(options, rest))
    known, unknown = find_tools(plan.pinned_as)
    found = inspect_server(plan, known)
    keep_inspected(plan.pinned_as, found.pins())
    if options.has("--json"):
        output.write_json({**as_data(found), "not_compared": unknown})
    else:
        output.write_lines(format_inspection(found, unknown))
    if not options.has("--pin"):
        return 0
    return pin(plan.pinned_as, found, yes=options.has("--yes"))


def plan_inspection(options: Options, rest: list[str]) -> Plan:
    """Return the plan of an inspection. Only the typed flags grant the server more than the default
    policy does.
    """
    sources, command = what_to_run.sources_to_inspect(options, rest)
    return plan_command(command, rest, sources)


def plan_command(
    command: Sequence[str], rest: Sequence[str], sources: Sequence[Source] = ()
) -> Plan:
    """Return the plan for running `command`. The words in `rest` name the server."""
    return what_to_run.plan_run(command, [TIME_LIMIT, *sources], list(rest))


def as_data(found: Inspection) -> dict[str, object]:
    """Return an inspection as data. The lists keep MCP's field names, so that scanners can read
    them.
    """
    return {
        "version": JSON_VERSION,
        "server": list(found.server),
        **found.offer,
        "marks": to_json(found.marks),
        "denials": to_json(found.denials),
        "strays": found.strays,
    }


def format_inspection(found: Inspection, uncompared: Sequence[str]) -> list[str]:
    lines = [printable(" ".join(found.server))]
    for listed in LISTS.values():
        names = [str(item.get(listed.name)) for item in list_items(found.offer, listed.field)]
        if names:
            lines.append(f"{listed.field}: {', '.join(map(printable, names))}")
    if (text := found.offer.get("instructions")) is not None:
        lines.append(f"instructions: {shown(str(text), 200)}")
    if found.strays:
        lines.append(f"lines on stdout that are not messages: {found.strays}")
    lines += [printable(one.describe()) for one in found.denials]
    lines += [f"look at {mark.describe()}" for mark in found.marks]
    if uncompared:
        others = ", ".join(map(printable, uncompared))
        lines.append(
            f"not compared with the tools of {others}: `corral inspect` has not listed them yet"
        )
    lead = JUDGE if found.marks else "Nothing is marked."
    return [*lines, f"{lead} {NO_VERDICT}"]


def pin(server: tuple[str, ...], found: Inspection, *, yes: bool) -> int:
    """Store a server's current definitions as pins, unless `may_pin` refuses."""
    if not may_pin(server, found, yes=yes):
        if not approve.is_on_terminal():
            output.note("not pinned: --yes pins these changes")
        return 1
    pins = found.pins()
    keep_pins(server, pins)
    output.note(f"pinned {len(pins)} definitions; runs with `--pins refuse` compare them")
    return 0


def may_pin(server: tuple[str, ...], found: Inspection, *, yes: bool = False) -> bool:
    """Return whether a server's current definitions may become its pins. If they differ from older
    pins, ask the user, unless `yes` is set.
    """
    before = find_pinned(server)
    changes = compare_pins(before.pins, found.pins()) if before else []
    for line in changes:
        output.note(f"since {before.pinned if before else ''}: {line}")
    if not changes or yes:
        return True
    return approve.is_on_terminal() and approve.ask("pin its current definitions?")
