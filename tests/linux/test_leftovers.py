"""What a target leaves in its private directory cannot make a later start write, hang or remove.

corral is killed with SIGKILL, as a client in a hurry does; the next start or `corral sweep` finds the leftover.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess

import pytest
from traces import Traces, wait_until_gone

from corral.platforms.linux.mechanisms import cgroup

pytestmark = pytest.mark.parametrize("tier", ["bare"], indirect=True)

PLANT = """
import json, os, sys
top, victim = os.path.dirname(os.environ["HOME"]), sys.argv[1]
def tried(act, *words):
    try:
        act(*words)
    except OSError as error:
        return type(error).__name__
    return "done"
print(json.dumps({
    "procs": tried(lambda: open(f"{top}/cgroup.procs", "w").close()),
    "kill": tried(os.symlink, victim, f"{top}/cgroup.kill"),
    "directory": tried(os.mkdir, f"{top}/other"),
    "away": tried(os.rename, f"{top}/tmp", f"{top}/home/tmp"),
    "between": tried(os.rename, f"{top}/home/a", f"{top}/tmp/b") if not os.mkdir(f"{top}/home/a") else "",
    "home": tried(os.symlink, victim, f"{top}/home/cgroup.kill"),
    "tmp": tried(os.symlink, victim, f"{top}/tmp/cgroup.kill"),
}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def runs(user):
    assert user.run("/bin/true").returncode == 0
    path = user.home / ".cache" / "corral" / "runs"
    assert os.listdir(path) == []
    yield path
    for name in os.listdir(path):  # of a leftover that is not corral's
        (path / name).unlink()


@pytest.fixture
def victim(user, scratch):
    path = scratch / "victim"
    path.write_text("untouched")
    os.chown(path, user.owner, user.owner)
    path.chmod(0o666)
    yield path
    assert path.read_text() == "untouched"
    assert os.stat(path).st_mode & 0o777 == 0o666


def killed_run(user, victim) -> tuple[str, dict]:
    """The private directory of a run that was killed, and what its target could do in it."""
    traces = Traces()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = (user.python, "-ISc", PLANT, str(victim), traces.argument)
    process = user.popen(user.corral_argv("run", "--", *command), **pipes)
    line = process.stdout.readline()
    assert line, process.stderr.read()
    process.kill()
    process.communicate()
    wait_until_gone(traces.argument)
    start = f"corral-{user.uid}-{process.pid}-"
    (name,) = [name for name in os.listdir("/tmp") if name.startswith(start)]
    return f"/tmp/{name}", json.loads(line)


def sweep(user) -> list[str]:
    done = user.corral("sweep", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(user, runs, *residue: str) -> None:
    path = runs / "planted"
    path.write_text("\n".join(("1", "0", "1700000000", str(len(residue)), *residue, "/bin/true")))
    os.chown(path, user.uid, user.uid)


def test_a_target_writes_only_below_the_top_of_its_directory(user, runs, victim):
    left, did = killed_run(user, victim)
    walls = {name: did.pop(name) for name in ("procs", "kill", "directory", "away")}
    assert set(walls.values()) == {"PermissionError"}
    assert did == {"between": "done", "home": "done", "tmp": "done"}  # the control
    assert os.stat(left).st_uid == user.uid
    assert sweep(user) == [left]


def link_to_victim(top: pathlib.Path, victim: pathlib.Path) -> None:
    (top / "cgroup.procs").touch()
    (top / "cgroup.kill").symlink_to(victim)


def both_links(top: pathlib.Path, victim: pathlib.Path) -> None:
    (top / "cgroup.procs").symlink_to(victim)
    (top / "cgroup.kill").symlink_to(victim)


def hard_links(top: pathlib.Path, victim: pathlib.Path) -> None:
    copy = top / "tmp" / "copy"
    os.link(victim, copy)
    os.link(copy, top / "cgroup.kill")
    os.link(copy, top / "cgroup.procs")


def pipe(top: pathlib.Path, _victim: pathlib.Path) -> None:
    (top / "cgroup.procs").touch()
    os.mkfifo(top / "cgroup.kill")


def sockets(top: pathlib.Path, _victim: pathlib.Path) -> None:
    for name in ("cgroup.procs", "cgroup.kill"):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(top / name))


def linked_home(top: pathlib.Path, victim: pathlib.Path) -> None:
    shutil.rmtree(top / "home")
    (top / "home").symlink_to(victim.parent)


def many_files(top: pathlib.Path, _victim: pathlib.Path) -> None:
    for number in range(30_000):
        os.close(os.open(top / "tmp" / str(number), os.O_CREAT, 0))


@pytest.mark.parametrize("broom", ["sweep", "run"])
@pytest.mark.parametrize(
    "shape", [link_to_victim, both_links, hard_links, pipe, sockets, linked_home]
)
def test_a_leftover_that_looks_like_a_cgroup_is_only_removed(user, runs, victim, shape, broom):
    left, _ = killed_run(user, victim)
    shape(pathlib.Path(left), victim)
    if broom == "sweep":
        assert sweep(user) == [left]
    else:
        assert user.run("/bin/true").returncode == 0
    assert not os.path.lexists(left)
    assert victim.exists()
    assert os.listdir(runs) == []


def test_a_huge_leftover_does_not_hold_up_a_start(user, runs, victim):
    left, _ = killed_run(user, victim)
    many_files(pathlib.Path(left), victim)
    assert user.run("/bin/true").returncode == 0
    there = len(os.listdir(f"{left}/tmp"))
    assert 0 < there < 30_000  # each start removes a part
    assert sweep(user) == [left]
    assert os.listdir(runs) == []


def test_a_leftover_that_became_a_link_is_not_followed(user, runs, victim):
    left, _ = killed_run(user, victim)
    shutil.rmtree(left)
    os.symlink(victim.parent, left)
    assert sweep(user) == []
    assert victim.exists()
    os.unlink(left)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory of another user's")
def test_a_leftover_of_another_user_is_not_touched(user, runs, victim):
    left, _ = killed_run(user, victim)
    os.chown(left, 12345, 12345)
    assert sweep(user) == []
    assert os.path.exists(f"{left}/home/cgroup.kill")
    os.chown(left, user.uid, user.uid)
    assert sweep(user) == [left]  # the control


@pytest.mark.skipif(os.geteuid() != 0, reason="has another user's home")
@pytest.mark.parametrize("linked", ["corral", "corral/runs"])
def test_records_in_another_users_cache_are_not_swept(user, scratch, linked):
    """Root with the home of another user, who made a directory of root's look like the records."""
    valuable = scratch / "valuable"
    (valuable / "runs").mkdir(parents=True)
    for path in (valuable / "passwd", valuable / "runs/passwd"):
        path.write_text("root:x:0:0")
    cache = scratch / "home/.cache"
    (cache / linked).parent.mkdir(parents=True)
    (cache / linked).symlink_to(valuable)
    for path in (scratch / "home", *(scratch / "home").rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    env = user.environment(HOME=str(scratch / "home"))
    user.corral("sweep", env=env)
    assert sorted(str(path.relative_to(valuable)) for path in valuable.rglob("*")) == [
        "passwd", "runs", "runs/passwd",
    ]  # fmt: skip


def test_only_the_directory_of_temporary_files_has_leftovers(user, runs, scratch, victim):
    """A path through a link, with dots, or elsewhere is not what corral makes."""
    name = f"corral-{user.uid}-1-0123abcd"
    inner = scratch / name
    inner.mkdir()
    link = scratch / "link"
    link.symlink_to("/tmp")
    real = pathlib.Path("/tmp") / name
    real.mkdir(mode=0o700)
    for path in (inner, real):
        os.chown(path, user.uid, user.uid)
    paths = [f"{inner}", f"{link}/{name}", f"/tmp/../tmp/{name}", f"/tmp//{name}", f"{real}/.", "/"]
    record(user, runs, *paths)
    assert sweep(user) == []
    assert inner.exists()
    record(user, runs, str(real))
    assert sweep(user) == [str(real)]  # the control


@pytest.fixture
def hierarchy(user):
    """A directory of the user's in the cgroup2 file system."""
    mounted = cgroup.mount()
    if mounted is None or os.geteuid():
        pytest.skip("no cgroup2 that this process may write to")
    top = pathlib.Path(mounted[0]) / f"leftovers-{os.getpid()}"
    made = [top, top / "corral", top / "corral" / "1-0123abcd", top / "other", top / "corral" / "x"]
    for path in made:
        path.mkdir()
        os.chown(path, user.uid, user.uid)
    yield top
    for path in reversed(made):
        if path.exists():
            path.rmdir()


def test_only_a_leaf_of_corrals_is_removed_from_the_cgroups(user, runs, scratch, hierarchy):
    leaf = hierarchy / "corral" / "1-0123abcd"
    link = scratch / "link"
    link.symlink_to(hierarchy)
    inside = scratch / "corral" / "1-0123abcd"
    inside.mkdir(parents=True)
    os.chown(inside, user.uid, user.uid)
    (inside / "cgroup.procs").touch()
    (inside / "cgroup.kill").touch()
    os.chown(inside / "cgroup.kill", user.uid, user.uid)
    paths = [hierarchy / "other", hierarchy / "corral" / "x", hierarchy / "corral", inside]
    paths += [link / "corral" / "1-0123abcd", hierarchy / "other" / ".." / "corral" / "1-0123abcd"]
    record(user, runs, *map(str, paths))
    assert sweep(user) == []
    assert (inside / "cgroup.kill").read_text() == ""
    assert leaf.exists()
    record(user, runs, str(leaf))
    assert sweep(user) == [str(leaf)]  # the control
