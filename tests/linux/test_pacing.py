"""Flood the gateway with requests that it denies. It must handle only a limited number per second.
To count them, the tests stop the gateway's clock.

Most tests run the gateway step by step on loopback, where it listens on addresses in 127.77.0.0/16.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import select
import socket
import struct
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the gateway uses epoll and splice", allow_module_level=True)

from corral.denials.records import Denials
from corral.network.addresses import parse_network
from corral.network.destinations import DestinationCheck
from corral.network.gateway import dns_messages, dns_server, gateway
from corral.network.rules import parse_rules

LOCAL, INSIDE, DNS, NOBODY = "127.0.0.1", "127.77.0.1", "127.77.0.53", "127.77.0.99"
NAME, EMPTY = "server.example", "empty.example"
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent / "src"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Setting:
    """A gateway with a fake clock, a server's listening socket, and clients."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.clock = Clock()
        self.denials = Denials()
        self.stack = stack
        self.server = stack.enter_context(socket.create_server((LOCAL, 0), backlog=1024))
        self.port = self.server.getsockname()[1]
        inside = [
            socket.create_server((where, self.port), backlog=1024) for where in (INSIDE, NOBODY)
        ]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((DNS, 0))
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.dns = udp.getsockname()
        tcp = socket.create_server(self.dns, backlog=64)
        check = DestinationCheck(
            parse_rules([f"{NAME}:{self.port}"]), self.denials, admitted=[parse_network(LOCAL)],
            host_addresses=(), synthetic=(parse_network("127.77.0.0/16"),),
        )  # fmt: skip
        self.gateway = gateway.Gateway(
            check, listeners=[end.detach() for end in inside], dns_udp=udp.detach(), dns_tcp=tcp.detach(),
            lookup=lambda _: [socket.inet_aton(LOCAL)], clock=self.clock,
        )  # fmt: skip
        stack.callback(self.gateway.close)
        self.gateway.names.assign_address(NAME)

    def client(self, address: tuple[str, int]) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(address, timeout=20))

    def work(self) -> None:
        """Run the gateway until it can do nothing more without a later time on its clock."""
        while select.select([self.gateway.fileno()], [], [], 0)[0]:
            self.gateway.run_ready()

    def pass_on(self, seconds: float) -> None:
        self.clock.now += seconds
        self.gateway.run_ready()
        self.work()

    def refused(self) -> int:
        return sum(row.count for row in self.denials.rows())


@pytest.fixture
def scene():
    with contextlib.ExitStack() as stack:
        yield Setting(stack)


def test_refused_connections_are_read_at_a_limited_rate(scene):
    """Make many connections that are refused. The gateway must handle the first ones at once, and
    then only a fixed number per second.
    """
    flood = gateway.MAX_FAILED * 2 + 100
    clients = [scene.client((NOBODY, scene.port)) for _ in range(flood)]
    scene.work()
    assert scene.refused() == gateway.MAX_FAILED
    assert scene.gateway.deadline() is not None
    scene.work()
    assert scene.refused() == gateway.MAX_FAILED
    seen = scene.refused()
    for _ in range(8):
        scene.pass_on(0.125)
    assert 0 < scene.refused() - seen <= gateway.MAX_FAILED
    scene.pass_on(2)
    assert scene.refused() == flood
    assert len(clients) == flood


def test_clients_that_wait_for_each_answer_are_accepted_at_the_same_rate(scene):
    """Make each connection only after the previous one has been refused, so that no connections
    queue. The gateway must limit their rate as well.
    """
    for _ in range(gateway.MAX_FAILED):
        scene.client((NOBODY, scene.port)).close()
        scene.work()
    assert scene.refused() == gateway.MAX_FAILED
    scene.client((NOBODY, scene.port))
    scene.work()
    assert scene.refused() == gateway.MAX_FAILED


def test_addresses_from_the_socket_broker_are_refused_at_a_limited_rate(scene):
    """Ask the gateway for destinations, as the socket broker of a run without namespaces does.

    After MAX_FAILED refusals the gateway asks the broker to pause for less than a second. Allowed
    destinations do not count.
    """
    nobody, good = socket.inet_aton(NOBODY), scene.gateway.names.assign_address(NAME)
    for _ in range(gateway.MAX_FAILED):
        assert scene.gateway.pause_seconds() == 0
        assert scene.gateway.find_destination(good, scene.port) is not None
        assert scene.gateway.find_destination(nobody, scene.port) is None
    assert 0 < scene.gateway.pause_seconds() < 1
    scene.clock.now += 1
    assert scene.gateway.pause_seconds() == 0
    assert scene.refused() == gateway.MAX_FAILED


