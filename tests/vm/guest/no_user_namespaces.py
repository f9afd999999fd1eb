"""Test corral with user.max_user_namespaces = 0, as in containers and on hardened hosts."""

from __future__ import annotations

import ctypes
import json
import subprocess

REFUSED = 125
LANDLOCK_CREATE_RULESET, LANDLOCK_VERSION = 444, 1


def test_this_machine_makes_no_user_namespaces():
    done = subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False)
    assert done.returncode != 0
    assert subprocess.run(["true"], check=False).returncode == 0


def test_doctor_reports_user_namespaces_as_absent(person):
    found = json.loads(person.corral("doctor", "--json").stdout)["findings"]
    namespaces = next(f for f in found if f["capability"] == "user_namespaces")
    assert namespaces["status"] == "absent"
    assert namespaces["hint"]


def test_run_and_explain_both_refuse_or_both_work(person):
    """Check that `explain` and `run` agree: both refuse, or both work without user namespaces. If
    they refuse, `run` must name the missing control.
    """
    explained = person.corral("explain", "--json", "--", "/bin/echo", "inside")
    done = person.run("/bin/echo", "inside")
    if explained.returncode == REFUSED:
        assert (done.returncode, done.stdout) == (REFUSED, b"")
        assert b"filesystem" in done.stderr
        return
    walls = {c["control"]: c for c in json.loads(explained.stdout)["controls"]}
    assert "namespaces" not in walls["filesystem"]["mechanism"]
    assert (done.returncode, done.stdout) == (0, b"inside\n"), done.stderr


def test_corral_runs_only_if_landlock_can_deny_truncation(person):
    """Check that corral refuses the run if the kernel cannot deny truncation. This is the case
    without Landlock, and before Landlock's ABI 3.
    """
    number = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION)
    done = person.run("/bin/echo", "inside")
    assert done.returncode == (0 if number >= 3 else REFUSED), (number, done.stderr)
