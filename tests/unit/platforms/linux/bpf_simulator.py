"""Simulate classic BPF programs on struct seccomp_data, and check programs as the kernel does when
it loads them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

WORD = 0xFFFFFFFF
DATA_SIZE = 64  # sizeof(struct seccomp_data)

LOAD, AND, JUMP, JEQ, JGT, JGE, JSET, RETURN = 0x20, 0x54, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06

Program = list[tuple[int, int, int, int]]


class Outcome(NamedTuple):
    action: int
    executed: int  # how many instructions the filter executed
    arguments: bool  # whether the filter read any argument


def decode(raw: bytes, longest: int = 4096) -> Program:
    """Return the instructions of a program. Raise ValueError if the kernel would refuse the
    program.
    """
    if not raw or len(raw) % 8 or len(raw) > 8 * longest:
        raise ValueError(f"{len(raw)} bytes are not a program")
    program = list(struct.iter_unpack("<HBBI", raw))
    for at, (code, if_true, if_false, k) in enumerate(program):
        if code == LOAD:
            if k % 4 or k >= DATA_SIZE:
                raise ValueError(f"{at}: load from {k}")
        elif code == JUMP:
            if at + 1 + k >= len(program):
                raise ValueError(f"{at}: jump past the end")
        elif code in {JEQ, JGT, JGE, JSET}:
            if at + 1 + max(if_true, if_false) >= len(program):
                raise ValueError(f"{at}: branch past the end")
        elif code not in {AND, RETURN}:
            raise ValueError(f"{at}: unknown instruction {code:#x}")
    if program[-1][0] != RETURN:
        raise ValueError("the last instruction does not return")
    return program


def run(program: Program, arch: int, number: int, args: tuple[int, ...] = ()) -> Outcome:
    words = [number, arch, 0, 0, *(half for value in args for half in (value & WORD, value >> 32))]
    words += [0] * (16 - len(words))
    at = executed = accumulator = 0
    arguments = False
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        executed += 1
        if code == LOAD:
            accumulator = words[k // 4]
            arguments = arguments or k >= 8
        elif code == JEQ:
            at += if_true if accumulator == k else if_false
        elif code == JGE:
            at += if_true if accumulator >= k else if_false
        elif code == JGT:
            at += if_true if accumulator > k else if_false
        elif code == JSET:
            at += if_true if accumulator & k else if_false
        elif code == AND:
            accumulator &= k
        elif code == JUMP:
            at += k
        else:
            return Outcome(k, executed, arguments)
