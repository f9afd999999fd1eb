"""Find a server by its name in a client's configuration (`cursor:github`), and prepare its run."""

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from corral.clients import catalogue
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import read_client_file
from corral.clients.server_needs import refuse_one_word
from corral.errors import EXIT_USAGE, SandboxError
from corral.policy.variables import masked
from corral.programs.package_runners import Refusal, parse_runner
from corral.record import record

VARIABLE = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\$\{[^}]*\}")


@record
class FoundServer:
    """A configured server that is ready to run."""

    argv: tuple[str, ...]  # starts with a program or a package, not with corral or a runner
    env: Mapping[str, str]  # variables that the client sets
    cwd: str = ""
    forwarded: tuple[str, ...] = ()  # variables that the client passes on from its environment
    flags: tuple[str, ...] = ()  # flags of `corral run`, without those for variables in `env`
    path: str = ""


def find_server(name: str) -> FoundServer:
    """Find `CLIENT:SERVER` in the client's own files. Project files are not searched."""
    client, _, wanted = name.partition(":")
    known = catalogue.find_client(client)
    if known is None:
        near = difflib.get_close_matches(client, catalogue.NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(catalogue.NAMES)
        unknown = SandboxError(f"{client!r} is not a client that corral knows", hint=hint)
        unknown.exit_code = EXIT_USAGE
        raise unknown
    paths = [path for path in catalogue.own_files(known) if os.path.exists(path)]
    found = [(path, server) for path in paths for server in read_client_file(path).servers]
    here = os.path.realpath(os.curdir)
    named = [one for one in found if one[1].name == wanted]
    fitting = [one for one in named if one[1].scope in {"", here}]
    if not fitting:
        names = ", ".join(dict.fromkeys(server.name for _, server in found))
        hint = f"its servers: {names}" if names else "its settings contain no servers"
        raise SandboxError(f"{known.title} has no server {wanted!r} here", hint=hint)
    # If two servers have the same name, the one for this project takes precedence over the one for
    # all projects.
    path, server = max(fitting, key=lambda one: one[1].scope)
    return prepare_server(path, server)


def list_references(name: str) -> list[str]:
    """Return CLIENT:SERVER for each server of this name in clients' files. Skip broken files."""
    scopes = {"", os.path.realpath(os.curdir)}
    named = [(client, one) for client, _, one in read_own_files() if one.name == name]
    found = [client for client, one in named if one.scope in scopes]
    return [f"{client}:{name}" for client in dict.fromkeys(found)]


def suggest_command(name: str, verb: str) -> str:
    """Return a hint with the command that starts the server FILE:SERVER, or "" if `name` does not
    name such a server. The commands that start servers do not take FILE:SERVER, because a project's
    file could contain any grants.
    """
    file, _, wanted = name.rpartition(":")
    if not os.path.isfile(file):
        return ""
    try:
        found = [one for one in read_client_file(file).servers if one.name == wanted]
    except SandboxError:
        return ""
    words = found[0].unwrapped_argv if found else ()
    if not words or masked(words) != words:
        return ""
    return f"name the server's own command: corral {verb} -- {shlex.join(words)}"


def read_own_files(
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, str, ConfiguredServer]]:
    """Yield (client, path, server) for each server in clients' own files. Call `report` with the
    path of each broken file.
    """
    for client in catalogue.CLIENTS:
        for path in catalogue.own_files(client):
            if os.path.exists(path) and os.path.getsize(path):
                try:
                    servers = read_client_file(path).servers
                except SandboxError:
                    report(path)
                    continue
                yield from ((client.name, path, server) for server in servers)


def prepare_server(path: str, server: ConfiguredServer) -> FoundServer:
    """Prepare the run of a configured server. Refuse a server that corral cannot start."""
    if server.why:
        raise SandboxError(
            f"{server.name} cannot be run: {server.why}", hint=f"correct its entry in {path}"
        )
    refuse_one_word(server)
    argv = server.unwrapped_argv
    if not argv:
        raise SandboxError(
            f"{path}: the arguments of {server.name} have no `--` followed by a command",
            hint=f"correct its entry in {path}",
        )
    package = parse_runner(argv[0], argv[1:])
    if isinstance(package, Refusal):
        raise SandboxError(f"{server.name}: {package.why}", hint=package.hint)
    if package is not None:
        argv = (package.reference, *argv[1 + package.used :])
    return FoundServer(
        argv=tuple(map(fill_variables, argv)),
        env={name: fill_variables(value) for name, value in server.env.items()},
        cwd=fill_variables(server.cwd),
        forwarded=server.forwarded,
        flags=(*(package.flags if package else ()), *_select_flags(server)),
        path=path,
    )


def _select_flags(server: ConfiguredServer) -> Iterator[str]:
    words = iter(server.run_flags if server.is_wrapped else ())
    for word in words:
        if word in {"--env", "--secret"} and (value := next(words, "")) not in server.env:
            yield from (word, value)
        elif word not in {"--env", "--secret"}:
            yield word


def fill_variables(text: str) -> str:
    """Replace variables such as `${NAME}` with their values, as clients do. Refuse variables whose
    values only a client knows.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] == "${userHome}":
            return os.path.expanduser("~")
        if found["name"] is None or found["name"].startswith(("workspace", "file", "input")):
            raise SandboxError(
                f"only the client itself can fill in {found[0]}",
                hint="run the server's own command: corral run -- COMMAND",
            )
        known = os.environ.get(found["name"], found["default"])
        if known is None:
            raise SandboxError(
                f"the environment variable {found['name']} is not set",
                hint=f"set it: {found['name']}=VALUE corral ...",
            )
        return known

    return VARIABLE.sub(value, text)
