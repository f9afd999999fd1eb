"""corral's limits and refusals on a kernel with pure cgroup v2, inside a machine; see guest/ for the tests."""

from __future__ import annotations

import pytest

from vm import guest_run, uml

pytestmark = pytest.mark.timeout(500)


@pytest.mark.parametrize("test", guest_run.tests_in("limits"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_limits(user, test):
    guest_run.expect_passed(uml, "limits", user, test)


@pytest.mark.parametrize("test", guest_run.tests_in("undelegated"))
def test_without_a_cgroup_of_ones_own(test):
    guest_run.expect_passed(uml, "undelegated", "root", test, users=("root",))


@pytest.mark.parametrize("test", guest_run.tests_in("no_user_namespaces"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_without_user_namespaces(user, test):
    guest_run.expect_passed(uml, "no_user_namespaces", user, test)
