"""The syscall filter of the target, and subprocess = false.

The rules are data in `seccomp_rules` and are compiled by `seccomp_compiler`. The cookie that lets
exactly the first exec through is made here and exists only in the memory of the process that
becomes the target.
"""

from __future__ import annotations

import os
import struct
import sys

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import seccomp_init_rules, seccomp_rules
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

    Cookie = tuple[int, int, int]

EPERM = 1
TIOCSTI = 0x5412


@record
class ExecCookie:
    """What execve has to carry in its last three registers, which the kernel ignores."""

    words: Cookie


@record
class Seccomp:
    name = "seccomp"
    machine: str
    subprocess: bool
    unix_sockets: bool
    namespaces: bool = True
    scoped: bool = False
    duty_cycle: bool = False
    stage: Stage = "target"

    def describe(self) -> str:
        processes = "processes allowed" if self.subprocess else "threads yes, processes no"
        sockets = "unix sockets allowed" if self.unix_sockets else "no unix sockets"
        return f"seccomp: {processes}, {sockets}, dangerous system calls denied"

    def apply(self, results: Results) -> None:
        cookie: Cookie = (0, 0, 0)
        if not self.subprocess:
            cookie = struct.unpack("<3Q", os.urandom(24))
            results.add(ExecCookie(words=cookie))
        abi.seccomp_set_filter(compile_target(self, cookie))

    def verify(self, _results: Results) -> None:
        """Check that a call that is always denied is denied, and what this policy denies."""
        if not is_filtered():
            raise OSError(0, "the filter has no effect")
        if not self.subprocess:
            _check_no_child()
        if not self.namespaces:
            _check_no_internet()


def compile_target(step: Seccomp, cookie: Cookie) -> bytes:
    """Return the program of a step. A zygote compiles it once; a fork only puts its cookie in."""
    if not step.namespaces:
        return _compile(step, cookie, own_pid=os.getpid())
    if step not in _templates:
        _templates[step] = _compile(step, PLACEHOLDER, own_pid=None)
    program = _templates[step]
    if step.subprocess:
        return program
    for old, new in zip(_halves(PLACEHOLDER), _halves(cookie), strict=True):
        if program.count(old) != 1:
            raise OSError(0, "the cookie does not occur exactly once in the filter")
        program = program.replace(old, new)
    return program


# Six words that occur nowhere else in a filter: no address, flag or jump looks like them.
PLACEHOLDER = (0xC0FFEE01_C0FFEE02, 0xC0FFEE03_C0FFEE04, 0xC0FFEE05_C0FFEE06)
_templates: dict[Seccomp, bytes] = {}
_init: dict[str, bytes] = {}


def compile_for_init(machine: str) -> bytes:
    if machine not in _init:
        _init[machine] = seccomp_init_rules.compile_filter(machine)
    return _init[machine]


def warm_up(machine: str) -> None:
    """Compile what most runs need, in the process that will be forked for each of them."""
    compile_for_init(machine)
    for subprocess in (False, True):
        step = Seccomp(machine=machine, subprocess=subprocess, unix_sockets=False)
        compile_target(step, PLACEHOLDER)


def _halves(cookie: Cookie) -> list[bytes]:
    words = struct.pack("<3Q", *cookie)
    return [words[at : at + 4] for at in range(0, len(words), 4)]


def _compile(step: Seccomp, cookie: Cookie, *, own_pid: int | None) -> bytes:
    rules = seccomp_rules.target_rules(
        subprocess=step.subprocess,
        unix_sockets=step.unix_sockets,
        namespaces=step.namespaces,
        cookie=None if step.subprocess else cookie,
        own_pid=own_pid,
        scoped=step.scoped,
        duty_cycle=step.duty_cycle,
    )
    return seccomp_rules.compile_filter(step.machine, rules)


def is_filtered() -> bool:
    """Try TIOCSTI on no descriptor: the kernel answers EBADF, and only the filter EPERM."""
    try:
        abi.syscall("ioctl", -1, TIOCSTI, 0)
    except OSError as error:
        return error.errno == EPERM
    return False


def _check_no_internet() -> None:
    try:
        os.close(abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0))
    except OSError:
        return
    raise OSError(0, "an internet socket could be made")


def _check_no_child() -> None:
    try:
        pid = os.fork()
    except OSError:
        return
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(0, "a child process could be made")
