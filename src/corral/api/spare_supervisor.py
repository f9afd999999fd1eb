"""Supervise a spare, which is a sandbox that is made before its command is known. The supervisor
receives the plan first, and the command and streams later.

The supervisor answers `A` before it starts the command, or `N` if the sandbox cannot be used. If
the caller does not get `A`, the command was not started.
"""

from __future__ import annotations

import _socket
import os
import sys

from corral.api import supervisor_process, wire_format
from corral.plan.model import Plan
from corral.platforms import current
from corral.platforms.posix import handover
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.api.supervisor_process import Request


def receive_request(fd: int) -> Request | None:
    """Make a spare and wait for its command. Return None if the caller sent no plan or no command,
    if this system cannot make a spare for the plan, or if the spare cannot be used any more.
    """
    message = wire_format.read_message(lambda size: os.read(fd, size))
    if not message:
        return None
    shape = wire_format.decode(message, Plan)
    make = current.load().find_spare_maker(shape)
    if make is None:
        return None
    spare = make()
    channel = _socket.socket(fileno=fd)
    message, streams = handover.receive(channel) if spare.wait(fd) else (b"", [])
    channel.detach()
    if not message or not spare.is_current():
        spare.discard()
        supervisor_process.send(fd, b"N")
        return None
    supervisor_process.send(fd, b"A")
    plan = replace(wire_format.decode(message, Plan), steps=shape.steps)
    return plan, (streams[0], streams[1], streams[2]), spare.take
