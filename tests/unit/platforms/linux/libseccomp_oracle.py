"""Compile corral's filter rules with libseccomp, so that a test can run libseccomp's program and
corral's in the simulator and compare the results.

In libseccomp a rule is a conjunction of comparisons, one for each argument. The rules of a syscall
are unordered, and there is no default case. corral's rules are ordered, so they are first split
into disjoint cubes. A cube is a set of calls, described by one MASKED_EQ comparison for each
argument.
"""

from __future__ import annotations

import ctypes
import os

MASKED_EQ = 7  # SCMP_CMP_MASKED_EQ
X86_64 = 0xC000003E

# The bits of an argument, in the order in which split() tests them. Bits 8 to 15, the type of an
# ioctl command, come first. A rule for a whole type and a rule for a single command then begin with
# the same tests, so the number of cubes is five times smaller.
BITS = [1 << n for n in sorted(range(64), key=lambda n: (not 8 <= n < 16, -n))]

# A cube maps the number of an argument to (mask, value). An argument that is not in the cube may
# have any value.
Cube = dict[int, tuple[int, int]]


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def load():
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_release.restype = None
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_arch_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.seccomp_arch_remove.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    return library


def split(cube: Cube, condition) -> tuple[Cube | None, list[Cube]]:
    """Split a cube by a condition. Return the part that meets the condition (None if there is no
    such part), and the rest as disjoint cubes.
    """
    index, mask, value = condition
    known, fixed = cube.get(index, (0, 0))
    if (fixed ^ value) & known & mask:
        return None, [cube]
    outside = []
    for bit in (bit for bit in BITS if mask & ~known & bit):
        outside.append({**cube, index: (known | bit, fixed | (~value & bit))})
        known, fixed = known | bit, fixed | (value & bit)
    return ({**cube, index: (known, fixed)} if known else cube), outside


def cubes(rule) -> list[tuple[Cube, int]]:
    """Return disjoint cubes that together contain all calls. Each has the action of the rule that
    applies to it.
    """
    if isinstance(rule, int):
        return [({}, rule)]
    alternatives, default = rule
    made, pending = [], [{}]
    for conditions, action in alternatives:
        left = []
        for whole in pending:
            inside = whole
            for condition in conditions:
                inside, outside = split(inside, condition)
                left += outside
                if inside is None:
                    break
            if inside is not None:
                made.append((inside, action))
        pending = left
    return made + [(cube, default) for cube in pending]


def compile_rules(library, rules, *, unknown: int, bad_arch: int) -> bytes:
    """Compile the rules to a program for x86_64. They may have another architecture's syscall
    numbers, because libseccomp uses the numbers unchanged.
    """
    context = library.seccomp_init(unknown)
    assert context
    try:
        # A new context has the host's architecture. If x86_64 can be added, the host has another
        # architecture, so remove that one.
        if library.seccomp_arch_add(context, X86_64) == 0:
            assert library.seccomp_arch_remove(context, 0) == 0
        bad_arch_attribute = 2  # SCMP_FLTATR_ACT_BADARCH
        assert library.seccomp_attr_set(context, bad_arch_attribute, bad_arch) == 0
        for number, rule in rules.items():
            _add(library, context, number, rule, unknown)
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _add(library, context, number, rule, unknown):
    for cube, action in cubes(rule):
        if action == unknown:
            continue  # libseccomp refuses a rule with the default action
        array = (Comparison * len(cube))(
            *[(index, MASKED_EQ, mask, value) for index, (mask, value) in sorted(cube.items())]
        )
        result = library.seccomp_rule_add_array(context, action, number, len(cube), array)
        assert result == 0, (number, cube, os.strerror(-result))


def _export(library, context) -> bytes:
    fd = os.memfd_create("filter")
    try:
        assert library.seccomp_export_bpf(context, fd) == 0
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)
