"""Sources by trust -> Policy: absolute, validated, the same on every operating system, frozen.

Units are fixed here so that no later stage converts: bytes, milliseconds, millicores.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Access = Literal["read", "write", "socket"]
    WindowsNetwork = Literal["none", "outbound", "local", "full"]
    Control = Literal[
        "filesystem", "network", "subprocess", "syscalls", "tree",
        "memory", "cpu", "cpu_time", "pids", "fds", "disk", "io", "timeout", "address_space",
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
    """None means: no such limit is asked for."""

    memory: int | None = GIB
    cpu: int | None = None
    cpu_time: int | None = None
    pids: int | None = 128
    fds: int | None = 1024
    disk: int | None = GIB
    io: int | None = None
    timeout: int | None = None
    address_space: int | None = None


@record
class Grant:
    """A path the user granted, as it was when the policy was made.

    `device` and `inode` are compared again inside the new mount namespace: a path that was swapped in
    between is not what was granted.
    """

    path: str
    access: Access
    device: int
    inode: int
    directory: bool
    owner: int
    group: int


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
    limits: Limits = Limits()
    allow: tuple[str, ...] = ()
    listen: tuple[int, ...] = ()
    grants: tuple[Grant, ...] = ()
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
