"""Let a target without namespaces change modes and times, both where it may write and everywhere
else.

Landlock does not control the system calls that change modes and times. Therefore the supervisor
makes these calls on the target's behalf, if the file is in a place where the target may write. As a
sanity check, most tests of a denial also make the same call where it must succeed: on a file that
the target may change, or outside the sandbox.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time

import pytest
from attempts import give, give_directory, inside, outside

from corral.platforms.linux.file_changes import BURST_SECONDS

BARE = pytest.mark.parametrize("tier", ["bare"], indirect=True)

ACTS = """
import shutil
top, = sys.argv[1:2] or [os.environ[os.environ["PLACE"]]]
os.chdir(top)
put("file")
os.mkdir("below")
os.symlink("file", "link")
os.symlink(top + "/file", "whole")
there = os.open(".", os.O_RDONLY)
fd = os.open("file", os.O_RDONLY)
by_path = os.open("file", os.O_PATH)
def mode(act, *arguments, **options):
    os.chmod("file", 0o600)
    said = tried(lambda: act(*arguments, 0o641, **options))
    return said, os.stat("file").st_mode & 0o777 == 0o641
def times(act, *arguments, name="file", **options):
    os.utime("file", (1, 1))
    said = tried(lambda: act(*arguments, (5, 7.25), **options))
    seen = os.lstat(name)
    return said, (seen.st_atime, seen.st_mtime) == (5, 7.25)
def now():
    os.utime("file", (1, 1))
    said = tried(os.utime, "file")
    return said, os.stat("file").st_mtime > 1e9
def copied():
    os.utime("file", (3, 3))
    os.chmod("file", 0o710)
    said = tried(shutil.copy2, "file", "copy")
    return said, (os.stat("copy").st_mode & 0o777, os.stat("copy").st_mtime) == (0o710, 3)
answer = {
    "chmod": mode(os.chmod, "file"),
    "chmod of a whole path": mode(os.chmod, top + "/file"),
    "chmod of a link": mode(os.chmod, "link"),
    "chmod of a link with a whole path": mode(os.chmod, "whole"),
    "chmod with ..": mode(os.chmod, "below/../file"),
    "chmod with dir_fd": mode(os.chmod, "file", dir_fd=there),
    "chmod from below": mode(lambda wanted: (os.chdir("below"), os.chmod("../file", wanted), os.chdir(".."))),
    "chmod by /proc": mode(os.chmod, f"/proc/self/fd/{by_path}"),
    "fchmod": mode(os.fchmod, fd),
    "utime": times(os.utime, "file"),
    "utime of a descriptor": times(os.utime, fd),
    "utime with dir_fd": times(os.utime, "file", dir_fd=there),
    "utime of a link": times(os.utime, "link"),
    "utime of the link itself": times(os.utime, "link", follow_symlinks=False, name="link"),
    "utime of now": now(),
    "copy2": copied(),
    "directory": (tried(os.chmod, "below", 0o700), os.stat("below").st_mode & 0o777 == 0o700),
    "the place itself": (tried(os.chmod, top, 0o750), os.stat(".").st_mode & 0o777 == 0o750),
}
errors = {
    "set-id": tried(os.chmod, "file", 0o4755),
    "set-gid": tried(os.fchmod, fd, 0o2755),
    "missing": tried(os.chmod, "missing", 0o600),
    "below a file": tried(os.chmod, "file/below", 0o600),
    "O_PATH": tried(os.fchmod, by_path, 0o600),
    "closed": tried(os.fchmod, 999, 0o600),
    "too long": tried(os.chmod, "x" * 5000, 0o600),
    "a long name": tried(os.chmod, "x" * 300, 0o600),
}
answer = [answer, errors]
"""
ERRORS = {
    "set-id": "EPERM",
    "set-gid": "EPERM",
    "missing": "ENOENT",
    "below a file": "ENOTDIR",
    "O_PATH": "EBADF",
    "closed": "EBADF",
    "too long": "ENAMETOOLONG",
    "a long name": "ENAMETOOLONG",
}


def check_all_done(found):
    acts, errors = found
    assert acts == {key: ["done", True] for key in acts}
    assert errors == ERRORS


@BARE
@pytest.mark.parametrize("place", ["HOME", "TMPDIR", "grant"])
def test_modes_and_times_can_be_changed_in_writable_places(user, scratch, place):
    if place != "grant":
        check_all_done(inside(user, ACTS, flags=("--env", f"PLACE={place}")))
        return
    give_directory(user, scratch / "held")
    flags = ("--write", str(scratch / "held"))
    check_all_done(inside(user, ACTS, str(scratch / "held"), flags=flags))
    give_directory(user, scratch / "free")
    acts, errors = outside(user, ACTS, str(scratch / "free"))
    assert acts == {key: ["done", True] for key in acts}
    assert errors == {**ERRORS, "set-id": "done", "set-gid": "done"}


OUTSIDE = """
import threading
inner, victim = sys.argv[1:]
os.chdir(inner)
os.symlink(victim, "planted")
os.symlink(os.path.relpath(victim, inner), "relative")
os.symlink("/proc/self/fd/50", "magic")
fd = os.open(victim, os.O_RDONLY)
os.dup2(fd, 50)
by_path = os.open(victim, os.O_PATH)
above = os.open(os.path.dirname(victim), os.O_PATH)
name = os.path.basename(victim)
def both(path, **options):
    return tried(lambda: os.chmod(path, 0o777, **options)), tried(lambda: os.utime(path, (0, 0), **options))
