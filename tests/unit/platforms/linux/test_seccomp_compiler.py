"""Compare the compiler's programs with a simple evaluation of the same rules, and check the
programs as the kernel does.
"""

from __future__ import annotations

import pytest
from bpf_simulator import decode, run
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.platforms.linux.mechanisms import seccomp_compiler

ARCH = 0xC000003E
X32 = 0x40000000
UNKNOWN = seccomp_compiler.errno_action(38)


def interpret(rules, number, args, *, arch=ARCH, limit=None):
    """Evaluate the rules in the simplest possible way, and return the resulting action."""
    if arch != ARCH or (limit is not None and number >= limit):
        return seccomp_compiler.KILL_PROCESS
    rule = rules.get(number, UNKNOWN)
    if isinstance(rule, int):
        return rule
    alternatives, default = rule
    for conditions, action in alternatives:
        if all(args[index] & mask == value for index, mask, value in conditions):
            return action
    return default


actions = st.sampled_from(
    [
        seccomp_compiler.ALLOW,
        seccomp_compiler.KILL_PROCESS,
        *map(seccomp_compiler.errno_action, (1, 38, 97, 4095)),
    ]
)
# Use few distinct values, so that random arguments often match random conditions.
halves = st.sampled_from([0, 1, 2, 3, 0xF, 0x10000, 0x7E020080, 0x80000000, 0xFFFFFFFF])
longs = st.builds(lambda high, low: high << 32 | low, halves, halves)
conditions = st.builds(
    lambda index, mask, value: (index, mask, value & mask), st.integers(0, 5), longs, longs
)
choices = st.tuples(
    st.lists(st.tuples(st.lists(conditions, max_size=4).map(tuple), actions), max_size=6).map(
        tuple
    ),
    actions,
)
rule_sets = st.dictionaries(st.integers(0, 600), st.one_of(actions, choices), max_size=60)
arguments = st.tuples(*[longs] * 6)


@settings(max_examples=300, deadline=None)
@given(rules=rule_sets, limit=st.sampled_from([None, X32]), calls=st.lists(arguments, max_size=8))
def test_compiled_programs_decide_calls_as_their_rules_do(rules, limit, calls):
    raw = seccomp_compiler.assemble(rules, arch=ARCH, unknown=UNKNOWN, number_limit=limit)
    program = decode(raw)
    edges = {near for number in rules for near in (number - 1, number, number + 1)}
    numbers = {0, 601, X32 - 1, X32, 0xFFFFFFFF, *edges} - {-1}
    for number in numbers:
        for args in [(0,) * 6, *calls]:
            expected = interpret(rules, number, args, limit=limit)
            assert run(program, ARCH, number, args).action == expected
        assert run(program, ARCH ^ 1, number).action == seccomp_compiler.KILL_PROCESS


def test_jumps_of_more_than_255_instructions_work():
    """Compile 300 syscalls with one rule each. The program first searches for the number of the
    call, and then has to jump far to reach the call's rules.
    """
    rules = {
        2 * n: (
            (((seccomp_compiler.whole(n % 6, n << 32 | n),), seccomp_compiler.errno_action(n)),),
            seccomp_compiler.errno_action(1000 + n),
        )
        for n in range(300)
    }
    raw = seccomp_compiler.assemble(rules, arch=ARCH, unknown=UNKNOWN, number_limit=X32)
    program = decode(raw)
    assert any(code == seccomp_compiler.JUMP and k > 255 for code, _, _, k in program)
    for number in range(610):
        n = number // 2
        for value in (n << 32 | n, n, n << 32, 0):
            args = (value,) * 6
            expected = interpret(rules, number, args, limit=X32)
            assert run(program, ARCH, number, args).action == expected


