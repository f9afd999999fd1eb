"""Run many servers at once and many starts in a row. None of the counters in bench/many.py may
grow.

bench/README.md has the real numbers. This test uses fewer servers and starts, and does not check
memory and time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from users import User, has_system_python

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can use a separate user")
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
LAST_ID = 64000
LONG = pytest.mark.rig("long")


@pytest.fixture
def many(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("many")


@pytest.fixture
def alone(package):
    """Yield a user that no other test uses, so that no other process changes the user's
    counters.
    """
    uid = LAST_ID - os.getpid() % 1000
    home = pathlib.Path(tempfile.mkdtemp(prefix="corral-many-"))
    os.chown(home, uid, uid)
    assert has_system_python()
    yield User("alone", uid, home, package)
    shutil.rmtree(home)


@pytest.fixture
def scripts(package):
    """Return a copy of the benchmark's files, which every user can read."""
    place = package.parent / "bench"
    shutil.copytree(BENCH, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    place.chmod(0o755)
    return place


def options_of(user: User, **environment: str) -> dict[str, object]:
    """Return `popen` options that start a process as this user."""
    ids = {"user": user.uid, "group": user.uid, "extra_groups": [], "cwd": user.home}
    return {**ids, "env": user.environment(**environment), "stderr": subprocess.DEVNULL}


@pytest.mark.parametrize(
    ("way", "servers", "starts"),
    [
        ("api", 5, 20),
        pytest.param("api", 20, 200, marks=LONG),
        pytest.param("command", 20, 200, marks=LONG),
    ],
)
@pytest.mark.timeout(1200)
def test_many_servers_and_starts_leak_no_descriptors_wake_ups_or_run_records(
    many, alone, scripts, monkeypatch, way, servers, starts
):
    if way == "command":
        held = many.fleet.Commands(alone.corral_argv("run", "--"), options_of(alone))
    else:
        monkeypatch.setattr(many.fleet, "HOLDER", str(scripts / "launched.py"))
        options = options_of(alone, PYTHONPATH=str(alone.package))
        held = many.fleet.Launched([alone.python], options)
    server = [alone.python, "-I", "-S", str(scripts / "idle_server.py")]
    places = many.counters.Places(alone.uid, str(alone.home))
    monkeypatch.setattr(many, "SAMPLES", max(many.FEWEST_SAMPLES, starts // 10))
    asked = argparse.Namespace(starts=starts, minutes=0.0)
    section = many.hold_long(held, [server] * servers, places, asked)
    judged = [one for one in section.ratios if one.budget == 0 and one.verdict]
    assert [one.name for one in judged if one.verdict == "miss"] == []
    names = " ".join(one.name for one in judged)
    assert all(
        word in names
        for word in ("supervisors: descriptors", "supervisors: wake-ups", "host: run records, left")
    )
    counted = {row.name: row.median for row in section.rows}
    assert counted["supervisors: processes"] == counted["host: run records"] == servers


def test_slow_growth_of_descriptors_or_wake_ups_is_reported_as_a_leak(many):
    """Check that the benchmark's `judge` reports even slow growth of the supervisors' descriptors
    or wake-ups, but ignores the targets' wake-ups.
    """
    flat = {
        "supervisors: descriptors": 100.0,
        "supervisors: wake-ups": 7.0,
        "targets: wake-ups": 1.0,
    }
    assert all(one.verdict == "pass" for one in many.judge([flat] * 60))
    leak = [{**flat, "supervisors: descriptors": 100.0 + index // 6} for index in range(60)]
    waking = [{**flat, "supervisors: wake-ups": 7.0 + index // 4} for index in range(60)]
    busy = [{**flat, "targets: wake-ups": float(index)} for index in range(60)]
    missed = [
        [one.name for one in many.judge(samples) if one.verdict == "miss"]
        for samples in (leak, waking, busy)
    ]
    assert missed == [
        ["supervisors: descriptors, growth"], ["supervisors: wake-ups, growth"], []
    ]  # fmt: skip


FILL = """
import subprocess
sys.path.insert(0, sys.argv[1])
from corral.abi import linux as abi
abi.syscall("keyctl", 1, None)  # a session keyring, as a login gives one
held = []
try:
    while True:
        abi.syscall("add_key", b"user", f"key-{len(held)}".encode(), b"x", 1, -3)
        held.append(1)
except OSError as error:
    answer = [error.errno]
done = subprocess.run(sys.argv[2:], capture_output=True, text=True, check=False)
answer += [done.returncode, done.stdout, done.stderr]
"""


def test_a_user_without_free_kernel_keys_can_start_servers(alone):
    """Use up the 200 kernel keys that a user may have. A run must start anyway, although it then
    cannot have a session keyring of its own.
    """
    corral = alone.corral_argv("run", "--", "/bin/cat", "/proc/keys")
    full, code, out, err = alone.outside(FILL, str(alone.package), *corral)
    assert os.strerror(full) == "Disk quota exceeded"
    assert (code, out) == (0, ""), err
    assert "keyring" not in err