answer = {
    "path": both(victim),
    "relative": both(os.path.relpath(victim, inner)),
    "dots": both(f"{inner}/../{name}"),
    "link": both("planted"),
    "relative link": both("relative"),
    "magic link": both("magic"),
    "descriptor": both(fd),
    "dir_fd": both(name, dir_fd=above),
    "O_PATH": both(f"/proc/self/fd/{by_path}"),
    "own descriptor": both(f"/proc/self/fd/{fd}"),
    "root": both("/proc/self/root" + victim),
    "cwd": both(f"/proc/self/cwd/../{name}"),
    "fchmodat2": (tried(lambda: raw(452, -100, victim.encode(), 0o777, 0)),) * 2,
    "empty path": (tried(lambda: raw(452, by_path, b"", 0o777, 0x1000)),) * 2,
}
os.close(by_path)
"""


@BARE
@pytest.mark.parametrize("flags", [(), ("--allow-subprocess",)], ids=["alone", "subprocess"])
def test_modes_and_times_outside_cannot_be_changed(user, scratch, flags):
    """Try to change a file that the target owns and may read, but that is outside the write grant."""
    give_directory(user, scratch / "inner")
    victim = give(user, scratch / "victim", "kept", 0o644)
    os.utime(victim, (10, 10))
    words = (str(scratch / "inner"), victim)
    flags = ("--write", words[0], "--read", victim, *flags)
    held = inside(user, OUTSIDE, *words, flags=flags)
    assert held == {key: ["EPERM", "EPERM"] for key in held}
    seen = os.stat(victim)
    assert (stat.S_IMODE(seen.st_mode), seen.st_mtime) == (0o644, 10)
    for name in ("planted", "relative", "magic"):
        os.unlink(scratch / "inner" / name)
    free = outside(user, OUTSIDE, *words)
    assert free["path"] == free["link"] == free["descriptor"] == free["O_PATH"] == ["done", "done"]
    seen = os.stat(victim)
    assert (stat.S_IMODE(seen.st_mode), seen.st_mtime) == (0o777, 0)


RACE = """
import threading
inner, victim, how = sys.argv[1:]
os.chdir(inner)
put("file")
os.symlink("file", "good")
os.symlink(victim, "bad")
os.symlink("file", "swapped")
os.mkdir("directory")
put("directory/" + os.path.basename(victim))
os.symlink("directory", "way")
os.symlink(os.path.dirname(victim), "out")
ended, path = False, ctypes.create_string_buffer(b"file", 4096)
def swap():
    while not ended:
        if how == "memory":
            path.value = victim.encode()
            path.value = b"file"
        elif how == "link":
            call("renameat2", -100, b"swapped", -100, b"bad", 2)
        else:
            call("renameat2", -100, b"way", -100, b"out", 2)
threads = [threading.Thread(target=swap) for _ in range(2)]
for one in threads:
    one.start()
