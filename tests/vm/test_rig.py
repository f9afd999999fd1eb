"""The rigs themselves: what a machine promises to the tests that run in it, and to the host it runs on."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from vm import guest_run, rig, uml

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("test", guest_run.tests_in("kernel"))
@pytest.mark.parametrize("user", guest_run.USERS)
def test_kernel(user, test):
    guest_run.expect_passed(uml, "kernel", user, test)


def test_the_commands_own_status_and_output_come_back():
    result = uml.boot(["sh", "-c", "seq 20000; echo gone wrong >&2; exit 7"])
    assert result.returncode == 7
    assert result.output == "\n".join(map(str, range(1, 20001))) + "\ngone wrong\n"


def test_a_machine_that_hangs_is_ended_and_shows_what_it_said():
    with pytest.raises(rig.MachineError, match=r"(?s)still running.*last words"):
        uml.boot(["sh", "-c", "echo last words; exec sleep 600"], timeout=15)


def test_a_machine_that_crashes_is_no_result():
    with pytest.raises(rig.MachineError, match="before its command had"):
        uml.boot(["sh", "-c", "echo c > /proc/sysrq-trigger; exec sleep 600"], timeout=60)


def test_nothing_is_written_to_the_host_and_nothing_is_left_on_it():
    """Root of the machine writes to a root-only and to a world-writable place; both are only its own."""
    before = traces()
    script = (
        "echo changed > /etc/hostname; echo here > /var/tmp/rig-was-here; cat /var/tmp/rig-was-here"
    )
    hostname = pathlib.Path("/etc/hostname").read_bytes()
    result = uml.boot(
        [
            "sh",
            "-c",
            script
            + "; mount -t hostfs none /mnt -o / && echo here > /mnt/var/tmp/rig-was-here; exit 0",
        ]
    )
    assert result.output.startswith("here\n")
    assert pathlib.Path("/etc/hostname").read_bytes() == hostname
    assert traces() == before
    assert not pathlib.Path("/var/tmp/rig-was-here").exists()


def traces() -> tuple[list[str], list[str], str]:
    """Machines that run, directories of machines, mounts."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    running = [line for line in found.splitlines() if "corral-rig-" in line]
    return (
        running,
        [name for name in os.listdir("/tmp") if name.startswith("corral-rig-")],
        pathlib.Path("/proc/mounts").read_text(),
    )
