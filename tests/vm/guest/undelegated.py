"""Test corral as an ordinary user without a delegated cgroup, in a virtual machine with cgroup v2."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from users import ORDINARY, SOURCE, User

MIB = 1 << 20
LIMIT = 32 * MIB


@pytest.fixture
def undelegated_user(tmp_path_factory) -> User:
    """Return a user whose processes are in root's cgroup, to which the user cannot write."""
    home = pathlib.Path("/home") / "undelegated_user"
    if not home.exists():
        home.mkdir()
        os.chown(home, ORDINARY, ORDINARY)
    return User("undelegated_user", ORDINARY, home, SOURCE)


def test_doctor_reports_cgroups_that_were_not_delegated_as_absent(undelegated_user):
    found = json.loads(undelegated_user.corral("doctor", "--json").stdout)["findings"]
    groups = {f["capability"]: f for f in found if f["capability"].startswith("cgroup")}
    assert groups
    assert {f["status"] for f in groups.values()} == {"absent"}
    assert all(f["hint"] for f in groups.values())


def test_a_stated_memory_limit_is_enforced_without_a_cgroup(undelegated_user):
    """Check that the run ends at its memory limit, although the report shows that no cgroup
    enforces the limit.
    """
    report = undelegated_user.home / "report.json"
    flags = ("--max-memory", str(LIMIT), "--report", str(report))
    code = f"import signal; space = bytearray({3 * LIMIT}); signal.pause()"
    done = undelegated_user.run("python3", "-ISc", code, flags=flags)
    said = json.loads(report.read_text())
    memory = next(held for held in said["controls"] if held["control"] == "memory")
    assert (said["outcome"]["kind"], done.returncode) == ("memory", 137), done.stderr
    assert "cgroup" not in memory["mechanism"]
