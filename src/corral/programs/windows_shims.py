r"""Parse launchers and shims without running them. Nothing here does any I/O.

- `Scripts\tool.exe` from pip (distlib): a launcher, a `#!` line, and a zip that contains the
  script.
- `Scripts\tool.exe` from uv: its resources name the interpreter; older versions have a trailer
  instead.
- `tool.cmd` from npm, pnpm and similar tools. A batch file can do anything, so a line is only
  accepted if it is written exactly as these tools write it.
- scoop's `tool.shim`, setuptools' `tool-script.py`, and the settings of a virtual environment.
"""

import struct
from typing import Literal

from corral.programs import windows_pe_resources
from corral.record import record

Kind = Literal["script", "python"]

END_OF_ZIP = b"PK\x05\x06"
MAX_COMMENT = 0xFFFF
MAX_LINE = 4096
UV_KINDS: dict[bytes, Kind] = {b"\x01": "script", b"\x02": "python"}
UV_TRAILERS: dict[bytes, Kind] = {b"UVSC": "script", b"UVPY": "python", b"UVUV": "script"}
HERE = "<launcher_dir>"


@record
class Launcher:
    """A program file that starts the interpreter `python`. A launcher of the kind "script" also
    contains a zip, which the interpreter runs.

    A relative `python` is relative to the launcher's directory. If it is a bare name and that
    directory does not contain it, it is searched on PATH.
    """

    kind: Kind
    python: str
    arguments: tuple[str, ...] = ()


@record
class Shim:
    """A file that only starts another program. The other program is the file at the path `beside`
    if that file exists, and otherwise `program`, which is a path or a name on PATH.
    """

    program: str
    arguments: tuple[str, ...] = ()
    beside: str = ""


def launcher(raw: bytes) -> Launcher | None:
    """Parse a program file. Return None if it is not a launcher written by a Python tool."""
    return _uv_resources(raw) or _uv_trailer(raw) or _appended(raw)


def _uv_resources(raw: bytes) -> Launcher | None:
    found = windows_pe_resources.resources(raw)
    kind = UV_KINDS.get(found.get("UV_TRAMPOLINE_KIND", b"")[:1])
    path = _text(found.get("UV_PYTHON_PATH", b""))
    return Launcher(kind=kind, python=path) if kind and path else None


def _uv_trailer(raw: bytes) -> Launcher | None:
    """Parse uv's older launchers. They end with a zip, the path of the interpreter, the length of
    this path, and four letters for the kind of the launcher.
    """
    kind = UV_TRAILERS.get(raw[-4:])
    if not kind or not windows_pe_resources.is_program(raw):
        return None
    length = struct.unpack_from("<I", raw, len(raw) - 8)[0]
    if not 0 < length <= MAX_LINE or length + 8 > len(raw):
        return None
    path = _text(raw[-8 - length : -8])
    return Launcher(kind=kind, python=path) if path else None


def _appended(raw: bytes) -> Launcher | None:
    """Parse a distlib launcher, which has the `#!` line directly before its zip."""
    end = raw.rfind(END_OF_ZIP, max(0, len(raw) - MAX_COMMENT - 22))
    if end < 0 or end + 22 > len(raw) or not windows_pe_resources.is_program(raw):
        return None
    size, offset = struct.unpack_from("<II", raw, end + 12)
    start = end - size - offset
    if start <= 0:
        return None
    mark = raw.rfind(b"#!", max(0, start - MAX_LINE), start)
    line = raw[mark + 2 : start] if mark >= 0 else b""
    if not line.endswith(b"\n") or line.count(b"\n") != 1:
        return None
    return shebang(line)


def shebang(line: bytes) -> Launcher | None:
    """Parse the text after `#!` as distlib's launchers do: a path, which may be quoted, then
    arguments.
    """
    text = _text(line.strip())
    if text.startswith('"'):
        path, _, rest = text[1:].partition('"')
    elif ".exe" in text.lower():
        # distlib does not quote an interpreter that was named explicitly, even if its path has
        # spaces. So the path ends after `.exe`, not at the first space.
        at = text.lower().index(".exe") + 4
        path, rest = text[:at], text[at:]
    else:
        path, _, rest = text.partition(" ")
    if not path or '"' in rest:
        return None
    return Launcher(kind="script", python=path, arguments=tuple(rest.split()))


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return "" if any(char < " " for char in text) else text


