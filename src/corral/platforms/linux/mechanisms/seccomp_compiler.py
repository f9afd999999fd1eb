"""Compile rules about syscalls into a classic BPF program for seccomp(2).

A rule is an action or a `Choice`. A `Choice` has alternatives, which are tried in order, and a
default action for all other calls. An alternative matches if all its conditions on the arguments
are met. There is no condition for "not equal"; use an earlier alternative with a different action
instead.

The program kills a process that makes a call of another architecture. Then it finds the syscall's
number by binary search over ranges that share a rule. For numbers that are always allowed, the
program loads no argument, so kernels since 5.11 answer from a bitmap and do not run the program.

The compiler emits instructions from the last to the first, so the distance of every jump is known.
A conditional jump has only 8 bits for the distance. For a longer jump the compiler inserts a copy
of the return or a long unconditional jump.
"""

from __future__ import annotations

from struct import pack

from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES, X32_SYSCALL_BIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    # A condition is (argument number, mask, value). It is met if `argument & mask == value`. The
    # kernel truncates some arguments to 32 bits. The mask of such an argument has only 32 bits, so
    # that the condition ignores the high word, too.
    Condition = tuple[int, int, int]
    Alternative = tuple[tuple[Condition, ...], int]
    Choice = tuple[tuple[Alternative, ...], int]
    Rule = int | Choice
    Instruction = tuple[int, int, int, int]

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
NOTIFY = 0x7FC00000
"""SECCOMP_RET_USER_NOTIF: the supervisor answers."""

WORD = 0xFFFFFFFF
LONG = 0xFFFFFFFFFFFFFFFF
MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA
JEQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JGE = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JSET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
NR_AT = 0
ARCH_AT = 4
ARGS_AT = 16


def errno_action(number: int) -> int:
    """Return the action that makes a syscall fail with this errno and have no effect."""
    return 0x00050000 | number


def low(index: int, value: int, mask: int = WORD) -> Condition:
    """Return a condition on an argument of which the kernel uses only the lower 32 bits."""
    return (index, mask & WORD, value & mask & WORD)


def whole(index: int, value: int) -> Condition:
    return (index, LONG, value & LONG)


class Backwards:
    """Builds a program backwards, from its last instruction to its first.

    A label is the position of an instruction, counted from the end of the program.
    """

    def __init__(self) -> None:
        self.emitted: list[Instruction] = []
        self.returns: dict[int, int] = {}

    def emit(self, code: int, k: int, if_true: int = 0, if_false: int = 0) -> int:
        self.emitted.append((code, if_true, if_false, k))
        return len(self.emitted)

    def action(self, value: int) -> int:
        """Return the label of a return instruction that is near enough for the next jump."""
        label = self.returns.get(value)
        if label is None or len(self.emitted) - label > 250:
            label = self.returns[value] = self.emit(RETURN, value)
        return label

    def near(self, label: int) -> int:
        """Return a label that has the same effect as `label` and is within reach of a conditional
        jump.

        A conditional jump reaches 255 instructions. The limit here is lower, because `near` is
        called for both branches of a jump, and each call can add an instruction.
        """
        if len(self.emitted) - label <= 250:
            return label
        code, _, _, k = self.emitted[label - 1]
        if code == RETURN:
            return self.action(k)
        return self.emit(JUMP, len(self.emitted) - label)

    def branch(self, code: int, k: int, if_true: int, if_false: int) -> int:
        if_true, if_false = self.near(if_true), self.near(if_false)
        here = len(self.emitted)
        return self.emit(code, k, here - if_true, here - if_false)

    def program(self) -> bytes:
        if len(self.emitted) > MAX_INSTRUCTIONS:
            raise ValueError(f"a filter of {len(self.emitted)} instructions is too long")
        # struct sock_filter: u16 code; u8 jt; u8 jf; u32 k. `pack` fails if an offset is over 255.
        return b"".join([pack("<HBBI", *one) for one in reversed(self.emitted)])


def _words(condition: Condition) -> list[tuple[int, int, int]]:
    """Split a condition into tests of 32-bit words (offset, mask, value). Omit a word if its mask
    is 0, because then no bit of the word matters.
    """
    index, mask, value = condition
    if value & ~mask or not 0 <= index < 6:
        raise ValueError(f"no argument can satisfy {condition}")
    at = ARGS_AT + 8 * index
    halves = ((at, mask & WORD, value & WORD), (at + 4, mask >> 32, value >> 32))
    return [half for half in halves if half[1]]


