"""Test simultaneous connection attempts to several addresses. The first connection that succeeds
must be kept.

The tests need several loopback addresses. Linux has them, because all of 127.0.0.0/8 is loopback.
"""

import contextlib
import os
import socket

import pytest

from corral.network.addresses import parse_address
from corral.network.budgets import DialBudget
from corral.network.dial_attempts import STAGGER_SECONDS
from corral.network.gateway import dial, event_loop
from corral.network.http_proxy.dial import connect

NOBODY = parse_address("127.0.0.1")


@pytest.fixture
def full():
    """Yield a port that does not answer, because its queue of new connections is full."""
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


def test_the_next_address_is_tried_at_once_after_a_refusal():
    with socket.create_server(("127.0.0.3", 0)) as listener:
        port = listener.getsockname()[1]
        order = [NOBODY, parse_address("::1"), parse_address("127.0.0.3")]
        with connect(order, port, timeout_seconds=30, budget=DialBudget()) as end:
            assert end.getpeername()[:2] == ("127.0.0.3", port)
            assert end.getblocking()


def test_an_address_that_does_not_answer_does_not_delay_the_next(full):
    with socket.create_server(("127.0.0.3", full)):
        addresses = [parse_address("127.0.0.2"), parse_address("127.0.0.3")]
        with connect(addresses, full, timeout_seconds=30, budget=DialBudget()) as end:
            assert end.getpeername()[0] == "127.0.0.3"


def test_a_connection_fails_if_no_address_answers(full):
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(TimeoutError):
        connect([parse_address("127.0.0.2")], full, timeout_seconds=0.1, budget=DialBudget())
    assert set(os.listdir("/dev/fd")) == before


def test_a_connection_fails_if_every_address_refuses():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect([NOBODY, NOBODY], port, timeout_seconds=30, budget=DialBudget())
    with pytest.raises(OSError, match="no address"):
        connect([], 80, timeout_seconds=30, budget=DialBudget())


def test_without_spare_descriptors_one_address_is_tried_at_a_time(full):
    with socket.create_server(("127.0.0.3", full)):
        addresses = [parse_address("127.0.0.2"), parse_address("127.0.0.3")]
        with pytest.raises(TimeoutError):
            connect(addresses, full, timeout_seconds=4 * STAGGER_SECONDS, budget=DialBudget(0))
        budget = DialBudget(1)
        connect(addresses, full, timeout_seconds=30, budget=budget).close()
    # The budget has only one descriptor. It can be acquired, so the connection has released it.
    assert (budget.acquire(), budget.acquire()) == (True, False)


@pytest.mark.parametrize(("most", "held"), [(3, 5 + 3), (100, 5 * 8)])
def test_the_addresses_of_one_name_do_not_take_all_descriptors(full, most, held):
    """Start five connections to a name with eight addresses, none of which answers. Each connection
    may always try one address. All further attempts together must stay within the budget.
    """
    now = [0.0]
    loop, budget, ends = event_loop.Loop(lambda: now[0]), DialBudget(most), []
    dials = [
        dial.Dial(
            loop, [parse_address("127.0.0.2")] * 8, full, timeout_seconds=1000, budget=budget,
            done=ends.append,
        )
        for _ in range(5)
    ]  # fmt: skip
    before = len(os.listdir("/dev/fd"))
    for item in dials:
        item.start()
    for _ in range(20):
        now[0] += STAGGER_SECONDS * 1.01
        loop.run_ready()
    assert len(os.listdir("/dev/fd")) - before == held
    dials[0].cancel()  # the other connections may now use the descriptors of this connection
    now[0] += STAGGER_SECONDS * 1.01
    loop.run_ready()
    assert len(os.listdir("/dev/fd")) - before == min(held - 1, 4 * 8)
    now[0] += 1000
    loop.run_ready()
    assert ends == [None] * 4
    assert len(os.listdir("/dev/fd")) == before
    assert [budget.acquire() for _ in range(most + 1)] == [True] * most + [False]
    loop.close()
