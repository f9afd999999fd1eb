"""Cause faults during a run. The supervisor must either continue or end the run with a reason. The
walls must stay in force all the time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "inside"))
from attempts import BOTH_TIERS
from traces import Traces

PATIENCE = 60
TARGET = """
import os, socket, sys
def attempt(word):
    if word == "fork":
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif word == "connect":
        socket.create_connection(("192.0.2.1", 80), 1).close()
    elif word == "look":
        socket.getaddrinfo("example.org", 80)
    elif word == "write":
        open(os.path.join(os.environ["HOME"], "written"), "w").write("x")
        raise OSError("written")
    return "allowed"
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(attempt(line.strip()), flush=True)
    except OSError:
        print("denied", flush=True)
sys.exit(7)
"""
ATTEMPTS = ("fork", "look", "connect", "write")


class Run:
    """A run whose target executes commands from the test."""

    def __init__(self, user, *flags: str, **options) -> None:
        self.user = user
        self.traces = Traces()
        argv = user.corral_argv(
            "run", *flags, "--", user.python, "-ISc", TARGET, self.traces.argument
        )
        pipe = subprocess.PIPE
        self.process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    def wait_until_idle(self) -> None:
        """Wait until the supervisor is blocked in poll() without a timeout. It has then imported
        all its modules.
        """
        while self.process.poll() is None and not waits_for_ever(self.process.pid):
            time.sleep(0.01)

    def attempt(self, word: str) -> str:
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return "ended"
        return self.process.stdout.readline().strip() or "ended"

    def attempt_all(self) -> set[str]:
        return {self.attempt(word) for word in ATTEMPTS}

    def limit(self, kind: int, most: int) -> None:
        code = "import resource, sys; pid, kind, most = map(int, sys.argv[1:])\n"
        code += "resource.prlimit(pid, kind, (most, resource.prlimit(pid, kind)[1]))"
        argv = [self.user.python, "-c", code, str(self.process.pid), str(kind), str(most)]
        with self.user.popen(argv) as running:
            assert running.wait(PATIENCE) == 0

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in err
        assert self.traces.left_in_the_end() == {}
        return self.process.returncode, err


def waits_for_ever(pid: int) -> bool:
    number, _, _, timeout, *_ = (*pathlib.Path(f"/proc/{pid}/syscall").read_text().split(), *"    ")
    # 7 is poll on x86_64, with the timeout -1. 73 is ppoll on aarch64, with a null pointer.
    endless = {"7": "0xffffffff", "73": "0x0"}.get(number)
    return timeout == endless and os.readlink(f"/proc/{pid}/fd/0") == os.devnull


def ended_well(code: int, err: str) -> bool:
    """Return whether a run ended well: with the target's exit code, or with an error and a hint."""
    return code == 7 or (code == 125 and "corral: " in err and "\nhint: " in err)


SERVICES = {
    "plain": (),
    "allowlist": ("--allow-net", "example.com"),
    "sampled": ("--max-cpu-time", "1000s"),
}


@BOTH_TIERS
@pytest.mark.parametrize("flags", SERVICES.values(), ids=SERVICES)
def test_a_supervisor_without_descriptors_continues_or_names_a_reason(ordinary, flags):
    run = Run(ordinary, *flags)
    run.limit(resource.RLIMIT_NOFILE, 0)
    assert run.attempt_all() <= {"denied", "ended"}
    code, err = run.end()
    assert ended_well(code, err), (code, err)


@BOTH_TIERS
@pytest.mark.parametrize("flags", SERVICES.values(), ids=SERVICES)
def test_a_supervisor_without_memory_continues_or_names_a_reason(ordinary, flags):
    run = Run(ordinary, *flags)
    run.limit(resource.RLIMIT_AS, 1 << 20)
    assert run.attempt_all() <= {"denied", "ended"}
    code, err = run.end()
    assert ended_well(code, err), (code, err)


@BOTH_TIERS
def test_a_target_may_fork_if_subprocesses_are_allowed_and_nothing_fails(ordinary):
    run = Run(ordinary, "--allow-subprocess")
    assert run.attempt("fork") == "allowed"
    assert run.end()[0] == 7


MINUTE = pytest.param(60, marks=[pytest.mark.rig("long"), pytest.mark.timeout(300)])


@contextlib.contextmanager
def paused_for(seconds: float, *runs: Run) -> Iterator[None]:
    """Pause the supervisors (SIGSTOP) during the body of the `with` statement, for at least
    `seconds`.
    """
    for run in runs:
        os.kill(run.process.pid, signal.SIGSTOP)
    until = time.monotonic() + seconds
    yield
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)
    for run in runs:
        assert run.process.poll() is None
        os.kill(run.process.pid, signal.SIGCONT)


@BOTH_TIERS
@pytest.mark.parametrize("seconds", [10, MINUTE])
def test_a_timeout_during_a_pause_of_the_supervisor_ends_the_run_afterwards(ordinary, seconds):
    run = Run(ordinary, "--timeout", "10s")
    with paused_for(seconds, run):
        pass
    code, err = run.end()
    assert code == 124, err
    assert "timeout limit" in err


