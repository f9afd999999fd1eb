"""What was denied: for the report, and line by line for `--audit`.

The target decides how often it is denied something, so the record is bounded: equal denials are
counted, and what exceeds the limit is only counted as a whole. In the audit file a denial has a
line when it is first seen and at each further power of ten, and all have one with their totals at
the end.

An audit line is a JSON object whose `previous` is the SHA-256 of the line before it: a line that
was changed, removed or put in shows. What cannot show is a file that was rewritten as a whole, or
cut off at its end (a run that was killed leaves no last line either).
"""

from __future__ import annotations

import os
import sys
import time

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["name", "port", "address", "guard", "sni", "limit", "udp"]

MOST_DENIALS = 256
LONGEST_TEXT = 300
FIRST = "0" * 64
LONGEST_LINE = 8192


@record
class Denial:
    """`allow` is the entry of `network.allow` that would allow it; empty if none would."""

    kind: Kind
    destination: str
    allow: str
    why: str = ""
    count: int = 1

    def describe(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        why = f": {self.why}" if self.why else ""
        return f"network: {WORDS[self.kind]} {self.destination}{why}{times}"


WORDS: dict[Kind, str] = {
    "name": "looked up",
    "port": "connected to",
    "address": "connected to",
    "guard": "an allowed name led to",
    "sni": "said over TLS that it wants",
    "limit": "too much:",
    "udp": "sent a datagram to",
}


class Denials:
    """`lost` counts what was denied after the record was full."""

    def __init__(self, *, most: int = MOST_DENIALS, audit: Audit | None = None) -> None:
        self.most = most
        self.lost = 0
        self._audit = audit
        self._counts: dict[tuple[Kind, str, str, str], int] = {}

    def add(self, kind: Kind, destination: str, *, allow: str, why: str = "") -> None:
        key = (kind, destination[:LONGEST_TEXT], allow[:LONGEST_TEXT], why[:LONGEST_TEXT])
        count = self._counts.get(key, 0) + 1
        if count == 1 and len(self._counts) >= self.most:
            self.lost += 1
            return
        self._counts[key] = count
        if self._audit is not None and is_power_of_ten(count):
            self._audit.write(self._row(key))

    def rows(self) -> tuple[Denial, ...]:
        """In the order in which they were first seen."""
        return tuple(map(self._row, self._counts))

    def close(self) -> None:
        """The totals, where the audit does not have them yet, and its last line."""
        if self._audit is None:
            return
        for row in self.rows():
            if not is_power_of_ten(row.count):
                self._audit.write(row)
        self._audit.end(len(self._counts), self.lost)
        self._audit = None

    def _row(self, key: tuple[Kind, str, str, str]) -> Denial:
        kind, destination, allow, why = key
        count = self._counts[key]
        return Denial(kind=kind, destination=destination, allow=allow, why=why, count=count)


def is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"


def open_audit(path: str) -> int:
    """The audit file, to be opened before the target runs; it is appended to, by one run at a time.

    OSError if it is a link or no plain file, BlockingIOError if another run writes it.
    """
    import stat

    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"):
        flags |= getattr(os, name, 0)
    fd = os.open(path, flags, 0o600)
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

        # Locks hold readers off there too, so it is a byte that no reader comes to; the C runtime
        # keeps 32 bits of where it is.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(11, "another run writes it") from error
        return
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Audit:
    """Lines on a descriptor from `open_audit`, continuing the chain that the file already has.

    `incomplete`: a line could not be written, which the report has to say.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.incomplete = False
        self._previous = _last_hash(fd)

    def write(self, denial: Denial) -> None:
        self._line(
            kind=denial.kind,
            destination=denial.destination,
            why=denial.why,
            allow=denial.allow,
            count=denial.count,
        )

    def end(self, denials: int, lost: int) -> None:
        self._line(kind="end", denials=denials, lost=lost)

    def _line(self, **values: str | int) -> None:
        import json

        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = json.dumps({"time": now, **values, "previous": self._previous})
        line = text.encode("ascii")
        # One write: a run that is killed leaves whole lines. A full disk must not end the run.
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
    """The hash of the last line; ValueError if the file does not end in a whole one of ours."""
    size = os.fstat(fd).st_size
    if size == 0:
        return FIRST
    os.lseek(fd, max(0, size - LONGEST_LINE), os.SEEK_SET)
    tail = os.read(fd, LONGEST_LINE)
    lines = tail.split(b"\n")
    if len(lines) < 2 or lines[-1] or _previous(lines[-2]) is None:
        raise ValueError("the file does not end in a line of an audit")
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
    """`broken` is the number of the first line that does not follow from those before it."""

    lines: int
    broken: int | None = None
    ended: bool = False


def verify(path: str) -> Verdict:
    """Does every line follow from the one before it? `ended`: the last run wrote its last line."""
    import json

    expected, number, last = FIRST, 0, b""
    with open(path, "rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            whole = line.endswith(b"\n")
            last = line.rstrip(b"\n")
            if not whole or _previous(last) != expected:
                return Verdict(lines=number, broken=number)
            expected = digest(last)
    ended = bool(last) and json.loads(last).get("kind") == "end"
    return Verdict(lines=number, ended=ended)
