"""Answer the system calls that a seccomp filter passes to the supervisor.

The supervisor runs this service even before the target's exec, because corral makes such calls,
too, to test the filter. The table `notified_calls.CALLS` says which decider answers each call, and
which answers are permitted. A call is denied if it is not in the table, if this run does not have
its decider, or if the decider's answer is not permitted.
"""

from __future__ import annotations

import os
import select
import sys
import time

from corral.abi import linux_notifications as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from corral.abi.linux_notifications import Notification
    from corral.platforms.linux.descriptor_channel import DescriptorChannel
    from corral.platforms.linux.notified_calls import Decision, Given

    class Decider(Protocol):
        """Answers a call that the filter passes to the supervisor. The calling thread waits.

        After each answer, `pause_seconds` returns how long the next callers have to wait.
        """

        def decide(self, call: str, request: Notification) -> Decision: ...
        def pause_seconds(self) -> float: ...


EPERM = 1
BATCH = 16
TURN_SECONDS = 0.05
"""After this time the supervisor checks its deadlines before it answers another call, because a
target can make each answer slow: a long mprotect in another thread delays each read of the target's
memory.
"""
POLLIN = 1


def judge(
    request: Notification, names: Mapping[int, str], deciders: Mapping[str, Decider]
) -> Decision:
    """Return the decider's answer to a call.

    Return DENIED if the table CALLS does not permit this answer, or if the call has no decider.
    """
    from corral.platforms.linux.notified_calls import CALLS, DENIED, name_call

    call = name_call(names.get(request.number, ""), request.arguments)
    for row in CALLS.get(call, ()):
        if row.decider in deciders:
            decision = deciders[row.decider].decide(call, request)
            return decision if decision.verdict in row.may else DENIED
    return DENIED


def _send(request: Notification, decision: Decision | None) -> bool:
    """Answer a call, or deny it if `decision` is None. Return whether the caller got the answer."""
    goes_on = decision is not None and decision.verdict == "continue"
    flags = abi.SECCOMP_USER_NOTIF_FLAG_CONTINUE if goes_on else 0
    error = 0 if goes_on else decision.error if decision is not None else EPERM
    try:
        if decision is not None and decision.given is not None:
            try:
                if _give(request, decision.given):
                    return True
            except OSError as failure:
                error = failure.errno or EPERM  # for example, the caller has no free descriptor
        value = decision.value if decision is not None else 0
        abi.send(request.listener, request.id, value=value, error=error, flags=flags)
    except OSError:
        return False
    return True


def _give(request: Notification, given: Given) -> bool:
    """Give the caller a descriptor. Return whether this also answered the call.

    Adding a descriptor answers the call with the new number. Replacing one does not answer it.
    """
    try:
        if given.number < 0:
            abi.add_descriptor(request, given.fd, flags=given.flags)
        else:
            abi.replace_descriptor(request, given.fd, flags=given.flags, number=given.number)
    finally:
        os.close(given.fd)
    return given.number < 0


def _call_names() -> dict[int, str]:
    from corral.abi.linux_syscalls import TABLES

    return {number: name for name, number in TABLES[os.uname().machine].items()}


@record
class Deciders:
    """The deciders that answer calls even before the target's exec.

    `hit` lists the limits that the target has reached. The deciders add to this list.
    """

    by_name: dict[str, Decider]
    hit: list[str]


