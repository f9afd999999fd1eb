"""Probe whether the supervisor can connect sockets for a process that is not allowed to connect
them.
"""

import os
import select
import socket
import sys
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.denials.records import Denials
from corral.network.destinations import DestinationCheck
from corral.network.gateway import gateway as gateways
from corral.network.rules import parse_rules
from corral.plan.model import Results
from corral.platforms.linux import notifications as listening
from corral.platforms.linux import socket_broker as brokers
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.linux.mechanisms import brokered_sockets, seccomp, user_ids
from corral.platforms.linux.probes import network, probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

HINT = (
    "a newer kernel (Linux 5.19 or later), no seccomp listener of an outer container runtime, and a"
    " /proc in which the target may be inspected (sysctl kernel.yama.ptrace_scope at most 1)"
)
TAKEN = "the engine around corral has the seccomp listener, and the kernel allows only one"
FORBIDDEN = "the filter of the engine around corral forbids a seccomp listener"
START = "for network access, start the container with a seccomp profile that "
WITHOUT_LISTENER = "has no `listenerPath`, and without a tool that intercepts its system calls"
PERMITTING = "permits SECCOMP_FILTER_FLAG_NEW_LISTENER (Docker's and podman's do)"
HINTS = ((TAKEN, START + WITHOUT_LISTENER), (FORBIDDEN, START + PERMITTING))
CONNECTED, REFUSED, ABSENT = b"c", b"r", b"a"
ENOSYS = 38


@probe.probe("socket_broker", "Network allowlist without namespaces", HINTS, hint=HINT)
def connect_replaced() -> str:
    return _try_broker(same_file=False)


@probe.probe(
    "same_socket",
    "Sockets connected in place",
    HINTS,
    hint="a newer kernel (Linux 5.19 or later), and an outer filter that permits pidfd_getfd"
    " (podman's does, Docker's does not)",
    word="supported",
)
def connect_same() -> str:
    return _try_broker(same_file=True)


def _try_broker(*, same_file: bool) -> str:
    """Try the broker with a process under the filter, and return the evidence.

    First check that both ports can be reached without the filter. Then the process under the filter
    must reach the allowed port, but not the other port. After the seccomp listener is closed, the
    process must not reach any port. Raise RuntimeError if one of these checks fails.
    """
    allowed, server = network.listen()
    other, second = network.listen()
    for port in (allowed, other):
        network.connect(port)
    results = Results()
    channel = DescriptorChannel()
    results.add(channel)
    who = user_ids.choose(os.geteuid(), os.getegid())
    step = brokered_sockets.BrokeredSockets(
        allow=(f"127.0.0.1:{allowed}",), admit=(), ports=(), unix=(),
        uid=who.outside_uid, gid=who.outside_gid, same_file=same_file,
    )  # fmt: skip
    step.apply(results)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        channel.leave()
        _be_target(results, theirs, who, allowed, other)
    theirs.close()
    os.close(channel.inner)
    with socket.socket(fileno=server) as listener, socket.socket(fileno=second):
        listener.accept()[0].close()  # this connection comes from the check without the filter
        words = _serve(results, channel, ours, listener)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the process under the filter failed")
    return words


def _serve(
    results: Results, channel: DescriptorChannel, ours: socket.socket, server: socket.socket
) -> str:
    denials = Denials()
    prepared = results.get(brokered_sockets.PreparedSockets)
    rules = parse_rules(prepared.step.allow)
    gateway = gateways.Gateway(DestinationCheck(rules, denials, host_addresses=()), listeners=())
    broker = brokers.SocketBroker(gateway, prepared, denials)
    executed = os.pipe()
    os.close(executed[1])  # to the broker, a closed pipe means that the target has executed
    notifications = listening.Notifications(
        channel, executed[0], listening.Deciders(by_name={}, hit=[])
    )
    notifications.decide_with(lambda: {"socket_broker": broker})
    poll = select.poll()
    for one in (notifications, gateway, ours):
        poll.register(one.fileno(), select.POLLIN)
    said = b""
    while len(said) < 2:
        if not poll.poll(network.MAX_SECONDS * 1000):
            raise RuntimeError("the listener received no call")
        notifications.run_ready()
        gateway.run_ready()
        if select.select([ours], [], [], 0)[0]:
            said += (chunk := ours.recv(256))
            if not chunk:
                raise RuntimeError("the process sent no listener, or died")
    if said != CONNECTED + REFUSED:
        raise RuntimeError(said[2:].decode(errors="replace"))
    server.settimeout(network.MAX_SECONDS)
    while not _arrives(server, gateway):
        pass
    notifications.close()
    ours.sendall(b".")
    if ours.recv(1) != ABSENT:
        raise RuntimeError("a call was not refused after the listener had closed")
    broker.close()
    gateway.close()
    how = (
        "through the caller's own socket"
        if prepared.step.same_file
        else "through a socket that replaced it"
    )
    return (
        f"an allowed connection arrives {how}; other connections are refused; "
        "without a listener, all connections are refused"
    )


def _arrives(server: socket.socket, gateway: gateways.Gateway) -> bool:
    ends = [server.fileno(), gateway.fileno()]
    ready = select.select(ends, [], [], network.MAX_SECONDS)[0]
    if not ready:
        raise RuntimeError("the allowed connection did not arrive")
    gateway.run_ready()
    return server.fileno() in ready


def _be_target(
    results: Results, said: socket.socket, who: user_ids.IdMaps, allowed: int, other: int
) -> None:
    try:
        if who.drop_groups:
            user_ids.SetIds(uid=who.outside_uid, gid=who.outside_gid, drop_groups=True).apply(
                results
            )
            # The change of ids has made this process undumpable, so the broker could not inspect
            # it. A real target becomes dumpable again by its exec.
            abi.prctl(abi.PR_SET_DUMPABLE, 1)
        abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
        _load_filter(results)
        network.connected(allowed)
        said.sendall(CONNECTED)
        disposable.refused(lambda: network.connect(other), by=ConnectionRefusedError)
        said.sendall(REFUSED)
        said.recv(1)
        try:
            network.connect(allowed)
        except OSError as error:
            said.sendall(ABSENT if error.errno == ENOSYS else b"-")
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        said.sendall(b"--" + str(error).encode())
    finally:
        os._exit(1)


def _load_filter(results: Results) -> None:
    step = seccomp.Seccomp(
        machine=os.uname().machine, subprocess=True, unix_sockets=False, namespaces=False,
        broker=True,
    )  # fmt: skip
    try:
        step.apply(results)
    except OSError as error:
        if error.errno not in seccomp.NO_LISTENER:
            raise
        raise RuntimeError(TAKEN if error.errno == seccomp.EBUSY else FORBIDDEN) from error