# Lines in the shims of npm and pnpm that do not affect which program is run.
NEUTRAL = frozenset((
    "", "@echo off", "goto start", ":find_dp0", "set dp0=%~dp0", "exit /b", ":start", "setlocal",
    "@setlocal", "call :find_dp0", ") else (", ")", "set pathext=%pathext:;.js;=;%",
    "@set pathext=%pathext:;.js;=;%", "@if not defined node_path (",
))  # fmt: skip

# In npm's shims, one of these strings precedes the program on the same line.
TAILS = (
    "endlocal & goto #_undefined_# 2>nul || title %comspec% & ",
    "endlocal & goto #_undefined_# 2>nul || ",
)
EXISTS = ("if exist ", "@if exist ")
OWN_DIRECTORY = ("%dp0%", "%~dp0")


def batch(raw: bytes, directory: str) -> Shim | None:
    """Return the program that a package manager's `.cmd` file starts, or None for other files."""
    text = raw.decode("utf-8", "replace")
    if "\ufffd" in text or "\0" in text:
        return None
    found: list[list[str]] = []
    programs: list[str] = []
    for line in map(str.strip, text.splitlines()):
        lower = line.lower()
        if lower in NEUTRAL or (lower.startswith(EXISTS) and lower.endswith(" (")):
            continue
        if lower.startswith(('@set "node_path=', "@set node_path=")):
            # The shim sets NODE_PATH so that node finds the program's packages. corral ignores it,
            # because it copies these packages together with the program.
            continue
        if lower.startswith('set "_prog=') and line.endswith('"'):
            programs.append(line[len('set "_prog=') : -1])
            continue
        tail = next((tail for tail in TAILS if lower.startswith(tail)), "")
        words = _words(line[len(tail) :].removeprefix("@"))
        if not words or words[-1] != "%*":
            return None
        found.append(words[:-1])
    return _shim(found, programs, directory)


def _shim(found: list[list[str]], programs: list[str], directory: str) -> Shim | None:
    """Return the program that the lines of a batch file start, or None if it is not certain what
    they start, for example because two lines start it with different arguments.
    """
    if not found or any(words[1:] != found[0][1:] for words in found) or not found[0]:
        return None
    first = [words[0] for words in found]
    if first == ["%_prog%"]:
        first = programs
    here = [_expand(word, directory) for word in first]
    arguments = [_expand(word, directory) for word in found[0][1:]]
    if not here or len(here) > 2 or None in (*here, *arguments):
        return None
    texts = tuple(word for word in arguments if word is not None)
    program, beside = here[-1] or "", here[0] if len(here) == 2 else ""
    return Shim(program=program, arguments=texts, beside=beside or "")


def _expand(word: str, directory: str) -> str | None:
    """Replace `%~dp0` or `%dp0%` at the start of a word with the shim's own directory. Return None
    if the word has other characters that cmd.exe expands.
    """
    for mark in OWN_DIRECTORY:
        if word.lower().startswith(mark):
            word = f"{directory}\\{word[len(mark) :].lstrip(chr(92))}"
    return None if "%" in word or "!" in word or "^" in word else word


def _words(line: str) -> list[str]:
    """Split a line of a batch file at spaces outside quotes. Return [] if the line does more than
    start a program.
    """
    words: list[str] = []
    parts = line.split('"')
    for index, part in enumerate(parts):
        if index % 2:
            words.append(part)
            continue
        first, last = index == 0, index == len(parts) - 1
        apart = (first or part.startswith(" ") or (last and not part)) and (
            last or part.endswith(" ") or (first and not part)
        )
        if not apart or any(mark in part for mark in "&|<>()^"):
            return []
        words += part.split()
    return words if len(parts) % 2 else []


def scoop(text: str) -> Shim | None:
    """Parse `path = "..."` and, if present, `args = ...` in the file next to scoop's launcher."""
    values = settings(text.lstrip("\ufeff"))
    path = values.get("path", "").strip('"')
    arguments = values.get("args", "")
    if not path or "%" in path + arguments:
        return None
    return Shim(program=path, arguments=tuple(_words(arguments)))


def settings(text: str) -> dict[str, str]:
    """Parse the `key = value` lines of a pyvenv.cfg or of scoop's `.shim` file."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip() for key, mark, value in pairs if mark}
