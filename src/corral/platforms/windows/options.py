"""List the mechanisms that can enforce each control on Windows, best first.

A run uses an AppContainer or a restricted token, but never both, because node and python do not
start under both. An AppContainer confines files, network and other processes. A restricted token
restricts neither reads nor the network, and is used only if the user allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, product

from corral.plan import model
from corral.plan.model import SAMPLING, Option
from corral.platforms.windows.mechanisms.job import JOB, PRIORITY, UI, UNREAD
from corral.platforms.windows.mechanisms.network_capabilities import LEAVES
from corral.policy.model import Policy
from corral.record import replace

APP_CONTAINER = "app container"
RESTRICTED = "restricted token"
OWN_DESKTOP = "own desktop"
MITIGATIONS = "mitigations"
STRICT = "strict handles"
SWITCHED_ON = "windows.app_container = true"
EXTRAS = {
    OWN_DESKTOP: "desktop", MITIGATIONS: "mitigations", UI: "job_ui", PRIORITY: "job_priority",
}  # fmt: skip
"""Further restrictions, each with the capability whose finding says whether a runtime starts under
it.
"""
FALLBACK = "windows.fail_on_app_container_error = false, and AppContainers do not work here"
NOT_HELD = {
    "filesystem": f"{FALLBACK}: the target can read every file that you can read",
    "network": f"{FALLBACK}: the target can reach every host that you can reach",
    "syscalls": f"{FALLBACK}, nor do restricted tokens: the target runs with all of your rights",
}
"""The warning for each control if AppContainers do not work on this host, but the policy lets the
target run without the control.
"""


def chains(policy: Policy) -> model.Chains:
    return {
        "filesystem": (
            _walled(policy, f"{APP_CONTAINER} + grants"),
            *_let_go(policy, "filesystem"),
        ),
        "network": (*_network(policy), *_let_go(policy, "network")),
        "subprocess": (
            Option(
                mechanism=f"child process policy + {JOB}",
                needs=("child_process_policy", "job_processes"),
                status="verified",
            ),
            Option(mechanism=JOB, needs=("job_processes",)),
        ),
        "syscalls": (*_syscalls(policy), *_let_go(policy, "syscalls")),
        "tree": (
            Option(mechanism=JOB, needs=("job_kill_on_close", "job_read_back"), status="verified"),
            Option(
                mechanism=UNREAD,
                needs=("job_kill_on_close",),
                note="a probe saw that closing a job ends its tree, but limits cannot be read back",
            ),
        ),
        "memory": (Option(mechanism=JOB, needs=("job_memory",)),),
        "cpu": (Option(mechanism=JOB, needs=("job_cpu_rate",)),),
        "cpu_time": _sampled(policy),
        "pids": (
            Option(mechanism=JOB, needs=("job_processes",), note="counts processes, not threads"),
        ),
        "timeout": (Option(mechanism="supervisor"),),
    }


def _app_container(policy: Policy) -> tuple[str, ...]:
    return ("app_container",) if policy.windows.app_container else (SWITCHED_ON,)


def _let_go(policy: Policy, control: str) -> tuple[Option, ...]:
    """Return an option that leaves the control off, or none if the policy does not allow this. The
    control `network` is never left off if the policy names hosts or ports.
    """
    named = control == "network" and (policy.listen or policy.allow)
    if named or not has_fallback(policy):
        return ()
    return (Option(mechanism="", status="degraded", note=NOT_HELD[control], switch=True),)


def has_fallback(policy: Policy) -> bool:
    return policy.windows.app_container and not policy.windows.fail_on_app_container_error


def _walled(policy: Policy, mechanism: str, note: str = "") -> Option:
    return Option(mechanism=mechanism, needs=_app_container(policy), status="verified", note=note)


def _network(policy: Policy) -> Sequence[Option]:
    """Return the options for the control `network`.

    A policy with `listen` has no options, because ports inside an AppContainer cannot be reached
    from outside.
    """
    if policy.listen:
        return ()
    if policy.allow:
        needs = (*_app_container(policy), "relay")
        note = "for clients that use the proxy variables"
        return (Option(mechanism=f"{APP_CONTAINER} + relay", needs=needs, note=note),)
    level = policy.windows.network
    option = _walled(policy, f"{APP_CONTAINER}, network {level}", LEAVES[level])
    # The probe tries only windows.network = "none". Other values are therefore "applied" instead of
    # "verified".
    return (option if level == "none" else replace(option, status="applied"),)


def _syscalls(policy: Policy) -> tuple[Option, ...]:
    """Return the options for the control `syscalls`.

    There is one option for each kind of token and each subset of the `EXTRAS` that this token can
    have. For each token, the option with the most extras comes first.
    """
    found: list[Option] = []
    tokens = {APP_CONTAINER: _app_container(policy)}
    if has_fallback(policy) or not policy.windows.app_container:
        tokens[RESTRICTED] = ("restricted token",)
    strict = policy.windows.strict_handles
    tokens = {
        f"{token} + {STRICT}" if strict else token: (*needs, "strict_handles") if strict else needs
        for token, needs in tokens.items()
    }
    for token, needs in tokens.items():
        for chosen in product((True, False), repeat=len(EXTRAS)):
            extras = tuple(compress(EXTRAS, chosen))
            if RESTRICTED in token and OWN_DESKTOP in extras:
                continue  # a target with a restricted token always gets its own desktop
            mechanism = " + ".join((token, *extras))
            more = tuple(EXTRAS[name] for name in extras)
            found.append(Option(mechanism=mechanism, needs=(*needs, *more), status="verified"))
    return tuple(found)


def _sampled(policy: Policy) -> tuple[Option, ...]:
    """Return the sampling option for CPU time if the policy sets this limit. A default limit gets
    no such option, because sampling keeps the processor awake.
    """
    if "cpu_time" not in policy.stated:
        return ()
    note = (
        "corral reads the CPU time of the job ten times a second, and kills the job above the "
        "limit; Windows itself ends the job after the same amount of CPU time in user mode"
    )
    return (Option(mechanism=SAMPLING, needs=("job_accounting",), status="cooperative", note=note),)
