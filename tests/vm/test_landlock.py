"""Landlock and cgroups together, in an older and a newer kernel of Debian's, under emulation."""

from __future__ import annotations

import pytest

from vm import guest_run, qemu

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.mark.parametrize("test", guest_run.tests_in("landlock"))
@pytest.mark.parametrize("suite", qemu.SUITES)
def test_landlock_and_cgroups(suite, test):
    guest_run.expect_passed(qemu.Machine(suite), "landlock", "ordinary", test, users=("ordinary",))
