"""Secrets and self-starting files inside granted directories, tried from inside; nothing is left behind."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from corral.platforms.linux.mechanisms import masks
from corral.platforms.linux.mechanisms.masks import created, find, protected_absent
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
ALLOWED = {"object", "index", "source"}


@pytest.fixture
def home(user, scratch) -> pathlib.Path:
    """A home directory of the user's with nothing in it yet."""
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
    """Everything that a run could change below a directory."""
    found = {}
    for path in [root, *root.rglob("*")]:
        seen = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(seen.st_mode) else b""
        link = os.readlink(path) if path.is_symlink() else ""
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_ino, seen.st_nlink, content, link)
    return found


def grant(path: pathlib.Path, access: str = "read") -> Grant:
    return make_grant(access, str(path))


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


def test_naming_a_secret_shows_it(user, home, env):
    key = write(user, home / ".config/gh/hosts.yml", "key")
    token = write(user, home / ".config/rclone/rclone.conf", "token")
    flags = ("--read", str(home / ".config"), "--read", str(key.parent))
    found = user.inside(READ, str(key), str(token), flags=flags, env=env)
    assert found == ["key", "FileNotFoundError"]


def test_naming_a_file_in_a_secret_directory_shows_only_that(user, home, env):
    key = write(user, home / ".config/gh/hosts.yml", "key")
    other = write(user, home / ".config/gh/more/id", "key")
    config = write(user, home / ".config/gh/more/config", "Host x")
    flags = ("--read", str(home / ".config"), "--read", str(config))
    found = user.inside(READ, *map(str, (key, other, config)), flags=flags, env=env)
    assert found == ["", "", "Host x"]


def test_a_secret_behind_a_link_is_hidden_where_it_lies(user, home, env):
    key = write(user, home / "dotfiles/ssh/id_rsa", "key")
    near = write(user, home / "dotfiles/readme", "hello")
    (home / ".ssh").symlink_to("dotfiles/ssh")
    # The link leads into a grant that does not hold it.
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


def test_what_starts_by_itself_cannot_be_changed_in_a_write_grant(user, home, env):
    project = home / "project"
    repository(user, project)
    repository(user, project / "group/repo")
    for name in (".vscode/tasks.json", ".envrc", "source"):
        write(user, project / name)
    before = listing(project)
    found = user.inside(ATTACKS, str(project), flags=("--write", str(project)), env=env)
    assert {name for name, code in found.items() if code == 0} == ALLOWED
    after = listing(project)
    # Only what the allowed acts made, and the lock file of one that was stopped half-way.
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    names = (".git/config.lock", ".git/objects/ab", ".git/index", "source")
    assert changed == {str(project / name) for name in names}


def test_the_same_acts_succeed_without_walls(user, home):
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
    assert found == [16, 16, 30, ["old"]]
    assert listing(project / ".git") == before
    assert not free.is_symlink()


def test_a_hidden_secret_stays_hidden_in_a_write_grant(user, home, env):
    """Every directory above it is bound once; binding the second mask's must not uncover the first."""
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


def test_a_secret_that_the_target_cannot_reach_anyway_stops_nothing(user, home, env):
    """Root sees into everybody's directories and grants one that holds another user's closed one."""
    if user.uid:
        pytest.skip("only root can look into a closed directory")
    secret = write(user, home / "shared/closed/.env", "TOKEN=1")
    note = write(user, home / "shared/note", "note")
    os.chown(secret.parent, 4242, 4242)
    secret.parent.chmod(0o700)
    flags = ("--read", str(home / "shared"))
    found = user.inside(READ, str(secret), str(note), flags=flags, env=env)
    assert found == ["PermissionError", "note"]


