"""Record the denials of one run for stderr, its report and its audit file.

The target can cause any number of denials, so the record is bounded: equal denials are counted
together, and beyond a limit new denials are only counted in total. Stderr gets a line for each new
denial, up to MAX_ANNOUNCED. The audit file gets a line when a denial occurs for the first, 10th,
100th time and so on, and the totals at the end.
"""

from __future__ import annotations

import _thread
import os

from corral.directories import directories
from corral.record import record, replace
from corral.safe_text import MASK, shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from corral.denials.audit import Audit
    from corral.denials.server_id import ServerId

    Hide = Callable[[str], tuple[str, str]]
    Kind = Literal[
        "name", "port", "address", "guard", "sni", "limit", "udp", "loopback", "listen", "start",
        "own_files", "path", "unix_socket", "variable", "unreachable", "tool", "prompt",
        "resource", "template", "instructions", "request", "message",
    ]  # fmt: skip

MAX_DENIALS = 256
MAX_ANNOUNCED = 20
MAX_TEXT_LENGTH = 300
MAX_SEARCHED_LENGTH = 2000
"""Strings are truncated to this length before they are searched for secrets."""
MARKS = frozenset(";()`'\"")
"""Characters that separate the parts of a denial's line or quote one of them."""
COMPOSED = frozenset(("guard",))
"""The kinds of denials whose destination may be `host (address)`. corral itself adds these
parentheses, so such a destination is not quoted.
"""
WORDS: dict[Kind, str] = {
    "name": "name",
    "port": "connection to",
    "address": "connection to",
    "guard": "connection to",
    "sni": "TLS server name",
    "limit": "",  # the denial's destination is the name of the limit
    "udp": "datagram to",
    "loopback": "connection to",
    "listen": "listening on",
    "start": "start of",
    "own_files": "write to the server's own files:",
    "path": "access to",
    "unix_socket": "connection to",
    "variable": "variable",
    "unreachable": "allowed, but the host did not reach",
    "tool": "tool",
    "prompt": "prompt",
    "resource": "resource",
    "template": "resource",
    "instructions": "instructions",
    "request": "request from the server:",
    "message": "message:",
}


@record
class Denial:
    """One thing that was denied to a target, and the flag that would allow it.

    `destination` is the name, address, program, path or variable that the target wanted. `allow` is
    the flag of `corral run` that would allow it, quoted for a shell, or "" if no flag would. If
    `guessed` is true, the kernel did not report the destination, so it may be wrong. An
    `unreachable` destination was allowed, but the host itself could not connect.
    """

    kind: Kind
    destination: str
    allow: str = ""
    why: str = ""
    count: int = 1
    guessed: bool = False

    def describe(self) -> str:
        """Return one line, such as `denied: start of git; --allow-subprocess`."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        why = f" ({self.why})" if self.why else ""
        allow = f"; {self.allow}" if self.allow else ""
        denied = "denied: " if self.kind != "unreachable" else ""
        # The target chooses the destination. Quote it if it could look like corral's own text, such
        # as `x; --write ~`.
        marked = not MARKS.isdisjoint(self.destination)
        quoted = self.kind == "path" or (marked and self.kind not in COMPOSED)
        what = shell_word(self.destination) if quoted else self.destination
        words = f"{WORDS[self.kind]} {what}".lstrip()
        return f"{denied}{words}{why}{times}{allow}"


@record
class Discarded:
    """A file in the target's private directories, which was discarded at the end of the run."""

    path: str
    bytes: int


def allow_net(entry: str) -> str:
    """Return the flag for an entry of `network.allow`, or "" for an empty entry."""
    return f"--allow-net {shell_word(entry)}" if entry else ""


