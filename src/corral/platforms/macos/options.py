"""List the mechanisms that can enforce each control on macOS, best first.

Only Seatbelt confines a target, so corral refuses to start one if the probe of Seatbelt fails or
the policy turns Seatbelt off. With `--best-effort` corral starts the target anyway, but only with
limits, which a hostile target can evade.
"""

from __future__ import annotations

import sys

from corral.plan.model import SAMPLING, Option
from corral.platforms.posix import rlimits
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Chains
    from corral.policy.model import Control, Policy

SEATBELT = "seatbelt"
JETSAM = "jetsam limit of the first program"
NO_FORK = "RLIMIT_NPROC"
DISCLAIM = "disclaimed consent"
WATCHER = "watcher"
PROXY = "proxy on one loopback port"


PROCESSES = Option(
    mechanism=NO_FORK,
    needs=("nproc",),
    status="cooperative",
    note="counts processes, not threads, and includes the user's other processes",
)


def chains(policy: Policy) -> Chains:
    return {
        "filesystem": _seatbelt(
            policy, "the target can see the names of the directories above a granted path"
        ),
        "network": _network(policy),
        "subprocess": (
            *_seatbelt(policy, "the program can execute itself again"),
            Option(
                mechanism=NO_FORK,
                needs=("nproc",),
                note="no second process, but the first can execute another program in its place",
            ),
        ),
        "syscalls": _syscalls(policy),
        "tree": (
            *_tree(policy),
            Option(
                mechanism=WATCHER,
                needs=("watcher",),
                status="cooperative",
                note="a target survives if it kills corral and its watcher at the same time",
            ),
        ),
        "memory": (*_sampled(policy, "memory"), *_jetsam(policy)),
        "cpu": _sampled(policy, "cpu"),
        "cpu_time": _sampled(policy, "cpu_time"),
        "pids": (*_sampled(policy, "pids"), PROCESSES),
        "timeout": (Option(mechanism="supervisor"),),
        **{control: (_rlimit(policy, control),) for control in rlimits.PER_PROCESS},
    }


def _network(policy: Policy) -> tuple[Option, ...]:
    """Return the options for the network, or none if the policy has `listen`, because corral cannot
    publish ports on macOS.
    """
    if policy.listen:
        return ()
    if not policy.allow or policy.macos.seatbelt == "off":
        return _seatbelt(policy)
    note = "only for clients that use the proxy variables; other clients cannot reach any host"
    needs = ("seatbelt", "loopback_proxy")
    return (Option(mechanism=f"{SEATBELT} + {PROXY}", needs=needs, status="verified", note=note),)


def _seatbelt(policy: Policy, note: str = "") -> tuple[Option, ...]:
    if policy.macos.seatbelt == "off":
        return ()
    return (Option(mechanism=SEATBELT, needs=("seatbelt",), status="verified", note=note),)


def _syscalls(policy: Policy) -> tuple[Option, ...]:
    note = "limits mach services, sysctls and IOKit, but not individual system calls"
    consents = f"{note}; the target has the privacy consents of the program that starts corral"
    plain = _seatbelt(policy, consents)
    if not plain or not policy.macos.disclaim:
        return plain
    mechanism, needs = f"{SEATBELT} + {DISCLAIM}", ("seatbelt", "disclaim")
    return (replace(plain[0], mechanism=mechanism, needs=needs, note=note), *plain)


def _tree(policy: Policy) -> tuple[Option, ...]:
    """Return the options for the control `tree`, which kills all of the target's processes when the
    target ends. All options need Seatbelt, because without it a target could kill the watcher.
    """
    if policy.macos.seatbelt == "off":
        return ()
    walled = Option(mechanism=f"{WATCHER} + {SEATBELT}", needs=("watcher", "seatbelt", "marker"))
    note = (
        "a process that left the process group survives if its parent ended before corral saw "
        "the process"
    )
    return walled, replace(walled, needs=walled.needs[:2], status="cooperative", note=note)


def _sampled(policy: Policy, control: str) -> tuple[Option, ...]:
    """Return the sampling option for `control` if the user states this limit.

    Do not sample for default limits, because sampling keeps the processor awake.
    """
    if control not in policy.stated:
        return ()
    note = "the tree is measured ten times a second, and killed above the limit"
    if control == "cpu":
        note = "the tree is stopped and continued repeatedly to keep it within its share"
    return (Option(mechanism=SAMPLING, needs=("sampling",), status="cooperative", note=note),)


def _jetsam(policy: Policy) -> tuple[Option, ...]:
    """Return the jetsam option for the default memory limit.

    Return no option if the target may start processes, because jetsam limits a single process. A
    limit that the user states is enforced by sampling instead.
    """
    if policy.subprocess or "memory" in policy.stated:
        return ()
    note = "this limit ends if the target calls exec; set a memory limit to limit the whole tree"
    return (Option(mechanism=JETSAM, needs=("jetsam",), status="cooperative", note=note),)


def _rlimit(policy: Policy, control: Control) -> Option:
    """Return the option that enforces `control` with an rlimit.

    macOS refuses small address space limits. So try such a limit in a child process first. If it is
    refused, the option's `refused` says why.
    """
    name, value = rlimits.PER_PROCESS[control], getattr(policy.limits, control)
    option = Option(mechanism=f"RLIMIT_{name}", needs=("rlimits",))
    if control != "address_space" or value is None:
        return option
    from corral.platforms.posix import disposable

    def attempt() -> str:
        rlimits.set_limit(name, value)
        return ""

    taken, words = disposable.observe(attempt)
    return option if taken else replace(option, refused=words)
