"""Attack from a write grant around a repository: try to make git run programs on the host."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import struct
import subprocess
import termios

import pytest
from attempts import BOTH_TIERS, inside, launched, outside

GIT = shutil.which("git")
needs_git = pytest.mark.rig("git")
NOTE = "make git run programs on this machine"

PLANT = """
os.chdir(sys.argv[1])
def plant(name, text):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    put(name, text)
    os.chmod(name, 0o755)
program = "#!/bin/sh\\ntouch " + sys.argv[1] + "/ran\\n"
settings = "[core]\\n\\tfsmonitor = touch " + sys.argv[1] + "/ran\\n\\trepositoryformatversion = 0\\n"
answer = {name: tried(plant, name, program if "hook" in name or "tool" in name else settings if "onfig" in name or "shared" in name else "../evil") for name in sys.argv[2:]}
"""


def git(user, *words: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    names = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b"}
    names |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    allowed = ("-c", "protocol.file.allow=always")
    process = user.popen(
        [GIT, *allowed, *words], env=user.environment(**names), cwd=cwd,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def repository(user, scratch) -> pathlib.Path:
    path = scratch / "repo"
    path.mkdir()
    os.chown(path, user.owner, user.owner)
    if user.owner != user.uid:
        pytest.skip("git does not trust the separate user id of root's target")
    git(user, "init", "-q", "-b", "main", ".", cwd=path)
    give(user, path / "file", "text")
    git(user, "add", ".", cwd=path)
    done = git(user, "commit", "-qm", "first", cwd=path)
    assert done.returncode == 0, done.stderr
    return path


def give(user, path: pathlib.Path, text: str) -> None:
    missing = [above for above in path.parents if not above.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    for made in (*missing, path):
        os.chown(made, user.owner, user.owner)


def ran(user, repository: pathlib.Path) -> bool:
    """Return whether the host's git runs the planted program."""
    git(user, "status", cwd=repository)
    git(user, "commit", "--allow-empty", "-qm", "next", cwd=repository)
    return (repository / "ran").exists()


CASES = {
    "commondir": ({}, (".git/commondir", "evil/config", "evil/HEAD", "evil/objects/x", "evil/refs/x")),
    "hooks": ({}, (".git/hooks/pre-commit",)),
    "config": ({}, (".git/config",)),
    "hooksPath": ({"core.hooksPath": ".githooks"}, (".githooks/pre-commit",)),
    "hooksPath elsewhere": ({"core.hooksPath": "{top}/dev/hooks"}, ("dev/hooks/pre-commit",)),
    "include": ({"include.path": "../.gitshared"}, (".gitshared",)),
    "includeIf": ({"includeIf.onbranch:**.path": "../.gitshared"}, (".gitshared",)),
    "a program": ({"core.fsmonitor": "tools/tool --watch"}, ("tools/tool",)),
    "another directory": ({"core.fsmonitor": "cd tools && ./tool"}, ("tools/tool",)),
    "a subshell": ({"core.fsmonitor": "(cd tools;./tool)|cat"}, ("tools/tool",)),
    "a command's output": (
        {"core.fsmonitor": '"$(git rev-parse --show-toplevel)"/tools/tool'}, ("tools/tool",)
    ),
    "a variable": ({"core.fsmonitor": 'T=tools; "$T/tool"'}, ("tools/tool",)),
}  # fmt: skip


@BOTH_TIERS
@needs_git
@pytest.mark.parametrize("case", CASES)
def test_programs_for_git_cannot_be_planted(user, repository, case):
    settings, names = CASES[case]
    for key, value in settings.items():
        git(user, "config", key, value.format(top=repository), cwd=repository)
    for name in names:
        if settings:
            give(user, repository / name, "" if "shared" in name else "#!/bin/sh\n")
    flags = ("--write", str(repository))
    if user.tier == "bare":
        done = user.run(user.python, "-c", "", flags=flags)
        assert done.returncode == 125
        assert f"--write {repository}/.git" in done.stderr.decode()
        return
    held = inside(user, PLANT, str(repository), *names, flags=flags)
    assert held[names[0]] == "EROFS"
    assert not ran(user, repository)
    free = outside(user, PLANT, str(repository), *names)
    assert set(free.values()) == {"done"}
    assert ran(user, repository)


