"""Leave hostile files in a run's private directory. Later starts must not hang, follow symlinks in
this directory, or remove files outside it.

The tests kill corral with SIGKILL, as an impatient client does. The private directory is then left
over, and the next start or `corral clean` finds it.
"""

from __future__ import annotations

import errno
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
    for name in os.listdir(path):  # remove the run records that the test has left here
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
    """Start a run and kill corral. Return the run's private directory, and the results of what the
    target tried to do there.
    """
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
    done = user.corral("clean", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(user, runs, *residue: str) -> None:
    path = runs / "planted"
    path.write_text("\n".join(("1", "0", "1700000000", str(len(residue)), *residue, "/bin/true")))
    os.chown(path, user.uid, user.uid)


def test_a_target_cannot_write_to_the_top_of_its_private_directory(user, runs, victim):
    left, did = killed_run(user, victim)
    walls = {name: did.pop(name) for name in ("procs", "kill", "directory", "away")}
    assert set(walls.values()) == {"PermissionError"}
    # Sanity check: the target can write in the directories inside its private directory.
    assert did == {"between": "done", "home": "done", "tmp": "done"}
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


@pytest.mark.parametrize("broom", ["clean", "run"])
@pytest.mark.parametrize(
    "shape", [link_to_victim, both_links, hard_links, pipe, sockets, linked_home]
)
def test_a_leftover_that_looks_like_a_cgroup_is_only_removed(user, runs, victim, shape, broom):
    left, _ = killed_run(user, victim)
    shape(pathlib.Path(left), victim)
    if broom == "clean":
        assert sweep(user) == [left]
    else:
        assert user.run("/bin/true").returncode == 0
    assert not os.path.lexists(left)
    assert victim.exists()
    assert os.listdir(runs) == []


def test_a_huge_leftover_does_not_delay_a_start(user, runs, victim):
    left, _ = killed_run(user, victim)
    many_files(pathlib.Path(left), victim)
    assert user.run("/bin/true").returncode == 0
    there = len(os.listdir(f"{left}/tmp"))
    assert 0 < there < 30_000  # one start must remove only some of the files
    assert sweep(user) == [left]
    assert os.listdir(runs) == []


def test_a_leftover_that_became_a_link_is_not_followed(user, runs, victim):
    left, _ = killed_run(user, victim)
    shutil.rmtree(left)
    os.symlink(victim.parent, left)
    assert sweep(user) == []
    assert victim.exists()
    os.unlink(left)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_a_leftover_of_another_user_is_not_touched(user, runs, victim):
    left, _ = killed_run(user, victim)
    os.chown(left, 12345, 12345)
    assert sweep(user) == []
    assert os.path.exists(f"{left}/home/cgroup.kill")
    os.chown(left, user.uid, user.uid)
    assert sweep(user) == [left]  # Sanity check: corral removes a leftover that the user owns


MOVE = """
import json, os, sys
grant, home = sys.argv[1], os.environ["HOME"]
def tried(*words):
    try:
        os.rename(*words)
    except OSError as error:
        return type(error).__name__, error.errno
    return "done", 0
os.mkdir(f"{home}/made")
print(json.dumps({
    "into the private directory": tried(f"{grant}/theirs", f"{home}/theirs")[1],
    "within the grant": tried(f"{grant}/other", f"{grant}/theirs/other")[0],
    "within the private directory": tried(f"{home}/made", f"{os.path.dirname(home)}/tmp/made")[0],
    "a file": tried(f"{grant}/file", f"{home}/file")[0],
}))
"""


def test_directories_are_not_moved_out_of_a_grant_to_be_removed(user):
    """Let the target try to move a directory from a write grant into the run's private directory.
    corral removes the private directory at the end of the run, and would also remove files that the
    target cannot remove itself.
    """
    # The kernel refuses a move between two file systems, with EXDEV. So the grant is in /tmp, where
    # the private directories are. An EXDEV below then comes from corral's walls.
    grant = pathlib.Path(f"/tmp/moved-{os.getpid()}")
    for path in (grant, grant / "theirs", grant / "other"):
        path.mkdir()
        os.chown(path, user.owner, user.owner)
    (grant / "file").touch()
    try:
        done = user.run(user.python, "-c", MOVE, str(grant), flags=("--write", str(grant)))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "into the private directory": errno.EXDEV,
            "within the grant": "done",
            "within the private directory": "done",
            "a file": "done",
        }
        assert (grant / "theirs").is_dir()
    finally:
        shutil.rmtree(grant)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_mount_in_a_leftover_is_not_removed(user, runs, victim, scratch):
    """Mount a directory in the private directory of a killed run. corral must not remove the files
    in the mount.
    """
    left, _ = killed_run(user, victim)
    place, content = pathlib.Path(left) / "home/moved/mount", scratch / "content"
    for path in (place, content):
        path.mkdir(parents=True)
        os.chown(path, user.owner, user.owner)
    os.chown(place.parent, user.owner, user.owner)
    os.link(victim, content / "kept")
    subprocess.run(["mount", "--bind", content, place], check=True)
    try:
        assert sweep(user) == []
        assert (content / "kept").exists()
        assert content.stat().st_mode & 0o777 == 0o755
    finally:
        mounted = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        [found] = [line.split()[1] for line in mounted if line.split()[1].startswith(left)]
        subprocess.run(["umount", found], check=True)
    assert sweep(user) == [left]  # Sanity check: without the mount the leftover is removed
    assert (content / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root's directory")
def test_a_directory_of_root_that_a_target_moved_into_its_home_is_not_emptied(user, runs, victim):
    """Put a directory into the private directory of a killed run, as if the target had moved it
    there. For root's target, another user owns this directory, so the target could not have emptied
    it, and corral must not empty it either.
    """
    left, _ = killed_run(user, victim)
    moved = pathlib.Path(left) / "home/moved"
    moved.mkdir()
    os.link(victim, moved / "kept")
    os.chown(moved, 12345, 12345)
    if user.uid == 0:
        assert sweep(user) == []
        assert (moved / "kept").exists()
        os.chown(moved, user.owner, user.owner)
    else:
        moved.chmod(0o500)
        os.chown(moved, user.owner, user.owner)
    assert sweep(user) == [left]  # Sanity check: `moved` belongs to the target, so it is removed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can use another user's home")
@pytest.mark.parametrize("linked", ["corral", "corral/runs"])
def test_records_in_another_users_cache_are_not_swept(user, scratch, linked):
    """Run `corral clean` as root with another user's home. In this home the directory of run
    records is a symlink to root's files. corral must not remove these files.
    """
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
    user.corral("clean", env=env)
    assert sorted(str(path.relative_to(valuable)) for path in valuable.rglob("*")) == [
        "passwd", "runs", "runs/passwd",
    ]  # fmt: skip


def test_leftovers_are_removed_only_from_the_temporary_directory(user, runs, scratch, victim):
    """Write a run record with paths that corral never records: paths through a symlink, with dots,
    or outside the temporary directory. corral must not remove anything at these paths.
    """
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
    assert sweep(user) == [str(real)]  # Sanity check: corral removes a path as it records them


@pytest.fixture
def hierarchy(user):
    """Create cgroups that belong to the user, and yield the uppermost one."""
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


def test_only_corrals_own_cgroups_are_removed(user, runs, scratch, hierarchy):
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
    assert sweep(user) == [str(leaf)]  # Sanity check: corral removes a cgroup as it names them
