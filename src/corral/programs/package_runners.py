"""Parse the command lines of `npx`, `uvx` and other package runners, to find the packages that they
start.

A package runner installs and starts a package in one step. It needs the network, subprocesses and a
cache, and the server would get the same access. So corral installs the same package itself, pinned
to its version, and then runs only the package's own program.
"""

import ntpath
import posixpath
import re
from collections.abc import Sequence
from typing import Literal

from corral.programs.advice import CONTAINERS, program_name
from corral.record import record, replace
from corral.safe_text import shell_word

Registry = Literal["npm", "pypi"]
# Options that do not change which server the runner starts.
IGNORED_OPTIONS = frozenset((
    "-y", "--yes", "-q", "--quiet", "--silent", "-s", "--prefer-offline", "--prefer-online",
    "--offline", "--no-install", "--no-cache", "-n", "--refresh", "--isolated", "-U", "--upgrade",
    "--no-progress", "--no-config", "-v", "--verbose",
))  # fmt: skip
NEWEST = "latest"
PYTHON = re.compile(r"(?:c?python)?\d+(?:\.\d+){0,2}|/.*")
"""A version or a path, as `corral run --python` accepts it."""
SHELLS = frozenset(("sh", "bash", "zsh", "dash", "fish", "cmd", "powershell", "pwsh"))
# The options of `docker run` and `docker exec` that do not make the engine run a program on the
# host. An option such as `--runtime`, which podman also accepts after `run`, would.
CONTAINER_SWITCHES = frozenset((
    "--detach", "--init", "--interactive", "--no-healthcheck", "--privileged", "--publish-all",
    "--quiet", "--read-only", "--rm", "--tty",
))  # fmt: skip
CONTAINER_OPTIONS = frozenset((
    "--add-host", "--cap-add", "--cap-drop", "--cpus", "--device", "--dns", "--entrypoint", "--env",
    "--env-file", "--gpus", "--hostname", "--ipc", "--label", "--memory", "--mount", "--name",
    "--net", "--network", "--pid", "--pids-limit", "--platform", "--publish", "--pull", "--restart",
    "--security-opt", "--shm-size", "--tmpfs", "--ulimit", "--user", "--userns", "--volume",
    "--workdir",
))  # fmt: skip
"""Options that take a value."""
SHORT_CONTAINER_OPTIONS = re.compile(r"-[itdqP]*([elvpuwm]?)(.*)", re.DOTALL)
GATEWAY = ["mcp", "gateway", "run"]
"""Docker's own gateway, which starts servers in containers. Its options may name host programs."""


@record
class Syntax:
    """The syntax that a registry's runners use to name packages on their command lines.

    `flags` lists the options that name a package separately from its program, and `python_flags`
    lists the options that name an interpreter. `exact` matches one exact version.
    """

    runners: tuple[str, ...]
    flags: tuple[str, ...]
    python_flags: tuple[str, ...]
    pattern: re.Pattern[str]
    exact: re.Pattern[str]
    separator: str
    takes_more: bool
    names: str
    hint: str


SYNTAX: dict[Registry, Syntax] = {
    "npm": Syntax(
        runners=("npx", "npm exec", "npm x", "pnpx", "pnpm dlx", "yarn dlx", "bunx", "bun x"),
        flags=("-p", "--package"),
        python_flags=(),
        pattern=re.compile(
            r"(?i)(?P<name>(?:@[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)(?P<extras>)"
            r"(?:@(?P<version>[^@/]+))?"
        ),
        exact=re.compile(r"\d+\.\d+\.\d+(?:[-+][\w.+-]+)?"),
        separator="@",
        takes_more=False,
        names="a package in the npm registry",
        hint="install the package and name its program: node .../dist/index.js",
    ),
    "pypi": Syntax(
        runners=("uvx", "uv tool run", "pipx run"),
        flags=("--from", "--spec"),
        python_flags=("-p", "--python"),
        pattern=re.compile(
            r"(?i)(?P<name>[a-z0-9](?:[\w.-]*[a-z0-9])?)(?P<extras>\[[\w,. -]+\])?"
            r"(?:(?:==|@)(?P<version>[^,;<>=!~@/ ]+))?"
        ),
        exact=re.compile(
            r"v?(?:\d+!)?\d+(?:\.\d+)*(?:[._-]?(?:a|b|rc|alpha|beta|post|dev|pre)\d*)*"
        ),
        separator="==",
        takes_more=True,
        names="a PyPI package or one exact version of it",
        hint="install it into a virtual environment and name the program in its bin directory",
    ),
}
RUNNERS = [
    (runner.split(), registry) for registry, syntax in SYNTAX.items() for runner in syntax.runners
]


