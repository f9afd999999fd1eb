"""Print all of corral's output. `run` uses stderr, because stdout belongs to the target.

The names of files, packages, servers and variables are untrusted, so this module escapes everything
that it prints: control characters, line breaks, and characters that change the direction of text.
Callers therefore pass one line at a time. Only this module adds escape sequences, which colour text
and clear the screen.
"""

from __future__ import annotations

import errno
import os
import sys

from corral.errors import SandboxError
from corral.safe_text import has_escapes, is_visible, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

OUTPUT_HINT = "redirect the output to another file, or free space on the disk"
ERRNO_HINTS = {
    errno.EACCES: "check who owns the file: corral has only your own permissions",
    errno.EPERM: "check who owns the file: corral has only your own permissions",
    errno.EMFILE: "raise `ulimit -n` where corral is started",
    errno.ENOMEM: "free some memory: none is left on this machine",
}
DEFAULT_HINT = "the system refused this; `corral doctor -v` shows what works here"
DIRECTORY_HINT = "start corral from a directory that exists"
PLAIN_MARKS = {ord("✓"): "+", ord("⚠"): "!", ord("✗"): "x"}
COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}


class UnwrittenError(SandboxError):
    exit_code = 1


class ReaderGoneError(Exception):
    """The reader of corral's stdout, such as `head`, has closed it. This is not an error."""


def from_os_error(problem: OSError) -> SandboxError:
    """Turn an OSError that no other code has handled into an error with a message and a hint."""
    why = problem.strerror or str(problem)
    if problem.filename is None and _is_directory_removed():
        return SandboxError(f"the current directory cannot be found: {why}", hint=DIRECTORY_HINT)
    if problem.filename is not None:
        why = f"{os.fsdecode(problem.filename)!r}: {why}"
    hint = ERRNO_HINTS.get(problem.errno or 0) or _hint_of_disk(problem)
    return SandboxError(why, hint=hint or DEFAULT_HINT)


def _is_directory_removed() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _hint_of_disk(problem: OSError) -> str:
    try:
        from corral.disk_hints import disk_hint
    except (OSError, ImportError):
        return ""  # the module cannot be imported, so report the problem without its hint
    return disk_hint(problem, os.fsdecode(problem.filename or os.curdir))


NO_MEMORY = (
    b"corral: corral itself has no memory left; any running target was stopped\n"
    b"hint: raise `ulimit -v` and the memory of the cgroup or container, or end other programs\n"
)
"""A constant, because formatting a message would need memory."""


def from_fault(problem: Exception) -> SandboxError:
    """Return an error for an unexpected exception. The cause is a bug in corral, or corral's files
    were replaced while it ran.
    """
    if isinstance(problem, ImportError) or _is_replaced():
        why = f"corral's own files were removed or replaced while it ran: {problem}"
        hint = "start corral again; if that fails too, install it again"
    else:
        why = f"corral failed: {type(problem).__name__}: {problem}"
        hint = f"report this bug with the output of `{sys.executable} -X dev -m corral ...`"
    return SandboxError(f"{why}; any running target was stopped", hint=hint)


def _is_replaced() -> bool:
    """Return whether corral was removed, or replaced by another version, since it was started."""
    import corral

    try:
        with open(str(corral.__file__), encoding="utf-8") as file:
            return f'\n__version__ = "{corral.__version__}"\n' not in file.read()
    except OSError:
        return True


class Painted:
    """Text that `write_line` prints in a colour if stdout is a terminal."""

    __slots__ = ("colour", "text")

    def __init__(self, text: str, colour: str) -> None:
        self.text = text
        self.colour = colour


def write_line(*parts: str | Painted) -> None:
    """Print the parts as one line. Line breaks in them are escaped."""
    _write_stdout("".join(map(_render, parts)) + "\n")


def clear_screen() -> None:
    if has_escapes(sys.stdout):
        _write_stdout("\033[H\033[2J")


def flush() -> None:
    _write_stdout("", flush=True)


