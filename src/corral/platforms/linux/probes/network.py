"""Whether a namespace can have a way out and a way in, by going them."""

from __future__ import annotations

import os
import socket
import sys

from corral.abi import linux as abi
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import loopback, outbound_listeners, user_ids
from corral.platforms.linux.mechanisms import published_ports as ways_in
from corral.platforms.posix import disposable
from corral.platforms.steps import Scene

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

NOBODYS = bytes((198, 18, 0, 7))
LOCALHOST = bytes((127, 0, 0, 1))
PATIENCE = 15
"""Seconds, on a host that has much else to do: what is not seen is absent for the whole boot."""


def gateway() -> str:
    """A connection to an address that nobody has reaches a listener handed out of the namespace."""
    scene = Scene()
    outbound_listeners.apply(outbound_listeners.Door(), scene)
    go_read, go_write = os.pipe()
    who = user_ids.choose(os.geteuid(), os.getegid())
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER | abi.CLONE_NEWNET)
    if pid == 0:
        init.follow_supervisor()
        os.read(go_read, 1)
        loopback.apply(loopback.Loopback(alone=False), scene)
        disposable.refused(lambda: connect(443, NOBODYS))
        outbound_listeners.apply(outbound_listeners.Listeners(ports=(443,)), scene)
        connect(443, NOBODYS)
        os._exit(0)
    user_ids.write_maps(who, pid)
    os.write(go_write, b"\0")
    os.close(scene.doors[1])
    found = outbound_listeners.receive(scene.doors[0])
    if not found:
        raise RuntimeError("no listeners came out of the namespace")
    with socket.socket(fileno=found[3]) as listener:
        listener.settimeout(PATIENCE)
        wanted = listener.accept()[0].getsockname()
    status = os.waitpid(pid, 0)[1]
    os.close(pidfd)
    if status or wanted != ("198.18.0.7", 443):
        raise RuntimeError(f"reached for {wanted}, wait status {status}")
    return "a connection to an address that nobody has ends at corral's listener, refused before"


def inward() -> str:
    """A port that listens in a namespace is reached by a socket made there, and by no other."""
    scene = Scene()
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER | abi.CLONE_NEWNET)
    if pid == 0:
        init.follow_supervisor()
        os.read(go_read, 1)
        loopback.apply(loopback.Loopback(), scene)
        port, listener = listen()
        os.write(told_write, port.to_bytes(2, "big"))
        socket.socket(fileno=listener).accept()
        os._exit(0)
    scene.pid = pid
    user_ids.write_maps(user_ids.choose(os.geteuid(), os.getegid()), pid)
    ways_in.apply(ways_in.Handles(), scene)
    os.write(go_write, b"\0")
    port = int.from_bytes(os.read(told_read, 2), "big")
    words = disposable.refused(lambda: connect(port))
    dialer = ways_in.Dialer(*scene.handles)
    with socket.socket(fileno=dialer.make()) as inside:
        inside.settimeout(PATIENCE)
        inside.connect(("127.0.0.1", port))
    dialer.close()
    status = os.waitpid(pid, 0)[1]
    os.close(pidfd)
    if status:
        raise RuntimeError(f"the port was not reached (wait status {status})")
    return f"a port inside is reached by a socket made there, not from outside ({words})"


def listen() -> tuple[int, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return port, listener.detach()


def connect(port: int, address: bytes = LOCALHOST) -> None:
    fd = abi.syscall("socket", abi.AF_INET, abi.SOCK_STREAM | abi.SOCK_CLOEXEC, 0)
    try:
        where = abi.AF_INET.to_bytes(2, "little") + port.to_bytes(2, "big") + address + bytes(8)
        abi.syscall("connect", fd, where, 16)
    finally:
        os.close(fd)
