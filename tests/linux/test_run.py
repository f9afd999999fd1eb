"""Test `corral run` with the default policy, as root and as an ordinary user."""

import json
import os
import subprocess

import pytest

from corral.platforms.linux.block_devices import disk_of


def test_python_runs(user):
    assert user.inside("answer = os.getuid()") not in (None, 0)


@pytest.mark.rig("node")
def test_node_runs(user):
    done = user.run("node", "-e", "console.log(6 * 7)")
    assert (done.returncode, done.stdout) == (0, b"42\n")


def test_the_target_reads_stdin_and_writes_stdout(user):
    done = user.run("cat", input=b"\x00\xffhello")
    assert (done.returncode, done.stdout) == (0, b"\x00\xffhello")


def test_the_target_has_the_callers_own_pipes(user):
    """Check that the target's streams are the caller's own pipes, with no process in between."""
    code = "import os; print(*(os.fstat(fd).st_ino for fd in (0, 1, 2)), flush=True); os.read(0, 1)"
    pipes = [os.pipe() for _ in range(3)]
    ends = pipes[0][0], pipes[1][1], pipes[2][1]
    expected = [os.fstat(fd).st_ino for fd in ends]
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(argv, stdin=ends[0], stdout=ends[1], stderr=ends[2])
    for fd in ends:
        os.close(fd)
    with open(pipes[1][0]) as said, open(pipes[2][0]):
        assert [int(word) for word in said.readline().split()] == expected
        os.close(pipes[0][1])
        assert process.wait(60) == 0


def test_the_exit_code_is_the_targets_own(user):
    assert user.run(user.python, "-c", "raise SystemExit(7)").returncode == 7


def test_a_signal_becomes_128_plus_its_number(user):
    assert user.run(user.python, "-c", "import os; os.kill(os.getpid(), 11)").returncode == 139


def policy(scratch, text):
    path = scratch / "policy.toml"
    path.write_text(f"version = 1\n{text}\n")
    path.chmod(0o644)
    return str(path)


MAP = """
import mmap
try:
    mmap.mmap(-1, 2 << 30).close()
    answer = "mapped"
except OSError as error:
    answer = error.strerror
"""


def test_an_address_space_limit_is_enforced(user, scratch):
    """Map shared memory, but do not use it. Only RLIMIT_AS limits such a mapping."""
    file = policy(scratch, '[limits]\naddress_space = "1G"')
    assert user.inside(MAP, flags=("--policy", file)) == "Cannot allocate memory"
    assert user.inside(MAP) == "mapped"


def test_an_io_rate_is_enforced_by_a_cgroup_or_refused(user, scratch):
    file = policy(scratch, '[limits]\nio = "50M"')
    done = user.run("true", flags=("--policy", file))
    findings = json.loads(user.corral("doctor", "--json").stdout)["findings"]
    proven = {item["capability"] for item in findings if item["status"] == "proven"}
    # corral limits the I/O rate of a disk. If the file system of /usr is not on a disk, corral
    # cannot enforce the limit, and has to refuse the run.
    held = "cgroup_io" in proven and bool(disk_of("/usr"))
    assert done.returncode == (0 if held else 125)
    assert held or b"cannot enforce io: " in done.stderr


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_relative_path_that_the_target_does_not_find_is_a_warning(user, scratch):
    """Start corral in a directory of which only a subdirectory is granted. The target then starts
    in another directory, so only the absolute path works.
    """
    place = scratch / "a b" / "project"
    place.mkdir(parents=True)
    for path in (place.parent, place):
        os.chown(path, user.owner, user.owner)
    (place / "file").write_text("found")

    def cat(word, *granted):
        flags = [part for path in granted for part in ("--read", str(path))]
        done = user.run("/bin/cat", word, flags=tuple(flags), cwd=place.parent)
        lines = done.stderr.decode().splitlines()
        return done.stdout, [line for line in lines if "does not find" in line]

    out, [warning] = cat("./project/file", place)
    assert out == b""
    assert warning.startswith("corral: warning: the server starts in ")
    assert warning.endswith(f" and does not find ./project/file there: write {place}/file")
    # Sanity check: the absolute path, which the warning suggests, works.
    assert cat(f"{place}/file", place) == (b"found", [])
    # Sanity check: if the directory in which corral is started is granted, the target starts there,
    # and the relative path works without a warning.
    assert cat("./project/file", place.parent) == (b"found", [])
    # Sanity check: there is no warning about a path that is not granted.
    assert cat("./project/file") == (b"", [])


def test_a_parent_that_ignores_sigchld_does_not_prevent_a_run(user):
    """Start corral with SIGCHLD ignored, as some daemons start their children. corral must restore
    the default action. Otherwise the kernel would discard the exit status of corral's children.
    """
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = user.corral_argv("run", "--", "/bin/echo", "done")
    done = user.popen(
        [user.python, "-c", ignore, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out) == (0, b"done\n"), err.decode()
