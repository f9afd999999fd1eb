"""Test which connections and lookups the gateway allows, over real sockets."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import select
import socket
import sys
import time

import pytest
from gateway_process import (
    FIRST,
    LOCAL,
    NAME,
    NEVER,
    OTHER,
    SECOND,
    Running,
    echo,
    gateway,
    is_refused,
    proxy,
    question,
    server,
)

from corral.network.gateway import dns_messages

__all__ = ["gateway", "proxy", "server"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the gateway uses epoll and splice")


# Refused connections


def test_the_gateway_refuses_an_allowed_name_on_another_port(gateway, server):
    port = server(echo)
    running = gateway(port, allow=[f"{NAME}:1"])
    assert is_refused(running, running.address(NAME), port)
    assert running.zone.asked == []
    assert running.denials() == [("port", f"{NAME}:{port}", f"{NAME}:{port}")]


def test_an_address_without_a_name_is_refused(gateway, server):
    port = server(echo)
    running = gateway(port, addresses=(FIRST, NEVER))
    assert is_refused(running, NEVER, port)
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == [("address", f"{NEVER}:{port}", "")]


def test_only_addresses_of_the_policy_are_reached(gateway, server, proxy):
    """Connect to IP addresses. The gateway connects to them through a proxy, because in this test
    it listens on the same addresses, and would otherwise connect to itself.
    """
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


def test_a_rule_for_every_address_does_not_open_the_host(gateway, server):
    port = server(echo)
    running = gateway(port, allow=[f"0.0.0.0/0:{port}"], admitted=())
    assert is_refused(running, FIRST, port)
    assert running.denials() == [("guard", f"{FIRST}:{port}", f"{FIRST}:{port}")]


def test_a_name_that_resolves_to_loopback_is_refused(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=())
    assert is_refused(running, running.address(NAME), port)
    assert running.denials() == [("guard", f"{NAME} ({LOCAL}:{port})", f"{LOCAL}:{port}")]


def test_a_name_that_resolves_to_an_allowed_loopback_address_is_reached(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=(), allow=[f"{NAME}:{port}", f"{LOCAL}:{port}"])
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == []


def test_a_name_that_resolves_to_an_address_of_the_host_is_refused(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=("127.0.0.0/8",), own=["8.8.8.8"])
    running.zone.answers[NAME] = [["8.8.8.8"], [LOCAL]]
    assert is_refused(running, running.address(NAME), port)
    assert not is_refused(running, running.address(NAME), port)
    assert running.denials() == [("guard", f"{NAME} (8.8.8.8:{port})", f"8.8.8.8:{port}")]


@pytest.mark.parametrize(
    "bad", ["10.0.0.1", "169.254.169.254", "0.0.0.0", "192.168.1.1", "100.64.0.1"]
)
def test_a_name_that_later_resolves_to_a_guarded_address_is_refused(gateway, server, bad):
    port = server(echo)
    running = gateway(port)
    running.zone.answers[NAME] = [[LOCAL], [bad], [bad, LOCAL]]
    address = running.address(NAME)
    assert [is_refused(running, address, port) for _ in range(3)] == [False, True, False]
    rule = "" if bad == "0.0.0.0" else f"{bad}:{port}"  # no rule can allow 0.0.0.0
    assert running.denials() == [("guard", f"{NAME} ({bad}:{port})", rule)]


def test_a_name_without_addresses_is_refused(gateway, server):
    port = server(echo)
    running = gateway(port)
    running.zone.answers[NAME] = [[]]
    assert is_refused(running, running.address(NAME), port)
    assert running.denials() == [("unreachable", f"{NAME}:{port}", "")]
    assert running.end()["traffic"] == {NAME: [1, 1, 0, 0]}


def test_if_one_address_of_a_name_refuses_the_connection_the_next_is_tried(gateway, server):
    port = server(echo)
    running = gateway(port, admitted=("127.0.0.0/8",))
    running.zone.answers[NAME] = [["127.0.0.77", LOCAL]]
    assert not is_refused(running, running.address(NAME), port)


def test_a_server_that_does_not_answer_is_given_up(gateway):
    with socket.socket() as full:
        full.bind((LOCAL, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):  # fill the queue, so that the kernel drops the next connections
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex((LOCAL, port))
        running = gateway(port, timeouts={"connect_seconds": 0.3})
        assert is_refused(running, running.address(NAME), port)
        assert running.end()["traffic"] == {NAME: [1, 1, 0, 0]}
        for client in waiting:
            client.close()


# The host


def test_the_hosts_own_addresses_are_recognized():
    from corral.network.guard import HostAddresses

    own = HostAddresses()
    assert socket.inet_aton(LOCAL) in own
    # No host has this address, because it is reserved for documentation.
    assert socket.inet_aton("198.51.100.1") not in own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # for UDP, `connect` only looks up a route
        except OSError as error:
            pytest.skip(f"this host has only loopback addresses: {error}")
        assert socket.inet_aton(probe.getsockname()[0]) in own


@contextlib.contextmanager
def no_descriptors():
    """Lower this process's limit of open descriptors, so that it cannot open another one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.open("/", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(last)


