"""Provide fixtures for the tests inside a machine. These tests run as root or as a user with a
delegated cgroup.

The test files are not called test_*.py, so that pytest does not collect them on the host.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

import pytest

from users import SOURCE, User

MARK = "@@guest@@"


def pytest_runtest_logreport(report):
    """Print the result of each test immediately, because the machine may crash before the last test."""
    if report.when == "call" or report.outcome != "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        text = reason(report, outcome)
        line = {"name": report.nodeid.rpartition("::")[2], "outcome": outcome, "text": text}
        sys.stdout.write(f"\n{MARK}{json.dumps(line)}\n")
        sys.stdout.flush()


def reason(report, outcome: str) -> str:
    if outcome == "xfailed":
        return report.wasxfail
    return report.longrepr[2] if outcome == "skipped" else report.longreprtext


def own_cgroup() -> pathlib.Path:
    line = pathlib.Path("/proc/self/cgroup").read_text().strip()
    return pathlib.Path("/sys/fs/cgroup" + line.removeprefix("0::"))


def whoever() -> User:
    return User(
        "root" if os.geteuid() == 0 else "ordinary", os.geteuid(), pathlib.Path.home(), SOURCE
    )


@pytest.fixture
def person() -> User:
    """Return the user that this process runs as."""
    return whoever()


@pytest.fixture(scope="module")
def module_person() -> User:
    """Return the user that this process runs as, for fixtures that are too slow to run in every
    test.
    """
    return whoever()


@pytest.fixture
def subtree() -> pathlib.Path:
    """Return the cgroup subtree that this user may use."""
    return own_cgroup().parent
