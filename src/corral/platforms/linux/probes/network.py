"""Probe whether corral can catch connections from a network namespace, and connect into it."""

import os
import select
import socket
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.abi import linux_sockets
from corral.plan.model import Results
from corral.platforms.linux import init
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms import loopback, outbound_listeners, published_ports
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

UNUSED_ADDRESS = bytes((198, 18, 0, 7))
LOCALHOST = bytes((127, 0, 0, 1))
MAX_SECONDS = 15
"""The maximum time to wait for a connection. It has to be long enough for a busy host, because the
capability counts as absent until the next boot if the connection comes too late.
"""


@probe.probe(
    "gateway", "Network allowlist", hint="a kernel with network namespaces and local routes"
)
def catch_connection() -> str:
    """Check that a listener in a namespace receives connections to any address.

    UNUSED_ADDRESS belongs to no host, so only the listener can answer a connection to it.
    """
    results = Results()
    channel = DescriptorChannel()
    results.add(channel)

    def act() -> None:
        loopback.Loopback(alone=False).apply(results)
        disposable.refused(lambda: connect(443, UNUSED_ADDRESS))
        outbound_listeners.OutboundListeners(ports=(443,)).apply(results)
        connect(443, UNUSED_ADDRESS)

    pid = probe.start_in_namespaces(abi.CLONE_NEWUSER | abi.CLONE_NEWNET, act)
    os.close(channel.inner)
    poll = select.poll()
    poll.register(channel.outer, select.POLLIN)
    poll.poll()
    found = channel.take("network")
    if not found:
        raise RuntimeError("the namespace sent no listeners")
    with socket.socket(fileno=outbound_listeners.sort_sockets(found).listeners[0]) as listener:
        listener.settimeout(MAX_SECONDS)
        wanted = listener.accept()[0].getsockname()
    status = os.waitpid(pid, 0)[1]
    if status or wanted != ("198.18.0.7", 443):
        raise RuntimeError(
            f"the listener got a connection to {wanted}; the child ended with wait status {status}"
        )
    return (
        "a connection to an address without a host reaches corral's listener, "
        "but was refused before"
    )


@probe.probe(
    "inward",
    "Ports on host loopback",
    hint="a kernel with network namespaces that their owner may join",
)
def connect_into() -> str:
    """Check that corral can reach a port in a namespace with a socket that it makes in there.

    A socket from outside the namespace must not reach the port.
    """
    results = Results()
    port_read, port_write = os.pipe()

    def act() -> None:
        loopback.Loopback().apply(results)
        port, listener = listen()
        os.write(port_write, port.to_bytes(2, "big"))
        socket.socket(fileno=listener).accept()

    pid = probe.start_in_namespaces(abi.CLONE_NEWUSER | abi.CLONE_NEWNET, act)
    results.add(init.InitProcess(pid=pid))
    published_ports.OpenNamespaces().apply(results)
    port = int.from_bytes(os.read(port_read, 2), "big")
    words = disposable.refused(lambda: connect(port))
    dialer = published_ports.Dialer(results.get(published_ports.NamespaceHandles))
    with socket.socket(fileno=dialer.make()) as inside:
        inside.settimeout(MAX_SECONDS)
        inside.connect(("127.0.0.1", port))
    dialer.close()
    status = os.waitpid(pid, 0)[1]
    if status:
        raise RuntimeError(f"no connection reached the port (the child's wait status: {status})")
    return f"a socket made inside reaches a port inside, but a socket made outside fails ({words})"


def listen() -> tuple[int, int]:
    """Open a listener on loopback, and return (port, descriptor)."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return port, listener.detach()


def connect(port: int, address: bytes = LOCALHOST) -> None:
    os.close(connected(port, address))


def connected(port: int, address: bytes = LOCALHOST) -> int:
    fd = linux_sockets.socket(linux_sockets.AF_INET, linux_sockets.SOCK_STREAM)
    try:
        abi.syscall("connect", fd, linux_sockets.inet_address(address, port), 16)
    except OSError:
        os.close(fd)
        raise
    return fd
