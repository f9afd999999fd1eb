"""Sources by trust -> Policy: absolute, validated, the same on every operating system, frozen.

Units are fixed here so that no later stage converts: bytes, milliseconds, millicores.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from corral.policy.manifest import Manifest

    Trust = Literal["user", "request"]
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

    `device` and `inode` are compared again inside the new mount namespace: a path that was swapped
    in between is not what was granted. `path` is real; `written` is absolute but may go through
    links, which the view inside has to show as well ("": the same as `path`).
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
    """`admit`: networks of the user's config that what `allow` names may lead to."""

    limits: Limits = Limits()
    allow: tuple[str, ...] = ()
    admit: tuple[str, ...] = ()
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


@record
class Source:
    """Who said it. A request came with a server; `approved`: the user agreed to exactly that."""

    manifest: Manifest
    trust: Trust = "user"
    approved: bool = False


def merge(
    sources: Iterable[Source],
    *,
    ceilings: Manifest | None = None,
    home: str,
    cwd: str,
    protected: Sequence[str] = (),
) -> Policy:
    """One policy from all sources, lowest precedence first.

    The user's word overrides what stands before it; lists add up, and an empty list takes back what
    stood before. A request tightens; what it grants counts only if it was approved, and never
    against what the user said. `protected` are files of this run (report, audit) that no
    write grant may hold.
    """
    from corral.policy.merge import merge as merged

    return merged(tuple(sources), ceilings, home=home, cwd=cwd, protected=protected)


def requested_grants(manifest: Manifest, *, home: str = "", cwd: str = "") -> list[str]:
    """What a server's manifest asks for beyond the defaults, in plain words."""
    import os

    from corral.directories import home_directory
    from corral.policy.requests import asks

    return [ask.words for ask in asks(manifest, home or home_directory(), cwd or os.getcwd())]