@needs_git
def test_hooks_of_the_users_own_configuration_are_protected(user, repository):
    """Set `core.hooksPath` in the user's own configuration, which applies to all of the user's
    repositories. The target must not be able to add a hook there.
    """
    give(user, repository / ".team/pre-commit", "#!/bin/sh\n")
    settings = user.home / ".gitconfig"
    give(user, settings, "[core]\n\thooksPath = .team ; for all\n")
    try:
        flags = ("--write", str(repository))
        held = inside(user, PLANT, str(repository), ".team/pre-commit-hook", flags=flags)
        assert held == {".team/pre-commit-hook": "EROFS"}
    finally:
        settings.unlink()


LEAD = """
os.chdir(sys.argv[1])
def swap(link):
    os.rename(link, link + "-old")
    os.mkdir(link)
    put(link + "/pre-commit", "#!/bin/sh\\ntouch " + sys.argv[1] + "/ran\\n")
    os.chmod(link + "/pre-commit", 0o755)
answer = tried(swap, sys.argv[2])
"""


@needs_git
@pytest.mark.parametrize(
    "how", ["a link", "a link above", "a quoted path with a comment", "a path with a zero byte"]
)
def test_settings_are_protected_behind_links_and_comments(user, repository, how):
    """Check that corral protects both the path in a git setting and the directory that it resolves
    to.
    """
    give(user, repository / "real/hooks/pre-commit", "#!/bin/sh\n")
    link, value = {
        "a link": ("named", "named"),
        "a link above": ("above", "above/hooks"),
        "a quoted path with a comment": ("real/hooks", '"real/hooks" # of the team'),
        "a path with a zero byte": ("real/hooks", "real/hooks\0more"),
    }[how]
    if link != "real/hooks":
        (repository / link).symlink_to("real/hooks" if link == "named" else "real")
        os.chown(repository / link, user.owner, user.owner, follow_symlinks=False)
    with open(repository / ".git/config", "a", encoding="utf-8") as file:
        file.write(f"[core]\n\thooksPath = {value}\n")
    flags = ("--write", str(repository))
    held = inside(user, LEAD, str(repository), link, flags=flags)
    assert held in {"EBUSY", "EXDEV"}
    assert not ran(user, repository)
    code = LEAD.replace('"/pre', '"/hooks/pre').replace(
        "os.mkdir(link)", "os.makedirs(link + '/hooks')"
    )
    assert outside(user, code if how == "a link above" else LEAD, str(repository), link) == "done"
    assert ran(user, repository)  # sanity check: outside, the planted program runs


@needs_git
def test_a_repository_pointer_through_a_link_cannot_be_changed(user, repository, scratch):
    """Let `.git` be a file that points to the repository through a symlink, and try to replace the
    symlink.
    """
    os.rename(repository / ".git", repository / "store")
    (repository / "link").symlink_to("store")
    give(user, repository / ".git", "gitdir: link\n")
    code = "os.chdir(sys.argv[1]); answer = tried(os.rename, 'link', 'other')"
    assert inside(user, code, str(repository), flags=("--write", str(repository))) == "EBUSY"
    # Sanity check: outside, the symlink can be renamed.
    assert outside(user, code, str(repository)) == "done"


@needs_git
@pytest.mark.parametrize("key", ["core.hooksPath", "init.templateDir"])
def test_hooks_of_all_repositories_are_protected_in_a_grant_without_one(user, repository, key):
    """Let the user's settings name hooks in a granted directory that is not a repository. These
    hooks must be protected too.
    """
    shared = repository.parent / "granted/shared"
    name = "hooks/pre-commit"
    give(user, shared / name, "#!/bin/sh\n")
    settings = user.home / ".gitconfig"
    section, _, variable = key.partition(".")
    value = shared / "hooks" if key == "core.hooksPath" else shared
    give(user, settings, f"[{section}]\n\t{variable} = {value}\n")
    plant = PLANT.replace('sys.argv[1] + "/ran', f'"{repository}" + "/ran')

    def runs() -> bool:
        shutil.rmtree(repository / ".git")
        git(user, "init", "-q", ".", cwd=repository)
        return ran(user, repository)

    try:
        held = inside(user, plant, str(shared), name, flags=("--write", str(shared.parent)))
        assert held == {name: "EROFS"}
        assert not runs()
        said = user.run("/bin/true", flags=("--write", str(value))).stderr.decode()
        assert NOTE in said  # corral warns that the user has granted the hooks themselves
        assert outside(user, plant, str(shared), name) == {name: "done"}
        assert runs()  # sanity check: outside, the planted hook runs
    finally:
        settings.unlink()