def test_a_connection_with_data_does_not_count_as_a_flood(scene):
    """Sanity check: open more connections than the limit for floods, and send data on each. The
    gateway must delay none of them.
    """
    for _ in range(gateway.MAX_FAILED + 50):
        client = scene.client((INSIDE, scene.port))
        client.sendall(b"x")
        reached = _reached(scene)
        assert reached.recv(1) == b"x"
        reached.close()
        client.close()
        scene.work()
    assert scene.refused() == 0


def test_empty_connections_count_as_a_flood(scene):
    """Open connections that reach the server but carry no data. Their rate must be limited."""
    for _ in range(gateway.MAX_FAILED):
        client = scene.client((INSIDE, scene.port))
        reached = _reached(scene)
        client.close()
        reached.close()
        _until(scene, lambda: not scene.gateway._connections)
    client = scene.client((INSIDE, scene.port))
    scene.work()
    assert select.select([scene.server], [], [], 0)[0] == []
    scene.pass_on(1)
    client.sendall(b"x")
    assert _reached(scene).recv(1) == b"x"


def _until(scene, condition) -> None:
    while not condition():
        select.select([scene.gateway.fileno()], [], [])
        scene.gateway.run_ready()


def _reached(scene) -> socket.socket:
    """Wait until the gateway has connected, and return the server's end of the connection."""
    _until(scene, lambda: select.select([scene.server], [], [], 0)[0])
    reached = scene.stack.enter_context(scene.server.accept()[0])
    reached.settimeout(20)
    scene.work()
    return reached


def question(name: str) -> bytes:
    return (
        struct.pack("!HHHHHH", 1, 256, 1, 0, 0, 0)
        + dns_messages.build_name(name)
        + struct.pack("!HH", 1, 1)
    )


@pytest.mark.parametrize("together", [1, 60])
def test_dns_questions_are_answered_at_a_limited_rate(scene, together):
    """Ask 1 or 60 questions at a time. The gateway must limit their rate even if the client waits
    for each answer before it asks the next question.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(scene.dns)
        for _ in range(0, dns_server.BURST * 2, together):
            for _ in range(together):
                asking.send(question(EMPTY))
            scene.work()
            with contextlib.suppress(BlockingIOError):
                while asking.recv(4096, socket.MSG_DONTWAIT):
                    pass
    assert scene.refused() == dns_server.BURST
    scene.pass_on(1)
    assert scene.refused() > dns_server.BURST


def test_dns_questions_by_tcp_are_answered_at_the_same_rate(scene):
    """Send hundreds of questions over one TCP connection. Once the limit is reached, this client
    and all others must wait until the gateway's clock moves on.
    """
    framed = dns_messages.frame_message(question(EMPTY))
    first = scene.client(scene.dns)
    first.sendall(framed * (dns_server.BURST * 4))
    scene.work()
    heard = scene.refused()
    most_in_one = dns_messages.MAX_QUERY_BYTES // len(framed)
    assert dns_server.BURST / 2 <= heard <= dns_server.BURST + most_in_one
    second = scene.client(scene.dns)
    second.sendall(framed)
    scene.work()
    assert scene.refused() == heard
    scene.pass_on(1)
    scene.pass_on(1)
    assert scene.refused() == dns_server.BURST * 4 + 1
    assert second.recv(2) == len(
        dns_messages.build_answer(
            dns_messages.parse_query(question(EMPTY)), dns_messages.NXDOMAIN, []
        )
    ).to_bytes(2, "big")


def test_a_tcp_client_that_does_not_read_its_answers_is_closed(scene):
    """Do not read the answers on a TCP connection. When no more answers fit into its buffer, the
    gateway must close the connection, so that the client can ask again at once. If the gateway only
    dropped answers, the client would wait a long time for them.
    """
    framed = dns_messages.frame_message(question(EMPTY))
    dropped, end = socket.socketpair()
    reading, other = socket.socketpair()
    for client, server_end in ((dropped, end), (reading, other)):
        scene.stack.enter_context(client)
        server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        scene.gateway.dns_server.add_stream(server_end)
    sent = got = 0
    while len(scene.gateway.dns_server.streams) == 2 and sent < 1000:
        for client in (dropped, reading):
            client.sendall(framed)
        scene.pass_on(0.01)
        sent += 1
        got += len(reading.recv(4096, socket.MSG_DONTWAIT)) > 0
    dropped.setblocking(False)
    answers = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := dropped.recv(4096):
            answers += chunk
    assert 1 < len(dns_messages.Framing().feed(answers)) < sent
    assert got == sent  # Sanity check: a client that reads gets all answers
    assert len(scene.gateway.dns_server.streams) == 1


def test_new_tcp_clients_of_the_resolver_count_as_dns_questions(scene):
    clients = [scene.client(scene.dns) for _ in range(dns_server.MAX_STREAMS)]
    for _ in range(dns_server.BURST):
        clients.append(socket.create_connection(scene.dns, timeout=20))
        scene.work()
        clients[-1].close()
    refused_after = scene.client(scene.dns)
    scene.work()
    assert select.select([refused_after], [], [], 0)[0] == []
    scene.pass_on(1)
    assert refused_after.recv(1) == b""


DATAGRAMS = r"""
import json, select, socket, sys
sys.path.insert(0, sys.argv[1])
from corral.denials.records import Denials
from corral.network.destinations import DestinationCheck
from corral.network.gateway import event_loop, raw_packets
from corral.network.gateway.dns_names import Names
from corral.network.rules import parse_rules

