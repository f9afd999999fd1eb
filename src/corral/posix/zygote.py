"""A warm, single-threaded interpreter that forks one supervisor a run for the Python API.

A caller may have threads, which a fork would break; this process never has any. It learns nothing
of a run but four descriptors: the streams, and a channel on which the forked supervisor reads its
plan. It goes when its caller goes, and so does every supervisor: the end of the channel is the end
of the target.
"""

from __future__ import annotations

import array
import gc
import os
import socket
import sys

from corral import backend, report, start, wire
from corral.errors import SandboxError
from corral.posix.signals import FORWARDED

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import NoReturn

HEADER = 8
DESCRIPTORS = 4


def serve(fd: int) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are nobody's zombies
    backend.load().warm_up()
    gc.disable()
    gc.freeze()
    with socket.socket(fileno=fd) as requests:
        while descriptors := _receive(requests):
            if os.fork() == 0:
                requests.close()
                _supervise(*descriptors)
            for item in descriptors:
                os.close(item)


def _receive(requests: socket.socket) -> list[int]:
    size = DESCRIPTORS * array.array("i").itemsize
    data, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(size))
    found = array.array("i")
    for _, _, raw in ancillary:
        found.frombytes(raw[: len(raw) - len(raw) % found.itemsize])
    return list(found) if data else []


def _supervise(stdin: int, stdout: int, stderr: int, channel: int) -> NoReturn:
    """In the fork: read the plan, run it, tell how it went."""
    import signal

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _run((stdin, stdout, stderr), channel)
        code = 0
    except SandboxError as problem:
        _send(channel, b"E" + wire.encode_problem(problem))
    except BrokenPipeError:
        pass  # the caller is gone, and with it the target
    except BaseException as bug:  # noqa: BLE001 - the caller must hear of it, not a closed stderr
        _send(channel, b"E" + wire.encode_problem(SandboxError(f"{type(bug).__name__}: {bug}")))
    finally:
        os._exit(code)


def _run(stdio: tuple[int, int, int], channel: int) -> None:
    size = int.from_bytes(_read(channel, HEADER), "little")
    plan = wire.decode_plan(_read(channel, size))
    signals = backend.load().signals(FORWARDED)
    watch = start.run(plan, stdio, signals=signals, control=channel)
    for fd in stdio:
        os.close(fd)
    _send(channel, b"B" + str(watch.child.target()).encode())
    ending = watch.until_end()
    _send(channel, b"R" + wire.encode(report.of(plan, ending)))


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


if __name__ == "__main__":
    serve(int(sys.argv[1]))