@needs_git
def test_repositories_and_submodules_are_protected_at_any_depth(user, repository, scratch):
    deep = repository / "a/b/c/d/e"
    deep.mkdir(parents=True)
    for path in (deep, *list(deep.parents)[:5]):
        os.chown(path, user.owner, user.owner)
    git(user, "init", "-q", ".", cwd=deep)
    give(user, repository / "w/.git", "gitdir: ../x/y/z/store\n")
    for name in ("HEAD", "config", "objects/x"):
        give(user, repository / "x/y/z/store" / name, "")
        give(user, repository / ".git/modules/one/modules/two" / name, "")
        give(user, repository / "bare" / name, "")
        give(user, repository / "m/.hg/store", "")
        give(user, repository / "m/.jj/repo/config.toml", "")
    names = (
        "a/b/c/d/e/.git/hooks/x", "w/.git", "x/y/z/store/config", "x/y/z/store/commondir",
        ".git/modules/one/modules/two/config", ".git/modules/one/modules/two/hooks/x",
        "bare/config", "bare/hooks/x", "m/.hg/hgrc", "m/.jj/repo/config.toml",
    )  # fmt: skip
    held = inside(user, PLANT, str(repository), *names, flags=("--write", str(repository)))
    assert held == dict.fromkeys(names, "EROFS")
    code = "answer = [tried(os.rename, path, path + '2') for path in sys.argv[1:]]"
    parents = [str(repository / name) for name in ("a", "a/b/c/d/e/.git", "x/y", "m", "bare", "w")]
    moved = inside(user, code, *parents, flags=("--write", str(repository)))
    assert set(moved) <= {"EBUSY", "EXDEV"}
    free = outside(user, PLANT, str(repository), *names)
    assert free == dict.fromkeys(names, "done")


SUBMODULE = """
os.chdir(sys.argv[1])
def plant():
    for name in (".git/objects", ".git/refs"):
        os.makedirs("libs/sub/" + name)
    put("libs/sub/.git/HEAD", "ref: refs/heads/main\\n")
    put("libs/sub/.git/config", "[core]\\n\\tfsmonitor = touch " + sys.argv[1] + "/ran\\n\\trepositoryformatversion = 0\\n")
answer = tried(plant)
"""


@needs_git
@pytest.mark.parametrize("index", ["2", "4", "split", "sha256"])
def test_an_uninitialised_submodule_cannot_be_filled(user, scratch, index):
    """Try to create a repository in a submodule's empty directory. `git status` in the outer
    repository would then also run in the submodule, with settings that the target chose.
    """
    outer = scratch / "outer"
    outer.mkdir()
    os.chown(outer, user.owner, user.owner)
    form = ("--object-format=sha256",) if index == "sha256" else ()
    git(user, "init", "-q", "-b", "main", *form, ".", cwd=outer)
    if index in {"2", "4"}:
        git(user, "config", "index.version", index, cwd=outer)
    for name in ("a", "libs/a file", "libs/sub2", "z"):
        give(user, outer / name, name)
    give(user, outer / "libs/sub/.keep", "")
    (outer / "libs/sub/.keep").unlink()
    digest = "1" * (64 if form else 40)
    git(user, "add", "a", "libs", "z", cwd=outer)
    done = git(user, "update-index", "--add", "--cacheinfo", f"160000,{digest},libs/sub", cwd=outer)
    assert done.returncode == 0, done.stderr
    if index == "split":
        git(user, "update-index", "--split-index", cwd=outer)
    flags = ("--write", str(outer))
    assert inside(user, SUBMODULE, str(outer), flags=flags) == "EROFS"
    git(user, "status", cwd=outer)
    assert not (outer / "ran").exists()
    named = (*flags, "--write", str(outer / "libs/sub"))
    assert NOTE in user.run("/bin/true", flags=named).stderr.decode()
    # Sanity check: with a grant for the submodule itself, the target can create a repository
    # there.
    assert inside(user, SUBMODULE, str(outer), flags=named) == "done"
    git(user, "status", cwd=outer)
    assert (outer / "ran").exists()