now, denials = 1000.0, Denials()
names = Names(DestinationCheck(parse_rules(["server.example"]), denials))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
loop = event_loop.Loop(lambda: now)
reading = raw_packets.RawPackets(loop, denials, resets=(), datagrams=[datagrams.detach()], names=names)
def work():
    while select.select([loop.fileno()], [], [], 0)[0]:
        loop.run_ready()
    return sum(row.count for row in denials.rows())
together = int(sys.argv[2])
sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(0, raw_packets.BURST * 2, together):
    for _ in range(together):
        sending.sendto(b"x", ("10.1.2.3", 9))
    seen = work()
now += 1
loop.run_ready()
print(json.dumps([seen, work(), raw_packets.BURST, raw_packets.BATCH]))
"""


@pytest.mark.rig("world")
@pytest.mark.parametrize("together", [1, 60])
def test_raw_packets_are_read_at_a_limited_rate(together):
    """Send packets to a real raw socket, in a network namespace with its own loopback device. The
    gateway must limit the rate at which it reads them.
    """
    script = 'ip link set lo up && ip address add 10.1.2.3 dev lo && exec "$@"'
    command = [sys.executable, "-c", DATAGRAMS, str(SOURCE), str(together)]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, "sh", *command],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    first, later, burst, batch = json.loads(done.stdout)
    assert burst <= first <= burst + batch
    assert later > first


def test_hundreds_of_waiting_connections_can_fail_at_once():
    """Let hundreds of connections wait in the gateway for an earlier connection to end. They are
    for an address that the address guard refuses, so then all of them must fail at once.
    """
    denials = Denials()
    check = DestinationCheck(
        parse_rules(["0.0.0.0/0:80", f"{NAME}:443"]), denials, host_addresses=(),
        synthetic=(parse_network("127.77.0.0/16"),),
    )  # fmt: skip
    tested = gateway.Gateway(check, listeners=(), max_connections=1)
    first, held = socket.socketpair()
    tested.admit(held, tested.find_destination(tested.names.assign_address(NAME), 443))
    guarded = tested.find_destination(socket.inet_aton("10.1.2.3"), 80)
    clients = []
    for _ in range(gateway.MAX_WAITING):
        client, inner = socket.socketpair()
        clients.append(client)
        tested.admit(inner, guarded)
    assert not any(select.select(clients, [], [], 0))  # Sanity check: the connections wait
    first.close()
    while select.select([tested.fileno()], [], [], 0)[0]:
        tested.run_ready()
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    tested.close()
    assert sum(row.count for row in denials.rows() if row.kind == "guard") == gateway.MAX_WAITING