answer = {}
name = f"way/{os.path.basename(victim)}".encode()
asked = {"memory": path, "link": b"swapped", "directory": name}[how]
number = 0
while number < 400 or not {"done", "EPERM"} <= set(answer):
    number += 1
    said = tried(lambda: raw(CHMOD, -100, asked, 0o777 if number % 2 else 0o700))
    answer[said] = answer.get(said, 0) + 1
ended = True
for one in threads:
    one.join()
"""


@BARE
@pytest.mark.parametrize("how", ["memory", "link", "directory"])
def test_a_race_never_changes_a_file_outside(user, scratch, how):
    """Let one thread of the target change the mode of the file at a path, while two other threads
    keep replacing a part of the path: a symlink, a directory, or the path's text in the target's
    memory. A file outside the grant must never change.
    """
    from corral.abi.linux_syscalls import TABLES

    give_directory(user, scratch / "inner")
    give_directory(user, scratch / "outer")
    victim = give(user, scratch / "outer/victim", "kept", 0o644)
    flags = ("--write", str(scratch / "inner"), "--read", victim)
    code = RACE.replace("CHMOD", str(TABLES[os.uname().machine]["fchmodat"]))
    said = inside(user, code, str(scratch / "inner"), victim, how, flags=flags)
    # If the supervisor reads the path from memory while a thread overwrites it, the supervisor may
    # get a mixture of both paths, which names no file.
    torn = {"ENOENT", "ENOTDIR"} if how == "memory" else set()
    assert {"done", "EPERM"} <= set(said) <= {"done", "EPERM", *torn}, said
    assert stat.S_IMODE(os.stat(victim).st_mode) == 0o644


@BARE
def test_modes_of_pipes_devices_and_deleted_files_cannot_be_changed(user, scratch):
    give_directory(user, scratch)
    code = """
os.chdir(sys.argv[1])
os.mkfifo("pipe")
end = os.pipe()[0]
memory = os.memfd_create("memory")
gone = os.open("gone", os.O_CREAT | os.O_RDWR)
os.unlink("gone")
put("gone (deleted)")
os.link("gone (deleted)", "linked")
answer = {
    "fifo": tried(os.chmod, "pipe", 0o777), "pipe": tried(os.fchmod, end, 0o777),
    "memory": tried(os.fchmod, memory, 0o777), "removed": tried(os.fchmod, gone, 0o777),
    "tty": tried(os.chmod, "/dev/null", 0o777), "proc": tried(os.chmod, "/proc/self/comm", 0o777),
    "file": tried(os.chmod, "linked", 0o700),
}
"""
    held = inside(user, code, str(scratch), flags=("--write", str(scratch)))
    assert held.pop("file") == "done"
    assert held == dict.fromkeys(held, "EPERM")
    assert stat.S_IMODE(os.stat(scratch / "gone (deleted)").st_mode) == 0o700


@BARE
def test_only_the_owner_may_change_a_file(user, scratch):
    """Try to change the mode and times of another user's file in a write grant. The kernel forbids
    this. As a sanity check, do the same to the user's own file.
    """
    give_directory(user, scratch)
    other = scratch / "other"
    other.write_text("kept")
    other.chmod(0o664)
    owner = user.owner
    code = "answer = [tried(os.chmod, sys.argv[1], 0o777), tried(os.utime, sys.argv[1], (0, 0)), tried(os.utime, sys.argv[1])]"
    if os.geteuid() == 0:
        os.chown(other, 0, 0)
        flags = ("--write", str(scratch))
        assert inside(user, code, str(other), flags=flags) == ["EPERM", "EPERM", "EACCES"]
        assert stat.S_IMODE(other.stat().st_mode) == 0o664
        os.chown(other, owner, owner)
    assert inside(user, code, str(other), flags=("--write", str(scratch))) == ["done"] * 3


@BARE
def test_files_of_a_directory_that_replaced_a_granted_one_are_not_changed(user, scratch):
    """Replace the granted directory on the host during the run. The target must not change files in
    the new directory.
    """
    give_directory(user, scratch / "it")
    give(user, scratch / "it/file")
    code = """
