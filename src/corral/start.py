"""Plan -> running target: the only place that starts one.

This runs in a single-threaded process of corral's own: the command line's, or a supervisor that the
zygote forked. A process with threads is never forked.
"""

from __future__ import annotations

from corral import backend
from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError, LaunchError
from corral.posix.enter import StepFailed, read_born
from corral.supervise import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan import Plan

ENOENT = 2


def run(plan: Plan, stdio: tuple[int, int, int], *, signals: int, control: int) -> Watch:
    """The target executes, or an error says which step failed and nothing is left."""
    try:
        child = backend.load().birth(plan, stdio)
    except StepFailed as failed:
        raise _error(failed) from failed
    timeout = None if plan.timeout is None else plan.timeout / 1000
    watch = Watch(child, timeout=timeout, signals=signals, control=control, sample=plan.sample)
    failed_later = read_born(watch.until_born())
    if failed_later:
        child.kill()
        watch.until_end()
        raise _error(failed_later) from failed_later
    return watch


def _error(failed: StepFailed) -> LaunchError | CommandError:
    if failed.step == "exec":
        code = EXIT_NOT_FOUND if failed.code == ENOENT else EXIT_NOT_EXECUTABLE
        return CommandError(
            f"cannot execute: {failed.cause}",
            exit_code=code,
            hint="`corral explain -- COMMAND` lists the files that the target can see",
        )
    return LaunchError(failed.step, failed.cause, hint="the target was not started")
