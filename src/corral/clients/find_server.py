"""`cursor:github`: a server by its name in a client's configuration, ready to be run."""

from __future__ import annotations

import os
import re

from corral.clients import catalogue
from corral.clients.edit_file import opened
from corral.errors import SandboxError
from corral.programs.package_runners import Refusal, parse_runner
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corral.clients.configured_servers import Server

VARIABLE = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\$\{[^}]*\}")


@record
class Configured:
    """`argv` starts with a program or a package reference, never with corral or a launcher.

    `env` is what the client would set. `forwarded` names what it would pass on from its own
    environment. `flags` are those of `corral run` that a wrapped server has in the file, without
    the names of what is in `env`: those are not in the environment of whoever runs it here.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = ""
    forwarded: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    path: str = ""


def find(name: str) -> Configured:
    """Only files of the user's own: what a project brings along is named by its file."""
    client, _, wanted = name.partition(":")
    known = catalogue.named(client)
    if known is None:
        raise SandboxError(f"{client!r} is no client that corral knows", hint=_list())
    paths = [path for path in catalogue.own_files(known) if os.path.exists(path)]
    found = [(path, server) for path in paths for server in opened(path).servers]
    here = os.path.realpath(os.curdir)
    fitting = [
        (path, server)
        for path, server in found
        if server.name == wanted and server.scope in {"", here}
    ]
    if not fitting:
        names = ", ".join(dict.fromkeys(server.name for _, server in found)) or "none"
        raise SandboxError(f"{known.title} has no server {wanted!r} here", hint=f"it has: {names}")
    # A server of this very project comes before one of the same name for all of them.
    path, server = max(fitting, key=lambda one: one[1].scope)
    return _configured(path, server)


def _list() -> str:
    return "known: " + ", ".join(catalogue.NAMES)


def _configured(path: str, server: Server) -> Configured:
    if server.why:
        raise SandboxError(f"{server.name} cannot be run: {server.why}")
    words = server.inner if server.wrapped else server.words
    if not words:
        raise SandboxError(f"{path}: the arguments of {server.name} have no `--` with a command")
    package = parse_runner(words[0], words[1:])
    if isinstance(package, Refusal):
        raise SandboxError(f"{server.name}: {package.why}", hint=package.hint)
    if package is not None:
        words = (package.reference, *words[1 + package.used :])
    values = {name: value for name, value in server.env.items() if value is not None}
    return Configured(
        argv=tuple(filled(word) for word in words),
        env={name: filled(str(value)) for name, value in values.items()},
        cwd=filled(server.cwd),
        forwarded=server.forwarded,
        flags=tuple(_flags(server)) if server.wrapped else (),
        path=path,
    )


def _flags(server: Server) -> Iterator[str]:
    words = iter(server.flags)
    for word in words:
        if word in {"--env", "--secret"} and (value := next(words, "")) not in server.env:
            yield from (word, value)
        elif word not in {"--env", "--secret"}:
            yield word


def filled(text: str) -> str:
    """Variables of the environment filled in as clients do; what only a client knows is refused."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "${userHome}":
            return os.path.expanduser("~")
        if found["name"] is None or found["name"].startswith(("workspace", "file", "input")):
            raise SandboxError(f"only the client itself can fill in {found[0]}")
        known = os.environ.get(found["name"], found["default"])
        if known is None:
            raise SandboxError(f"{found['name']} is not in the environment")
        return known

    return VARIABLE.sub(value, text)
