r"""Format arguments and environment variables for CreateProcessW. This module does no I/O.

Windows has no argument vector: each program splits its own command line. CommandLineToArgvW and the
C runtime's start-up code split the formatted line into exactly the original arguments, because both
follow these rules:

- If the program's own name begins with a quote, the name ends at the next quote. Backslashes in the
  name are plain characters.
- Spaces and tabs separate the arguments after the name, except inside quotes, and `\"` is a quote.
  Backslashes are plain characters, except before a quote, where each pair is one backslash.

For a batch file, CreateProcessW passes the whole line to cmd.exe, which expands and splits it by
other rules, so that `"&calc` becomes a command. No quoting is safe in all batch files, so text that
cmd.exe could interpret is refused. corral starts cmd.exe by its full path and without AutoRun, so
the values of `ComSpec` and AutoRun do not matter.
"""

import re
from collections.abc import Iterable, Sequence

from corral.errors import EXIT_NOT_EXECUTABLE, CommandError
from corral.paths.windows import upper_case
from corral.safe_text import shown

MAX_LENGTH = 32767
"""The maximum number of UTF-16 units in a command line or in one environment variable, including
the final NUL.
"""
MAX_BATCH_LENGTH = 8191
"""The maximum number of characters in a line that cmd.exe reads."""
SPACE = frozenset(" \t\n\v\f\r")
BATCH = (".bat", ".cmd")
# cmd.exe expands % and ! even inside quotes, and a quote ends the quoted text. The other characters
# become operators if the batch file removes the quotes around its argument (%~1).
REINTERPRETED = frozenset('"%!^&|<>()')
# Parentheses are safe in the batch file's own path, because cmd.exe gets this path in quotes.
REINTERPRETED_IN_PATH = REINTERPRETED - frozenset("()")


def start_line(argv: Sequence[str], *, system_root: str) -> tuple[str, str]:
    r"""Return the application for CreateProcessW, and its command line.

    Raise CommandError if no command line would pass exactly these arguments to the program.
    `system_root` comes from GetSystemWindowsDirectoryW, because SystemRoot in the environment may
    be wrong.
    """
    if not argv or not argv[0]:
        raise _refuse("there is no program to start")
    if not is_batch(argv[0]):
        return argv[0], _checked(quoted(argv))
    interpreter = f"{system_root}\\System32\\cmd.exe"
    return interpreter, _checked(batch_line(interpreter, argv), max_length=MAX_BATCH_LENGTH)


def quoted(argv: Sequence[str]) -> str:
    """Return a command line that a program splits into exactly `argv`."""
    program = argv[0]
    if '"' in program:
        raise _refuse(f"{shown(program)}: the name of a program cannot contain a quote")
    return " ".join((f'"{program}"', *map(quote, argv[1:])))


def quote(argument: str) -> str:
    """Quote one argument that is not the program's name."""
    if argument and '"' not in argument and SPACE.isdisjoint(argument):
        return argument
    escaped = re.sub(r'(?<!\\)(\\*)"', r'\1\1\\"', argument)
    return f'"{_before_quote(escaped)}"'


def is_batch(path: str) -> bool:
    r"""Return whether CreateProcessW would pass this file to cmd.exe.

    Windows ignores trailing dots and spaces in a name, and `x.cmd::$DATA` is the file `x.cmd`
    itself.
    """
    name = path.replace("/", "\\").rpartition("\\")[2]
    drive, colon, rest = name.partition(":")
    # "C:x.cmd" is a file in the current directory of a drive. Any other colon begins a stream.
    name = rest.partition(":")[0] if colon and len(drive) == 1 else drive
    return name.rstrip(" .").lower().endswith(BATCH)


def batch_line(interpreter: str, argv: Sequence[str]) -> str:
    """Return the command line that makes cmd.exe run a batch file.

    Text that cmd.exe would reinterpret is refused. /d turns off AutoRun and /v:off turns off
    delayed expansion, which could run or insert other text. With /s, cmd.exe removes only the outer
    quotes.
    """
    path = argv[0]
    _check_text(path, REINTERPRETED_IN_PATH, what="the path of a batch file")
    for argument in argv[1:]:
        _check_text(argument, REINTERPRETED, what="an argument of a batch file")
    inner = " ".join((f'"{path}"', *(f'"{_before_quote(item)}"' for item in argv[1:])))
    return f'"{interpreter}" /d /s /e:on /v:off /c "{inner}"'


def _before_quote(argument: str) -> str:
    """Double the backslashes at the end, because a quote follows."""
    tail = len(argument) - len(argument.rstrip("\\"))
    return argument + "\\" * tail


def _check_text(text: str, refused: frozenset[str], *, what: str) -> None:
    bad = next((letter for letter in text if letter in refused or letter < " "), None)
    if bad is not None:
        raise CommandError(
            f"{what}, {shown(text)}, contains {shown(bad)}, which cmd.exe would interpret",
            exit_code=EXIT_NOT_EXECUTABLE,
            hint="name the program that the batch file starts, in place of the batch file",
        )


def _checked(line: str, *, max_length: int = MAX_LENGTH) -> str:
    if "\0" in line:
        raise _refuse("an argument contains a NUL")
    if utf16_length(line) >= max_length:
        raise _refuse(f"the command line is longer than {max_length - 1} characters")
    return line


def _refuse(text: str) -> CommandError:
    return CommandError(text, exit_code=EXIT_NOT_EXECUTABLE)


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 units. Characters beyond the first plane count twice."""
    return len(text) + sum(letter > "\uffff" for letter in text)


def environment_block(variables: Iterable[tuple[str, str]]) -> bytes:
    """Return the environment for CreateProcessW: UTF-16 text, sorted, with a NUL after each
    `name=value` and one more at the end.

    Raise ValueError for an invalid variable, and for two names that differ only in case, because
    Windows treats them as one variable but some programs treat them as two.
    """
    seen: dict[str, str] = {}
    lines: list[tuple[bytes, str]] = []
    for name, value in variables:
        check_variable(name, value)
        folded = upper_case(name)
        if folded in seen:
            raise ValueError(f"the variable {name} occurs twice (as {seen[folded]})")
        seen[folded] = name
        lines.append((folded.encode("utf-16-be", "surrogatepass"), f"{name}={value}\0"))
    lines.sort()  # Windows sorts by upper-case UTF-16 units
    text = "".join(line for _, line in lines) or "\0"
    return (text + "\0").encode("utf-16-le", "surrogatepass")


def check_variable(name: str, value: str) -> None:
    # cmd.exe stores the current directory of each drive in variables whose names begin with "=".
    # Setting one of them would change the meaning of relative paths.
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"{shown(name)} cannot be the name of a variable")
    if "\0" in value:
        raise ValueError(f"the value of {name} contains a NUL")
    if utf16_length(name) + utf16_length(value) + 2 > MAX_LENGTH:
        raise ValueError(f"the variable {name} is longer than {MAX_LENGTH} characters")
