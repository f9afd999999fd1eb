"""The first of some addresses that answers, on loopback, all of whose addresses Linux has."""

import contextlib
import os
import socket

import pytest

from corral.network import race
from corral.network.addresses import read

NOBODY = read("127.0.0.1")


@pytest.fixture
def full():
    """An address that does not answer: nobody accepts, and its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.2", 0))
        listener.listen(0)
        place = listener.getsockname()
        while True:
            end = stack.enter_context(socket.socket())
            end.settimeout(0.2)
            try:
                end.connect(place)
            except TimeoutError:
                break
        yield place[1]


def test_whoever_refuses_is_followed_by_the_next_at_once():
    with socket.create_server(("127.0.0.3", 0)) as listener:
        port = listener.getsockname()[1]
        order = [NOBODY, read("::1"), read("127.0.0.3")]
        with race.connect(order, port, patience=30) as end:
            assert end.getpeername()[:2] == ("127.0.0.3", port)
            assert end.getblocking()


def test_whoever_does_not_answer_does_not_hold_up_the_next(full):
    with socket.create_server(("127.0.0.3", full)):
        addresses = [read("127.0.0.2"), read("127.0.0.3")]
        with race.connect(addresses, full, patience=30) as end:
            assert end.getpeername()[0] == "127.0.0.3"


def test_nobody_answers(full):
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(TimeoutError):
        race.connect([read("127.0.0.2")], full, patience=0.1)
    assert set(os.listdir("/dev/fd")) == before


def test_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        race.connect([NOBODY, NOBODY], port, patience=30)
    with pytest.raises(OSError, match="no address"):
        race.connect([], 80, patience=30)
