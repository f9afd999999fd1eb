"""A server's directory: reads its `corral.toml` or `corral.json`, and checks its command.

The server's author wrote that file. What it asks for needs the user's approval. It may start its
own program, or a runtime of the host with its own script. A command that leads to other files of
the user (by a link, a `#!` line or a linked package) is refused, because it would grant them.
"""

import os
from collections.abc import Iterator, Sequence

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.paths.native import is_inside
from corral.policy.approvals import NAMES, Request, is_approved, request_for
from corral.policy.model import Source
from corral.programs.arguments import detect_kind
from corral.programs.model import Program
from corral.programs.needed_files import is_system
from corral.programs.resolve import resolve
from corral.programs.runtimes import find_own_python
from corral.safe_text import printable

HINT = "write [server] command = [...] into its corral.toml, or use `corral run -- COMMAND`"
# For these reasons a program may read outside of its directory: the host's runtimes.
RUNTIME_REASONS = (
    "the prefix of ",
    "the virtual environment",
    "the base of the virtual environment",
    "packages that the user installed",
    "packages that the server can load",
    "the program",
    "certificates that this host trusts",
)


def read_request(path: str) -> tuple[Request, list[str]]:
    """Return what the server in a directory asks for, and its command."""
    found = request_for(path)
    if found is None:
        raise SandboxError(f"{printable(path)} has no {' or '.join(NAMES)}", hint=HINT)
    manifest, digest = found
    if not manifest.command:
        raise SandboxError(f"{printable(manifest.origin)} has no server.command", hint=HINT)
    command = make_absolute(manifest.command, manifest.directory)
    check_command(command, manifest.directory)
    source = Source(manifest=manifest, trust="request", approved=is_approved(digest))
    return Request(source=source, digest=digest, subject=manifest.directory), command


def make_absolute(command: Sequence[str], directory: str) -> list[str]:
    """Make the paths in a command absolute: they are relative to the server's directory.

    Paths are the program if it has a slash, the script (the first word that is not an option, if
    there is such a file), and every argument with a slash that names an existing file.
    """
    program, *rest = command
    words = [os.path.join(directory, program) if "/" in program else program]
    script = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
    for at, word in enumerate(rest):
        path = os.path.join(directory, word)
        named = ("/" in word and os.path.lexists(path)) or (at == script and os.path.isfile(path))
        words.append(path if named and not word.startswith("-") else word)
    return words


def check_command(command: Sequence[str], directory: str) -> None:
    """Check a command before the user is asked. `check_program` is called again before the run."""
    program = resolve(
        command,
        environment=os.environ,
        cwd=os.getcwd(),
        home=home_directory(),
        subprocess=False,
    )
    check_program(program, directory)


def check_program(program: Program, directory: str) -> None:
    # The path may contain links, for example if the home directory is one.
    roots = tuple(dict.fromkeys((directory, os.path.realpath(directory))))
    outside = [*_foreign_program(program.typed[0], roots), *_files_outside(program, roots)]
    if outside:
        raise SandboxError(
            f"the command of {printable(directory)} leads out of it, to "
            + ", ".join(printable(path) for path in outside),
            hint="if you trust it with these, name the command: corral run -- COMMAND",
        )


def _foreign_program(word: str, roots: tuple[str, ...]) -> Iterator[str]:
    """Yield a program path that is not the server's, the system's or the Python that runs corral.

    The Python of another virtual environment would make that environment's projects readable.
    """
    known = _is_own(word, roots) or is_system(word) or word == find_own_python()
    if os.path.isabs(word) and not known:
        yield word


def _files_outside(program: Program, roots: tuple[str, ...]) -> Iterator[str]:
    """Yield what the program would read besides its directory, the system and host runtimes."""
    real = program.real or program.path
    linked_out = _is_own(program.path, roots) and not _is_own(real, roots)
    # A link called `node` may lead anywhere; only the name at its end makes it a runtime.
    if linked_out and not is_system(real) and not detect_kind(real, real):
        yield real
    for path, why in zip(program.reads, program.why, strict=True):
        if _is_own(path, roots) or why.startswith(RUNTIME_REASONS):
            continue
        if not why.startswith("an editable install") or not _is_installed(path, program, roots):
            yield path


def _is_installed(path: str, program: Program, roots: tuple[str, ...]) -> bool:
    """Return whether a Python of the host names this project, not only a file of the server."""
    prefix = f"{path} is readable, because "
    reasons = [note.removeprefix(prefix) for note in program.notes if note.startswith(prefix)]
    return any(not _is_own(reason, roots) for reason in reasons)


def _is_own(path: str, roots: tuple[str, ...]) -> bool:
    return any(is_inside(path, root) for root in roots)
