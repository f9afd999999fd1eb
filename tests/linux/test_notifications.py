"""Test the part of the supervisor that receives the kernel's notifications about system calls. A
real seccomp filter, in a child process, causes these notifications.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import pathlib
import select
import signal
import time

import pytest
from traces import PATIENCE

from corral.abi import linux as abi
from corral.abi.linux_notifications import Notification
from corral.abi.linux_syscalls import TABLES
from corral.plan.model import Results
from corral.platforms.linux import notifications as notifications_module
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms.seccomp import Seccomp, load_filters
from corral.platforms.linux.notifications import TURN_SECONDS, Deciders, Notifications
from corral.platforms.linux.notified_calls import Decision
from corral.platforms.linux.path_watch import MAX_CHARACTERS, PathWatch

FORKS = 8


def try_to_fork(channel: DescriptorChannel, step: Seccomp) -> None:
    """Install the target's seccomp filter in this process, and try to fork. Exit with 0 if the fork
    succeeds, and otherwise with its errno.
    """
    try:
        results = Results()
        results.add(channel)
        abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
        step.apply(results)
        os.fork()
    except OSError as error:
        os._exit(error.errno)
    finally:
        os._exit(0)


def test_a_listener_that_arrives_while_other_descriptors_are_taken_is_kept():
    """Look for another kind of descriptor in the channel when the listener has just arrived, as
    sampling may do during the start. The channel then receives the listener, too, and must store it
    until `Notifications` takes it.
    """
    channel = DescriptorChannel()
    reading, writing = os.pipe()
    step = Seccomp(machine=os.uname().machine, subprocess=False, unix_sockets=False, notices=True)
    load_filters([step])
    pid = os.fork()
    if pid == 0:
        try_to_fork(channel, step)
    pidfd = os.pidfd_open(pid)
    notifications = Notifications(channel, reading, Deciders(by_name={}, hit=[]))
    poll = select.poll()
    poll.register(channel.outer, select.POLLIN)
    assert poll.poll(PATIENCE * 1000)
    assert channel.take("sysv_lists") == []
    notifications.run_ready()
    poll.register(notifications.fileno(), select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while (ready := poll.poll(PATIENCE * 1000)) and (pidfd, select.POLLIN) not in ready:
        notifications.run_ready()
    os.kill(pid, signal.SIGKILL)  # if no answer has ended the child's call, end the child
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    notifications.close()
    for fd in (pidfd, reading, writing, channel.inner):
        os.close(fd)
    channel.release()


def test_the_total_size_of_watched_paths_is_bounded():
    """Pass many long paths to `PathWatch`. It must remember only some of them."""
    channel = DescriptorChannel()
    watch = PathWatch(channel)
    text = ctypes.create_string_buffer(1000)
    request = Notification(
        id=1, pid=os.getpid(), number=0, arguments=(ctypes.addressof(text), 0, 0, 0, 0, 0)
    )
    for number in range(6000):
        text.value = b"/%0998d" % number
        assert watch.decide("stat", request).verdict == "continue"
    assert watch.calls == 6000
    assert 4000 < len(watch.seen) <= MAX_CHARACTERS // 999
    os.close(channel.inner)
    channel.release()


class Clock:
    """A fake clock for the listener, so that the result does not depend on the machine's load."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class SlowDecider:
    """A fake decider that is slow, as if the caller's memory were hard to read. Each decision takes
    longer than TURN_SECONDS. After this time the supervisor has to check its deadlines.
    """

    def __init__(self, clock: Clock, seconds: float, pause: float = 0.0) -> None:
        self.clock, self.seconds, self.pause, self.decided = clock, seconds, pause, 0

    def pause_seconds(self) -> float:
        seconds, self.pause = self.pause, 0.0
        return seconds

    def decide(self, _call: str, _request: Notification) -> Decision:
        self.decided += 1
        self.clock.now += self.seconds
        return Decision(verdict="deny")


def fork_from_threads(channel: DescriptorChannel, step: Seccomp) -> None:
    """Fork from eight threads at once. They fork by ctypes, because it lets other threads run while
    one waits in its call.
    """
    libc, number = ctypes.CDLL(None), TABLES[os.uname().machine]["clone"]
    results = Results()
    results.add(channel)
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    step.apply(results)
    for _ in range(FORKS):
        _thread.start_new_thread(libc.syscall, (number, int(signal.SIGCHLD), 0, 0, 0, 0))
    time.sleep(PATIENCE)


def wait_for_forks(pid: int) -> None:
    """Wait until all threads of `fork_from_threads` are inside their `clone` calls."""
    number = f"{TABLES[os.uname().machine]['clone']} "
    deadline = time.monotonic() + PATIENCE
    calls: list[str] = []
    while sum(call.startswith(number) for call in calls) < FORKS:
        assert time.monotonic() < deadline, calls
        time.sleep(0.01)
        threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
        calls = [(thread / "syscall").read_text() for thread in threads]


@pytest.mark.parametrize("killable", [False, True])
def test_the_supervisor_checks_its_deadlines_between_slow_calls_of_the_target(
    killable, monkeypatch
):
    """Make eight system calls wait for a decision. If each decision is slow, `run_ready` must
    return after one call, so that the supervisor can check its deadlines. Sanity check: if
    decisions are fast, it decides all eight.

    With `killable` the decider first pauses, and the supervisor receives the calls during the
    pause. This must not change the result.
    """
    channel = DescriptorChannel()
    reading, writing = os.pipe()
    step = Seccomp(machine=os.uname().machine, subprocess=False, unix_sockets=False, notices=True)
    load_filters([step])
    pid = os.fork()
    if pid == 0:
        fork_from_threads(channel, step)
    clock = Clock()
    monkeypatch.setattr(notifications_module, "time", clock)
    slow = SlowDecider(clock, 2 * TURN_SECONDS, pause=0.2 if killable else 0.0)
    deciders = Deciders(by_name={"denied_starts": slow}, hit=[])
    notifications = Notifications(channel, reading, deciders, killable=killable)
    try:
        wait_for_forks(pid)
        turns = []
        while slow.decided < 4:
            before = slow.decided
            clock.now += TURN_SECONDS
            notifications.run_ready()
            turns.append(slow.decided - before)
        assert max(turns) == 1
        slow.seconds = 0.0
        notifications.run_ready()
        assert slow.decided == FORKS
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        notifications.close()
        for fd in (reading, writing, channel.inner):
            os.close(fd)
        channel.release()
