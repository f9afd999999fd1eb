"""Test the Wine rig itself: it gives correct results, and changes nothing on the host."""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import subprocess
import tempfile

import pytest

from windows import rig
from windows.test_under_wine import judge

pytestmark = [pytest.mark.rig("wine"), pytest.mark.timeout(300)]


@pytest.fixture
def token() -> str:
    """Return a random word for the command lines of one run, so that the test can find the
    processes of this run.
    """
    return f"corral-{secrets.token_hex(8)}"


def running(token: str) -> list[str]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(pathlib.Path(f"/proc/{entry}/cmdline").read_text(errors="replace"))
        except OSError:
            continue  # the process has ended
    return [line for line in found if token in line]


def test_exit_status_and_output_of_a_program_under_wine_are_returned():
    code = "import sys; print(sys.stdin.read()[::-1]); sys.stderr.write('wrong'); sys.exit(7)"
    result = rig.run(["python", "-c", code], stdin=b"abc")
    assert (result.returncode, result.output, result.errors) == (7, "cba\n", "wrong")


def test_python_under_wine_reports_windows_and_finds_corral():
    code = "import sys, corral.abi.win32 as w; print(sys.platform, w.CloseHandle.exists())"
    assert rig.run(["python", "-c", code]).output == "win32 True\n"


@pytest.fixture
def shared():
    """Make a directory on the host that every user may write to."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="corral-rig-", dir="/var/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def test_a_program_under_wine_leaves_no_process_and_cannot_write_outside(token, shared):
    code = f"""
import os, subprocess, sys
own, host, checkout = "C:\\\\work\\\\file", r"Z:{shared}\\file", "C:\\\\corral\\\\file"
assert os.path.isdir(os.path.dirname(host))
for path in (own, host, checkout):
    try:
        open(path, "w").close()
    except OSError as error:
        print("denied")
    else:
        print("written")
sleeper = [sys.executable, "-c", "import time; time.sleep(600)", "{token}"]
subprocess.Popen(sleeper, creationflags=subprocess.DETACHED_PROCESS, stdin=subprocess.PIPE)
"""
    result = rig.run(["python", "-c", code])
    assert result.output.split() == ["written", "denied", "denied"], result.errors
    assert list(shared.iterdir()) == []
    assert running(token) == []


def test_a_program_that_hangs_is_ended(token):
    code = "import time; time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired):
        rig.run(["python", "-c", code, token], timeout=5)
    while running(token):
        pass  # if a process stays, the test's timeout ends the loop


def test_a_test_without_a_reported_result_counts_as_failed():
    passed = [{"name": "a", "outcome": "passed", "text": ""}]
    judge("a", {"a": passed}, "")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)was not run.*last words"):
        judge("b", {"a": passed}, "last words")
    with pytest.raises(pytest.fail.Exception, match="why"):
        judge("a", {"a": [*passed, {"name": "a", "outcome": "failed", "text": "why"}]}, "")
    with pytest.raises(pytest.skip.Exception, match="because"):
        judge("a", {"a": [*passed, {"name": "a", "outcome": "skipped", "text": "because"}]}, "")
