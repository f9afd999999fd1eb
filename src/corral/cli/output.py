"""Print for the user: the only module that prints. `run` uses stderr, as stdout is the target's."""

from __future__ import annotations

import errno
import os
import select
import sys

from corral.errors import SandboxError

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


def write_line(text: str = "") -> None:
    if sys.stdout is None:
        return  # stdout was closed when corral was started
    try:
        _write(sys.stdout, text + "\n")
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
        # A file name that is not text, or a terminal without some characters.
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))


def note(text: str) -> None:
    _write_stderr(f"corral: {text}\n")


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
    """Print two lines: what failed, then a hint."""
    note(problem.message)
    if problem.hint:
        _write_stderr(f"hint: {problem.hint}\n")


def write_json(value: object) -> None:
    import json

    write_line(json.dumps(value, indent=2, ensure_ascii=False))


def write_result(value: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a value as JSON, or as lines for people."""
    if as_json:
        write_json(value)
        return
    for line in lines:
        write_line(line)


def paint(text: str, colour: str) -> str:
    """Colour text on a terminal, unless NO_COLOR is set."""
    if "NO_COLOR" in os.environ or sys.stdout is None or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def write_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        write_line("  ".join(padded).rstrip())
