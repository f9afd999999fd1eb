"""The gateway over real sockets, all on this machine's loopback.

It runs in a process of its own, as it does in a supervisor. Its synthetic addresses are in 127.77.0.0/16, which
leads to it here without a network namespace; the servers behind it are on 127.0.0.1, which the guard admits only
where a test says so. Names are looked up in a DNS server of the test's.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import queue
import random
import resource
import select
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest

from corral.network.gateway import dns_messages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the gateway uses epoll and splice")

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
    synthetic=parse_network("127.77.0.0/16"),
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
    """A DNS server on loopback: each name has a list of answers, the last of which stays."""

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
    """A gateway in its own process, and clients that ask its DNS server first, as a target does."""

    def __init__(self, process: subprocess.Popen, dns_address, zone: Zone) -> None:
        self.process = process
        self.dns = dns_address
        self.zone = zone
        self.result = None

    def ask(self, name: str, kind: int = dns_messages.A) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(2)
            asking.connect(self.dns)
            for _ in range(10):  # as every client does: a datagram may get lost
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
            out, _ = self.process.communicate(timeout=30)
            assert self.process.returncode == 0
            self.result = json.loads(out.splitlines()[-1])
        return self.result

    def denials(self) -> list[tuple[str, str, str]]:
        return [tuple(row[:3]) for row in self.end()["denials"]]


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
    """A server that runs `answer(connection)` in a thread for each connection; returns its port."""
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
    """The connection is reset before it carries anything, perhaps before the client has seen that it was made."""
    try:
        with socket.create_connection((address, port), timeout=20) as client:
            client.sendall(b"x")
            return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("splice", [True, False])
def test_what_is_said_on_either_side_arrives_on_the_other(gateway, server, splice):
    port = server(echo)
    running = gateway(port, splice=splice)
    with running.connect(NAME, port) as client:
        for text in (b"one", b"two", b"x" * 100_000):
            client.sendall(text)
            got = b""
            while len(got) < len(text):
                got += client.recv(65536)
            assert got == text
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    assert running.end()["traffic"] == {NAME: [1, 0, 100_006, 100_006]}
    assert running.denials() == []


def test_nothing_is_left_open(gateway, server):
    port = server(echo)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    assert running.end()["fds"] == ["0", "1", "2", "3"]  # the last is the listing itself
    assert running.end()["children"] == ""


def test_rude_clients_leave_nothing_behind(gateway, server):
    port = server(echo)
    running = gateway(port, most=64, tls=[], timeouts={"idle_seconds": 5})
    address = running.address(NAME)
    chance = random.Random(7)
    for _ in range(150):
        client = socket.create_connection((address, port), timeout=20)
        for act in chance.sample(["send", "much", "end", "reset", "read"], chance.randrange(4)):
            with contextlib.suppress(OSError):
                match act:
                    case "send":
                        client.sendall(b"x")
                    case "much":
                        client.setblocking(False)
                        client.send(bytes(1 << 20))
                    case "end":
                        client.shutdown(socket.SHUT_WR)
                    case "reset":
                        client.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                    case "read":
                        client.setblocking(False)
                        client.recv(1 << 16)
        client.close()
    with running.connect(NAME, port) as client:
        client.sendall(b"still there")
        assert client.recv(11) == b"still there"
    assert running.end()["fds"] == ["0", "1", "2", "3"]
    assert running.end()["children"] == ""


def test_http_with_connections_kept_alive(gateway, server):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = self.path.encode() * 1000
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    port = server(lambda connection: Handler(connection, connection.getpeername(), None))
    running = gateway(port)
    client = http.client.HTTPConnection(running.address(NAME), port, timeout=20)
    for number in range(5):
        client.request("GET", f"/{number}")
        assert client.getresponse().read() == f"/{number}".encode() * 1000
    client.close()
    assert running.end()["traffic"][NAME][0] == 1


@pytest.mark.parametrize("splice", [True, False])
def test_a_large_download_arrives_whole(gateway, server, splice):
    block = os.urandom(1 << 20)

    def send(connection: socket.socket) -> None:
        for _ in range(64):
            connection.sendall(block)

    port = server(send)
    running = gateway(port, splice=splice)
    expected, found = hashlib.sha256(), hashlib.sha256()
    for _ in range(64):
        expected.update(block)
    with running.connect(NAME, port) as client:
        while chunk := client.recv(1 << 18):
            found.update(chunk)
    assert found.digest() == expected.digest()
    assert running.end()["traffic"][NAME] == [1, 0, 0, 64 << 20]


def test_two_hundred_connections_at_once(gateway, server):
    port = server(echo)
    running = gateway(port)
    address = running.address(NAME)
    clients = [socket.create_connection((address, port), timeout=20) for _ in range(200)]
    for number, client in enumerate(clients):
        client.sendall(b"%04d" % number)
    for number, client in enumerate(clients):
        assert client.recv(4) == b"%04d" % number
    assert running.now()["open"] == 200
    for client in clients:
        client.close()
    assert running.end()["traffic"][NAME] == [200, 0, 800, 800]


def test_beyond_the_limit_connections_wait_for_others_to_end(gateway, server):
    port = server(echo)
    running = gateway(port, most=2)
    first, second, third = (running.connect(NAME, port) for _ in range(3))
    for client in (first, second):
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    third.sendall(b"y")
    assert running.now()["open"] == 2
    third.setblocking(False)
    with pytest.raises(BlockingIOError):
        third.recv(1)
    first.close()
    third.settimeout(20)
    assert third.recv(1) == b"y"
    second.close()
    third.close()
    assert running.denials() == [("limit", "more than 2 connections", "")]


def test_a_reader_that_does_not_read_holds_back_the_sender(gateway, server):
    sent, stopped = [], threading.Semaphore(0)

    def send(connection: socket.socket) -> None:
        connection.settimeout(1)  # longer than anything but back-pressure holds it up
        with contextlib.suppress(TimeoutError):
            for _ in range(4096):
                sent.append(connection.send(bytes(1 << 16)))  # noqa: PERF401 - it is cut short
        stopped.release()

    port = server(send)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        assert stopped.acquire(timeout=60)
        assert sum(sent) < 4096 << 16
        first = running.now()["wakes"]
        assert running.now()["wakes"] - first == 1  # it does not spin on what is stuck
        assert len(read_all(client)) == sum(sent)
    assert running.end()["traffic"][NAME][3] == sum(sent)


def test_one_that_is_stuck_does_not_hold_up_others(gateway, server):
    stop = threading.Event()

    def answer(connection: socket.socket) -> None:
        if connection.recv(1) == b"a":
            connection.sendall(b"a")
            return
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while not stop.is_set():
                connection.send(bytes(1 << 16))

    port = server(answer)
    running = gateway(port)
    with running.connect(NAME, port) as stuck:
        stuck.sendall(b"b")
        assert stuck.recv(1) == b"\0"
        for _ in range(20):
            with running.connect(NAME, port) as client:
                client.sendall(b"a")
                assert client.recv(1) == b"a"
        stop.set()


def test_the_end_of_one_direction_leaves_the_other_open(gateway, server):
    def reverse(connection: socket.socket) -> None:
        connection.sendall(read_all(connection)[::-1])

    port = server(reverse)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"abc")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"cba"


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_end_is_seen_in_whichever_round_it_comes(gateway, server, rounds):
    port = server(lambda connection: connection.sendall(read_all(connection)))
    running = gateway(port, rounds=rounds)
    for size in (0, 1, 100_000):
        with running.connect(NAME, port) as client:
            client.sendall(bytes(size))
            client.shutdown(socket.SHUT_WR)
            assert len(read_all(client)) == size


def test_a_server_that_is_done_first_can_still_be_written_to(gateway, server):
    got: queue.Queue[bytes] = queue.Queue()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"hello")
        connection.shutdown(socket.SHUT_WR)
        got.put(read_all(connection))

    port = server(answer)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        assert read_all(client) == b"hello"
        client.sendall(b"late")
        client.shutdown(socket.SHUT_WR)
    assert got.get(timeout=20) == b"late"


def test_a_reset_is_passed_on(gateway, server):
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    port = server(reset)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_connection_without_a_word_is_ended(gateway, server):
    port = server(echo)
    running = gateway(port, timeouts={"idle_seconds": 0.2})
    with running.connect(NAME, port) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_nobody_wakes_it_while_nothing_happens(gateway, server):
    port = server(echo)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        first = running.now()["wakes"]
        assert running.now()["wakes"] - first == 1  # the question itself


# What is refused


def test_an_allowed_name_on_another_port(gateway, server):
    port = server(echo)
    running = gateway(port, allow=[f"{NAME}:1"])
    assert is_refused(running, running.address(NAME), port)
    assert running.zone.asked == []
    assert running.denials() == [("port", f"{NAME}:{port}", f"{NAME}:{port}")]


def test_an_address_that_no_name_was_given(gateway, server):
    port = server(echo)
    running = gateway(port, addresses=(FIRST, NEVER))
    assert is_refused(running, NEVER, port)
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == [("address", f"{NEVER}:{port}", "")]


def test_addresses_of_the_policy_and_others(gateway, server, proxy):
    """Through a proxy: without a namespace, dialling the address would lead back to the gateway."""
    proxy_port, requests = proxy
    port = server(echo)
    running = gateway(
        port,
        allow=[f"127.5.0.0/24:{port}"],
        addresses=("127.5.0.2", "127.6.0.1"),
        environment={"https_proxy": f"http://{LOCAL}:{proxy_port}"},
    )
    assert is_refused(running, "127.6.0.1", port)
    assert not is_refused(running, "127.5.0.2", port)
    assert [request.split()[1] for request in requests] == [f"127.5.0.2:{port}".encode()]
    assert running.denials() == [("address", f"127.6.0.1:{port}", f"127.6.0.1:{port}")]


def test_everywhere_is_not_here(gateway, server):
    port = server(echo)
    running = gateway(port, allow=[f"0.0.0.0/0:{port}"], admitted=())
    assert is_refused(running, FIRST, port)
    assert running.denials() == [("guard", f"{FIRST}:{port}", f"{FIRST}:{port}")]


def test_a_name_that_leads_to_loopback(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=())
    assert is_refused(running, running.address(NAME), port)
    assert running.denials() == [("guard", f"{NAME} ({LOCAL}:{port})", f"{LOCAL}:{port}")]


def test_a_name_that_leads_to_loopback_which_the_policy_names(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=(), allow=[f"{NAME}:{port}", f"{LOCAL}:{port}"])
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == []


def test_a_name_that_leads_to_an_address_of_the_host(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=("127.0.0.0/8",), own=["8.8.8.8"])
    running.zone.answers[NAME] = [["8.8.8.8"], [LOCAL]]
    assert is_refused(running, running.address(NAME), port)
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == [("guard", f"{NAME} (8.8.8.8:{port})", f"8.8.8.8:{port}")]


@pytest.mark.parametrize(
    "bad", ["10.0.0.1", "169.254.169.254", "0.0.0.0", "192.168.1.1", "100.64.0.1"]
)
def test_a_name_that_resolves_differently_the_second_time(gateway, server, bad):
    port = server(echo)
    running = gateway(port)
    running.zone.answers[NAME] = [[LOCAL], [bad], [bad, LOCAL]]
    address = running.address(NAME)
    assert [is_refused(running, address, port) for _ in range(3)] == [False, True, False]
    rule = "" if bad == "0.0.0.0" else f"{bad}:{port}"  # no rule admits that one
    assert running.denials() == [("guard", f"{NAME} ({bad}:{port})", rule)]


def test_a_name_without_addresses(gateway, server):
    port = server(echo)
    running = gateway(port)
    running.zone.answers[NAME] = [[]]
    assert is_refused(running, running.address(NAME), port)
    assert running.denials() == []
    assert running.end()["traffic"] == {NAME: [1, 1, 0, 0]}


def test_the_next_address_is_tried_when_one_refuses(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=("127.0.0.0/8",))
    running.zone.answers[NAME] = [["127.0.0.77", LOCAL]]
    assert not is_refused(running, running.address(NAME), port)


def test_a_server_that_does_not_answer(gateway):
    with socket.socket() as full:
        full.bind((LOCAL, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):  # the queue is full, so that the kernel drops what else knocks
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex((LOCAL, port))
        running = gateway(port, timeouts={"connect_seconds": 0.3})
        assert is_refused(running, running.address(NAME), port)
        assert running.end()["traffic"] == {NAME: [1, 1, 0, 0]}
        for client in waiting:
            client.close()


# The host


def test_the_hosts_own_addresses_are_known_without_a_list():
    from corral.network.guard import HostAddresses

    own = HostAddresses()
    assert socket.inet_aton(LOCAL) in own
    assert socket.inet_aton("198.51.100.1") not in own  # for documentation: nobody has it
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # only looks for a route
        except OSError as error:
            pytest.skip(f"this host has no address but loopback: {error}")
        assert socket.inet_aton(probe.getsockname()[0]) in own


@contextlib.contextmanager
def no_descriptors():
    """None can be had in the block, whoever holds which."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.open("/", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(last)


