"""Watch one job until its first process has ended: deadlines, the stop sequence, what it used.

Windows has no SIGTERM. A stop is the end of the target's input where that is ours to end (a pipe of
the client's is not), GRACE to leave, then the end of the whole job. The end of the first process is
the end of the job, and so is the end of the supervisor, which holds its only handle. Nothing here
wakes up without a reason.
"""

from __future__ import annotations

import os
import threading
import time

from corral.abi import win32_process as abi
from corral.abi.signal_numbers import SIGHUP, SIGINT, SIGTERM
from corral.platforms.posix.watch import GRACE, Ending
from corral.platforms.steps import EXECUTED
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.denials.records import Denial
    from corral.denials.traffic import Traffic
    from corral.plan.model import Sample
    from corral.platforms.posix.watch import Child, Gateway, Reason, Signals, Way
    from corral.platforms.run_records import Run
    from corral.platforms.sampling import Sampler


LONGEST_WAIT = 2**31 - 1


class Watch:
    def __init__(
        self,
        child: Child,
        *,
        timeout: float | None,
        signals: Signals,
        control: int,
        sample: Sample | None,
        run: Run,
    ) -> None:
        self.child = child
        self.reason: Reason = ""
        self._run = run
        self._signals = signals
        self._started = time.monotonic()
        self._timeout = None if timeout is None else self._started + timeout
        self._kill_at: float | None = None
        self._sampler: Sampler | None = _sampler(sample) if sample else None
        self._gateway: Gateway | None = None
        self._control = Control(control) if control >= 0 else None

    def until_born(self) -> bytes:
        """It runs already: on Windows everything that could fail has been tried from outside."""
        return EXECUTED

    def open(self, gateway: Gateway | None, others: Sequence[Way]) -> None:  # noqa: ARG002
        """It has threads of its own: here it is only kept until the end. There are no others."""
        self._gateway = gateway

    def until_end(self) -> Ending:
        while not self._step():
            pass
        reaped = self.child.reap()
        denials, traffic = self._close_gateway()
        self._run.end()
        if self._sampler is not None:
            reaped = replace(reaped, tasks=max(reaped.tasks, self._sampler.tasks))
        if self._control is not None:
            self._control.close()
        return Ending(
            born=EXECUTED,
            reaped=reaped,
            reason=self.reason,
            wall=time.monotonic() - self._started,
            denials=denials,
            traffic=traffic,
        )

    def _close_gateway(self) -> tuple[tuple[Denial, ...], tuple[tuple[str, Traffic], ...]]:
        """After the target and the relay's inner end: their pipes have ended."""
        if self._gateway is None:
            return (), ()
        self._gateway.close()
        self._gateway.denials.close()
        return self._gateway.denials.rows(), tuple(self._gateway.traffic().items())

    def stop(self, reason: Reason, number: int = SIGTERM) -> None:
        """Ask it to leave; a second asking does not wait any longer, nor does a closed console."""
        if number == SIGHUP or (self._kill_at is not None and number == SIGINT):
            self.child.kill()
        self.reason = self.reason or reason
        self.child.signal(number)
        self._kill_at = self._kill_at or time.monotonic() + GRACE

    def _step(self) -> bool:
        handles = [self.child.pidfd, self._signals.fileno()]
        if self._control is not None:
            handles.append(self._control.fileno())
        ready = abi.wait_any(handles, self._patience())
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self.child.kill()
            self._kill_at = now + GRACE
        elif self._timeout is not None and now >= self._timeout:
            self._timeout = None
            self.stop("timeout")
        if self._sampler is not None and now >= self._sampler.next:
            self._look(self._sampler)
        if ready == 1:
            for number in self._signals.read():
                self.stop("signal", number)
        elif ready == 2:
            self._obey()
        return ready == 0

    def _patience(self) -> int | None:
        """Milliseconds until a deadline; None sleeps in the kernel until something happens."""
        looking = None if self._sampler is None else self._sampler.next
        deadlines = [when for when in (self._timeout, self._kill_at, looking) if when is not None]
        if not deadlines:
            return None
        left = int((min(deadlines) - time.monotonic()) * 1000) + 1
        return max(0, min(left, LONGEST_WAIT))

    def _look(self, sampler: Sampler) -> None:
        if hit := sampler.look(self.child.measure()):
            self.reason = self.reason or hit
            self.child.kill()

    def _obey(self) -> None:
        """A byte on the control channel is a signal to pass on; its end is the caller's death."""
        assert self._control is not None  # noqa: S101 - it was heard
        told = self._control.read()
        for number in told:
            self.stop("control", number)
        if not told:
            self.child.kill()


class Control:
    """The caller's pipe, which nobody can wait for: a thread reads it and sets an event."""

    def __init__(self, fd: int) -> None:
        self._lock = threading.Lock()
        self._told = b""
        self._ended = False
        self._event = abi.create_event()
        threading.Thread(target=self._listen, args=(fd,), daemon=True).start()

    def fileno(self) -> int:
        return self._event.value

    def read(self) -> bytes:
        """What was said since; nothing when the caller is gone."""
        with self._lock:
            told, self._told = self._told, b""
            abi.ResetEvent(self._event.value)
            if told and self._ended:
                abi.SetEvent(self._event.value)  # to be told the end, too
        return told

    def close(self) -> None:
        with self._lock:
            self._event.close()

    def _listen(self, fd: int) -> None:
        while not self._ended:
            try:
                chunk = os.read(fd, 16)
            except OSError:
                chunk = b""
            with self._lock:
                self._told += chunk
                self._ended = not chunk
                try:
                    abi.SetEvent(self._event.value)
                except ValueError:
                    return  # closed: nobody listens any more


def _sampler(sample: Sample) -> Sampler:
    from corral.platforms.sampling import Sampler

    return Sampler(sample)


@record
class Usage:
    """`tasks` are processes."""

    cpu: float
    memory: int
    tasks: int


def measure(root: int) -> Usage:
    """A process whose parent has ended is not found: the job would know, and has no name."""
    cpu, memory, tasks = 0.0, 0, 0
    for pid in tree(root, abi.parents()):
        try:
            with abi.open_process(pid, abi.PROCESS_QUERY_LIMITED_INFORMATION) as process:
                cpu += abi.cpu_seconds(process)
                memory += abi.committed(process)
                tasks += 1
        except OSError:
            continue  # it ended while being looked at
    return Usage(cpu=cpu, memory=memory, tasks=tasks)


def tree(root: int, parents: dict[int, int]) -> list[int]:
    """`root` and all that descend from it."""
    found = [root]
    for pid in found:
        found += [one for one, parent in parents.items() if parent == pid and one not in found]
    return found
