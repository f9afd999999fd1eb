"""What Landlock's rules deny here, by trying it."""

import os
import sys
import tempfile
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.plan.model import Results
from corral.platforms.linux.mechanisms import landlock
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def _restrict(read: str) -> None:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    landlock.Landlock(read=(read,), write=()).apply(Results())


@probe.probe("landlock", "Landlock", hint="a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, lsm=)")
def deny_file() -> str:
    os.close(os.open("/proc/self/stat", os.O_RDONLY))
    version = abi.landlock_abi()
    _restrict("/usr")
    words = disposable.refused(lambda: os.open("/proc/self/stat", os.O_RDONLY))
    os.close(os.open("/usr", os.O_RDONLY | os.O_DIRECTORY))
    return f"ABI {version}: an ungranted file is denied ({words}), readable before"


@probe.probe(
    "landlock_wall",
    "Landlock as the only wall",
    hint="Linux 6.2 (Landlock that holds truncation)",
)
def deny_truncation() -> str:
    """Truncation of what may not be written is denied: before ABI 3 it is not."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/file"
        with open(path, "w", encoding="utf-8") as file:
            file.write("text")

        def attempt() -> str:
            os.truncate(path, 3)
            _restrict("/")
            return disposable.refused(lambda: os.truncate(path, 0))

        denied, words = disposable.observe(attempt)
    if not denied:
        raise RuntimeError(words)
    return f"truncating an ungranted file is denied ({words}), done before"


@probe.probe(
    "landlock_scope", "Landlock signal scope", hint="Linux 6.12 (Landlock that scopes signals)"
)
def deny_signal() -> str:
    parent = os.getppid()
    os.kill(parent, 0)
    _restrict("/")
    words = disposable.refused(lambda: os.kill(parent, 0))
    os.kill(os.getpid(), 0)
    return f"a signal to a process outside is denied ({words}), sent before"
