"""Remove corral's package while a target runs, or install another version over it. The run must end
as usual.

In its first half second, the supervisor may still need to import modules. If the package is removed
in this time, the run may end early, but corral must report the reason.
"""

import functools
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import zipfile

import pytest
from test_faults import ATTEMPTS, BOTH_TIERS, TARGET, Run, ended_well
from traces import PATIENCE

FLAGS = {
    "plain": (),
    "allowlist": ("--allow-net", "example.com"),
    "report": ("--report", "report.json"),
    "page": ("--report", "report.html"),
    "audit": ("--audit", "audit.jsonl"),
    "listen": ("--listen", "PORT"),
    "processes": ("--allow-subprocess", "--max-pids", "50"),
    "learned": ("--learn-until", "2099-01-01T00:00:00Z"),
    "state": ("--state",),
}
FEW = ("plain", "allowlist")
EACH = [
    pytest.param(flags, id=name, marks=() if name in FEW else pytest.mark.rig("long"))
    for name, flags in FLAGS.items()
]


class Removed(Run):
    """A run of corral from a copy of the package. `remove` deletes this copy."""

    def __init__(self, user, *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.package = user.home / "site"
        self.install(user.package)
        original, user.package = user.package, self.package
        try:
            super().__init__(user, *(port if flag == "PORT" else flag for flag in flags))
        finally:
            user.package = original

    def install(self, source: pathlib.Path) -> None:
        shutil.copytree(source, self.package)

    def remove(self) -> None:
        shutil.rmtree(self.package)


class Upgraded(Removed):
    """A run of corral from a virtual environment, in which pip then installs an incompatible
    version.
    """

    def install(self, source: pathlib.Path) -> None:
        folder = self.package
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        [self.package] = folder.glob("lib/python*/site-packages")
        self.python, self.new = folder / "bin/python", wheel(source, NEW)
        with zipfile.ZipFile(wheel(source, OLD)) as old:
            old.extractall(self.package)

    def upgrade(self) -> None:
        argv = [sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-index"]
        argv += ["--no-deps", "--no-compile", "--root-user-action=ignore", self.new]
        subprocess.run(argv, check=True)


OLD, NEW = "0.1.0", "99.1.0"
UPGRADED = "\nimport corral as _corral\n_corral.UPGRADED\n"
"""The last lines of each module of the new version. A process that began with the old version cannot import such a
module.
"""


@functools.cache
def wheel(source: pathlib.Path, version: str) -> pathlib.Path:
    """Build a wheel with this version from the tests' copy of corral, next to that copy. Besides
    the code, it has only the files that pip needs to install and remove it.
    """
    path, info = source.parent / f"corral-{version}-py3-none-any.whl", f"corral-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        names = []
        for file in sorted(source.glob("corral/**/*")):
            if file.is_dir() or file.suffix == ".pyc":
                continue
            text, name = file.read_bytes(), str(file.relative_to(source))
            if name == "corral/__init__.py":
                text = text.replace(OLD.encode(), version.encode())
                text += b"UPGRADED = 1\n" if version == NEW else b""
            elif version == NEW and file.suffix == ".py":
                text += UPGRADED.encode()
            archive.writestr(name, text)
            names.append(name)
        files = {
            "METADATA": f"Metadata-Version: 2.1\nName: corral\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "".join(
                f"{name},,\n"
                for name in (*names, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
            ),
        }
        for name, words in files.items():
            archive.writestr(f"{info}/{name}", words)
    return path


@BOTH_TIERS
@pytest.mark.parametrize("flags", EACH)
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "starting"])
def test_a_run_ends_as_usual_after_its_package_was_removed(ordinary, flags, idle):
    run = Removed(ordinary, *flags)
    if idle:
        run.wait_until_idle()
    run.remove()
    answers = {word: run.attempt(word) for word in ATTEMPTS}
    code, err = run.end()
    assert ended_well(code, err), (code, err)
    if idle:
        assert code == 7, err
        check_services(ordinary, flags, answers, err)


def check_services(user, flags: tuple[str, ...], answers: dict[str, str], err: str) -> None:
    """Check that the walls have denied what the target attempted. The run must also have written
    its report, audit and denials.
    """
    assert set(answers.values()) <= {"denied", "allowed"}
    assert (answers["fork"] == "allowed") == ("--allow-subprocess" in flags)
    assert "written" in err or "--state" in flags
    for flag, name in itertools.pairwise(flags):
        if flag in ("--report", "--audit"):
            assert "python3" in (user.home / name).read_text()
    if user.tier == "walled" or "--allow-subprocess" not in flags:
        assert list((user.home / ".local/state/corral/denials").glob("*/*.jsonl"))


