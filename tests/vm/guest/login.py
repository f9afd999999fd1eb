"""Test corral in a login session under systemd. The session's cgroup belongs to logind, so corral
cannot use it, and asks the user manager for another cgroup.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest

MIB = 1 << 20
LIMIT = 24 * MIB
HOG = ("python3", "-ISc", f"space = bytearray({3 * LIMIT}); import signal; signal.pause()")
SCOPE = ("systemd-run", "--user", "--scope", "--quiet")


def own_cgroup() -> pathlib.Path:
    line = pathlib.Path("/proc/self/cgroup").read_text().strip()
    return pathlib.Path("/sys/fs/cgroup" + line.removeprefix("0::"))


@pytest.fixture
def environment(person) -> dict[str, str]:
    """Return the environment variables of a login session, with the address of the user's bus."""
    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    return person.environment(**{name: os.environ[name] for name in names})


def limited(person, environment, place: pathlib.Path, *before: str) -> tuple[int, dict]:
    """Let `corral run` start a program that uses more memory than LIMIT. Return the exit code and
    the report.

    `before` is a command that starts corral, such as `systemd-run`.
    """
    report = place / "report.json"
    flags = ("--max-memory", str(LIMIT), "--report", str(report))
    argv = [*before, *person.corral_argv("run", *flags, "--", *HOG)]
    done = subprocess.run(
        argv, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert report.exists(), done.stderr.decode()
    return done.returncode, json.loads(report.read_text())


def mechanism(report: dict, control: str) -> str:
    return next(held["mechanism"] for held in report["controls"] if held["control"] == control)


def test_the_tests_run_in_a_login_session_under_systemd():
    assert pathlib.Path("/proc/1/comm").read_text() == "systemd\n"
    assert own_cgroup().name.startswith("session-")
    assert not os.access(own_cgroup() / "cgroup.procs", os.W_OK)
    assert not os.access(own_cgroup().parent, os.W_OK)


def test_the_user_manager_delegates_every_controller():
    manager = own_cgroup().parent / f"user@{os.getuid()}.service"
    assert {"cpu", "io", "memory", "pids"} <= set(
        (manager / "cgroup.controllers").read_text().split()
    )
    assert os.access(manager / "cgroup.procs", os.W_OK)


@pytest.mark.parametrize(("limit", "code"), [("16M", -9), ("200M", 0)])
def test_a_transient_scope_enforces_its_limit(limit, code):
    hog = ("python3", "-ISc", f"space = bytearray({LIMIT})")
    argv = [*SCOPE, f"--property=MemoryMax={limit}", "--property=MemorySwapMax=0", *hog]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr


def test_a_limit_is_enforced_in_a_login_session(person, environment, tmp_path):
    code, report = limited(person, environment, tmp_path)
    assert (report["outcome"]["kind"], code) == ("memory", 137), report


def test_a_cgroup_enforces_a_limit_in_a_login_session(person, environment, tmp_path):
    report = limited(person, environment, tmp_path)[1]
    assert "cgroup" in mechanism(report, "memory")


def test_a_cgroup_enforces_a_limit_in_a_delegated_scope(person, environment, tmp_path):
    argv = (*SCOPE, "--property=Delegate=yes")
    code, report = limited(person, environment, tmp_path, *argv)
    assert (report["outcome"]["kind"], code) == ("memory", 137), report
    assert "cgroup" in mechanism(report, "memory")


def test_an_ended_run_leaves_no_systemd_unit(person, environment, tmp_path):
    """Check that the user manager has removed corral's scope after the scope's last process has
    ended.
    """
    limited(person, environment, tmp_path)
    argv = ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "corral*"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == ""