class Dialer:
    """A substitute for the process that makes sockets in the target's network namespace. It makes
    them in the test's own namespace.
    """

    def make(self):
        made = socket.socket()
        made.setblocking(False)
        return made.detach()

    def close(self):
        pass


def answered(service, client):
    """Run the gateway until the client has an answer."""
    while not select.select([client], [], [], 0)[0]:
        left = service.deadline()
        patience = None if left is None else max(0.0, left - time.monotonic())
        select.select([service, client], [], [], patience)
        service.run_ready()


@pytest.mark.parametrize("kind", ["out", "in", "names"])
def test_a_gateway_without_free_descriptors_does_not_poll_its_listener_in_a_loop(server, kind):
    """Use up all descriptors, so that the gateway cannot accept a connection. The listener then
    stays readable, but must not wake the gateway again and again.
    """
    from corral.denials.records import Denials
    from corral.network.destinations import check_from_policy
    from corral.network.gateway.gateway import Gateway
    from corral.network.gateway.published_ports import PublishedPorts

    with socket.create_server((LOCAL, 0)) as listener:
        place, fd = listener.getsockname(), listener.detach()
    if kind == "in":
        service = PublishedPorts({server(echo): fd}, Dialer())
    else:
        ends = {"dns_tcp": fd, "listeners": []} if kind == "names" else {"listeners": [fd]}
        service = Gateway(check_from_policy((), (), {}, Denials()), **ends)
    with contextlib.closing(service), socket.create_connection(place) as client:
        client.sendall(b"\x10\x01" if kind == "names" else b"word")
        with no_descriptors():
            service.run_ready()
            assert select.select([service], [], [], 0)[0] == []
        answered(service, client)
        if kind == "in":
            assert client.recv(4) == b"word"
        elif kind == "names":
            # The gateway closes the connection, because no valid question is this long.
            assert client.recv(4) == b""
        else:  # the gateway resets the connection, because no rule allows it
            with pytest.raises(ConnectionResetError):
                client.recv(4)


def test_without_free_descriptors_every_address_is_refused_as_the_hosts_own():
    """Use up all descriptors, as a target could do with many connections. corral then cannot list
    the host's own addresses. Because any address could be one of them, it must refuse every
    address.
    """
    from corral.network.guard import HostAddresses

    elsewhere = socket.inet_aton("198.51.100.1")
    with no_descriptors():
        assert elsewhere in HostAddresses()
    assert elsewhere not in HostAddresses()


def test_names_are_looked_up_by_the_hosts_resolver():
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


def test_a_lookup_has_no_descriptor_of_the_supervisor_and_ends_with_the_supervisor(gateway, server):
    port = server(echo)
    # With such a long timeout, the lookup can end only because the supervisor ends.
    running = gateway(port, patience=600)
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
        assert select.select([pidfd], [], [], 90)[0] == [pidfd]
        os.close(pidfd)
    running.result = {}
    running.process.stdin.close()
    running.process.stdout.close()


def test_fifty_lookups_at_once_need_only_one_child_process(gateway, server):
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


def test_names_are_resolved_by_udp_and_tcp(gateway, server):
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


def test_the_resolver_answers_after_a_flood_of_questions(gateway, server):
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
