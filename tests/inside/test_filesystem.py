"""Check that the target can see and change only granted files of the host."""

from __future__ import annotations

import errno
import os
import pathlib
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest
from attempts import (
    BOTH_TIERS,
    by_tier,
    everywhere,
    give,
    give_directory,
    has_landlock,
    inside,
    launched,
    outside,
)

OPEN_SECRETS = """
def listed(path):
    return os.listdir(path)
answer = {path: tried(listed if os.path.isdir(path) else got, path) for path in sys.argv[1:]}
"""


def can_read(path):
    try:
        with open(path, "rb"):
            return True
    except PermissionError:
        return False


@pytest.fixture
def home(user):
    """Create typical secrets and a note in the user's home, and remove them afterwards."""
    import shutil

    made = {
        ".ssh/id_rsa": "key",
        ".ssh/authorized_keys": "keys",
        ".aws/credentials": "aws",
        ".config/gh/hosts.yml": "gh",
        ".mozilla/firefox/profile": "cookies",
        ".bashrc": "echo",
        ".netrc": "netrc",
        "notes/todo.txt": "notes",
    }
    for name, text in made.items():
        path = user.home / name
        give_directory(user, path.parent, 0o700)
        give(user, path, text, 0o600)
    yield user.home
    for name in sorted({name.split("/")[0] for name in made} - {".config"}):
        path = user.home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(user.home / ".config/gh")


SECRETS = (".ssh/id_rsa", ".ssh/authorized_keys", ".aws/credentials", ".config/gh/hosts.yml")
SECRETS += (".mozilla/firefox/profile", ".bashrc", ".netrc")


@BOTH_TIERS
def test_the_users_secrets_are_not_visible(user, home):
    paths = [str(home / name) for name in (*SECRETS, ".ssh", "notes", "notes/todo.txt")]
    assert outside(user, OPEN_SECRETS, *paths) == dict.fromkeys(paths, "done")
    for held in everywhere(user, OPEN_SECRETS, *paths):
        assert held == dict.fromkeys(paths, by_tier(user, "ENOENT", "EACCES"))


@BOTH_TIERS
def test_the_systems_secrets_are_not_visible(user):
    paths = [
        "/etc/shadow",
        "/etc/ssh",
        "/etc/sudoers",
        "/var/log",
        "/run",
        "/sys",
        "/boot",
        "/mnt",
    ]
    there = [path for path in paths if os.path.exists(path)]
    assert "/etc/shadow" in there
    assert "/sys" in there
    code = "answer = {path: tried(os.stat, path) for path in sys.argv[1:]}"
    assert outside(user, code, *there) == dict.fromkeys(there, "done")
    expected = dict.fromkeys(paths, "ENOENT")
    if user.tier == "bare":  # without namespaces the names are visible, but not the content
        code = OPEN_SECRETS
        expected.update(dict.fromkeys(there, "EACCES"))
        public = [path for path in there if path != "/etc/shadow" and os.access(path, os.R_OK)]
        assert outside(user, code, public[0]) == {public[0]: "done"}
    for held in everywhere(user, code, *paths):
        assert held == expected


def test_the_root_directory_shows_only_the_system_the_home_and_the_interpreter(user):
    """Check that only the system's directories, the target's home and the directories above its
    interpreter are visible.
    """
    code = "answer = [os.listdir(p) if os.path.exists(p) else [] for p in ('/', '/root', '/home')]"
    top, root, home = inside(user, code)
    ways = [os.path.realpath(path).split("/") for path in (sys.prefix, sys.base_prefix)]
    usual = {
        "home",
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "sbin",
        "tmp",
        "usr",
        "var",
    }
    assert set(top) - usual <= {way[1] for way in ways}
    assert set(root) <= {way[2] for way in ways if way[1] == "root"}
    assert set(home) <= {"user", *(way[2] for way in ways if way[1] == "home")}


def refused(user, path, *flags):
    """Check that corral refuses the grant in `flags`, and that the error contains `path`. This part
    of the grant must be hidden or protected, which Landlock cannot do without mounts.
    """
    done = user.run(user.python, "-c", "print('ran')", flags=flags)
    assert (done.returncode, done.stdout) == (125, b"")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("corral: without mount namespaces: ")
    assert path in first
    assert second.startswith("hint: grant a narrower directory")


