"""Start the target of a plan. No other module starts targets.

This code runs in the process of the command line, or in a supervisor of the Python API. Both have
only one thread, because a process that has several threads cannot be forked safely.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from corral.denials.records import Denials
from corral.directories import directories
from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError, LaunchError
from corral.platforms import current, run_records
from corral.platforms.steps import DIED, StepFailed, parse_exec_result
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.denials.records import Hide
    from corral.plan.model import Plan
    from corral.platforms.contract import Child, Signals, Watcher
    from corral.supervisor.message_relay import MessageRelay

    Spawn = Callable[[Plan, tuple[int, int, int]], Child]

UNBOUND = frozenset((errno.EINVAL, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT))
"""Errors that are ignored when a stream's socket is bound to a name. EINVAL means that the socket
already has a name. The other errors mean that a filter around corral forbids the call, and that
filter applies to the target too.
"""
ERRNO_HINTS = {
    errno.EMFILE: "raise `--max-fds` and `ulimit -n`: the sandbox itself needs up to 64"
    " descriptors",
    errno.ENFILE: "raise sysctl fs.file-max: no descriptor is left on the whole machine",
    errno.ENOMEM: "free some memory: none is left on this machine",
    errno.EAGAIN: "raise `ulimit -u`, or end other processes of this user",
    errno.ENOSPC: "free space on that disk",
}
"""Hints for errors that any step can cause."""
NO_NAMESPACE = (
    "this user has used up all namespaces of one kind: end other sandboxes, or raise the sysctls"
    " user.max_*_namespaces"
)
USED_UP = {
    ("namespaces", errno.ENOSPC): NO_NAMESPACE,
    ("cgroup_namespace", errno.ENOSPC): NO_NAMESPACE,
}
"""Hints by (step, errno), for errors that have a special cause in one step."""
STEP_HINTS = {
    "work_directory": "let this user make directories in /tmp, which corral needs without "
    "namespaces (in a container: `--tmpfs /tmp`, or an emptyDir there)",
    "state_directory": "set XDG_STATE_HOME to another directory that you own",
}
MAX_SWEPT_FILES = 10_000
"""The maximum number of files from dead runs that one start removes. Removing this many takes a
tenth of a second.
"""


def run(
    plan: Plan,
    stdio: tuple[int, int, int],
    *,
    signals: Signals,
    control: int,
    denials: Denials | None = None,
    spawn: Spawn | None = None,
) -> Watcher:
    """Start the target. `spawn`, if given, starts the target in an existing sandbox.

    If a step fails, remove everything that the run has created. The error names the step.
    """
    _check_streams(stdio)
    system = current.load()
    run_records.sweep(system.clean, max_files=MAX_SWEPT_FILES)
    _lock_installed_files(plan)
    entry = run_records.Run(plan.run, residue=plan.residue, command=plan.program.typed)
    relay: MessageRelay | None = None
    try:
        if plan.mcp is not None:
            from corral.supervisor.message_relay import MessageRelay

            relay = MessageRelay(plan, plan.mcp, stdio)
        child = (spawn or system.spawn)(plan, relay.stdio if relay else stdio)
    except BaseException as error:
        _end_record(entry, plan)
        if isinstance(error, StepFailed):
            raise _error(error) from error
        raise
    finally:
        if relay is not None:
            relay.close_target_ends()
    entry.started(child.pid)
    denials = denials or Denials()
    denials.hide_secrets(lambda: _load_hide(plan))
    child.report_to(denials, plan)
    timeout = None if plan.timeout is None else plan.timeout / 1000
    watch = system.watch(
        child, timeout=timeout, signals=signals, control=control, sample=plan.sample, run=entry
    )
    failed_later = parse_exec_result(watch.until_exec())
    # It is not an error if a deadline or a signal ended the target before its program started.
    stopped = bool(watch.reason) and failed_later and failed_later.cause == DIED
    if failed_later and not stopped:
        child.kill()
        watch.until_end()
        raise _error(failed_later) from failed_later
    if not failed_later:
        _open_services(plan, child, watch, denials, relay)
    return watch


def _end_record(entry: run_records.Run, plan: Plan) -> None:
    """Remove the leftover files of a run that did not start, and then its record.

    The run itself may have failed to remove them, for example because no descriptor was free. If
    they still cannot be removed, keep the record, so that the next start tries again.
    """
    for path in filter(os.path.lexists, plan.residue):
        current.load().clean(path, run_records.Budget(MAX_SWEPT_FILES))
    if not any(map(os.path.lexists, plan.residue)):
        entry.end()


def _load_hide(plan: Plan) -> Hide:
    from corral.supervisor.secret_values import hide_values

    return hide_values(plan)


def _lock_installed_files(plan: Plan) -> None:
    """Lock the files of an installed server, so that they stay until this process ends, even if
    the server is removed or upgraded in the meantime. The descriptors of the locks stay open.
    """
    store = os.path.join(directories().cache, "store", "trees")
    inside = [one[len(store) :] for one in plan.program.reads if one.startswith(store + os.sep)]
    trees = {store + os.sep + one.split(os.sep)[1] for one in inside}
    if sys.platform == "win32" or not trees:
        return
    import fcntl

    for tree in trees:
        try:
            fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            continue  # the files were just removed, so the `Sources` step will fail


def _open_services(
    plan: Plan, child: Child, watch: Watcher, denials: Denials, relay: MessageRelay | None
) -> None:
    for kind, path, flag in plan.ungranted:
        why = "" if flag else "may contain secrets, or is run by other programs"
        denials.add(kind, path, allow=flag, why=why)
    held = [control for control in plan.controls if control.control == "network"]
    # If no mechanism enforces the allowlist, allow no connections at all.
    if any(one.status == "degraded" for one in held):
        plan = replace(plan, allow=(), listen=())
    gateway, opened = child.open_services(plan, denials)
    services = list(opened)
    if plan.covers is not None:
        services.append(child.watch_covers(plan.covers))
    if relay is not None:
        relay.start(denials)
        services.append(relay)
    watch.open(denials, gateway, services)


def _check_streams(stdio: tuple[int, int, int]) -> None:
    """Refuse a stream that gives access to more than its own data.

    Refuse directories, because `..` leads out of them. Refuse sockets that the target could connect
    to another address: network sockets, datagram sockets, and sockets that are not connected yet.
    Accept connected unix sockets, but on Linux bind them to an unused name first, so that the
    target cannot bind them to a name of its choice.
    """
    for name, fd in zip(("stdin", "stdout", "stderr"), stdio, strict=True):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue  # the stream is closed here, so the target does not get it
        if stat.S_ISDIR(mode):
            raise LaunchError(name, "is a directory", hint="give the target a file or a pipe")
        if stat.S_ISSOCK(mode) and not _is_connected_unix_stream(fd):
            raise LaunchError(
                name,
                "is a socket that could be connected to another address",
                hint="put pipes around corral: `cat | corral run -- COMMAND | cat`",
            )
        if stat.S_ISSOCK(mode) and sys.platform == "linux":
            _bind_to_unused_name(fd)


def _bind_to_unused_name(fd: int) -> None:
    """Bind a connected unix socket to an unused abstract name, which the kernel chooses.

    The socket belongs to the host's network namespace, so the target could bind it to an abstract
    name that a program on the host needs. This call prevents that, because a socket can be bound
    only once. Other processes cannot connect to the new name, because the socket does not listen.
    """
    import _socket

    found = _socket.socket(fileno=fd)
    try:
        found.bind("")
    except OSError as error:
        if error.errno not in UNBOUND:
            raise LaunchError("streams", f"{error.strerror} (bind)") from error
    finally:
        found.detach()


def _is_connected_unix_stream(fd: int) -> bool:
    import _socket  # `socket` is not used, because it imports enum and selectors, which takes time

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


def _error(failed: StepFailed) -> LaunchError | CommandError:
    if failed.step == "exec":
        code = EXIT_NOT_FOUND if failed.code == errno.ENOENT else EXIT_NOT_EXECUTABLE
        return CommandError(
            f"cannot execute: {failed.cause}",
            exit_code=code,
            hint="`corral explain -- COMMAND` lists the files that the target can see",
        )
    hint = STEP_HINTS.get(failed.step, "`corral doctor -v` shows what works here")
    if failed.step in STEP_HINTS and failed.place:
        from corral.disk_hints import disk_hint

        hint = disk_hint(OSError(failed.code, failed.cause), failed.place, hint)
    else:
        used_up = USED_UP.get((failed.step, failed.code))
        hint = failed.hint or used_up or ERRNO_HINTS.get(failed.code, hint)
    return LaunchError(failed.step, failed.cause, hint=f"{hint}; the target was not started")
