"""`npx`, `uvx` and their kin: which package do they start, and can it be started without them?

A launcher installs and runs in one go: it needs network, processes and a cache, and gives all of
that to the server. What it would install is run by its own entry point instead, once it is pinned.
"""

from __future__ import annotations

import os
import re

from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Registry = Literal["npm", "pypi"]

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
# They say how the launcher behaves, not what the server is.
QUIET = frozenset((
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
class Package:
    """`name` may carry extras; `extra` packages are installed beside it. The first `used` arguments
    of the launcher said all this: the others are the server's.
    """

    registry: Registry
    name: str
    version: str = ""
    program: str = ""
    extra: tuple[str, ...] = ()
    used: int = 0

    @property
    def bare(self) -> str:
        """Without version and extras, as profiles name it."""
        name = self.name.partition("[")[0]
        return f"{self.registry}:{name if self.registry == 'npm' else _normal(name)}"

    @property
    def reference(self) -> str:
        """As `corral run` takes it."""
        mark = "@" if self.registry == "npm" else "=="
        version = f"{mark}{self.version}" if self.version else ""
        program = f"#{self.program}" if self.program else ""
        return f"{self.registry}:{self.name}{version}{program}"


@record
class Refusal:
    """`apart` is what is fine as it is, only not corral's business."""

    why: str
    hint: str
    apart: bool = False


def launched(command: str, arguments: Sequence[str]) -> Package | Refusal | None:
    """What a command line installs and starts; None for one that is no launcher."""
    name = _program(command)
    words = list(arguments)
    if name == "cmd" and len(words) > 1 and words[0].lower() == "/c":
        # On Windows clients cannot start `npx.cmd` by itself.
        found = launched(words[1], words[2:])
        if isinstance(found, Package):
            return _shifted(found, 2)
        return found or _shell(name)
    if name in CONTAINERS:
        return Refusal(
            why=f"{name} starts it in a container, which corral cannot look into",
            hint="its walls are the container's own",
            apart=True,
        )
    if name in SHELLS:
        return _shell(name)
    for launcher, prefix, read in LAUNCHERS:
        if name == launcher and tuple(words[: len(prefix)]) == prefix:
            found = read(words[len(prefix) :])
            return _shifted(found, len(prefix)) if isinstance(found, Package) else found
    if name == "uv" and "run" in words:
        return Refusal(
            why="`uv run` makes an environment and starts processes before the server runs",
            hint="name the interpreter of the project: .venv/bin/python server.py",
        )
    return None


def _program(command: str) -> str:
    name = re.split(r"[/\\]", command)[-1].lower()
    stem, ending = os.path.splitext(name)
    return stem if ending in {".exe", ".cmd", ".bat", ".ps1"} else name


def _shifted(found: Package, by: int) -> Package:
    return replace(found, used=found.used + by)


def _shell(name: str) -> Refusal:
    return Refusal(
        why=f"{name} would have to start the server as another process",
        hint="name the server's own program, or allow it: --allow-subprocess",
    )


def _npm(words: list[str]) -> Package | Refusal:
    """[OPTION...] PACKAGE ..., or --package PACKAGE PROGRAM ..."""
    found = _split(words, spec=("-p", "--package"))
    if isinstance(found, Refusal):
        return Refusal(why=found.why, hint=NODE_HINT)
    spec, program, extra, used = found
    if extra:
        return Refusal(why="it names more than one package", hint=NODE_HINT)
    match = NPM.fullmatch(spec)
    if match is None:
        return Refusal(why=f"{spec!r} is not a package of the npm registry", hint=NODE_HINT)
    name, version = match["name"], match["version"] or ""
    if version not in {"", NEWEST} and not EXACT_NPM.fullmatch(version):
        return _many(name, version)
    program = "" if program == name.rpartition("/")[2] else program
    version = "" if version == NEWEST else version
    return Package(registry="npm", name=name, version=version, program=program, used=used)


def _pypi(words: list[str]) -> Package | Refusal:
    found = _split(words, spec=("--from", "--spec"))
    if isinstance(found, Refusal):
        return Refusal(why=found.why, hint=PYTHON_HINT)
    spec, program, extra, used = found
    match = PYPI.fullmatch(spec)
    if match is None:
        return Refusal(why=f"{spec!r} is not a package of PyPI in one version", hint=PYTHON_HINT)
    name, version = match["name"], match["version"] or ""
    if version not in {"", NEWEST} and not EXACT_PYPI.fullmatch(version):
        return _many(name, version)
    program = "" if _normal(program) == _normal(name) else program
    version = "" if version == NEWEST else version
    name += (match["extras"] or "").replace(" ", "")
    return Package(
        registry="pypi", name=name, version=version, program=program, extra=extra, used=used
    )


def _many(name: str, version: str) -> Refusal:
    why = f"{version!r} may be any of several versions of {name}"
    return Refusal(why=why, hint="name one version, or none for the newest")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _split(
    words: list[str], spec: tuple[str, ...]
) -> tuple[str, str, tuple[str, ...], int] | Refusal:
    """(package, program if it is named apart, more packages, how many words that took)."""
    named: dict[str, list[str]] = {"package": [], "--with": []}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word, equals, value = words[at].partition("=")
        at += 1
        if word == "--":
            break
        if word in QUIET and not equals:
            continue
        if word not in {*spec, "--with"}:
            return Refusal(why=f"its option {word} cannot be carried over", hint="")
        if not equals:
            value, at = (words[at] if at < len(words) else ""), at + 1
        named["package" if word in spec else word].append(value)
    if at >= len(words) or not words[at]:
        return Refusal(why="it names no package", hint="")
    if len(named["package"]) > 1:
        return Refusal(why="it names more than one package", hint="")
    program = words[at] if named["package"] else ""
    [package] = named["package"] or [words[at]]
    return package, program, tuple(named["--with"]), at + 1


LAUNCHERS = (
    ("npx", (), _npm),
    ("npm", ("exec",), _npm),
    ("npm", ("x",), _npm),
    ("pnpx", (), _npm),
    ("pnpm", ("dlx",), _npm),
    ("yarn", ("dlx",), _npm),
    ("bunx", (), _npm),
    ("bun", ("x",), _npm),
    ("uvx", (), _pypi),
    ("uv", ("tool", "run"), _pypi),
    ("pipx", ("run",), _pypi),
)


def back(reference: str) -> list[str] | None:
    """The launcher's words for a package reference; None for what is none."""
    registry, colon, rest = reference.partition(":")
    if not colon or registry not in {"npm", "pypi"}:
        return None
    spec, _, program = rest.partition("#")
    if registry == "npm":
        return ["npx", "-y", *(["-p", spec, program] if program else [spec])]
    if program:
        return ["uvx", "--from", spec, program]
    return ["uvx", spec.replace("==", "@", 1)]
