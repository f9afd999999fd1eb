"""Whether resource limits deny, and whether RLIMIT_NPROC counts in a user namespace of its own."""

import os
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.platforms.linux.mechanisms import user_ids
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable, rlimits

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


limit_descriptors = probe.probe("rlimits", "Rlimits", word="supported")(rlimits.probe)


@probe.probe(
    "nproc",
    "Process limit",
    hint="Linux 5.14 counts processes per user namespace",
    word="supported",
)
def count_processes() -> str:
    """In a user namespace of its own, a process that has used up its count cannot fork."""
    go_read, go_write = os.pipe()
    answer_read, answer_write = os.pipe()
    who = user_ids.choose(os.geteuid(), os.getegid())
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER)
    if pid == 0:
        os.read(go_read, 1)
        os.write(answer_write, _fork_until_denied(who).encode())
        os._exit(0)
    os.close(answer_write)
    user_ids.write_maps(who, pid)
    os.write(go_write, b"\0")
    with open(answer_read, "rb") as answer:
        words = answer.read().decode()
    os.waitpid(pid, 0)
    os.close(pidfd)
    if not words.startswith("+"):
        raise RuntimeError(words or "the probe died")
    return f"with RLIMIT_NPROC used up a fork is denied ({words[1:]}), with room it is not"


def _fork_until_denied(who: user_ids.IdMaps) -> str:
    import resource

    try:
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
        _fork_once()
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        return f"+{disposable.refused(_fork_once)}"
    except (OSError, RuntimeError) as error:
        return f"-{error}"


def _fork_once() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
