"""Probe what seccomp filters can do on this kernel.

A filter should be able to deny calls, to allow exec only with a cookie (a secret number in the
call's registers), and to pass a call to a listener, which allows or denies it.
"""

import os
import select
import sys
import time
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.abi import linux_notifications
from corral.platforms.linux import notifications
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms import seccomp, seccomp_rules, task_limit
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

HINT = "a kernel with CONFIG_SECCOMP_FILTER"
ALREADY_DENIED = "a sandbox around corral denies TIOCSTI already"


@probe.probe(
    "seccomp", "Seccomp", ((ALREADY_DENIED, "start corral outside this sandbox"),), hint=HINT
)
def deny_call() -> str:
    if seccomp.is_filtered():
        raise RuntimeError(ALREADY_DENIED)
    _load(subprocess=True)
    if not seccomp.is_filtered():
        raise RuntimeError("the filter did not deny TIOCSTI")
    os.getppid()
    return "the filter denies TIOCSTI, which the kernel answered before"


@probe.probe("exec_cookie", "Subprocess blocking", hint=HINT, word="supported")
def exec_with_cookie() -> str:
    """Check that exec works with the cookie and fails without it.

    The cookie is in registers that exec does not use. So the kernel must ignore these registers,
    and the filter must be able to read them.
    """
    cookie = (1 << 63, 2, 3)
    pid = os.fork()
    if pid == 0:
        _load(subprocess=False, cookie=cookie)
        try:
            disposable.refused(lambda: abi.execve("/bin/true", ("true",), (), (1, 2, 3)))
            abi.execve("/bin/true", ("true",), (), cookie)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("exec with the cookie failed, or exec without it succeeded")
    return "exec is denied without the cookie, and allowed with it"


@probe.probe(
    "start_notices",
    "Denied process starts",
    hint="a newer kernel (Linux 5.0 or later), and no listener of an outer container runtime",
    word="reported",
)
def report_start() -> str:
    """Check that a filter passes a fork to the listener, and that the listener can deny it."""
    disposable.fork_once()
    channel = DescriptorChannel()
    pid = os.fork()
    if pid == 0:
        try:
            channel.leave()
            _load_with_listener(channel, subprocess=False, notices=True)
            disposable.refused(os.fork, by=PermissionError)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(channel.inner)
    poll = select.poll()
    poll.register(channel.outer, select.POLLIN)
    poll.poll()
    for listener in channel.take("listener"):
        request = linux_notifications.receive(listener)
        linux_notifications.send(listener, request.id, error=seccomp.EPERM)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("cannot make a listener: an outer filter has one, or forbids listeners")
    return "the listener denies a fork under a filter; without the filter it succeeds"


@probe.probe(
    "task_count",
    "Process limit by notification",
    hint="a newer kernel (Linux 5.19 or later), and no seccomp listener of an outer container"
    " runtime",
    word="supported",
)
def limit_tasks() -> str:
    """Check a limit of two processes: a second child may start only after the first has ended."""
    channel = DescriptorChannel()
    deciders = notifications.Deciders(by_name={}, hit=[])
    deciders.by_name["task_count"] = task_limit.TaskCount(
        os.getpid(), 2, threads_only=False, hit=deciders.hit
    )
    pid = os.fork()
    if pid == 0:
        try:
            channel.leave()
            killable = abi.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
            _load_with_listener(channel, subprocess=True, limit_tasks=True, flags=killable)
            _fork_twice()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(channel.inner)
    service = notifications.Notifications(channel, os.pipe()[0], deciders, killable=True)
    _serve_until_end(service, pid)
    if os.waitpid(pid, 0)[1] or not deciders.hit:
        raise RuntimeError(
            "cannot count process starts: an outer filter has a listener, or forbids listeners"
        )
    return "a second child is refused, and allowed once the first has ended"


def _fork_twice() -> None:
    end_read, end_write = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(end_write)
        os.read(end_read, 1)
        os._exit(0)
    disposable.refused(disposable.fork_once, by=BlockingIOError)
    os.close(end_write)
    os.waitpid(first, 0)
    disposable.fork_once()


def _serve_until_end(service: notifications.Notifications, pid: int) -> None:
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(service.fileno(), select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        resume_at = service.deadline()
        pause = None if resume_at is None else max(0.0, resume_at - time.monotonic()) * 1000
        if any(fd == ended for fd, _ in poll.poll(pause)):
            return
        service.run_ready()


def _load_with_listener(channel: DescriptorChannel, *, flags: int = 0, **asked: bool) -> None:
    listener = _load(flags=abi.SECCOMP_FILTER_FLAG_NEW_LISTENER | flags, cookie=None, **asked)
    channel.send("listener", [listener])


def _load(
    *, flags: int = 0, cookie: tuple[int, int, int] | None = None, subprocess: bool, **asked: bool
) -> int:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    rules = seccomp_rules.target_rules(
        subprocess=subprocess, unix_sockets=False, namespaces=True, cookie=cookie, **asked
    )
    return abi.seccomp_set_filter(seccomp_rules.compile_filter(os.uname().machine, rules), flags)
