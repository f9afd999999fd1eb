"""Test what corral decides after a sample, with a clock that the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.plan.model import Sample
from corral.platforms import sampling
from corral.platforms.contract import Usage
from corral.platforms.sampling import DUTY_INTERVAL, INTERVAL, SLACK, Sampler


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    chosen = Clock()
    monkeypatch.setattr(sampling, "time", chosen)
    return chosen


def usage(cpu=0.0, memory=0, tasks=1, certain=0):
    return Usage(cpu=cpu, memory=memory, tasks=tasks, certain=certain)


@pytest.mark.parametrize(
    ("asked", "seen", "hit"),
    [
        (Sample(memory=100), usage(memory=100), None),
        (Sample(memory=100), usage(memory=101), "memory"),
        (Sample(cpu_time=1500), usage(cpu=1.49), None),
        (Sample(memory=100), usage(memory=90, certain=101), "memory"),
        (Sample(cpu_time=1500), usage(cpu=1.5), "cpu_time"),
        (Sample(pids=3), usage(tasks=3), None),
        (Sample(pids=3), usage(tasks=4), "pids"),
        (Sample(cpu=100), usage(cpu=99, memory=1 << 40, tasks=999), None),
        (Sample(memory=1, pids=1), usage(memory=2, tasks=2), "memory"),
    ],
)
def test_a_limit_is_exceeded_only_above_its_value(asked, seen, hit):
    assert Sampler(asked).check(seen) == hit


def test_only_memory_needs_a_second_sample():
    assert Sampler(Sample(memory=100)).needs_exact(usage(memory=101))
    assert not Sampler(Sample(memory=100)).needs_exact(usage(memory=100))
    assert not Sampler(Sample(memory=100)).needs_exact(usage(memory=200, certain=101))
    assert not Sampler(Sample(pids=1)).needs_exact(usage(memory=1 << 40, tasks=9))


def test_a_sampler_keeps_the_highest_memory_and_tasks():
    sampler = Sampler(Sample(memory=1000))
    for memory, tasks in ((10, 1), (500, 7), (20, 2)):
        sampler.check(usage(memory=memory, tasks=tasks))
    assert (sampler.peak, sampler.tasks) == (500, 7)


def test_the_first_sample_is_immediate_and_the_next_ones_follow_the_interval(clock):
    plain, duty = Sampler(Sample(memory=1)), Sampler(Sample(cpu=500))
    assert plain.next == duty.next == clock.now
    plain.check(usage())
    duty.check(usage())
    assert plain.next == clock.now + INTERVAL
    assert duty.next == clock.now + DUTY_INTERVAL


def test_without_a_cpu_share_nothing_is_paused():
    assert Sampler(Sample(memory=1)).pause_seconds(usage(cpu=1e6)) == 0.0


def test_a_target_that_exceeded_its_cpu_share_is_paused_for_as_long_as_needed(clock):
    sampler = Sampler(Sample(cpu=100))
    clock.now += 1
    # In one second the share allows 0.1 s of CPU time, plus SLACK. The target used 0.4 s.
    assert sampler.pause_seconds(usage(cpu=0.4)) == pytest.approx((0.4 - 0.1 - SLACK) / 0.1)


def test_a_target_runs_after_its_pause(clock):
    sampler = Sampler(Sample(cpu=100))
    clock.now += 1
    clock.now += sampler.pause_seconds(usage(cpu=0.4)) + 1e-6
    assert sampler.pause_seconds(usage(cpu=0.4)) == 0.0


def test_unused_cpu_share_is_not_saved(clock):
    sampler = Sampler(Sample(cpu=500))
    clock.now += 3600
    assert sampler.pause_seconds(usage(cpu=0)) == 0.0
    clock.now += 0.1
    assert sampler.pause_seconds(usage(cpu=0.2)) == pytest.approx((0.2 - 0.05 - SLACK) / 0.5)


@given(
    share=st.integers(10, 4000),
    spinning=st.integers(1, 8),
    late=st.lists(st.floats(0, 0.05), min_size=50, max_size=50),
)
def test_the_average_share_is_enforced_whatever_the_scheduler_does(share, spinning, late):
    """Let the tree use several processors, and take samples late. corral must pause the tree so
    that on average it uses no more than its share.
    """
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(sampling, "time", clock)
        sampler = Sampler(Sample(cpu=share))
        start, used, worst = clock.now, 0.0, 0.0
        for delay in late:
            burst = DUTY_INTERVAL + delay
            clock.now += burst
            used += burst * spinning
            worst = max(worst, burst * spinning)
            clock.now += sampler.pause_seconds(usage(cpu=used))
    allowed = (clock.now - start) * share / 1000
    assert used <= allowed + SLACK + worst + 1e-6
    if spinning * 1000 > 2 * share:
        assert used >= 0.9 * allowed - 1e-6
