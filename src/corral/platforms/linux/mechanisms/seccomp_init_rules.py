"""List the syscalls that PID 1 may make. Any other call kills PID 1, and the sandbox with it.

A target might take over PID 1, so PID 1 is allowed no more than it needs. It is a single-threaded
interpreter that waits on descriptors, reaps children, passes signals on, and at the end reads how
full the private space is. It cannot start a process, open a file or map executable memory.
"""

from __future__ import annotations

from corral.platforms.linux.mechanisms.seccomp_compiler import (
    ALLOW,
    KILL_PROCESS,
    assemble_by_name,
    low,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.platforms.linux.mechanisms.seccomp_compiler import Rule

_ALLOWED = """
    read write close poll ppoll wait4 waitid kill rt_sigaction rt_sigprocmask rt_sigreturn
    rt_sigpending rt_sigtimedwait brk munmap mremap madvise futex getpid gettid clock_gettime
    getrandom getrusage restart_syscall sched_yield fstatfs exit exit_group
"""
F_GETFD, F_SETFD, F_GETFL, F_SETFL = 1, 2, 3, 4
PROT_EXEC = 4


def init_rules() -> dict[str, Rule]:
    not_executable: Rule = ((((low(2, 0, PROT_EXEC),), ALLOW),), KILL_PROCESS)
    flags = tuple(((low(1, command),), ALLOW) for command in (F_GETFD, F_SETFD, F_GETFL, F_SETFL))
    return {
        **dict.fromkeys(_ALLOWED.split(), ALLOW),
        "mmap": not_executable,
        "mprotect": not_executable,
        "fcntl": (flags, KILL_PROCESS),
    }


def compile_filter(machine: str) -> bytes:
    return assemble_by_name(machine, init_rules(), unknown=KILL_PROCESS)
