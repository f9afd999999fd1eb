"""Test the virtual machines themselves: they give correct results, and change nothing on the host."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from vm import guest_run, rig, uml

pytestmark = [pytest.mark.rig("uml"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("test", guest_run.tests_in("kernel"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_the_machines_kernel_enforces_cgroup_limits(user, test):
    guest_run.expect_passed(uml, "kernel", user, test)


def test_exit_status_and_output_of_a_command_in_the_machine_are_returned():
    result = uml.boot(["sh", "-c", "seq 20000; echo gone wrong >&2; exit 7"])
    assert result.returncode == 7
    assert result.output == "\n".join(map(str, range(1, 20001))) + "\ngone wrong\n"


def test_a_machine_that_hangs_is_ended_and_its_output_is_shown():
    with pytest.raises(rig.MachineError, match=r"(?s)still running.*last words"):
        uml.boot(["sh", "-c", "echo last words; exec sleep 600"], timeout=10)


def test_a_machine_that_crashes_gives_no_result():
    with pytest.raises(rig.MachineError, match="before its command ended"):
        uml.boot(["sh", "-c", "echo c > /proc/sysrq-trigger; exec sleep 600"], timeout=60)


@pytest.fixture
def place(monkeypatch):
    """Return a directory for the machines of this test, which every user can open."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="rig-test-"))
    path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


def running(place: pathlib.Path) -> list[str]:
    """Return the command lines of all processes that belong to machines in `place`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.append(pathlib.Path(f"/proc/{entry}/cmdline").read_text(errors="replace"))
        except OSError:
            continue  # the process has ended
    return [line for line in found if f"{place}/corral-rig-" in line]


def test_a_machine_leaves_no_files_processes_or_mounts_on_the_host(place):
    assert uml.boot(["true"]).returncode == 0
    assert list(place.iterdir()) == []
    assert running(place) == []
    assert str(place) not in pathlib.Path("/proc/self/mountinfo").read_text()


def test_a_machine_cannot_write_to_the_hosts_files(place):
    """Mount the host's root again, as root in the machine. Then try to write to a directory on the
    host that all users may write to.
    """
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    script = f"""
        echo changed > /etc/passwd && head -c 7 /etc/passwd && echo
        mount -t hostfs none /mnt -o / && test -d /mnt{shared} && echo mounted
        echo here > /mnt{shared}/file || echo denied
    """
    before = pathlib.Path("/etc/passwd").read_bytes()
    lines = uml.boot(["sh", "-c", script]).output.splitlines()
    assert (lines[:2], lines[-1]) == (["changed", "mounted"], "denied")
    assert list(shared.iterdir()) == []
    assert pathlib.Path("/etc/passwd").read_bytes() == before


def test_a_machine_dies_with_the_tests_that_started_it(place):
    code = "from vm import uml; uml.boot(['sleep', '600'], timeout=600)"
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(rig.HERE.parent)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as tests:
        while not any("linux.uml" in line for line in running(place)):
            assert tests.poll() is None
        tests.send_signal(signal.SIGKILL)
    while running(place):
        pass  # if a process stays, the test's timeout ends the loop
