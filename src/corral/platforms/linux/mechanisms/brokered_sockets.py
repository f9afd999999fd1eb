"""Prepare the sockets that `socket_broker` uses to serve a target without a network namespace.

Before the target starts, the supervisor binds the ports of `network.listen` and opens the granted
unix sockets. The run fails if a port is in use. Later connections go to the opened sockets, even if
other files have taken their paths.
"""

from __future__ import annotations

import os
import sys

from corral.abi import linux_sockets
from corral.platforms.linux.mechanisms import published_ports
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage


@record
class PreparedSockets:
    """The opened sockets.

    `ports` maps ports to bound sockets. `unix` maps the paths of granted sockets to O_PATH
    descriptors. `step` is the step that opened the sockets.
    """

    step: BrokeredSockets
    ports: dict[int, int]
    unix: dict[str, int]

    def release(self) -> None:
        linux_sockets.close_all([*self.ports.values(), *set(self.unix.values())])
        self.ports.clear()
        self.unix.clear()


@record
class BrokeredSockets:
    """Opens the sockets before the target starts. The broker reads its settings from this step.

    - `unix` contains (path as the user wrote it, resolved path, device, inode) for each granted
      socket.
    - `uid` and `gid` are the target's ids.
    - If `same_file` is true, the broker connects the target's own TCP socket. Otherwise it connects
      a new socket and gives the target this socket in place of its own.
    """

    name = "brokered_sockets"
    allow: tuple[str, ...]
    admit: tuple[str, ...]
    ports: tuple[int, ...]
    unix: tuple[tuple[str, str, int, int], ...]
    uid: int
    gid: int
    same_file: bool
    everywhere: bool = False
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        text = "network: the supervisor connects, binds and listens on behalf of the target"
        if self.ports:
            place = published_ports.describe_place(self.everywhere)
            text += f"; ports on {place}: {', '.join(map(str, self.ports))}"
        return text

    def apply(self, results: Results) -> None:
        prepared = PreparedSockets(step=self, ports={}, unix={})
        results.add(prepared)
        for port in self.ports:
            prepared.ports[port] = published_ports.bind_port(port, everywhere=self.everywhere)
        for written, path, device, inode in self.unix:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            prepared.unix[written] = prepared.unix[path] = fd
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) != (device, inode):
                raise OSError(0, "this is no longer the file that was granted", path)
