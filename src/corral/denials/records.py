"""The denials of one run, for its report and its audit file.

The target decides how often it is denied something, so the record is bounded: equal denials are
counted, and denials that exceed the limit are only counted as a whole. The audit file gets a line
for a denial when it is first seen and at each further power of ten, and at the end the totals.
"""

from __future__ import annotations

import _thread

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from corral.denials.audit import Audit

    Kind = Literal["name", "port", "address", "guard", "sni", "limit", "udp"]

MAX_DENIALS = 256
MAX_TEXT_LENGTH = 300


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
    """Counts denials; threads may share it. `lost` counts those that came after it was full."""

    def __init__(self, *, max_denials: int = MAX_DENIALS, audit: Audit | None = None) -> None:
        self.lost = 0
        self._max_denials = max_denials
        self._audit = audit
        self._counts: dict[tuple[Kind, str, str, str], int] = {}
        self._lock = _thread.allocate_lock()
        self._closed = False

    def add(self, kind: Kind, destination: str, *, allow: str = "", why: str = "") -> None:
        key = (kind, destination[:MAX_TEXT_LENGTH], allow[:MAX_TEXT_LENGTH], why[:MAX_TEXT_LENGTH])
        with self._lock:
            if not self._closed:
                self._count(key)

    def rows(self) -> tuple[Denial, ...]:
        """Return the denials in the order in which they were first seen."""
        with self._lock:
            return tuple(map(self._row, self._counts))

    def close(self) -> None:
        """Ignore further denials, which late threads of a proxy may add, and end the audit."""
        with self._lock:
            self._closed = True
            if self._audit is None:
                return
            for row in map(self._row, self._counts):
                if not is_power_of_ten(row.count):
                    self._audit.write(row)
            self._audit.end(len(self._counts), self.lost)
            self._audit = None

    def _count(self, key: tuple[Kind, str, str, str]) -> None:
        count = self._counts.get(key, 0) + 1
        if count == 1 and len(self._counts) >= self._max_denials:
            self.lost += 1
            return
        self._counts[key] = count
        if self._audit is not None and is_power_of_ten(count):
            self._audit.write(self._row(key))

    def _row(self, key: tuple[Kind, str, str, str]) -> Denial:
        kind, destination, allow, why = key
        count = self._counts[key]
        return Denial(kind=kind, destination=destination, allow=allow, why=why, count=count)


def is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"
