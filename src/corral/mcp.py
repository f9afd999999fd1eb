"""For Python agents: the parameters of an MCP server, so that it starts inside corral.

    parameters = sandboxed(StdioServerParameters(command="node", args=["server.js"]))

corral passes on what the SDK sends: messages, end of file, signals. An SDK is only imported if the
caller uses it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypeVar

from corral.api import child_python
from corral.policy import profiles
from corral.policy.manifest import Manifest, from_data, load
from corral.policy.variables import is_secret_name

PolicyLike = str | os.PathLike[str] | Mapping[str, object] | None


class Stdio(Protocol):
    """What an SDK knows about a server that it starts."""

    command: str
    args: list[str]
    env: dict[str, str] | None


Server = TypeVar("Server", bound=Stdio)

__all__ = ["sandboxed"]


def sandboxed(server: Server, policy: PolicyLike = None, *, profile: str | None = None) -> Server:
    """Return the server in a sandbox: `mcp.StdioServerParameters`, or FastMCP's StdioTransport.

    `policy` is a file or a mapping with a file's keys; `profile` names a curated one, below it. The
    variables in `server.env` are passed on, those that look like secrets as secrets. An error in
    the policy is raised here, before anything is started.
    """
    arguments = command_line(server.command, server.args, server.env or {}, policy, profile)
    changed = {"command": sys.executable, "args": arguments}
    copy = getattr(server, "model_copy", None)
    if copy is not None:
        copied: Server = copy(update=changed)
        return copied
    kept = {name: getattr(server, name) for name in ("env", "cwd", "keep_alive", "log_file")}
    # Not its own class: subclasses build their commands themselves.
    transport: Server = import_module("fastmcp.client.transports").StdioTransport(**changed, **kept)
    return transport


def command_line(
    command: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    policy: PolicyLike = None,
    profile: str | None = None,
) -> list[str]:
    """Return arguments for this Python that start the server through corral."""
    flags: list[str] = []
    if profile is not None:
        profiles.load(profile)  # raises if there is none
        flags += ["--profile", profile]
    manifest: Manifest | None = None
    if isinstance(policy, str | os.PathLike):
        manifest = load(os.fspath(policy))
        flags += ["--policy", os.path.abspath(policy)]
    elif policy is not None:
        manifest = from_data({"version": 1, **policy}, "policy")
        flags += ["--policy", json.dumps({"version": 1, **policy})]
    named: set[str] = set()  # the variables that the policy names itself
    if manifest is not None:
        named.update(name for name, _ in manifest.set_values or ())
        named.update(manifest.pass_names or (), manifest.secret_names or ())
    for name in env:
        if name not in named:
            flags += ["--secret" if is_secret_name(name) else "--env", name]
    words = ["run", *flags, "--", command, *arguments]
    return child_python.build_arguments("from corral import __main__; __main__.main()", *words)
