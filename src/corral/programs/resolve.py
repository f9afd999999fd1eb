"""Resolve a typed command into a Program, on POSIX systems.

If the policy denies subprocesses, only one program can be executed, so a launcher could not start
the real program. Therefore this module finds the real program itself, through PATH, symlinks, `#!`
lines and the shims of version managers, without starting any process.
"""

from __future__ import annotations

import os

from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError
from corral.paths.posix import is_inside
from corral.programs.advice import find_advice
from corral.programs.arguments import detect_kind, read_arguments
from corral.programs.model import Program
from corral.programs.needed_files import (
    RUNTIMES,
    Caller,
    Executable,
    NeededFiles,
    home_names,
    inspect_executable,
    is_program,
    is_system,
)
from corral.programs.scope import Scope
from corral.record import record
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.policy.model import Grant
    from corral.programs.arguments import Kind

MAX_SHEBANG_BYTES = 255  # BINPRM_BUF_SIZE in linux/binfmts.h, without the final NUL
MAX_SHEBANGS = 4  # after more `#!` lines than this, linux/fs/exec.c fails with ELOOP
MAX_SHIMS = 4
MULTICALL = ("volta-shim", "mise", "rtx", "snap")
LAUNCHERS = frozenset((
    "busybox", "catatonit", "chroot", "chrt", "direnv", "doas", "dumb-init", "env", "flock",
    "ionice", "make", "nice", "nohup", "runuser", "script", "setpriv", "setsid", "stdbuf", "strace",
    "su", "sudo", "taskset", "time", "timeout", "tini", "unshare", "watch", "xargs",
))  # fmt: skip
"""Programs that start the command in their arguments."""
STANDARD_SEARCH = ("/usr/local/bin", "/usr/bin", "/bin")


@record
class Chain:
    """The file to execute, its arguments, and the scripts whose `#!` lines led to the file."""

    found: Executable
    arguments: tuple[str, ...]
    scripts: tuple[str, ...]


def resolve(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str,
    home: str,
    subprocess: bool,
    grants: Sequence[Grant] = (),
    root: str = "",
) -> Program:
    """Return the program for a command.

    If the user named a server's directory instead of a command, `root` is this directory. The
    command then comes from the server's author, who could name any of the user's files in it. So
    files outside `root` become readable only if they belong to a known runtime or are in one of
    `grants`.
    """
    if not argv or not argv[0]:
        raise CommandError("there is no command to run", exit_code=EXIT_NOT_FOUND)
    check_argv(argv)
    caller = Caller(environment=environment, cwd=cwd, home=home.rstrip("/"))
    homes = home_names(home)
    needed = NeededFiles(homes, Scope(caller, homes, root=root, grants=grants))
    start = locate_program(argv[0], caller)
    if "/" in argv[0]:
        needed.scope.check_word(start)
        check_typed_links(argv[0], caller, needed)
    chain = follow_chain(start, tuple(argv[1:]), caller, needed)
    arguments = collect_files(chain, caller, needed)
    needed.scope.raise_refused()
    found = chain.found
    reads, links = needed.collect()
    own = (os.path.dirname(found.path), os.path.dirname(found.real))
    real_cwd = os.path.realpath(cwd)
    visible = is_system(real_cwd) or any(is_inside(real_cwd, path) for path, _ in reads)
    return Program(
        path=found.path,
        argv=(found.path, *arguments),
        reads=tuple(path for path, _ in reads),
        why=tuple(why for _, why in reads),
        seen=tuple(read_identity(path) for path, _ in reads),
        links=tuple(links),
        search=tuple(dict.fromkeys((*own, *STANDARD_SEARCH))),
        cwd=real_cwd if visible else "",
        typed=tuple(argv),
        own_file=find_own_file(chain, arguments),
        real=found.real,
        device=found.device,
        inode=found.inode,
        notes=(*find_advice(argv, found, subprocess=subprocess), *needed.notes),
    )


def check_typed_links(word: str, caller: Caller, needed: NeededFiles) -> None:
    """Check the symlinks before each `..` in a typed path. They have to be checked here, because
    the absolute path no longer contains them.
    """
    if ".." in word.split("/"):
        try:
            needed.check_links(os.path.join(caller.cwd, word))
        except (OSError, ValueError):
            return  # there is no such file; opening it will report the error


def check_argv(argv: Sequence[str]) -> None:
    try:
        nul = any(b"\0" in os.fsencode(word) for word in argv)
    except UnicodeEncodeError as error:
        text = "the command contains text that cannot be encoded as bytes"
        raise CommandError(text, exit_code=EXIT_NOT_FOUND) from error
    if nul:
        raise CommandError("a NUL byte cannot be part of a command", exit_code=EXIT_NOT_FOUND)