SIZES = """
def opened(path):
    with open(path, "rb") as file:
        return len(file.read())
answer = {}
for path in sys.argv[1:]:
    try:
        answer[path] = opened(path)
    except OSError as error:
        answer[path] = errno.errorcode[error.errno]
"""


@BOTH_TIERS
def test_granting_the_home_is_refused_with_flags_for_its_parts(user, home):
    paths = [str(home / name) for name in (*SECRETS, "notes/todo.txt")]
    assert outside(user, SIZES, *paths) == {path: os.path.getsize(path) for path in paths}
    recorded = pwd.getpwuid(user.uid).pw_dir if not user.uid else str(home)
    for access in ("--read", "--write"):
        for path in ("~", str(home), str(home.parent), "/", "/home", recorded):
            done = user.run(user.python, "-c", "print('ran')", flags=(access, path))
            assert (done.returncode, done.stdout) == (125, b"")
            first, second = done.stderr.decode().splitlines()
            assert "a home directory, which is never granted as a whole" in first
            assert second.startswith("hint: ")
            assert not [name for name in SECRETS if name.split("/")[0] in second]
    done = user.run(user.python, "-c", "print('ran')", flags=("--read", "~"))
    flags = shlex.split(
        done.stderr.decode().splitlines()[1].removeprefix("hint: grant what is needed: ")
    )
    assert "~/notes" in flags
    missing = by_tier(user, "ENOENT", "EACCES")
    expected = dict.fromkeys(paths[:-1], missing) | {paths[-1]: 5}
    assert inside(user, SIZES, *paths, flags=tuple(flags)) == expected


@BOTH_TIERS
def test_granting_the_home_of_the_user_database_is_refused(user, scratch):
    """Check that corral also looks up the home in the user database, because HOME may be wrong:
    some containers set it to the root directory.
    """
    if user.uid:
        pytest.skip("the ordinary user of these tests is not in the user database")
    known = pwd.getpwuid(0).pw_dir
    for home in (str(scratch), "/", None):
        environment = user.environment(HOME=home or "")
        if home is None:
            del environment["HOME"]
        done = user.run("/bin/true", flags=("--read", known), env=environment)
        assert done.returncode == 125
        verb = "contains" if home and home.startswith(f"{known}/") else "is"
        assert f"{verb} a home directory".encode() in done.stderr


@BOTH_TIERS
def test_granting_etc_is_refused_and_certificates_can_be_granted(user):
    names = [
        name
        for name in ("/etc", "/etc/shadow", "/etc/ssh", "/etc/ssl/private")
        if os.path.exists(name)
    ]
    for name in names:
        for access in ("--read", "--write"):
            done = user.run(user.python, "-c", "print('ran')", flags=(access, name))
            assert (done.returncode, done.stdout) == (125, b""), name
    done = user.run("/bin/true", flags=("--read", "/etc/ssl/certs"))
    assert done.returncode == 0, done.stderr


@BOTH_TIERS
def test_secrets_in_a_readable_part_of_the_home_are_hidden(user, home):
    secret = str(home / ".config/gh/hosts.yml")
    config = give(user, home / ".config/app.toml", "plain", 0o600)
    paths = (secret, str(config))
    try:
        assert outside(user, SIZES, *paths) == {secret: 2, str(config): 5}
        if user.tier == "bare":
            refused(user, str(home / ".config/gh"), "--read", str(home / ".config"))
        else:
            held = inside(user, SIZES, *paths, flags=("--read", str(home / ".config")))
            assert held == {secret: "ENOENT", str(config): 5}
        # Sanity check: a grant of the secret's own path works.
        assert inside(user, SIZES, secret, flags=("--read", secret)) == {secret: 2}
    finally:
        os.unlink(config)