class Denials:
    """Counts denials, and can be used from several threads. `lost` counts the denials beyond the
    limit.

    `announce` is called with a line for each of the first MAX_ANNOUNCED different denials. `keep`
    is called with each new denial, but not for an unreachable destination. Secrets are masked
    before both calls.
    """

    def __init__(
        self,
        *,
        max_denials: int = MAX_DENIALS,
        audit: Audit | None = None,
        announce: Callable[[str], None] | None = None,
        keep: Callable[[Denial], None] | None = None,
    ) -> None:
        self.lost = 0
        self._max_denials = max_denials
        self._audit = audit
        self._announce = announce
        self._keep = keep
        self._counts: dict[Denial, int] = {}
        self._lock = _thread.allocate_lock()
        self._closed = False
        self._noted: set[str] = set()
        self._load_hide: Callable[[], Hide] = lambda: lambda text: (text, "")
        self._hide: Hide | None = None

    def hide_secrets(self, load: Callable[[], Hide]) -> None:
        """Mask secrets with the function that `load` returns. `load` is not called before there is
        a text to mask, so that a run without denials and messages does not search its environment
        variables for secrets.
        """
        self._load_hide = load

    def load_hide(self) -> Hide:
        """Return the function that masks secrets. If it cannot be loaded, return one that masks
        every string.
        """
        if self._hide is None:
            try:
                self._hide = self._load_hide()
            except (OSError, ImportError):
                self._hide = lambda _: (MASK, "a possible secret")
        return self._hide

    def add(
        self, kind: Kind, destination: str, *, allow: str = "", why: str = "", guessed: bool = False
    ) -> None:
        cut = slice(MAX_TEXT_LENGTH)
        destination, secret = self._hidden(destination)
        why, masked = self._hidden(why)
        if masked or len(why) > MAX_TEXT_LENGTH:
            # After "; " the reason may name a command. Drop the command, because a command that is
            # cut off or masked does something else.
            why = why.partition("; ")[0]

        # Drop a flag that would have to be shortened or masked, because it would then allow
        # something else. If the destination is secret, drop any flag with a value, because the
        # value is the destination.
        if len(allow) > MAX_TEXT_LENGTH or self._hidden(allow)[1] or (secret and " " in allow):
            allow = ""
        if secret:
            why = ", ".join(filter(None, (why, f"with the value of {secret}")))
        denial = Denial(
            kind=kind, destination=destination[cut], allow=allow, why=why[cut], guessed=guessed
        )
        with self._lock:
            if not self._closed:
                self._count(denial)

    def log(self, kind: str, **values: str | int) -> None:
        """Write a line to the audit file about an event that is not a denial."""
        hidden = {
            name: self._hidden(value)[0] if isinstance(value, str) else value
            for name, value in values.items()
        }
        with self._lock:
            if self._audit is not None:
                self._audit.write_line(kind=kind, **hidden)

    def note(self, text: str) -> None:
        """Print a message that is not a denial. Each message is printed only once, and at most
        MAX_ANNOUNCED messages in all.
        """
        text, _ = self._hidden(text)
        with self._lock:
            if self._announce is None or text in self._noted or len(self._noted) >= MAX_ANNOUNCED:
                return
            self._noted.add(text)
            self._announce(text)

    def rows(self) -> tuple[Denial, ...]:
        """Return the denials in the order of their first occurrence."""
        with self._lock:
            return tuple(map(self._row, self._counts))

    def close(self) -> None:
        """Write the last lines of the audit file. Ignore denials from now on, because threads of a
        proxy may still report some.
        """
        with self._lock:
            self._closed = True
            if self._audit is None:
                return
            for row in map(self._row, self._counts):
                if not is_power_of_ten(row.count):
                    self._audit.write(row)
            self._audit.end(len(self._counts), self.lost)
            self._audit = None

    def _hidden(self, text: str) -> tuple[str, str]:
        return self.load_hide()(text[:MAX_SEARCHED_LENGTH]) if text else ("", "")

    def _count(self, denial: Denial) -> None:
        count = self._counts.get(denial, 0) + 1
        if count == 1 and len(self._counts) >= self._max_denials:
            self.lost += 1
            return
        self._counts[denial] = count
        if self._audit is not None and is_power_of_ten(count):
            self._audit.write(self._row(denial))
        if self._keep is not None and count == 1 and denial.kind != "unreachable":
            self._keep(denial)
        if self._announce is not None and count == 1 and len(self._counts) <= MAX_ANNOUNCED:
            self._announce(denial.describe())
            if len(self._counts) == MAX_ANNOUNCED:
                self._announce("further denials are listed only in the --report file")

    def _row(self, denial: Denial) -> Denial:
        return replace(denial, count=self._counts[denial])


def is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"


def all_kept() -> str:
    return os.path.join(directories().state, "denials")


def kept_directory(server: ServerId) -> str:
    return os.path.join(all_kept(), server.digest)
