"""Test grants of directories that contain mounts. corral must hide or refuse mounts of the system,
and must refuse network mounts and mounts with secrets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

import rigs
from corral.paths import mounts
from corral.platforms.linux.mechanisms import user_ids
from corral.policy import grant_checks
from corral.policy.own_files import Protected
from corral.policy.path_grants import Refused, make_grant
from users import User

BOTH_TIERS = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
START = (
    'eval "$0" && user=$1 && shift && exec setpriv --reuid=$user --regid=$user --clear-groups "$@"'
)
SEEN = """
answer = {name: sorted(os.listdir(sys.argv[1] + "/" + name))[:3] for name in sys.argv[2:]}
"""
RUN = f"/run/corral-test-{os.getpid()}"  # the pid gives each pytest worker its own directory
SYSTEM = {
    "proc": "mount -t proc proc {}",
    "proc/deep": "mkdir -p {} && mount -t proc proc {}",
    "sys": "mount --rbind /sys {}",
    "dev": "mount --rbind /dev {}",
    "run": "mount --bind /run {}",
    "part of run": f"mkdir -p {RUN} && touch {RUN}/x && mount --bind {RUN} '{{}}'",
}
SECRET = {"etc": "mount --bind /etc {}", "homes": "mount --bind /home {}"}


class MountingUser(User):
    """A user in a new mount namespace. Root has run the commands of `mounts` there."""

    mounts = ":"

    def popen(self, argv, *, env=None, **options):
        prefix = ["unshare", "--mount", "sh", "-c", START, self.mounts, str(self.uid)]
        env = self.environment() if env is None else env
        return subprocess.Popen([*prefix, *argv], env=env, **{"cwd": self.home, **options})


@pytest.fixture
def mounting(user):
    rigs.need("mounts")
    yield MountingUser(user.name, user.uid, user.home, user.package, user.tier)
    shutil.rmtree(RUN, ignore_errors=True)


def make(user, scratch, name, command):
    point = scratch / "tree" / name
    point.mkdir(parents=True)
    for path in (scratch / "tree", *(scratch / "tree").rglob("*")):
        os.chown(path, user.owner, user.owner)
    user.mounts = command.format(point, point)
    return str(scratch / "tree")


@BOTH_TIERS
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("name", SYSTEM)
def test_system_mounts_inside_a_grant_are_hidden_or_refused(mounting, scratch, name, access):
    tree = make(mounting, scratch, name, SYSTEM[name])
    # Sanity check: outside the sandbox, the files of the mount are visible.
    assert mounting.outside(SEEN, tree, name)[name]
    flags = (f"--{access}", tree)
    if mounting.tier == "bare":
        done = mounting.run("/bin/true", flags=flags)
        assert done.returncode == 125
        assert b"is a mount of the system in a grant" in done.stderr
        return
    report = scratch / "report.json"
    done = mounting.inside(SEEN, tree, name, flags=(*flags, "--report", str(report)))
    assert done == {name: []}
    said = json.loads(report.read_text())
    assert f"{tree}/{name} is a mount of the system" in json.dumps(said)


@BOTH_TIERS
@pytest.mark.parametrize("access", ["read", "write"])
def test_another_mount_of_the_system_is_not_granted_by_its_name(mounting, scratch, access):
    """Grant a second mount of procfs at another path. corral must refuse this grant, although the
    mount's device number differs from that of /proc.
    """
    tree = make(mounting, scratch, "proc", SYSTEM["proc"])
    for path in (f"{tree}/proc", f"{tree}/proc/self", f"{tree}/proc/sys"):
        done = mounting.run("/bin/true", flags=(f"--{access}", path))
        assert done.returncode == 125
        assert b"belongs to the system" in done.stderr


@BOTH_TIERS
@pytest.mark.parametrize("name", SECRET)
def test_mounts_of_ungrantable_directories_are_refused(mounting, scratch, name):
    tree = make(mounting, scratch, name, SECRET[name])
    done = mounting.run("/bin/true", flags=("--read", tree))
    assert done.returncode == 125
    assert b"never granted as a whole" in done.stderr
    mounting.mounts = ":"
    # Sanity check: without the mount the grant works.
    assert mounting.run("/bin/true", flags=("--read", tree)).returncode == 0


def test_an_ordinary_mount_below_a_grant_is_shown(mounting, scratch):
    name = "data"
    tree = make(mounting, scratch, name, "mount -t tmpfs tmpfs {} && touch {}/file")
    if not mounting.uid:
        pytest.skip("root's grants are idmapped, which this file system may not support")
    assert mounting.inside(SEEN, tree, name, flags=("--read", tree)) == {name: ["file"]}


TARGET = user_ids.OUTSIDE_ROOT
LAYERED = (
    "cd '{0}' && mount -t tmpfs tmpfs . && cd '{0}' && mkdir -p lower/it upper work all && echo shown >lower/it/file && chown -R {1}:{1} lower "
    "&& chmod {2} lower/it && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all && cd /"
)


@pytest.mark.parametrize(
    ("access", "mode", "works"),
    [("read", "755", True), ("read", "700", False), ("write", "755", False)],
)
def test_grants_on_overlayfs_work_or_are_refused(mounting, scratch, access, mode, works):
    """Grant directories on overlayfs, which does not support idmapped mounts. Root's target runs as
    another user, so it can use only files there that are open to everyone.

    An ordinary user's target runs as that user and needs no idmapped mounts.
    """
    tree = make(mounting, scratch, "layers", ":")
    mounting.mounts = LAYERED.format(f"{tree}/layers", mounting.owner, mode)
    path = f"{tree}/layers/all/it"
    done = mounting.run("/bin/cat", f"{path}/file", flags=(f"--{access}", path))
    if works or mounting.uid:
        assert (done.returncode, done.stdout) == (0, b"shown\n"), done.stderr
        return
    assert done.returncode == 125
    text = done.stderr.decode()
    assert "overlay cannot map one user's files to another user, and uid" in text
    assert f"hint: `chown -R {TARGET}:{TARGET} {path}` gives them to the target, or grant" in text


KINDS = {
    "nfs4": "network", "cifs": "network", "9p": "network", "fuse.sshfs": "network", "fuse": "network", "autofs": "network",
    "ext4": "disk", "fuseblk": "disk", "tmpfs": "disk", "proc": "kernel", "cgroup2": "kernel", "devtmpfs": "kernel",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_network_and_system_file_systems_are_recognized(name):
    assert mounts._kind(name) == KINDS[name]


def test_a_network_mount_below_a_grant_is_named_or_refused(tmp_path):
    (tmp_path / "tree/far/deep").mkdir(parents=True)
    tree, far = str(tmp_path / "tree"), str(tmp_path / "tree/far")

    def check(*paths):
        grants = [make_grant("read", path) for path in paths]
        for grant in grants:
            grant_checks._check_mounts(
                grant, grants, "/nonexistent", [], {}, kinds={far: "network"}
            )

    for paths in ((tree,), (tree, far + "/deep")):
        with pytest.raises(Refused, match="network file system") as error:
            check(*paths)
        assert error.value.hint.endswith(f"--read {far}")
    check(tree, far)
    check(far)


def test_another_mount_of_corrals_own_files_below_a_grant_is_refused(tmp_path):
    (tmp_path / "tree/state").mkdir(parents=True)
    point = str(tmp_path / "tree/state")
    grant = make_grant("read", str(tmp_path / "tree"))
    own = [Protected(path="/elsewhere/state", what="corral's state", reads=True)]
    rest = ([grant], "/nonexistent", own)
    grant_checks._check_mounts(grant, *rest, {}, kinds={point: "disk"})
    table = {point: ("8:1", "/state"), "/elsewhere": ("8:1", "/")}
    with pytest.raises(Refused, match="corral's state"):
        grant_checks._check_mounts(grant, *rest, table, kinds={point: "disk"})
