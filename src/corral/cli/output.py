"""Print for the user: the only module that prints. `run` uses stderr, as stdout is the target's.

Names of files, packages, servers and variables are chosen by others, so everything that is printed
is escaped here: control characters, line ends, and characters that change the direction of text.
Callers therefore pass one line at a time. Only `Painted` text gets escape sequences, from here.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from corral.errors import SandboxError
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

OUTPUT_HINT = "make room there, or send the output somewhere else"
ERRNO_HINTS = {
    errno.EACCES: "see whose it is: corral has no other rights than you",
    errno.EPERM: "see whose it is: corral has no other rights than you",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk",
    errno.EMFILE: "raise `ulimit -n` where corral is started",
    errno.ENOMEM: "the machine has no memory left for it",
}
DEFAULT_HINT = "the system refused it; `corral doctor -v` shows what works here"
COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}


class UnwrittenError(SandboxError):
    exit_code = 1


class ReaderGoneError(Exception):
    """The reader closed corral's stdout. Unlike other broken pipes this is not an error."""


def from_os_error(problem: OSError) -> SandboxError:
    """Make a message for an error of the system that no other code has described."""
    why = problem.strerror or str(problem)
    if problem.filename is not None:
        why = f"{os.fsdecode(problem.filename)!r}: {why}"
    return SandboxError(why, hint=ERRNO_HINTS.get(problem.errno or 0, DEFAULT_HINT))


class Painted:
    """Text that `write_line` shows in a colour on a terminal."""

    __slots__ = ("colour", "text")

    def __init__(self, text: str, colour: str) -> None:
        self.text = text
        self.colour = colour


def write_line(*parts: str | Painted) -> None:
    """Print the parts as one line; a line end in them is escaped."""
    _write_stdout("".join(map(_render, parts)) + "\n")


def write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(line)


def _render(part: str | Painted) -> str:
    if isinstance(part, str):
        return printable(part)
    text = printable(part.text)
    if "NO_COLOR" in os.environ or sys.stdout is None or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[part.colour]}m{text}\033[0m"


def _write_stdout(text: str) -> None:
    if sys.stdout is None:
        return  # stdout was closed when corral was started
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        sys.stdout = None
        raise ReaderGoneError from None
    except OSError as problem:
        sys.stdout = None  # otherwise `finish` reports the same error again
        raise UnwrittenError(f"cannot write: {problem.strerror}", hint=OUTPUT_HINT) from problem


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # The terminal's encoding does not have some characters.
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))


def note(text: str) -> None:
    _write_stderr(f"corral: {printable(text)}\n")


def prompt(text: str) -> None:
    """Ask a question, whatever stderr takes: the user has to see it before an answer counts."""
    sys.stdout.flush()
    sys.stderr.write(f"corral: {printable(text)} ")
    sys.stderr.flush()


def _write_stderr(text: str) -> None:
    """Write a message if stderr takes it. A run goes on without its warnings."""
    if sys.stderr is None or not _is_writable(sys.stderr.fileno()):
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = None  # otherwise the interpreter tries again when it exits


def _is_writable(fd: int) -> bool:
    """Return whether a write would not block: a full pipe would also block stopping the target."""
    if sys.platform == "win32":
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def finish(code: int) -> int:
    """Flush the streams, and return the exit code, or another if stdout cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass  # the reader is gone, which is not an error
        except OSError as problem:
            _write_stderr(f"corral: cannot write: {problem.strerror}\nhint: {OUTPUT_HINT}\n")
            code = code or UnwrittenError.exit_code
    return code


def warn(text: str) -> None:
    note(f"warning: {text}")


def write_error(problem: SandboxError) -> None:
    """Print what failed, with details in lines of their own, then a hint."""
    first, *details = problem.lines
    note(first)
    for line in details:
        _write_stderr(f"  {printable(line)}\n")
    if problem.hint:
        _write_stderr(f"hint: {printable(problem.hint)}\n")


def write_json(value: object) -> None:
    """Print JSON, and escape in it what could change what a terminal shows."""
    import json

    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    _write_stdout("".join(f"{_escape_json(line)}\n" for line in lines))


def _escape_json(line: str) -> str:
    """Escape inside strings: a line of JSON has unprintable characters nowhere else."""
    import json

    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def write_result(value: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a value as JSON, or as lines for people."""
    if as_json:
        write_json(value)
    else:
        write_lines(lines)


def write_table(rows: list[tuple[str, ...]]) -> None:
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        write_line("  ".join(padded).rstrip())
