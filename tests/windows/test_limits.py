"""Test the effects of limits on real Windows, because Wine does not enforce them."""

from __future__ import annotations

import json

import pytest

from windows.conftest import PYTHON

pytestmark = pytest.mark.real_windows(reason="it accepts limits and ignores them")
LOOSE = ("--best-effort",)


def report_of(corral, path, code: str, *flags: str) -> dict[str, object]:
    corral.run(PYTHON, "-c", code, flags=(*LOOSE, "--report", str(path), *flags))
    return json.loads(path.read_text())


def test_memory_beyond_the_limit_is_refused(corral, tmp_path):
    code = "x = bytearray(400 << 20)"
    report = report_of(corral, tmp_path / "a", code, "--max-memory", "128M")
    assert report["outcome"]["exit_code"] == 1  # Python ended with a MemoryError
    assert "memory" in report["hit"]
    free = report_of(corral, tmp_path / "b", code, "--max-memory", "1G")
    assert (free["outcome"]["exit_code"], free["hit"]) == (0, [])


def test_memory_of_the_whole_tree_is_limited(corral, tmp_path):
    code = (
        "import subprocess, sys\n"
        "code = 'x = bytearray(100 << 20); print(1, flush=True); input()'\n"
        "streams = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}\n"
        "running = [subprocess.Popen([sys.executable, '-c', code], **streams) for _ in range(4)]\n"
        "held = [one.stdout.readline() for one in running]\n"
        "sys.exit(0 if all(held) else 9)\n"
    )
    flags = ("--allow-subprocess", "--max-memory")
    assert report_of(corral, tmp_path / "a", code, *flags, "256M")["outcome"]["exit_code"] == 9
    assert report_of(corral, tmp_path / "b", code, *flags, "2G")["outcome"]["exit_code"] == 0


def test_processes_beyond_the_limit_do_not_start(corral, tmp_path):
    code = (
        "import subprocess, sys\n"
        "wait = [sys.executable, '-c', 'input()']\n"
        "try:\n"
        "    some = [subprocess.Popen(wait, stdin=subprocess.PIPE) for _ in range(4)]\n"
        "except OSError:\n"
        "    sys.exit(9)\n"
    )
    flags = ("--allow-subprocess", "--max-pids")
    report = report_of(corral, tmp_path / "a", code, *flags, "3")
    assert (report["outcome"]["exit_code"], report["hit"]) == (9, ["pids"])
    assert report_of(corral, tmp_path / "b", code, *flags, "8")["outcome"]["exit_code"] == 0


def test_cpu_time_beyond_the_limit_ends_the_run(corral, tmp_path):
    report = report_of(corral, tmp_path / "a", "while True: pass", "--max-cpu-time", "1s")
    assert report["outcome"]["kind"] == "cpu_time"
    assert report["usage"]["cpu_ms"] >= 900


def test_a_cpu_share_is_set(corral, tmp_path):
    """Check that a run sets the CPU rate of its job. The probe checks the effect of a rate
    (`test_doctor.py`).
    """
    report = report_of(corral, tmp_path / "a", "pass", "--max-cpu", "200")
    (held,) = [one for one in report["controls"] if one["control"] == "cpu"]
    assert (held["mechanism"], held["status"]) == ("job object", "applied")
