"""Run the tests in guest/faults.py, which cause faults that affect a whole virtual machine."""

from __future__ import annotations

import pytest

from vm import guest_run, uml

pytestmark = [pytest.mark.rig("uml"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("test", guest_run.tests_in("faults"))
def test_runs_survive_clock_changes_and_missing_memory(test):
    guest_run.expect_passed(uml, "faults", "root", test)
