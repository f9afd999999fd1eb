"""Attack what corral reads before the target starts: environment, PATH, symlinks, manifests and its
own files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from attempts import BOTH_TIERS, by_tier, everywhere, give, give_directory, inside, outside

HOSTILE = {
    "LD_PRELOAD": "/nowhere/evil.so",
    "LD_LIBRARY_PATH": "/nowhere",
    "NODE_OPTIONS": "--no-warnings",
    "PYTHONPATH": "/nowhere",
    "PYTHONSTARTUP": "/nowhere/start.py",
    "GIT_DIR": "/nowhere",
    "GIT_SSH_COMMAND": "evil",
    "AWS_SECRET_ACCESS_KEY": "of the caller",
    "SSH_AUTH_SOCK": "/nowhere/agent",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere",
    "BASH_ENV": "/nowhere/env",
}


@BOTH_TIERS
def test_the_callers_environment_is_not_passed_on(user):
    code = "answer = dict(os.environ)"
    env = user.environment(**HOSTILE)
    assert set(outside(user, code, env=env)) >= set(HOSTILE)
    own = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LC_CTYPE"}
    for held in everywhere(user, code, env=env):
        assert set(held) - own == set()
        assert "of the caller" not in json.dumps(held)
    passed = inside(
        user, code, env=env, flags=("--env", "AWS_SECRET_ACCESS_KEY", "--env", "MODE=1")
    )
    assert (passed["AWS_SECRET_ACCESS_KEY"], passed["MODE"]) == ("of the caller", "1")
    assert set(passed) - own == {"AWS_SECRET_ACCESS_KEY", "MODE"}


def command_lines():
    """Return every command line that any user of this machine can read."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                found.append(file.read())
        except (FileNotFoundError, ProcessLookupError):
            pass  # the process has ended in the meantime
    return b"\n".join(found)


@BOTH_TIERS
def test_secrets_are_passed_and_not_shown(user, scratch):
    value, plain = f"s3cret-{os.getpid()}", f"plain-{os.getpid()}"
    report = scratch / "report.json"
    env = user.environment(TOKEN=value)
    words = ("--secret", "TOKEN", "--env", f"MARK={plain}")
    code = "import os, sys; print(os.environ['TOKEN'][::-1], flush=True); sys.stdin.read()"
    command = ("--", user.python, "-c", code)
    argv = user.corral_argv("run", *words, "--report", str(report), *command)
    pipe = subprocess.PIPE
    process = user.popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    inner = process.stdout.readline().decode().strip()[::-1]
    lines = command_lines()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert inner == value
    assert plain.encode() in lines  # sanity check: a plain word on a command line is found
    explained = user.corral("explain", *words, *command, env=env)
    assert explained.returncode == 0
    told = (lines, err, report.read_bytes(), explained.stdout, explained.stderr)
    assert [value.encode() in text for text in told] == [False] * 5
    assert b"TOKEN" in explained.stdout  # corral names the variable, but never its value


def test_a_missing_secret_is_refused(user):
    done = user.run(user.python, "-c", "print('ran')", flags=("--secret", "ABSENT_TOKEN"))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"ABSENT_TOKEN" in done.stderr


