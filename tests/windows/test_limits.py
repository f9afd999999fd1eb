"""Limits on a real Windows, by what they stop. Wine keeps none of them."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.real_windows(reason="it accepts limits and ignores them")
LOOSE = ("--best-effort",)


def report_of(corral, path, code: str, *flags: str) -> dict[str, object]:
    corral.run(sys.executable, "-c", code, flags=(*LOOSE, "--report", str(path), *flags))
    return json.loads(path.read_text())


def test_memory(corral, tmp_path):
    code = "x = bytearray(400 << 20)"
    report = report_of(corral, tmp_path / "a", code, "--max-memory", "128M")
    assert report["outcome"]["exit_code"] == 1  # MemoryError
    assert "memory" in report["hit"]
    free = report_of(corral, tmp_path / "b", code, "--max-memory", "1G")
    assert (free["outcome"]["exit_code"], free["hit"]) == (0, [])


def test_memory_of_the_whole_tree(corral, tmp_path):
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


def test_processes(corral, tmp_path):
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


def test_cpu_time(corral, tmp_path):
    report = report_of(corral, tmp_path / "a", "while True: pass", "--max-cpu-time", "1s")
    assert report["outcome"]["kind"] == "cpu_time"
    assert report["usage"]["cpu_ms"] >= 900


def test_cpu_share(corral, tmp_path):
    code = (
        "import sys, time\n"
        "start, used = time.perf_counter(), time.process_time()\n"
        "while time.perf_counter() - start < 2: pass\n"
        "sys.exit(int(100 * (time.process_time() - used) / (time.perf_counter() - start)))\n"
    )
    held = report_of(corral, tmp_path / "a", code, "--max-cpu", "200")["outcome"]["exit_code"]
    free = report_of(corral, tmp_path / "b", code)["outcome"]["exit_code"]
    assert held < 40 < free
