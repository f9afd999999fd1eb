"""A server's directory: `corral.toml` or `corral.json` in it says how to start it, and its wishes.

All of that is the server's word. What it asks for waits for the user's approval; what it starts is
its own program, or a runtime of the host with its own script. A command that would lead to other
files of the user's (a link, a `#!` line, a linked package) would be a grant in disguise: refused.
"""

from __future__ import annotations

import os

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.paths.posix import is_inside
from corral.policy.approvals import NAMES, Request, is_approved, request_for
from corral.policy.model import Source
from corral.programs.arguments import kind_of
from corral.programs.needed_files import Executable, is_system
from corral.programs.resolve import resolve
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.programs.model import Program

HINT = "write [server] command = [...] into its corral.toml, or use `corral run -- COMMAND`"
# Why a program may read what lies outside its directory: the host's runtimes and their packages.
RUNTIME = (
    "the prefix of ",
    "the virtual environment",
    "the base of the virtual environment",
    "packages that the user installed",
    "packages that the server can load",
    "the program",
    "certificates that this host trusts",
)


def request(path: str) -> tuple[Request, list[str]]:
    """What the server in a directory asks for, and its command."""
    found = request_for(path)
    if found is None:
        raise SandboxError(f"{printable(path)} has no {' or '.join(NAMES)}", hint=HINT)
    manifest, digest = found
    if not manifest.command:
        raise SandboxError(f"{printable(manifest.origin)} has no server.command", hint=HINT)
    command = absolute(manifest.command, manifest.directory)
    check(command, manifest.directory)
    source = Source(manifest=manifest, trust="request", approved=is_approved(digest))
    return Request(source=source, digest=digest, subject=manifest.directory), command


def absolute(command: Sequence[str], directory: str) -> list[str]:
    """Relative paths start in the server's directory, wherever the caller is.

    They are the program if it is a path, the script (the first word that is no option, if there is
    such a file), and every argument with a slash that names something there.
    """
    program, *rest = command
    words = [os.path.join(directory, program) if "/" in program else program]
    script = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
    for at, word in enumerate(rest):
        path = os.path.join(directory, word)
        named = ("/" in word and os.path.lexists(path)) or (at == script and os.path.isfile(path))
        words.append(path if named and not word.startswith("-") else word)
    return words


def check(command: Sequence[str], directory: str) -> None:
    """Before anything is asked or approved; what is really run is looked at again."""
    program = resolve(
        command,
        environment=os.environ,
        cwd=os.getcwd(),
        home=home_directory(),
        subprocess=False,
    )
    check_program(program, directory)


def check_program(program: Program, directory: str) -> None:
    # The way to it may have links in it, as where the home directory is one.
    roots = tuple(dict.fromkeys((directory, os.path.realpath(directory))))
    strangers = [*foreign(program.typed[0], roots), *outside(program, roots)]
    if strangers:
        raise SandboxError(
            f"the command of {printable(directory)} leads out of it, to "
            + ", ".join(printable(path) for path in strangers),
            hint="if you trust it with these, name the command: corral run -- COMMAND",
        )


def foreign(word: str, roots: tuple[str, ...]) -> Iterator[str]:
    """A program by its path: the server's own, the system's, or the Python that runs corral.

    Another one, as in somebody's virtual environment, would bring its projects along.
    """
    if os.path.isabs(word) and not own(word, roots) and not is_system(word):
        from corral.servers.packages.pypi import interpreter

        if word != interpreter():
            yield word


def outside(program: Program, roots: tuple[str, ...]) -> Iterator[str]:
    """What the program would read besides its directory, the system and runtimes of the host."""
    real = program.real or program.path
    if own(program.path, roots) and not own(real, roots) and not is_system(real):
        # A link called `node` may lead anywhere; only the name at its end makes it a runtime.
        end = Executable(path=real, real=real, device=0, inode=0, head=b"")
        if not kind_of(end):
            yield real
    for path, why in zip(program.reads, program.why, strict=True):
        if own(path, roots) or why.startswith(RUNTIME):
            continue
        if not why.startswith("an editable install") or not installed(path, program, roots):
            yield path


def installed(path: str, program: Program, roots: tuple[str, ...]) -> bool:
    """Whether a Python of the host names this project, and not a file that came with the server."""
    prefix = f"{path} is readable, because "
    told = [note.removeprefix(prefix) for note in program.notes if note.startswith(prefix)]
    return any(not own(note, roots) for note in told)


def own(path: str, roots: tuple[str, ...]) -> bool:
    plain = path.replace(os.sep, "/")
    return any(is_inside(plain, root.replace(os.sep, "/")) for root in roots)
