"""Write and verify the audit file of `run --audit`. Its lines form a hash chain.

Each line is a JSON object whose `previous` is the SHA-256 of the line before it. So `verify`
notices if a line was changed, removed or inserted. It cannot notice that the whole file was
rewritten, or that lines were removed at the end, because the file of a killed run ends early, too.
"""

import os
import sys
import time

from corral.denials.records import Denial
from corral.record import record

FIRST = "0" * 64  # the `previous` of the first line
MAX_LINE_BYTES = 8192


def open_audit(path: str) -> int:
    """Open the audit file for appending, before the target runs.

    Raise OSError if the file is not a regular file, belongs to another user, or has several hard
    links. Raise BlockingIOError if another run has the file open.
    """
    import stat

    from corral.abi.output_file import open_output

    fd = open_output(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(22, "not a plain file", path)
        _lock(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lock(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        # On Windows a lock also keeps other processes from reading the locked bytes. So lock a byte
        # beyond the end of the file. 1 GiB still fits into the C runtime's offsets of 32 bits.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(11, "another run is writing to it") from error
        return
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Audit:
    """Appends lines to an audit file and continues its hash chain. `incomplete` is true if a line
    could not be written.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.incomplete = False
        self._previous = _last_hash(fd)

    def write(self, denial: Denial) -> None:
        names = ("kind", "destination", "why", "allow", "count", "guessed")
        self.write_line(**{name: getattr(denial, name) for name in names})

    def end(self, denials: int, lost: int) -> None:
        self.write_line(kind="end", denials=denials, lost=lost)

    def write_line(self, **values: str | int) -> None:
        import json

        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = json.dumps({"time": now, **values, "previous": self._previous})
        line = text.encode("ascii")
        # Write each line with a single call, so that a killed run leaves only whole lines. If the
        # disk is full, the run continues.
        try:
            whole = os.write(self.fd, line + b"\n") > len(line)
        except OSError:
            whole = False
        self.incomplete = self.incomplete or not whole
        self._previous = digest(line)


def digest(line: bytes) -> str:
    import hashlib

    return hashlib.sha256(line).hexdigest()


def _last_hash(fd: int) -> str:
    """Return the hash of the last line, or FIRST if the file is empty. Raise ValueError if the last
    line is incomplete or does not come from an audit.
    """
    size = os.fstat(fd).st_size
    if size == 0:
        return FIRST
    os.lseek(fd, max(0, size - MAX_LINE_BYTES), os.SEEK_SET)
    tail = os.read(fd, MAX_LINE_BYTES)
    lines = tail.split(b"\n")
    if len(lines) < 2 or lines[-1] or _previous(lines[-2]) is None:
        raise ValueError("the last line is incomplete or is not from an audit file")
    return digest(lines[-2])


def _previous(line: bytes) -> str | None:
    import json

    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    value = found.get("previous") if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


@record
class Verdict:
    """The result of `verify`. `broken` is the number of the first line that breaks the hash chain.
    `ended` is true if the last run wrote its last line.
    """

    lines: int
    broken: int | None = None
    ended: bool = False


def verify(path: str) -> Verdict:
    """Check that the `previous` of each line is the hash of the line before it."""
    import json

    expected, number, last = FIRST, 0, b""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if sys.platform != "win32":
        os.set_blocking(fd, True)
    with open(fd, "rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            whole = line.endswith(b"\n")
            last = line.rstrip(b"\n")
            if not whole or _previous(last) != expected:
                return Verdict(lines=number, broken=number)
            expected = digest(last)
    if not number:
        return Verdict(lines=0, broken=1)
    ended = bool(last) and json.loads(last).get("kind") == "end"
    return Verdict(lines=number, ended=ended)