@needs_git
def test_git_status_works_and_git_add_needs_the_repository_named(user, repository):
    code = """
import subprocess
os.chdir(sys.argv[1])
put("new")
def run(*words):
    found = subprocess.run(["git", *words], capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr
answer = [run("status", "--porcelain"), run("add", "new")]
"""
    env = user.environment(GIT_CONFIG_COUNT="0")
    flags = ("--allow-subprocess", "--write", str(repository))
    status, added = inside(user, code, str(repository), flags=flags, env=env)
    assert status == [0, "?? new\n"]
    assert added[0] != 0
    assert "Read-only file system" in added[1]
    done = user.run("/bin/true", flags=flags)
    assert f"{repository}/.git is read-only" in done.stderr.decode()
    assert f"--write {repository}/.git" in done.stderr.decode()
    named = (*flags, "--write", str(repository / ".git"))
    assert inside(user, code, str(repository), flags=named, env=env)[1] == [0, ""]
    said = user.run("/bin/true", flags=named).stderr.decode()
    assert NOTE in said
    assert "is read-only" not in said


@BOTH_TIERS
@needs_git
def test_hooks_and_configuration_stay_read_only_in_a_named_repository(user, repository):
    for name in ("HEAD", "config"):
        give(user, repository / ".git/modules/one/modules/two" / name, "")
    flags = ("--write", str(repository), "--write", str(repository / ".git"))
    names = (
        ".git/hooks/x", ".git/config", ".git/info/attributes", ".git/modules/one/modules/two/config",
    )  # fmt: skip
    explained = user.corral("explain", *flags, "--", user.python, "-c", "").stdout.decode()
    assert NOTE in explained
    if user.tier == "bare":
        code = "answer = tried(put, sys.argv[1])"
        assert inside(user, code, str(repository / ".git/index2"), flags=flags) == "done"
        return
    held = inside(user, PLANT, str(repository), *names, ".git/index2", flags=flags)
    assert held.pop(".git/index2") == "done"
    assert held == dict.fromkeys(names, "EROFS")
    free = outside(user, PLANT, str(repository), *names)
    assert set(free.values()) == {"done"}


def test_thousands_of_planted_files_do_not_keep_corral_from_finding_secrets(user, scratch):
    """Let a first run fill the granted directory with thousands of files. At the next run, corral
    must still find every secret there, and hide it from the target.
    """
    give(user, scratch / "lib/.git/hooks/x", "")
    give(user, scratch / "lib/deep/.env.local", "TOKEN=1")
    secrets = [".env", ".env.production", ".env.zz", "lib/deep/.env.local"]
    for name in secrets:
        give(user, scratch / name, "TOKEN=1")
    plant = """
for number in range(30000):
    os.close(os.open(f"{sys.argv[1]}/.a{number}", os.O_WRONLY | os.O_CREAT))
"""
    # Emulated machines need a minute to make the files.
    flags, timeout = ("--write", str(scratch)), 300
    assert inside(user, plant, str(scratch), flags=flags, timeout=timeout) is None
    read = "os.chdir(sys.argv[1]); answer = [got(name) for name in sys.argv[2:]] + [tried(put, 'lib/.git/hooks/x')]"
    held = inside(user, read, str(scratch), *secrets, flags=flags, timeout=timeout)
    assert held == [*[""] * len(secrets), "EROFS"]
    free = outside(user, read, str(scratch), *secrets)
    assert free == [*["TOKEN=1"] * len(secrets), "done"]


def test_secrets_stay_hidden_if_a_run_makes_their_directory_unreadable(user, scratch):
    """Let a run remove a directory's permissions, so that the next run cannot search it for
    secrets. The target of the next run must not be able to make the directory readable again.
    """
    give(user, scratch / "lib/.git/hooks/x", "")
    give(user, scratch / "lib/.env", "TOKEN=1")
    flags = ("--write", str(scratch))
    assert inside(user, "os.chmod(sys.argv[1], 0)", str(scratch / "lib"), flags=flags) is None
    code = """
opened = tried(os.chmod, sys.argv[1], 0o755)
def read():
    return got(sys.argv[1] + "/.env")
answer = [tried(read) if opened == "done" else opened, tried(put, sys.argv[1] + "/.git/hooks/x")]
"""
    try:
        held = inside(user, code, str(scratch / "lib"), flags=flags)
        assert held[1] != "done"
        assert user.uid == 0 or held[0] in {"EROFS", "EPERM", "EACCES"}
    finally:
        os.chmod(scratch / "lib", 0o755)
    assert outside(user, code, str(scratch / "lib")) == ["done", "done"]


