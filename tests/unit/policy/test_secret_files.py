"""Test on each system that corral hides or refuses every file in the table of secret files."""

import os

import pytest

from corral.clients import catalogue
from corral.paths.posix import is_inside
from corral.platforms.linux.mechanisms import masks
from corral.platforms.macos.mechanisms import seatbelt_secrets
from corral.platforms.windows.files import granted_tree
from corral.policy import secret_files, secret_paths
from corral.programs.needed_files import is_shared
from corral.programs.windows_needed_files import Needs

HOME = "/home/me" if os.name == "posix" else "C:\\Users\\me"
PLATFORMS = {"linux": "linux", "macos": "darwin", "windows": "win32"}
WITHOUT_PROGRAMS = (
    secret_files.KEYS, secret_files.HISTORY, secret_files.SHELLS, secret_files.BROWSERS,
)  # fmt: skip


@pytest.mark.parametrize("system", PLATFORMS)
@pytest.mark.parametrize("client", catalogue.CLIENTS, ids=catalogue.NAMES)
def test_every_file_of_a_client_is_hidden(client, system):
    environ = {"HOME": HOME, "USERPROFILE": HOME}
    found = catalogue.own_files(client, platform=PLATFORMS[system], environ=environ)
    names = [os.path.relpath(path, HOME).replace("\\", "/") for path in found]
    assert names
    assert names == [secret_files.expand(name, system) for name in client.files_on(system)]
    for name in names:
        assert any(is_inside(name, secret) for secret in secret_files.hidden(system)), name


@pytest.mark.parametrize("client", catalogue.CLIENTS, ids=catalogue.NAMES)
def test_every_project_file_of_a_client_is_protected(client):
    for name in client.project:
        assert any(is_inside(name, one) for one in secret_files.PROJECT), name


@pytest.mark.parametrize("system", PLATFORMS)
def test_paths_in_the_table_are_below_a_home(system):
    for name in (*secret_files.hidden(system), *secret_files.protected(system)):
        assert name == name.strip("/"), name
        assert not {"", ".", "..", "CONFIG", "CLAUDE", "CODEX"} & set(name.split("/")), name
        assert "\\" not in name


def test_linux_macos_and_windows_hide_every_secret_file_of_the_table():
    assert set(masks.SECRETS) == set(secret_files.hidden("linux"))
    assert set(seatbelt_secrets.SECRETS) == set(secret_files.hidden("macos"))
    for name in secret_files.hidden("windows"):
        above, _, last = name.replace("/", "\\").rpartition("\\")
        assert granted_tree.is_secret(last, above) or not above, name
    for name in secret_files.protected("windows"):
        above, _, last = name.replace("/", "\\").rpartition("\\")
        assert granted_tree.is_starting(last, above) or not above, name
    for name in (".ssh", "id_ed25519", "_netrc", ".claude.json", ".bash_history"):
        assert granted_tree.is_secret(f"a\\b\\c\\{name}")
    assert granted_tree.is_starting(".github\\mcp.json")
    assert not granted_tree.is_starting("readme.md")
    assert not granted_tree.is_secret("readme.md")


@pytest.mark.parametrize("system", ["linux", "macos"])
def test_no_program_makes_a_directory_of_secrets_readable(system, monkeypatch):
    monkeypatch.setattr("sys.platform", PLATFORMS[system])
    homes = {"/home/me"}
    for kind in WITHOUT_PROGRAMS:
        for name in kind.on(system):
            assert is_shared(f"/home/me/{name}", homes), name
            assert is_shared(f"/home/me/{name}/server", homes), name
            assert is_shared(os.path.dirname(f"/home/me/{name}"), homes), name
    assert not is_shared("/home/me/.claude/plugins/server", homes)
    assert not is_shared("/home/me/.sshx/server", homes)
    assert not is_shared("/home/me/projects/server", homes)


def test_no_program_makes_a_directory_of_secrets_readable_on_windows():
    needs = Needs(None, {"SYSTEMROOT": "C:\\Windows"}, "C:\\Users\\me")
    for kind in WITHOUT_PROGRAMS:
        for name in kind.on("windows"):
            path = "C:\\Users\\Me\\" + name.replace("/", "\\").upper()
            assert needs.forbids(path), name
            assert needs.forbids(f"{path}\\server"), name
    assert not needs.forbids("C:\\Users\\me\\AppData\\Roaming\\Claude\\Claude Extensions\\server")
    assert not needs.forbids("C:\\Users\\me\\projects\\server")


def test_a_java_outside_of_an_installation_makes_only_itself_readable():
    needs = Needs(None, {"SYSTEMROOT": "C:\\Windows"}, "C:\\Users\\me")
    for program in ("D:\\bin\\java.exe", "C:\\Users\\me\\bin\\java.exe"):
        needs.runtime(program, "java", "")
        assert list(needs.reads) == [program]
        needs.reads.clear()
    # Sanity check: a java inside a JDK makes the whole JDK directory readable.
    needs.runtime("D:\\jdk\\bin\\java.exe", "java", "")
    assert list(needs.reads) == ["D:\\jdk"]


RUN_BY_OTHERS = (
    ".pythonrc", ".pythonrc.py", ".Rprofile", ".xonshrc", ".bashrc.d/x", ".kshrc", ".pyenv/shims/python",
    ".config/autostart/x.desktop", ".config/foo/settings.toml", ".other/settings.toml", ".config",
    ".local/share", ".local/share/bash-completion/completions/git", "store.git/hooks/post-update",
    "store.git/config", "project/.git/hooks/pre-push", "project/.vscode/tasks.json",
)  # fmt: skip
ORDINARY_FILES = (
    "notes.txt", "project/main.py", "store.git/objects/x", ".local/share/server/data.db",
    ".new-server/data.db", ".cache/server/x", "hooks/post-update", "project/config",
)  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="the paths are POSIX paths")
def test_no_write_of_a_file_that_other_programs_run_is_suggested(tmp_path):
    for name in (".config/foo", ".other", "store.git/objects", "store.git/hooks", "hooks"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "store.git/HEAD").touch()
    home = str(tmp_path)
    for name in RUN_BY_OTHERS:
        assert secret_paths.is_sensitive(f"{home}/{name}", home), name
    for name in ORDINARY_FILES:
        assert not secret_paths.is_sensitive(f"{home}/{name}", home), name
    for path in ("/etc/cron.d/x", "/var/spool/cron/crontabs/me"):
        assert secret_paths.is_sensitive(path, home), path


def test_a_read_is_suggested_unless_the_file_may_contain_secrets():
    for name in (".ssh", ".ssh/config", ".bashrc", "project/.env", ".config", "id_rsa"):
        assert secret_paths.is_sensitive(f"{HOME}/{name}", HOME, access="read"), name
    for name in (".pythonrc", "project/.git/config", "project/.vscode/tasks.json", ".local/bin/x"):
        assert not secret_paths.is_sensitive(f"{HOME}/{name}", HOME, access="read"), name
