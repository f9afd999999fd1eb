"""Run the tests of guest/suspend.py, in which an emulated machine sleeps for two minutes."""

from __future__ import annotations

import pytest

from vm import guest_run, kernels, qemu

pytestmark = [pytest.mark.rig("qemu", "long"), pytest.mark.timeout(guest_run.TIMEOUT + 100)]
MACHINE = qemu.Machine(kernels.Source("trixie"))


@pytest.mark.parametrize("test", guest_run.tests_in("suspend"))
def test_suspend(test):
    guest_run.expect_passed(MACHINE, "suspend", "root", test)
