"""Test that the exported profile allows the same calls as corral's own filter, except for those in
`DIFFERENT`.
"""

import random

import pytest

from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.export.seccomp_profile import build_profile
from corral.platforms.linux.mechanisms import seccomp_rules
from corral.platforms.linux.mechanisms.seccomp_compiler import ALLOW
from unit.platforms.linux.bpf_simulator import JEQ, JSET, decode, run

MACHINES = ("x86_64", "aarch64")
WIDE = (1 << 64) - 1
# These calls have other rules in the profile. corral's filter protects PID 1 from the target, but
# in a container the target itself is PID 1. And the runtime itself calls execve after it has
# installed the filter.
DIFFERENT = {*seccomp_rules.not_init(), "execve"}


def is_allowed(profile, name, arguments):
    """Return whether the profile allows the call according to the OCI runtime specification."""
    for entry in profile["syscalls"]:
        if name in entry["names"] and all(
            arguments[one["index"]] & one["value"] == one["valueTwo"]
            for one in entry.get("args", ())
        ):
            return True
    return False


def matches(profile, name, arguments):
    return sum(
        name in entry["names"]
        and all(arguments[a["index"]] & a["value"] == a["valueTwo"] for a in entry.get("args", ()))
        for entry in profile["syscalls"]
    )


def argument_tuples(program):
    """Yield arguments that reach every branch of the filter. They are the filter's constants,
    variations of these constants (with one bit flipped, or with other high bits), and random
    combinations.
    """
    words = sorted({k for code, _, _, k in program if code in {JEQ, JSET}})
    values = [0, 1, WIDE, 1 << 32, *words, *(word ^ 1 for word in words)]
    values += [word | 0xABCD << 32 for word in words]
    chance = random.Random(7)
    small = [0, 1, 2, 3, 5, 6, 10, 16, 17, 31]
    yield from ((value,) * 6 for value in values)
    for _ in range(400):
        yield tuple(chance.choice(small if chance.random() < 0.6 else values) for _ in range(6))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("subprocess", [False, True])
def test_the_profile_allows_the_calls_of_the_filter(machine, subprocess):
    rules = seccomp_rules.target_rules(
        subprocess=subprocess, unix_sockets=False, namespaces=True, cookie=None
    )
    program = decode(seccomp_rules.compile_filter(machine, rules))
    profile = build_profile(machine, subprocess=subprocess)
    tuples = list(argument_tuples(program))
    for name, number in TABLES[machine].items():
        if name in DIFFERENT:
            continue
        for arguments in tuples:
            ours = run(program, AUDIT_ARCHES[machine], number, arguments)
            assert is_allowed(profile, name, arguments) == (ours.action == ALLOW), (name, arguments)
            if not ours.arguments and not isinstance(rules.get(name), tuple):
                break


@pytest.mark.parametrize("machine", MACHINES)
def test_the_arguments_of_a_system_call_match_at_most_one_rule(machine):
    """Check that at most one rule matches a call. Runtimes may try the rules in any order, so with
    two matching rules the result could vary.
    """
    profile = build_profile(machine, subprocess=False)
    program = decode(
        seccomp_rules.compile_filter(
            machine,
            seccomp_rules.target_rules(
                subprocess=False, unix_sockets=False, namespaces=True, cookie=None
            ),
        )
    )
    names = {name for entry in profile["syscalls"][1:] for name in entry["names"]}
    assert {"clone", "ioctl", "socket"} <= names
    for arguments in argument_tuples(program):
        for name in names:
            assert matches(profile, name, arguments) <= 1


def test_processes_are_denied_without_allow_subprocess():
    without, with_ = (build_profile("x86_64", subprocess=asked) for asked in (False, True))
    fork = (17, 0, 0, 0, 0, 0)  # clone with no flag except SIGCHLD
    thread = (0x10000, 0, 0, 0, 0, 0)
    assert is_allowed(without, "clone", thread)
    assert not is_allowed(without, "clone", fork)
    assert not is_allowed(without, "vfork", fork)
    assert is_allowed(with_, "clone", fork)
    assert is_allowed(with_, "vfork", fork)


def test_unknown_calls_return_enosys():
    profile = build_profile("x86_64", subprocess=True)
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert not is_allowed(profile, "clone3", (0,) * 6)