@record
class Package:
    """The package that a runner starts. `name` may contain Python's extras, as in `mcp[cli]`.
    `extra` lists further packages to install.

    `python` is the version or path of an interpreter. The first `used` arguments are for the
    runner, and the rest for the server.
    """

    registry: Registry
    name: str
    version: str = ""
    program: str = ""
    extra: tuple[str, ...] = ()
    python: str = ""
    used: int = 0

    @property
    def bare(self) -> str:
        """Return the reference without version and extras, as profiles name the package."""
        return f"{self.registry}:{_normalize(self.registry, self.name.partition('[')[0])}"

    @property
    def reference(self) -> str:
        """Return the package in the form that `corral run` accepts."""
        version = f"{SYNTAX[self.registry].separator}{self.version}" if self.version else ""
        program = f"#{self.program}" if self.program else ""
        return f"{self.registry}:{self.name}{version}{program}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of `corral run` that install the same packages."""
        python = ("--python", self.python) if self.python else ()
        return (*python, *(word for extra in self.extra for word in ("--with", extra)))


@record
class Refusal:
    """The reason why a command cannot run in the sandbox.

    `leave_alone` is true if the command already runs in another sandbox. `wrap` then leaves it
    unchanged, and this is not a failure.
    """

    why: str
    hint: str
    leave_alone: bool = False


def parse_runner(command: str, arguments: Sequence[str]) -> Package | Refusal | None:
    """Return the package that a command line installs and starts, a Refusal if corral cannot start
    it, or None if the command is not a package runner.
    """
    name = program_name(command)
    words = list(arguments)
    if name == "cmd" and len(words) > 1 and words[0].lower() == "/c":
        # Clients on Windows start `npx.cmd` through `cmd /c`, because they cannot start it
        # directly.
        found = parse_runner(words[1], words[2:])
        if isinstance(found, Package):
            return replace(found, used=found.used + 2)
        return found or _refuse_shell(name)
    if name in CONTAINERS and _is_installed(command):
        if words == GATEWAY or _starts_container(words):
            return Refusal(
                why=f"{name} starts the server in a container, which corral cannot inspect",
                hint="the container already is the server's sandbox",
                leave_alone=True,
            )
        return Refusal(
            why=f"corral does not know whether this {name} command starts only a container",
            hint=f"write `{name} run`, then its common options, then the image",
        )
    if name in SHELLS:
        return _refuse_shell(name)
    for (runner, *verbs), registry in RUNNERS:
        if name == runner and words[: len(verbs)] == verbs:
            found = _parse_package(registry, words[len(verbs) :])
            if isinstance(found, Package):
                return replace(found, used=found.used + len(verbs))
            return found
    if name == "uv" and "run" in words:
        return Refusal(
            why="`uv run` creates an environment and starts processes before the server runs",
            hint=f"start the server from the project's environment: {_format_venv_command(words)}",
        )
    return None


def _starts_container(words: list[str]) -> bool:
    """Return whether the arguments are `run` or `exec`, known options, and an image or container.

    A value that begins with "-" is refused, because the engine may read it as an option, and so is
    an image that begins with a variable, because a client may replace it with an option.
    """
    if words[:1] not in (["run"], ["exec"]):
        return False
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            return bool(word) and word[0] not in "${"
        name, equals, _ = word.partition("=")
        short = SHORT_CONTAINER_OPTIONS.fullmatch(word)
        letter, value = short.groups() if short else ("", "")
        if name in CONTAINER_OPTIONS or letter:
            if not (equals or value) and next(rest, "-").startswith("-"):
                return False
        elif name not in CONTAINER_SWITCHES and (value or word == "-"):
            return False
    return False


def _is_installed(command: str) -> bool:
    """Return whether a program is found through PATH or by an absolute path.

    Only such a program counts as a container client, whose command `wrap` leaves unchanged. Any
    other path could lead to a program in a project that is only called `docker`, for example.
    """
    if not {"/", "\\", "$"}.intersection(command):
        return True
    path = posixpath.normpath(command.replace("\\", "/"))
    is_absolute = posixpath.isabs(path) or ntpath.isabs(command)
    return is_absolute and not path.startswith(("//", "/proc/", "/dev/"))