class Notifications:
    """Answers the calls that the filter passes to the supervisor.

    `exec_pipe` shows whether the target's exec has happened. Calls before the exec are corral's
    own, such as the tests in `verify`, and must not be reported as denials. So the deciders that
    report denials answer only calls after the exec. `decide_with` sets these deciders.
    """

    def __init__(
        self,
        channel: DescriptorChannel,
        exec_pipe: int,
        deciders: Deciders,
        *,
        killable: bool = False,
    ) -> None:
        """Open the service.

        `killable` is True if only a fatal signal can interrupt a call that the supervisor has
        received. In this case the supervisor receives calls even during a pause, and decides them
        later. If it did not receive them, any signal could make a waiting fork fail with EINTR,
        which programs do not expect.
        """
        self._channel = channel
        self._killable = killable
        self._waiting: list[Notification] = []
        self._listener = -1
        self._awaits = True
        self._deciders = deciders.by_name
        self._names: dict[int, str] = {}
        self._epoll = select.epoll()
        self._epoll.register(channel.outer, POLLIN)
        self._resume_at: float | None = None
        self._exec = select.poll()
        self._exec.register(exec_pipe, POLLIN)
        self._executed = False
        self._turn_ends = 0.0
        self._make_deciders: Callable[[], dict[str, Decider]] = dict

    def decide_with(self, make: Callable[[], dict[str, Decider]]) -> None:
        """Set the function that makes more deciders.

        It is called at the target's first notified call after its exec.
        """
        self._make_deciders = make

    def fileno(self) -> int:
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        return self._resume_at

    def run_ready(self) -> None:
        self._turn_ends = time.monotonic() + TURN_SECONDS
        self._resume()
        if self._awaits:
            self._receive_listener()
        for fd, events in self._epoll.poll(0):
            if fd != self._listener:
                continue
            if events & POLLIN:
                self._answer_some()
            else:
                self._close_listener()  # no process uses this filter any more

    def close(self) -> None:
        self._close_listener()
        self._epoll.close()

    def _receive_listener(self) -> None:
        """Take the listener from the channel, if it has arrived.

        The listener is the descriptor from which the supervisor receives the calls. Look for it
        even if the channel has no new message, because it may have arrived with an earlier message.
        """
        for fd in self._channel.take("listener"):
            self._listener = fd
            if self._deciders:
                self._names = _call_names()
            abi.wake_synchronously(fd)
            self._epoll.register(fd, POLLIN)
        if not self._channel.open:
            self._awaits = False
            self._epoll.unregister(self._channel.outer)

    def _close_listener(self) -> None:
        if self._listener >= 0:
            if self._resume_at is None or self._killable:
                self._epoll.unregister(self._listener)
            os.close(self._listener)
            self._listener = -1

    def _answer_some(self) -> None:
        for _ in range(BATCH):
            if not self._receive() or not self._has_call():
                return

    def _has_call(self) -> bool:
        return any(fd == self._listener and on & POLLIN for fd, on in self._epoll.poll(0))

    def _receive(self) -> bool:
        """Receive a call. Answer it now, or after the pause if there is one.

        Return whether to receive another call.
        """
        try:
            request = abi.receive(self._listener)
        except OSError:
            return False  # no process waits for the answer: the caller was killed or interrupted
        if self._resume_at is not None:
            self._waiting.append(request)
            return True
        return self._answer(request)

    def _answer(self, request: Notification) -> bool:
        if not self._executed and self._exec.poll(0):
            self._names = _call_names()
            try:
                self._deciders.update(self._make_deciders())
                self._executed = True
            except (OSError, ImportError):
                # The usual reason is too many open files. Until these deciders can be made, calls
                # that have no other decider are denied.
                pass
        decision = judge(request, self._names, self._deciders) if self._deciders else None
        if decision is not None and decision.verdict == "answer_later":
            return not self._pause() and time.monotonic() < self._turn_ends
        if not _send(request, decision):
            decision = None  # the caller was killed or interrupted, so the call did nothing
        if decision is not None and decision.then is not None:
            decision.then()
        return not self._pause() and time.monotonic() < self._turn_ends

    def _pause(self) -> bool:
        seconds = max((one.pause_seconds() for one in self._deciders.values()), default=0.0)
        if not seconds:
            return False
        self._resume_at = time.monotonic() + seconds
        if not self._killable:
            self._epoll.unregister(self._listener)
        return True

    def _resume(self) -> None:
        if self._resume_at is not None and time.monotonic() >= self._resume_at:
            self._resume_at = None
            if self._listener >= 0 and not self._killable:
                self._epoll.register(self._listener, POLLIN)
            while self._waiting and self._answer(self._waiting.pop(0)):
                pass
            if self._waiting and self._resume_at is None:
                self._resume_at = self._turn_ends  # the other calls are decided in the next turn