@BOTH_TIERS
@pytest.mark.parametrize("seconds", [1, MINUTE])
def test_nothing_is_allowed_while_the_supervisor_is_paused(ordinary, seconds):
    """Let targets try forbidden acts while their supervisors are paused. Each act must be denied,
    during the pause or right after it. The runs must then continue.
    """
    # Leave out `connect` with an allowlist: the gateway accepts every connection before it decides
    # about it, so `connect` succeeds even for a destination that is then denied.
    runs = {
        (word, name): Run(ordinary, *flags)
        for name, flags in SERVICES.items()
        for word in ATTEMPTS
        if (word, name) != ("connect", "allowlist")
    }
    with paused_for(seconds, *runs.values()):
        for (word, _), run in runs.items():
            run.process.stdin.write(f"{word}\n")
            run.process.stdin.flush()
    for (word, _), run in runs.items():
        assert run.process.stdout.readline() == "denied\n"
        assert run.attempt(word) == "denied"
        code, err = run.end()
        assert code == 7, err


def remove(path: pathlib.Path, _user) -> None:
    shutil.rmtree(path)


def close(path: pathlib.Path, _user) -> None:
    path.chmod(0o500)


def give_away(path: pathlib.Path, _user) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, 1, 1, follow_symlinks=False)
        one.chmod(0o777)


def foreign_files(places, user) -> dict[pathlib.Path, int]:
    """Return the time of the last change of each file in `places` that belongs to another user.
    Leave out the records of runs.
    """
    found = {one: one.lstat() for place in places for one in place.rglob("*")}
    return {
        one: seen.st_mtime_ns
        for one, seen in found.items()
        if seen.st_uid != user.uid and not one.is_dir() and one.parent.name != "runs"
    }


@BOTH_TIERS
@pytest.mark.parametrize("fault", [remove, close, give_away])
def test_a_run_survives_changes_of_corrals_directories(ordinary, fault):
    if fault is give_away and os.geteuid():
        pytest.skip("this process is not root")
    made = [ordinary.home / "place" / name for name in ("cache", "state", "config")]
    env = {f"XDG_{path.name.upper()}_HOME": str(path) for path in made}
    assert ordinary.run("/bin/true").returncode == 0  # this run caches the findings
    shutil.copytree(ordinary.home / ".cache/corral", made[0] / "corral")
    for path in made[1:]:
        path.mkdir()
    for path in (made[0].parent, *made[0].parent.rglob("*")):
        os.chown(path, ordinary.uid, ordinary.uid)
    first = ordinary.run("/bin/true", env=ordinary.environment(**env))
    assert first.returncode == 0, first.stderr
    run = Run(ordinary, env=ordinary.environment(**env))
    assert run.attempt("fork") == "denied"
    for path in made:
        if (path / "corral").is_dir():
            fault(path / "corral", ordinary)
    before = foreign_files(made, ordinary)
    assert run.attempt_all() == {"denied"}
    code, err = run.end()
    assert code == 7, err
    assert foreign_files(made, ordinary) == before
    again = ordinary.run("/bin/true", env=ordinary.environment(**env))
    assert again.returncode == 0 or b"\nhint: " in again.stderr, again.stderr
    assert b"Traceback" not in again.stderr


LATE = """
import sys
print("ready", flush=True)
sys.stdin.readline()
import late
print(late.VALUE, flush=True)
"""


@BOTH_TIERS
def test_a_removed_server_keeps_its_files_until_its_run_ends(ordinary):
    """Remove a server from corral's store while it runs. `corral cache gc` must not remove its
    files before the run ends.
    """
    path = ordinary.home / "hello.mcpb"
    path.write_bytes(bundle({"main.py": LATE, "late.py": "VALUE = 'late'"}))
    path.chmod(0o644)
    trees = ordinary.home / ".cache/corral/store/trees"
    pipe = subprocess.PIPE
    argv = ordinary.corral_argv("run", str(path))
    with ordinary.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout.readline() == "ready\n", running.stderr.read()
        for words in (("rm", "hello"), ("gc",)):
            done = ordinary.corral("cache", *words)
            assert done.returncode == 0, done.stderr
        assert list(trees.iterdir()) != []
        out, err = running.communicate("go\n", timeout=PATIENCE)
    assert (running.returncode, out) == (0, "late\n"), err
    assert ordinary.corral("cache", "gc").returncode == 0
    assert list(trees.iterdir()) == []


def bundle(files: dict[str, str]) -> bytes:
    command = {"command": "python3", "args": ["${__dirname}/main.py"], "env": {}}
    server = {"type": "python", "entry_point": "main.py", "mcp_config": command}
    manifest = {"manifest_version": "0.3", "name": "hello", "version": "1.0.0", "server": server}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in {"manifest.json": json.dumps(manifest), **files}.items():
            archive.writestr(name, text)
    return made.getvalue()
