"""Test Landlock and cgroups together in emulated machines with an older and a newer Debian kernel."""

from __future__ import annotations

import pytest

from vm import guest_run, qemu
from vm.kernels import Source

pytestmark = [pytest.mark.rig("qemu"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("test", guest_run.tests_in("landlock"))
@pytest.mark.parametrize("suite", qemu.SUITES)
def test_walls_by_landlock_and_limits_by_cgroups(suite, test):
    guest_run.expect_passed(qemu.Machine(Source(suite)), "landlock", "ordinary", test)


@pytest.mark.parametrize("test", guest_run.tests_in("no_user_namespaces"))
@pytest.mark.parametrize("suite", qemu.SUITES)
def test_runs_on_a_machine_with_landlock_but_without_user_namespaces(suite, test):
    """Run with Landlock alone. This is enough on the newer kernel, but not on the older kernel,
    whose Landlock cannot deny truncation.
    """
    machine = qemu.Machine(Source(suite))
    guest_run.expect_passed(machine, "no_user_namespaces", "ordinary", test)
