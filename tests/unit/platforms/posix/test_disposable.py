"""Test the disposable child process in which a probe runs. It must give only one answer, even if
processes that it has forked answer too.
"""

from __future__ import annotations

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")

if sys.platform != "win32":
    from corral.platforms.posix import disposable


def test_the_first_error_of_a_probe_is_reported_as_its_cause():
    """Let a process that the probe has forked fail, and then the probe itself. The error of the
    forked process must be reported, because it is the cause.
    """

    def attempt() -> str:
        pid = os.fork()
        if not pid:
            raise RuntimeError("the cause")
        os.waitpid(pid, 0)
        raise RuntimeError("the consequence")

    assert disposable.observe(attempt) == (False, "the cause")


def test_a_long_answer_of_a_probe_is_cut():
    assert disposable.observe(lambda: "x" * 5000) == (True, "x" * 4094)


def test_a_probe_that_dies_silently_proves_nothing():
    proven, words = disposable.observe(lambda: os._exit(3))
    assert (proven, words) == (False, f"the probe died (wait status {3 << 8})")