class Dialer:
    """In the place of the one that makes sockets in a namespace."""

    def make(self):
        made = socket.socket()
        made.setblocking(False)
        return made.detach()

    def close(self):
        pass


def answered(service, client):
    """Drive it until the client has an answer, however long that takes."""
    while not select.select([client], [], [], 0)[0]:
        left = service.deadline()
        patience = None if left is None else max(0.0, left - time.monotonic())
        select.select([service, client], [], [], patience)
        service.run_ready()


@pytest.mark.parametrize("kind", ["out", "in", "names"])
def test_without_descriptors_nobody_is_asked_again_and_again(server, kind):
    """Who waits to be accepted makes the listener ready, for as long as it cannot be."""
    from corral.network.destinations import check_from_policy
    from corral.network.gateway.gateway import Gateway
    from corral.network.gateway.published_ports import PublishedPorts

    with socket.create_server((LOCAL, 0)) as listener:
        place, fd = listener.getsockname(), listener.detach()
    if kind == "in":
        service = PublishedPorts({server(echo): fd}, Dialer())
    else:
        ends = {"dns_tcp": fd, "listeners": []} if kind == "names" else {"listeners": [fd]}
        service = Gateway(check_from_policy((), (), {}, None), **ends)
    with contextlib.closing(service), socket.create_connection(place) as client:
        client.sendall(b"\x10\x01" if kind == "names" else b"word")
        with no_descriptors():
            service.run_ready()
            assert select.select([service], [], [], 0)[0] == []
        answered(service, client)
        if kind == "in":
            assert client.recv(4) == b"word"
        elif kind == "names":
            assert client.recv(4) == b""  # a question that is longer than any
        else:  # heard, and refused
            with pytest.raises(ConnectionResetError):
                client.recv(4)


