"""One run for another process: its plan comes over a channel, and what becomes of it goes back.

A message is its length and then itself: `B` and the target's pid once it runs, `R` and the report
at its end, or `E` and what went wrong.
"""

from __future__ import annotations

import os

from corral.api import wire
from corral.errors import SandboxError
from corral.platforms import current
from corral.supervisor import report, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn


def run(
    hearing: int,
    telling: int,
    stdio: tuple[int, int, int],
    *,
    signals: Sequence[int],
    let_go: Callable[[], None],
) -> NoReturn:
    """Ends the process. `let_go` is called once the target has the streams: its caller must see
    them close when the target closes them.
    """
    code = 1
    try:
        plan = wire.decode_plan(_heard(hearing))
        watch = start.run(plan, stdio, signals=current.load().signals(signals), control=hearing)
        let_go()
        _tell(telling, b"B" + str(watch.child.target()).encode())
        _tell(telling, b"R" + wire.encode(report.build_report(plan, watch.until_end())))
        code = 0
    except SandboxError as problem:
        _tell(telling, b"E" + wire.encode_problem(problem))
    except BrokenPipeError:
        pass  # the caller is gone, and with it the target
    except BaseException as bug:  # noqa: BLE001 - the caller must hear of it, not a closed stderr
        _tell(telling, b"E" + wire.encode_problem(SandboxError(f"{type(bug).__name__}: {bug}")))
    finally:
        os._exit(code)


def _heard(fd: int) -> bytes:
    return _read(fd, int.from_bytes(_read(fd, wire.HEADER), "little"))


def _read(fd: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = os.read(fd, size - len(found))
        if not chunk:
            os._exit(0)  # the caller went away before it said what to run
        found += chunk
    return found


def _tell(fd: int, message: bytes) -> None:
    raw = wire.framed(message)
    while raw:
        raw = raw[os.write(fd, raw) :]