@BOTH_TIERS
def test_self_starting_files_in_a_write_grant_cannot_be_changed(user, scratch):
    """Check that the target cannot change files that git, an editor, a client or direnv run without
    asking the user, and cannot rename the directories around them.
    """
    files = (".git/hooks/pre-commit", ".git/config", ".vscode/tasks.json", ".mcp.json", ".envrc")
    for name in files:
        give_directory(user, (scratch / name).parent)
        give(user, scratch / name, "before")
    give(user, scratch / "source.py", "before")
    code = """
os.chdir(sys.argv[1])
answer = {name: {
    "write": tried(put, name),
    "append": tried(lambda: os.close(os.open(name, os.O_WRONLY | os.O_APPEND))),
    "truncate": tried(os.truncate, name, 0),
    "unlink": tried(os.unlink, name),
    "rename": tried(os.rename, name, "elsewhere"),
    "replace": tried(lambda: [put("fresh"), os.rename("fresh", name)]),
    "chmod": tried(os.chmod, name, 0o777),
} for name in sys.argv[2:]}
answer["parents"] = {name: tried(os.rename, name, name + "-moved") for name in (".git", ".git/hooks", ".vscode")}
answer["new hook"] = tried(put, ".git/hooks/post-checkout")
answer["source.py"] = tried(put, "source.py")
"""
    if user.tier == "bare":
        refused(user, f"{scratch}/.git ", "--write", str(scratch))
        assert {name: (scratch / name).read_text() for name in files} == dict.fromkeys(
            files, "before"
        )
        return
    held = inside(user, code, str(scratch), *files, flags=("--write", str(scratch)))
    assert held.pop("source.py") == "done"
    assert held.pop("new hook") == "EROFS"
    assert held.pop("parents") == {".git": "EBUSY", ".git/hooks": "EROFS", ".vscode": "EBUSY"}
    for name, seen in held.items():
        assert set(seen.values()) <= {"EROFS", "EBUSY", "EXDEV"}, (name, seen)
    assert {name: (scratch / name).read_text() for name in files} == dict.fromkeys(files, "before")
    assert (scratch / "source.py").read_text() == "x"
    free = outside(user, code, str(scratch), *files)
    assert {seen for act in (*files, "parents") for seen in free[act].values()} == {
        "done",
        "ENOENT",
    }


@BOTH_TIERS
def test_missing_protected_files_are_reported(user, scratch):
    """Let the target create protected files that did not exist at the start. corral protects a file
    with a mount, which needs an existing file. It must report the new files instead.
    """
    report = user.home / "report.json"
    names = (".git/hooks/x", ".vscode/tasks.json", ".mcp.json", ".envrc")
    code = """
import os, sys
os.chdir(sys.argv[1])
for name in sys.argv[2:]:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write("planted")
"""
    flags = ("--write", str(scratch), "--report", str(report))
    done = user.run(user.python, "-c", code, str(scratch), *names, flags=flags)
    created = [name for name in names if (scratch / name).exists()]
    said = done.stderr.decode() + report.read_text()
    report.unlink()
    silent = [name for name in created if str(scratch / name.split("/")[0]) not in said]
    assert silent == []


@BOTH_TIERS
def test_masks_are_enforced_in_write_grants_inside_home(user, home):
    """Check that the target sees an empty file in place of a secret. It must not be able to rename,
    link or remove this file.
    """
    project = user.home / "project"
    give_directory(user, project / "deploy")
    give(user, project / ".env", "TOKEN=1", 0o600)
    code = """
os.chdir(sys.argv[1])
def content(path):
    try:
        return got(path)
    except OSError as error:
        return errno.errorcode[error.errno]
answer = [content(".env"), tried(os.rename, ".env", "env"), tried(os.link, ".env", "env"), tried(os.unlink, ".env")]
"""
    try:
        if user.tier == "bare":
            refused(user, str(project / ".env"), "--write", str(project))
            return
        held = inside(user, code, str(project), flags=("--write", str(project)))
        assert held == ["", "EBUSY", "EXDEV", "EBUSY"]
        assert (project / ".env").read_text() == "TOKEN=1"
        assert outside(user, code, str(project))[:2] == ["TOKEN=1", "done"]
    finally:
        import shutil

        shutil.rmtree(project)


