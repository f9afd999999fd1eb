"""What Landlock holds here: by its rules, by trying what they deny."""

from __future__ import annotations

import os
import sys

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import landlock as rules
from corral.platforms.posix import disposable
from corral.platforms.steps import Scene

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def denies() -> str:
    os.close(os.open("/proc/self/stat", os.O_RDONLY))
    version = abi.landlock_abi()
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    rules.apply(rules.Landlock(read=("/usr",), write=()), Scene())
    words = disposable.refused(lambda: os.open("/proc/self/stat", os.O_RDONLY))
    os.close(os.open("/usr", os.O_RDONLY | os.O_DIRECTORY))
    return f"ABI {version}: an ungranted file is denied ({words}), readable before"


def holds_truncation() -> str:
    """Truncation of what may not be written is denied: before ABI 3 it is not."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/file"
        with open(path, "w", encoding="utf-8") as file:
            file.write("text")

        def attempt() -> str:
            os.truncate(path, 3)
            abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            rules.apply(rules.Landlock(read=("/",), write=()), Scene())
            return disposable.refused(lambda: os.truncate(path, 0))

        held, words = disposable.observe(attempt)
    if not held:
        raise RuntimeError(words)
    return f"truncating an ungranted file is denied ({words}), done before"


def scopes_signals() -> str:
    parent = os.getppid()
    os.kill(parent, 0)
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    rules.apply(rules.Landlock(read=("/",), write=()), Scene())
    words = disposable.refused(lambda: os.kill(parent, 0))
    os.kill(os.getpid(), 0)
    return f"a signal to a process outside is denied ({words}), sent before"
