"""Landlock and cgroups together, in an older and a newer kernel of Debian's, under emulation."""

from __future__ import annotations

import pytest

from vm import guest_run, qemu

pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]


@pytest.mark.parametrize("test", guest_run.tests_in("landlock"))
@pytest.mark.parametrize("suite", qemu.SUITES)
def test_landlock_and_cgroups(suite, test):
    guest_run.expect_passed(qemu.Machine(suite), "landlock", "ordinary", test, users=("ordinary",))


@pytest.mark.parametrize("test", guest_run.tests_in("no_user_namespaces"))
@pytest.mark.parametrize("suite", qemu.SUITES)
def test_without_user_namespaces(suite, test):
    """The older kernel's Landlock cannot hold truncation and is no wall by itself; the newer one's can."""
    machine = qemu.Machine(suite)
    guest_run.expect_passed(machine, "no_user_namespaces", "ordinary", test, users=("ordinary",))
