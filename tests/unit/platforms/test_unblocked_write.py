"""Test that corral drops a message instead of waiting if a stream is full, whatever flags other
processes have set on the stream.
"""

import os
import socket
import subprocess
import sys

import pytest

from corral.platforms.posix import unblocked_write

termios = pytest.importorskip("termios")
pty = pytest.importorskip("pty")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these calls")
FILLER = b"x" * 4096
WRITE = """
import sys
from corral.platforms.posix.unblocked_write import write_at_once
sys.exit(not write_at_once(int(sys.argv[1]), b"message"))
"""


def fill(fd: int) -> None:
    """Fill a stream, so that a write would block. A terminal does not stay full, so stop its output
    instead.
    """
    if os.isatty(fd):
        termios.tcflow(fd, termios.TCOOFF)
        return
    os.set_blocking(fd, False)
    try:
        for piece in (FILLER, b"x"):
            while True:
                try:
                    os.write(fd, piece)
                except BlockingIOError:
                    break
    finally:
        os.set_blocking(fd, True)


def make_pipe():
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb", 0)


def make_terminal():
    master, slave = pty.openpty()
    return os.fdopen(master, "rb", 0), os.fdopen(slave, "wb", 0)


STREAMS = {"pipe": make_pipe, "socket": socket.socketpair, "terminal": make_terminal}


def write(fd: int) -> bool:
    """Write in another process, with a timeout, because a write that waits for a reader would never
    return.
    """
    argv = [sys.executable, "-c", WRITE, str(fd)]
    done = subprocess.run(argv, check=False, pass_fds=[fd], timeout=60)
    return done.returncode == 0


@pytest.mark.parametrize("kind", STREAMS)
def test_a_write_to_a_full_stream_does_not_wait(kind):
    theirs, ours = STREAMS[kind]()
    with theirs, ours:
        fill(ours.fileno())
        assert not write(ours.fileno())
        assert os.get_blocking(ours.fileno())


@pytest.mark.parametrize("kind", STREAMS)
def test_an_open_stream_gets_the_message(kind):
    theirs, ours = STREAMS[kind]()
    with theirs, ours:
        assert write(ours.fileno())
        assert os.read(theirs.fileno(), 100) == b"message"


@pytest.mark.parametrize("kind", STREAMS)
def test_a_write_to_a_full_stream_does_not_wait_on_older_kernels(kind, monkeypatch):
    """Imitate a kernel without RWF_NOWAIT. There corral opens the stream again, to get a
    non-blocking descriptor that no other process shares. A socket cannot be opened again, so corral
    polls it instead.
    """

    def absent(*_: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "pwritev", absent)
    theirs, ours = STREAMS[kind]()
    with theirs, ours:
        long = b"message" * 2000 if kind != "terminal" else b"message"
        assert unblocked_write.write_at_once(ours.fileno(), long)
        assert os.read(theirs.fileno(), 20_000) == long
        fill(ours.fileno())
        assert not unblocked_write.write_at_once(ours.fileno(), b"message")


def test_a_write_to_a_file_continues_at_its_end(tmp_path):
    with open(tmp_path / "log", "wb", 0) as log:
        log.write(b"before ")
        assert write(log.fileno())
        log.write(b" after")
    assert (tmp_path / "log").read_bytes() == b"before message after"
