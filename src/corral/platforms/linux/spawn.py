"""Start a Linux target: supervisor -> init (PID 1 of the sandbox) -> target.

Three pipes connect these processes. All of them are close-on-exec, so the target does not get them.

- The control pipe carries signal numbers from the supervisor to init. End of file means that the
  supervisor has ended.
- The exec pipe carries the error of a failed step, or the byte EXECUTED just before exec. End of
  file after this byte means that exec succeeded. End of file without the byte means that the
  process died before exec.
- The status pipe carries the target's wait status, and whether the private space is full.
"""

from __future__ import annotations

import os
import sys
from errno import EINVAL

from corral.abi import linux as abi
from corral.abi import linux_sockets
from corral.abi.signal_numbers import SIGKILL
from corral.plan.model import Results
from corral.platforms import steps
from corral.platforms.contract import Reaped
from corral.platforms.linux import descriptor_channel, init, notifications
from corral.platforms.linux.mechanisms import cgroup, namespaces, root_filesystem, seccomp
from corral.platforms.posix import stream_state, target
from corral.platforms.steps import StepFailed
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from corral.denials.records import Denials, Discarded
    from corral.plan.model import Covers, Plan
    from corral.platforms.contract import NetworkServices, Service, Stdio, Usage
    from corral.platforms.linux.path_watch import PathWatch
    from corral.platforms.linux.socket_broker import SocketBroker
    from corral.platforms.linux.stream_relay import Relay

    RunInit = Callable[[int, init.Pipes], NoReturn]
    Request = Callable[[int], Plan]


