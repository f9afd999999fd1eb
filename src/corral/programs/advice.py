"""Give advice about commands such as `npx` and `docker`, which start or install other programs."""

from __future__ import annotations

import os

from corral.errors import SandboxError
from corral.programs.arguments import SHELLS
from corral.safe_text import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.programs.needed_files import Executable

INSTALLERS = ("npx", "uvx", "bunx", "pnpx")
INSTALLING = {
    "uv": ("run", "tool", "x"),
    "pipx": ("run",),
    "npm": ("exec", "x", "start", "run", "init"),
    "pnpm": ("dlx", "exec", "x"),
    "yarn": ("dlx",),
    "bun": ("x",),
    "go": ("run",),
    "cargo": ("run",),
}
CONTAINERS = ("docker", "podman", "nerdctl")


def program_name(command: str) -> str:
    """Return a program's name in lower case, without its directory and Windows extension."""
    name = command.replace("\\", "/").rpartition("/")[2].lower()
    stem, ending = os.path.splitext(name)
    return stem if ending in (".exe", ".cmd", ".bat", ".ps1") else name


def may_install(words: Sequence[str]) -> bool:
    """Return whether a command may install a package. Only the program's name is checked. Parsing
    the command would give a better answer, but needs another module, whose import delays the start.
    """
    name = program_name(words[0]) if words else ""
    return name in INSTALLERS or name in INSTALLING or name == "cmd"


def find_advice(
    typed: Sequence[str], executable: Executable, *, subprocess: bool
) -> tuple[str, ...]:
    """Return warnings about a program that works by starting other programs.

    If the policy denies subprocesses, raise SandboxError for package runners and for container
    clients such as docker, because they could not start the server.
    """
    name = program_name(typed[0])
    verbs = [word for word in typed[1:] if not word.startswith("-")]
    if name in CONTAINERS:
        why = (
            f"{name} asks a daemon to start the server: the daemon's socket is not visible in the "
            "sandbox, and the server would run outside it"
        )
        hint = "run the server's own program"
    elif name in INSTALLERS or any(verb in INSTALLING.get(name, ()) for verb in verbs):
        why, hint = _explain_installer(name, typed)
    elif os.path.basename(executable.path) in SHELLS and not subprocess:
        text = f"{typed[0]} needs a shell, which cannot start programs if subprocesses are denied"
        return (f"{text}; run the program that the shell starts, or use --allow-subprocess",)
    else:
        return ()
    if not subprocess:
        raise SandboxError(why, hint=f"{hint}; or run {name} itself with --allow-subprocess")
    return (f"{why}; {hint}",)


def _explain_installer(name: str, typed: Sequence[str]) -> tuple[str, str]:
    from corral.programs.package_runners import Package, Refusal, parse_runner

    needs = "the network, a writable cache and subprocesses"
    why = f"{name} installs packages at startup: it needs {needs}"
    found = parse_runner(typed[0], typed[1:])
    if isinstance(found, Package):
        words = " ".join(map(shell_word, ("corral", "run", *found.flags, found.reference)))
        return why, f"`{words}` installs the server separately and runs it without {name}"
    if isinstance(found, Refusal):
        return f"{why}, and {found.why}", found.hint
    return why, "install the server first and run its own program instead"