def test_what_cannot_be_asked_for_lack_of_descriptors_is_taken_for_the_hosts_own():
    """A target can have the gateway run out of them, and must not get past the guard by that."""
    from corral.network.guard import HostAddresses

    elsewhere = socket.inet_aton("198.51.100.1")
    with no_descriptors():
        assert elsewhere in HostAddresses()
    assert elsewhere not in HostAddresses()


def test_names_are_looked_up_as_the_host_does():
    from corral.network.sockets import look_up_addresses

    assert socket.inet_aton(LOCAL) in look_up_addresses("localhost")


# Lookups


def children(running: Running) -> list[int]:
    pid = running.process.pid
    return [
        int(text) for text in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def test_a_lookup_that_hangs_is_given_up_and_others_go_on(gateway, server):
    port = server(echo)
    running = gateway(
        port, allow=[f"{NAME}:{port}", f"{OTHER}:{port}"], addresses=(FIRST, SECOND), patience=1
    )
    running.zone.silent = {OTHER}
    hanging, fine = running.address(OTHER), running.address(NAME)
    with socket.create_connection((hanging, port), timeout=20) as client:
        assert not is_refused(running, fine, port)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert running.end()["traffic"] == {OTHER: [1, 1, 0, 0], NAME: [1, 0, 1, 1]}


def test_a_lookup_holds_nothing_of_the_supervisors_and_dies_with_it(gateway, server):
    port = server(echo)
    running = gateway(port, patience=600)  # so that nothing else ends it
    running.zone.silent = {NAME}
    with running.connect(NAME, port):
        assert running.zone.questions.get(timeout=20) == NAME
        (child,) = children(running)
        held = {
            os.readlink(f"/proc/{child}/fd/{fd}").partition(":")[0]
            for fd in os.listdir(f"/proc/{child}/fd")
        }
        assert held == {"/dev/null", "socket"}
        pidfd = os.pidfd_open(child)
        running.process.kill()
        running.process.wait()
        assert select.select([pidfd], [], [], 20)[0] == [pidfd]
        os.close(pidfd)
    running.result = {}
    running.process.stdin.close()
    running.process.stdout.close()


def test_many_names_at_once_share_few_children(gateway, server):
    port = server(echo)
    running = gateway(port)
    clients = [running.connect(NAME, port) for _ in range(50)]
    for client in clients:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    assert len(children(running)) == 1
    for client in clients:
        client.close()


# DNS


def test_names_by_udp_and_tcp(gateway, server):
    running = gateway(server(echo))
    with socket.create_connection(running.dns, timeout=20) as client:
        both = dns_messages.frame_message(
            question(NAME, dns_messages.A)
        ) + dns_messages.frame_message(question("denied.example", dns_messages.A))
        client.sendall(both[:7])
        client.sendall(both[7:])
        framing, answers = dns_messages.Framing(), []
        while len(answers) < 2:
            answers += framing.feed(client.recv(4096))
    assert answers[0][-4:] == socket.inet_aton(FIRST)
    assert answers[0] == running.ask(NAME)
    assert answers[1][3] & 15 == dns_messages.NXDOMAIN
    assert running.ask(NAME, dns_messages.AAAA)[3] & 15 == dns_messages.NOERROR
    assert running.denials() == [("name", "denied.example", "denied.example")]
    assert running.zone.asked == []


def test_a_flood_of_questions_leaves_it_answering(gateway, server):
    port = server(echo)
    running = gateway(port, allow=[f"*.{NAME}:{port}"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(running.dns)
        for number in range(5000):
            asking.send(question(f"n{number}.{NAME}", dns_messages.A))
            asking.send(os.urandom(40))
    first = running.address(f"n0.{NAME}")
    assert running.address(f"n0.{NAME}") == first
    assert {row[0] for row in running.denials()} <= {"limit"}


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program makes the certificate")
    path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},DNS:{OTHER}",
         "-keyout", path / "both.pem", "-out", path / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    with open(path / "both.pem", "ab") as both:
        both.write((path / "certificate.pem").read_bytes())
    return str(path / "both.pem")


@pytest.fixture
def tls_server(server, certificate) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(connection: socket.socket) -> None:
        with (
            contextlib.suppress(ssl.SSLError),
            context.wrap_socket(connection, server_side=True) as inner,
        ):
            echo(inner)

    return server(answer)


def say_by_tls(
    raw: socket.socket, certificate: str, name: str | None, *, checked: bool = True
) -> bytes:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = checked
    with context.wrap_socket(raw, server_hostname=name) as client:
        client.sendall(b"secret")
        return client.recv(6)


def test_tls_with_the_name(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    assert say_by_tls(running.connect(NAME, tls_server), certificate, NAME) == b"secret"
    assert (
        say_by_tls(running.connect(NAME, tls_server), certificate, None, checked=False) == b"secret"
    )
    assert running.denials() == []


def test_tls_with_a_name_that_is_not_allowed(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    with pytest.raises((ConnectionResetError, ssl.SSLError)):
        say_by_tls(running.connect(NAME, tls_server), certificate, OTHER)
    assert running.zone.asked == []
    assert running.denials() == [("sni", OTHER, f"{OTHER}:{tls_server}")]


def test_tls_with_a_name_that_is_not_allowed_where_nobody_looks(gateway, tls_server, certificate):
    """The control: it was the look at the hello that refused it."""
    running = gateway(tls_server)
    assert say_by_tls(running.connect(NAME, tls_server), certificate, OTHER) == b"secret"


def test_a_hello_byte_by_byte(gateway, tls_server, certificate):
    running = gateway(tls_server, tls=[tls_server])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificate)
    client = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with running.connect(NAME, tls_server) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    raw.send(bytes((byte,)))
                incoming.write(raw.recv(65536))
    assert running.denials() == []


def test_a_hello_that_cannot_be_read(gateway, tls_server):
    running = gateway(tls_server, tls=[tls_server])
    with running.connect(NAME, tls_server) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x05\x02junk")
        with pytest.raises(ConnectionResetError):
            raw.recv(1)
    assert [row[0] for row in running.denials()] == ["sni"]


def test_a_tls_client_that_says_nothing(gateway, tls_server):
    running = gateway(tls_server, tls=[tls_server], timeouts={"request_seconds": 0.2})
    with running.connect(NAME, tls_server) as raw, pytest.raises(ConnectionResetError):
        raw.recv(1)
    assert running.zone.asked == []


# The host's own proxy


@pytest.fixture
def proxy(server):
    """A proxy that connects to loopback whatever the name, and its record of requests."""
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
            # The first bytes of the server come with the answer: both must arrive.
            connection.sendall(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\nbanner ")
            while chunk := connection.recv(4096):
                onward.sendall(chunk)
                connection.sendall(onward.recv(4096))

    return server(answer), requests


def test_through_the_hosts_proxy(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    environment = {
        "https_proxy": f"http://me:p%40ss@{LOCAL}:{proxy_port}",
        "NO_PROXY": "intern.example",
    }
    running = gateway(port, environment=environment, admitted=())
    with running.connect(NAME, port) as client:
        client.sendall(b"hello")
        got = b""
        while len(got) < 12:
            got += client.recv(12)
        assert got == b"banner hello"
    assert requests == [
        f"CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n"
        "Proxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n".encode()
    ]
    assert running.zone.asked == []  # the proxy knows


def test_past_the_hosts_proxy(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    running = gateway(
        port, environment={"https_proxy": f"{LOCAL}:{proxy_port}", "no_proxy": ".example"}
    )
    assert not is_refused(running, running.address(NAME), port)
    assert requests == []


def test_a_proxy_that_refuses(gateway, server, proxy):
    proxy_port, requests = proxy
    port = server(echo)
    running = gateway(
        port,
        allow=[f"denied.example:{port}"],
        environment={"https_proxy": f"http://{LOCAL}:{proxy_port}"},
    )
    assert is_refused(running, running.address("denied.example"), port)
    assert len(requests) == 1