def write_lines(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(line)


def _render(part: str | Painted) -> str:
    if isinstance(part, str):
        return printable(part)
    return _paint(printable(part.text), part.colour, sys.stdout)


def _paint(text: str, colour: str, stream: TextIO | None) -> str:
    if os.environ.get("NO_COLOR") or not has_escapes(stream):
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def _write_stdout(text: str, *, flush: bool = False) -> None:
    if sys.stdout is None:
        return  # stdout was closed when corral was started, or an earlier write has failed
    try:
        _write(sys.stdout, text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
        raise ReaderGoneError from None
    except OSError as problem:
        sys.stdout = None  # otherwise `finish` reports the same error again
        raise UnwrittenError(f"cannot print: {problem.strerror}", hint=OUTPUT_HINT) from problem


def use_utf8() -> None:
    """On Windows, make Python write UTF-8 into pipes and files instead of the system's code page.
    Do nothing if the user has set PYTHONIOENCODING.
    """
    if sys.platform != "win32" or "PYTHONIOENCODING" in os.environ:
        return
    import io

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # Replace the characters that the stream's encoding lacks.
        plain = text.translate(PLAIN_MARKS)
        stream.write(plain.encode(stream.encoding, "backslashreplace").decode(stream.encoding))


def note(text: str) -> None:
    _write_stderr(f"corral: {printable(text)}\n")


def prompt(text: str) -> None:
    """Print a question. Flush both streams, so that the user sees everything before corral waits
    for the answer.
    """
    flush()
    if sys.stderr is None:
        raise SandboxError(
            "the question cannot be shown, because stderr is closed",
            hint="start corral with stderr on the terminal",
        )
    sys.stderr.write(f"corral: {printable(text)} ")
    sys.stderr.flush()


def end_prompt() -> None:
    """End the line of a question that was not answered."""
    _write_stderr("\n")


def _write_stderr(text: str) -> None:
    """Write a message to stderr. Except on Windows, write only as much as stderr accepts without
    waiting. Ignore errors, because a run must continue even if its warnings cannot be printed.
    """
    stream = sys.stderr
    if stream is None:
        return
    try:
        if sys.platform == "win32":
            stream.write(text)
            stream.flush()
        else:
            _write_at_once(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
    except OSError:
        sys.stderr = None  # otherwise Python flushes stderr at exit, and fails again


if sys.platform != "win32":

    def _write_at_once(fd: int, data: bytes) -> None:
        try:
            from corral.platforms.posix.unblocked_write import write_at_once
        except (OSError, ImportError):
            # The import fails if no file descriptor is left, or if corral's files were removed.
            import select

            if select.select((), (fd,), (), 0)[1]:
                os.write(fd, data)
        else:
            write_at_once(fd, data)


def finish(code: int) -> int:
    """Flush the streams. Return `code`, or 1 if `code` is 0 and a stream cannot be written. It is
    not an error if the program that reads a stream has closed it.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass
        except OSError as problem:
            _write_stderr(f"corral: cannot print: {problem.strerror}\nhint: {OUTPUT_HINT}\n")
            code = code or UnwrittenError.exit_code
    return code


def warn(text: str) -> None:
    mark = _paint("warning:", "yellow", sys.stderr)
    _write_stderr(f"corral: {mark} {printable(text)}\n")


def write_error(problem: SandboxError) -> None:
    first, *details = problem.lines
    _write_stderr(f"{_paint('corral:', 'red', sys.stderr)} {printable(first)}\n")
    for line in details:
        _write_stderr(f"  {printable(line)}\n")
    if problem.hint:
        write_hint(problem.hint)


def write_hint(text: str) -> None:
    _write_stderr(f"{_paint('hint:', 'bold', sys.stderr)} {printable(text)}\n")


def write_json(value: object) -> None:
    """Print JSON. Escape the characters that could change what a terminal displays."""
    import json

    # Line breaks end the lines of the text, and must stay. All other unprintable characters are
    # inside strings, where JSON allows escapes.
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    shown = (c if is_visible(c) or c == "\n" else json.dumps(c)[1:-1] for c in text)
    _write_stdout("".join(shown))


def write_result(value: object, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        write_json(value)
    else:
        write_lines(lines)


def write_table(
    rows: Sequence[tuple[str, ...]], empty: str = "", *, header: tuple[str, ...] = ()
) -> None:
    """Write rows in columns, below a header. Without rows, write only the line `empty`."""
    if empty and not rows:
        write_line(empty)
    rows = [header, *rows] if header and rows else rows
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        padded = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        write_line("  ".join(padded).rstrip())
