"""The mechanisms that can enforce each control on Windows, best first.

Two sets of layers exclude each other, because together they cannot start node or python: an
AppContainer, which closes off files, network and other processes; or, only if the user allows it, a
restricted token of Low integrity, which is not a wall for reads or for the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, product

from corral.plan import model
from corral.plan.model import SAMPLING, Option
from corral.platforms.windows.mechanisms.job import JOB, UI, UNREAD
from corral.platforms.windows.mechanisms.network_capabilities import LEAVES
from corral.policy.model import Policy
from corral.record import replace

APP_CONTAINER = "app container"
RESTRICTED = "restricted token"
MITIGATIONS = "mitigations"
STRICT = "strict handles"
SWITCHED_ON = "windows.app_container = true"
EXTRAS = {MITIGATIONS: "mitigations", STRICT: "strict_handles", UI: "job_ui"}
"""What is added to a token where a runtime was seen to start with it, and that finding."""


def chains(policy: Policy) -> model.Chains:
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
    """Offer nothing for `listen`: nothing outside an AppContainer reaches a port inside it."""
    if policy.listen:
        return ()
    if policy.allow:
        needs = (*_app_container(policy), "relay")
        note = "for clients that use the proxy variables"
        return (Option(mechanism=f"{APP_CONTAINER} + relay", needs=needs, note=note),)
    level = policy.windows.network
    option = _walled(policy, f"{APP_CONTAINER}, network {level}", LEAVES[level])
    # Only the lowest level was tried; what the others close was not.
    return (option if level == "none" else replace(option, status="applied"),)


def _syscalls(policy: Policy) -> tuple[Option, ...]:
    """Combine each token, which is the wall, with the extras that start with it."""
    found: list[Option] = []
    tokens = {APP_CONTAINER: _app_container(policy)}
    if not (policy.windows.app_container and policy.windows.fail_on_app_container_error):
        tokens[RESTRICTED] = ("restricted token",)
    for token, needs in tokens.items():
        for chosen in product((True, False), repeat=len(EXTRAS)):  # all first, none last
            extras = tuple(compress(EXTRAS, chosen))
            mechanism = " + ".join((token, *extras))
            more = tuple(EXTRAS[name] for name in extras)
            found.append(Option(mechanism=mechanism, needs=(*needs, *more), status="verified"))
    return tuple(found)


def _sampled(policy: Policy) -> tuple[Option, ...]:
    """Sample only for a stated limit, because it costs wake-ups."""
    if "cpu_time" not in policy.stated:
        return ()
    note = "the job's account is looked at ten times a second, and the job ended when it is over"
    return (Option(mechanism=SAMPLING, needs=("job_accounting",), status="cooperative", note=note),)