def check_upgraded(run: Upgraded, user) -> None:
    """Check that pip has removed the old version, and that the new version works."""
    assert not list(run.package.glob(f"corral-{OLD}.*"))
    original, user.package = user.package, run.package
    try:
        assert user.corral("--version").stdout.decode().split() == ["corral", NEW]
        done = user.run("/bin/echo", "new")
        assert (done.returncode, done.stdout) == (0, b"new\n"), done.stderr
    finally:
        user.package = original


@BOTH_TIERS
@pytest.mark.parametrize("flags", EACH)
def test_a_run_ends_as_usual_after_an_upgrade(ordinary, flags):
    run = Upgraded(ordinary, *flags)
    run.wait_until_idle()
    run.upgrade()
    assert (run.attempt("fork") == "allowed") == ("--allow-subprocess" in flags)
    assert run.attempt_all() <= {"denied", "allowed"}
    check_upgraded(run, ordinary)
    code, err = run.end()
    assert code == 7, err
    assert "written" in err or "--state" in flags


@BOTH_TIERS
def test_an_upgrade_right_after_the_start_is_reported(ordinary):
    """Upgrade corral right after the start. If the run cannot continue, its error must say that
    corral was replaced.
    """
    run = Upgraded(ordinary)
    os.kill(run.process.pid, signal.SIGSTOP)
    run.upgrade()
    os.kill(run.process.pid, signal.SIGCONT)
    run.attempt_all()
    code, err = run.end()
    assert ended_well(code, err), (code, err)
    assert code == 7 or "replaced while it ran" in err
    check_upgraded(run, ordinary)


CALLER = """
import json, os, pathlib, sys, time
import corral
how, target, policy, attempts = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
def is_idle(pid):
    words = pathlib.Path(f"/proc/{pid}/syscall").read_text().split()
    return words[0] in ("7", "73") and words[3] in ("0xffffffff", "0x0")
def launch(code):
    start = pool.launch if how == "pool" else corral.launch
    given = (policy,) if how == "launch" else ()
    return start([sys.executable, "-ISc", code], *given, stdin=corral.PIPE, stdout=corral.PIPE)
pool = corral.Pool(policy)
with pool:
    if how == "pool":
        with launch("pass") as first:
            first.wait(60)
    with launch(target) as box:
        assert box.stdout.readline() == b"ready\\n"
        supervisor = box.pid
        while parent(parent(supervisor)) != os.getpid():
            supervisor = parent(supervisor)
        while not is_idle(supervisor):
            time.sleep(0.01)
        print("idle", flush=True)
        sys.stdin.readline()
        answers = []
        for word in attempts:
            box.stdin.write(word.encode() + b"\\n")
            box.stdin.flush()
            answers.append(box.stdout.readline().decode().strip())
        box.stdin.close()
        code = box.wait(60)
report = box.report
denials = {row.kind: row.destination for row in report.denials}
print(json.dumps([code, answers, denials, [row.path for row in report.discarded]]))
"""
POLICIES = {
    "plain": {"version": 1},
    "allowlist": {"version": 1, "network": {"allow": ["example.com"]}},
}


class RemovedUnderCaller(Removed):
    """A program that calls the Python API of a copy of the package."""

    def __init__(self, user, how: str, policy: dict[str, object]) -> None:
        self.package = user.home / "site"
        self.install(user.package)
        argv = [user.python, "-c", CALLER, how, TARGET, json.dumps(policy), json.dumps(ATTEMPTS)]
        env = user.environment(PYTHONPATH=str(self.package))
        pipe = subprocess.PIPE
        self.process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)
        assert self.process.stdout.readline() == "idle\n", self.process.stderr.read()


class UpgradedUnderCaller(RemovedUnderCaller, Upgraded):
    def remove(self) -> None:
        self.upgrade()


@pytest.mark.parametrize("how", ["launch", "pool"])
@pytest.mark.parametrize("change", [RemovedUnderCaller, UpgradedUnderCaller])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_of_the_python_api_ends_as_usual_after_its_package_was_replaced(
    ordinary, how, change, policy
):
    run = change(ordinary, how, POLICIES[policy])
    run.remove()
    out, err = run.process.communicate("\n", timeout=PATIENCE)
    assert run.process.returncode == 0, err
    code, answers, denials, discarded = json.loads(out)
    # With an allowlist the gateway accepts each connection before it checks the address, so the
    # target may briefly see a connection.
    connection = {"plain": {"denied"}, "allowlist": {"denied", "allowed"}}[policy]
    assert answers.pop(2) in connection
    assert (code, answers) == (7, ["denied"] * 3), err
    assert {"name", "start"} <= set(denials)
    assert denials["name"] == "example.org"
    assert discarded == ["~/written"]
