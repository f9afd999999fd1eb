"""Run a gateway in its own process, as a supervisor would, for tests over real sockets on loopback.

The gateway answers a lookup with a synthetic address, which stands for the name. Clients connect to
this address. Here synthetic addresses are in 127.77.0.0/16, so that this also works without a
network namespace. The servers are on 127.0.0.1, which the address guard admits in most tests. The
gateway sends its own DNS queries to a DNS server of the test.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import queue
import socket
import struct
import subprocess
import sys
import threading

import pytest

from corral.network.gateway import dns_messages
from flags import entry

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent / "src"
FIRST, SECOND, NEVER = "127.77.0.1", "127.77.0.2", "127.77.0.9"
LOCAL = "127.0.0.1"
NAME, OTHER = "server.example", "other.example"

GATEWAY = r"""
import json, os, select, socket, struct, sys, time
sys.path.insert(0, sys.argv[1])
from corral.denials.records import Denials
from corral.network.addresses import parse_network
from corral.network.budgets import Timeouts
from corral.network.destinations import DestinationCheck
from corral.network.gateway import dns_messages, host_lookups, splice
from corral.network.gateway.gateway import Gateway
from corral.network.host_proxy import proxy_from_environment
from corral.network.rules import parse_rules
from corral.record import astuple

told = json.loads(sys.argv[2])

def lookup(name):
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.connect(("127.0.0.1", told["server"]))
    asking.send(struct.pack("!HHHHHH", 7, 256, 1, 0, 0, 0) + dns_messages.build_name(name) + b"\0\1\0\1")
    reply = asking.recv(512)
    count = struct.unpack_from("!H", reply, 6)[0]
    return [reply[len(reply) - 16 * at - 4 : len(reply) - 16 * at] for at in reversed(range(count))]

host_lookups.LOOKUP_SECONDS = told["patience"]
splice.ROUNDS = told["rounds"]
denials = Denials()
check = DestinationCheck(
    parse_rules(told["allow"]), denials, admitted=[parse_network(text) for text in told["admitted"]],
    host_addresses=() if told["own"] is None else [bytes(map(int, text.split("."))) for text in told["own"]],
    proxy=proxy_from_environment(told["environment"]), tls_ports=frozenset(told["tls"]),
    synthetic=(parse_network("127.77.0.0/16"),),
)
gateway = Gateway(
    check, listeners=told["listeners"], dns_udp=told["udp"], dns_tcp=told["tcp"], lookup=lookup,
    timeouts=Timeouts(**told["timeouts"]), max_connections=told["most"],
)
if not told["splice"]:
    gateway._context.pipes.max_pipes = 0
poll = select.poll()
poll.register(0, select.POLLIN)
poll.register(gateway.fileno(), select.POLLIN)
wakes = 0
running = True
while running:
    deadline = gateway.deadline()
    wait = None if deadline is None else max(0, (deadline - time.monotonic()) * 1000 + 1)
    ready = [fd for fd, _ in poll.poll(wait)]
    wakes += 1
    gateway.run_ready()
    if 0 in ready:
        word = os.read(0, 1)
        if word == b"?":
            print(json.dumps({"wakes": wakes, "open": len(gateway._connections)}), flush=True)
        running = bool(word)
gateway.close()
print(json.dumps({
    "denials": [astuple(row) for row in denials.rows()],
    "traffic": {name: astuple(item) for name, item in gateway.traffic().items()},
    "fds": sorted(os.listdir("/proc/self/fd")), "wakes": wakes,
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
}))
"""


class Zone:
    """A DNS server on loopback. Each query for a name gets the next answer from the name's list.
    When the list is used up, the last answer is repeated.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self.questions: queue.Queue[str] = queue.Queue()
        self.silent: set[str] = set()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((LOCAL, 0))
        self.port = self.socket.getsockname()[1]

    def serve(self) -> None:
        while True:
            data, sender = self.socket.recvfrom(512)
            if not data:
                return
            query = dns_messages.parse_query(data)
            self.asked.append(query.name)
            self.questions.put(query.name)
            if query.name in self.silent:
                continue
            known = self.answers.get(query.name, [[]])
            found = known.pop(0) if len(known) > 1 else known[0]
            records = [
                dns_messages.Answer(kind=dns_messages.A, data=socket.inet_aton(text))
                for text in found
            ]
            self.socket.sendto(
                dns_messages.build_answer(query, dns_messages.NOERROR, records), sender
            )

    def stop(self) -> None:
        self.socket.sendto(b"", self.socket.getsockname())


