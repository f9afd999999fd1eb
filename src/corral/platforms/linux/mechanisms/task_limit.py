"""Limit processes and threads where no cgroup and no user namespace counts them.

The kernel passes every clone, fork and vfork to the supervisor, which counts the tree and answers
EAGAIN at the limit. Below the limit the supervisor lets the call continue. This is safe, because
the decision depends only on registers and counts, not on memory that the target could change
afterwards.

The supervisor does not count the tree for every call. It counts again when it has allowed so many
calls that the tree may have reached the limit.
"""

from __future__ import annotations

import os
import sys
import time

from corral.abi import linux as abi
from corral.platforms.linux import init, notifications, usage
from corral.platforms.linux.notified_calls import DENIED, THREAD, Decision
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.abi.linux_notifications import Notification
    from corral.plan.model import Results, Stage
    from corral.policy.model import Policy

EAGAIN = 11
IN_CALL = (b"R", b"D")
"""The states of a thread that may still be inside its clone: running, and uninterruptible sleep. A
thread in ordinary sleep is no longer inside it.
"""
MAX_CLONE_NANOSECONDS = 50_000_000
"""When the calling thread has used this much processor time, its clone has certainly ended. Wall
time would not show this, because a busy host can stop a thread for any length of time in the middle
of a call.
"""
PAUSE_FACTOR = 9
"""After a count, the supervisor receives no calls for this many times as long as the count took, so
that it spends at most a tenth of its time on counting.
"""


@record
class TaskLimit:
    """Limits processes and threads.

    With `threads_only`, new processes are denied, and only threads are counted.
    """

    name = "task_limit"
    limit: int
    threads_only: bool
    stage: Stage = "after_clone"
    verify = unverified

    def describe(self) -> str:
        return f"at most {self.limit} processes and threads, counted whenever one starts"

    def apply(self, results: Results) -> None:
        deciders = results.get(notifications.Deciders)
        deciders.by_name["task_count"] = TaskCount(
            results.get(init.InitProcess).pid,
            self.limit,
            threads_only=self.threads_only,
            hit=deciders.hit,
        )


def plan(policy: Policy) -> TaskLimit:
    return TaskLimit(limit=policy.limits.pids or 0, threads_only=not policy.subprocess)


class TaskCount:
    """Allows the target's clone, fork and vfork calls until the tree has reached the limit.

    `root` is the pid of init, at the top of the tree.
    """

    def __init__(self, root: int, limit: int, *, threads_only: bool, hit: list[str]) -> None:
        self._root = root
        self._limit = limit
        self._threads_only = threads_only
        self._hit = hit
        self._room = 0
        self._allowed: dict[int, int | None] = {}
        self._pause = 0.0

    def pause_seconds(self) -> float:
        seconds, self._pause = self._pause, 0.0
        return seconds

    def decide(self, call: str, request: Notification) -> Decision:
        if self._threads_only and call != THREAD:
            return DENIED
        # The calling thread makes a new call, so its last clone must have ended.
        self._allowed.pop(request.pid, None)
        if self._room <= 0:
            self._count()
        if self._room <= 0:
            self._hit[:] = ["pids"]
            return Decision(verdict="deny", error=EAGAIN)
        self._room -= 1
        self._allowed[request.pid] = None
        return Decision(verdict="continue")

    def _count(self) -> None:
        """Set `_room`, the number of tasks that may still start.

        First count the clones that were allowed but have not ended, and then the tree. A clone that
        ends between these two counts is counted twice. In the opposite order it might not be
        counted at all. No new clone can begin meanwhile, because each one has to wait for the
        supervisor's answer.
        """
        started = time.thread_time()
        self._allowed = {
            thread: spent
            for thread, before in self._allowed.items()
            if (spent := _time_in_clone(thread, before)) is not None
        }
        self._room = self._limit - len(self._allowed) - usage.count_tasks(self._root)
        self._pause = PAUSE_FACTOR * (time.thread_time() - started)


def _time_in_clone(thread: int, before: int | None) -> int | None:
    """Return the processor time, in nanoseconds, that a thread had used when its clone was first
    counted. Return None if the thread can no longer be in its clone.

    `before` is what this function returned for the thread at the last count, or None at the first
    count.
    """
    try:
        state = abi.read_file(f"/proc/{thread}/stat").rpartition(b") ")[2][:1]
        spent = int(abi.read_file(f"/proc/{thread}/schedstat").split()[0])
    except FileNotFoundError:
        # If `stat` exists, only `schedstat` is missing, because this kernel does not have it. The
        # thread may then still be in its clone. Otherwise the thread has ended.
        return before or 0 if os.path.exists(f"/proc/{thread}/stat") else None
    except ProcessLookupError:
        return None
    if state not in IN_CALL or (before is not None and spent - before > MAX_CLONE_NANOSECONDS):
        return None
    return spent if before is None else before
