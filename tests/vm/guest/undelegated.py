"""An ordinary user without a cgroup of its own, in a machine that has cgroup v2 all the same."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from users import ORDINARY, SOURCE, User

MIB = 1 << 20
LIMIT = 32 * MIB


@pytest.fixture
def stranger(tmp_path_factory) -> User:
    """Runs in root's cgroup, where nothing is theirs."""
    home = pathlib.Path("/home") / "stranger"
    if not home.exists():
        home.mkdir()
        os.chown(home, ORDINARY, ORDINARY)
    return User("stranger", ORDINARY, home, SOURCE)


def test_doctor_does_not_claim_what_is_not_ours(stranger):
    found = json.loads(stranger.corral("doctor", "--json").stdout)["findings"]
    groups = {f["capability"]: f for f in found if f["capability"].startswith("cgroup")}
    assert groups
    assert {f["status"] for f in groups.values()} == {"absent"}
    assert all(f["hint"] for f in groups.values())


def test_a_stated_limit_holds_by_other_means(stranger):
    """The report names what held it, and it is no cgroup."""
    report = stranger.home / "report.json"
    flags = ("--max-memory", str(LIMIT), "--report", str(report))
    code = f"import signal; space = bytearray({3 * LIMIT}); signal.pause()"
    done = stranger.run("python3", "-ISc", code, flags=flags)
    said = json.loads(report.read_text())
    memory = next(held for held in said["controls"] if held["control"] == "memory")
    assert (said["outcome"]["kind"], done.returncode) == ("memory", 137), done.stderr
    assert "cgroup" not in memory["mechanism"]
