"""Measure launches from a warm process; `start.py` runs this where corral was installed.

It reads its task as JSON from stdin, and prints its samples as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

import measure
import peers
import processes

import corral


def launch_and_wait(*, timed_wait: bool = True) -> float:
    """Return milliseconds until `launch` returns, and with `timed_wait` until the report is there.

    When `launch` returns, the target has been executed.
    """
    started = time.perf_counter_ns()
    sandbox = corral.launch(
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
    """Return memory and wake-ups of every process of one idle server."""
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
    contenders = {
        "corral.launch + wait": launch_and_wait,
        "corral.launch alone": lambda: launch_and_wait(timed_wait=False),
    }
    environment = dict(os.environ)
    for name, argv in task["commands"].items():
        contenders[name] = lambda argv=argv: measure.spawn(argv, environment)
    for name in task["in_process"]:
        contenders[name] = in_process(name)
    found = measure.interleave(contenders, task["rounds"])
    samples = {name: stats.samples for name, stats in found.items()}
    json.dump({"samples": samples, "idle": idle(task["idle_seconds"])}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