def test_absent_names_are_told_before_and_after(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("")
    (tmp_path / ".mcp.json").symlink_to("nowhere.json")
    absent = protected_absent([grant(tmp_path, "write")], "/nonexistent/home")
    assert str(tmp_path / ".envrc") in absent
    assert str(tmp_path / ".git/hooks") in absent
    assert str(tmp_path / "nowhere.json") in absent
    assert str(tmp_path / ".git/config") not in absent
    assert created(absent) == ()
    (tmp_path / ".envrc").symlink_to("nowhere")
    assert created(absent) == (str(tmp_path / ".envrc"),)
    assert protected_absent([grant(tmp_path, "read")], "/nonexistent/home") == ()


def test_anchors_are_bound_once_and_only_where_something_can_be_renamed(tmp_path):
    home = tmp_path / "home"
    for name in (".config/Code/User/a", ".config/gh/b", ".config/Code - Insiders/User/c"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    assert [mask.anchors for mask in find([grant(home)], str(home))] == [(), (), ()]
    config = home / ".config"
    found = find([grant(home), grant(config, "write")], str(home))
    assert [mask.anchors for mask in found] == [
        (),
        (f"{config}/Code - Insiders",),
        (f"{config}/Code",),
    ]
    both = find([grant(config / "Code", "write"), grant(config, "write")], str(home))
    # Code is a mount point already.
    assert [mask.anchors for mask in both] == [(), (f"{config}/Code - Insiders",), ()]


def test_masks_inside_masks_are_left_out(tmp_path):
    for name in (".claude/hooks", ".cursor/.git/hooks/x", ".git/hooks"):
        (tmp_path / name).mkdir(parents=True)
    found = {mask.path: mask.kind for mask in find([grant(tmp_path, "write")], "/nonexistent/home")}
    assert found == {
        f"{tmp_path}/{name}": "protect" for name in (".claude", ".cursor", ".git/hooks")
    }


def test_links_in_a_circle_and_to_nowhere_are_only_pinned(tmp_path):
    (tmp_path / ".envrc").symlink_to(".envrc")
    (tmp_path / ".vscode").symlink_to("/nonexistent/x")
    found = find([grant(tmp_path, "write")], "/nonexistent/home")
    assert {(mask.path, mask.kind, mask.directory) for mask in found} == {
        (f"{tmp_path}/.envrc", "protect", False),
        (f"{tmp_path}/.vscode", "protect", False),
    }


def test_the_search_is_bounded(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"repo{number}/.git/hooks").mkdir(parents=True)
    grants = [grant(tmp_path, "write")]
    assert len(find(grants, "/nonexistent/home")) == 20
    monkeypatch.setattr(masks, "MOST_ENTRIES", 5)
    assert len(find(grants, "/nonexistent/home")) == 5


def test_submodules_and_worktrees_and_bare_repositories(tmp_path):
    for name in ("HEAD", "objects/x", "hooks/x", "config"):
        for base in (".git", ".git/modules/lib/one", "bare"):
            (tmp_path / base / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / base / name).write_text("")
    (tmp_path / ".git/worktrees/w").mkdir(parents=True)
    (tmp_path / ".git/worktrees/w/commondir").write_text("../..")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/.git").write_text("gitdir: ../.git/worktrees/w")
    found = {
        mask.path.removeprefix(f"{tmp_path}/")
        for mask in find([grant(tmp_path, "write")], "/nonexistent/home")
    }
    assert found == {
        ".git/hooks",
        ".git/config",
        ".git/modules/lib/one/hooks",
        ".git/modules/lib/one/config",
        ".git/worktrees/w/commondir",
        "bare/hooks",
        "bare/config",
        "w/.git",
    }


def test_a_home_is_known_by_its_inode_too(user, home):
    """A second name of the same directory, as a bind mount gives it, hides the same secrets."""
    write(user, home / ".ssh/id_rsa")
    seen = home.stat()
    other = Grant(
        path="/elsewhere/u",
        access="read",
        device=seen.st_dev,
        inode=seen.st_ino,
        directory=True,
        owner=0,
        group=0,
    )
    assert f"{other.path}/.ssh" in {
        path for path, kind in masks._candidates([other], str(home)) if kind == "hide"
    }
