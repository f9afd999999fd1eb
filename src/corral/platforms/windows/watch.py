"""Watch one job until its first process has ended.

Windows has no SIGTERM. To stop a target, corral closes the target's input, waits, and then kills
the whole job. It cannot close the input if the client writes to the target directly. The job also
ends with its first process, and with the supervisor, which has the only handle to it.

Ctrl-C, Ctrl-Break and the console's close event reach only corral, because the target does not
share corral's console.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from corral.abi import win32_process as abi
from corral.abi.signal_numbers import SIGHUP, SIGINT, SIGTERM
from corral.denials.records import Denial, Denials
from corral.network.traffic import Traffic
from corral.plan.model import Sample
from corral.platforms import contract
from corral.platforms.contract import Ending, Usage
from corral.platforms.deadlines import Deadlines
from corral.platforms.run_records import Run
from corral.platforms.steps import EXECUTED

NUMBERS = {
    abi.CTRL_C_EVENT: SIGINT,
    abi.CTRL_BREAK_EVENT: SIGTERM,
    abi.CTRL_CLOSE_EVENT: SIGHUP,
    abi.CTRL_LOGOFF_EVENT: SIGHUP,
    abi.CTRL_SHUTDOWN_EVENT: SIGHUP,
}


class Watch:
    def __init__(
        self,
        child: contract.Child,
        *,
        timeout: float | None,
        signals: contract.Signals,
        control: int,
        sample: Sample | None,
        run: Run,
    ) -> None:
        self.child = child
        self.deadlines = Deadlines(child, timeout=timeout, sample=sample)
        self._run = run
        self._signals = signals
        self._gateway: contract.Gateway | None = None
        self._others: tuple[contract.Service, ...] = ()
        self._denials: Denials | None = None
        self._control = Control(control) if control >= 0 else None

    @property
    def reason(self) -> contract.StopReason:
        return self.deadlines.reason

    def until_exec(self) -> bytes:
        """Return at once, because on Windows all steps are verified before the target runs."""
        return EXECUTED

    def open(
        self,
        denials: Denials,
        gateway: contract.Gateway | None,
        others: Sequence[contract.Service],
    ) -> None:
        """Keep the services, to close them at the end. On Windows each service has its own thread,
        and needs no other call.
        """
        self._denials = denials
        self._gateway = gateway
        self._others = tuple(others)

    def until_end(self, preload: Callable[[], None] | None = None) -> Ending:
        if preload is not None:
            preload()
        if self._denials is not None:
            self._denials.load_hide()
        while not self._step():
            pass
        reaped = self.child.reap()
        denials, traffic = self._close_gateway()
        self._run.end()
        if self._control is not None:
            self._control.close()
        return Ending(
            reaped=self.deadlines.account(reaped),
            reason=self.reason,
            wall=self.deadlines.elapsed(),
            denials=denials,
            traffic=traffic,
        )

    def stop(self, reason: contract.StopReason, number: int) -> None:
        """Ask the target to stop. If the console closes, kill the target, because Windows then ends
        corral too.
        """
        if number == SIGHUP:
            self.child.kill()
        self.deadlines.stop(reason, number)

    def _close_gateway(self) -> tuple[tuple[Denial, ...], tuple[tuple[str, Traffic], ...]]:
        """Close the services, and return the denials and the traffic of the run. The target and the
        relay's inner end must have closed their pipes.
        """
        for service in self._others:
            service.close()
        if self._gateway is not None:
            self._gateway.close()
        traffic = tuple(self._gateway.traffic().items()) if self._gateway else ()
        if self._denials is None:
            return (), traffic
        self._denials.close()
        return self._denials.rows(), traffic

    def _step(self) -> bool:
        handles = [self.child.pidfd, self._signals.fileno()]
        if self._control is not None:
            handles.append(self._control.fileno())
        ready = abi.wait_any(handles, self.deadlines.wait_ms())
        self.deadlines.run_due()
        self.deadlines.sample_if_due()
        if ready == 1:
            for number in self._signals.read():
                self.stop("signal", number)
        elif ready == 2 and self._control is not None:
            numbers = self._control.read()
            for number in numbers:
                self.stop("control", number)
            if not numbers:
                self.child.kill()  # the program that started corral has ended
        return ready == 0


class Signals:
    """Receives console events as signal numbers. `fileno` returns the handle of an event that is
    set as long as there are unread numbers.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._wanted = frozenset(numbers)
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        self._event = abi.create_event()
        self._handler = abi.on_console_event(self._handle)

    def fileno(self) -> int:
        return self._event.value

    def read(self) -> list[int]:
        with self._lock:
            found, self._waiting = self._waiting, []
            abi.ResetEvent(self._event.value)
        return found

    def close(self) -> None:
        abi.ignore_console_events(self._handler)
        self._event.close()

    def _handle(self, event: int) -> bool:
        number = NUMBERS.get(event, SIGTERM)
        if number not in self._wanted:
            return True  # corral was started with this signal ignored
        with self._lock:
            self._waiting.append(number)
            abi.SetEvent(self._event.value)
        if number == SIGHUP:
            # Windows ends corral as soon as this handler returns, or after five seconds. Wait here,
            # so that the main thread has the full five seconds.
            threading.Event().wait()
        return True


class Control:
    """Receives signal numbers, one byte each, through a pipe from the program that started corral.
    Windows cannot wait for a pipe, so a thread reads the pipe and sets an event.
    """

    def __init__(self, fd: int) -> None:
        self._lock = threading.Lock()
        self._received = b""
        self._ended = False
        self._event = abi.create_event()
        threading.Thread(target=self._receive, args=(fd,), daemon=True).start()

    def fileno(self) -> int:
        return self._event.value

    def read(self) -> bytes:
        """Return the bytes read since the last call, or b"" if the other side has closed the
        pipe.
        """
        with self._lock:
            received, self._received = self._received, b""
            abi.ResetEvent(self._event.value)
            if received and self._ended:
                abi.SetEvent(self._event.value)  # so that the next `read` returns b""
        return received

    def close(self) -> None:
        with self._lock:
            self._event.close()

    def _receive(self, fd: int) -> None:
        while not self._ended:
            try:
                chunk = os.read(fd, 16)
            except OSError:
                chunk = b""
            with self._lock:
                self._received += chunk
                self._ended = not chunk
                try:
                    abi.SetEvent(self._event.value)
                except ValueError:
                    return  # the run has ended, and the event is closed


def measure(root: int) -> Usage:
    """Measure a process and its descendants. The job's own accounting cannot be read here, because
    only the supervisor has a handle to the job.
    """
    cpu, memory, tasks = 0.0, 0, 0
    for pid in tree(root, abi.parents()):
        try:
            with abi.open_process(pid, abi.PROCESS_QUERY_LIMITED_INFORMATION) as process:
                cpu += abi.cpu_seconds(process)
                memory += abi.committed_bytes(process)
                tasks += 1
        except OSError:
            continue  # the process has ended
    return Usage(cpu=cpu, memory=memory, tasks=tasks)


def tree(root: int, parents: dict[int, int]) -> list[int]:
    found = [root]
    for pid in found:
        found += [one for one, parent in parents.items() if parent == pid and one not in found]
    return found
