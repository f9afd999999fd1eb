"""The only place that prints. stdout is the target's in `run`, so corral speaks on stderr there."""

from __future__ import annotations

import errno
import os
import select
import sys

from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

ELSEWHERE = "make room there, or send the output somewhere else"
ADVICE = {
    errno.EACCES: "see whose it is: corral has no other rights than you",
    errno.EPERM: "see whose it is: corral has no other rights than you",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk",
    errno.EMFILE: "raise `ulimit -n` where corral is started",
    errno.ENOMEM: "the machine has no memory left for it",
}
USUAL_ADVICE = "the system refused it; `corral doctor -v` shows what works here"
COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}


class UnwrittenError(SandboxError):
    exit_code = 1


class ReaderGoneError(Exception):
    """Nobody reads our stdout any more. Of all broken pipes this one is nobody's error."""


def of_the_system(problem: OSError) -> SandboxError:
    """What no part of corral has put into words of its own."""
    why = problem.strerror or str(problem)
    if problem.filename is not None:
        why = f"{os.fsdecode(problem.filename)!r}: {why}"
    return SandboxError(why, hint=ADVICE.get(problem.errno or 0, USUAL_ADVICE))


def say(text: str = "") -> None:
    if sys.stdout is None:
        return  # it was closed by whoever started us
    try:
        _write(sys.stdout, text + "\n")
    except BrokenPipeError:
        sys.stdout = None
        raise ReaderGoneError from None
    except OSError as problem:
        sys.stdout = None  # or the end would tell it once more
        raise UnwrittenError(f"cannot write: {problem.strerror}", hint=ELSEWHERE) from problem


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # A file name that is no text, or a terminal that knows fewer letters than we use.
        stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))


def note(text: str) -> None:
    _tell(f"corral: {text}\n")


def _tell(text: str) -> None:
    """A run goes on when nobody reads its warnings: what is lost is only the warning."""
    if sys.stderr is None or not _has_room(sys.stderr.fileno()):
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = None  # or the interpreter tries again at its end


def _has_room(fd: int) -> bool:
    """A pipe that its reader let run full would hold corral, and with it the stop of the target."""
    if sys.platform == "win32":
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def finish(code: int) -> int:
    """Flush; the exit code, unless what was said could not be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass  # the reader is gone; what it did not read is nobody's error
        except OSError as problem:
            _tell(f"corral: cannot write: {problem.strerror}\nhint: {ELSEWHERE}\n")
            code = code or UnwrittenError.exit_code
    return code


def warn(text: str) -> None:
    note(f"warning: {text}")


def error(problem: SandboxError) -> None:
    """Two lines: what, then a hint."""
    note(problem.message)
    if problem.hint:
        _tell(f"hint: {problem.hint}\n")


def json(value: object) -> None:
    import json as module

    say(module.dumps(value, indent=2, ensure_ascii=False))


def paint(text: str, colour: str) -> str:
    """Colour only where a person looks and has not refused it."""
    if "NO_COLOR" in os.environ or sys.stdout is None or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        say("  ".join(padded).rstrip())
