"""Compare messages in a sandbox with and without the guard, and measure an idle guard.

The server is `cat`, which sends each message back, so the guard reads each message twice. The
messages are notifications, because the guard allows notifications in both directions.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import measure
import peers
import processes
from measure import Ratio, Section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUDGET_MS = 0.3
IDLE_SECONDS = 2.0
SETTLE_SECONDS = 0.5
"""Time for the guard's thread to start waiting again after the last message."""
PIPE_BYTES = 1 << 15
RULES = {
    "tools": {"allow": ["read_*"], "deny": ["*_all"]},
    "resources": {"deny": ["file:///etc/*"]},
}
POLICY = json.dumps({"version": 1, "mcp": RULES})
SIZES = ((200, 200, BUDGET_MS), (4_000, 200, BUDGET_MS), (100_000, 20, None), (1_000_000, 5, None))
"""For each kind of message: its size in bytes, the number of messages in a round, and the
milliseconds that one message may take (None: no budget).
"""


def message(size: int) -> bytes:
    """Return a message of about `size` bytes: a list of short strings, as in a tool's answer."""
    row = {"type": "text", "text": "The quick brown fox jumps over the lazy dog. " * 2}
    rows = [row] * max(1, size // 110)
    made = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": rows}}
    return json.dumps(made).encode() + b"\n"


def start(wrapper: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*wrapper, "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
    )


def exchange(process: subprocess.Popen[bytes], raw: bytes, times: int) -> float:
    """Return the round-trip time of a message in milliseconds: the median of `times` messages."""
    return statistics.median(exchange_once(process, raw) for _ in range(times))


def exchange_once(process: subprocess.Popen[bytes], raw: bytes) -> float:
    assert process.stdin
    assert process.stdout
    sender = threading.Thread(target=write_all, args=(process.stdin.fileno(), raw))
    began = time.perf_counter_ns()
    # `cat` stops reading a large message when its own output pipe is full. So another thread writes
    # such a message, while this thread reads the answer.
    if len(raw) > PIPE_BYTES:
        sender.start()
    else:
        write_all(process.stdin.fileno(), raw)
    left = len(raw)
    while left:
        left -= len(os.read(process.stdout.fileno(), 1 << 16))
    return (time.perf_counter_ns() - began) / 1e6


def write_all(fd: int, raw: bytes) -> None:
    while raw:
        raw = raw[os.write(fd, raw) :]


def threads_wake_ups(pid: int) -> int:
    """Return the sum of the wake-ups of all threads. /proc/PID/status counts only those of the
    first thread.
    """
    return sum(
        processes.field(
            processes.read(f"/proc/{pid}/task/{thread}/status"), "voluntary_ctxt_switches"
        )
        for thread in os.listdir(f"/proc/{pid}/task")
    )


def sections(running: Mapping[str, subprocess.Popen[bytes]], rounds: int) -> list[Section]:
    found = []
    for size, times, budget in SIZES:
        raw = message(size)
        stats = measure.interleave(
            {name: functools.partial(exchange, one, raw, times) for name, one in running.items()},
            rounds,
        )
        more = (stats["guard"].median - stats["none"].median) / 2
        least = (stats["guard"].minimum - stats["none"].minimum) / 2
        ratios = (
            Ratio("guard: extra ms per message, medians", more, budget),
            Ratio("guard: extra ms per message, minima", least),
        )
        title = f"round trip of {len(raw)} bytes"
        found.append(Section(title, "ms", tuple(stats.values()), ratios))
    return [*found, idle(running)]


def idle(running: Mapping[str, subprocess.Popen[bytes]]) -> Section:
    time.sleep(SETTLE_SECONDS)
    before = {name: threads_wake_ups(one.pid) for name, one in running.items()}
    time.sleep(IDLE_SECONDS)
    woken = {name: threads_wake_ups(one.pid) - before[name] for name, one in running.items()}
    sizes = {name: processes.pss(one.pid) or 0.0 for name, one in running.items()}
    ratios = [
        Ratio(f"{name}: wake-ups in {IDLE_SECONDS:g} s", float(number), 0.0)
        for name, number in woken.items()
    ]
    ratios.append(Ratio("guard: extra MB in the supervisor", sizes["guard"] - sizes["none"]))
    return Section("An idle server", "", (), tuple(ratios))


def main() -> int:
    options = measure.parser(__doc__, rounds=30).parse_args()
    with peers.set_up(json_wanted=options.json) as made:
        base = [made.corral.corral, "run"]
        wrappers = {"none": [*base, "--"], "guard": [*base, "--policy", POLICY, "--"]}
        running = {name: start(words, made.environment) for name, words in wrappers.items()}
        try:
            for section in sections(running, measure.rounds_of(options)):
                made.output.show(section)
        finally:
            for process in running.values():
                process.kill()
                process.communicate()
        return made.output.finish()


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
