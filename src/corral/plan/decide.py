"""Policy x Host -> what enforces each control: the only module that degrades or refuses. Pure.

Each control has a chain of options, best first. The first option whose needs were all proven on
this host is taken. If there is none, the run is refused for a wall or a stated limit, naming all of
them together; a limit that is only a default goes unenforced with a warning; and the user may allow
any control to go unenforced. After planning nothing degrades: a step succeeds, or the target never
runs.
"""

from __future__ import annotations

from corral.errors import UnenforceableError
from corral.plan.model import SAMPLING, Held, Sample
from corral.policy.model import CONTROLS, WALLS, format_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.host import Host, System
    from corral.plan.model import Chains, Option
    from corral.policy.model import Control, Policy


def decide(policy: Policy, host: Host, chains: Chains) -> tuple[Held, ...]:
    """Choose a mechanism for every control, or refuse and name everything that is missing."""
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
    """Return the limits that are left to sampling; with None the supervisor can sleep."""
    names = [held.control for held in controls if held.mechanism == SAMPLING]
    values = {name: getattr(policy.limits, name) for name in names}
    return Sample(**values) if values else None


def warnings(controls: Sequence[Held]) -> tuple[str, ...]:
    return tuple(
        f"{held.control} is not enforced: {held.why}"
        for held in controls
        if held.status == "degraded"
    )


def describe_control(control: Control, policy: Policy, system: System) -> str:
    """Return what the policy asks of a control on a system, in words; "" if nothing."""
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
    if value is None:
        return ""
    return format_limit(control, value) + ("/s" if control == "io" else "")


def _decide(control: Control, policy: Policy, host: Host, chain: Sequence[Option]) -> Held:
    words, stated = describe_control(control, policy, host.system), control in policy.stated
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
    """Return what the best option lacks first; `doctor` shows the rest."""
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
