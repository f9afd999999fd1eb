"""Change the parameters of an MCP server so that a Python agent starts the server in a sandbox.

    parameters = sandboxed(StdioServerParameters(command="node", args=["server.js"]))

corral passes messages, end of file and signals between the SDK and the server. This module imports
an SDK only if the caller uses that SDK.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypeVar, cast

from corral.api import child_python
from corral.errors import SandboxError
from corral.policy import profiles
from corral.policy.manifest import Manifest, from_data, load
from corral.policy.variables import is_secret
from corral.safe_text import shown

PolicyLike = str | os.PathLike[str] | Mapping[str, object] | None
Change = Callable[[str, Sequence[str], Mapping[str, str]], dict[str, object]]


class Stdio(Protocol):
    """The parameters that an SDK uses to start a server."""

    command: str
    args: list[str]
    env: dict[str, str] | None


Server = TypeVar("Server", bound=Stdio | Mapping[str, object])

__all__ = ["sandboxed"]


def sandboxed(server: Server, policy: PolicyLike = None, *, profile: str | None = None) -> Server:
    """Return a copy of `server`, changed so that the server starts in a sandbox.

    `server` is an SDK's parameters, a FastMCP transport, or a dict. A dict describes one server
    (`command`, `args`, `env`) or several servers ({name: server}, which may be the value of a key
    `mcpServers`). Servers with a `url` run elsewhere and are not changed.

    `policy` is a file, or a mapping with the keys of a policy file. `profile` names a curated
    profile, which `policy` overrides. The server gets the variables in `env`; variables that look
    like secrets are passed as secrets. An error in the policy is raised here, before anything is
    started.
    """

    def change(command: str, args: Sequence[str], env: Mapping[str, str]) -> dict[str, object]:
        words = command_line(command, args, select_variables(env, os.environ), policy, profile)
        return {"command": sys.executable, "args": words}

    found: object
    if isinstance(server, Mapping):
        found = _change_mapping(server, change)
    elif not hasattr(server, "command"):
        raise TypeError(f"server must be a dict or an SDK's parameters, not {server!r}")
    else:
        found = _change_object(server, change(server.command, server.args, server.env or {}))
    return cast("Server", found)


def _change_object(server: Stdio, changed: dict[str, object]) -> object:
    copy = getattr(server, "model_copy", None)
    if copy is not None:
        return copy(update=changed)
    kept = {name: getattr(server, name) for name in ("env", "cwd", "keep_alive", "log_file")}
    # Return a plain StdioTransport, because its subclasses build their own commands.
    return import_module("fastmcp.client.transports").StdioTransport(**changed, **kept)


def _change_mapping(given: Mapping[str, object], change: Change) -> dict[str, object]:
    if "command" in given:
        return _change_entry("the server", given, change)
    servers = given.get("mcpServers", given)
    if not isinstance(servers, Mapping) or "url" in given:
        raise SandboxError(
            "this dict does not contain a server that runs on this machine",
            hint='pass {"command": ..., "args": [...]} or {name: {"command": ...}} for each server',
        )
    made: dict[str, object] = {
        name: _change_entry(name, entry, change) for name, entry in servers.items()
    }
    return {**given, "mcpServers": made} if "mcpServers" in given else made


def _change_entry(name: str, entry: object, change: Change) -> dict[str, object]:
    found = dict(entry) if isinstance(entry, Mapping) else {}
    command, args, env = found.get("command"), found.get("args") or (), found.get("env") or {}
    if command is None and isinstance(found.get("url"), str):
        return found
    if not isinstance(command, str) or isinstance(args, str) or not isinstance(env, Mapping):
        raise SandboxError(
            f"{shown(str(name))} does not have a valid command",
            hint="`command` must be a string, `args` a list and `env` a dict",
        )
    return {**found, **change(command, [*map(str, args)], {**env})}


def select_variables(env: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the caller chose for the server.

    FastMCP's transports for npx and uvx add all the host's variables, including secrets, to `env`.
    So if `env` contains every host variable, return only those whose values differ from the host's.
    Otherwise return all of `env`.
    """
    if not host.keys() <= env.keys():
        return dict(env)
    return {name: value for name, value in env.items() if host.get(name) != value}


def command_line(
    command: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    policy: PolicyLike = None,
    profile: str | None = None,
) -> list[str]:
    """Return the arguments with which this Python interpreter starts the server through corral."""
    flags: list[str] = []
    if profile is not None:
        profiles.load(profile)  # raise an error now if the profile does not exist
        flags += ["--profile", profile]
    manifest: Manifest | None = None
    if isinstance(policy, str | os.PathLike):
        manifest = load(os.fspath(policy))
        flags += ["--policy", os.path.abspath(policy)]
    elif policy is not None:
        manifest = from_data({"version": 1, **policy}, "policy")
        flags += ["--policy", json.dumps({"version": 1, **policy})]
    named: set[str] = set()  # the variables that the policy itself names
    if manifest is not None:
        named.update(name for name, _ in manifest.set_values or ())
        named.update(manifest.pass_names or (), manifest.secret_names or ())
    for name, value in env.items():
        if name not in named:
            flags += ["--secret" if is_secret(name, value) else "--env", name]
    words = ["run", *flags, "--", command, *arguments]
    return child_python.build_arguments("from corral import __main__; __main__.main()", *words)
