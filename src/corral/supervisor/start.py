"""Plan -> running target: the only module that starts one.

It runs in a process of corral with one thread: the command line's, or a supervisor that the zygote
forked. A process with threads is never forked.
"""

from __future__ import annotations

import os
import stat

from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError, LaunchError
from corral.platforms import current, run_records
from corral.platforms.steps import DIED, StepFailed, parse_exec_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.contract import Child, Gateway, Service, Signals, Watcher

ENOENT = 2
MAX_SWEPT_FILES = 10_000
"""Files of dead runs that one start removes, a tenth of a second's work."""


def run(
    plan: Plan,
    stdio: tuple[int, int, int],
    *,
    signals: Signals,
    control: int,
    denials: Denials | None = None,
) -> Watcher:
    """Start the target. An error says which step failed, and then nothing is left behind."""
    _check_streams(stdio)
    system = current.load()
    run_records.sweep(system.clean, max_files=MAX_SWEPT_FILES)
    entry = run_records.Run(plan.run, residue=plan.residue, command=plan.program.typed)
    try:
        child = system.spawn(plan, stdio)
    except StepFailed as failed:
        entry.end()
        raise _error(failed) from failed
    entry.started(child.pid)
    timeout = None if plan.timeout is None else plan.timeout / 1000
    watch = system.watch(
        child, timeout=timeout, signals=signals, control=control, sample=plan.sample, run=entry
    )
    failed_later = parse_exec_result(watch.until_exec())
    if failed_later and not _was_stopped(watch, failed_later):
        child.kill()
        watch.until_end()
        raise _error(failed_later) from failed_later
    if not failed_later:
        _open_services(plan, child, watch, denials)
    return watch


def _open_services(plan: Plan, child: Child, watch: Watcher, denials: Denials | None) -> None:
    gateway: Gateway | None = None
    services: list[Service] = []
    if _has_network_services(plan):
        gateway, opened = child.network_services(plan, denials)
        services += opened
    if plan.covers is not None:
        services.append(child.watch_covers(plan.covers))
    if gateway or services:
        watch.open(gateway, services)


def _has_network_services(plan: Plan) -> bool:
    """Return whether anything passes in or out: not where no mechanism enforces the allowlist."""
    held = [control for control in plan.controls if control.control == "network"]
    return bool(plan.allow or plan.listen) and all(one.status != "degraded" for one in held)


def _check_streams(stdio: tuple[int, int, int]) -> None:
    """Refuse a stream that leads further than its own data.

    Everything beside a directory is one `..` away, and a socket of the host's network can be
    connected to another address, as can a unix socket that is not connected yet or has datagrams.
    """
    for name, fd in zip(("stdin", "stdout", "stderr"), stdio, strict=True):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue  # closed, and so it is for the target
        if stat.S_ISDIR(mode):
            raise LaunchError(name, "is a directory", hint="give the target a file or a pipe")
        if stat.S_ISSOCK(mode) and not _is_connected_unix_stream(fd):
            raise LaunchError(
                name,
                "is a socket that could be connected to another address",
                hint="put pipes around corral: `cat | corral run -- COMMAND | cat`",
            )


def _is_connected_unix_stream(fd: int) -> bool:
    import _socket  # `socket` itself would import enum and selectors

    try:
        found = _socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        found.getpeername()
        kinds = (_socket.SOCK_STREAM, _socket.SOCK_SEQPACKET)
        return found.family == getattr(_socket, "AF_UNIX", None) and found.type in kinds
    except OSError:
        return False
    finally:
        found.detach()


def _was_stopped(watch: Watcher, failed: StepFailed) -> bool:
    """Return whether a deadline or a signal came before the target executed."""
    return bool(watch.reason) and failed.cause == DIED


def _error(failed: StepFailed) -> LaunchError | CommandError:
    if failed.step == "exec":
        code = EXIT_NOT_FOUND if failed.code == ENOENT else EXIT_NOT_EXECUTABLE
        return CommandError(
            f"cannot execute: {failed.cause}",
            exit_code=code,
            hint="`corral explain -- COMMAND` lists the files that the target can see",
        )
    return LaunchError(failed.step, failed.cause, hint="the target was not started")