WRITES = """
answer = {path: {
    "make": tried(lambda: os.mkdir(path + "/corral-attempt")),
    "create": tried(lambda: put(path + "/corral-attempt-file")),
    "chmod": tried(os.chmod, path, 0o777),
    "utime": tried(os.utime, path),
    "xattr": tried(os.setxattr, path, "user.corral", b"x"),
} for path in sys.argv[1:]}
"""


@BOTH_TIERS
def test_the_system_cannot_be_written(user):
    paths = ["/", "/usr", "/usr/bin", "/etc", "/usr/lib", "/proc", "/var"]
    for held in everywhere(user, WRITES, *paths):
        made, changed, attribute = by_tier(
            user, ("EROFS", "EROFS", "EROFS"), ("EACCES", "EPERM", "ENOTSUP")
        )
        usual = {
            "make": made,
            "create": made,
            **dict.fromkeys(("chmod", "utime"), changed),
            "xattr": attribute,
        }
        # In /proc the error is different, because no process can ever create a file there.
        kernel = {**usual, "make": "ENOENT", "create": "ENOENT"}
        assert held == {path: kernel if path == "/proc" else usual for path in paths}
    own = inside(user, "sys.argv.append(os.environ['TMPDIR'])" + WRITES)
    (own,) = own.values()
    assert (own["make"], own["create"]) == ("done", "done")
    assert (own["chmod"], own["utime"]) == ("done", "done")


@BOTH_TIERS
def test_kernel_settings_cannot_be_written(user):
    paths = (
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
        "/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
        "/proc/self/oom_score_adj", "/proc/self/uid_map", "/proc/self/setgroups", "/proc/self/comm",
        "/proc/self/timerslack_ns", "/proc/self/coredump_filter", "/proc/self/attr/current",
    )  # fmt: skip
    code = "answer = {path: tried(os.open, path, os.O_WRONLY) for path in sys.argv[1:]}"
    paths = tuple(path for path in paths if os.path.exists(path))
    # Opening files outside /proc/self fails with EACCES, because the kernel checks their modes
    # first.
    own = by_tier(user, "EROFS", "EACCES")
    expected = {path: own if "/self/" in path else "EACCES" for path in paths}
    for held in everywhere(user, code, *paths):
        assert held == expected
    free = outside(user, code, *paths)
    assert free["/proc/self/oom_score_adj"] == free["/proc/self/comm"] == "done"
    if user.uid == 0:
        assert free["/proc/sys/kernel/core_pattern"] == "done"


@BOTH_TIERS
def test_kernel_memory_and_logs_cannot_be_opened(user):
    paths = ("/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/proc/slabinfo", "/proc/vmallocinfo")
    paths = tuple(path for path in paths if os.path.exists(path))
    code = "answer = {path: tried(os.open, path, os.O_RDONLY | os.O_NONBLOCK) for path in sys.argv[1:]}"
    held = inside(user, code, *paths)
    assert set(held.values()) <= {"EACCES", "EPERM"}, held
    if user.uid == 0:
        assert outside(user, code, *paths) == dict.fromkeys(paths, "done")


def test_only_harmless_devices_exist(user):
    code = """
import stat
answer = [sorted(os.listdir("/dev")), sorted(n for n in os.listdir("/dev") if stat.S_ISBLK(os.stat("/dev/" + n).st_mode)),
          tried(lambda: open("/dev/null", "w").write("x")), len(open("/dev/urandom", "rb").read(8)),
          tried(lambda: os.mknod("/tmp/sda", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))]
"""
    names, blocks, null, random, made = inside(user, code)
    allowed = {
        "fd",
        "full",
        "null",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "urandom",
        "zero",
    }
    assert set(names) <= allowed
    assert (blocks, null, random, made) == ([], "done", 8, "EPERM")


@pytest.fixture
def elsewhere(user):
    """Create a directory that the user owns, outside the sandbox's private directories."""
    if not os.access("/opt", os.W_OK):
        pytest.skip("no place outside of /tmp can be written")
    path = pathlib.Path(tempfile.mkdtemp(dir="/opt", prefix="corral-tests-"))
    os.chown(path, user.owner, user.owner)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@BOTH_TIERS
