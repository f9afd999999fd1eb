"""Whether a filter denies what it names, and lets an exec through by its cookie alone."""

import os
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import seccomp, seccomp_rules
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

HINT = "a kernel with CONFIG_SECCOMP_FILTER"


@probe.probe("seccomp", "Seccomp", hint=HINT)
def deny_call() -> str:
    before = seccomp.is_filtered()
    _load(subprocess=True)
    if before or not seccomp.is_filtered():
        raise RuntimeError("a filter that was loaded changes nothing")
    os.getppid()
    return "TIOCSTI is denied by the filter, answered by the kernel before"


@probe.probe("exec_cookie", "Subprocess blocking", hint=HINT, word="supported")
def exec_with_cookie() -> str:
    """The kernel must ignore the registers that carry the cookie, and the filter must not."""
    cookie = (1 << 63, 2, 3)
    pid = os.fork()
    if pid == 0:
        _load(subprocess=False, cookie=cookie)
        try:
            disposable.refused(lambda: abi.execve("/bin/true", ("true",), (), (1, 2, 3)))
            abi.execve("/bin/true", ("true",), (), cookie)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("exec with the cookie failed, or exec without it passed")
    return "exec without the cookie is denied, with it it passes"


def _load(*, subprocess: bool, cookie: tuple[int, int, int] | None = None) -> None:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    rules = seccomp_rules.target_rules(
        subprocess=subprocess, unix_sockets=False, namespaces=True, cookie=cookie
    )
    abi.seccomp_set_filter(seccomp_rules.compile_filter(os.uname().machine, rules))