def test_a_planted_repository_does_not_uncover_secrets(user, scratch):
    """Let a run make a repository with files, such as `commondir`, that contain the path of a
    secret. corral makes the paths in such files read-only, but at the next run it must still hide
    the secret.
    """
    give(user, scratch / "a/.env", "TOKEN=1")
    flags = ("--write", str(scratch))
    plant = """
os.mkdir(sys.argv[1] + "/.git")
for name in ("commondir", "sharedpath", "repo"):
    put(sys.argv[1] + "/.git/" + name, sys.argv[1] + "/a/.env")
"""
    assert inside(user, plant, str(scratch), flags=flags) is None
    code = "answer = got(sys.argv[1])"
    assert inside(user, code, str(scratch / "a/.env"), flags=flags) == ""
    # Sanity check: outside, the secret can be read.
    assert outside(user, code, str(scratch / "a/.env")) == "TOKEN=1"


def test_planted_repositories_are_refused_at_once(user, scratch):
    plant = """
for number in range(int(sys.argv[2])):
    os.makedirs(f"{sys.argv[1]}/r{number}/.git")
"""
    flags = ("--write", str(scratch))
    inside(user, plant, str(scratch), "100", flags=flags)
    assert user.run("/bin/true", flags=flags).returncode == 0
    outside(user, plant.replace("makedirs(", "makedirs(exist_ok=True, name="), str(scratch), "1900")
    done = user.run("/bin/true", flags=flags)
    assert done.returncode == 125
    first, hint = done.stderr.decode().splitlines()
    assert "more than 1000 paths" in first
    assert hint.startswith(f"hint: grant less, such as --write {scratch}/r")
    less = hint.rpartition("--write ")[2]
    assert user.run("/bin/true", flags=("--write", less)).returncode == 0


@pytest.mark.parametrize("name", ["config", "commondir"])
def test_planted_zero_bytes_do_not_stop_a_later_start(user, scratch, name):
    """Let a run write a path with a zero byte to a file of a repository. The next run must still
    start.
    """
    plant = """
os.makedirs(sys.argv[1] + "/repo/.git/hooks")
put(sys.argv[1] + "/repo/.git/" + sys.argv[2], "[core]\\n\\thooksPath = a\\0b\\n" if sys.argv[2] == "config" else "a\\0b")
"""
    flags = ("--write", str(scratch))
    assert inside(user, plant, str(scratch), name, flags=flags) is None
    assert b"a\0b" in (scratch / "repo/.git" / name).read_bytes()
    done = user.run("/bin/true", flags=flags)
    assert (done.returncode, done.stderr) == (0, b"")


