"""Test unix sockets in an emulated machine with a newer kernel, whose Landlock has a right for unix
sockets.
"""

from __future__ import annotations

import pytest

from vm import guest_run, qemu
from vm.kernels import Source

pytestmark = [pytest.mark.rig("qemu"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("test", guest_run.tests_in("unix_scope"))
def test_unix_sockets_on_a_kernel_whose_landlock_controls_them(test):
    guest_run.expect_passed(qemu.Machine(Source(qemu.NEWEST)), "unix_scope", "ordinary", test)
