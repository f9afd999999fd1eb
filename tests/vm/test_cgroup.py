"""Test corral in a virtual machine with pure cgroup v2 and neither Landlock nor IPv6. The tests themselves are in
guest/.
"""

from __future__ import annotations

import pytest

from vm import guest_run, uml

pytestmark = [pytest.mark.rig("uml"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("test", guest_run.tests_in("limits"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_limits_are_enforced_by_cgroups(user, test):
    guest_run.expect_passed(uml, "limits", user, test)


@pytest.mark.parametrize("test", guest_run.tests_in("undelegated"))
def test_limits_of_a_user_without_a_delegated_cgroup(test):
    guest_run.expect_passed(uml, "undelegated", "root", test)


@pytest.mark.parametrize("test", guest_run.tests_in("no_user_namespaces"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_runs_on_a_machine_without_user_namespaces_and_landlock(user, test):
    guest_run.expect_passed(uml, "no_user_namespaces", user, test)


@pytest.mark.parametrize("test", guest_run.tests_in("no_ipv6"))
def test_an_allowlist_on_a_machine_without_ipv6(test):
    guest_run.expect_passed(uml, "no_ipv6", "ordinary", test)
