"""The syscall filter of the target, and subprocess = false.

The filter itself is data in `filters` and is compiled by `bpf`. The cookie that lets exactly the
first exec through is made here, lives in the launching process only, and is gone with its memory.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import seccomp_rules
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

EPERM = 1
TIOCSTI = 0x5412


@record
class Seccomp:
    machine: str
    subprocess: bool
    unix_sockets: bool
    namespaces: bool = True
    scoped: bool = False
    place: Place = "target"

    def describe(self) -> str:
        processes = "processes allowed" if self.subprocess else "threads yes, processes no"
        sockets = "unix sockets allowed" if self.unix_sockets else "no unix sockets"
        return f"seccomp: {processes}, {sockets}, dangerous system calls denied"


def apply(step: Seccomp, scene: Scene) -> None:
    if not step.subprocess:
        words = os.urandom(24)
        scene.cookie = (_word(words[:8]), _word(words[8:16]), _word(words[16:]))
    program = compiled(step, scene.cookie)
    abi.seccomp_set_filter(program)


def compiled(step: Seccomp, cookie: tuple[int, int, int]) -> bytes:
    """The program for a step. A zygote compiles it once, and a fork only puts its cookie in."""
    if not step.namespaces:
        return _compile(step, cookie, own_pid=os.getpid())
    if step not in _templates:
        _templates[step] = _compile(step, PLACEHOLDER, own_pid=None)
    program = _templates[step]
    if step.subprocess:
        return program
    for old, new in zip(_halves(PLACEHOLDER), _halves(cookie), strict=True):
        if program.count(old) != 1:
            raise OSError(0, "the cookie has no place of its own in the filter")
        program = program.replace(old, new)
    return program


# Six words that stand for nothing else in a filter: no address, flag or jump looks like them.
PLACEHOLDER = (0xC0FFEE01_C0FFEE02, 0xC0FFEE03_C0FFEE04, 0xC0FFEE05_C0FFEE06)
_templates: dict[Seccomp, bytes] = {}
_init: dict[str, bytes] = {}


def compiled_for_init(machine: str) -> bytes:
    if machine not in _init:
        _init[machine] = seccomp_rules.init(machine=machine)
    return _init[machine]


def warm_up(machine: str) -> None:
    """Compile what most runs need, in the process that they will be forks of."""
    compiled_for_init(machine)
    for subprocess in (False, True):
        step = Seccomp(machine=machine, subprocess=subprocess, unix_sockets=False)
        compiled(step, PLACEHOLDER)


def _halves(cookie: tuple[int, int, int]) -> list[bytes]:
    words = b"".join(word.to_bytes(8, "little") for word in cookie)
    return [words[at : at + 4] for at in range(0, len(words), 4)]


def _compile(step: Seccomp, cookie: tuple[int, int, int], *, own_pid: int | None) -> bytes:
    return seccomp_rules.target(
        machine=step.machine,
        subprocess=step.subprocess,
        unix_sockets=step.unix_sockets,
        namespaces=step.namespaces,
        cookie=None if step.subprocess else cookie,
        own_pid=own_pid,
        scoped=step.scoped,
    )


def verify(step: Seccomp, _scene: Scene) -> None:
    """A call that is always denied is denied, and so is what this policy denies."""
    if not denies():
        raise OSError(0, "the filter does not speak")
    if not step.subprocess:
        _no_child()
    if not step.namespaces:
        _no_internet()


def denies() -> bool:
    """TIOCSTI on no descriptor at all: EBADF from the kernel, EPERM from the filter and only from
    it.
    """
    try:
        abi.syscall("ioctl", -1, TIOCSTI, 0)
    except OSError as error:
        return error.errno == EPERM
    return False


def _no_internet() -> None:
    try:
        os.close(abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0))
    except OSError:
        return
    raise OSError(0, "an internet socket could be made")


def _no_child() -> None:
    try:
        pid = os.fork()
    except OSError:
        return
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(0, "a child process could be made")


def _word(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
