"""Run corral on unusual file systems, which the tests really mount: without idmapped mounts, full,
over quota, or read-only.
"""

from __future__ import annotations

import json
import os
import re

import pytest

from file_system_trial import look
from file_systems import FILE_SYSTEMS, OWN, FileSystem, mounted

ON_HOST = [name for name, one in FILE_SYSTEMS.items() if not one.machine]
NO_IDMAPS = ("ramfs", "overlayfs")
FULL = "dd if=/dev/zero of=/mnt/fill bs=4k status=none || true"
SMALL = FileSystem("", "mount -t tmpfs -o size=200k,nr_inodes=60 tmpfs /mnt")
READ_ONLY = "mount -o remount,ro /mnt"
BOTH_TIERS = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)


@pytest.fixture(autouse=True)
def root():
    if os.geteuid():
        pytest.skip("only root can mount file systems")


@pytest.mark.rig("filesystems")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ON_HOST)
def test_corral_works_or_refuses_on_every_file_system(name):
    """Try every file system. corral may refuse only grants of root's directories, and only on a
    file system without idmapped mounts. Root's target has its own user id, so without such a mount
    it cannot use directories that are open only to root.
    """
    found = list(look(name))
    assert [one for one in found if one["result"] == "fails"] == []
    refused = [one for one in found if one["result"] == "refuses"]
    grants = [one for one in refused if one["place"] in ("read grant", "write grant")]
    assert refused == grants
    wanted = [("root", "walled")] * 2 if FILE_SYSTEMS[name].closed_to_root else []
    assert [(one["user"], one["tier"]) for one in grants] == wanted


@pytest.mark.parametrize("user", ["root"], indirect=True)
@pytest.mark.parametrize("name", NO_IDMAPS)
def test_root_gets_a_working_hint_where_mounts_cannot_be_idmapped(user, name):
    """Check that root's target can use files that its own user id may open. For other files, corral
    must refuse the grant, and the command in its hint must make the grant work.
    """
    with mounted(FILE_SYSTEMS[name]) as there:
        root = there.resident(user)
        there.shell("mkdir it && echo data >it/file && chmod 755 it . && chmod 644 it/file")
        run = ("/bin/sh", "-c", "read line </mnt/it/file && echo $line; echo new >/mnt/it/new")
        assert root.run(*run, flags=("--read", "/mnt/it")).stdout == b"data\n"
        done = root.run(*run, flags=("--write", "/mnt/it"))
        assert done.returncode == 125
        text = done.stderr.decode()
        assert "cannot map one user's files to another user" in text
        there.shell(re.search(r"hint: `(chown [^`]*)`", text)[1])
        done = root.run(*run, flags=("--write", "/mnt/it"))
        assert (done.returncode, done.stdout) == (0, b"data\n"), done.stderr
        assert there.shell("cat it/new") == "new\n"


@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_the_mount_that_cannot_be_idmapped_is_named(user):
    with mounted(FILE_SYSTEMS["tmpfs"]) as there:
        there.shell("mkdir -p it/inner && chmod 700 it && mount -t ramfs ramfs it/inner")
        done = there.resident(user).run("/bin/true", flags=("--read", "/mnt/it"))
        assert done.returncode == 125
        assert b"ramfs cannot map one user's files to another user in /mnt/it/inner" in done.stderr
        there.shell("umount it/inner")
        assert there.resident(user).run("/bin/true", flags=("--read", "/mnt/it")).returncode == 0


@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_roots_state_is_kept_where_mounts_cannot_be_idmapped(user):
    with mounted(FILE_SYSTEMS["overlayfs"]) as there:
        there.shell("mkdir -m 700 home")
        root = there.resident(user, home="/mnt/home")
        code = "import os; print(os.listdir('.')); open('kept', 'w').close()"
        argv = (root.python, "-c", f"import os; os.chdir(os.environ['HOME']); {code}")
        outputs = [root.run(*argv, flags=("--state",)).stdout for _ in range(2)]
        assert outputs == [b"[]\n", b"['kept']\n"]


def home_on(there, user):
    there.shell(f"mkdir -m 700 home && chown {user.uid}:{user.uid} home")
    return there.resident(user, home="/mnt/home")


def test_a_full_disk_is_reported_and_nothing_more_is_written(user):
    with mounted(SMALL) as there:
        person = home_on(there, user)
        there.shell(f"mkdir -p home/.cache home/.local/state; chown -R {user.uid} home; {FULL}")
        for _ in range(2):
            done = person.run("/bin/echo", "hi")
            assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
        assert there.shell("find home -type f") == ""
        done = person.run("/bin/true", flags=("--state",))
        assert done.returncode == 125
        assert b"state_directory: No space left on device (/mnt/home/" in done.stderr
        hint = re.search(r"hint: .*`(df [^`]*)`.* set XDG_STATE_HOME", done.stderr.decode())
        assert "100%" in there.shell(hint[1])
        assert there.shell("find home -type f") == ""
        there.shell("rm fill")
        # Sanity check: with free space the run works.
        assert person.run("/bin/true", flags=("--state",)).returncode == 0


