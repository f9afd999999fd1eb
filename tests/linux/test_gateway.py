"""Test how the gateway passes data between real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import os
import queue
import random
import socket
import struct
import sys
import threading
import time

import pytest
from gateway_process import NAME, echo, gateway, read_all, server

from corral.network.gateway import event_loop, splice

__all__ = ["gateway", "server"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the gateway uses epoll and splice")


@pytest.mark.parametrize("splice", [True, False])
def test_data_arrives_in_both_directions(gateway, server, splice):
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


def connected_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=20)
        far = listener.accept()[0]
        far.setblocking(False)
        return near, far


@pytest.mark.parametrize("use_pipes", [True, False])
@pytest.mark.parametrize("is_client", [True, False])
def test_what_a_target_sent_before_its_end_still_arrives(use_pipes, is_client):
    """Send data from the target, close its socket, and end the run before the gateway has copied
    anything. The peer must get all the data.

    If another descriptor keeps the target's socket open, the peer must also see a reset, because
    more data could have followed. Sanity check: if the gateway closes the connection at once, the
    data is lost.
    """
    text = os.urandom(100_000)

    def receive(end, *, ends=True):
        (target, ours), (peer, theirs) = connected_pair(), connected_pair()
        ends_of_copy = (ours, theirs) if is_client else (theirs, ours)
        loop, pipes = event_loop.Loop(), splice.Pipes()
        pipes.max_pipes = splice.MAX_PIPES if use_pipes else 0
        copy = splice.SplicedCopy(
            loop, *ends_of_copy, pipes=pipes, idle_seconds=60, done=lambda: None
        )
        copy.start()
        with target, peer:
            target.sendall(text)
            if ends:
                target.close()
            end(copy)
            pipes.close()
            loop.close()
            got = b""
            try:
                while chunk := peer.recv(65536):
                    got += chunk
            except ConnectionResetError:
                return got, "reset"
            return got, "end of file"

    assert receive(lambda copy: copy.close(reset=True)) == (b"", "reset")

    def finish(copy):
        copy.finish(time.monotonic() + 20)

    assert receive(lambda copy: copy.finish(time.monotonic())) == (b"", "reset")
    assert receive(finish) == (text, "end of file")
    assert receive(finish, ends=False)[1] == "reset"


@pytest.mark.parametrize("is_slow", [True, False])
def test_cut_data_does_not_look_complete_after_the_other_direction_has_ended(is_slow):
    """Let the peer end its own data, and then end the run. With small socket buffers (`is_slow`),
    only a part of the target's data has arrived by then, so the peer must get a reset. Sanity
    check: with large buffers, all data arrives.
    """
    size = 8192 if is_slow else 4 << 20
    text = os.urandom(100_000)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        theirs = socket.create_connection(listener.getsockname(), timeout=20)
        peer = listener.accept()[0]
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    theirs.setblocking(False)
    target, ours = connected_pair()
    loop, pipes = event_loop.Loop(), splice.Pipes()
    copy = splice.SplicedCopy(loop, ours, theirs, pipes=pipes, idle_seconds=60, done=lambda: None)
    copy.start()
    with peer:
        peer.shutdown(socket.SHUT_WR)
        target.sendall(text)
        target.close()
        copy.finish(time.monotonic() + 20)
        pipes.close()
        loop.close()
        if is_slow:
            with pytest.raises(ConnectionResetError):
                read_all(peer)
        else:
            assert read_all(peer) == text


def test_the_gateway_keeps_no_descriptor_of_an_ended_connection(gateway, server):
    port = server(echo)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    # Descriptor 3 is open only because the gateway lists its descriptors.
    assert running.end()["fds"] == ["0", "1", "2", "3"]
    assert running.end()["children"] == ""


def test_clients_that_end_abruptly_leave_nothing_open(gateway, server):
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


def test_http_connections_are_kept_alive(gateway, server):
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


def test_two_hundred_connections_work_at_once(gateway, server):
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


def test_a_client_that_does_not_read_slows_the_sender(gateway, server):
    sent, stopped = [], threading.Semaphore(0)

    def send(connection: socket.socket) -> None:
        connection.settimeout(1)  # only a full buffer can block the sender for this long
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
        # `wakes` counts how often the gateway's event loop has woken up. Only the request of `now`
        # may wake it, and never the stuck connection.
        assert running.now()["wakes"] - first == 1
        assert len(read_all(client)) == sum(sent)
    assert running.end()["traffic"][NAME][3] == sum(sent)


def test_a_stuck_connection_does_not_delay_others(gateway, server):
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
def test_an_end_of_file_is_passed_on_whatever_the_amount_of_data_before_it(gateway, server, rounds):
    port = server(lambda connection: connection.sendall(read_all(connection)))
    running = gateway(port, rounds=rounds)
    for size in (0, 1, 100_000):
        with running.connect(NAME, port) as client:
            client.sendall(bytes(size))
            client.shutdown(socket.SHUT_WR)
            assert len(read_all(client)) == size


def test_a_server_that_ended_its_output_can_still_be_written_to(gateway, server):
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


def test_a_connection_without_data_is_ended(gateway, server):
    port = server(echo)
    running = gateway(port, timeouts={"idle_seconds": 0.2})
    with running.connect(NAME, port) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_an_idle_gateway_is_not_woken(gateway, server):
    port = server(echo)
    running = gateway(port)
    with running.connect(NAME, port) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        first = running.now()["wakes"]
        assert running.now()["wakes"] - first == 1  # only the request of `now` woke the gateway