class Child:
    def __init__(
        self,
        pid: int,
        pidfd: int,
        pipes: init.Pipes,
        results: Results,
        plan: Plan,
        *,
        path_watch: PathWatch | None,
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.exec_pipe = pipes.exec_result
        self._pipes = pipes
        self._results = results
        self._has_pid_namespace = _find_namespaces(plan) is not None
        self._home = _find_home(plan)
        self._target = 0
        self._notices = _has_filter(plan, "notices")
        self._brokered = _has_filter(plan, "broker")
        channel = results.get(descriptor_channel.DescriptorChannel)
        self.path_watch = path_watch
        deciders = results.get(notifications.Deciders)
        if path_watch is not None:
            deciders.by_name["path_watch"] = path_watch
            # `change_watch` lets the kernel change modes and times. Without namespaces that is not
            # allowed, because the call could change any of the user's files.
            if self._has_pid_namespace:
                deciders.by_name["change_watch"] = path_watch
            if not self._brokered:
                deciders.by_name["socket_watch"] = path_watch
        self._notifications = notifications.Notifications(
            channel, self.exec_pipe, deciders, killable=_has_filter(plan, "is_killable")
        )
        self.services = (self._notifications,)
        self._broker: SocketBroker | None = None
        self._allows_network = False

    def accept(self, plan: Plan, stdio: Stdio) -> Relay | None:
        """Remember the streams and the home of the command that this child will execute. Return the
        relay of the streams, if they need one.

        This is only called for a spare: a sandbox that is set up before its command is known.
        """
        self._results.add(stream_state.keep(stdio))
        self._home = _find_home(plan)
        return relay_streams(plan, self._results, stdio)

    def signal(self, number: int) -> None:
        """Send a signal to init. Init passes it on to every process of the target."""
        try:
            os.write(self._pipes.control, bytes([number]))
        except BrokenPipeError:
            pass  # init has ended, and with it the whole tree

    def kill(self) -> None:
        """Kill the whole tree.

        With a PID namespace, kill PID 1. The kernel then kills all other processes before PID 1 can
        be reaped. Without a PID namespace, tell the subreaper to kill the tree.
        """
        if not self._has_pid_namespace:
            self.signal(SIGKILL)
            return
        try:
            abi.pidfd_send_signal(self.pidfd, SIGKILL)
        except ProcessLookupError:
            pass

    def target(self) -> int:
        """Return the target's pid on the host, or 0 if it cannot be read.

        Call this before the target runs, while the target is init's only child.
        """
        if not self._target:
            try:
                children = abi.read_file(f"/proc/{self.pid}/task/{self.pid}/children")
                self._target = int(children.split()[0])
            except (OSError, IndexError):
                pass
        return self._target

    def _find_discarded(self) -> tuple[tuple[Discarded, ...], bool]:
        """Return the files in the target's private home, and whether the list is complete.

        These files are lost at the end of the run. Call this only when no process can change them
        any more.
        """
        space = self._results.get(descriptor_channel.DescriptorChannel).take("private_space")
        name = self._home if self._has_pid_namespace else self._find_private_home()
        if not name or (self._has_pid_namespace and not space):
            return (), True
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            home = os.open(name, flags, dir_fd=space[0] if space else None)
        except OSError:
            return (), False
        finally:
            linux_sockets.close_all(space)
        return _list_files(home)

    def _find_private_home(self) -> str:
        from corral.platforms.posix.run_directories import PrivateDirectory

        directory = self._results.find(PrivateDirectory)
        return f"{directory.path}/home" if directory else ""

    def preload(self) -> None:
        """Import the modules that the run may need later.

        Later it could be too late, because an update of corral can replace the modules' files
        during the run.
        """
        from corral.network.gateway import denied_network  # noqa: F401
        from corral.platforms.linux import (
            denied_sockets,  # noqa: F401
            discarded_writes,  # noqa: F401
            network_services,  # noqa: F401
            own_files,  # noqa: F401
            path_watch,  # noqa: F401
            usage,  # noqa: F401
        )

        if self._allows_network:
            from corral.network.gateway import gateway  # noqa: F401

    def report_to(self, denials: Denials, plan: Plan) -> None:
        if self._brokered:
            from corral.platforms.linux.network_services import open_broker

            self._broker = open_broker(self._results, denials)
        if self._notices or self._brokered:
            self._notifications.decide_with(lambda: self._make_deciders(denials, plan))

    def _make_deciders(self, denials: Denials, plan: Plan) -> dict[str, notifications.Decider]:
        deciders: dict[str, notifications.Decider] = {}
        if self._notices:
            deciders = _make_deciders(denials, None if self.path_watch is not None else plan)
        return deciders | ({"socket_broker": self._broker} if self._broker is not None else {})

    def open_services(self, plan: Plan, denials: Denials) -> NetworkServices:
        if self._broker is not None:
            return self._broker.gateway, ()
        from corral.platforms.linux.network_services import open_services

        self._allows_network = bool(plan.allow)
        return open_services(plan, self._results, denials)

    def watch_covers(self, covers: Covers) -> Service:
        from corral.platforms.linux.replaced_files import ReplacedFiles

        return ReplacedFiles(covers, self)

    def measure(
        self, *, exact: bool = False, interrupted: Callable[[], bool] = lambda: False
    ) -> Usage:
        from corral.platforms.linux import usage
        from corral.platforms.linux.mechanisms.sysv_ipc import SysvLists

        lists = self._results.find(SysvLists)
        if lists is None:
            channel = self._results.get(descriptor_channel.DescriptorChannel)
            lists = SysvLists(channel=channel, fds=[])
            self._results.add(lists)
        objects = lists.count() if not interrupted() else 0
        return usage.measure(self.pid, exact=exact, objects=objects, interrupted=interrupted)

    def reap(self) -> Reaped:
        """Wait for init. Return the tree's usage and, if init has sent it, the target's wait
        status.
        """
        rusage = os.wait4(self.pid, 0)[2]
        status = os.read(self._pipes.status, 5)
        self._pipes.close()
        os.close(self.pidfd)
        if self._broker is not None:
            self._broker.close()
        discarded, whole = self._find_discarded()
        full = ("disk",) if status[4:] == b"\x01" else ()
        reaped = Reaped(
            status=int.from_bytes(status[:4], "little") if len(status) >= 4 else None,
            cpu=rusage.ru_utime + rusage.ru_stime,
            memory=rusage.ru_maxrss * 1024,
            hit=(*full, *self._results.get(notifications.Deciders).hit),
            discarded=discarded,
            discarded_whole=whole,
        )
        if (leaf := self._results.find(cgroup.Cgroup)) is not None:
            reaped = leaf.add_counts(reaped)
        if (kept := self._results.find(stream_state.StreamStates)) is not None:
            reaped = replace(reaped, restored=kept.restore())
        self._results.release()
        return reaped


def _list_files(home: int) -> tuple[tuple[Discarded, ...], bool]:
    """List the files below a directory, and close the directory's descriptor.

    Most homes are empty, so import `discarded_writes` only if the directory has entries.
    """
    try:
        with os.scandir(home) as entries:
            if next(entries, None) is None:
                return (), True
        from corral.platforms.linux import discarded_writes

        return discarded_writes.find(home)
    except OSError:
        return (), False
    finally:
        os.close(home)


def spawn(plan: Plan, stdio: Stdio, request: Request | None = None) -> Child:
    """Start the target.

    `request` is given if the sandbox is set up before its command is known (a spare). The target's
    process then calls `request` after all steps, and executes the plan that `request` returns.
    """
    results = Results()
    channel = descriptor_channel.DescriptorChannel()
    results.add(channel)
    results.add(init.InitDescriptors(fds=[channel.inner]))
    results.add(notifications.Deciders(by_name={}, hit=[]))
    try:
        if request is None:
            results.add(stream_state.keep(stdio))
        relay = relay_streams(plan, results, stdio)
        steps.apply(plan.steps, "supervisor", results)
        steps.apply(plan.steps, "clone", results)
        seccomp.load_filters(plan.steps)
        return _clone(plan, results, relay.stdio if relay else stdio, relay, request)
    except BaseException:  # not only StepFailed: a lack of descriptors raises a plain OSError
        results.release()
        raise


def relay_streams(plan: Plan, results: Results, stdio: Stdio) -> Relay | None:
    """Start the copying of streams that the target must not have itself. Return None if the target
    may have all of them.
    """
    from corral.platforms.linux import stream_relay

    # Landlock prevents reopening a regular file with more rights, and truncating it.
    held = [one.mechanism for one in plan.controls if one.control == "filesystem"]
    is_held = any("landlock" in one for one in held)
    files = not is_held or abi.landlock_abi() < abi.LANDLOCK_TRUNCATE_ABI
    try:
        relay = stream_relay.relay(stdio, files=files, private=plan.private_streams)
    except OSError as error:
        raise StepFailed("streams", error) from error
    if relay is not None:
        results.add(relay)
    return relay


def _find_view(plan: Plan) -> root_filesystem.View | None:
    return next((step for step in plan.steps if isinstance(step, root_filesystem.View)), None)


def _find_namespaces(plan: Plan) -> namespaces.Namespaces | None:
    return next((step for step in plan.steps if isinstance(step, namespaces.Namespaces)), None)


def _find_home(plan: Plan) -> str:
    """Return the name of the target's home in the tmpfs of the private directories.

    Return "" if HOME is not one of these directories.
    """
    view, home = _find_view(plan), dict(plan.environment).get("HOME")
    if view is None or home not in view.private:
        return ""
    return root_filesystem.PRIVATE.format(view.private.index(home))


def _has_filter(plan: Plan, part: str) -> bool:
    return any(isinstance(step, seccomp.Seccomp) and getattr(step, part) for step in plan.steps)


def _make_path_watch(plan: Plan, results: Results) -> PathWatch | None:
    if not _has_filter(plan, "watch_paths"):
        return None
    from corral.platforms.linux.path_watch import PathWatch

    channel = results.get(descriptor_channel.DescriptorChannel)
    return PathWatch(channel, only_opens=_find_view(plan) is None)


def _make_deciders(denials: Denials, plan: Plan | None) -> dict[str, notifications.Decider]:
    """Return the deciders that report denials.

    `plan` is None in `corral learn`, where a `PathWatch` records all paths. Then return only the
    decider that reports denied process starts.
    """
    from corral.platforms.linux.denied_starts import DeniedStarts

    starts = DeniedStarts(denials)
    if plan is None:
        return {"denied_starts": starts}
    from corral.platforms.linux.own_files import OwnFiles
    from corral.platforms.linux.path_watch import CreationWatch

    deciders: dict[str, notifications.Decider] = {
        "denied_starts": starts,
        "path_watch": CreationWatch(OwnFiles(plan, denials).report),
    }
    if not _has_filter(plan, "namespaces"):
        from corral.platforms.linux.denied_sockets import DeniedSockets

        deciders["denied_sockets"] = DeniedSockets(denials)
    return deciders


def _clone(
    plan: Plan, results: Results, stdio: Stdio, relay: Relay | None, request: Request | None
) -> Child:
    ours, theirs = _open_pipes()
    # Make the path watch before the clone, because this imports modules. The child needs them too
    # when it makes the filter, and could not read them in the sandbox.
    path_watch = _make_path_watch(plan, results)
    made = _find_namespaces(plan)
    try:
        pid, pidfd = abi.clone(made.flags() if made else 0)
    except OSError as error:
        ours.close()
        theirs.close()
        raise StepFailed(made.name if made else "clone", error) from error
    if pid == 0:
        ours.close()
        _become_init(plan, results, stdio, theirs, request)
    theirs.close()
    results.get(init.InitDescriptors).release()
    if relay is not None:
        relay.started()
    try:
        child = Child(pid, pidfd, ours, results, plan, path_watch=path_watch)
    except OSError:
        # Killing init is enough, because it has no children yet.
        abi.pidfd_send_signal(pidfd, SIGKILL)
        os.waitpid(pid, 0)
        raise
    results.add(init.InitProcess(pid=pid))
    try:
        steps.apply(plan.steps, "after_clone", results)
    except StepFailed:
        child.kill()
        child.reap()
        raise
    child.signal(0)
    return child


def _open_pipes() -> tuple[init.Pipes, init.Pipes]:
    """Open the pipes. Return the supervisor's ends and init's ends."""
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
    except OSError:
        linux_sockets.close_all(fds)
        raise
    control_read, control_write, exec_read, exec_write, status_read, status_write = fds
    return (
        init.Pipes(control=control_write, status=status_read, exec_result=exec_read),
        init.Pipes(control=control_read, status=status_write, exec_result=exec_write),
    )


def _become_init(
    plan: Plan, results: Results, stdio: Stdio, pipes: init.Pipes, request: Request | None
) -> NoReturn:
    """Run as the new PID 1 or as the subreaper. Never return into the supervisor's code."""
    try:
        init.follow_supervisor()
        run_init = _choose_init(plan)
        # The supervisor sends this byte when it has applied the steps of the stage `after_clone`,
        # such as writing the id maps.
        if os.read(pipes.control, 1) != b"\0":
            os._exit(1)
        os.setsid()
        # Without this, init would keep the supervisor's signal handlers, and the target could
        # trigger them by a signal.
        abi.reset_signals()
        _check_namespaces(plan, results)
        steps.apply(plan.steps, "init", results)
        # Once more, because the kernel clears this setting when the process changes its ids.
        init.follow_supervisor()
        start_read, start_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(start_write)
            _become_target(plan, results, stdio, (start_read, pipes.exec_result), request)
        os.close(start_read)
        run_init(pid, replace(pipes, start=start_write))
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(pipes.exec_result, error, "init")


def _choose_init(plan: Plan) -> RunInit:
    """Return the main function of init, or of the subreaper.

    Import its module now, because in the sandbox it cannot be read.
    """
    view = _find_view(plan)
    if view is None:
        from corral.platforms.linux.subreaper import Subreaper, run_subreaper

        scoped = any(isinstance(step, Subreaper) and step.scoped for step in plan.steps)
        return lambda pid, pipes: run_subreaper(pid, pipes, scoped=scoped)
    return lambda pid, pipes: init.run_init(pid, pipes, space=view.private[0])


def _check_namespaces(plan: Plan, results: Results) -> None:
    """Refuse to continue if this process is still in one of the host's namespaces.

    Otherwise later steps, which change settings of the namespace, would change the host's.
    """
    if (step := _find_namespaces(plan)) is not None:
        steps.attempt(step, step.verify, results)


def _become_target(
    plan: Plan, results: Results, stdio: Stdio, pipes: tuple[int, int], request: Request | None
) -> NoReturn:
    exec_pipe = pipes[1]
    try:
        start, exec_pipe = _arrange_descriptors(stdio, *pipes)
        abi.sigprocmask(abi.SIG_SETMASK, ())
        plan = target.enter(plan, results, start, exec_pipe, request)
        _exec(plan, results)
    except BaseException as error:  # noqa: BLE001 - a bug here must not let anything run
        target.tell(exec_pipe, error, "target")


def _exec(plan: Plan, results: Results) -> NoReturn:
    environment = [f"{name}={value}" for name, value in plan.environment]
    cookie = results.find(seccomp.ExecCookie)
    words = cookie.words if cookie else (0, 0, 0)
    path, argv = plan.program.path, plan.program.argv
    target.execute(plan.program, lambda: abi.execve(path, argv, environment, words))


def _arrange_descriptors(stdio: Stdio, *pipes: int) -> list[int]:
    """Move the streams to the descriptors 0, 1 and 2. Return duplicates of `pipes`.

    Make exec close all descriptors except the streams.
    """
    moved = target.arrange_streams(stdio, *pipes)
    try:
        abi.close_range(3, 0xFFFFFFFF, abi.CLOSE_RANGE_CLOEXEC)
    except OSError as error:
        if error.errno != EINVAL:
            raise
        target.close_on_exec()  # Linux 5.10 has close_range, but not this flag
    return moved
