"""Policy x Host -> what enforces each control: the only place that degrades or refuses. Pure.

Each control has a chain of options, best first. The first one whose every need was proven on this
host is taken. When none is: walls and stated limits are missing and the run refuses, naming all of
them at once; a limit that is only a default goes unenforced with a warning; the user's word may let
any control go. After planning nothing degrades: a step succeeds, or the target never runs.
"""

from __future__ import annotations

from corral.errors import UnenforceableError
from corral.plan.model import SAMPLING, Held, Sample
from corral.policy.model import CONTROLS, WALLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.host import Host, System
    from corral.plan.model import Chains, Option
    from corral.policy.model import Control, Policy


def decide(policy: Policy, host: Host, chains: Chains) -> tuple[Held, ...]:
    """Choose a mechanism for every control, or refuse with all that is missing."""
    decisions = [_decide(control, policy, host, chains.get(control, ())) for control in CONTROLS]
    missing = [
        (held.control, held.why, _hint(held.control, host, chains))
        for held in decisions
        if held.status == "degraded" and _required(held, policy)
    ]
    if missing:
        raise UnenforceableError(
            missing,
            hint="`corral doctor -v` shows what was tried; `--best-effort` runs without these",
        )
    return tuple(decisions)


def sample(controls: Sequence[Held], policy: Policy) -> Sample | None:
    """What is left to sampling; None lets the supervisor sleep."""
    names = [held.control for held in controls if held.mechanism == SAMPLING]
    values = {name: getattr(policy.limits, name) for name in names}
    return Sample(**values) if values else None


def warnings(controls: Sequence[Held]) -> tuple[str, ...]:
    return tuple(
        f"{held.control} is not enforced: {held.why}"
        for held in controls
        if held.status == "degraded"
    )


def asked(control: Control, policy: Policy, system: System) -> str:
    """What the policy asks of a control there, in words; empty when it asks nothing."""
    if control == "filesystem":
        written = [f"{grant.access} {grant.path}" for grant in policy.grants]
        return ", ".join(written) or "nothing of the user's"
    if control == "network":
        parts = [*policy.allow, *(f"admit {network}" for network in policy.admit)]
        parts += [f"listen {port}" for port in policy.listen]
        level = policy.windows.network
        parts += [f"level {level}"] if system == "windows" and level != "none" else []
        return ", ".join(parts) or "none"
    if control == "subprocess":
        return "" if policy.subprocess else "no processes"
    if control in {"syscalls", "tree"}:
        return "always"
    value: int | None = getattr(policy.limits, control)
    return "" if value is None else _quantity(control, value)


def _decide(control: Control, policy: Policy, host: Host, chain: Sequence[Option]) -> Held:
    words, stated = asked(control, policy, host.system), control in policy.stated
    common = {"control": control, "asked": words, "stated": stated}
    if not words:
        return Held(**common, mechanism="", status="not asked")  # type: ignore[arg-type]
    for option in chain:
        if all(host.has(need) for need in option.needs):
            chosen = {"mechanism": option.mechanism, "status": option.status, "why": option.note}
            return Held(**common, **chosen)  # type: ignore[arg-type]
    why = _absence(host, chain)
    return Held(**common, mechanism="", status="degraded", why=why)  # type: ignore[arg-type]


def _absence(host: Host, chain: Sequence[Option]) -> str:
    """The first thing that the best way lacks: what else lacks, `doctor` tells."""
    absent = [need for option in chain for need in option.needs if not host.has(need)]
    if not absent:
        return f"nothing on {host.system} holds it"
    return f"no {absent[0]} ({host.finding(absent[0]).evidence})"


def _hint(control: Control, host: Host, chains: Chains) -> str:
    needs = [need for option in chains.get(control, ()) for need in option.needs]
    hints = [host.finding(need).hint for need in needs if not host.has(need)]
    return next((hint for hint in hints if hint), "")


def _required(held: Held, policy: Policy) -> bool:
    if policy.best_effort or held.control in policy.degrade:
        return False
    return held.control in WALLS or held.stated or policy.strict


def _quantity(control: Control, value: int) -> str:
    from corral.units import format_cpu, format_duration, format_size

    if control in {"memory", "disk", "address_space"}:
        return format_size(value)
    if control == "io":
        return f"{format_size(value)}/s"
    if control in {"cpu_time", "timeout"}:
        return format_duration(value)
    return format_cpu(value) if control == "cpu" else str(value)
