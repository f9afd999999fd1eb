"""Compare a connection through the allowlist's gateway with a direct connection to the same server.

All connections use loopback. The gateway and the server are separate processes, and this process is
the client. The gateway runs without a sandbox, so the times do not include anything else of corral.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

import measure
from measure import Section

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

LOCAL = "127.0.0.1"
INSIDE = "127.77.0.1"
NAME = "server.example"
BLOCK = 1 << 20
THROUGHPUT_BUDGET = 2.0
"""The allowed ratio of times. Twice the time of a direct connection means half its throughput."""
MESSAGES = 200


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    return measure.parser(__doc__, rounds=10).parse_args(words)


def main() -> int:
    options = arguments()
    output = measure.Output(json_wanted=options.json)
    megabytes = 64 if options.quick else 512
    server, children = start_server(megabytes)
    addresses = {"direct": (LOCAL, server)}
    try:
        for name, spliced in (("gateway", True), ("gateway, copying", False)):
            port, pid = start_gateway(server, spliced=spliced)
            children.append(pid)
            addresses[name] = (INSIDE if spliced else "127.77.0.2", port)
        rounds = measure.rounds_of(options)
        output.show(
            compared(f"{megabytes} MB down", "ms", addresses, download, rounds, THROUGHPUT_BUDGET)
        )
        output.show(compared("round trip of a message", "us", addresses, ping, rounds))
        output.show(compared("connect, one message, close", "us", addresses, connect, rounds))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return output.finish()


def compared(
    title: str,
    unit: str,
    addresses: dict[str, tuple[str, int]],
    once: Callable[[tuple[str, int]], float],
    rounds: int,
    budget: float | None = None,
) -> Section:
    contenders = {
        name: (lambda address=address: once(address)) for name, address in addresses.items()
    }
    stats = measure.interleave(contenders, rounds)
    ratios = tuple(
        measure.ratio(
            f"{name} / direct", stats[name], stats["direct"], budget if name == "gateway" else None
        )
        for name in addresses
        if name != "direct"
    )
    return Section(title, unit, tuple(stats.values()), ratios)


def download(address: tuple[str, int]) -> float:
    buffer = bytearray(BLOCK)
    with socket.create_connection(address) as client:
        started = time.perf_counter_ns()
        client.sendall(b"d")
        while client.recv_into(buffer):
            pass
        return (time.perf_counter_ns() - started) / 1e6


def ping(address: tuple[str, int]) -> float:
    with socket.create_connection(address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"e")
        client.recv(1)
        started = time.perf_counter_ns()
        for _ in range(MESSAGES):
            client.sendall(b"x" * 256)
            client.recv(256)
        return (time.perf_counter_ns() - started) / 1e3 / MESSAGES


def connect(address: tuple[str, int]) -> float:
    started = time.perf_counter_ns()
    with socket.create_connection(address) as client:
        client.sendall(b"e")
        client.recv(1)
    return (time.perf_counter_ns() - started) / 1e3


def start_server(megabytes: int) -> tuple[int, list[int]]:
    """Start a server that sends `megabytes` MB when a client sends `d`, and echoes other bytes."""
    listener = socket.create_server((LOCAL, 0), backlog=64)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                serve(connection, megabytes)
                os._exit(0)
            connection.close()
    port = listener.getsockname()[1]
    listener.close()
    return port, [pid]


def serve(connection: socket.socket, megabytes: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    word = connection.recv(1)
    if word == b"d":
        block = bytes(BLOCK)
        for _ in range(megabytes):
            connection.sendall(block)
        return
    while word:
        connection.sendall(word)
        word = connection.recv(1 << 16)


def start_gateway(server: int, *, spliced: bool) -> tuple[int, int]:
    from corral.denials.records import Denials
    from corral.network.addresses import parse_network
    from corral.network.destinations import DestinationCheck
    from corral.network.gateway.gateway import Gateway
    from corral.network.rules import parse_rules

    # The gateway connects to the port number that its client used, so it has to listen on the
    # server's port number.
    listener = socket.create_server((INSIDE if spliced else "127.77.0.2", server), backlog=64)
    pid = os.fork()
    if pid:
        listener.close()
        return server, pid
    names = ["first.example", NAME]
    check = DestinationCheck(
        parse_rules([f"{name}:{server}" for name in names]),
        Denials(),
        admitted=[parse_network(LOCAL)],
        host_addresses=(),
        synthetic=parse_network("127.77.0.0/16"),
    )
    gateway = Gateway(
        check, listeners=[listener.detach()], lookup=lambda _: [socket.inet_aton(LOCAL)]
    )
    for name in names:
        gateway.names.assign_address(name)
    if not spliced:
        gateway._context.pipes.max_pipes = 0  # noqa: SLF001 - only this benchmark needs it
    poll = select.poll()
    poll.register(gateway.fileno(), select.POLLIN)
    while True:
        poll.poll()
        gateway.run_ready()


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