@pytest.mark.parametrize("count", range(40, 140))
def test_jumps_of_about_255_instructions_work(count):
    """Try rules of different lengths, so that some jumps skip exactly 254, 255 and 256
    instructions.
    """
    alternatives = tuple(
        ((seccomp_compiler.low(0, n),), seccomp_compiler.ALLOW) for n in range(2 * count)
    )
    rules = {n: ((), seccomp_compiler.errno_action(n)) for n in range(1, 10)}
    rules[10] = (alternatives, seccomp_compiler.errno_action(200))
    program = decode(seccomp_compiler.assemble(rules, arch=ARCH, unknown=UNKNOWN, number_limit=X32))
    for number in range(12):
        for value in (0, count, 2 * count - 1, 2 * count):
            args = (value,) * 6
            assert run(program, ARCH, number, args).action == interpret(rules, number, args)


def test_a_program_that_is_too_long_is_refused():
    rules = {
        2 * n: (
            (((seccomp_compiler.whole(0, n),), seccomp_compiler.ALLOW),),
            seccomp_compiler.errno_action(1 + n % 4000),
        )
        for n in range(1000)
    }
    with pytest.raises(ValueError, match="too long"):
        seccomp_compiler.assemble(rules, arch=ARCH, unknown=UNKNOWN)


def test_a_condition_that_can_never_be_true_is_refused():
    impossible = ((((0, 0xFF, 0x100),), seccomp_compiler.ALLOW),)
    with pytest.raises(ValueError, match="no argument"):
        seccomp_compiler.assemble({1: (impossible, UNKNOWN)}, arch=ARCH, unknown=UNKNOWN)
    with pytest.raises(ValueError, match="no argument"):
        seccomp_compiler.assemble(
            {1: ((((seccomp_compiler.low(6, 0),), seccomp_compiler.ALLOW),), UNKNOWN)},
            arch=ARCH,
            unknown=UNKNOWN,
        )


def test_a_program_without_rules_works():
    program = decode(seccomp_compiler.assemble({}, arch=ARCH, unknown=UNKNOWN))
    assert run(program, ARCH, 0).action == UNKNOWN
    assert run(program, ARCH + 1, 0).action == seccomp_compiler.KILL_PROCESS


def test_a_condition_ignores_the_high_32_bits_of_an_argument_unless_it_is_whole():
    rules = {
        1: ((((seccomp_compiler.low(0, 2),), UNKNOWN),), seccomp_compiler.ALLOW),
        2: ((((seccomp_compiler.whole(0, 2),), UNKNOWN),), seccomp_compiler.ALLOW),
    }
    program = decode(seccomp_compiler.assemble(rules, arch=ARCH, unknown=UNKNOWN))
    junk = 0xDEAD << 32 | 2
    assert run(program, ARCH, 1, (junk,)).action == UNKNOWN
    assert run(program, ARCH, 2, (junk,)).action == seccomp_compiler.ALLOW
    assert run(program, ARCH, 2, (2,)).action == UNKNOWN


def test_neighbouring_numbers_with_one_rule_become_one_range():
    one = seccomp_compiler.assemble({7: seccomp_compiler.ALLOW}, arch=ARCH, unknown=UNKNOWN)
    many = seccomp_compiler.assemble(
        dict.fromkeys(range(7, 500), seccomp_compiler.ALLOW), arch=ARCH, unknown=UNKNOWN
    )
    assert len(many) <= len(one) + 8


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 7,
        bytes.fromhex("2000000000000000"),  # the program ends without a return
        bytes.fromhex("2000000003000000 06000000 00000000"),  # unaligned load
        bytes.fromhex("2000000040000000 06000000 00000000"),  # load past the data
        bytes.fromhex("1500010000000000 06000000 00000000"),  # branch past the end
        bytes.fromhex("0500000001000000 06000000 00000000"),  # jump past the end
        bytes.fromhex("ffff000000000000 06000000 00000000"),  # no such instruction
    ],
)
def test_the_simulator_refuses_what_the_kernel_refuses(raw):
    with pytest.raises(ValueError):
        decode(raw)
