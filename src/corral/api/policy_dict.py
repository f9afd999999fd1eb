"""Define the type of a policy mapping. tests/policy_types.py makes it from policy/schema.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from corral.policy.model import Control


class McpPatternsDict(TypedDict, total=False):
    allow: Sequence[str]
    deny: Sequence[str]


class ServerDict(TypedDict, total=False):
    command: Sequence[str]


class LimitsDict(TypedDict, total=False):
    memory: int | str
    cpu: float | str
    cpu_time: str
    pids: int | Literal["none"]
    fds: int | Literal["none"]
    disk: int | str
    io: int | str
    timeout: str
    address_space: int | str


class NetworkDict(TypedDict, total=False):
    allow: Sequence[str]
    listen: Sequence[int]
    listen_everywhere: bool


class FilesystemDict(TypedDict, total=False):
    read: Sequence[str]
    write: Sequence[str]
    unix_sockets: Sequence[str]
    own_unix_sockets: bool
    state: bool


class SubprocessDict(TypedDict, total=False):
    allow: bool


EnvironmentDict = TypedDict(
    "EnvironmentDict",
    {"pass": Sequence[str], "set": Mapping[str, str], "secrets": Sequence[str]},
    total=False,
)


class DegradeDict(TypedDict, total=False):
    allow: "Sequence[Control]"


class WindowsDict(TypedDict, total=False):
    app_container: bool
    minifilter: bool
    fail_on_app_container_error: bool
    network: Literal["none", "outbound", "local", "full"]
    keep_grants: bool
    strict_handles: bool
    strict_grants: bool


class MacosDict(TypedDict, total=False):
    seatbelt: Literal["auto", "off"]
    disclaim: bool
    trustd: bool


class McpDict(TypedDict, total=False):
    requests: Sequence[str]
    pins: Literal["off", "refuse", "warn"]
    max_message: int | str
    max_pending: int | Literal["none"]
    audit_arguments: bool
    tools: McpPatternsDict
    prompts: McpPatternsDict
    resources: McpPatternsDict


class PolicyDict(TypedDict, total=False):
    version: Literal[1]
    server: ServerDict
    limits: LimitsDict
    network: NetworkDict
    filesystem: FilesystemDict
    subprocess: SubprocessDict
    environment: EnvironmentDict
    degrade: DegradeDict
    windows: WindowsDict
    macos: MacosDict
    mcp: McpDict
