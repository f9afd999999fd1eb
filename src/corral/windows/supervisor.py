"""A supervisor of the Python API: reads its plan from the caller, runs it, tells how it went."""

from __future__ import annotations

import os
import sys

from corral import backend, report, start, wire
from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

HEADER = 8


def serve(reads: int, writes: int) -> NoReturn:
    """`reads` and `writes` are inherited handles; nothing that is started here inherits them."""
    hearing, telling = _descriptor(reads), _descriptor(writes)
    code = 1
    try:
        _run(hearing, telling)
        code = 0
    except SandboxError as problem:
        _send(telling, b"E" + wire.encode_problem(problem))
    except BrokenPipeError:
        pass  # the caller is gone, and with it the target
    except BaseException as bug:  # noqa: BLE001 - the caller must hear of it, not a closed stderr
        _send(telling, b"E" + wire.encode_problem(SandboxError(f"{type(bug).__name__}: {bug}")))
    finally:
        os._exit(code)


def _run(hearing: int, telling: int) -> None:
    size = int.from_bytes(_read(hearing, HEADER), "little")
    plan = wire.decode_plan(_read(hearing, size))
    signals = backend.load().signals(())
    watch = start.run(plan, (0, 1, 2), signals=signals, control=hearing)
    _let_go_of_streams()
    _send(telling, b"B" + str(watch.child.target()).encode())
    ending = watch.until_end()
    _send(telling, b"R" + wire.encode(report.of(plan, ending)))


def _let_go_of_streams() -> None:
    """The streams are the target's: the caller must see them close when the target closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _descriptor(handle: int) -> int:
    if sys.platform != "win32":
        raise OSError("handles exist on Windows only")
    import msvcrt

    os.set_handle_inheritable(handle, False)
    return msvcrt.open_osfhandle(handle, os.O_BINARY | os.O_NOINHERIT)


def _read(fd: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = os.read(fd, size - len(found))
        if not chunk:
            os._exit(0)  # the caller went away before it said what to run
        found += chunk
    return found


def _send(fd: int, message: bytes) -> None:
    raw = len(message).to_bytes(HEADER, "little") + message
    while raw:
        raw = raw[os.write(fd, raw) :]
