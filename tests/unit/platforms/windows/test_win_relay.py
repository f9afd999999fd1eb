"""Test the relay, which connects a target in an AppContainer to the allowed hosts.

These tests check its frames and requests without any socket.
"""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.destinations import Destination
from corral.network.http_proxy.request import MAX_HEAD_BYTES, RefusedError, parse_request
from corral.platforms.windows.relay import inside as shim

NUMBERS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.tuples(st.just(shim.HELLO), NUMBERS, st.binary(min_size=2, max_size=2)),
    st.tuples(st.sampled_from([shim.OPEN, shim.END, shim.RESET]), NUMBERS, st.just(b"")),
    st.tuples(st.just(shim.DATA), NUMBERS, st.binary(min_size=1, max_size=300)),
    st.tuples(st.just(shim.CREDIT), NUMBERS, st.binary(min_size=4, max_size=4)),
)


@given(st.lists(FRAMES, max_size=8), st.data())
def test_frames_may_be_split_anywhere(frames, data):
    whole = b"".join(shim.frame(*item) for item in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    parser, found = shim.Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += parser.feed(whole[start:end])
    assert found == frames


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_an_error(data):
    parser = shim.Frames()
    try:
        found = list(parser.feed(data))
    except shim.ProtocolError:
        return
    again = b"".join(shim.frame(*item) for item in found)
    assert data.startswith(again)
    assert len(data) - len(again) < shim.HEADER.size + shim.CHUNK


@pytest.mark.parametrize(
    "data",
    [
        shim.HEADER.pack(0, 0, 0, 1),
        shim.HEADER.pack(7, 0, 0, 1),
        shim.HEADER.pack(shim.OPEN, 1, 0, 1),
        shim.HEADER.pack(shim.OPEN, 0, 1, 1),
        shim.HEADER.pack(shim.DATA, 0, 0, 1),
        shim.HEADER.pack(shim.DATA, 0, shim.CHUNK + 1, 1),
        shim.HEADER.pack(shim.CREDIT, 0, 5, 1),
    ],
)
def test_invalid_frames_are_errors(data):
    with pytest.raises(shim.ProtocolError):
        list(shim.Frames().feed(data))


class Pair:
    """The outer end of a relay. The test itself acts as the inner end."""

    def __init__(self):
        self.reader, write = os.pipe()
        read, self.writer = os.pipe()
        self.streams = []
        self.arrived = threading.Semaphore(0)
        self.error = None
        self.mux = shim.Mux(read, write, arrived=self._arrive)
        self._fds = [read, write]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.mux.run()
        except shim.ProtocolError as error:
            self.error = error

    def _arrive(self, stream):
        self.streams.append(stream)
        self.arrived.release()

    def say(self, *frames):
        os.write(self.writer, b"".join(shim.frame(*item) for item in frames))

    def open(self):
        self.say((shim.OPEN, len(self.streams) + 1))
        assert self.arrived.acquire(timeout=10)
        return self.streams[-1]

    def end(self):
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1
        self.thread.join()
        return self.error

    def close(self):
        self.end()
        for fd in (*self._fds, self.reader):
            os.close(fd)


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_valid_frames_from_inside_the_sandbox_are_accepted(pair):
    """Send valid frames. This is the sanity check for the tests below."""
    stream = pair.open()
    pair.say((shim.DATA, 1, b"hello"), (shim.END, 1))
    assert stream.recv(10) == b"hello"
    assert stream.recv(10) == b""
    stream.send(b"there")
    stream.end()
    assert os.read(pair.reader, 100) == shim.frame(shim.DATA, 1, b"there") + shim.frame(shim.END, 1)
    # Frames that arrive after the end of their stream are ignored.
    pair.say((shim.CREDIT, 1, b"\x01\0\0\0"), (shim.RESET, 1))
    assert pair.end() is None


@pytest.mark.parametrize(
    "frames",
    [
        [(shim.HELLO, 0, b"\1\0")],
        [(shim.DATA, 1, b"x")],
        [(shim.END, 0)],
        [(shim.OPEN, 0)],
        [(shim.OPEN, 2), (shim.OPEN, 2)],
        [(shim.OPEN, 2), (shim.OPEN, 1)],
        [(shim.OPEN, 1), (shim.DATA, 2, b"x")],
        [(shim.OPEN, 1), (shim.END, 1), (shim.END, 1)],
        [(shim.OPEN, 1), (shim.END, 1), (shim.DATA, 1, b"x")],
        [(shim.OPEN, 1), (shim.CREDIT, 1, b"\x01\0\0\0")],
        [(shim.OPEN, 1), *[(shim.DATA, 1, bytes(shim.CHUNK))] * (shim.WINDOW // shim.CHUNK + 1)],
        [(shim.OPEN, number) for number in range(1, shim.MAX_STREAMS + 2)],
    ],
    ids=lambda frames: f"{frames[-1][0]}-{len(frames)}",
)
def test_invalid_frames_from_inside_the_sandbox_end_the_relay(pair, frames):
    for item in frames:
        try:
            pair.say(item)
        except BrokenPipeError:
            break
    pair.thread.join(20)
    assert not pair.thread.is_alive()
    assert isinstance(pair.error, shim.ProtocolError)
    for stream in pair.streams:
        with pytest.raises(ConnectionResetError):
            stream.send(b"x")


def test_the_number_of_streams_is_limited(pair):
    for _ in range(shim.MAX_STREAMS):
        pair.open()
    pair.say((shim.RESET, 1))
    pair.open()  # one stream has ended, so another can be opened
    assert pair.end() is None


def test_a_sender_waits_for_credit_and_then_continues(pair):
    stream = pair.open()
    sent = threading.Event()

    def send():
        stream.send(bytes(shim.WINDOW + 10))
        sent.set()

    sender = threading.Thread(target=send)
    sender.start()
    expected = sum(shim.HEADER.size + shim.CHUNK for _ in range(shim.WINDOW // shim.CHUNK))
    got = b""
    while len(got) < expected:
        got += os.read(pair.reader, 1 << 20)
    assert len(got) == expected
    assert not sent.is_set()
    pair.say((shim.CREDIT, 1, shim.NUMBER.pack(10)))
    sender.join(10)
    assert sent.is_set()
    assert os.read(pair.reader, 100) == shim.frame(shim.DATA, 1, bytes(10))


def test_the_sender_gets_credit_for_bytes_that_were_consumed(pair):
    stream = pair.open()
    quarter = shim.WINDOW // 4
    for _ in range(quarter // shim.CHUNK):
        pair.say((shim.DATA, 1, bytes(shim.CHUNK)))
        stream.recv(10)
    assert os.read(pair.reader, 100) == shim.frame(shim.CREDIT, 1, shim.NUMBER.pack(quarter))


def test_waiting_for_data_of_a_stream_can_time_out(pair):
    stream = pair.open()
    with pytest.raises(TimeoutError):
        stream.recv(0.01)
    pair.end()
    with pytest.raises(ConnectionResetError):
        stream.recv()


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "host", "port", "address"),
    [
        (b"CONNECT Api.Example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", "api.example.com", 443, None),
        (b"CONNECT 10.0.0.5:5432 HTTP/1.0\r\n\r\n", "10.0.0.5", 5432, bytes([10, 0, 0, 5])),
        (b"CONNECT [::1]:80 HTTP/1.1\r\n\r\n", "::1", 80, bytes(15) + b"\1"),
    ],
)
def test_connect_requests_are_parsed(data, host, port, address):
    found = parse_request(data + b"more")
    assert found.destination == Destination(host=host, port=port, address=address)
    assert found.tunnel
    assert (found.head, found.rest) == (b"", b"more")
    assert all(parse_request(data[:end]) is None for end in range(len(data)))


def test_a_plain_request_is_rewritten_for_the_server():
    found = parse_request(
        b"POST http://Example.com:8080/a?b HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n"
        b"Connection: keep-alive\r\nContent-Length: 2\r\nX-Y: z\r\n\r\nhi"
    )
    assert found.destination == Destination(host="example.com", port=8080)
    assert not found.tunnel
    assert found.rest == b"hi"
    assert found.head == (
        b"POST /a?b HTTP/1.1\r\nHost: example.com:8080\r\nContent-Length: 2\r\nX-Y: z\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert parse_request(b"GET http://example.com HTTP/1.1\r\n\r\n").head.startswith(b"GET / HTTP")
    assert parse_request(b"GET http://example.com?q HTTP/1.1\r\n\r\n").head.startswith(b"GET /?q ")
    assert parse_request(b"GET http://example.com HTTP/1.1\r\n\r\n").destination.port == 80


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\n\r\n",
        b"GET http://user@example.com/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com\\@evil.com/ HTTP/1.1\r\n\r\n",
        b"GET http://exa\0mple.com/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com./ HTTP/1.1\r\n\r\n",
        b"GET http://\xc3\xa9.com/ HTTP/1.1\r\n\r\n",
        b"GET http://0x7f.1/ HTTP/1.1\r\n\r\n",
        b"GET http://2130706433/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com:0/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com:99999/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com:+80/ HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT example.com HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"CONNECT [::1 HTTP/1.1\r\n\r\n",
        b"CONNECT [example.com]:443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443 HTTP/2\r\n\r\n",
        b"CONNECT  example.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\n folded: x\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET http://a.com/ HTTP/1.1\r\nX: a\nHost: b\r\n\r\n",
        b"G(T http://a.com/ HTTP/1.1\r\n\r\n",
        b"\x05\x01\x00\r\n\r\n",
        b"x" * (MAX_HEAD_BYTES + 1),
        b"CONNECT a.com:1 HTTP/1.1\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_invalid_requests_are_refused(data):
    with pytest.raises(RefusedError):
        parse_request(data)


@given(st.binary(max_size=120))
def test_random_bytes_do_not_crash_the_parser(data):
    for head in (b"", b"CONNECT ", b"GET http://"):
        try:
            found = parse_request(head + data + b"\r\n\r\n")
        except RefusedError:
            continue
        assert found is not None
        assert found.destination.host == found.destination.host.lower()
