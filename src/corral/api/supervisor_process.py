"""Supervise one run for another process, which sends the plan and gets the result over a channel.

A message is its length and then its text: `B` and the target's pid once it runs, `R` and the report
at its end, or `E` and the error.
"""

from __future__ import annotations

import functools
import os

from corral.api import wire_format
from corral.errors import SandboxError
from corral.plan.model import Plan
from corral.platforms import current
from corral.supervisor import report, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn


def run(
    reader: int,
    writer: int,
    stdio: tuple[int, int, int],
    *,
    signals: Sequence[int],
    close_stdio: Callable[[], None],
) -> NoReturn:
    """Supervise the run and exit. `close_stdio` is called once the target has its streams, because
    the caller must see them close when the target closes them.
    """
    code = 1
    try:
        message = wire_format.read_message(functools.partial(os.read, reader))
        if not message:
            os._exit(0)  # the caller ended before it sent a plan
        plan = wire_format.decode(message, Plan)
        watch = start.run(plan, stdio, signals=current.load().signals(signals), control=reader)
        close_stdio()
        _send(writer, b"B" + str(watch.child.target()).encode())
        _send(writer, b"R" + wire_format.encode(report.build_report(plan, watch.until_end())))
        code = 0
    except SandboxError as error:
        _send(writer, b"E" + wire_format.encode_error(error))
    except BrokenPipeError:
        pass  # the caller is gone, and with it the target
    except BaseException as bug:  # noqa: BLE001 - stderr may be closed: only the caller can show it
        unexpected = SandboxError(f"{type(bug).__name__}: {bug}")
        _send(writer, b"E" + wire_format.encode_error(unexpected))
    finally:
        os._exit(code)


def _send(fd: int, message: bytes) -> None:
    raw = wire_format.add_header(message)
    while raw:
        raw = raw[os.write(fd, raw) :]
