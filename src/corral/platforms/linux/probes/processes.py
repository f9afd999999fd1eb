"""Probe whether corral can adopt orphans, and whether it can limit, count and measure processes."""

import os
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.platforms.linux import usage
from corral.platforms.linux.mechanisms import user_ids
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable, rlimits

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

limit_descriptors = probe.probe("rlimits", "Rlimits", word="supported")(rlimits.probe)


@probe.probe(
    "nproc",
    "Process limit by RLIMIT_NPROC",
    hint="a newer kernel: Linux 5.14 or later, which counts processes per user namespace",
    word="supported",
)
def count_processes() -> str:
    answer_read, answer_write = os.pipe()
    who = user_ids.choose(os.geteuid(), os.getegid())
    pid = probe.start_in_namespaces(
        abi.CLONE_NEWUSER, lambda: os.write(answer_write, _fork_until_denied(who).encode())
    )
    os.close(answer_write)
    with open(answer_read, "rb") as answer:
        words = answer.read().decode()
    os.waitpid(pid, 0)
    if not words.startswith("+"):
        raise RuntimeError(words[1:] or "the probe died")
    return f"a fork at RLIMIT_NPROC is denied ({words[1:]}), but a fork below it is not"


def _fork_until_denied(who: user_ids.IdMaps) -> str:
    import resource

    try:
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
        disposable.fork_once()
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        return f"+{disposable.refused(disposable.fork_once)}"
    except (OSError, RuntimeError) as error:
        return f"-{error}"


@probe.probe("guardian", "Guardian")
def adopt_orphan() -> str:
    """Check that a subreaper adopts an orphan, even if the orphan has left its session."""
    abi.prctl(abi.PR_SET_CHILD_SUBREAPER, 1)
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end_write)
        if os.fork() == 0:
            os.setsid()
            os.write(ready_write, b"\0")
            os.read(end_read, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    os.read(ready_read, 1)
    orphans = usage.tree(os.getpid())
    os.close(end_write)
    if len(orphans) != 1:
        raise RuntimeError(f"an orphan did not become a child of the subreaper: {orphans}")
    os.waitpid(orphans[0], 0)
    return "an orphan that left its session becomes a child of its guardian"


@probe.probe("sampling", "Sampling", hint="a kernel with CONFIG_PROC_CHILDREN")
def measure_grandchild() -> str:
    """Check that corral measures 32 MiB that a grandchild allocates.

    The evidence also contains the measurement before the allocation.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    end_read, end_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        os.close(end_write)
        if os.fork() == 0:
            os.write(ready_write, b"\0")
            os.read(go_read, 1)
            space = bytearray(32 << 20)
            os.write(ready_write, space[:1])
        os.read(end_read, 1)
        os._exit(0)
    os.read(ready_read, 1)
    before = usage.measure(pid).memory
    os.write(go_write, b"\0")
    os.read(ready_read, 1)
    seen = usage.measure(pid)
    os.close(end_write)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    if seen.memory < 32 << 20 or seen.tasks < 1:
        raise RuntimeError(f"a grandchild uses 32 MiB, but corral measured {seen.memory} bytes")
    return f"corral measures 32 MiB of a grandchild ({before >> 20} MiB before it allocated them)"
