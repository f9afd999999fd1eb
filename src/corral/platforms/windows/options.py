"""Windows: one file a mechanism. What can hold each control here, best first.

Two layerings exclude each other, because together they cannot start node or python. A: an
AppContainer, which walls off files, network and other processes. B, only by the user's word: a
restricted token of Low integrity, which is no wall for reads or for the network.
"""

from __future__ import annotations

from corral.plan.model import SAMPLING, Option
from corral.platforms.windows.mechanisms.job import JOB, UI, UNREAD
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Chains
    from corral.policy.model import Policy

APP_CONTAINER = "app container"
RESTRICTED = "restricted token"
MITIGATIONS = "mitigations"
STRICT = "strict handles"
SWITCHED_ON = "windows.app_container = true"
EXTRAS = {MITIGATIONS: "mitigations", STRICT: "strict_handles", UI: "job_ui"}
"""What is put on top of a layering where it was seen to start, and the finding that says so."""


def chains(policy: Policy) -> Chains:
    """What can hold each control here, best first."""
    return {
        "filesystem": (_walled(policy, f"{APP_CONTAINER} + grants"),),
        "network": _network(policy),
        "subprocess": (
            Option(
                mechanism=f"child process policy + {JOB}",
                needs=("child_process_policy", "job_processes"),
                status="verified",
            ),
            Option(mechanism=JOB, needs=("job_processes",)),
        ),
        "syscalls": _syscalls(policy),
        "tree": (
            Option(mechanism=JOB, needs=("job_kill_on_close", "job_read_back"), status="verified"),
            Option(
                mechanism=UNREAD,
                needs=("job_kill_on_close",),
                note="a tree was seen to die with its job, though the job does not tell its limits",
            ),
        ),
        "memory": (Option(mechanism=JOB, needs=("job_memory",)),),
        "cpu": (Option(mechanism=JOB, needs=("job_cpu_rate",)),),
        "cpu_time": _sampled(policy),
        "pids": (Option(mechanism=JOB, needs=("job_processes",), note="processes, not threads"),),
        "timeout": (Option(mechanism="supervisor"),),
    }


def _app_container(policy: Policy) -> tuple[str, ...]:
    return ("app_container",) if policy.windows.app_container else (SWITCHED_ON,)


def _walled(policy: Policy, mechanism: str, note: str = "") -> Option:
    return Option(mechanism=mechanism, needs=_app_container(policy), status="verified", note=note)


def _network(policy: Policy) -> Sequence[Option]:
    """Nothing outside an AppContainer reaches a port inside it, so nothing holds `listen`."""
    if policy.listen:
        return ()
    if policy.allow:
        needs = (*_app_container(policy), "relay")
        note = "for clients that use the proxy variables"
        return (Option(mechanism=f"{APP_CONTAINER} + relay", needs=needs, note=note),)
    from corral.platforms.windows.mechanisms.network_capabilities import LEAVES

    level = policy.windows.network
    option = _walled(policy, f"{APP_CONTAINER}, network {level}", LEAVES[level])
    # What is closed at this level was not tried: only that nothing is open at the lowest.
    return (option if level == "none" else replace(option, status="applied"),)


def _syscalls(policy: Policy) -> tuple[Option, ...]:
    """The token is the wall; what of the rest starts with it comes on top."""
    found: list[Option] = []
    tokens = {APP_CONTAINER: _app_container(policy)}
    if not (policy.windows.app_container and policy.windows.fail_on_app_container_error):
        tokens[RESTRICTED] = ("restricted token",)
    for token, needs in tokens.items():
        for extras in _subsets(tuple(EXTRAS)):
            mechanism = " + ".join((token, *extras))
            more = tuple(EXTRAS[name] for name in extras)
            found.append(Option(mechanism=mechanism, needs=(*needs, *more), status="verified"))
    return tuple(found)


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All of them first, none of them last."""
    if not names:
        return [()]
    rest = _subsets(names[1:])
    return [(names[0], *some) for some in rest] + rest


def _sampled(policy: Policy) -> tuple[Option, ...]:
    """Looking costs wake-ups, so only a limit that was stated is held that way."""
    if "cpu_time" not in policy.stated:
        return ()
    note = "the job's account is looked at ten times a second, and the job ended when it is over"
    return (Option(mechanism=SAMPLING, needs=("job_accounting",), status="cooperative", note=note),)
