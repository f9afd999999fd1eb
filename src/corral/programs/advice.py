"""What a person should know about a program that works by starting or installing others."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.programs.needed_files import Executable

SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
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


def notes(typed: Sequence[str], found: Executable, *, subprocess: bool) -> tuple[str, ...]:
    """What the person should know about a program that works by starting others."""
    name = os.path.basename(typed[0])
    verbs = [word for word in typed[1:] if not word.startswith("-")]
    text = ""
    if name in CONTAINERS:
        text = (
            f"{name} asks a daemon outside to start the server: its socket is not visible in here, "
            "and what it starts would not be held by these walls; run the server's own program"
        )
    elif name in INSTALLERS or any(verb in INSTALLING.get(name, ()) for verb in verbs):
        text = (
            f"{name} installs at start, so it needs network, a writable cache and subprocesses; "
            f"{_without_it(typed)}"
        )
    elif os.path.basename(found.path) in SHELLS and not subprocess:
        text = (
            f"{typed[0]} is run by a shell, which can start nothing while subprocesses are off; "
            "name the program that it starts, or use --allow-subprocess"
        )
    return (text,) if text else ()


def _without_it(typed: Sequence[str]) -> str:
    from corral.programs.package_runners import RunnerPackage, parse_runner_command

    package = parse_runner_command(typed[0], typed[1:])
    if isinstance(package, RunnerPackage) and not package.extra:
        return f"`corral run {package.reference}` installs it apart and runs it without {typed[0]}"
    return "install the server first and run its own program instead"
