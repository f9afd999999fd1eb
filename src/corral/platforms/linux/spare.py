"""Prepare a spare: a sandbox with all steps applied and verified, which waits for its command.

The next run is then faster, because its sandbox is ready. A spare serves a single command. It ends
with its supervisor, and the supervisor ends with the caller of the Python API.
"""

from __future__ import annotations

import _socket
import marshal
import os
import select
import sys

from corral.abi import linux as abi
from corral.paths.mounts import parse_mount
from corral.paths.posix import is_inside
from corral.platforms import steps
from corral.platforms.linux import spawn
from corral.platforms.linux.mechanisms import root_filesystem
from corral.platforms.posix import handover
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Plan
    from corral.platforms.contract import Stdio

GONE = select.POLLHUP | select.POLLRDHUP


def find_maker(plan: Plan) -> Callable[[], Spare] | None:
    """Return a function that makes a spare for a plan, or None if the plan cannot use one.

    A plan cannot use a spare in these cases:

    - The supervisor has to apply a step for each run, or a run can leave a directory or a cgroup on
      the host.
    - The streams must be known from the start. This is so with the MCP guard. It is also so without
      Landlock, because corral then replaces streams that are files with pipes.
    """
    held = [one.mechanism for one in plan.controls if one.control == "filesystem"]
    if plan.residue or plan.mcp is not None or not any("landlock" in one for one in held):
        return None
    if any(step.stage == "supervisor" for step in plan.steps):
        return None
    return lambda: Spare(plan)


class Spare:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Record the state of the files and directories that the sandbox will show, before it opens
        # them. So `is_current` notices any later change.
        self._seen = _observe_sources(plan)
        self._mounts = b""
        self._request, inner = _socket.socketpair()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.child = spawn.spawn(
            plan, (null, null, null), lambda pipe: _receive_request(inner, pipe, plan)
        )
        inner.close()
        os.close(null)

    def wait(self, channel: int) -> bool:
        """Wait until the sandbox is ready and the caller has sent a command.

        Return False if the sandbox has failed or the caller has ended.
        """
        poll = select.poll()
        for fd in (self.child.pidfd, self.child.exec_pipe):
            poll.register(fd, select.POLLIN)
        # Before the sandbox is ready, look only for the caller's end, not for a command.
        poll.register(channel, select.POLLRDHUP)
        for service in self.child.services:
            poll.register(service.fileno(), select.POLLIN)
        while True:
            events = dict(poll.poll())
            for service in self.child.services:
                service.run_ready()
            if self.child.pidfd in events or events.get(channel, 0) & GONE:
                return False
            if self.child.exec_pipe in events:
                if os.read(self.child.exec_pipe, 4096) != steps.WAITS:
                    return False
                self.child.target()  # read the pid now, before the target can end
                self._mounts = self._read_mounts()
                poll.register(channel, select.POLLIN | select.POLLRDHUP)
            elif channel in events:
                return True

    def is_current(self) -> bool:
        """Return whether the spare would still be the same if it were made now.

        For each path on the host that the sandbox shows, compare the device, the inode and the
        host's mounts. This is not enough for a masked path: the kernel detaches the mask when the
        path is removed on the host, but a new file at this path may get the same inode. So compare
        the sandbox's mounts too, which include the masks.
        """
        if not self._mounts or self._mounts != self._read_mounts():
            return False
        return self._seen == _observe_sources(self._plan)

    def _read_mounts(self) -> bytes:
        try:
            return abi.read_file(f"/proc/{self.child.pid}/mountinfo")
        except OSError:
            return b""  # the process has just ended, or /proc is mounted with `hidepid`

    def take(self, plan: Plan, stdio: Stdio) -> spawn.Child:
        message = (plan.program.argv, plan.program.cwd, plan.environment)
        try:
            relay = self.child.accept(plan, stdio)
            handover.send(self._request, marshal.dumps(message), relay.stdio if relay else stdio)
        except BaseException as error:
            self.child.kill()
            self.child.reap()
            if isinstance(error, OSError):
                raise steps.StepFailed("request", error) from error
            raise
        if relay is not None:
            relay.started()
        self._request.close()
        return self.child

    def discard(self) -> None:
        self.child.kill()
        self.child.reap()


def _receive_request(request: _socket.socket, exec_pipe: int, plan: Plan) -> Plan:
    """Wait until the supervisor sends the command and its streams, and return the plan to execute.

    This runs in the target's process. First close all descriptors that are not needed for the wait.
    """
    steps.keep_only({0, 1, 2, exec_pipe, request.fileno()})
    os.write(exec_pipe, steps.WAITS)
    message, streams = handover.receive(request)
    if not message:
        os._exit(1)  # the supervisor has ended
    argv, cwd, environment = marshal.loads(message)  # noqa: S302 - from the supervisor
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    request.close()
    os.chdir(cwd or "/")
    program = replace(plan.program, argv=argv, cwd=cwd)
    return replace(plan, program=program, environment=environment)


def _observe_sources(plan: Plan) -> tuple[list[tuple[int, int]], list[str]]:
    binds = [step.binds for step in plan.steps if isinstance(step, root_filesystem.Sources)]
    sources = [bind.source for group in binds for bind in group]
    lines = abi.read_file("/proc/self/mountinfo").decode(errors="surrogateescape").splitlines()
    points = [(parse_mount(line)[0], line) for line in lines]
    mounts = [line for point, line in points if any(_meet(point, path) for path in sources)]
    return [_identify(path) for path in sources], mounts


def _meet(point: str, path: str) -> bool:
    return is_inside(point, path) or is_inside(path, point)


def _identify(path: str) -> tuple[int, int]:
    try:
        seen = os.lstat(path)
    except OSError:
        return 0, 0
    return seen.st_dev, seen.st_ino
