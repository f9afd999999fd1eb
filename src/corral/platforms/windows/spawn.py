"""Plan -> running target, and the supervisor's hold on its tree."""

from __future__ import annotations

from corral.abi import win32_process as abi
from corral.abi.signal_numbers import SIGKILL
from corral.platforms.posix.watch import Reaped
from corral.platforms.steps import StepFailed, name
from corral.platforms.windows import layers
from corral.platforms.windows.mechanisms import process_creation
from corral.platforms.windows.mechanisms.job import KILLED
from corral.platforms.windows.run_context import Scene
from corral.platforms.windows.streams import Streams
from corral.platforms.windows.watch import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.denials.records import Denials
    from corral.plan.model import Plan, Step
    from corral.platforms.posix.watch import Ways
    from corral.platforms.windows.mechanisms.job import Limited


class Child:
    """`pidfd` is the handle of the first process. Nothing is told on the way to its start: when
    `birth` returns, it runs.
    """

    born = -1

    def __init__(self, scene: Scene, limited: Limited, streams: Streams) -> None:
        self.pid = scene.pid
        self.pidfd = scene.process
        self._scene = scene
        self._job = limited
        self._streams = streams
        self._killed = False

    def target(self) -> int:
        return self.pid

    def signal(self, number: int) -> None:
        """There are no signals here: a stop is the end of its input, if that is ours to end."""
        if number == SIGKILL:
            self.kill()
        else:
            self._streams.end_input()

    def kill(self) -> None:
        self._killed = True
        self._job.terminate()

    def abandon(self) -> None:
        """Let go of everything, as the supervisor's death would: a probe looks what follows."""
        self._scene.end()

    def measure(self, *, exact: bool = False) -> Usage:  # noqa: ARG002 - accounting always is
        return Usage(cpu=self._job.cpu(), memory=self._job.peak(), tasks=self._job.active())

    def doors(self) -> list[int]:
        """What the relay's inner end says and hears, if there is one."""
        return [] if self._scene.shim is None else self._scene.shim.doors()

    def ways(self, plan: Plan, denials: Denials | None) -> Ways:
        """Nothing outside reaches a port inside, so there is only the way out."""
        from corral.platforms.windows.relay.outside import outlet

        return outlet(plan, self.doors(), denials), ()

    def reap(self) -> Reaped:
        """The end of the first process is the end of all. The status is as `wait` would say it."""
        code = abi.exit_code(self.pidfd)
        self._job.end()
        self._streams.drain()
        reaped = Reaped(
            status=None if self._killed and code == KILLED else code << 8,
            cpu=self._job.cpu(),
            memory=self._job.peak(),
            hit=tuple(sorted(self._job.listen())),
        )
        self._scene.end()
        return reaped


def birth(plan: Plan, stdio: tuple[int, int, int]) -> Child:
    """The target runs, or StepFailed says what did not hold and nothing is left."""
    scene = Scene()
    try:
        for step in plan.steps:
            _attempt(layers.apply, step, scene)
        return _conceive(plan, scene, stdio)
    except BaseException:
        _kill(scene)
        scene.end()
        raise


def _kill(scene: Scene) -> None:
    """The process too, which may have failed just because it is not in its job."""
    if scene.process:
        try:
            abi.TerminateProcess(scene.process, KILLED)
        except OSError:
            pass  # it has ended
    if scene.job is not None:
        scene.job.end()


def _conceive(plan: Plan, scene: Scene, stdio: tuple[int, int, int]) -> Child:
    streams = Streams(stdio)
    try:
        thread = process_creation.create(plan, scene, streams)
    except OSError as error:
        raise StepFailed("exec", error) from error
    except ValueError as error:
        raise StepFailed("exec", str(error)) from error
    finally:
        streams.let_go()
    for step in plan.steps:
        _attempt(layers.verify, step, scene)
    try:
        process_creation.resume(thread)
    except OSError as error:
        raise StepFailed("process.Creation", error) from error
    assert scene.job is not None  # noqa: S101 - the process was created in it
    return Child(scene, scene.job, streams)


def _attempt(verb: Callable[[Step, Scene], None], step: Step, scene: Scene) -> None:
    try:
        verb(step, scene)
    except OSError as error:
        raise StepFailed(name(step), error) from error
