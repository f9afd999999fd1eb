"""Package runners such as `npx` and `uvx`: find the package that a command line would start.

A package runner needs network, processes and a cache, and gives all of that to the server. corral
installs the package first instead, and then starts the package's own program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal

from corral.record import record, replace

NPM = re.compile(
    r"(?P<name>(?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)(?:@(?P<version>[^@/]+))?", re.IGNORECASE
)
PYPI = re.compile(
    r"(?P<name>[a-z0-9](?:[\w.-]*[a-z0-9])?)(?P<extras>\[[\w,. -]+\])?"
    r"(?:(?:==|@)(?P<version>[^,;<>=!~@/ ]+))?",
    re.IGNORECASE,
)
EXACT_NPM = re.compile(r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?")
EXACT_PYPI = re.compile(r"v?(?:\d+!)?\d+(?:\.\d+)*(?:[._-]?(?:a|b|rc|alpha|beta|post|dev|pre)\d*)*")
# These options say how the runner behaves, not what the server is.
IGNORED_OPTIONS = frozenset((
    "-y", "--yes", "-q", "--quiet", "--silent", "-s", "--prefer-offline", "--prefer-online",
    "--offline", "--no-install", "--no-cache", "-n", "--refresh", "--isolated", "-U", "--upgrade",
    "--no-progress", "--no-config", "-v", "--verbose",
))  # fmt: skip
NEWEST = "latest"
CONTAINERS = frozenset(("docker", "podman", "nerdctl"))
SHELLS = frozenset(("sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"))
NODE_HINT = "install the package and name its program: node .../dist/index.js"
PYTHON_HINT = "install it into a virtual environment and name the program in its bin directory"


@record
class RunnerPackage:
    """The package of a runner's command line.

    `name` may carry extras; `extra` packages are installed beside it. The first `used` arguments
    are the runner's own, the others are the server's.
    """

    registry: Literal["npm", "pypi"]
    name: str
    version: str = ""
    program: str = ""
    extra: tuple[str, ...] = ()
    used: int = 0

    @property
    def bare(self) -> str:
        """Return the reference without version and extras, as profiles name it."""
        name = self.name.partition("[")[0]
        return f"{self.registry}:{name if self.registry == 'npm' else _normalize(name)}"

    @property
    def reference(self) -> str:
        """Return the reference that `corral run` takes."""
        mark = "@" if self.registry == "npm" else "=="
        version = f"{mark}{self.version}" if self.version else ""
        program = f"#{self.program}" if self.program else ""
        return f"{self.registry}:{self.name}{version}{program}"


@record
class Refusal:
    """Why a command line cannot be started without its runner.

    `leave_alone` means that another sandbox encloses the server already.
    """

    why: str
    hint: str
    leave_alone: bool = False


def parse_runner_command(command: str, arguments: Sequence[str]) -> RunnerPackage | Refusal | None:
    """Return the package that a command line installs and starts; None without a package runner."""
    name = _program_name(command)
    words = list(arguments)
    if name == "cmd" and len(words) > 1 and words[0].lower() == "/c":
        # On Windows clients cannot start `npx.cmd` by itself.
        found = parse_runner_command(words[1], words[2:])
        return _add_used(found, 2) or _refuse_shell(name)
    if name in CONTAINERS:
        return Refusal(
            why=f"{name} starts it in a container, which corral cannot look into",
            hint="its walls are the container's own",
            leave_alone=True,
        )
    if name in SHELLS:
        return _refuse_shell(name)
    for runner, prefix, parse_arguments in RUNNERS:
        if name == runner and tuple(words[: len(prefix)]) == prefix:
            return _add_used(parse_arguments(words[len(prefix) :]), len(prefix))
    if name == "uv" and "run" in words:
        return Refusal(
            why="`uv run` makes an environment and starts processes before the server runs",
            hint="name the interpreter of the project: .venv/bin/python server.py",
        )
    return None


def _program_name(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1].lower()
    stem, ending = os.path.splitext(name)
    return stem if ending in {".exe", ".cmd", ".bat", ".ps1"} else name


def _add_used(found: RunnerPackage | Refusal | None, words: int) -> RunnerPackage | Refusal | None:
    """Count `words` before the parsed arguments as the runner's own."""
    return replace(found, used=found.used + words) if isinstance(found, RunnerPackage) else found


