"""Measure a program's stdio: the throughput of its output, and the round trip of a message.

Times start with the first byte, so they do not include the start of the program.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

Process = subprocess.Popen[bytes]

BLOCK = 1 << 16
MESSAGE = b"x" * 255 + b"\n"
BATCH = 100


def throughput(wrapper: Sequence[str], environment: Mapping[str, str], megabytes: int) -> float:
    """Return the milliseconds that it takes to read `megabytes` from `dd` in the sandbox."""
    command = [*wrapper, "dd", "if=/dev/zero", f"bs={BLOCK}", f"count={megabytes * 16}"]
    with _start(command, environment) as process:
        try:
            out = process.stdout.fileno() if process.stdout else -1
            os.read(out, 1)
            started = time.perf_counter_ns()
            while os.read(out, BLOCK):
                pass
            taken = (time.perf_counter_ns() - started) / 1e6
        except BaseException:
            process.kill()
            raise
    return taken


def latency(wrapper: Sequence[str], environment: Mapping[str, str], batches: int) -> float:
    """Return the microseconds that a message takes to `cat` and back: the best of `batches`
    averages.

    Both ends run on one processor, because times between processors depend on which two are used.
    """
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        with _start([*wrapper, "cat"], environment) as process:
            try:
                return min(_batch(process) for _ in range(batches))
            finally:
                process.kill()
    finally:
        os.sched_setaffinity(0, processors)


def _batch(process: Process) -> float:
    started = time.perf_counter_ns()
    for _ in range(BATCH):
        _echo(process)
    return (time.perf_counter_ns() - started) / 1e3 / BATCH


def _echo(process: Process) -> None:
    assert process.stdin
    assert process.stdout
    process.stdin.write(MESSAGE)
    process.stdout.read(len(MESSAGE))


def _start(command: list[str], environment: Mapping[str, str]) -> Process:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
    )