def test_a_report_on_a_full_disk_is_empty_and_reported(user):
    with mounted(SMALL) as there:
        person = home_on(there, user)
        there.shell(FULL)
        done = person.run("/bin/echo", "hi", flags=("--report", "/mnt/home/report.json"))
        assert (done.returncode, done.stdout) == (0, b"hi\n")
        assert b"the report could not be written to /mnt/home/report.json: No space" in done.stderr
        assert there.shell("cat home/report.json") == ""
        there.shell("rm fill")
        person.run("/bin/echo", "hi", flags=("--report", "/mnt/home/report.json"))
        assert json.loads(there.shell("cat home/report.json"))["version"]


@BOTH_TIERS
def test_read_only_directories_are_named_with_a_hint(user):
    with mounted(SMALL) as there:
        person = home_on(there, user)
        there.shell(f"mkdir -m 1777 tmp && {READ_ONLY}")
        done = person.run("/bin/echo", "hi")
        assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
        done = person.run("/bin/true", flags=("--report", "/mnt/home/report.json"))
        assert done.returncode == 125
        assert b"cannot write the report to /mnt/home/report.json: Read-only" in done.stderr
        assert b"hint: make that file system writable (`findmnt -T /mnt/home`" in done.stderr
        if user.uid or user.tier == "walled":
            done = person.run("/bin/true", flags=("--state",))
            assert b"state_directory: Read-only file system (/mnt/home/.local)" in done.stderr
            env = person.environment(XDG_STATE_HOME=str(user.home / "state"))
            assert person.run("/bin/true", flags=("--state",), env=env).returncode == 0


@pytest.mark.rig("filesystems")
def test_a_reached_quota_is_named_with_its_directory(user):
    """Use up a quota. This test uses btrfs, because its quotas also apply to root."""
    limit = "btrfs quota enable /mnt && btrfs subvolume create home && btrfs qgroup limit 100k home"
    with mounted(FILE_SYSTEMS["btrfs"]) as there:
        there.shell(f"{limit} && chmod 700 home && chown {user.uid}:{user.uid} home")
        there.shell("head -c 300k /dev/zero >home/fill || true; sync")
        person = there.resident(user, home="/mnt/home")
        done = person.run("/bin/true", flags=("--state",))
        assert done.returncode == 125
        assert b"Disk quota exceeded (/mnt/home/" in done.stderr
        assert b"hint: remove files there, because your quota is used up" in done.stderr
        # Sanity check: a run without `--state` works
        assert person.run("/bin/true").returncode == 0


@pytest.mark.rig("filesystems")
def test_a_network_file_system_below_a_grant_is_named_or_refused(user):
    """Mount a FUSE file system below a grant. corral must refuse the grant, as with a network file
    system, because a program of any user may provide the files. With the flags in the hint, the
    target must be able to read them.
    """
    with mounted(FILE_SYSTEMS["tmpfs"]) as there:
        there.shell("mkdir -p it/far under && echo far >under/file && chmod -R a+rX .")
        there.shell("bindfs -o allow_other under it/far")
        run, person = ("/bin/cat", "/mnt/it/far/file"), there.resident(user)
        done = person.run(*run, flags=("--read", "/mnt/it"))
        assert done.returncode == 125
        assert b"contains the network file system '/mnt/it/far'" in done.stderr
        hint = re.search(r"hint: .*: (--read) (\S+)\n", done.stderr.decode())
        done = person.run(*run, flags=("--read", "/mnt/it", *hint.groups()))
        assert (done.returncode, done.stdout) == (0, b"far\n"), done.stderr
        there.shell("umount it/far")


@pytest.mark.rig("filesystems")
@BOTH_TIERS
def test_a_users_own_fuse_mount_is_closed_to_root(user):
    """Use a FUSE mount without `allow_other`. Only the user who mounted it, and that user's target,
    can use it.
    """
    with mounted(OWN) as there:
        make = "import os; os.mkdir('/mnt/it'); open('/mnt/it/file', 'w').write('data'); answer = 1"
        if user.uid:
            person = there.resident(user)
            assert person.outside(make) == 1
            write = "answer = open('/mnt/it/file').read(), open('/mnt/it/new', 'w').write('new')"
            assert person.inside(write, flags=("--write", "/mnt/it")) == ["data", 3]
            return
        done = there.resident(user).run("/bin/true", flags=("--read", "/mnt"))
        assert done.returncode == 125
        assert b"'/mnt' cannot be reached: Permission denied" in done.stderr
        assert b"hint: start corral as the user who may open it" in done.stderr


def test_a_grant_that_cannot_be_remembered_is_reported(user):
    """Fill the disk, so that corral cannot record the real path of a grant. corral must report
    this, because without the record the next run cannot notice that the granted path has become a
    symlink to another place.
    """
    with mounted(SMALL) as there:
        person = home_on(there, user)
        there.shell(
            f"mkdir -p home/.cache home/.local/state home/data; chown -R {user.uid} home; {FULL}"
        )
        said = b"the real paths of grants are not recorded: "
        done = person.run("/bin/echo", "hi", flags=("--read", "/mnt/home/data"))
        assert (done.returncode, done.stdout) == (0, b"hi\n"), done.stderr
        assert said in done.stderr
        there.shell("rm fill")
        done = person.run("/bin/echo", "hi", flags=("--read", "/mnt/home/data"))
        assert said not in done.stderr  # Sanity check: with free space nothing is reported
