"""Supervise one run for another process, which sends the plan and gets the result over a channel.

The supervisor sends `B` with the target's pid once the target runs, and `R` with an `Ending`, which
says how the run ended. If something fails, it sends `E` with the error. The caller makes the report
from its plan and the `Ending`.
"""

from __future__ import annotations

import os

from corral.api import wire_format
from corral.errors import SandboxError
from corral.plan.model import Plan
from corral.platforms import current
from corral.supervisor import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from corral.supervisor.start import Spawn

    Stdio = tuple[int, int, int]
    Request = tuple[Plan, Stdio, Spawn | None]


def run(
    reader: int,
    writer: int,
    receive: Callable[[], Request | None],
    *,
    signals: Sequence[int],
    close_stdio: Callable[[Stdio], None],
) -> NoReturn:
    """Supervise one run, and exit. `receive` returns the request for the run, or None if the caller
    did not send one.

    `close_stdio` closes this process's copies of the streams once the target has them. Otherwise
    the caller would not notice when the target closes a stream.
    """
    code = 1
    try:
        request = receive()
        if request is None:
            os._exit(0)
        plan, stdio, spawn = request
        blocked = current.load().signals(signals)
        watch = start.run(plan, stdio, signals=blocked, control=reader, spawn=spawn)
        close_stdio(stdio)
        send(writer, b"B" + str(watch.child.target()).encode())
        send(writer, b"R" + wire_format.encode(watch.until_end()))
        code = 0
    except SandboxError as error:
        send(writer, b"E" + wire_format.encode_error(error))
    except BrokenPipeError:
        pass  # the caller has ended; the target ends with this process
    except BaseException as bug:  # noqa: BLE001 - the caller shows it, because stderr may be closed
        unexpected = SandboxError(f"{type(bug).__name__}: {bug}")
        send(writer, b"E" + wire_format.encode_error(unexpected))
    finally:
        os._exit(code)


def read_request(reader: int, stdio: Stdio) -> Request | None:
    """Read a plan. Return None if the caller ended before it sent one."""
    message = wire_format.read_message(lambda size: os.read(reader, size))
    return (wire_format.decode(message, Plan), stdio, None) if message else None


def send(fd: int, message: bytes) -> None:
    raw = wire_format.add_header(message)
    while raw:
        raw = raw[os.write(fd, raw) :]
