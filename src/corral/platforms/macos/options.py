"""The mechanisms that can enforce each control on macOS, best first.

Seatbelt is the only wall. Where it was not proven, or the policy turns it off, the walls are
missing and a run refuses; `--best-effort` then runs with limits that hold only while the target
does not fight them.
"""

from __future__ import annotations

import sys

from corral.plan.model import SAMPLING, Option
from corral.platforms.posix import rlimits

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Chains
    from corral.policy.model import Policy

SEATBELT = "seatbelt"
JETSAM = "jetsam limit of the first image"
NO_FORK = "RLIMIT_NPROC"
WATCHER = "watcher"
PROXY = "proxy on one loopback port"


def chains(policy: Policy) -> Chains:
    return {
        "filesystem": _seatbelt(policy, "names of what lies above a granted path can be seen"),
        "network": _network(policy),
        "subprocess": (
            *_seatbelt(policy, "the program may execute itself again, in its own place"),
            Option(
                mechanism=NO_FORK,
                needs=("nproc",),
                note="no second process; another program may be executed in place of the first",
            ),
        ),
        "syscalls": _seatbelt(policy, "mach services, sysctls, IOKit: not system calls by number"),
        "tree": (
            *_tree(policy),
            Option(
                mechanism=WATCHER,
                needs=("watcher",),
                status="cooperative",
                note="a target that kills corral and its watcher together survives",
            ),
        ),
        "memory": (*_sampled(policy, "memory"), *_jetsam(policy)),
        "cpu": _sampled(policy, "cpu"),
        "cpu_time": _sampled(policy, "cpu_time"),
        "pids": _sampled(policy, "pids"),
        "timeout": (Option(mechanism="supervisor"),),
        **{control: (_rlimit(f"RLIMIT_{name}"),) for control, name in rlimits.PER_PROCESS.items()},
    }


def _network(policy: Policy) -> tuple[Option, ...]:
    """Allow nothing, or what corral's own proxy lets through; publish no port of the target."""
    if policy.listen:
        return ()
    if not policy.allow or policy.macos.seatbelt == "off":
        return _seatbelt(policy)
    note = "only for clients that go by the proxy variables; all others reach nothing"
    needs = ("seatbelt", "door")
    return (Option(mechanism=f"{SEATBELT} + {PROXY}", needs=needs, status="verified", note=note),)


def _seatbelt(policy: Policy, note: str = "") -> tuple[Option, ...]:
    if policy.macos.seatbelt == "off":
        return ()
    return (Option(mechanism=SEATBELT, needs=("seatbelt",), status="verified", note=note),)


def _tree(policy: Policy) -> tuple[Option, ...]:
    """Behind Seatbelt no process of the target can signal the watcher."""
    if policy.macos.seatbelt == "off":
        return ()
    return (Option(mechanism=f"{WATCHER} + {SEATBELT}", needs=("watcher", "seatbelt")),)


def _sampled(policy: Policy, control: str) -> tuple[Option, ...]:
    """Sampling costs wake-ups, so only a limit that was stated is enforced that way."""
    if control not in policy.stated:
        return ()
    note = "the tree is looked at ten times a second and killed when it is over"
    return (Option(mechanism=SAMPLING, needs=("sampling",), status="cooperative", note=note),)


def _jetsam(policy: Policy) -> tuple[Option, ...]:
    """Jetsam limits one image, which is the whole tree only where there is one process."""
    if policy.subprocess or "memory" in policy.stated:
        return ()
    note = "lost when the program executes again; state a memory limit to have the tree looked at"
    return (Option(mechanism=JETSAM, needs=("jetsam",), status="cooperative", note=note),)


def _rlimit(name: str) -> Option:
    return Option(mechanism=name, needs=("rlimits",))
