"""Advice about a program that works by starting or installing other programs."""

from __future__ import annotations

import os

from corral.programs.arguments import SHELLS

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


def find_advice(
    typed: Sequence[str], executable: Executable, *, subprocess: bool
) -> tuple[str, ...]:
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
            f"{_suggest_alternative(typed)}"
        )
    elif os.path.basename(executable.path) in SHELLS and not subprocess:
        text = (
            f"{typed[0]} is run by a shell, which can start nothing while subprocesses are off; "
            "name the program that it starts, or use --allow-subprocess"
        )
    return (text,) if text else ()


def _suggest_alternative(typed: Sequence[str]) -> str:
    from corral.programs.package_runners import Package, parse_runner

    package = parse_runner(typed[0], typed[1:])
    if isinstance(package, Package) and not package.extra:
        return f"`corral run {package.reference}` installs it apart and runs it without {typed[0]}"
    return "install the server first and run its own program instead"
