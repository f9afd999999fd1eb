"""Whether connections can be caught inside a network namespace and made into it."""

import os
import socket
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.plan.model import Results
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import (
    loopback,
    outbound_listeners,
    published_ports,
    user_ids,
)
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

UNUSED_ADDRESS = bytes((198, 18, 0, 7))
LOCALHOST = bytes((127, 0, 0, 1))
MAX_SECONDS = 15
"""Long, for a busy host: what is not seen is absent for the whole boot."""


@probe.probe(
    "gateway", "Network allowlist", hint="a kernel with network namespaces and local routes"
)
def catch_connection() -> str:
    """A connection to an address that no host has reaches a listener from inside the namespace."""
    results = Results()
    results.add(init.InitDescriptors(fds=[]))
    outbound_listeners.ListenerChannel().apply(results)
    go_read, go_write = os.pipe()
    who = user_ids.choose(os.geteuid(), os.getegid())
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER | abi.CLONE_NEWNET)
    if pid == 0:
        init.follow_supervisor()
        os.read(go_read, 1)
        loopback.Loopback(alone=False).apply(results)
        disposable.refused(lambda: connect(443, UNUSED_ADDRESS))
        outbound_listeners.OutboundListeners(ports=(443,)).apply(results)
        connect(443, UNUSED_ADDRESS)
        os._exit(0)
    user_ids.write_maps(who, pid)
    os.write(go_write, b"\0")
    results.get(init.InitDescriptors).release()
    found = results.get(outbound_listeners.ListenerSockets).channel.receive()
    if not found:
        raise RuntimeError("no listeners came out of the namespace")
    with socket.socket(fileno=found[3]) as listener:
        listener.settimeout(MAX_SECONDS)
        wanted = listener.accept()[0].getsockname()
    status = os.waitpid(pid, 0)[1]
    os.close(pidfd)
    if status or wanted != ("198.18.0.7", 443):
        raise RuntimeError(f"reached for {wanted}, wait status {status}")
    return "a connection to an address that nobody has ends at corral's listener, refused before"


@probe.probe(
    "inward",
    "Ports on host loopback",
    hint="a kernel with network namespaces that their owner may join",
)
def connect_into() -> str:
    """A port that listens in a namespace is reached by a socket made there, and by no other."""
    results = Results()
    go_read, go_write = os.pipe()
    port_read, port_write = os.pipe()
    pid, pidfd = abi.clone(abi.CLONE_NEWUSER | abi.CLONE_NEWNET)
    if pid == 0:
        init.follow_supervisor()
        os.read(go_read, 1)
        loopback.Loopback().apply(results)
        port, listener = listen()
        os.write(port_write, port.to_bytes(2, "big"))
        socket.socket(fileno=listener).accept()
        os._exit(0)
    results.add(init.InitProcess(pid=pid))
    user_ids.write_maps(user_ids.choose(os.geteuid(), os.getegid()), pid)
    published_ports.OpenNamespaces().apply(results)
    os.write(go_write, b"\0")
    port = int.from_bytes(os.read(port_read, 2), "big")
    words = disposable.refused(lambda: connect(port))
    dialer = published_ports.Dialer(results.get(published_ports.NamespaceHandles))
    with socket.socket(fileno=dialer.make()) as inside:
        inside.settimeout(MAX_SECONDS)
        inside.connect(("127.0.0.1", port))
    dialer.close()
    status = os.waitpid(pid, 0)[1]
    os.close(pidfd)
    if status:
        raise RuntimeError(f"the port was not reached (wait status {status})")
    return f"a port inside is reached by a socket made there, not from outside ({words})"


def listen() -> tuple[int, int]:
    """Return (port, descriptor) of a listener on loopback."""
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