def test_landlock_protects_named_pipes_in_a_read_grant(user, scratch, elsewhere):
    """Check that Landlock stops the target from writing to a named pipe in a read grant. A
    read-only mount alone does not stop this.

    With namespaces there is an exception: if the grant is below a directory that the sandbox makes
    private, such as /tmp, Landlock allows writing to the pipe. `scratch` is such a grant.
    """
    kind = subprocess.run(["stat", "-f", "-c", "%T", elsewhere], capture_output=True, check=True)
    if kind.stdout == b"overlayfs\n" and user.uid == 0 and user.tier == "walled":
        pytest.skip("overlayfs cannot give root's files to another user")
    code = """
answer = [tried(lambda: os.write(os.open(f"{path}/pipe", os.O_WRONLY | os.O_NONBLOCK), b"x")) for path in sys.argv[1:]]
"""
    places = [scratch, elsewhere]
    readers = []
    for place in places:
        os.mkfifo(place / "pipe")
        os.chown(place / "pipe", user.owner, user.owner)
        readers.append(os.open(place / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    words = list(map(str, places))
    reads = [word for place in words for word in ("--read", place)]
    assert inside(user, code, *words, flags=reads) == by_tier(
        user, ["done", "EACCES"], ["EACCES", "EACCES"]
    )
    writes = [word for place in words for word in ("--write", place)]
    assert inside(user, code, *words, flags=writes) == ["done", "done"]
    for reader in readers:
        os.close(reader)


@BOTH_TIERS
def test_a_read_grant_is_read_only(user, scratch):
    give(user, scratch / "file", "before")
    give_directory(user, scratch / "below")
    code = """
os.chdir(sys.argv[1])
answer = {
    "read": tried(got, "file"), "list": tried(os.listdir, "."),
    "write": tried(put, "file"), "append": tried(lambda: open("file", "a")), "create": tried(put, "fresh"),
    "make": tried(os.mkdir, "fresh"), "unlink": tried(os.unlink, "file"), "truncate": tried(os.truncate, "file", 0),
    "rename": tried(os.rename, "file", "other"), "link": tried(os.link, "file", "other"),
    "symlink": tried(os.symlink, "file", "other"), "chmod": tried(os.chmod, "file", 0o600),
    "utime": tried(os.utime, "file"), "xattr": tried(os.setxattr, "file", "user.x", b"x"),
    "rmdir": tried(os.rmdir, "below"), "mkfifo": tried(os.mkfifo, "pipe"),
}
"""
    for held in everywhere(user, code, str(scratch), flags=("--read", str(scratch))):
        assert (held.pop("read"), held.pop("list")) == ("done", "done")
        filtered = {"chmod": "EPERM", "utime": "EPERM", "xattr": "ENOTSUP"}
        assert held == by_tier(
            user,
            dict.fromkeys(held, "EROFS"),
            {name: filtered.get(name, "EACCES") for name in held},
        )
    assert sorted(os.listdir(scratch)) == ["below", "file"]
    written = inside(user, code, str(scratch), flags=("--write", str(scratch)))
    failed = {name: said for name, said in written.items() if said != "done"}
    # Some acts fail because of earlier ones: `create` has made `fresh`, and `unlink` has removed
    # `file`. ENOTSUP means that the file system has no extended attributes.
    allowed = {"ENOENT", "EEXIST", "ENOTSUP"}
    assert set(failed.values()) <= by_tier(user, allowed, allowed | {"EPERM"})
    assert written["write"] == written["create"] == written["unlink"] == "done"


@BOTH_TIERS
def test_a_write_grant_belongs_to_the_user(user, scratch):
    """Check that the target owns the files that it creates in a write grant, and can move a file to
    another directory there. The first version of Landlock denies such a move, but `shutil.move` can
    still copy the file.
    """
    code = """
import shutil
os.chdir(sys.argv[1])
put("made", "by the target")
os.mkdir("directory")
put("directory/inner")
moved = tried(os.rename, "made", "directory/made")
if moved == "EXDEV":
    shutil.move("made", "directory/made")
answer = [moved, os.stat("directory").st_uid == os.getuid(), sorted(os.listdir("directory"))]
"""
    assert inside(user, code, str(scratch), flags=("--write", str(scratch))) == [
        "EXDEV" if has_landlock() and not has_landlock(2) else "done",
        True,
        ["inner", "made"],
    ]
    made = scratch / "directory/made"
    assert made.read_text() == "by the target"
    assert (made.stat().st_uid, made.stat().st_gid) == (user.owner, user.owner)
    assert (scratch / "directory").stat().st_uid == user.owner


@BOTH_TIERS
def test_a_write_grant_of_one_file_opens_only_that_file(user, scratch):
    give(user, scratch / "one", "before")
    give(user, scratch / "two", "before", 0o600)
    code = "os.chdir('/')\nanswer = [tried(put, sys.argv[1]), tried(got, sys.argv[2]), tried(os.unlink, sys.argv[1])]"
    words = (str(scratch / "one"), str(scratch / "two"))
    *held, removed = inside(user, code, *words, flags=("--write", words[0]))
    assert held == ["done", by_tier(user, "ENOENT", "EACCES")]
    # Removing the granted file fails with EBUSY, because the file is a mount. Outside the private
    # /tmp it fails with EROFS, because the file's directory is read-only.
    assert removed in by_tier(user, {"EBUSY", "EROFS"}, {"EACCES"})
    assert (scratch / "one").read_text() == "x"


@BOTH_TIERS
def test_a_target_cannot_make_a_setuid_file_in_a_write_grant(user, scratch):
    """Check that the target cannot make a setuid file in a write grant. The file would belong to
    the user or to root, so every process that runs it would get the rights of this owner.
    """
    code = """
import shutil
os.chdir(sys.argv[1])
put("shell")
answer = {
    "chmod": tried(os.chmod, "shell", 0o4755),
    "fchmod": tried(lambda: os.fchmod(os.open("shell", os.O_RDONLY), 0o6755)),
    "create": tried(lambda: os.open("created", os.O_CREAT | os.O_WRONLY, 0o4755)),
    "mknod": tried(lambda: os.mknod("node", 0o104755)),
    "plain": tried(os.chmod, "shell", 0o755),
}
os.mkdir("kept")
put("kept/shell")
tried(os.chmod, "kept/shell", 0o4755)
"""
    give_directory(user, scratch / "free")
    free = outside(user, code, str(scratch / "free"))
    assert free == dict.fromkeys(free, "done")
    assert (scratch / "free/kept/shell").stat().st_mode & stat.S_ISUID
    give_directory(user, scratch / "held")
    held = inside(user, code, str(scratch / "held"), flags=("--write", str(scratch / "held")))
    found = [path for path in (scratch / "held").rglob("*") if path.stat().st_mode & 0o6000]
    assert found == []
    assert held == {**dict.fromkeys(held, "EPERM"), "plain": "done"}


@BOTH_TIERS
def test_links_do_not_lead_out_of_a_grant(user, scratch, home):
    """Check that a symlink is resolved inside the sandbox, whether it was planted before the run or
    during it.
    """
    key = home / ".ssh/id_rsa"
    work = scratch / "work"
    give_directory(user, work)
    targets = {
        "key": str(key),
        "shadow": "/etc/shadow",
        "up": "../secret",
        "root": "/proc/self/root/etc/shadow",
        "parent": "..",
    }
    give(user, scratch / "secret", "secret", 0o600)
    for name, target in targets.items():
        os.symlink(target, work / name)
    code = """
os.chdir(sys.argv[1])
targets = json.loads(sys.argv[2])
for name, target in targets.items():
    os.symlink(target, "own-" + name)
names = [prefix + name for name in targets for prefix in ("", "own-")]
def reached(name):
    return os.listdir(name) if name.endswith("parent") else got(name)
answer = {name: tried(reached, name) for name in names}
answer["parent/secret"] = tried(got, "parent/secret")
answer["write"] = tried(put, "key")
answer["listed"] = sorted(os.listdir("parent")) if answer["parent"] == "done" else []
"""
    import json

    words = (str(work), json.dumps(targets))
    held = inside(user, code, *words, flags=("--write", str(work)))
    # With namespaces, the directories above the grant are visible, but their other entries are not.
    assert held.pop("listed") == by_tier(user, ["work"], [])
    assert held.pop("parent") == held.pop("own-parent") == by_tier(user, "done", "EACCES")
    assert held == dict.fromkeys(held, by_tier(user, "ENOENT", "EACCES"))
    assert key.read_text() == "key"
    for name in targets:
        os.unlink(work / f"own-{name}")
    free = outside(user, code, *words)
    # If a virtual machine shares the host's files, its root can read only what the user who runs
    # the machine can read.
    expected = "done" if user.uid == 0 and can_read("/etc/shadow") else "EACCES"
    assert (free["key"], free["up"], free["parent/secret"]) == ("done", "done", "done")
    assert free["shadow"] == expected


@BOTH_TIERS
def test_ungranted_files_cannot_be_hard_linked(user, scratch):
    """Try to hard-link an ungranted file and a file in a read grant into a write grant. With
    namespaces, the ungranted file is not visible, and the two grants are separate mounts, between
    which the kernel makes no links. Without namespaces, Landlock denies both links.
    """
    give_directory(user, scratch / "read")
    give_directory(user, scratch / "work")
    give(user, scratch / "read/file", "before")
    give(user, scratch / "secret", "secret", 0o600)
    code = """
os.chdir(sys.argv[1])
def by_descriptor():
    fd = os.open("../read/file", os.O_RDONLY)
    os.link(f"/proc/self/fd/{fd}", "work/linked", follow_symlinks=True)
answer = [
    tried(os.link, "secret", "work/secret"),
    tried(os.link, "read/file", "work/file"),
    tried(os.rename, "read/file", "work/file"),
    tried(os.link, "/usr/bin/env", "work/env"),
    tried(os.link, "work/own", "work/again") if put("work/own") is None else "",
]
"""
    flags = ("--read", str(scratch / "read"), "--write", str(scratch / "work"))
    held = inside(user, code, str(scratch), flags=flags)
    # EPERM comes from the kernel's own rule for hard links: the target does not own /usr/bin/env.
    assert held.pop(3) in by_tier(user, {"EXDEV"}, {"EPERM", "EXDEV"})
    assert held == by_tier(
        user, ["ENOENT", "EXDEV", "EXDEV", "done"], ["EXDEV", "EXDEV", "EACCES", "done"]
    )
    for name in ("own", "again"):
        os.unlink(scratch / "work" / name)
    free = outside(user, code, str(scratch))
    assert (free[0], free[1]) == ("done", "done")


@BOTH_TIERS
def test_a_read_grant_in_a_write_grant_stays_read_only(user, scratch):
    """Check that the target cannot rename the read grant's parent, since it could then put other
    files at the same path.
    """
    give_directory(user, scratch / "work/middle/kept")
    give(user, scratch / "work/middle/kept/file", "before")
    code = """
os.chdir(sys.argv[1])
answer = [
    tried(put, "middle/kept/file"),
    tried(os.rename, "middle/kept", "elsewhere"),
    tried(os.rename, "middle", "nowhere"),
]
if answer[2] == "done":
    os.makedirs("middle/kept")
    put("middle/kept/file", "forged")
"""
    work = str(scratch / "work")
    flags = ("--write", work, "--read", f"{work}/middle/kept")
    if user.tier == "bare":
        refused(user, f"{work}/middle/kept cannot be read-only", *flags)
        return
    held = inside(user, code, work, flags=flags)
    assert (scratch / "work/middle/kept/file").read_text() == "before"
    # `middle` is a separate mount. So renaming something out of it fails with EXDEV, and renaming
    # `middle` itself fails with EBUSY.
    assert held == ["EROFS", "EXDEV", "EBUSY"]
    assert outside(user, code, work) == ["done", "done", "done"]


@BOTH_TIERS
@pytest.mark.parametrize("how", ["kept", "link", "directory", "empty", "parent"])
def test_a_grant_that_was_replaced_before_the_start_is_refused(user, scratch, how):
    """Between plan and start, replace the granted directory with another directory, or with a
    symlink to another directory, or replace its parent with a symlink. Corral must not start the
    target.
    """
    give_directory(user, scratch / "secrets")
    give(user, scratch / "secrets/key", "key", 0o600)
    code = """
base, how = sys.argv[1:]
granted = f"{base}/middle/granted"
os.makedirs(granted)
os.chmod(granted, 0o777)
plan = planned([sys.executable, "-c", f"import os; os.listdir({granted!r})"], filesystem__write=[granted])
if how == "parent":
    os.rename(f"{base}/middle", f"{base}/away")
    os.symlink("away", f"{base}/middle")
elif how != "kept":
    os.rename(granted, f"{base}/away")
if how == "link":
    os.symlink(f"{base}/secrets", granted)
elif how == "directory":
    os.rename(f"{base}/secrets", granted)
elif how == "empty":
    os.mkdir(granted)
answer = started(plan)
"""
    said = launched(user, code, str(scratch), how)
    # Without mounts a Landlock rule applies to the directory itself, so renaming its parent changes
    # nothing.
    if how == "kept" or (how == "parent" and user.tier == "bare"):
        assert said == 0
    else:
        assert isinstance(said, str), said
        words = os.strerror(errno.ELOOP) if how == "parent" else "no longer the file"
        assert words in said


@BOTH_TIERS
def test_program_files_that_were_replaced_before_the_start_are_refused(user, scratch):
    """Replace the program's own files between plan and start. Corral must not start the target."""
    code = """
base, how = sys.argv[1:]
os.mkdir(f"{base}/server")
open(f"{base}/server/main.py", "w").write("import sys; sys.exit(3)")
plan = planned([sys.executable, f"{base}/server/main.py"])
if how == "swapped":
    os.rename(f"{base}/server", f"{base}/away")
    os.mkdir(f"{base}/server")
    open(f"{base}/server/main.py", "w").write("import sys; sys.exit(4)")
answer = started(plan)
"""
    give_directory(user, scratch / "one")
    give_directory(user, scratch / "two")
    assert launched(user, code, str(scratch / "one"), "kept") == 3
    assert isinstance(launched(user, code, str(scratch / "two"), "swapped"), str)


def test_home_and_tmp_are_private(user, scratch):
    give(user, scratch / "of the host", "x")
    mark = f"/tmp/corral-mark-{os.getpid()}"
    give(user, mark, "x")
    code = """
home = os.environ["HOME"]
places = [home, "/tmp", "/var/tmp", "/dev/shm"]
answer = [os.listdir(place) for place in places]
for place in places:
    put(place + "/corral-left", "x" * 1000)
answer.append([os.path.getsize(place + "/corral-left") for place in places])
answer.append(tried(got, sys.argv[1]))
"""
    try:
        assert outside(user, "answer = tried(got, sys.argv[1])", mark) == "done"
        held = inside(user, code, mark)
    finally:
        os.unlink(mark)
    # If the interpreter is in /tmp, the directories above the interpreter are visible there.
    python = pathlib.Path(user.python)
    ways = {python.parts[2]} if python.is_relative_to("/tmp") else set()
    assert [held[0], set(held[1]), *held[2:4]] == [[], ways, [], []]
    assert held[4:] == [[1000] * 4, "ENOENT"]
    for place in (user.home, "/tmp", "/var/tmp", "/dev/shm"):
        assert not os.path.exists(f"{place}/corral-left")


def test_parallel_runs_do_not_see_each_others_private_files(user):
    """Check that each run has its own private directories, even though their paths are the same."""
    look = "[sorted(os.listdir(place)) for place in (os.environ['HOME'], '/var/tmp', '/dev/shm')]"
    code = f"import os, sys\nfor place in (os.environ['HOME'], '/var/tmp', '/dev/shm'): open(place + '/left', 'w')\nprint({look}, flush=True)\nsys.stdin.read()"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"[['left'], ['left'], ['left']]\n"
        assert inside(user, f"answer = {look}") == [[], [], []]
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_private_files_of_a_run_are_gone_in_the_next(user):
    code = "answer = os.path.exists('/tmp/left')\nput('/tmp/left')"
    assert [inside(user, code) for _ in range(2)] == [False, False]