def _format_venv_command(words: Sequence[str]) -> str:
    """Turn a `uv run` command into one that starts its program from the project's `.venv`. Return
    an example if the command has no program, or has an option other than `--directory`.
    """
    example = ".venv/bin/python server.py"
    directory, rest = "", list(words)
    rest.remove("run")
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option != "--directory" or not (equals or rest):
            return example
        directory = value if equals else rest.pop(0)
    if not rest:
        return example
    # `uv run` would start in `directory`, but the new command does not. So make its paths begin
    # with `directory`.
    rest = [posixpath.join(directory, word) if word.endswith(".py") else word for word in rest]
    is_script = rest[0].endswith(".py")
    program = "python" if is_script else rest.pop(0)
    command = (posixpath.join(directory, ".venv/bin", program), *rest)
    return " ".join(map(shell_word, command))


def _refuse_shell(name: str) -> Refusal:
    return Refusal(
        why=f"{name} would have to start the server as another process",
        hint="name the server's own program, or allow it: --allow-subprocess",
    )


def _parse_package(registry: Registry, words: list[str]) -> Package | Refusal:
    """Parse [OPTION...] PACKAGE ..., or --package PACKAGE PROGRAM ..."""
    syntax = SYNTAX[registry]
    found = _split(words, syntax)
    if isinstance(found, Refusal):
        plain = f"`corral run {registry}:NAME` starts a package without a runner"
        return replace(found, hint=f"{plain}; or {syntax.hint}")
    spec, program, extra, python, used = found
    if extra and not syntax.takes_more:
        return Refusal(why="the command names more than one package", hint=syntax.hint)
    match = syntax.pattern.fullmatch(spec)
    if match is None:
        return Refusal(why=f"{spec!r} does not name {syntax.names}", hint=syntax.hint)
    name, version = match["name"], match["version"] or ""
    if version not in {"", NEWEST} and not syntax.exact.fullmatch(version):
        why = f"{version!r} does not name one exact version of {name}"
        return Refusal(why=why, hint="name one exact version, or no version to get the newest")
    default = _normalize(registry, name.rpartition("/")[2])
    return Package(
        registry=registry,
        name=name + (match["extras"] or "").replace(" ", ""),
        version="" if version == NEWEST else version,
        program="" if _normalize(registry, program) == default else program,
        extra=extra,
        python=python,
        used=used,
    )


def _normalize(registry: Registry, name: str) -> str:
    """Return the normalized name of a Python project (PEP 503). npm's names need no
    normalization.
    """
    return re.sub(r"[-_.]+", "-", name).lower() if registry == "pypi" else name


def _split(
    words: list[str], syntax: Syntax
) -> tuple[str, str, tuple[str, ...], str, int] | Refusal:
    """Return (package, program, more packages, Python, number of words before the arguments).
    `program` is "" if the command names none.
    """
    meaning = {
        **dict.fromkeys(syntax.python_flags, "python"),
        **dict.fromkeys(syntax.flags, "package"),
        "--with": "extra",
    }
    named: dict[str, list[str]] = {"package": [], "extra": [], "python": []}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word, equals, value = words[at].partition("=")
        at += 1
        if word == "--":
            break
        if word in IGNORED_OPTIONS and not equals:
            continue
        if word not in meaning:
            return Refusal(why=f"corral does not support its option {word}", hint="")
        if not equals:
            value, at = (words[at] if at < len(words) else ""), at + 1
        named[meaning[word]].append(value)
    if at >= len(words) or not words[at]:
        return Refusal(why="the command names no package", hint="")
    if len(named["package"]) > 1:
        return Refusal(why="the command names more than one package", hint="")
    python = named["python"][-1] if named["python"] else ""
    if python and not PYTHON.fullmatch(python):
        return Refusal(why=f"{python!r} does not name one exact version of Python", hint="")
    program = words[at] if named["package"] else ""
    [package] = named["package"] or [words[at]]
    return package, program, tuple(named["extra"]), python, at + 1


def format_runner(reference: str) -> list[str] | None:
    """Return the `npx` or `uvx` command line for a package reference, or None for other strings."""
    registry, colon, rest = reference.partition(":")
    if not colon or registry not in {"npm", "pypi"}:
        return None
    spec, _, program = rest.partition("#")
    if registry == "npm":
        return ["npx", "-y", *(["-p", spec, program] if program else [spec])]
    if program:
        return ["uvx", "--from", spec, program]
    return ["uvx", spec.replace("==", "@", 1)]
