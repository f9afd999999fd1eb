"""The type of a policy as a mapping. tests/policy_types.py generates it from policy/schema.py."""

# ruff: noqa: UP013 - a class cannot have a field `pass`

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from corral.policy.model import Control

McpToolsDict = TypedDict(
    "McpToolsDict",
    {
        "allow": Sequence[str],
        "deny": Sequence[str],
    },
    total=False,
)
McpPromptsDict = TypedDict(
    "McpPromptsDict",
    {
        "allow": Sequence[str],
        "deny": Sequence[str],
    },
    total=False,
)
McpResourcesDict = TypedDict(
    "McpResourcesDict",
    {
        "allow": Sequence[str],
        "deny": Sequence[str],
    },
    total=False,
)
ServerDict = TypedDict(
    "ServerDict",
    {
        "command": Sequence[str],
    },
    total=False,
)
LimitsDict = TypedDict(
    "LimitsDict",
    {
        "memory": int | str,
        "cpu": float | str,
        "cpu_time": str,
        "pids": int | Literal["none"],
        "fds": int | Literal["none"],
        "disk": int | str,
        "io": int | str,
        "timeout": str,
        "address_space": int | str,
    },
    total=False,
)
NetworkDict = TypedDict(
    "NetworkDict",
    {
        "allow": Sequence[str],
        "listen": Sequence[int],
        "listen_everywhere": bool,
    },
    total=False,
)
FilesystemDict = TypedDict(
    "FilesystemDict",
    {
        "read": Sequence[str],
        "write": Sequence[str],
        "unix_sockets": Sequence[str],
        "own_unix_sockets": bool,
        "state": bool,
    },
    total=False,
)
SubprocessDict = TypedDict(
    "SubprocessDict",
    {
        "allow": bool,
    },
    total=False,
)
EnvironmentDict = TypedDict(
    "EnvironmentDict",
    {
        "pass": Sequence[str],
        "set": Mapping[str, str],
        "secrets": Sequence[str],
    },
    total=False,
)
DegradeDict = TypedDict(
    "DegradeDict",
    {
        "allow": "Sequence[Control]",
    },
    total=False,
)
WindowsDict = TypedDict(
    "WindowsDict",
    {
        "app_container": bool,
        "minifilter": bool,
        "fail_on_app_container_error": bool,
        "network": Literal["none", "outbound", "local", "full"],
        "keep_grants": bool,
        "strict_handles": bool,
        "strict_grants": bool,
    },
    total=False,
)
MacosDict = TypedDict(
    "MacosDict",
    {
        "seatbelt": Literal["auto", "off"],
        "disclaim": bool,
        "trustd": bool,
    },
    total=False,
)
McpDict = TypedDict(
    "McpDict",
    {
        "requests": Sequence[str],
        "pins": Literal["off", "refuse", "warn"],
        "max_message": int | str,
        "max_pending": int | Literal["none"],
        "audit_arguments": bool,
        "tools": McpToolsDict,
        "prompts": McpPromptsDict,
        "resources": McpResourcesDict,
    },
    total=False,
)
PolicyDict = TypedDict(
    "PolicyDict",
    {
        "version": Literal[1],
        "server": ServerDict,
        "limits": LimitsDict,
        "network": NetworkDict,
        "filesystem": FilesystemDict,
        "subprocess": SubprocessDict,
        "environment": EnvironmentDict,
        "degrade": DegradeDict,
        "windows": WindowsDict,
        "macos": MacosDict,
        "mcp": McpDict,
    },
    total=False,
)