class Held:
    """A running target that evaluates Python expressions for the test. Between two expressions, the
    test can change files on the host.
    """

    CODE = """
import sys
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""

    def __init__(self, user, *flags: str, program: str = "") -> None:
        self.report = user.home / "replaced.json"
        argv = user.corral_argv("run", "--report", str(self.report), *flags, "--")
        self.process = user.popen(
            [*argv, user.python, *([program] if program else ["-c", self.CODE])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, code: str) -> str:
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    def said(self, words: str) -> str:
        """Return the first line of corral's stderr that contains `words`. Return "" if stderr ends
        without such a line.
        """
        return next((line for line in self.process.stderr if words in line), "")

    def end(self) -> dict:
        self.process.communicate()
        found = json.loads(self.report.read_text())
        self.report.unlink()
        return found


def replace(user, path: pathlib.Path, text: str) -> None:
    """Replace a file as `sed -i`, `git config` and most editors do: rename a new file over it."""
    give(user, path.with_name("new-one"), text)
    os.rename(path.with_name("new-one"), path)


@pytest.mark.parametrize("access", ["--read", "--write"])
def test_a_replaced_secret_is_reported_at_once(user, scratch, access):
    give(user, scratch / ".env", "TOKEN=1")
    run = Held(user, access, str(scratch))
    assert run.ask(f"open('{scratch}/.env').read()") == ""
    os.utime(scratch / ".env")
    replace(user, scratch / ".env", "TOKEN=2")
    assert str(scratch / ".env") in run.said("was replaced")
    assert run.ask("1 + 1") == "2"
    report = run.end()
    assert [row for row in report["warnings"] if f"{scratch}/.env was replaced" in row]
    masks = [row for row in report["controls"] if row["control"] == "masks"]
    assert [row["status"] for row in masks] == ["cooperative"]
    assert "removes its cover" in masks[0]["why"]


@pytest.mark.parametrize("access", ["--read", "--write"])
@pytest.mark.parametrize("how", ["renamed over", "removed", "moved", "parent moved"])
def test_a_strict_run_ends_when_a_covered_name_is_replaced(user, scratch, how, access):
    give(user, scratch / "top/sub/.env", "TOKEN=1")
    top = scratch / "top"
    run = Held(user, access, str(top), "--strict", "--max-memory", "2G")
    assert run.ask(f"open('{top}/sub/.env').read()") == ""
    if how == "renamed over":
        replace(user, top / "sub/.env", "TOKEN=2")
    elif how == "removed":
        (top / "sub/.env").unlink()
    elif how == "moved":
        (top / "sub/.env").rename(top / "kept")
    else:
        (top / "sub").rename(top / "old")
    assert f"{top}/sub/.env" in run.said("was replaced")
    run.process.wait()
    assert run.end()["outcome"]["exit_code"] == 137


@pytest.mark.parametrize("room", [0, 16384])
def test_a_full_stderr_does_not_stop_the_supervisor(user, scratch, room):
    """Fill corral's stderr pipe, except for `room` bytes. Then replace a secret that corral hides
    from the target. corral must stop the run. Its message about this is lost if it does not fit
    into the pipe.
    """
    give(user, scratch / ".env", "TOKEN=1")
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 65536)
    report = user.home / "full.json"
    argv = user.corral_argv("run", "--report", str(report), "--read", str(scratch), "--strict")
    process = user.popen(
        [*argv, "--max-memory", "2G", "--", user.python, "-c", Held.CODE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True,
    )  # fmt: skip
    process.stdin.write("1 + 1\n")
    process.stdin.flush()
    assert process.stdout.readline() == "2\n"
    waiting = struct.unpack("i", fcntl.ioctl(reading, termios.FIONREAD, bytes(4)))[0]
    os.write(writing, b"x" * (size - waiting - room))
    replace(user, scratch / ".env", "TOKEN=2")
    process.wait(timeout=60)  # stdin stays open, so the target does not end by itself
    process.communicate()
    assert process.returncode == 137
    assert "was replaced" in report.read_text()
    report.unlink()
    os.close(writing)
    with open(reading, "rb") as said:
        assert (b"was replaced" in said.read()) == bool(room)


@needs_git
@pytest.mark.parametrize("how", ["moved", "parent moved", "removed"])
def test_a_replaced_repository_ends_the_run(user, repository, how):
    run = Held(user, "--write", str(repository.parent))
    assert run.ask("1 + 1") == "2"
    # A change that git itself makes does not end the run. The changed file stays protected.
    git(user, "config", "user.name", "x", cwd=repository)
    assert run.ask(f"open('{repository}/.git/config', 'a')") == "Read-only file system"
    if how == "moved":
        os.rename(repository / ".git", repository / "old")
    elif how == "parent moved":
        os.rename(repository, repository.parent / "old")
    else:
        shutil.rmtree(repository / ".git")
    assert f"{repository}/.git" in run.said("was replaced")
    run.process.wait()
    report = run.end()
    assert report["outcome"]["exit_code"] == 137
    assert [row for row in report["warnings"] if "the run was stopped" in row]


def test_a_replaced_read_grant_in_a_write_grant_is_reported(user, scratch):
    give(user, scratch / "work/kept/file", "before")
    work = scratch / "work"
    run = Held(user, "--write", str(work), "--read", str(work / "kept"))
    assert run.ask(f"open('{work}/kept/file', 'a')") == "Read-only file system"
    os.rename(work / "kept", work / "old")
    give(user, work / "kept/file", "again")
    assert str(work / "kept") in run.said("was replaced")
    run.end()


def test_a_replaced_program_in_a_write_grant_is_reported(user, scratch):
    give(user, scratch / "work/server/main.py", Held.CODE)
    server = scratch / "work/server"
    run = Held(user, "--write", str(scratch / "work"), program=str(server / "main.py"))
    # root's target gets "Permission denied", because the file belongs to an unmapped user
    held = {"Read-only file system", "Permission denied"}
    assert run.ask(f"open('{server}/main.py', 'a')") in held
    os.rename(server, scratch / "work/old")
    assert str(server) in run.said("was replaced")
    run.end()


def test_directories_that_the_target_removes_are_not_reported_as_replaced(user, scratch):
    """Let the target remove its own directories next to one that corral protects. corral must
    report only the protected one, once it is replaced.
    """
    give(user, scratch / "sub/.vscode/tasks.json", "{}")
    give(user, scratch / "sub/.git/HEAD", "")
    run = Held(user, "--write", str(scratch))
    removed = "[os.rmdir(f'{top}/sub/x') or n for n in range(200) if not os.mkdir(f'{top}/sub/x')]"
    code = f"len((lambda os, top: {removed})(__import__('os'), '{scratch}'))"
    assert run.ask(code) == "200"
    os.rename(scratch / "sub/.vscode", scratch / "sub/old")
    assert f"{scratch}/sub/.vscode was replaced" in run.said("was replaced")
    assert run.ask("1 + 1") == "2"
    assert len([row for row in run.end()["warnings"] if "was replaced" in row]) == 1


def test_a_removed_directory_is_noticed_although_it_is_open(user, scratch):
    """Remove a directory that a process has open. corral must notice this, although inotify does
    not report it.
    """
    give(user, scratch / "sub/.git/HEAD", "")
    run = Held(user, "--write", str(scratch))
    assert run.ask(f"__import__('os').open('{scratch}/sub/.git', 0) > 2") == "True"
    shutil.rmtree(scratch / "sub/.git")
    assert f"{scratch}/sub/.git was replaced" in run.said("the run was stopped")
    run.process.wait()
    assert run.end()["outcome"]["exit_code"] == 137


DEEP = """
place = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(20):
    os.mkdir("d" * 250, dir_fd=place)
    place = os.open("d" * 250, os.O_RDONLY, dir_fd=place)