class Running:
    """A gateway in its own process. Its clients look up a name with the gateway's DNS server before
    they connect, as a target does.
    """

    def __init__(self, process: subprocess.Popen, dns_address, zone: Zone) -> None:
        self.process = process
        self.dns = dns_address
        self.zone = zone
        self.result = None

    def ask(self, name: str, kind: int = dns_messages.A) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(2)
            asking.connect(self.dns)
            for _ in range(10):  # clients retry, because a datagram may get lost
                asking.send(question(name, kind))
                with contextlib.suppress(TimeoutError):
                    return asking.recv(4096)
        raise TimeoutError(name)

    def address(self, name: str) -> str:
        return socket.inet_ntoa(self.ask(name)[-4:])

    def connect(self, name: str, port: int) -> socket.socket:
        return socket.create_connection((self.address(name), port), timeout=20)

    def now(self) -> dict:
        self.process.stdin.write(b"?")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> dict:
        if self.result is None:
            out, _ = self.process.communicate(timeout=90)
            assert self.process.returncode == 0
            self.result = json.loads(out.splitlines()[-1])
        return self.result

    def denials(self) -> list[tuple[str, str, str]]:
        rows = self.end()["denials"]
        return [(kind, destination, entry(allow)) for kind, destination, allow, *_ in rows]


def question(name: str, kind: int) -> bytes:
    return (
        struct.pack("!HHHHHH", 1, 256, 1, 0, 0, 0)
        + dns_messages.build_name(name)
        + struct.pack("!HH", kind, 1)
    )


@pytest.fixture
def gateway():
    with contextlib.ExitStack() as stack:
        zone = Zone()
        zone.answers = {NAME: [[LOCAL]], OTHER: [[LOCAL]]}
        thread = threading.Thread(target=zone.serve, daemon=True)
        thread.start()
        stack.callback(zone.socket.close)
        stack.callback(thread.join)
        stack.callback(zone.stop)

        def start(
            port: int, *, allow=None, admitted=(LOCAL,), addresses=(FIRST,), **told
        ) -> Running:
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((FIRST, 0))
            tcp = socket.create_server((FIRST, udp.getsockname()[1]))
            listeners = [
                socket.create_server((address, port), backlog=512) for address in addresses
            ]
            settings = {
                "allow": [f"{NAME}:{port}"] if allow is None else allow,
                "admitted": admitted, "listeners": [item.fileno() for item in listeners],
                "udp": udp.fileno(), "tcp": tcp.fileno(), "server": zone.port, "own": None, "environment": {},
                "timeouts": {}, "most": 512, "tls": [], "splice": True, "patience": 10, "rounds": 4, **told,
            }  # fmt: skip
            ends = [udp, tcp, *listeners]
            process = subprocess.Popen(
                [sys.executable, "-c", GATEWAY, str(SOURCE), json.dumps(settings)],
                pass_fds=[end.fileno() for end in ends],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            running = Running(process, udp.getsockname(), zone)
            for end in ends:
                end.close()
            stack.callback(running.end)
            return running

        yield start


def serve(stack: contextlib.ExitStack, answer, address: str = LOCAL) -> int:
    """Run `answer(connection)` in a thread for each connection, and return the server's port."""
    listener = socket.create_server((address, 0), backlog=512)
    threads: list[threading.Thread] = []

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=one, args=(connection,), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()

    def stop() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listener.close()
        for thread in threads:
            thread.join()

    stack.callback(stop)
    return listener.getsockname()[1]


@pytest.fixture
def server():
    with contextlib.ExitStack() as stack:
        yield lambda answer, address=LOCAL: serve(stack, answer, address)


def echo(connection: socket.socket) -> None:
    while chunk := connection.recv(65536):
        connection.sendall(chunk)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while chunk := connection.recv(1 << 18):
        parts.append(chunk)
    return b"".join(parts)


def is_refused(running: Running, address: str, port: int) -> bool:
    """Return whether the connection is closed or reset without carrying any data."""
    try:
        with socket.create_connection((address, port), timeout=20) as client:
            client.sendall(b"x")
            return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def proxy(server):
    """Start a proxy that connects to loopback, whatever name is requested. Return its port and the
    list of its requests.
    """
    requests: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        requests.append(head)
        target = head.split()[1].decode()
        if target.startswith("denied"):
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        with socket.create_connection((LOCAL, int(target.rpartition(":")[2]))) as onward:
            # The server's first bytes are in the same packet as the proxy's answer, and the gateway
            # must pass them on.
            connection.sendall(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\nbanner ")
            while chunk := connection.recv(4096):
                onward.sendall(chunk)
                connection.sendall(onward.recv(4096))

    return server(answer), requests
