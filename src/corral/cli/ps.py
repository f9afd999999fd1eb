"""`corral ps`: list this user's live runs, and the resources that they use."""

import time

from corral.cli import output
from corral.cli.option_parser import Flag, Options
from corral.platforms import current, run_records
from corral.platforms.contract import Usage
from corral.platforms.run_records import Entry
from corral.policy.variables import masked

SUMMARY = "list live runs with what they use"
USAGE = "usage: corral ps [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)


def main(options: Options, _rest: list[str]) -> int:
    system = current.load()
    found = [(entry, system.measure(entry.root)) for entry in run_records.live() if entry.root]
    if options.has("--json"):
        output.write_json([_run_to_json(entry, usage) for entry, usage in found])
        return 0
    header = ("RUN", "PID", "UP", "CPU", "MEMORY", "TASKS", "COMMAND")
    output.write_table([header, *(_format_row(entry, usage) for entry, usage in found)])
    return 0


def _run_to_json(entry: Entry, usage: Usage) -> dict[str, object]:
    return {
        "run": entry.name,
        "pid": entry.pid,
        "started": entry.started,
        "cpu_ms": int(usage.cpu * 1000),
        "memory": usage.memory,
        "tasks": usage.tasks,
        "command": masked(entry.command),
    }


def _format_row(entry: Entry, usage: Usage) -> tuple[str, ...]:
    up = int(time.time()) - entry.started
    clock = f"{up // 3600}:{up // 60 % 60:02}:{up % 60:02}"
    size = f"{usage.memory / (1 << 20):.0f}M"
    numbers = (clock, f"{usage.cpu:.1f}s", size, str(usage.tasks))
    return (entry.name, str(entry.pid), *numbers, " ".join(masked(entry.command)))
