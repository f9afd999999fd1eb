"""Bytes and connections through the gateway, next to the same client on the host's loopback.

The client times itself, from its first byte to its last, so that starting costs nothing here.
Budgets are of times: half of the throughput is twice the time.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import measure
import peers
from measure import Section

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

DIRECT, GATEWAY = "loopback", "gateway"
MEGABYTES, CONNECTIONS = 512, 400
THROUGHPUT = 2.0
BLOCK = 1 << 18
CLIENT = f"""
import socket, sys, time
kind, port, amount = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
block = bytearray({BLOCK})
def many():
    for _ in range(amount):
        with socket.create_connection(("127.0.0.1", port)) as end:
            end.sendall(b"0\\n")
            end.recv(1)
def large():
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.sendall(b"%d\\n" % amount)
        while end.recv_into(block):
            pass
def upload():
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.sendall(b"-%d\\n" % amount)
        for _ in range(amount * (1 << 20) // len(block)):
            end.sendall(block)
        end.shutdown(socket.SHUT_WR)
        end.recv(1)
def latency():
    with socket.create_connection(("127.0.0.1", port)) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.sendall(b"e\\n")
        for _ in range(amount):
            end.sendall(b"x")
            end.recv(1)
started = time.perf_counter_ns()
dict(many=many, large=large, upload=upload, latency=latency)[kind]()
print((time.perf_counter_ns() - started) / 1e6)
"""
PARTS = (
    ("large", "download", MEGABYTES, THROUGHPUT),
    ("upload", "upload", MEGABYTES, THROUGHPUT),
    ("many", "connections", CONNECTIONS, None),
    ("latency", "a byte there and back", 2000, None),
)


def serve(listener: socket.socket) -> None:
    """The life of the server process: what a line asks for."""
    block = bytearray(BLOCK)
    while True:
        end = listener.accept()[0]
        with end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = b""
            while not asked.endswith(b"\n"):
                asked += end.recv(1)
            _answer(end, asked.strip(), block)


def _answer(end: socket.socket, asked: bytes, block: bytearray) -> None:
    if asked == b"e":
        while byte := end.recv(1):
            end.sendall(byte)
    elif asked.startswith(b"-"):
        while end.recv_into(block):
            pass
        end.sendall(b"x")
    elif asked == b"0":
        end.sendall(b"x")
    else:
        for _ in range(int(asked) * (1 << 20) // len(block)):
            end.sendall(block)


def client(
    wrapper: Sequence[str], environment: Mapping[str, str], kind: str, port: int, amount: int
) -> float:
    """Milliseconds, as the client took them."""
    command = [*wrapper, sys.executable, "-I", "-c", CLIENT, kind, str(port), str(amount)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(wrapper) or 'the client'} failed: {done.stderr}")
    return float(done.stdout)


def sections(
    options: argparse.Namespace, corral: str, environment: Mapping[str, str], port: int
) -> list[Section]:
    wrapper = [corral, "run", "--allow-net", f"127.0.0.1:{port}", "--"]
    shown = []
    for kind, title, amount, budget in PARTS:
        asked = amount // 4 if options.quick else amount
        found = measure.interleave(
            {
                name: functools.partial(client, words, environment, kind, port, asked)
                for name, words in ((DIRECT, []), (GATEWAY, wrapper))
            },
            measure.rounds_of(options),
        )
        ratio = measure.ratio(f"{GATEWAY} / {DIRECT}", found[GATEWAY], found[DIRECT], budget)
        amounts = f"{asked} MB" if budget else f"{asked} times"
        shown.append(Section(f"{title}, {amounts}", "ms", tuple(found.values()), (ratio,)))
    return shown


def main() -> int:
    options = measure.parser(__doc__, rounds=10).parse_args()
    output = measure.Output(json_wanted=options.json)
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as directory:
        environment = measure.clean_environment(
            os.environ,
            XDG_CACHE_HOME=os.path.join(directory, "cache"),
            XDG_CONFIG_HOME=os.path.join(directory, "config"),
        )
        output.notice("installing the checkout ...")
        corral = peers.install(os.path.join(directory, "corral")).corral
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
            server = os.fork()
            if server == 0:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                serve(listener)
            try:
                port = listener.getsockname()[1]
                for section in sections(options, corral, environment, port):
                    output.show(section)
            finally:
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)
    return output.finish()


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
