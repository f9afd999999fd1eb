"""Define the validated, frozen policy of a run.

Paths are absolute, and amounts are in bytes, milliseconds and millicores.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    LimitKind = Literal["size", "cpu", "duration", "count"]

    from corral.policy.manifest import Manifest

    Trust = Literal["user", "request"]
    Access = Literal["read", "write", "socket"]
    Pins = Literal["off", "refuse", "warn"]
    WindowsNetwork = Literal["none", "outbound", "local", "full"]
    Control = Literal[
        "filesystem", "network", "subprocess", "syscalls", "tree",
        "memory", "cpu", "cpu_time", "pids", "fds", "disk", "io", "timeout", "address_space",
        "masks", "messages",
    ]  # fmt: skip

WALLS: tuple[Control, ...] = ("filesystem", "network", "subprocess", "syscalls", "tree")
LIMITS: tuple[Control, ...] = (
    "memory", "cpu", "cpu_time", "pids", "fds", "disk", "io", "timeout", "address_space",
)  # fmt: skip
CONTROLS: tuple[Control, ...] = WALLS + LIMITS

MIB = 1 << 20
GIB = 1 << 30


@record
class Limits:
    """The limits with their defaults. None means unlimited."""

    memory: int | None = GIB
    cpu: int | None = None
    cpu_time: int | None = None
    pids: int | None = 128
    fds: int | None = 1024
    disk: int | None = GIB
    io: int | None = None
    timeout: int | None = None
    address_space: int | None = None


LIMIT_KINDS: Mapping[str, LimitKind] = {
    "memory": "size", "cpu": "cpu", "cpu_time": "duration", "pids": "count", "fds": "count",
    "disk": "size", "io": "size", "timeout": "duration", "address_space": "size",
}  # fmt: skip


def format_limit(name: str, value: int | None) -> str:
    return format_amount(LIMIT_KINDS[name], value)


def format_amount(kind: LimitKind, value: int | None) -> str:
    from corral.units import format_cpu, format_duration, format_size

    match kind:
        case "size":
            return format_size(value)
        case "duration":
            return format_duration(value)
        case "cpu":
            return format_cpu(value)
        case "count":
            return "none" if value is None else str(value)


@record
class Grant:
    """A path that the user granted, as it was when the policy was made.

    `path` is the real path. `written` is the absolute path in the policy, or "" if it is the same
    as `path`. If `written` leads through symlinks, the target must be able to see them. `device`
    and `inode` are checked again inside the new mount namespace, so that corral notices if the path
    has been replaced.
    """

    path: str
    access: Access
    device: int
    inode: int
    directory: bool
    owner: int
    group: int
    written: str = ""


@record
class Windows:
    app_container: bool = True
    minifilter: bool = True
    fail_on_app_container_error: bool = True
    network: WindowsNetwork = "none"
    keep_grants: bool = False
    strict_handles: bool = False
    strict_grants: bool = False


@record
class Macos:
    seatbelt: Literal["auto", "off"] = "auto"
    disclaim: bool = True
    trustd: bool = False


@record
class Mcp:
    """The MCP guard's rules for messages. If `tools_allow` is None, every tool that `tools_deny`
    does not name is allowed. Prompts and resources work in the same way.
    """

    tools_allow: tuple[str, ...] | None = None
    tools_deny: tuple[str, ...] = ()
    prompts_allow: tuple[str, ...] | None = None
    prompts_deny: tuple[str, ...] = ()
    resources_allow: tuple[str, ...] | None = None
    resources_deny: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    pins: Pins = "off"
    max_message: int | None = 16 * MIB
    max_pending: int | None = 1024
    audit_arguments: bool = False


@record
class Policy:
    """Everything that a run allows and limits.

    - `admit` lists networks from the user's configuration that the address guard would otherwise
      refuse.
    - `covered` lists mounts in granted directories that the target sees as empty directories,
      because they belong to the kernel or to services.
    - `mcp` is None if no source asks for the MCP guard. Messages are then not checked.
    - `requested_names` lists environment variables that the server asked for.
    - `given_values` lists secrets that the user entered for the server's settings.
    """

    limits: Limits = Limits()
    allow: tuple[str, ...] = ()
    admit: tuple[str, ...] = ()
    listen: tuple[int, ...] = ()
    listen_everywhere: bool = False
    grants: tuple[Grant, ...] = ()
    covered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    own_unix_sockets: bool = False
    state: bool = False
    subprocess: bool = False
    pass_names: tuple[str, ...] = ()
    set_values: tuple[tuple[str, str], ...] = ()
    secret_names: tuple[str, ...] = ()
    requested_names: tuple[str, ...] = ()
    given_values: tuple[str, ...] = ()
    stated: frozenset[str] = frozenset()
    degrade: frozenset[str] = frozenset()
    best_effort: bool = False
    strict: bool = False
    windows: Windows = Windows()
    macos: Macos = Macos()
    mcp: Mcp | None = None


@record
class Source:
    """A manifest from the user, or a request that came with a server. `approved` is true for a
    request that the user has approved.

    If the source contains a server's settings, `given_values` lists the secrets that the user
    entered for them, and all other text in the manifest's environment variables comes from the
    server. Otherwise `given_values` is None.
    """

    manifest: Manifest
    trust: Trust = "user"
    approved: bool = False
    given_values: tuple[str, ...] | None = None
