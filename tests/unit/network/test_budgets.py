"""Test the rate limit on a target's requests with a clock that only the test advances."""

from hypothesis import given
from hypothesis import strategies as st

from corral.network.budgets import RESUME_FRACTION, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_requests_within_the_burst_do_not_wait():
    limit = RateLimit(Clock(), burst=8, rate=4)
    limit.use(7)
    assert limit.pause_seconds() == 0


def test_a_pause_lasts_until_part_of_the_burst_is_available():
    clock = Clock()
    limit = RateLimit(clock, burst=8, rate=4)
    limit.use(8)
    assert limit.pause_seconds() == 8 * RESUME_FRACTION / 4
    clock.now += limit.pause_seconds()
    assert limit.pause_seconds() == 0
    limit.use(2)
    assert limit.pause_seconds() > 0


def test_requests_beyond_the_burst_lengthen_the_pause():
    limit = RateLimit(Clock(), burst=8, rate=4)
    limit.use(18)
    assert limit.pause_seconds() == (10 + 8 * RESUME_FRACTION) / 4


def test_a_long_time_without_requests_allows_no_more_than_one_burst():
    clock = Clock()
    limit = RateLimit(clock, burst=8, rate=4)
    clock.now += 1e6
    limit.use(8)
    assert limit.pause_seconds() > 0


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), max_size=60))
def test_no_client_exceeds_the_burst_and_the_rate(turns):
    """Use up random amounts at random times, whenever the limit does not require a pause. The total
    must not exceed burst + rate * elapsed time + one amount.
    """
    clock = Clock()
    limit = RateLimit(clock, burst=16, rate=10)
    spent = 0
    for count, later in turns:
        if limit.pause_seconds() == 0:
            limit.use(count)
            spent += count
        assert spent <= 16 + (clock.now - 1000) * 10 + 50
        clock.now += later
