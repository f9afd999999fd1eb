"""System V objects of the sandbox's own, counted where no cgroup counts memory.

Segments stay when nobody has them attached, and messages and semaphores are the kernel's own
memory: no process's figures show any of them. Their lists in /proc are those of the namespace that
opened them, for ever: init opens them and hands them out, and the supervisor reads.
"""

from __future__ import annotations

import array
import os
import socket
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

LISTS = ("shm", "msg", "sem")
OBJECT = 64
"""Bytes of the kernel's for each message and each semaphore."""
BLOCK = 1 << 16


@record
class Window:
    """The way by which the lists get out."""

    place: Place = "supervisor"

    def describe(self) -> str:
        return "a socket pair for the lists of System V objects"


@record
class Objects:
    place: Place = "init"

    def describe(self) -> str:
        return "System V objects are counted as memory"


def apply(step: Window | Objects, scene: Scene) -> None:
    if isinstance(step, Window):
        outside, inside = socket.socketpair()
        scene.windows = (outside.detach(), inside.detach())
        return
    opened = array.array("i", [_open(name) for name in LISTS])
    with socket.socket(fileno=scene.windows[1]) as channel:
        channel.sendmsg([b"V"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, opened)])
    for fd in opened:
        os.close(fd)


def _open(name: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/sysvipc/{name}", flags)
    except FileNotFoundError:
        return os.open(os.devnull, flags)  # a kernel without System V objects has none to count


def receive(channel: int) -> tuple[int, ...]:
    """In the supervisor: the lists, or nothing while init has not got so far."""
    found = array.array("i")
    window = socket.socket(fileno=channel)
    try:
        size = len(LISTS) * found.itemsize
        _, ancillary, _, _ = window.recvmsg(1, socket.CMSG_SPACE(size), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return ()
    finally:
        window.detach()
    for _, _, raw in ancillary:
        found.frombytes(raw)
    return tuple(found)


def count(lists: tuple[int, ...]) -> int:
    """Bytes of memory behind all the objects that the lists show now."""
    segments, queues, semaphores = (_rows(fd) for fd in lists)
    return (
        sum(row[b"rss"] + row[b"swap"] for row in segments)
        + sum(row[b"cbytes"] + OBJECT * row[b"qnum"] for row in queues)
        + sum(OBJECT * row[b"nsems"] for row in semaphores)
    )


def _rows(fd: int) -> list[dict[bytes, int]]:
    parts: list[bytes] = []
    at = 0
    while part := os.pread(fd, BLOCK, at):
        parts.append(part)
        at += len(part)
    head, *rows = b"".join(parts).splitlines() or [b""]
    names = head.split()
    # Permissions are octal; nobody asks for them.
    return [dict(zip(names, map(int, row.split()), strict=False)) for row in rows]