os.close(os.open(".env", os.O_CREAT | os.O_WRONLY, dir_fd=place))
answer = "made"
"""


def test_paths_that_are_too_long_do_not_stop_a_later_start(user, scratch):
    """Let a run make directories inside each other, until the path of a file is too long for the
    kernel. The next run must start, and report that it did not search this path, also with
    --strict.
    """
    give(user, scratch / ".env", "TOKEN=1")
    flags = ("--write", str(scratch))
    assert inside(user, DEEP, str(scratch), flags=flags) == "made"
    done = user.run("/bin/cat", str(scratch / ".env"), flags=flags)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert b"not searched for secrets" in done.stderr
    done = user.run("/bin/true", flags=(*flags, "--strict", "--best-effort"))
    assert b"not searched" in done.stderr
    subprocess.run(["rm", "-r", str(scratch / ("d" * 250))], check=True)


CLOSED = """
import subprocess
top, how, group = sys.argv[1], sys.argv[2], int(sys.argv[3])
if group:
    for directory, _, names in os.walk(top):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(path, -1, group)
inner = '''
import os, sys
for act in (lambda path: os.chmod(path, 0o700), lambda path: open(path + "/.env").read(), lambda path: open(path + "/.git/config", "a")):
    try:
        sys.exit(7) if act(sys.argv[1] + "/sub") else 0
    except OSError:
        pass
'''
plan = planned([sys.executable, "-ISc", inner, top], filesystem__write=[top])
if how == "closed":
    os.chmod(f"{top}/sub", 0)
answer = started(plan)
"""


@pytest.mark.parametrize("how", ["open", "closed"])
@pytest.mark.parametrize("group", [0, 65500])
@pytest.mark.parametrize("repository", [False, True])
def test_secrets_stay_hidden_if_their_directory_becomes_unreadable_before_the_start(
    user, scratch, repository, group, how
):
    """With `how` "closed", remove a directory's permissions between plan and start, as another run
    with the same grant could do. The target must not be able to restore the permissions, to read
    the secret in the directory, or to change the settings of the repository there. With "open", the
    same acts must fail with unchanged permissions.

    With `group` the files belong to another of the user's groups. Init is not a member of this
    group, because init has only the user's first group.
    """
    if os.geteuid():
        pytest.skip("only root can give a process other groups")
    give(user, scratch / "sub/.env", "TOKEN=1")
    if repository:
        give(user, scratch / "sub/.git/config", "[core]\n")
    said = launched(user, CLOSED, str(scratch), how, str(group), extra_groups=[group or user.uid])
    assert said != 7
    (scratch / "sub").chmod(0o700)
    if repository:
        assert (scratch / "sub/.git/config").read_text() == "[core]\n"
    # In the closed directory corral cannot find the repository that it watches. It then stops the
    # run, as if the repository had been removed.
    assert said == 0 or (how == "closed" and repository)