fd = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
sys.stdin.readline()
said = [tried(os.chmod, sys.argv[1] + "/file", 0o700), tried(lambda: os.chmod("file", 0o700, dir_fd=fd))]
print(said, flush=True)
"""
    from attempts import PRELUDE

    argv = user.corral_argv(
        *("run", "--write", str(scratch / "it"), "--", user.python, "-c"),
        f"import os, sys\n{PRELUDE}{code}",
        str(scratch / "it"),
    )
    pipe = subprocess.PIPE
    process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout.readline() == b"ready\n"
    os.rename(scratch / "it", scratch / "moved")
    give_directory(user, scratch / "it")
    give(user, scratch / "it/file")
    out, err = process.communicate(b"\n", timeout=60)
    assert out == b"['EPERM', 'done']\n", err
    assert stat.S_IMODE(os.stat(scratch / "it/file").st_mode) == 0o644
    assert stat.S_IMODE(os.stat(scratch / "moved/file").st_mode) == 0o700


@pytest.mark.parametrize("tier", ["listened"], indirect=True)
def test_without_a_listener_all_changes_are_denied(user, scratch):
    give_directory(user, scratch)
    give(user, scratch / "file")
    code = """
os.chdir(sys.argv[1])
fd = os.open("file", os.O_RDWR)
answer = [tried(os.chmod, "file", 0o700), tried(os.fchmod, fd, 0o700), tried(os.utime, "file", (0, 0)), tried(put, "file")]
"""
    held = inside(user, code, str(scratch), flags=("--write", str(scratch)))
    assert held == ["EPERM", "EPERM", "EPERM", "done"]
    assert outside(user, code, str(scratch)) == ["done"] * 4


@BARE
def test_a_change_that_has_to_wait_does_not_delay_the_timeout(user, scratch):
    """Check that corral ends the run in time, even though the kernel delays a change while other
    threads write to the file.
    """
    give_directory(user, scratch)
    code = """
import threading, time
fd = os.open(sys.argv[1] + "/file", os.O_CREAT | os.O_WRONLY)
data = bytearray(256 << 20)
def write():
    while True:
        os.pwrite(fd, data, 0)
for _ in range(3):
    threading.Thread(target=write, daemon=True).start()
while True:
    os.chmod(sys.argv[1] + "/file", 0o600)
"""
    from attempts import PRELUDE

    flags = ("--write", str(scratch), "--timeout", "3s", "--max-memory", "2G")
    source = f"import os, sys\n{PRELUDE}{code}"
    done = user.run(user.python, "-c", source, str(scratch), flags=flags)
    assert done.returncode == 124, done.stderr
    assert b"timeout" in done.stderr


@BARE
def test_a_flood_of_changes_is_slowed_down(user, scratch):
    """Let a target change a mode in an endless loop. The supervisor makes the first changes, a
    burst, at full speed. After that it must use less than a tenth of a processor: 0.2 seconds in 2
    seconds.
    """
    give_directory(user, scratch)
    code = (
        "import os, sys\nopen(sys.argv[1], 'w').close()\nwhile True: os.chmod(sys.argv[1], 0o600)"
    )
    argv = user.corral_argv(
        *("run", "--write", str(scratch), "--", user.python, "-c", code, str(scratch / "file"))
    )
    process = user.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    used = 1.0
    while used > 0.2 or used_time(process.pid) < BURST_SECONDS:
        before = used_time(process.pid)
        time.sleep(2)
        used = used_time(process.pid) - before
    process.terminate()
    process.communicate(timeout=60)


def used_time(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@BARE
def test_learning_changes_no_modes_outside_of_write_grants(user, scratch):
    """Check that a target under `corral learn` cannot change modes outside its write grants. While
    learning, the supervisor lets the kernel carry out most of the calls that it watches. But it
    must still make changes of modes and times itself, and only in write grants.
    """
    give_directory(user, scratch / "inner")
    victim = give(user, scratch / "victim", "kept", 0o644)
    code = "import os, sys\nos.chdir(sys.argv[1]); open('file', 'w').close(); os.chmod('file', 0o700)\n"
    code += "try: os.chmod(sys.argv[2], 0o777)\nexcept PermissionError: print('denied')"
    flags = ("--write", str(scratch / "inner"), "--read", victim)
    words = (user.python, "-c", code, str(scratch / "inner"), victim)
    done = user.corral("learn", *flags, "--", *words)
    assert b"denied" in done.stdout, done.stderr
    assert stat.S_IMODE(os.stat(victim).st_mode) == 0o644
    assert stat.S_IMODE(os.stat(scratch / "inner/file").st_mode) == 0o700


@BARE
@pytest.mark.parametrize("mode", [0, 0o500])
def test_a_private_home_is_removed_even_if_the_target_took_away_its_permissions(user, mode):
    """Let the target remove the permissions of its home and of the directories in it. Check that
    corral still leaves nothing behind in /tmp.
    """
    code = """
