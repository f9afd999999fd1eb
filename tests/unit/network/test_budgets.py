"""The budget of what leads nowhere, by a clock that only the test moves."""

from hypothesis import given
from hypothesis import strategies as st

from corral.network.budgets import SHARE, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free():
    pace = Pace(Clock(), burst=8, rate=4)
    pace.spend(7)
    assert pace.rest() == 0


def test_then_there_is_a_rest_until_part_of_it_is_there_again():
    clock = Clock()
    pace = Pace(clock, burst=8, rate=4)
    pace.spend(8)
    assert pace.rest() == 8 / SHARE / 4
    clock.now += pace.rest()
    assert pace.rest() == 0
    pace.spend(2)
    assert pace.rest() > 0


def test_what_was_spent_beyond_it_is_owed():
    pace = Pace(Clock(), burst=8, rate=4)
    pace.spend(18)
    assert pace.rest() == (10 + 8 / SHARE) / 4


def test_a_long_silence_earns_no_more_than_a_burst():
    clock = Clock()
    pace = Pace(clock, burst=8, rate=4)
    clock.now += 1e6
    pace.spend(8)
    assert pace.rest() > 0


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), max_size=60))
def test_nobody_gets_more_than_the_burst_and_the_rate(turns):
    """Whoever keeps to the rests: at most what one turn spends over, then as much as time brings."""
    clock = Clock()
    pace = Pace(clock, burst=16, rate=10)
    spent = 0
    for count, later in turns:
        if pace.rest() == 0:
            pace.spend(count)
            spent += count
        assert spent <= 16 + (clock.now - 1000) * 10 + 50
        clock.now += later