def _comparison(word: tuple[int, int, int]) -> tuple[int, int, bool, tuple[int, int]]:
    """Return how to test a word of the syscall's data:

    - the code and the operand of the jump
    - whether the jump's branches are swapped
    - the (offset, mask) of the word to load before the jump

    For JSET the whole word is loaded, without a mask, because JSET itself tests only the bits of
    its operand.
    """
    at, mask, value = word
    if mask == WORD:
        return JEQ, value, False, (at, WORD)
    if value == 0:
        return JSET, mask, True, (at, WORD)
    if value == mask and mask & (mask - 1) == 0:
        return JSET, mask, False, (at, WORD)
    return JEQ, value, False, (at, mask)


# The start of a test, as (label, label after the load, (offset, mask) of the loaded word). If the
# word is already loaded, a jump goes to the second label.
Destination = tuple[int, int, "tuple[int, int] | None"]


def _conjunction(
    out: Backwards, conditions: tuple[Condition, ...], then: int, other: Destination
) -> Destination:
    first: Destination = (then, then, None)
    for word in reversed([word for condition in conditions for word in _words(condition)]):
        code, k, negated, loaded = _comparison(word)
        met = first[1] if first[2] == loaded else first[0]
        fails = other[1] if other[2] == loaded else other[0]
        if negated:
            met, fails = fails, met
        compare = out.branch(code, k, met, fails)
        if loaded[1] != WORD:
            out.emit(AND, loaded[1])
        first = (out.emit(LOAD, loaded[0]), compare, loaded)
    return first


def _choice(out: Backwards, choice: Choice) -> int:
    alternatives, default = choice
    label = out.action(default)
    first: Destination = (label, label, None)
    for conditions, action in reversed(alternatives):
        first = _conjunction(out, conditions, out.action(action), first)
    return first[0]


def _ranges(rules: Mapping[int, Rule], unknown: int) -> list[tuple[int, Rule]]:
    """Divide all syscall numbers into ranges with the same rule.

    Return (first number, rule) for each range, from 0 upwards. Numbers without a rule get
    `unknown`.
    """
    ranges: list[tuple[int, Rule]] = []
    expected = 0
    last: Rule | None = None
    for number in sorted(rules):
        rule = rules[number]
        if number != expected and last != unknown:
            ranges.append((expected, unknown))
            last = unknown
        if rule != last:
            ranges.append((number, rule))
            last = rule
        expected = number + 1
    if last != unknown:
        ranges.append((expected, unknown))
    return ranges


def _search(out: Backwards, ranges: list[tuple[int, Rule]], labels: dict[Choice, int]) -> int:
    """Emit a balanced search tree for the ranges, and return the label of its root.

    The root is not always the last emitted instruction.
    """
    if len(ranges) == 1:
        rule = ranges[0][1]
        return out.action(rule) if isinstance(rule, int) else labels[rule]
    if len(ranges) == 3 and ranges[0][1] == ranges[2][1] and ranges[1][0] + 1 == ranges[2][0]:
        other = _search(out, ranges[:1], labels)
        return out.branch(JEQ, ranges[1][0], _search(out, ranges[1:2], labels), other)
    middle = len(ranges) // 2
    above = _search(out, ranges[middle:], labels)
    below = _search(out, ranges[:middle], labels)
    return out.branch(JGE, ranges[middle][0], above, below)


def assemble(
    rules: Mapping[int, Rule], *, arch: int, unknown: int, number_limit: int | None = None
) -> bytes:
    """Return the program for syscalls with these rules. Syscalls without a rule get `unknown`.

    The program kills a process that makes a syscall of another architecture, or a syscall whose
    number is `number_limit` or higher.
    """
    out = Backwards()
    ranges = _ranges(rules, unknown)
    labels = {rule: 0 for _, rule in ranges if not isinstance(rule, int)}
    for rule in labels:
        labels[rule] = _choice(out, rule)
    root = _search(out, ranges, labels)
    if number_limit is not None:
        root = out.branch(JGE, number_limit, out.action(KILL_PROCESS), root)
    if root != len(out.emitted):
        out.emit(JUMP, len(out.emitted) - root)
    out.branch(JEQ, arch, out.emit(LOAD, NR_AT), out.action(KILL_PROCESS))
    out.emit(LOAD, ARCH_AT)
    return out.program()


def assemble_by_name(
    machine: str, named: Mapping[str, Rule], *, unknown: int, others: int | None = None
) -> bytes:
    """Return the program for a machine.

    `named` contains the rules by syscall name. Names that this machine does not have are left out.
    `others` is the rule for the machine's other syscalls, by default `unknown`.
    """
    table = TABLES[machine]
    rules: dict[int, Rule] = {} if others is None else dict.fromkeys(table.values(), others)
    rules.update({table[name]: rule for name, rule in named.items() if name in table})
    return assemble(
        rules,
        arch=AUDIT_ARCHES[machine],
        unknown=unknown,
        number_limit=X32_SYSCALL_BIT if machine == "x86_64" else None,
    )