home = os.environ["HOME"]
os.makedirs(home + "/a/b")
put(home + "/a/b/file")
for path in (home + "/a/b", home + "/a", os.environ["TMPDIR"], home):
    os.chmod(path, MODE)
answer = [os.path.dirname(home), tried(os.chmod, os.path.dirname(home), 0o777)]
"""
    work, top = inside(user, code.replace("MODE", str(mode)))
    assert top == "EPERM"
    assert not os.path.lexists(work)


@BARE
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
@pytest.mark.parametrize("mode", [0, 0o400, 0o500])
def test_a_server_that_closes_its_kept_home_starts_again(user, mode):
    """Let a server remove the permissions of the home that it keeps between runs. The next run must
    still find the files in this home.
    """
    code = f"""
home = os.environ["HOME"]
answer = [os.path.exists(home + "/file"), home]
if not answer[0]:
    put(home + "/file")
os.chmod(home, {mode})
"""
    first, home = inside(user, code, flags=("--state",))
    assert stat.S_IMODE(os.stat(home).st_mode) == mode
    assert (first, inside(user, code, flags=("--state",))) == (False, [True, home])
    removed = user.corral("cache", "rm-home", home)
    assert removed.returncode == 0, removed.stderr
    assert not os.path.lexists(home)


@BARE
@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_an_unreadable_directory_in_a_write_grant_is_reported_with_the_chmod_command(user, scratch):
    """Let a target make a directory in its write grant unreadable. corral then refuses every run
    with this grant. The error must name the directory and a `chmod` command that makes it readable.
    """
    work = give_directory(user, scratch / "work")
    flags = ("--write", str(work))
    inside(
        user, f"os.mkdir('{work}/closed')\nos.chmod('{work}/closed', 0)\nanswer = 1", flags=flags
    )
    refused = user.run("/bin/true", flags=flags)
    assert refused.returncode == 125
    assert f"hint: make it readable first: chmod u+rx {work}/closed".encode() in refused.stderr
    os.chmod(f"{work}/closed", 0o700)
    assert user.run("/bin/true", flags=flags).returncode == 0


@BARE
def test_git_clones_into_a_write_grant(user, scratch):
    import rigs

    rigs.need("git")
    give_directory(user, scratch / "work")
    git, identity = "/usr/bin/git", ["-c", "user.name=a", "-c", "user.email=a@good.test"]
    tree = scratch / "tree"
    subprocess.run([git, "init", "-q", tree], check=True)
    for number in range(20):
        (tree / f"file{number}").write_text("content\n")
        (tree / f"file{number}").chmod(0o755 if number % 2 else 0o644)
    subprocess.run([git, "-C", tree, "add", "."], check=True)
    subprocess.run([git, "-C", tree, *identity, "commit", "-qm", "one"], check=True)
    bundle = scratch / "one.bundle"
    subprocess.run([git, "-C", tree, "bundle", "create", "-q", bundle, "HEAD"], check=True)
    bundle.chmod(0o644)
    flags = ("--read", str(bundle), "--write", str(scratch / "work"), "--allow-subprocess")
    words = (git, "clone", "-q", str(bundle), str(scratch / "work/clone"))
    done = user.run(*words, flags=(*flags, "--env", "GIT_CONFIG_NOSYSTEM=1"))
    assert done.returncode == 0, done.stderr
    made = scratch / "work/clone"
    assert (made / "file0").read_text() == "content\n"
    assert made.joinpath("file1").stat().st_mode & 0o100
    assert not made.joinpath("file0").stat().st_mode & 0o100