def locate_program(name: str, caller: Caller) -> str:
    """Return the absolute path of the program for a typed name. Symlinks in it are not resolved."""
    if "/" in name:
        return caller.absolute(name)
    path = caller.lookup(name)
    if path:
        return path
    for entry in caller.search_path():
        if os.path.exists(f"{entry}/{name}"):
            raise CommandError(
                f"{entry}/{name} is not an executable file", exit_code=EXIT_NOT_EXECUTABLE
            )
    hint = "is it installed? A path with a slash is used as it is"
    here = os.path.join(caller.cwd, name)
    typed = shell_word(f"./{name}")
    if is_program(here):
        hint = f"to run the program in this directory, type {typed}"
    elif os.path.isdir(here):
        hint = f"it is a directory; to run the server of its corral.toml, type {typed}"
    elif os.path.isfile(here) and (runtime := RUNTIMES.get(os.path.splitext(name)[1])):
        hint = f"did you mean {runtime} {shell_word(name)}?"
    elif caller.lookup(name.partition(" ")[0]):
        hint = "the whole command is quoted as one word: leave out the quotes"
    elif len(caller.search_path()) < len(caller.environment.get("PATH", "/").split(":")):
        hint = "relative and empty entries of PATH are never searched"
    raise CommandError(f"{name!r} was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=hint)


def resolve_shim(found: Executable, caller: Caller) -> tuple[str, ...]:
    """Return the command that a shim would execute, or () if the file is not a shim."""
    if not found.head.startswith(b"#!") and os.path.basename(found.real) not in MULTICALL:
        return ()
    from corral.programs import version_managers

    return version_managers.resolve_shim(found, caller)


def follow_chain(
    path: str, arguments: tuple[str, ...], caller: Caller, needed: NeededFiles
) -> Chain:
    """Follow shims and `#!` lines to the file that the kernel would finally load."""
    scripts: list[str] = []
    shims = 0
    while True:
        found = inspect_executable(path, needed)
        needed.check_links(path)
        target = resolve_shim(found, caller)
        if target:
            shims += 1
            if shims > MAX_SHIMS:
                text = f"{found.path!r} leads through more than {MAX_SHIMS} shims"
                raise CommandError(text, exit_code=EXIT_NOT_EXECUTABLE)
            for word in target:
                needed.scope.check_choice(word, found)
            path, arguments = target[0], (*target[1:], *arguments)
            continue
        line = parse_shebang(found)
        if line is None:
            return Chain(found=found, arguments=arguments, scripts=tuple(scripts))
        scripts.append(found.path)
        if len(scripts) > MAX_SHEBANGS:
            raise CommandError(
                f"{scripts[0]!r}: its #! line leads through too many other scripts",
                exit_code=EXIT_NOT_EXECUTABLE,
            )
        words = expand_env(line, found, caller)
        # A program that `env` finds needs no check, because it comes from the user's own PATH.
        if os.path.basename(line[0]) != "env":
            needed.scope.check_choice(words[0], found)
        _check_named_script(words, found, caller, needed)
        path, arguments = words[0], (*words[1:], found.path, *arguments)


def _check_named_script(
    words: Sequence[str], found: Executable, caller: Caller, needed: NeededFiles
) -> None:
    """Refuse a `#!` line such as `#!/usr/bin/node /home/me/other/server.js` if the script that it
    names is not one of the server's own files.
    """
    kind = detect_kind(words[0], os.path.realpath(words[0]))
    at = read_arguments(kind, words[1:]).script
    if at is not None and os.path.lexists(path := caller.absolute(words[1 + at])):
        needed.scope.check_choice(path, found)


def find_script(argv: Sequence[str], *, environment: Mapping[str, str], cwd: str, home: str) -> str:
    """Return the word in a command that a runtime would execute as its script, or ''.

    The command's program may be the runtime, a symlink to it, or a script whose `#!` line names it.
    Raise CommandError if the program cannot be found.
    """
    caller, homes = Caller(environment=environment, cwd=cwd, home=home), home_names(home)
    needed = NeededFiles(homes, Scope(caller, homes))
    chain = follow_chain(locate_program(argv[0], caller), tuple(argv[1:]), caller, needed)
    kind = detect_kind(chain.found.path, chain.found.real)
    at = read_arguments(kind, chain.arguments).script
    added = len(chain.arguments) - len(argv[1:])
    return argv[1 + at - added] if at is not None and at >= added else ""


def parse_shebang(found: Executable) -> tuple[str, ...] | None:
    """Split a `#!` line as the kernel does, into a path and at most one argument. Return None for a
    file that is not a script.
    """
    if not found.head.startswith(b"#!"):
        return None
    line, newline, _ = found.head[2:MAX_SHEBANG_BYTES].partition(b"\n")
    text = line.partition(b"\0")[0].strip(b" \t")
    path = text.replace(b"\t", b" ").partition(b" ")[0]
    truncated = not newline and len(found.head) >= MAX_SHEBANG_BYTES and path == text
    if not path.startswith(b"/") or truncated:
        what = "is too long for the kernel" if truncated else "does not name an absolute path"
        raise CommandError(
            f"{found.path!r}: its #! line {what}",
            exit_code=EXIT_NOT_EXECUTABLE,
            hint="name the interpreter before the script",
        )
    if text.endswith(b"\r"):
        raise CommandError(
            f"{found.path!r}: its #! line ends in a carriage return",
            exit_code=EXIT_NOT_EXECUTABLE,
            hint="save the file with Unix line endings",
        )
    argument = text[len(path) :].strip(b" \t")
    return tuple(os.fsdecode(word) for word in (path, argument) if word)


def expand_env(line: tuple[str, ...], found: Executable, caller: Caller) -> tuple[str, ...]:
    """Replace `/usr/bin/env NAME` and `env -S NAME ...` with the command that env would execute."""
    if os.path.basename(line[0]) != "env" or not is_system(line[0]):
        return (caller.absolute(line[0]), *line[1:])
    text = line[1] if len(line) > 1 else ""
    words: tuple[str, ...] = (text,)
    for option in ("--split-string=", "--split-string", "-S"):
        if text.startswith(option):
            words = tuple(split_words(text[len(option) :], found))
            break
    if not words or not words[0] or words[0].startswith("-") or "=" in words[0]:
        raise CommandError(
            f"{found.path!r}: cannot find out what {' '.join(line)!r} would run",
            exit_code=EXIT_NOT_EXECUTABLE,
            hint="name the interpreter before the script",
        )
    try:
        return (locate_program(words[0], caller), *words[1:])
    except CommandError as error:
        hint = "env takes several words only after -S" if " " in words[0] else error.hint
        raise CommandError(
            f"{found.path!r}: {error.message}", exit_code=error.exit_code, hint=hint
        ) from error


def split_words(text: str, found: Executable) -> list[str]:
    if not any(mark in text for mark in "'\"\\$#"):
        return text.split()
    import shlex

    try:
        if "${" in text:
            raise ValueError("it uses a variable, but the target has none of your variables")
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise CommandError(
            f"{found.path!r}: its #! line cannot be split: {error}",
            exit_code=EXIT_NOT_EXECUTABLE,
            hint="name the interpreter before the script",
        ) from error


def collect_files(chain: Chain, caller: Caller, needed: NeededFiles) -> tuple[str, ...]:
    """Collect the files that the target must see. Return the arguments, with the script as an
    absolute path.
    """
    found, arguments = chain.found, chain.arguments
    needed.follow(found.path)
    kind = detect_kind(found.path, found.real)
    if not kind and not chain.scripts and is_system(found.real):
        return arguments  # the system's programs are always visible
    from corral.programs import runtimes

    invocation = read_arguments(kind, arguments)
    sites = runtimes.bind_runtime(needed, found, kind, invocation.flags, caller)
    if not kind:
        runtimes.bind_server(needed, found.path, kind)
    elif not needed.covers(found.real):
        needed.bind(found.real, "the program")
    for script in chain.scripts:
        runtimes.bind_server(needed, script, kind)
    if invocation.module:
        runtimes.bind_python_module(needed, invocation.module, invocation.flags, caller, sites)
    if invocation.script is not None:
        arguments = collect_script(invocation.script, arguments, kind, caller, needed)
    # Collect editable installs last. They may be in the script's own root, which is known only now.
    for site in sites:
        runtimes.bind_editables(needed, site, caller.home)
    return arguments


def find_own_file(chain: Chain, arguments: Sequence[str]) -> str:
    """Return the path of the file that is the server: its script, or a program that is neither a
    runtime nor in LAUNCHERS. Return "" if the command only says where to find the server.
    """
    found = chain.found
    kind = detect_kind(found.path, found.real)
    at = read_arguments(kind, arguments).script
    if at is not None and arguments[at].startswith("/"):
        return arguments[at]
    if chain.scripts:
        return chain.scripts[0]
    return "" if kind or os.path.basename(found.path) in LAUNCHERS else found.path


def collect_script(
    at: int, arguments: tuple[str, ...], kind: Kind, caller: Caller, needed: NeededFiles
) -> tuple[str, ...]:
    # Make the path absolute, because the target may start in another directory.
    typed = arguments[at]
    check_typed_links(typed, caller, needed)
    script = caller.absolute(typed)
    if typed.startswith("/") and "/../" not in typed:
        script = typed
    elif not os.path.exists(script) and kind not in {"python", "node"}:
        return arguments  # in `bun run dev`, `dev` is a name, not a file
    from corral.programs import runtimes

    runtimes.bind_server(needed, script, kind)
    return (*arguments[:at], script, *arguments[at + 1 :])


def read_identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError as error:
        text = f"{path!r} was removed while the command was being resolved"
        raise CommandError(text, exit_code=EXIT_NOT_EXECUTABLE) from error
    return status.st_dev, status.st_ino
