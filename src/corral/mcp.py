"""For Python agents: the parameters of an MCP server, so that it starts inside corral.

    parameters = sandboxed(StdioServerParameters(command="node", args=["server.js"]))

Whatever the SDK does with them then, it does to corral, which passes it on: messages, end of file,
signals. Nothing of an SDK is imported unless it was given.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from corral.api import own_python
from corral.policy.manifest import from_data, load
from corral.policy.variables import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from corral.policy.manifest import Manifest

    PolicyLike = str | os.PathLike[str] | Mapping[str, object] | None

    class Stdio(Protocol):
        """What an SDK knows of a server that it starts."""

        command: str
        args: list[str]
        env: dict[str, str] | None


Server = TypeVar("Server", bound="Stdio")

__all__ = ["sandboxed"]


def sandboxed(server: Server, policy: PolicyLike = None, *, profile: str | None = None) -> Server:
    """The same server behind walls: `mcp.StdioServerParameters`, or a StdioTransport of FastMCP's.

    `policy` is a file or a mapping with a file's keys; `profile` names a curated one, below it. The
    variables in `server.env` are passed on, those that look like secrets as secrets. What is wrong
    with the policy is said here, before anything is started.
    """
    arguments = command_line(server.command, server.args, server.env or {}, policy, profile)
    changed = {"command": sys.executable, "args": arguments}
    copy = getattr(server, "model_copy", None)
    if copy is not None:
        copied: Server = copy(update=changed)
        return copied
    kept = {name: getattr(server, name) for name in ("env", "cwd", "keep_alive", "log_file")}
    # Its subclasses put their commands together themselves, so the class is the plain one.
    transport: Server = import_module("fastmcp.client.transports").StdioTransport(**changed, **kept)
    return transport


def command_line(
    command: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    policy: PolicyLike = None,
    profile: str | None = None,
) -> list[str]:
    """Arguments for this Python that start the server through corral."""
    flags: list[str] = []
    if profile is not None:
        from corral.policy import profiles

        profiles.load(profile)  # there is one, or the error says so
        flags += ["--profile", profile]
    manifest: Manifest | None = None
    if isinstance(policy, str | os.PathLike):
        manifest = load(os.fspath(policy))
        flags += ["--policy", os.path.abspath(policy)]
    elif policy is not None:
        manifest = from_data({"version": 1, **policy}, "policy")
        flags += ["--policy", json.dumps({"version": 1, **policy})]
    named = _named(manifest) if manifest else set()
    for name in env:
        if name not in named:
            flags += ["--secret" if is_secret_name(name) else "--env", name]
    words = ["run", *flags, "--", command, *arguments]
    return own_python.arguments("from corral.cli import main; main()", *words)


def _named(manifest: Manifest) -> set[str]:
    """Variables that the policy speaks of itself."""
    put = [name for name, _ in manifest.set_values or ()]
    return {*put, *(manifest.pass_names or ()), *(manifest.secret_names or ())}
