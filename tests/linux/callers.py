"""Run Python programs that call corral, each in its own process."""

from __future__ import annotations

import subprocess
from subprocess import PIPE

from traces import Traces, ended

PRELUDE = """
import asyncio, json, os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
import corral
trace = sys.argv[2]
python = sys.executable
def refused(act, *errors):
    try:
        act()
    except errors as error:
        return error
    raise AssertionError("it did not fail")
"""


class Caller:
    """Run Python programs as a user. Each program calls corral and passes the `trace` argument to
    its targets, so that the test can find leftover processes.
    """

    def __init__(self, user, prelude: str = "") -> None:
        self.user = user
        self.prelude = PRELUDE + prelude
        self.traces = Traces()

    def start(self, code: str, **options) -> subprocess.Popen:
        argv = [self.user.python, "-W", "error", "-c", self.prelude + code]
        argv += [str(self.user.package), self.traces.argument]
        return self.user.popen(argv, **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **options})

    def run(self, code: str) -> str:
        """Run a program and return its stdout. Check that it printed nothing to stderr, not even a
        leak warning, and that no processes are left.
        """
        with self.start(code) as process:
            try:
                out, err = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert (process.returncode, err) == (0, b""), err.decode()
        left = self.traces.left_in_the_end()
        assert left == {}, left
        return out.decode()

    def check_fork_keeps_nothing_alive(self, code: str, number: int, in_fork: str = "pass") -> None:
        """Check that a forked child of the caller does not keep other processes alive.

        `code` starts processes and stores their pids in `pids`. The caller then forks a child,
        which inherits all of its descriptors and runs `in_fork`. When the signal `number` ends the
        caller, the processes in `pids` must end, although the child still runs.
        """
        code += (
            "child = os.fork()\n"
            "if child == 0:\n"
            f"    {in_fork}\n"
            "    print('forked', flush=True)\n"
            "    sys.stdin.read(); os._exit(0)\n"
            "print(child, *pids, flush=True)\n"
            "signal.pause()\n"
        )
        with self.start(code, stderr=None) as process:
            lines = sorted(process.stdout.readline() for _ in range(2))
            assert lines[1] == b"forked\n", lines
            child, *pids = map(int, lines[0].split())
            # Sanity check: all processes are alive before the signal.
            assert not any(ended(pid, 0) for pid in pids)
            process.send_signal(number)
            assert all(map(ended, pids))
            assert not ended(child, 0)
            process.stdin.close()
