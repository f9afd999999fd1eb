"""Start a target from its plan, and control its tree from the supervisor."""

from __future__ import annotations

from contextlib import suppress

from corral.abi import win32_process as abi
from corral.abi.signal_numbers import SIGKILL
from corral.denials.records import Denials
from corral.plan.model import Covers, Plan, Results
from corral.platforms import contract
from corral.platforms.contract import Reaped, Usage
from corral.platforms.steps import StepFailed, attempt, verify
from corral.platforms.windows.mechanisms.job import KILLED, LimitedJob
from corral.platforms.windows.mechanisms.process_creation import Creation, Launch
from corral.platforms.windows.relay.start import Shim
from corral.platforms.windows.streams import Streams


class Child:
    """A started target. `pidfd` is the handle of its first process."""

    exec_pipe = -1
    services: tuple[contract.Service, ...] = ()

    def __init__(self, results: Results) -> None:
        process = results.get(abi.Process)
        self.pid = process.pid
        self.pidfd = process.handle.value
        self._results = results
        self._job = results.get(LimitedJob)
        self._streams = results.get(Streams)
        self._killed = False

    def target(self) -> int:
        return self.pid

    def signal(self, number: int) -> None:
        """Kill the tree if `number` is SIGKILL. For other numbers close the target's input, because
        Windows cannot send signals.
        """
        if number == SIGKILL:
            self.kill()
        else:
            self._streams.end_input()

    def kill(self) -> None:
        self._killed = True
        self._job.terminate()

    def abandon(self) -> None:
        """Close every handle, so that a probe sees what happens when the supervisor dies."""
        self._results.release()

    def measure(self, **_: object) -> Usage:
        """Return the usage that the job has counted. The memory is the peak so far."""
        return Usage(cpu=self._job.cpu(), memory=self._job.peak(), tasks=self._job.active())

    def relay_pipes(self) -> tuple[int, int]:
        """Return the pipes from and to the relay's inner end. The caller has to close them."""
        return self._results.get(Shim).take_pipes()

    def preload(self) -> None:
        """Do nothing, because on Windows a run has already imported all of its modules."""

    def report_to(self, denials: Denials, plan: Plan) -> None:
        """Do nothing, because on Windows only the relay reports denials, and `open_services` gives
        `denials` to the relay.
        """

    def open_services(self, plan: Plan, denials: Denials) -> contract.NetworkServices:
        if not plan.allow:
            return None, ()
        from corral.platforms.windows.relay.outside import open_relay

        return open_relay(plan, self.relay_pipes(), denials), ()

    def watch_covers(self, covers: Covers) -> contract.Service:
        raise NotImplementedError  # on Windows files are hidden by access lists, not by mounts

    def reap(self) -> Reaped:
        """End the processes that outlived the first one. Return the usage of the whole job, the
        limits that it reached, and the exit code of the first process as a POSIX wait status. The
        status is None if corral killed the target.
        """
        code = abi.exit_code(self.pidfd)
        self._job.end()
        self._streams.drain()
        reaped = Reaped(
            status=None if self._killed and code == KILLED else code << 8,
            cpu=self._job.cpu(),
            memory=self._job.peak(),
            hit=tuple(sorted(self._job.reached_limits())),
        )
        self._results.release()
        return reaped


def spawn(plan: Plan, stdio: contract.Stdio) -> Child:
    """Start the target: apply all steps in the order of the plan, verify them in the suspended
    process, and resume it. On failure raise StepFailed with the failed step, and leave nothing
    behind.
    """
    results = Results()
    results.add(Launch(plan=plan, stdio=stdio))
    try:
        for step in plan.steps:
            attempt(step, step.apply, results)
        verify(plan.steps, results)
        try:
            results.get(abi.Process).resume()
        except OSError as error:
            raise StepFailed(Creation.name, error) from error
        return Child(results)
    except BaseException:
        _kill(results)
        results.release()
        raise


def _kill(results: Results) -> None:
    """Kill the job, and the process itself too, in case it is not in the job yet."""
    process, job = results.find(abi.Process), results.find(LimitedJob)
    if process is not None:
        with suppress(OSError):  # the process may have ended
            abi.TerminateProcess(process.handle.value, KILLED)
    if job is not None:
        job.end()
