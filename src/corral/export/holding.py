"""Decide what enforces each control of an export: the engine (runc or a Kubernetes pod), corral in
the container, or nothing.

If neither the engine nor corral can enforce a wall or a limit that the policy sets, the export is
refused, as `run` would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from corral.errors import PolicyError
from corral.plan.decide import decide
from corral.plan.host import Finding, Host
from corral.plan.model import Held, Option
from corral.policy.model import CONTROLS, Policy
from corral.record import record

if TYPE_CHECKING:
    from corral.policy.model import Control

INSIDE = "corral inside: "


@record
class Engine:
    """An engine such as runc, and which parts of one policy it can enforce.

    `enforces` maps each control that the engine enforces to (mechanism, note). `lacks` maps each
    control that it cannot enforce to the reason. For some of these, `hints` says what the user can
    do.
    """

    name: str
    enforces: Mapping[str, tuple[str, str]]
    lacks: Mapping[str, str]
    hints: Mapping[str, str] = {}


def decide_for_engine(policy: Policy, engine: Engine, machine: str) -> tuple[Held, ...]:
    """Return what enforces each control. Raise one error for all controls that cannot be
    enforced.
    """
    if policy.mcp is not None:
        raise PolicyError(
            f"mcp: {engine.name} does not inspect MCP messages",
            hint="leave out the mcp keys, --tools and --pins",
        )
    findings = [
        Finding(capability=name, status="absent", evidence=why, hint=engine.hints.get(name, ""))
        for name, why in engine.lacks.items()
    ]
    host = Host(system="linux", machine=machine, findings=tuple(findings))
    return decide(policy, host, {control: _options(control, engine) for control in CONTROLS})


def _options(control: Control, engine: Engine) -> Sequence[Option]:
    if control in engine.enforces:
        mechanism, note = engine.enforces[control]
        return (Option(mechanism=mechanism, note=note),)
    return (Option(mechanism=engine.name, needs=(control,)),)


def format_holding(controls: Sequence[Held]) -> list[tuple[str, ...]]:
    """Return a row for each requested control: its name, the request, what enforces it, and how."""
    rows: list[tuple[str, ...]] = []
    for held in controls:
        if held.status == "not asked":
            continue
        if held.status == "degraded":
            rows.append((held.control, held.asked, "neither", held.why))
            continue
        inside = held.mechanism.startswith(INSIDE)
        how = held.mechanism.removeprefix(INSIDE) + (f"; {held.why}" if held.why else "")
        rows.append((held.control, held.asked, "corral inside" if inside else "the engine", how))
    return rows
