"""`corral ps`: list this user's live runs, and the resources that they use."""

import os
import time
from collections.abc import Mapping

from corral.cli import INTERRUPTED, output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.clients.find_server import read_own_files
from corral.paths.native import is_inside
from corral.platforms import current, run_records
from corral.platforms.contract import Usage
from corral.platforms.run_records import Entry
from corral.policy.variables import masked
from corral.servers.store import store

SUMMARY = "list live runs with the resources that they use"
USAGE = "usage: corral ps [--json] [--watch]"
FLAGS = (
    Flag(name="--json", help="as JSON"),
    Flag(name="--watch", short="-w", help="print the list again every two seconds, until Ctrl-C"),
)
WATCH_SECONDS = 2
HEADER = ("RUN", "PID", "UP", "CPU", "MEMORY", "TASKS", "SERVER", "COMMAND")


def main(options: Options, rest: list[str]) -> int:
    if rest:
        raise UsageError(f"ps takes no arguments: {rest[0]}", hint=USAGE)
    print_runs(as_json=options.has("--json"))
    try:
        while options.has("--watch"):
            time.sleep(WATCH_SECONDS)
            output.clear_screen()
            print_runs(as_json=options.has("--json"))
    except KeyboardInterrupt:
        return INTERRUPTED  # the usual end of --watch, which needs no message
    return 0


def print_runs(*, as_json: bool) -> None:
    system = current.load()
    live = [entry for entry in run_records.live() if entry.root]
    servers = _find_servers() if live else {}
    found = [(one, system.measure(one.root), _name_server(one, servers)) for one in live]
    if as_json:
        output.write_json([_run_to_json(*row) for row in found])
    else:
        rows = [_format_row(*row) for row in found]
        output.write_table(rows, "no run is alive", header=HEADER)
    output.flush()


def _find_servers() -> dict[tuple[str, ...], str]:
    """Return {command of a wrapped server: CLIENT:SERVER}."""
    found: dict[tuple[str, ...], str] = {}
    for client, _, server in read_own_files():
        command = tuple(map(run_records.format_word, server.inner_argv))
        if server.is_wrapped:
            found.setdefault(command, f"{client}:{server.name}")
    return found


def _name_server(entry: Entry, servers: Mapping[tuple[str, ...], str]) -> str:
    """Return the name of the package that a run installs or starts. If the run has no package,
    return the name of the wrapped server with this command, or "".
    """
    if entry.is_installer():
        return entry.command[-1]
    for package in store.entries():
        if any(is_inside(word, package.path()) for word in entry.command if os.path.isabs(word)):
            return package.name if package.kind == "bundle" else package.key.partition(" ")[0]
    return servers.get(entry.command, "")


def _run_to_json(entry: Entry, usage: Usage, server: str) -> dict[str, object]:
    return {
        "run": entry.name,
        "pid": entry.pid,
        "started": entry.started,
        "cpu_ms": int(usage.cpu * 1000),
        "memory": usage.memory,
        "tasks": usage.tasks,
        "server": server,
        "command": masked(entry.command),
    }


def _format_row(entry: Entry, usage: Usage, server: str) -> tuple[str, ...]:
    # If the clock was set back during the run, the difference is negative, so show 0.
    up = max(0, int(time.time()) - entry.started)
    clock = f"{up // 3600}:{up // 60 % 60:02}:{up % 60:02}"
    size = f"{usage.memory / (1 << 20):.0f}M"
    numbers = (clock, f"{usage.cpu:.1f}s", size, str(usage.tasks))
    command = " ".join(masked(entry.command))
    return (entry.name, str(entry.pid), *numbers, server or "-", command)
