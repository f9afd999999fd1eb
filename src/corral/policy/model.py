"""The policy of a run: absolute, validated, the same on every operating system, frozen.

Amounts are in bytes, milliseconds and millicores, so that no later stage converts.
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
    WindowsNetwork = Literal["none", "outbound", "local", "full"]
    Control = Literal[
        "filesystem", "network", "subprocess", "syscalls", "tree",
        "memory", "cpu", "cpu_time", "pids", "fds", "disk", "io", "timeout", "address_space",
        "masks",
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
    """The defaults. None means that there is no such limit."""

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
    """Return a limit as a person would write it."""
    from corral.units import format_cpu, format_duration, format_size

    match LIMIT_KINDS[name]:
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

    `device` and `inode` are compared again inside the new mount namespace: a path that was swapped
    in between is not what was granted. `path` is real; `written` is absolute but may go through
    links, which the target has to see as well ("": the same as `path`).
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


@record
class Macos:
    seatbelt: Literal["auto", "off"] = "auto"


@record
class Policy:
    """`admit`: networks of the user's configuration that the hosts in `allow` may lead to.

    `covered`: mounts below grants that are the kernel's or services', and are not shown.
    """

    limits: Limits = Limits()
    allow: tuple[str, ...] = ()
    admit: tuple[str, ...] = ()
    listen: tuple[int, ...] = ()
    grants: tuple[Grant, ...] = ()
    covered: tuple[str, ...] = ()
    state: bool = False
    subprocess: bool = False
    pass_names: tuple[str, ...] = ()
    set_values: tuple[tuple[str, str], ...] = ()
    secret_names: tuple[str, ...] = ()
    stated: frozenset[str] = frozenset()
    degrade: frozenset[str] = frozenset()
    best_effort: bool = False
    strict: bool = False
    windows: Windows = Windows()
    macos: Macos = Macos()


@record
class Source:
    """A manifest and whose it is. A request came with a server; the user may have approved it."""

    manifest: Manifest
    trust: Trust = "user"
    approved: bool = False