def _refuse_shell(name: str) -> Refusal:
    return Refusal(
        why=f"{name} would have to start the server as another process",
        hint="name the server's own program, or allow it: --allow-subprocess",
    )


def _parse_npm(words: list[str]) -> RunnerPackage | Refusal:
    """Parse `[OPTION...] PACKAGE ...` or `--package PACKAGE PROGRAM ...`."""
    found = _split(words, ("-p", "--package"), NODE_HINT)
    if isinstance(found, Refusal):
        return found
    spec, program, extra, used = found
    if extra:
        return Refusal(why="it names more than one package", hint=NODE_HINT)
    match = NPM.fullmatch(spec)
    if match is None:
        return Refusal(why=f"{spec!r} is not a package of the npm registry", hint=NODE_HINT)
    name = match["name"]
    version = _exact_version(name, match["version"], EXACT_NPM)
    if isinstance(version, Refusal):
        return version
    program = "" if program == name.rpartition("/")[2] else program
    return RunnerPackage(registry="npm", name=name, version=version, program=program, used=used)


def _parse_pypi(words: list[str]) -> RunnerPackage | Refusal:
    """Parse `[OPTION...] PACKAGE ...` or `--from PACKAGE PROGRAM ...`."""
    found = _split(words, ("--from", "--spec"), PYTHON_HINT)
    if isinstance(found, Refusal):
        return found
    spec, program, extra, used = found
    match = PYPI.fullmatch(spec)
    if match is None:
        return Refusal(why=f"{spec!r} is not a package of PyPI in one version", hint=PYTHON_HINT)
    name = match["name"]
    version = _exact_version(name, match["version"], EXACT_PYPI)
    if isinstance(version, Refusal):
        return version
    program = "" if _normalize(program) == _normalize(name) else program
    name += (match["extras"] or "").replace(" ", "")
    return RunnerPackage(
        registry="pypi", name=name, version=version, program=program, extra=extra, used=used
    )


def _exact_version(name: str, version: str | None, exact: re.Pattern[str]) -> str | Refusal:
    """Return the version, "" for the newest; refuse a range of versions."""
    if not version or version == NEWEST:
        return ""
    if exact.fullmatch(version):
        return version
    why = f"{version!r} may be any of several versions of {name}"
    return Refusal(why=why, hint="name one version, or none for the newest")


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _split(
    words: list[str], package_options: tuple[str, ...], hint: str
) -> tuple[str, str, tuple[str, ...], int] | Refusal:
    """Return the package, the program if it is named itself, extra packages, and the words used."""
    packages: list[str] = []
    extra: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word, equals, value = words[at].partition("=")
        at += 1
        if word == "--":
            break
        if word in IGNORED_OPTIONS and not equals:
            continue
        if word not in {*package_options, "--with"}:
            return Refusal(why=f"its option {word} cannot be carried over", hint=hint)
        if not equals:
            value, at = (words[at] if at < len(words) else ""), at + 1
        (extra if word == "--with" else packages).append(value)
    if at >= len(words) or not words[at]:
        return Refusal(why="it names no package", hint=hint)
    if len(packages) > 1:
        return Refusal(why="it names more than one package", hint=hint)
    program = words[at] if packages else ""
    [package] = packages or [words[at]]
    return package, program, tuple(extra), at + 1


RUNNERS = (
    ("npx", (), _parse_npm),
    ("npm", ("exec",), _parse_npm),
    ("npm", ("x",), _parse_npm),
    ("pnpx", (), _parse_npm),
    ("pnpm", ("dlx",), _parse_npm),
    ("yarn", ("dlx",), _parse_npm),
    ("bunx", (), _parse_npm),
    ("bun", ("x",), _parse_npm),
    ("uvx", (), _parse_pypi),
    ("uv", ("tool", "run"), _parse_pypi),
    ("pipx", ("run",), _parse_pypi),
)


def reference_to_runner_command(reference: str) -> list[str] | None:
    """Return the runner's command line for a package reference; None for any other word."""
    registry, colon, rest = reference.partition(":")
    if not colon or registry not in {"npm", "pypi"}:
        return None
    spec, _, program = rest.partition("#")
    if registry == "npm":
        return ["npx", "-y", *(["-p", spec, program] if program else [spec])]
    if program:
        return ["uvx", "--from", spec, program]
    return ["uvx", spec.replace("==", "@", 1)]
