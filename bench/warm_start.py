"""Measure launches from a warm process. `start.py` runs this program in the virtual environment
that has corral. The program reads its task as JSON from stdin, and prints its samples as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import time

import cpu_time
import measure
import peers
import processes

import corral
from corral.api.sandbox import end_zygote

LAUNCH = "corral.launch + wait"
POOL = "corral.Pool.launch + wait"
PAUSE_SECONDS = 0.015
IN_A_ROW = 8
SETTLE_SECONDS = 2.0
"""Pause before the first count of wake-ups. Meanwhile the supervisor wakes up once more, to import
the modules that it needs when its run ends.
"""


def in_a_row(measured):
    """Return a contender that calls `measured` several times without a pause, and returns the
    average.
    """
    return lambda: sum(measured() for _ in range(IN_A_ROW)) / IN_A_ROW


def launch_and_wait(launch=corral.launch, *, timed_wait: bool = True) -> float:
    """Return the milliseconds until the target has ended or, if `timed_wait` is false, until
    `launch` has returned.
    """
    started = time.perf_counter_ns()
    sandbox = launch(
        [peers.TARGET], stdin=corral.DEVNULL, stdout=corral.DEVNULL, stderr=corral.DEVNULL
    )
    launched = time.perf_counter_ns()
    code = sandbox.wait()
    ended = time.perf_counter_ns()
    if code:
        raise SystemExit(f"corral.launch: exit code {code}")
    return ((ended if timed_wait else launched) - started) / 1e6


def in_process(name: str):
    space: dict[str, object] = {}
    exec(peers.IN_PROCESS[name], space)
    once = space["once"]

    def measured() -> float:
        started = time.perf_counter_ns()
        code = once()  # type: ignore[operator]
        taken = (time.perf_counter_ns() - started) / 1e6
        if code:
            raise SystemExit(f"{name}: exit code {code}")
        return taken

    return measured


def idle(seconds: float) -> list[dict[str, object]]:
    """Return the memory use and the wake-ups of each corral process that serves one idle server."""
    with corral.launch(["/bin/cat"], stdin=corral.PIPE, stdout=corral.PIPE) as sandbox:
        sandbox.stdin.write(b"x")
        sandbox.stdout.read(1)
        init = processes.parent(sandbox.pid)
        supervisor = processes.parent(init)
        found = [
            processes.Process("supervisor", supervisor),
            processes.Process("init", init),
            processes.Process("zygote (shared by all)", processes.parent(supervisor)),
        ]
        time.sleep(SETTLE_SECONDS)
        return watch(found, seconds)


def watch(found: list[processes.Process], seconds: float) -> list[dict[str, object]]:
    before = [processes.wake_ups(item.pid) for item in found]
    time.sleep(seconds)
    return [
        {
            "role": item.role,
            "pss": processes.pss(item.pid),
            "wake_ups": processes.wake_ups(item.pid) - woken,
        }
        for item, woken in zip(found, before, strict=True)
    ]


def main() -> int:
    task = json.load(sys.stdin)
    environment = dict(os.environ)
    peers_found = {
        name: functools.partial(measure.spawn, argv, environment)
        for name, argv in task["commands"].items()
    } | {name: in_process(name) for name in task["in_process"]}
    launch = {LAUNCH: launch_and_wait}
    alone = {"corral.launch alone": lambda: launch_and_wait(timed_wait=False)}
    rows = {name: in_a_row(measured) for name, measured in {**launch, **peers_found}.items()}
    with cpu_time.CpuTime() as cpu:
        paused = measure.interleave(
            {**launch, **alone, **peers_found},
            task["rounds"],
            cpu=cpu.read,
            settle_seconds=PAUSE_SECONDS,
        )
        back_to_back = measure.interleave(
            rows, max(1, task["rounds"] // 4), warm_up=1, cpu=cpu.read
        )
        # Pools are measured separately. After each launch a pool prepares the sandbox for the next
        # one, and this slows down whatever is measured meanwhile.
        with corral.Pool() as pool:
            pooled = measure.interleave(
                {POOL: functools.partial(launch_and_wait, pool.launch), **peers_found},
                task["rounds"],
                settle_seconds=PAUSE_SECONDS,
            )
        # The zygote is in the cgroup of `cpu`, which can be removed only when it is empty.
        end_zygote()
    back_to_back = {
        name: dataclasses.replace(stats, cpu=tuple(used / IN_A_ROW for used in stats.cpu))
        for name, stats in back_to_back.items()
    }
    parts = {"paused": paused, "back_to_back": back_to_back, "pooled": pooled}
    answer = {
        title: [dataclasses.asdict(stats) for stats in found.values()]
        for title, found in parts.items()
    }
    json.dump({**answer, "idle": idle(task["idle_seconds"])}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
