"""Try from inside to read secrets in grants, and to change files that other programs execute
automatically. No run may leave anything behind.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from corral.errors import PolicyError
from corral.platforms.linux import host_files, repositories
from corral.platforms.linux.mechanisms import masks
from corral.policy.model import Grant
from corral.policy.path_grants import make_grant

if TYPE_CHECKING:
    import pathlib

READ = """
def attempt(path):
    try:
        return open(path).read() if not os.path.isdir(path) else sorted(os.listdir(path))
    except OSError as error:
        return type(error).__name__
answer = [attempt(path) for path in sys.argv[1:]]
"""
ATTACKS = """
def attempt(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
def put(path, text=""):
    with open(path, "a") as file:
        file.write(text)
def away(path):
    os.rename(path, root + "/gone")
    os.rename(root + "/gone", path)
def replace(path):
    put(path + ".lock", "new")
    os.rename(path + ".lock", path)
root = sys.argv[1]
git = root + "/.git"
answer = {name: attempt(act) for name, act in {
    "new hook": lambda: put(git + "/hooks/pre-commit"),
    "changed hook": lambda: put(git + "/hooks/old", "evil"),
    "truncated hook": lambda: os.truncate(git + "/hooks/old", 0),
    "mode of a hook": lambda: os.chmod(git + "/hooks/old", 0o777),
    "removed hook": lambda: os.unlink(git + "/hooks/old"),
    "hooks away": lambda: away(git + "/hooks"),
    "config": lambda: put(git + "/config", "evil"),
    "config linked": lambda: os.link(git + "/config", git + "/linked"),
    "config replaced": lambda: replace(git + "/config"),
    "config removed": lambda: os.unlink(git + "/config"),
    ".git away": lambda: away(git),
    "tasks": lambda: put(root + "/.vscode/tasks.json", "evil"),
    "settings away": lambda: away(root + "/.vscode"),
    "envrc": lambda: put(root + "/.envrc", "evil"),
    "nested away": lambda: away(root + "/group"),
    "nested deeper away": lambda: away(root + "/group/repo"),
    "nested hook": lambda: put(root + "/group/repo/.git/hooks/x"),
    "object": lambda: replace(git + "/objects/ab"),
    "index": lambda: replace(git + "/index"),
    "source": lambda: replace(root + "/source"),
}.items()}
"""
ALLOWED = {"source"}


@pytest.fixture
def home(user, scratch) -> pathlib.Path:
    """Return an empty directory as the user's home."""
    return scratch


@pytest.fixture
def env(user, home) -> dict[str, str]:
    own = {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".other", "XDG_STATE_HOME": ".state"}
    places = {name: str(user.home / path) for name, path in own.items()}
    return user.environment(HOME=str(home), **places)


def write(user, path: pathlib.Path, text: str = "text") -> pathlib.Path:
    missing = [above for above in path.parents if not above.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for made in (*missing, path):
        os.chown(made, user.uid, user.uid)
    return path


def listing(root: pathlib.Path) -> dict[str, tuple[object, ...]]:
    """Return the state of all files below a directory, to compare it with the state after a run."""
    found = {}
    for path in [root, *root.rglob("*")]:
        seen = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(seen.st_mode) else b""
        link = os.readlink(path) if path.is_symlink() else ""
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_ino, seen.st_nlink, content, link)
    return found


def grant(path: pathlib.Path, access: str = "read") -> Grant:
    return make_grant(access, str(path))


def find(grants, home: str = "/nonexistent/home", **options) -> masks.Found:
    return masks.find(grants, home, **options)


def paths(found: masks.Found, root: pathlib.Path) -> set[str]:
    return {mask.path.removeprefix(f"{root}/") for mask in found.masks}


def repository(user, root: pathlib.Path) -> None:
    for name in ("hooks/old", "config", "HEAD", "objects/aa", "index"):
        write(user, root / ".git" / name)


def test_a_secret_in_a_granted_part_of_home_is_hidden(user, home, env):
    key = write(user, home / ".config/gh/hosts.yml", "key")
    tool = write(user, home / ".config/git/credentials", "https://me:token@example.com")
    note = write(user, home / ".config/app/today", "note")
    before = listing(home)
    flags = ("--read", str(home / ".config"))
    found = user.inside(READ, *map(str, (key, key.parent, tool, note)), flags=flags, env=env)
    assert found == ["FileNotFoundError", [], "", "note"]
    assert user.outside(READ, str(key)) == ["key"]
    assert listing(home) == before


def test_a_secret_that_is_granted_by_its_own_path_is_visible(user, home, env):
    key = write(user, home / ".config/gh/hosts.yml", "key")
    token = write(user, home / ".config/rclone/rclone.conf", "token")
    flags = ("--read", str(home / ".config"), "--read", str(key.parent))
    found = user.inside(READ, str(key), str(token), flags=flags, env=env)
    assert found == ["key", "FileNotFoundError"]


def test_naming_a_file_in_a_secret_directory_shows_only_that_file(user, home, env):
    key = write(user, home / ".config/gh/hosts.yml", "key")
    other = write(user, home / ".config/gh/more/id", "key")
    config = write(user, home / ".config/gh/more/config", "Host x")
    flags = ("--read", str(home / ".config"), "--read", str(config))
    found = user.inside(READ, *map(str, (key, other, config)), flags=flags, env=env)
    assert found == ["FileNotFoundError", "FileNotFoundError", "Host x"]


def test_a_secret_behind_a_link_is_hidden_at_its_real_path(user, home, env):
    key = write(user, home / "dotfiles/ssh/id_rsa", "key")
    near = write(user, home / "dotfiles/readme", "hello")
    (home / ".ssh").symlink_to("dotfiles/ssh")
    # The symlink ~/.ssh is outside the grant, but leads to a directory in it. corral must hide the
    # secrets in this directory.
    flags = ("--read", str(home / "dotfiles"))
    assert user.inside(READ, str(key), str(near), flags=flags, env=env) == [
        "FileNotFoundError",
        "hello",
    ]


def test_environment_files_are_hidden_near_the_top_unless_named(user, home, env):
    project = home / "project"
    files = [
        write(user, project / name, "TOKEN=1")
        for name in (".env", "api/.env.local", ".env.example")
    ]
    found = user.inside(READ, *map(str, files), flags=("--read", str(project)), env=env)
    assert found == ["", "", "TOKEN=1"]
    flags = ("--write", str(project), "--read", str(files[0]))
    assert user.inside(READ, *map(str, files), flags=flags, env=env) == ["TOKEN=1", "", "TOKEN=1"]


def test_self_starting_files_of_a_write_grant_cannot_be_changed(user, home, env):
    project = home / "project"
    repository(user, project)
    repository(user, project / "group/repo")
    for name in (".vscode/tasks.json", ".envrc", "source"):
        write(user, project / name)
    before = listing(project)
    found = user.inside(ATTACKS, str(project), flags=("--write", str(project)), env=env)
    assert {name for name, code in found.items() if code == 0} == ALLOWED
    after = listing(project)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == {str(project / "source")}


def test_login_files_in_a_part_of_the_home_cannot_be_changed(user, home, env):
    """Grant directories with files that run at login or when a program starts. A symlink in
    ~/.config leads to one of the files. The target must not be able to change any of them.
    """
    starters = [write(user, home / ".cargo" / name) for name in ("env", "bin/cargo")]
    starters.append(write(user, home / "dotfiles/kitty/kitty.conf"))
    free = write(user, home / ".cargo/registry/file")
    (home / ".config").mkdir()
    (home / ".config/kitty").symlink_to("../dotfiles/kitty")
    code = """
answer = []
for path in sys.argv[1:]:
    try:
        open(path, "a").write("more")
        answer.append(0)
    except OSError as error:
        answer.append(error.errno)
"""
    flags = ("--write", str(home / ".cargo"), "--write", str(home / "dotfiles"))
    found = user.inside(code, *map(str, (*starters, free)), flags=flags, env=env)
    assert found == [30, 30, 30, 0]


def test_policies_of_other_servers_cannot_be_changed(user, home, env):
    """Grant a directory that contains another server's corral.toml, which must be read-only.
    Sanity check: a policy with another name can be changed.
    """
    project = home / "project"
    policies = [
        write(user, project / name, "version = 1") for name in ("corral.toml", "plain.toml")
    ]
    code = """
answer = []
for path in sys.argv[1:]:
    try:
        open(path, "a").write("more")
        answer.append(0)
    except OSError as error:
        answer.append(error.errno)
"""
    flags = ("--write", str(project))
    assert user.inside(code, *map(str, policies), flags=flags, env=env) == [30, 0]


def test_attacks_on_protected_files_succeed_without_walls(user, home):
    project = home / "project"
    repository(user, project)
    repository(user, project / "group/repo")
    for name in (".vscode/tasks.json", ".envrc", "source"):
        write(user, project / name)
    found = user.outside(ATTACKS, str(project))
    assert {name: code for name, code in found.items() if code} == {}


def test_a_protected_link_cannot_be_replaced(user, home, env):
    project = home / "project"
    repository(user, project)
    (project / ".git/hooks").rename(project / "shared-hooks")
    (project / ".git/hooks").symlink_to("../shared-hooks")
    free = project / "free"
    free.symlink_to("source")
    write(user, project / "source")
    before = listing(project / ".git")
    code = """
answer = []
for act in (os.unlink, lambda path: os.rename(path, path + "2"), lambda path: open(path + "/x", "w").close()):
    try:
        act(sys.argv[1])
        answer.append(0)
    except OSError as error:
        answer.append(error.errno)
answer.append(os.listdir(sys.argv[1]))
os.unlink(sys.argv[2])
"""
    found = user.inside(
        code, str(project / ".git/hooks"), str(free), flags=("--write", str(project)), env=env
    )
    assert found == [30, 30, 30, ["old"]]
    assert listing(project / ".git") == before
    assert not free.is_symlink()


def test_a_hidden_secret_stays_hidden_in_a_write_grant(user, home, env):
    """Put several secrets below one directory in a write grant. All must be hidden at the same
    time, and the target must not be able to uncover one by renaming a directory above it.
    """
    token = write(user, home / ".config/gh/hosts.yml", "token")
    deep = write(user, home / ".config/Code/User/settings.json", "settings")
    deeper = write(user, home / ".config/Code/Other/file", "plain")
    brave = write(user, home / ".config/BraveSoftware/x", "cookie")
    before = listing(home)
    code = (
        READ
        + """
def attempt_rename(path):
    try:
        os.rename(path, path + "2")
    except OSError as error:
        return error.errno
answer += [attempt_rename(os.path.dirname(os.path.dirname(sys.argv[2]))), attempt_rename(os.path.dirname(sys.argv[1]))]
"""
    )
    flags = ("--write", str(home / ".config"))
    found = user.inside(code, *map(str, (token, deep, deeper, brave)), flags=flags, env=env)
    assert found == ["FileNotFoundError", "FileNotFoundError", "plain", "FileNotFoundError", 16, 16]
    assert listing(home) == before


def test_a_write_grant_inside_a_protected_directory_can_be_written(user, home, env):
    project = home / "project"
    state = write(user, project / ".claude/state/log")
    settings = write(user, project / ".claude/settings.json")
    code = """
answer = []
for path in sys.argv[1:]:
    try:
        open(path, "a").write("more")
        answer.append(0)
    except OSError as error:
        answer.append(error.errno)
"""
    flags = ("--write", str(project), "--write", str(state.parent))
    assert user.inside(code, str(state), str(settings), flags=flags, env=env) == [0, 30]


def test_a_server_below_a_secret_directory_still_runs(user, home, env):
    script = write(
        user,
        home / ".config/Claude/plugins/server.py",
        "import os; print(os.listdir(os.environ['HOME'] + '/.config/Claude'))",
    )
    secret = write(user, home / ".config/Claude/credentials", "token")
    flags = ("--read", str(home / ".config"))
    done = user.run(user.python, str(script), flags=flags, env=env)
    assert done.returncode == 0, done.stderr
    assert user.inside(READ, str(secret), flags=flags, env=env) == ["FileNotFoundError"]


def test_an_unreachable_secret_does_not_stop_the_run(user, home, env):
    """Put a secret into another user's closed directory, below a directory that root grants. Root's
    target cannot enter the closed directory, but the run must start anyway.
    """
    if user.uid:
        pytest.skip("only root can read a closed directory")
    secret = write(user, home / "shared/closed/.env", "TOKEN=1")
    note = write(user, home / "shared/note", "note")
    os.chown(secret.parent, 4242, 4242)
    secret.parent.chmod(0o700)
    flags = ("--read", str(home / "shared"))
    found = user.inside(READ, str(secret), str(note), flags=flags, env=env)
    assert found == ["FileNotFoundError", "note"]


def test_protected_paths_that_do_not_exist_yet_are_listed(tmp_path):
    (tmp_path / "sub/.git").mkdir(parents=True)
    (tmp_path / "sub/.git/config").write_text("[core]\n\thooksPath = .hooks\n")
    (tmp_path / ".mcp.json").symlink_to("nowhere.json")
    absent = find([grant(tmp_path, "write")]).absent
    for name in (".envrc", ".git", ".hg", "nowhere.json", "sub/.vscode", "sub/.hooks"):
        assert str(tmp_path / name) in absent
    assert not [path for path in absent if "/.git/" in path]
    named = find([grant(tmp_path, "write"), grant(tmp_path / "sub/.git", "write")])
    assert str(tmp_path / "sub/.git/commondir") in named.absent
    assert named.named == (str(tmp_path / "sub/.git"),)
    assert find([grant(tmp_path, "read")]).absent == ()


def test_a_path_below_a_protected_directory_gets_no_mask_of_its_own(tmp_path):
    for name in (".claude/hooks", ".cursor/.git/hooks/x", ".git/hooks"):
        (tmp_path / name).mkdir(parents=True)
    found = find([grant(tmp_path, "write")])
    assert {mask.kind for mask in found.masks} == {"protect"}
    assert paths(found, tmp_path) == {".claude", ".cursor", ".git"}


def test_broken_and_circular_links_are_only_made_unchangeable(tmp_path):
    (tmp_path / ".envrc").symlink_to(".envrc")
    (tmp_path / ".vscode").symlink_to("/nonexistent/x")
    found = find([grant(tmp_path, "write")]).masks
    assert {(mask.path, mask.kind, mask.directory) for mask in found} == {
        (f"{tmp_path}/.envrc", "protect", False),
        (f"{tmp_path}/.vscode", "protect", False),
    }


def test_a_search_that_reaches_its_bound_is_reported(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"repo{number}/.git/hooks").mkdir(parents=True)
    for name in (".git/hooks", ".vscode", "later/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".env").write_text("")
    grants = [grant(tmp_path, "write")]
    assert len(find(grants).masks) == 23
    assert find(grants).unsearched == ()
    for limit, value in (("MAX_ENTRIES", 5), ("MAX_SECONDS", -1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(masks, limit, value)
            found = find(grants)
        # corral looks for these paths by name, so it finds them even if the search ends early.
        assert paths(found, tmp_path) >= {".git", ".vscode", ".env"}
        assert len(found.masks) < 23
        assert str(tmp_path) in found.unsearched
    monkeypatch.setattr(masks, "MAX_MASKS", 5)
    with pytest.raises(PolicyError) as refused:
        find(grants)
    assert refused.value.hint.startswith(f"grant less, such as --write {tmp_path}/repo")


def test_a_strict_run_refuses_unsearched_directories():
    from corral.policy.model import Policy

    found = masks.Found(unsearched=("/a", "/b"))
    text = "not searched for secrets and hooks: /a and 1 more directories"
    assert host_files._warnings(Policy(), found) == (text,)
    with pytest.raises(PolicyError, match="not searched"):
        host_files._warnings(Policy(strict=True), found)


def test_directories_of_installed_dependencies_are_not_searched(tmp_path):
    for name in ("node_modules/x", "venv/lib/python3/site-packages/x", "venv/src/x"):
        (tmp_path / name / ".git").mkdir(parents=True)
    assert paths(find([grant(tmp_path, "write")]), tmp_path) == {"venv/src/x/.git"}


def test_secrets_and_repositories_are_found_in_deep_directories(tmp_path):
    for name in ("a/b/c/leaf", "a/b/c/inner/more"):
        (tmp_path / name).mkdir(parents=True)
    names = (".env", ".env.local", ".env.other", ".git")
    for place in ("a/b/c/leaf", "a/b/c/inner"):
        for name in (*names, "plain"):
            (tmp_path / place / name).write_text("")
    found = paths(find([grant(tmp_path, "write")]), tmp_path / "a/b/c")
    assert found == {f"{place}/{name}" for place in ("leaf", "inner") for name in names}


def test_a_planted_file_does_not_end_the_search(tmp_path):
    """Plant a fake virtual environment, a fake repository, and FIFOs at paths that corral would
    read. The search for secrets and repositories must continue behind them.
    """
    (tmp_path / "lib/sub/.git").mkdir(parents=True)
    for name in ("pyvenv.cfg", "HEAD", "objects"):
        (tmp_path / "lib" / name).write_text("")
    os.mkfifo(tmp_path / ".git")
    (tmp_path / "lib/sub/.env").write_text("")
    os.mkfifo(tmp_path / "lib/sub/.git/config")
    found = find([grant(tmp_path, "write")])
    assert paths(found, tmp_path) == {".git", "lib", "lib/sub/.env"}


def plant_index(git: pathlib.Path, *names: bytes, first: bytes = b"") -> None:
    """Write a git index of version 4, with a file whose name is `first`, and one submodule
    (gitlink) for each of the `names`.

    In this version, names are compressed: the first byte of each name is the number of bytes to
    drop from the end of the previous name. The other bytes are then appended. `names` are already
    compressed, but `first` is not.
    """
    git.mkdir()
    entries = [(b"\0\0\x81\xa4", b"\0" + first), *((b"\0\0\xe0\0", name) for name in names)]
    packed = [bytes(24) + mode + bytes(32) + b"\0\1" + name + b"\0" for mode, name in entries]
    head = b"DIRC" + (4).to_bytes(4, "big") + len(packed).to_bytes(4, "big")
    (git / "index").write_bytes(head + b"".join(packed))


def test_an_index_with_ever_longer_names_is_not_expanded(tmp_path):
    """Use an index in which each name is a little longer than the one before. With ten thousand
    names, the last would be megabytes long. corral must not build such names, because that would
    take minutes.
    """
    plant_index(tmp_path / "long", b"\0b", first=b"a" * 5000)
    plant_index(tmp_path / "short", b"\0b", first=b"a" * 4000)
    top = str(tmp_path)
    assert not list(repositories.find_submodules(top, [f"{top}/long"]))
    assert list(repositories.find_submodules(top, [f"{top}/short"])) == [f"{top}/{'a' * 4000}b"]


def test_the_total_size_of_read_indexes_is_bounded(tmp_path):
    (tmp_path / ".git").mkdir()
    for number in range(300):
        with open(tmp_path / f".git/sharedindex.{number}", "wb") as file:
            file.truncate(1 << 20)

    def bytes_read() -> int:
        with open("/proc/self/io") as file:
            return int(file.readline().removeprefix("rchar:"))

    before = bytes_read()
    find([grant(tmp_path, "write")])
    assert bytes_read() - before < 2 * repositories.MAX_INDEX_BYTES


@pytest.mark.parametrize("count", [1000, 1001])
def test_an_index_with_too_many_submodules_is_refused(tmp_path, count):
    names = [b"\x06%06d" % number for number in range(count)]
    names[0] = names[0].replace(b"\x06", b"\0")
    plant_index(tmp_path / ".git", *names)
    if count > masks.MAX_MASKS:
        with pytest.raises(PolicyError, match="paths to hide or protect"):
            find([grant(tmp_path, "write")])
    else:
        assert str(tmp_path / "000999") in find([grant(tmp_path, "write")]).absent


def test_mercurial_subrepositories_are_not_searched(tmp_path):
    """Check that corral does not protect the paths in `.hgsub`. The target can write other paths to
    this file, so the protection would be useless.
    """
    (tmp_path / ".hg").mkdir()
    (tmp_path / "there/.hg").mkdir(parents=True)
    (tmp_path / ".hgsub").write_text("there = x\nabsent = y\n")
    found = find([grant(tmp_path, "write")])
    assert paths(found, tmp_path) == {".hg", "there/.hg"}
    assert not [path for path in found.absent if "/absent" in path]


def test_submodules_worktrees_and_bare_repositories_are_protected(tmp_path):
    for name in ("HEAD", "objects/x", "hooks/x", "config"):
        for base in (".git", ".git/modules/lib/one", ".git/modules/lib/one/modules/two", "bare"):
            (tmp_path / base / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / base / name).write_text("")
    (tmp_path / ".git/worktrees/w").mkdir(parents=True)
    (tmp_path / ".git/worktrees/w/HEAD").write_text("")
    (tmp_path / ".git/worktrees/w/commondir").write_text("../..")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/.git").write_text("gitdir: ../.git/worktrees/w")
    write = [grant(tmp_path, "write")]
    assert paths(find(write), tmp_path) == {".git", "bare", "w/.git"}
    named = find([*write, grant(tmp_path / ".git", "write")])
    modules = (".git/modules/lib/one", ".git/modules/lib/one/modules/two")
    assert paths(named, tmp_path) == {
        "bare",
        "w/.git",
        ".git/worktrees/w/commondir",
        *(f"{base}/{name}" for base in (".git", *modules) for name in ("hooks", "config")),
    }
    # Grant the worktree and its repository separately: one for writing, the other for reading.
    apart = find([grant(tmp_path / "w", "write"), grant(tmp_path / ".git", "read")])
    assert paths(apart, tmp_path) == {"w/.git"}


def test_paths_in_a_repositorys_settings_are_protected(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        '[include]\n  path = ~/more\n[core] pager = "tools/pager -x"\n'
    )
    (home / "more").write_text("[core]\nHOOKSPATH=team # ours\n")
    top = tmp_path / "repo"
    for name in ("team/x", "tools/pager", "tools/fix", "tools/hg.py", "tools/free", "inc", "inc2"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")
    (top / ".git").mkdir()
    (top / ".git/config").write_text(
        '[includeIf "gitdir:a]b"]\n\tpath = ../inc ; x\n[filter "y"]\n\tclean = sh tools/fix %f\n'
    )
    (top / "inc").write_text("[include] path = inc2\n[core] bare = false\n")
    (top / ".hg").mkdir()
    (top / ".hg/hgrc").write_text("[hooks]\ncommit = python:tools/hg.py:run\n")
    found = paths(find([grant(top, "write")], str(home)), top)
    assert found == {
        ".git",
        ".hg",
        "team",
        "tools/pager",
        "tools/fix",
        "tools/hg.py",
        "inc",
        "inc2",
    }
    # Grant only a directory inside the repository. The paths in it are protected, too.
    assert paths(find([grant(top / "tools", "write")], str(home)), top) == {
        "tools/pager",
        "tools/fix",
        "tools/hg.py",
    }


@pytest.mark.parametrize("line", ["%include ../shared.rc", "%include  ../shared.rc ", "# nothing"])
def test_settings_that_mercurial_includes_are_read(tmp_path, line):
    for name in (".hg", "tools"):
        (tmp_path / name).mkdir()
    (tmp_path / ".hg/hgrc").write_text(f"{line}\n")
    (tmp_path / "shared.rc").write_text("[hooks]\ncommit = ./tools/check.sh\n")
    (tmp_path / "tools/check.sh").touch()
    named = {"shared.rc", "tools/check.sh"} if line.startswith("%") else set()
    assert paths(find([grant(tmp_path, "write")]), tmp_path) == {".hg", *named}


def test_links_in_a_hooks_directory_are_followed(tmp_path):
    for name in (".git/hooks", "scripts", ".git/modules/m/hooks", "team"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("one", "two", "three", "free"):
        (tmp_path / "scripts" / name).write_text("")
    (tmp_path / ".git/config").write_text("[core]\n\thooksPath = team\n")
    (tmp_path / ".git/modules/m/HEAD").write_text("")
    (tmp_path / ".git/hooks/pre-commit").symlink_to("../../scripts/one")
    (tmp_path / ".git/modules/m/hooks/pre-push").symlink_to(tmp_path / "scripts/two")
    (tmp_path / "team/pre-commit").symlink_to("../scripts/three")
    found = paths(find([grant(tmp_path, "write")]), tmp_path)
    assert found == {".git", "team", "scripts/one", "scripts/two", "scripts/three"}


def test_planted_settings_and_submodules_take_bounded_time(tmp_path, monkeypatch):
    """Plant repositories with long settings and with very many submodules. corral must limit how
    many paths from them it looks at.
    """
    for number in range(3):
        git = tmp_path / f"r{number}/.git"
        git.mkdir(parents=True)
        (git / "config").write_text("[core]\n" + "x = a b c\n" * 10_000)
        (git / "commondir").write_text("../../big")
    (tmp_path / "big/modules").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"big/modules/{number}").mkdir()
    looked: list[str] = []
    is_file = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: looked.append(path) or is_file(path))
    assert "big" in paths(find([grant(tmp_path, "write")]), tmp_path)
    assert 1000 < len(looked) < 3 * 2 * repositories.MAX_WORDS + 1000


def test_a_grant_of_a_directory_of_git_hooks_is_reported(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "hooks").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n\thooksPath = hooks\n")
    assert find([grant(tmp_path / "hooks", "write")]).named == (str(tmp_path / "hooks"),)
    assert find([grant(tmp_path, "write")]).named == ()


def test_a_file_behind_a_hook_link_of_an_outer_repository_is_masked(tmp_path):
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/hook").write_text("")
    (tmp_path / ".git/hooks/pre-commit").symlink_to("../../src/hook")
    found = find([grant(tmp_path / "src", "write")])
    assert [(mask.path, mask.role) for mask in found.masks] == [(f"{tmp_path}/src/hook", "")]


def test_repository_pointers_of_other_version_controls_are_followed(tmp_path):
    for name in ("a/.hg", "b/.jj/repo/store", "shared", "git"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/.hg/sharedpath").write_text(f"{tmp_path}/shared\n")
    (tmp_path / "b/.jj/repo/store/git_target").write_text("../../../../git")
    found = find([grant(tmp_path, "write")])
    assert paths(found, tmp_path) == {"a/.hg", "b/.jj", "shared", "git"}
    assert {mask.role for mask in found.masks} == {"repository"}


def test_secrets_are_hidden_in_a_part_of_the_home_that_is_mounted_elsewhere(tmp_path, monkeypatch):
    """Grant a directory of the home under another path, as after a bind mount. corral must hide the
    same secrets at this path.
    """
    home, other = tmp_path / "home", tmp_path / "elsewhere"
    (other / "gh").mkdir(parents=True)
    table = {"/": ("8:1", "/"), str(other): ("8:1", f"{home}/.config")}
    monkeypatch.setattr(masks, "read_mounts", lambda: table)
    assert paths(find([grant(other)], str(home)), other) == {"gh"}
