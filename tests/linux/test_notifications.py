"""Test the listener of notified calls with a real filter in a child process."""

from __future__ import annotations

import ctypes
import os
import select
import signal

from traces import PATIENCE

from corral.abi import linux as abi
from corral.abi.linux_notifications import Notification
from corral.plan.model import Results
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms.seccomp import Seccomp, load_filters
from corral.platforms.linux.notifications import Deciders, Notifications
from corral.platforms.linux.path_watch import MAX_CHARACTERS, PathWatch


def try_to_fork(channel: DescriptorChannel, step: Seccomp) -> None:
    """Exit with the errno of fork under the target's filter."""
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


def test_a_listener_is_used_although_another_kind_was_taken_first():
    """During the start, sampling may take the list of System V objects before the listener has arrived."""
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
    os.kill(pid, signal.SIGKILL)  # in case the call was not answered
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    notifications.close()
    for fd in (pidfd, reading, writing, channel.inner):
        os.close(fd)
    channel.release()


def test_the_total_size_of_watched_paths_is_bounded():
    """A target may ask for any number of long paths."""
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
