"""`corral COMMAND ...`: find a command's module, parse the flags, and run the command."""

from __future__ import annotations

import gc
import os
import sys

from corral import code_cache
from corral.cli import option_parser, output
from corral.errors import EXIT_NOT_FOUND, EXIT_REFUSED, CommandError, ManifestError, SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Command(Protocol):
        SUMMARY: str
        USAGE: str
        FLAGS: tuple[option_parser.Flag, ...]
        main: Callable[[option_parser.Options, list[str]], int]


GROUPS = (
    ("Run", ("run", "learn", "inspect", "explain", "demo", "doctor")),
    ("Clients", ("wrap", "unwrap", "status", "grant", "why")),
    ("Policies", ("profiles", "approve", "check", "schema", "export")),
    ("Upkeep", ("ps", "clean", "cache", "upgrade", "audit", "completion", "version")),
)
COMMANDS = tuple(name for _, names in GROUPS for name in names)
# These commands take the command line of another program. All options after that program's name
# belong to the program.
COMMAND_LINES = ("run", "learn", "inspect", "explain", "export")
HELP = option_parser.Flag(name="--help", short="-h", help="show this help")
INTERRUPTED = 130
OVERVIEW = """\
usage: corral COMMAND [OPTIONS] ...

Runs untrusted MCP servers in a sandbox.
{commands}

`corral COMMAND --help` describes a command.
Start with `corral demo`, or with `corral wrap CLIENT --dry-run`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Return its exit code, or exit with it if `arguments` is None."""
    if arguments is not None:
        return _main(list(arguments))
    output.use_utf8()
    _wait_for_children()
    gc.disable()  # a run allocates too little memory for garbage collection to pay off
    code = _main(sys.argv[1:])
    try:
        code_cache.keep()
        code = output.finish(code)
    except MemoryError:
        pass  # only the last steps failed; the command itself is done, and `code` is its exit code
    os._exit(code)  # skips the interpreter's teardown, which takes 2 ms


def _wait_for_children() -> None:
    """Restore the default action of SIGCHLD. If corral's parent ignores this signal, corral ignores
    it too, and the kernel then discards the exit status of corral's children.
    """
    if sys.platform != "win32":
        import _signal  # type: ignore[import-not-found]

        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def _main(words: list[str]) -> int:
    try:
        return _run_command(words)
    except MemoryError:
        if sys.flags.dev_mode:
            raise
        os.write(2, output.NO_MEMORY)
        return EXIT_REFUSED


def _run_command(words: list[str]) -> int:
    """Run a command, and print any error except MemoryError."""
    try:
        return _dispatch(words)
    except SandboxError as problem:
        output.write_error(problem)
        return problem.exit_code
    except KeyboardInterrupt as stop:
        output.note(f"interrupted; {stop}" if stop.args else "interrupted")
        return INTERRUPTED
    except output.ReaderGoneError:
        return 0
    except OSError as problem:
        output.write_error(output.from_os_error(problem))
        return EXIT_REFUSED
    except Exception as problem:
        if sys.flags.dev_mode or isinstance(problem, MemoryError):
            raise
        output.write_error(output.from_fault(problem))
        return EXIT_REFUSED


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in {"-h", "--help", "help"}:
        output.write_lines(format_overview())
        return 0
    name = words.pop(0)
    if name in {"-V", "--version"}:
        name = "version"
    if name not in COMMANDS:
        raise _unknown_command(name, words)
    try:
        return _parse_and_run(name, words)
    except (ManifestError, option_parser.UsageError) as problem:
        own_help = f"`corral {name} --help`"
        problem.hint = (problem.hint or "").replace(option_parser.RUN_HELP, own_help)
        raise


def _parse_and_run(name: str, words: list[str]) -> int:
    command = load_command(name)
    anywhere = name not in COMMAND_LINES
    has_options = bool(words) and words[0].startswith("-") and words[0] != "--"
    flags = (*command.FLAGS, HELP) if anywhere or has_options else ()
    # The name of a server may be its whole command, such as `npm:NAME --option`.
    keep_unknown = name == "why"
    chosen, rest = option_parser.parse(flags, words, anywhere=anywhere, keep_unknown=keep_unknown)
    if chosen.has("--help"):
        return show_help(name)
    # `export` is left out, because it still parses its own words in `rest`.
    is_command_line = not anywhere and name != "export"
    if is_command_line:
        _warn_of_late_flags(command, words, rest)
    try:
        return command.main(chosen, rest)
    except CommandError as problem:
        if is_command_line and problem.exit_code == EXIT_NOT_FOUND and rest:
            from corral.clients.find_server import list_references, suggest_command

            names = list_references(rest[0])
            hint = f"did you mean {' or '.join(names)}?" if names else ""
            problem.hint = hint or suggest_command(rest[0], name) or problem.hint
        raise


def _warn_of_late_flags(command: Command, words: list[str], rest: list[str]) -> None:
    """Warn if flags of corral come after the server's command, because corral then does not read
    them, but passes them to the server.

    Do not warn if the user typed `--` before the command.
    """
    late = [word.partition("=")[0] for word in rest[1:] if word.startswith("--")]
    if not late or "--" in words[: len(words) - len(rest)]:
        return
    known = {flag.name for flag in command.FLAGS}
    for name in dict.fromkeys(late):
        if name in known:
            output.warn(f"{name} is passed to the command; put corral's flags before the command")


def show_help(name: str) -> int:
    command = load_command(name)
    lines = option_parser.help_lines((*command.FLAGS, HELP))
    output.write_lines([*command.USAGE.split("\n"), "", command.SUMMARY, "", *lines])
    return 0


def _unknown_command(name: str, words: list[str]) -> option_parser.UsageError:
    if name.startswith("-"):
        command = next((word for word in words if word in COMMANDS), "COMMAND")
        hint = f"options come after the command: corral {command} {name}"
        return option_parser.UsageError(f"corral itself has no option {name}", hint=hint)
    near = option_parser.find_nearest(name, COMMANDS)
    hint = f"did you mean `corral {near}`?" if near else "`corral --help` lists the commands"
    return option_parser.UsageError(f"there is no command {name!r}", hint=hint)


def load_command(name: str) -> Command:
    __import__(f"corral.cli.{name}")
    command: Command = sys.modules[f"corral.cli.{name}"]
    return command


def format_overview() -> list[str]:
    lines: list[str] = []
    for title, names in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<12}{load_command(name).SUMMARY}" for name in names]
    return OVERVIEW.format(commands="\n".join(lines)).split("\n")
