"""The rate limit of denied requests, by a clock that only the test moves."""

from hypothesis import given
from hypothesis import strategies as st

from corral.network.budgets import RESUME_FRACTION, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free():
    limit = RateLimit(Clock(), burst=8, rate=4)
    limit.use(7)
    assert limit.pause_seconds() == 0


def test_then_there_is_a_rest_until_part_of_it_is_there_again():
    clock = Clock()
    limit = RateLimit(clock, burst=8, rate=4)
    limit.use(8)
    assert limit.pause_seconds() == 8 * RESUME_FRACTION / 4
    clock.now += limit.pause_seconds()
    assert limit.pause_seconds() == 0
    limit.use(2)
    assert limit.pause_seconds() > 0


def test_what_was_spent_beyond_it_is_owed():
    limit = RateLimit(Clock(), burst=8, rate=4)
    limit.use(18)
    assert limit.pause_seconds() == (10 + 8 * RESUME_FRACTION) / 4


def test_a_long_silence_earns_no_more_than_a_burst():
    clock = Clock()
    limit = RateLimit(clock, burst=8, rate=4)
    clock.now += 1e6
    limit.use(8)
    assert limit.pause_seconds() > 0


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), max_size=60))
def test_nobody_gets_more_than_the_burst_and_the_rate(turns):
    """Whoever keeps to the rests: at most what one turn spends over, then as much as time brings."""
    clock = Clock()
    limit = RateLimit(clock, burst=16, rate=10)
    spent = 0
    for count, later in turns:
        if limit.pause_seconds() == 0:
            limit.use(count)
            spent += count
        assert spent <= 16 + (clock.now - 1000) * 10 + 50
        clock.now += later
