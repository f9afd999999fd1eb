"""Deadlines come before samples, however long a target makes a sample."""

from __future__ import annotations

import pytest

from corral.abi.signal_numbers import SIGTERM
from corral.plan.model import Sample
from corral.platforms import deadlines, sampling
from corral.platforms.contract import Usage


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class SlowChild:
    """A tree whose measurement never ends by itself: every look at it takes a second."""

    def __init__(self, clock):
        self.clock = clock
        self.acts = []

    def measure(self, *, exact=False, interrupted=lambda: False):
        self.acts.append("exact" if exact else "sample")
        for _ in range(1000):
            if interrupted():
                return Usage(cpu=1.0, memory=1 << 40)
            self.clock.now += 1
        raise AssertionError("nothing interrupted the measurement")

    def signal(self, number):
        self.acts.append(number)

    def kill(self):
        self.acts.append("kill")


@pytest.fixture
def clock(monkeypatch):
    chosen = Clock()
    monkeypatch.setattr(deadlines, "time", chosen)
    monkeypatch.setattr(sampling, "time", chosen)
    return chosen


def step(watched, has_events=lambda: False):
    watched.run_due()
    watched.sample_if_due(has_events)


def test_a_timeout_interrupts_a_sample(clock):
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=4.0, sample=Sample(cpu_time=1 << 40))
    step(watched)
    assert clock.now == 1004.0
    assert child.acts == ["sample"]
    watched.run_due()
    assert watched.reason == "timeout"
    assert SIGTERM in child.acts


def test_the_kill_after_the_grace_interrupts_a_sample_and_measures_no_memory(clock):
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=None, sample=Sample(cpu_time=1 << 40))
    watched.stop("signal")
    step(watched)
    assert clock.now == 1000.0 + deadlines.GRACE_SECONDS
    watched.run_due()
    assert child.acts[-1] == "kill"
    assert clock.now == 1000.0 + deadlines.GRACE_SECONDS  # the last look took no time


def test_a_signal_interrupts_a_sample(clock):
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=None, sample=Sample(cpu_time=1 << 40))
    step(watched, lambda: clock.now >= 1003.0)
    assert clock.now == 1003.0


def test_what_an_interrupted_sample_found_counts(clock):
    """A target does not hide what was seen already."""
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=4.0, sample=Sample(memory=100))
    step(watched)
    assert child.acts == ["sample", "exact", "kill"]
    assert watched.reason == "memory"
