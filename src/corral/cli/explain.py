"""`corral explain`: show exactly the plan that `run` would execute, and what it would enforce."""

from __future__ import annotations

import os

from corral.cli import output, run_flags, what_to_run
from corral.cli.option_parser import Flag, Options
from corral.directories import home_directory
from corral.network.rules import describe_entry
from corral.plan.model import Held, Plan
from corral.policy import profiles
from corral.policy.home_grants import is_home
from corral.policy.model import LIMITS
from corral.policy.variables import masked
from corral.record import fields, replace
from corral.safe_text import printable
from corral.servers.bundles.bundle import bundle_digest
from corral.supervisor.report import JSON_VERSION, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Step
    from corral.programs.model import Program

SUMMARY = "show what `run` would do, and start nothing"
USAGE = what_to_run.USAGE.format("explain")
FLAGS = (
    *run_flags.FLAGS,
    Flag(name="--verbose", short="-v", help="also print every step"),
    Flag(name="--json", help="as JSON"),
)
STAGES = ("supervisor", "clone", "after_clone", "init", "target")


def main(options: Options, rest: list[str]) -> int:
    rest = what_to_run.replace_runner(options, rest)
    sources, command = what_to_run.sources_and_command(options, rest)
    plan = what_to_run.plan_run(command, sources, rest)
    what_to_run.warn_of_unset_variables(options)
    bundle: dict[str, str] = {}
    if rest and rest[0].lower().endswith(what_to_run.BUNDLES):
        verified = "not verified, even if the bundle has one: only the digest identifies the file"
        bundle = {"sha256": bundle_digest(rest[0]), "signature": verified}
    if options.has("--json"):
        output.write_json({**as_data(plan), **({"bundle": bundle} if bundle else {})})
        return 0
    output.write_lines(_summarize(plan))
    for key, text in bundle.items():
        output.write_line(f"Bundle {key}: {text}")
    if (name := options.get("--profile")) is not None:
        output.write_line(output.Painted(f"Profile {name}", "bold"))
        output.write_lines(f"  {key}: {why}" for key, why in profiles.load(name).reasons)
    _print(plan, what_to_run.start_directory(rest), verbose=options.has("--verbose"))
    return 0


def _summarize(plan: Plan) -> list[str]:
    asked = {held.control: held.asked for held in plan.controls}
    typed = " ".join(masked(plan.program.typed or plan.program.argv))
    closed = asked["network"] == "none"
    named = [
        describe_entry(word) if word in plan.allow else word
        for word in asked["network"].split(", ")
    ]
    reach = "It cannot use the network" if closed else f"It may reach {', '.join(named)}"
    others = "cannot start other programs" if asked["subprocess"] else "may start other programs"
    limits = [f"{name} {asked[name]}" for name in LIMITS if asked.get(name)]
    missing = ", ".join(held.control for held in plan.controls if held.status == "degraded")
    return [
        f"{typed} may use, besides its own program: {asked['filesystem']}",
        f"{reach}, and {others}.",
        f"Its limits: {', '.join(limits)}"
        + (f"; not fully enforced on this host: {missing}" if missing else ""),
    ]


def as_data(plan: Plan) -> dict[str, object]:
    """Return the plan as data, without the values of environment variables and with secret
    arguments masked.
    """
    program = plan.program
    commands = [program.argv, program.typed, program.server]
    return {
        "version": JSON_VERSION,
        "program": _mask_commands(program, commands),
        "controls": to_json(plan.controls),
        "steps": [
            {"step": one.name, "stage": one.stage, "does": one.describe()}
            | {"data": _mask_commands(one, commands)}
            for one in plan.steps
        ],
        "environment": [key for key, _ in plan.environment],
        "secrets": list(plan.secret_names),
        "timeout_ms": plan.timeout,
        "warnings": list(plan.warnings),
    }


def _mask_commands(item: Program | Step, commands: list[tuple[str, ...]]) -> object:
    """Return a record as data. If the value of a field is one of `commands`, mask its secrets."""
    found = {name: getattr(item, name) for name in fields(item)}
    hidden = {name: masked(value) for name, value in found.items() if value in commands}
    return to_json(replace(item, **hidden))


def _print(plan: Plan, cwd: str, *, verbose: bool) -> None:
    output.write_line(output.Painted("Program", "bold"))
    output.write_lines(_indent(plan.program.describe()))
    if plan.program.cwd not in {cwd, os.path.realpath(cwd)}:
        home = is_home(cwd, home_directory())
        why = "a home directory is never granted as a whole" if home else "--read would allow this"
        output.write_line(f"  the server cannot start in {cwd}: {why}")
    output.write_line("  environment " + ", ".join(key for key, _ in plan.environment))
    output.write_line(output.Painted("Controls", "bold"))
    output.write_table([_row(held) for held in plan.controls])
    output.write_line(output.Painted("Steps", "bold"), "" if verbose else "  (-v prints all)")
    for stage in STAGES if verbose else ():
        for step in plan.steps:
            if step.stage == stage:
                output.write_lines(_indent(f"{stage}: {_describe(step)}"))
    for text in plan.warnings:
        output.write_line(f"warning: {text}")


def _describe(step: Step) -> str:
    """Return a step's description, with control characters escaped.

    Steps with `has_lines` escape their descriptions themselves, because the line breaks must stay.
    """
    text = step.describe()
    return text if getattr(step, "has_lines", False) else printable(text)


def _row(held: Held) -> tuple[str, ...]:
    why = f"({held.why})" if held.why else ""
    return (f"  {held.control}", held.asked or "-", held.status, held.mechanism, why)


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.split("\n")]
