"""Test that a deadline is noticed in time, however long the measurement of a sample takes."""

from __future__ import annotations

import sys

import pytest

from corral.abi.signal_numbers import SIGTERM
from corral.plan.model import Sample
from corral.platforms import deadlines, sampling
from corral.platforms.contract import Usage


class Clock:
    """Imitate the clocks of a machine. `now` advances only while the machine is awake.
    `clock_gettime` adds `asleep`, the time that the machine has slept.
    """

    CLOCK_BOOTTIME, CLOCK_MONOTONIC = 7, 6

    def __init__(self):
        self.now = 1000.0
        self.asleep = 0.0

    def monotonic(self):
        return self.now

    def clock_gettime(self, clock):
        assert clock == {"linux": 7, "darwin": 6}[sys.platform]
        return self.now + self.asleep


class SlowChild:
    """A process tree whose measurement goes on until it is interrupted. Each of its steps takes a
    second on the fake clock.
    """

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
    assert clock.now == 1000.0 + deadlines.GRACE_SECONDS  # no more samples were taken


def test_a_signal_interrupts_a_sample(clock):
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=None, sample=Sample(cpu_time=1 << 40))
    step(watched, lambda: clock.now >= 1003.0)
    assert clock.now == 1003.0


def test_values_that_an_interrupted_sample_has_read_still_count(clock):
    """Interrupt a sample. The values that it has already read must still count."""
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=4.0, sample=Sample(memory=100))
    step(watched)
    assert child.acts == ["sample", "exact", "kill"]
    assert watched.reason == "memory"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has one clock for both")
def test_a_timeout_counts_time_in_which_the_machine_sleeps(clock):
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=3600.0, sample=None)
    # The wait is short, because poll does not count the time in which the machine sleeps.
    assert watched.wait_ms() == deadlines.MAX_TIMEOUT_WAIT_MS
    clock.asleep = 8 * 3600.0
    assert watched.wait_ms() == 0
    watched.run_due()
    assert watched.reason == "timeout"
    assert watched.elapsed() == 8 * 3600.0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has one clock for both")
def test_the_grace_does_not_count_time_in_which_the_machine_sleeps(clock):
    """Put the machine to sleep during the grace period. The target must not be killed before it had
    the whole grace period to end.
    """
    child = SlowChild(clock)
    watched = deadlines.Deadlines(child, timeout=None, sample=None)
    watched.stop("signal")
    clock.asleep = 8 * 3600.0
    watched.run_due()
    assert "kill" not in child.acts
    clock.now += deadlines.GRACE_SECONDS
    watched.run_due()
    assert "kill" in child.acts


def test_a_run_without_a_timeout_waits_without_a_limit():
    assert deadlines.Deadlines(None, timeout=None, sample=None).wait_ms() is None
