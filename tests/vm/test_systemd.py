"""Test corral under systemd: in a login session, and in a scope that the user manager made."""

from __future__ import annotations

import pytest

from vm import guest_run, systemd

pytestmark = [pytest.mark.rig("systemd"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("test", guest_run.tests_in("login"))
def test_limits_in_a_login_session(test):
    guest_run.expect_passed(systemd, "login", "ordinary", test)