@BOTH_TIERS
@pytest.mark.parametrize("entries", [".", "", "bin"])
def test_relative_entries_of_path_are_not_searched(user, scratch, entries):
    """Start corral with relative entries in PATH, from a directory that contains a malicious
    python3. corral must start the system's python3 instead.
    """
    for place in (scratch, scratch / "bin"):
        give_directory(user, place)
        give(user, place / "evilname", "#!/bin/sh\necho evil\n", 0o755)
        give(user, place / "python3", "#!/bin/sh\necho evil\n", 0o755)
    env = user.environment(PATH=f"{entries}:/usr/bin:/bin")
    process = user.popen(["/bin/sh", "-c", "python3"], env=env, cwd=scratch, stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"evil\n"
    flags = ("--read", str(scratch), "--allow-subprocess")
    done = user.run("python3", "-c", "print('good')", env=env, cwd=scratch, flags=flags)
    assert (done.returncode, done.stdout) == (0, b"good\n")
    done = user.run("evilname", env=env, cwd=scratch, flags=flags)
    assert (done.returncode, done.stdout) == (127, b"")


@BOTH_TIERS
def test_a_replaced_command_does_not_open_its_new_directory(user, scratch):
    """Let the first run replace its own virtual environment with one that points to a private
    directory. The second run has the same command. corral must not make the private directory
    visible to it.
    """
    private, work = scratch / "private", scratch / "work"
    give_directory(user, private / "bin")
    give(user, private / "key", "key", 0o600)
    shutil.copy(os.path.realpath("/usr/bin/python3"), private / "bin/python3")
    give_directory(user, work / "project/venv/bin")
    real = os.path.realpath("/usr/bin/python3")
    config = f"home = {os.path.dirname(real)}\ninclude-system-site-packages = false\n"
    give(user, work / "project/venv/pyvenv.cfg", config)
    os.symlink(real, work / "project/venv/bin/python3")
    first = """
import os, sys
work, private = sys.argv[1:]
try:
    os.rename(f"{work}/project", f"{work}/away")
    os.makedirs(f"{work}/project/venv/bin")
except OSError as error:
    print(error.errno)
with open(f"{work}/project/venv/pyvenv.cfg", "w") as file:
    file.write(f"home = {private}/bin\\n")
os.symlink(f"{private}/bin/python3", f"{work}/project/venv/bin/python3")
"""
    python = str(work / "project/venv/bin/python3")
    flags = ("--write", str(work))
    words = (str(work), str(private))
    one = user.run(python, "-c", first, *words, flags=flags)
    second = "import os, sys; print(os.path.isdir(sys.argv[1]))"
    two = user.run(python, "-c", second, str(private), flags=flags)
    ends = [(done.returncode, done.stdout) for done in (one, two)]
    # With mounts, the first target cannot rename the directory: it prints 16, which is EBUSY.
    # Without mounts both runs are refused, because Landlock cannot protect the directory.
    assert ends == by_tier(user, [(1, b"16\n"), (0, b"False\n")], [(125, b"")] * 2)
    # Sanity check: with `--read` the directory is visible.
    said = inside(
        user, "answer = got(sys.argv[1])", str(private / "key"), flags=("--read", str(private))
    )
    assert said == "key"


BROKEN = {
    "unknown key": '[limits]\nmemroy = "1G"\n',
    "unknown table": "[limit]\npids = 1\n",
    "negative": "[limits]\npids = -1\n",
    "zero": "[limits]\nfds = 0\n",
    "huge": f"[limits]\nmemory = {10**40}\n",
    "huge text": '[limits]\nmemory = "99999999999999999999T"\n',
    "wrong type": "[subprocess]\nallow = 1\n",
    "nul in a path": '[filesystem]\nread = ["/tmp/\\u0000x"]\n',
    "raw nul": "[limits]\npids = 1\0\n",
    "not text": "\udcff\udcfe[limits]",
    "nesting": "a = " + "[" * (1 << 19) + "]" * (1 << 19) + "\n",
    "version": "version = 2\n",
    "everything": '[filesystem]\nread = ["/"]\n',
    "the kernel": '[filesystem]\nread = ["/proc"]\n',
    "name of a variable": '[environment]\nset = { "A=B" = "x" }\n',
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_policies_are_refused(user, scratch, name):
    path = scratch / "policy.toml"
    text = BROKEN[name] if name == "version" else f"version = 1\n{BROKEN[name]}"
    path.write_bytes(text.encode(errors="surrogateescape"))
    os.chown(path, user.owner, user.owner)
    done = user.run(user.python, "-c", "print('ran')", flags=("--policy", str(path)))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"Traceback" not in done.stderr
    assert 1 <= done.stderr.count(b"\n") <= 6


def test_a_valid_policy_is_followed(user, scratch):
    """Run with a valid policy, as the sanity check for the tests with broken ones."""
    path = give(user, scratch / "policy.toml", "version = 1\n[limits]\nfds = 99\n")
    code = "import resource\nanswer = resource.getrlimit(resource.RLIMIT_NOFILE)"
    assert inside(user, code, flags=("--policy", path)) == [99, 99]


def test_no_policy_is_picked_up_from_the_working_directory(user, scratch):
    text = "version = 1\n[subprocess]\nallow = true\n"
    for name in ("corral.toml", ".corral.toml"):
        give(user, scratch / name, text)
    give(user, scratch / "corral.json", '{"version": 1, "subprocess": {"allow": true}}')
    code = "answer = tried(lambda: os.waitpid(os.fork() or os._exit(0), 0))"
    assert inside(user, code, cwd=scratch) == "EPERM"
    flags = ("--policy", str(scratch / "corral.toml"))
    assert inside(user, code, cwd=scratch, flags=flags) == "done"


def refused(user, *flags):
    done = user.run(user.python, "-c", "print('ran')", flags=flags)
    assert b"Traceback" not in done.stderr
    assert (done.returncode == 125) == (done.stdout == b"")
    return done.returncode == 125


@BOTH_TIERS
def test_write_grants_of_corrals_own_files_are_refused(user, scratch):
    package = user.package / "corral"
    link = scratch / "link"
    link.symlink_to(user.package)
    prefix = os.path.dirname(os.path.dirname(user.python))
    interpreter = os.path.realpath(user.python)
    for path in (
        package,
        user.package,
        package / "cli",
        user.package.parent,
        link,
        prefix,
        interpreter,
    ):
        assert refused(user, "--write", str(path)), path
    assert refused(user, "--write", "/")
    assert refused(user, "--write", str(user.home))
    assert not refused(user, "--write", str(scratch))
    assert not refused(user, "--read", str(package))


@BOTH_TIERS
def test_a_write_grant_around_private_directories_of_runs_is_refused(user, scratch):
    # The test's own home is in /tmp, so corral would already refuse a grant of /tmp because of this
    # home. Therefore HOME is a path outside /tmp, which even root cannot create.
    env = user.environment(HOME="/proc/home")
    done = user.run("/bin/true", flags=("--write", "/tmp"), env=env)
    assert done.returncode == 125
    assert b"contains private directories of runs ('/tmp/corral-')" in done.stderr
    assert b"hint: grant another directory, or a smaller one" in done.stderr
    assert not refused(user, "--write", str(scratch))  # sanity check


MOUNTED = (
    'mount --bind "$0" "$1" && user=$2 && shift 2 && '
    'exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"'
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a directory at a second path")
def test_another_mount_of_corrals_own_files_is_refused(user, scratch):
    """Grant another mount of corral's directory. corral must refuse this grant. The mount has
    another path, so only the inode shows that the directory is corral's.
    """
    assert user.run("/bin/true").returncode == 0
    alias = scratch / "alias"
    give_directory(user, alias)
    give_directory(user, scratch / "plain")

    def granted(source, flag):
        command = (flag, str(alias), "--", "/bin/echo", "ran")
        argv = ["unshare", "--mount", "sh", "-c", MOUNTED, str(source), str(alias), str(user.uid)]
        argv += user.corral_argv("run", *command)
        env = user.environment()
        done = subprocess.run(argv, env=env, cwd=user.home, capture_output=True, check=False)
        return done.returncode, done.stdout, b"corral's" in done.stderr

    refused = (125, b"", True)
    assert granted(user.package / "corral" / "cli", "--write") == refused
    assert granted(user.package, "--write") == refused
    for flag in ("--read", "--write"):
        assert granted(user.home / ".cache" / "corral", flag) == refused
        assert granted(scratch / "plain", flag) == (0, b"ran\n", False)
    assert granted(user.package, "--read") == (0, b"ran\n", False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a directory at a second path")
def test_a_secret_of_the_home_is_hidden_in_another_mount_too(user, scratch):
    assert user.run("/bin/true").returncode == 0
    alias = scratch / "part"
    give_directory(user, alias)
    for name in ("gcloud", "plain"):
        give_directory(user, user.home / ".config" / name)
        give(user, user.home / ".config" / name / "key", f"of {name}")

    def seen(name):
        argv = ["unshare", "--mount", "sh", "-c", MOUNTED]
        argv += [str(user.home / ".config"), str(alias), str(user.uid)]
        argv += user.corral_argv(
            "run", "--read", str(alias), "--", "/bin/cat", f"{alias}/{name}/key"
        )
        env = user.environment()
        done = subprocess.run(argv, env=env, cwd=user.home, capture_output=True, check=False)
        return done.returncode, done.stdout

    assert seen("gcloud") == (1, b"")
    assert seen("plain") == (0, b"of plain")
    shutil.rmtree(user.home / ".config" / "gcloud")
    shutil.rmtree(user.home / ".config" / "plain")


@BOTH_TIERS
def test_grants_of_corrals_own_directories_are_refused(user):
    for name in (".cache/corral", ".config/corral", ".local/state/corral"):
        path = user.home / name
        existed = path.exists()
        give_directory(user, path, 0o700)
        try:
            assert refused(user, "--read", str(path)), name
            assert refused(user, "--write", str(path)), name
            assert refused(user, "--write", str(path.parent)), name
        finally:
            if not existed:
                path.rmdir()


@BOTH_TIERS
def test_corrals_own_files_are_not_visible(user):
    """Try to see and change corral's cached findings about the host. Forged findings would mislead
    the next run.
    """
    user.run("/bin/true")
    cache = user.home / ".cache/corral"
    before = {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert before
    code = """
answer = [os.path.exists(path) for path in sys.argv[1:]]
def forge(name):
    os.makedirs(sys.argv[1] + "/findings", exist_ok=True)
    put(sys.argv[1] + "/findings/" + name, "forged")
answer += sorted({tried(forge, name) for name in json.loads(os.environ["NAMES"])})
"""
    paths = (str(cache), str(user.package))
    names = f"NAMES={json.dumps(list(before))}"
    # With mounts the target's home is private. Without them the target can see that corral's
    # directories exist.
    seen = user.owner == user.uid  # root's target cannot read root's cache
    *visible, forged = inside(user, code, *paths, flags=("--env", names))
    assert visible == by_tier(user, [False, False], [seen, True])
    # The target can create a path of the same name only in its private /tmp. Elsewhere the root
    # directory is read-only.
    assert forged in by_tier(user, {"done", "EROFS"}, {"EACCES"})
    after = {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert {name: after[name] for name in before} == before


def test_the_report_cannot_be_redirected(user, scratch):
    victim = scratch / "victim"
    give(user, victim, "before")
    (scratch / "report.json").symlink_to(victim)
    assert refused(user, "--report", str(scratch / "report.json"))
    assert victim.read_text() == "before"
    assert not refused(user, "--report", str(scratch / "other.json"))
    assert json.loads((scratch / "other.json").read_text())["outcome"]["kind"] == "exited"


@BOTH_TIERS
def test_a_write_grant_that_contains_the_report_or_the_policy_is_refused(user, scratch):
    give_directory(user, scratch / "work")
    give(user, scratch / "work/policy.toml", "version = 1\n[limits]\npids = 64\n")
    work = ("--write", str(scratch / "work"))
    assert refused(user, "--policy", str(scratch / "work/policy.toml"), *work)
    assert refused(user, "--report", str(scratch / "work/report.json"), *work)
    assert not refused(user, "--report", str(scratch / "report.json"), *work)


@BOTH_TIERS
def test_a_key_that_is_named_as_the_script_is_not_readable(user, scratch):
    """Name one of the user's keys as the script. corral must refuse this, because a target may read
    its script. Otherwise a project's configuration file could name a key, and let code in a
    variable such as NODE_OPTIONS read it. In this test the key itself is code, so its output shows
    whether the target has read it.
    """
    give_directory(user, scratch / "keys")
    key = give(user, scratch / "keys/id_rsa", "print('read')", 0o600)
    words = (user.python, str(key))
    done = user.run(*words)
    assert (done.returncode, done.stdout) == (125, b""), done.stderr
    assert f"{key} is neither a program nor granted" in done.stderr.decode()
    assert user.run(*words, flags=("--read", str(key))).stdout == b"read\n"
    script = give(user, scratch / "keys/server.py", "print('read')")
    assert user.run(user.python, str(script)).stdout == b"read\n"


@BOTH_TIERS
def test_a_link_planted_in_a_write_grant_grants_nothing(user, scratch):
    """Grant a path where an earlier run has left a symlink to a private directory. Corral must
    refuse this grant.
    """
    give_directory(user, scratch / "work")
    give_directory(user, scratch / "private")
    (scratch / "work/data").symlink_to(scratch / "private")
    assert refused(user, "--write", str(scratch / "work"), "--read", str(scratch / "work/data"))
    (scratch / "work/data").unlink()
    give_directory(user, scratch / "work/data")
    flags = ("--write", str(scratch / "work"), "--read", str(scratch / "work/data"))
    if user.tier == "bare":  # without mounts, a write grant with read-only parts is refused
        assert refused(user, *flags)
        flags = ("--write", str(scratch / "work/data"))
    assert not refused(user, *flags)
