"""Choose the mechanism that enforces each control, or refuse the run. This module does no I/O.

Each control has a list of options, best first. The first option whose needs were all proven on this
host is used. If no option qualifies, the control is not enforced:

- If the control is a wall or a stated limit, the run is refused. The error names all such controls.
- If the control is a default limit, the run continues with a warning, unless the policy is strict.
- If the policy sets `best_effort`, or lists the control in `degrade`, the run continues with a
  warning.

The choice is final: if a step of a chosen mechanism fails, the target does not run.
"""

from __future__ import annotations

from corral.errors import UnenforceableError
from corral.plan.model import SAMPLING, Held, Sample
from corral.policy.model import CONTROLS, WALLS, format_limit
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.host import Host, System
    from corral.plan.model import Chains, Option
    from corral.policy.model import Control, Policy


def decide(policy: Policy, host: Host, chains: Chains) -> tuple[Held, ...]:
    """Choose a mechanism for every control. If some required controls cannot be enforced, raise a
    single UnenforceableError that names all of them.
    """
    decisions = [_decide(control, policy, host, chains.get(control, ())) for control in CONTROLS]
    missing = [
        (held.control, held.why, _hint(held.control, host, chains))
        for held in decisions
        if held.status == "degraded" and _required(held, policy, chains.get(held.control, ()))
    ]
    if missing:
        raise UnenforceableError(
            missing,
            hint="`corral doctor -v` shows what was tried; "
            "`--best-effort` runs without these controls",
        )
    return tuple(decisions)


def needed_capabilities(policy: Policy, chains: Chains, system: System) -> frozenset[str]:
    """Return all capabilities that the options for this policy's controls need."""
    asked = [control for control in chains if describe_control(control, policy, system)]
    return frozenset(need for one in asked for option in chains[one] for need in option.needs)


def sample(controls: Sequence[Held], policy: Policy) -> Sample | None:
    """Return the limits that are enforced by sampling, or None if there are none."""
    names = [held.control for held in controls if held.mechanism == SAMPLING]
    values = {name: getattr(policy.limits, name) for name in names}
    return Sample(**values) if values else None


def warnings(controls: Sequence[Held]) -> tuple[str, ...]:
    """Return a warning for each control that is not enforced, or is enforced only in part."""
    return tuple(
        f"{held.control} is enforced only in part, by {held.mechanism}: {held.why}"
        if held.mechanism
        else f"{held.control} is not enforced: {held.why}"
        for held in controls
        if held.status == "degraded"
    )


def default_warnings(controls: Sequence[Held]) -> tuple[str, ...]:
    """Return the warnings about default limits, which are printed once per boot."""
    return warnings([held for held in controls if not held.stated and held.control not in WALLS])


def describe_control(control: Control, policy: Policy, system: System) -> str:
    """Describe what the policy asks of a control on this system. Return "" if it asks nothing."""
    if control == "filesystem":
        written = [f"{grant.access} {grant.path}" for grant in policy.grants]
        return ", ".join(written) or "none of the user's files"
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
    asked, stated = describe_control(control, policy, host.system), control in policy.stated
    held = Held(control=control, asked=asked, stated=stated, mechanism="", status="not asked")
    if not asked:
        return held
    for one in chain:
        if not one.refused and all(host.has(need) for need in one.needs):
            return replace(held, mechanism=one.mechanism, status=one.status, why=one.note)
    return replace(held, status="degraded", why=_absence(control, host, chain))


def _absence(control: Control, host: Host, chain: Sequence[Option]) -> str:
    """Return why a control is not enforced. If several capabilities are missing, name only those
    that the user can provide most easily. `corral doctor` shows all of them.
    """
    named = _name_missing(control, host, chain)
    if not named:
        refused = [option.refused for option in chain if option.refused]
        return refused[0] if refused else f"no mechanism on {host.system} enforces it"
    return ", and ".join(f"no {need} ({host.finding(need).evidence})" for need in named)


def _hint(control: Control, host: Host, chains: Chains) -> str:
    chain = chains.get(control, ())
    named = [host.finding(need).hint for need in _name_missing(control, host, chain)]
    rest = [host.finding(need).hint for need in _missing(host, chain)]
    hints = list(dict.fromkeys(filter(None, named))) or list(filter(None, rest))[:1]
    return "; ".join(hints)


def _name_missing(control: Control, host: Host, chain: Sequence[Option]) -> list[str]:
    """Return the missing capabilities to name in an error: the first one and, for a wall, also the
    first one that the last option needs, because that option may be easier to set up.
    """
    absent = _missing(host, chain)
    last = _missing(host, chain[-1:]) if control in WALLS else []
    return list(dict.fromkeys((*absent[:1], *last[:1])))


def _missing(host: Host, chain: Sequence[Option]) -> list[str]:
    """Return the capabilities that the options need and the host lacks.

    Capabilities that could not be probed and have a hint come first, because the user can follow
    the hint to make the probe run.
    """
    needs = [need for option in chain for need in option.needs if not host.has(need)]
    found = {need: host.finding(need) for need in needs}
    return sorted(needs, key=lambda need: found[need].status != "unknown" or not found[need].hint)


def _required(held: Held, policy: Policy, chain: Sequence[Option]) -> bool:
    if policy.best_effort or held.control in policy.degrade:
        return False
    if not held.mechanism and any(option.switch for option in chain):
        return False
    return held.control in WALLS or held.stated or policy.strict
