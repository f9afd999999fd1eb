"""Convert the target's syscall rules to a seccomp profile as the OCI runtime specification defines
it.

corral tries its rules for a call in order, and the first rule that matches decides. A runtime tries
its rules in no particular order, and each rule can compare a register only once, under a mask. So
this module divides the possible register values into disjoint sets, here called cubes. A cube fixes
some bits of some registers, and becomes one rule of the profile.

A call that no rule allows fails with ENOSYS, whereas under corral some calls fail with other
errors. The profile allows the same calls as corral, and execve in addition: a runtime loads the
filter before it executes the target, so the filter must allow execve. The target may therefore
replace itself with another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from corral.abi.linux_syscalls import TABLES
from corral.platforms.linux.mechanisms import seccomp_rules
from corral.platforms.linux.mechanisms.seccomp_compiler import ALLOW

if TYPE_CHECKING:
    from corral.platforms.linux.mechanisms.seccomp_compiler import Condition, Rule

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
ENOSYS = 38
# Cubes are divided at these bits, in this order. The bits that hold the type of an ioctl come
# first. In the order from the highest to the lowest bit there would be three times as many cubes.
BITS = [1 << n for n in sorted(range(64), key=lambda n: (not 8 <= n < 16, -n))]

Cube = Mapping[int, tuple[int, int]]
"""A set of register values, written as {register: (mask, value)}. It contains all values whose bits
under the mask equal `value`.
"""


def build_profile(
    machine: str, *, subprocess: bool, unix_sockets: bool = False
) -> dict[str, object]:
    rules = seccomp_rules.target_rules(
        subprocess=subprocess, unix_sockets=unix_sockets, namespaces=True, cookie=None
    )
    # Drop the rules that protect corral's PID 1, because in a container PID 1 is the target itself.
    # Allow execve, because the runtime loads the filter before it executes the target.
    for name in (*seccomp_rules.not_init(), "execve"):
        rules.pop(name, None)
    allowed = [name for name in TABLES[machine] if rules.get(name, ALLOW) == ALLOW]
    entries: list[dict[str, object]] = [{"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"}]
    for name in sorted(rules):
        if name in TABLES[machine]:
            entries += _conditional_entries(name, rules[name])
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": [ARCHITECTURES[machine]],
        "syscalls": entries,
    }


def _conditional_entries(name: str, rule: Rule) -> Iterator[dict[str, object]]:
    for cube in allowed_cubes(rule):
        arguments = [
            {"index": index, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
            for index, (mask, value) in sorted(cube.items())
        ]
        yield {"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments}


def allowed_cubes(rule: Rule) -> list[Cube]:
    """Return the arguments with which the rule allows the call, as disjoint cubes."""
    if isinstance(rule, int):
        return []
    alternatives, otherwise = rule
    left: list[Cube] = [{}]
    allowed: list[Cube] = []
    for conditions, action in alternatives:
        wanted = _conditions_to_cube(conditions)
        if action == ALLOW:
            allowed += [both for cube in left if (both := _intersect(cube, wanted)) is not None]
        left = [part for cube in left for part in _subtract(cube, wanted)]
    return allowed + left if otherwise == ALLOW else allowed


def _conditions_to_cube(conditions: Sequence[Condition]) -> Cube:
    cube: Cube | None = {}
    for index, mask, value in conditions:
        cube = _intersect(cube or {}, {index: (mask, value)})
        if cube is None:
            raise ValueError(f"no argument can satisfy {conditions}")
    return cube or {}


def _intersect(one: Cube, other: Cube) -> Cube | None:
    """Return the intersection of two cubes, or None if it is empty."""
    both = dict(one)
    for index, (mask, value) in other.items():
        known, bits = both.get(index, (0, 0))
        if (bits ^ value) & known & mask:
            return None
        both[index] = (known | mask, bits | value)
    return both


def _subtract(cube: Cube, gone: Cube) -> Iterator[Cube]:
    """Yield disjoint cubes that together contain the values of `cube` that are not in `gone`."""
    if _intersect(cube, gone) is None:
        yield cube
        return
    kept = dict(cube)
    for index, bit, value in _free_bits(cube, gone):
        mask, bits = kept.get(index, (0, 0))
        yield {**kept, index: (mask | bit, bits | (bit & ~value))}
        kept[index] = (mask | bit, bits | (bit & value))


def _free_bits(cube: Cube, gone: Cube) -> Iterable[tuple[int, int, int]]:
    """Yield (register, bit, value) for each bit that is fixed in `gone` but not in `cube`."""
    for index, (mask, value) in gone.items():
        known, _ = cube.get(index, (0, 0))
        yield from ((index, bit, value) for bit in BITS if bit & mask & ~known)
