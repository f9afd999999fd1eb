"""Test how corral edits clients' files. Each file is replaced as a whole or not at all, keeps its
mode, and can be restored.
"""

import json
import os
import pathlib
import shlex
import stat
import subprocess
import sys

import pytest

from corral.clients import backups as originals
from corral.clients import catalogue, edit_file, safe_write
from corral.clients.corral_path import find_corral, is_corral
from corral.clients.edit_file import lock_client_file, unwrap_file
from corral.clients.find_server import fill_variables, find_server
from corral.clients.wrap import WrapRequest, propose
from corral.directories import directories
from corral.errors import SandboxError

REQUEST = WrapRequest(corral="/usr/bin/corral")
TEXT = '{\r\n\t"mcpServers": { // mine\r\n\t\t"a": {"command": "node", "args": ["x"], "env": {"A_TOKEN": "hunter2", "B": "b"}}}}'
posix = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX modes and links")


def wrap_file(path, request, *, dry_run=False):
    """Wrap a file as `corral wrap` does, but do not check whether its servers would start here."""
    with lock_client_file(path, dry_run=dry_run) as file:
        proposals = propose(file.servers, request)
        return edit_file.wrap_file(file, proposals, request.corral, dry_run=dry_run)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Return a new, empty home."""
    for name in (
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "CODEX_HOME",
        "CLAUDE_CONFIG_DIR",
        "APPDATA",
        "LOCALAPPDATA",
    ):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    return home


@pytest.fixture
def config(home):
    path = home / "mcp.json"
    path.write_bytes(TEXT.encode())
    path.chmod(0o640)
    return path


def everything(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def state():
    return os.path.join(directories().state, "clients")


def test_wrap_and_unwrap_restore_the_bytes_and_the_mode(config):
    done = wrap_file(str(config), REQUEST)
    assert config.read_bytes() != TEXT.encode()
    with open(done.backup, "rb") as backup:
        assert backup.read() == TEXT.encode()
    assert b"/usr/bin/corral" in config.read_bytes()
    undone = unwrap_file(str(config))
    assert config.read_bytes() == TEXT.encode()
    assert undone.outcomes[0].state == "restored"
    assert [path.name for path in config.parent.glob(".mcp.json*")] == []
    if sys.platform != "win32":
        assert stat.S_IMODE(config.stat().st_mode) == 0o640


def test_wrapping_again_writes_nothing(config):
    wrap_file(str(config), REQUEST)
    before, inode = config.read_bytes(), config.stat().st_ino
    again = wrap_file(str(config), REQUEST)
    assert (config.read_bytes(), config.stat().st_ino, again.backup) == (before, inode, "")
    unwrap_file(str(config))
    inode = config.stat().st_ino
    assert unwrap_file(str(config)).outcomes == ()
    assert config.stat().st_ino == inode


def test_a_dry_run_writes_nothing_and_shows_no_secret(config, home):
    before = everything(home)
    edit = wrap_file(str(config), REQUEST, dry_run=True)
    assert everything(home) == before
    assert (
        '+\t\t"a": {"command": "/usr/bin/corral", "args": ["run", "--secret", "A_TOKEN"'
        in edit.diff
    )
    assert "hunter2" not in edit.diff
    assert '"***"' in edit.diff


@pytest.mark.parametrize("name", ["a.json", "a.toml", "a.yaml"])
def test_a_secret_of_one_letter_is_masked_only_in_its_own_place(home, name):
    text = {
        "a.json": '{"mcpServers": {"a": {"command": "node", "env": {"A_TOKEN": "e", "B": "e"}}}}',
        "a.toml": '[mcp_servers.a]\ncommand = "node"\nenv = {A_TOKEN = "e", B = "e"}\n',
        "a.yaml": "mcpServers:\n  a:\n    command: node\n    env: {A_TOKEN: e, B: e}\n",
    }[name]
    (home / name).write_text(text)
    diff = wrap_file(str(home / name), REQUEST, dry_run=True).diff
    assert "node" in diff
    shown = diff.replace('"', "").replace(" ", "").replace("=", ":")
    assert "A_TOKEN:***,B:e}" in shown
    assert "A_TOKEN:e" not in shown


SECRET = ("k3y-of-mine", "t0ken", "b3arer", "passw0rd", "h3ader", "cl1ents-own")
ARGUMENTS = [
    "--api-key",
    "k3y-of-mine",
    "--token=t0ken-of-mine",
    "--header",
    "Authorization: Bearer b3arer",
]


@pytest.mark.parametrize("name", ["a.json", "a.toml", "a.yaml"])
def test_secrets_elsewhere_in_the_file_are_masked_too(home, name):
    """Check that corral masks secrets in arguments, in addresses, in a remote server's headers, and
    in unrelated settings on the same line.
    """
    args = json.dumps([*ARGUMENTS, "postgres://me:passw0rd@db/x", "kept"])
    text = {
        "a.json": '{"primaryApiKey": "cl1ents-own", "mcpServers": {"far": {"url": "https://x", "headers":'
        f' {{"X-Auth": "h3ader"}}}}, "a": {{"command": "srv", "args": {args}}}}}}}',
        "a.toml": f'auth = "cl1ents-own"\n[mcp_servers.a]\ncommand = "srv"\nargs = {args}\n'
        'http_headers = {X-Auth = "h3ader"}\n',
        "a.yaml": f"apikey: cl1ents-own\nmcpServers:\n  a:\n    command: srv\n    args: {args}\n"
        "    headers:  {X-Auth: h3ader}\n",
    }[name]
    (home / name).write_text(text)
    path = str(home / name)
    there = wrap_file(path, REQUEST).diff
    back = unwrap_file(path).diff
    for diff in (there, back):
        assert "/usr/bin/corral" in diff
        assert '"kept"' in diff
        shown = [word for word in SECRET if word in diff]
        assert shown == []
    assert (home / name).read_text() == text
    # The file itself still contains the secrets.
    assert [word for word in SECRET if word in text] == list(SECRET)


@posix
def test_wraps_records_are_readable_only_by_the_user(config):
    wrap_file(str(config), REQUEST)
    assert stat.S_IMODE(os.stat(state()).st_mode) == 0o700
    names = os.listdir(state())
    assert {name.rpartition(".")[2] for name in names} == {"json", "backup", "lock"}
    for name in names:
        assert stat.S_IMODE(os.stat(os.path.join(state(), name)).st_mode) == 0o600


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="chown needs root")
def test_wrap_keeps_the_owner_of_a_file(config):
    os.chown(config, 4321, 8765)
    wrap_file(str(config), REQUEST)
    assert (config.stat().st_uid, config.stat().st_gid) == (4321, 8765)


@posix
def test_a_link_to_a_configuration_stays_and_its_file_is_changed(config, home):
    (home / "dotfiles").mkdir()
    real = home / "dotfiles" / "settings"
    config.rename(real)
    config.symlink_to("dotfiles/settings")
    edit = wrap_file(str(config), REQUEST)
    assert edit.real == str(real)
    assert config.is_symlink()
    assert b"/usr/bin/corral" in real.read_bytes()
    unwrap_file(str(config))
    assert real.read_bytes() == TEXT.encode()


@posix
def test_records_belong_to_the_real_file_and_not_to_its_name(config, home):
    other = home / "other.json"
    other.symlink_to(config)
    wrap_file(str(other), REQUEST)
    assert unwrap_file(str(config)).outcomes[0].state == "restored"


@posix
def test_a_file_with_two_hard_links_is_refused(config, home):
    os.link(config, home / "second.json")
    with pytest.raises(SandboxError, match="2 hard links"):
        wrap_file(str(config), REQUEST)
    assert config.read_bytes() == TEXT.encode()


@posix
def test_a_read_only_file_is_refused_for_every_user(config):
    config.chmod(0o444)
    with pytest.raises(SandboxError, match="is read-only") as caught:
        wrap_file(str(config), REQUEST)
    assert config.read_bytes() == TEXT.encode()
    command = shlex.split(caught.value.hint.rpartition(": ")[2])
    assert command == ["chmod", "u+w", str(config.resolve())]
    subprocess.run(command, check=True)
    wrap_file(str(config), REQUEST)  # now the file can be wrapped


UNREADABLE = {
    b"": "is empty",
    b" \r\n\t": "is empty",
    b"\xef\xbb\xbf\n": "is empty",
    b'{"mcpServers": {"a": {"command": "nod': "line 1, column 34: this string does not end",
    b'{"mcpServers": {"a": \xff}}': "not UTF-8",
    TEXT.encode("utf-16"): "not UTF-8",
    b"\0" * 100: "is not allowed here",
    b"not json": "is not allowed here",
}


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_broken_file_is_reported_and_not_changed(config, content):
    config.write_bytes(content)
    for work in (lambda: wrap_file(str(config), REQUEST), lambda: unwrap_file(str(config))):
        with pytest.raises(SandboxError, match=UNREADABLE[content]) as caught:
            work()
        assert str(config) in caught.value.message
        assert config.read_bytes() == content


def test_a_half_written_file_is_an_error_or_is_complete(config):
    """Truncate the file at every byte, as if the client was killed while writing it. corral must
    refuse each truncated file and leave it unchanged.
    """
    content = TEXT.encode()
    for length in range(1, len(content)):
        config.write_bytes(content[:length])
        with pytest.raises(SandboxError):
            wrap_file(str(config), REQUEST)
        assert config.read_bytes() == content[:length]


def test_a_huge_file_is_refused_without_reading_it(config):
    with open(config, "wb") as stream:
        stream.truncate(safe_write.MAX_SIZE + 1)
    with pytest.raises(SandboxError, match="larger than"):
        wrap_file(str(config), REQUEST)


def test_a_large_file_is_accepted(config):
    """Wrap a server in a large file. `.claude.json` can be large, because Claude Code also keeps
    histories in it.
    """
    history = [{"display": f"line {n}", "pasted": {}} for n in range(5_000)]
    text = json.dumps(
        {"history": history, "projects": {"/p": {"mcpServers": {"a": {"command": "node"}}}}}
    )
    config.write_text(text)
    assert wrap_file(str(config), REQUEST).outcomes[0].scope == "/p"
    unwrap_file(str(config))
    assert config.read_text() == text


@pytest.mark.parametrize("name", ["mcp.ini", "mcp", "config"])
def test_a_file_in_an_unknown_format_is_refused(home, name):
    (home / name).write_text("x")
    with pytest.raises(SandboxError, match="corral reads only files that end in"):
        wrap_file(str(home / name), REQUEST)


@posix
def test_paths_that_are_not_files_are_refused(home):
    os.mkfifo(home / "fifo.json")
    (home / "directory.json").mkdir()
    (home / "loop.json").symlink_to("loop.json")
    for name in ("fifo.json", "directory.json", "loop.json", "absent.json"):
        with pytest.raises(SandboxError, match=r"not a regular file|cannot be read"):
            wrap_file(str(home / name), REQUEST)


def test_a_file_that_another_program_changed_is_not_replaced(config, monkeypatch):
    """Change the configuration file after corral has read it but before corral replaces it."""
    replace = safe_write.replace_file

    def slow(path, data, **options):
        if path == str(config):
            config.write_bytes(b'{"theirs": 1}')
        replace(path, data, **options)

    monkeypatch.setattr(safe_write, "replace_file", slow)
    with pytest.raises(SandboxError, match="changed by another program"):
        wrap_file(str(config), REQUEST)
    assert config.read_bytes() == b'{"theirs": 1}'
    assert [path.name for path in config.parent.glob(".mcp.json*")] == []


def test_a_file_replaced_by_an_equal_one_counts_as_changed(config, monkeypatch):
    replace = safe_write.replace_file

    def slow(path, data, **options):
        if path == str(config):
            fresh = config.with_name("fresh")
            fresh.write_bytes(TEXT.encode())
            os.replace(fresh, config)
        replace(path, data, **options)

    monkeypatch.setattr(safe_write, "replace_file", slow)
    with pytest.raises(SandboxError, match="changed by another program"):
        wrap_file(str(config), REQUEST)


CRASH = """
import os, sys
sys.path.insert(0, sys.argv[1])
from corral.clients.edit_file import lock_client_file, wrap_file
from corral.clients.wrap import WrapRequest, propose
real, count = os.replace, [0]
def replace(one, other):
    count[0] += 1
    if count[0] == int(sys.argv[3]):
        os._exit(9)
    real(one, other)
os.replace = replace
request = WrapRequest(corral="/usr/bin/corral")
with lock_client_file(sys.argv[2], dry_run=False) as file:
    wrap_file(file, propose(file.servers, request), request.corral)
"""


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_crash_at_any_step_loses_nothing(config, moment):
    """Kill corral just before it replaces the backup, the record or the configuration."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(edit_file.__file__)))
    argv = [sys.executable, "-c", CRASH, source, str(config), str(moment)]
    assert subprocess.run(argv, check=False).returncode == 9
    assert config.read_bytes() == TEXT.encode()
    wrap_file(str(config), REQUEST)
    assert unwrap_file(str(config)).outcomes[0].state == "restored"
    assert config.read_bytes() == TEXT.encode()


@posix
def test_a_record_that_others_can_read_is_ignored(config):
    wrap_file(str(config), REQUEST)
    [record] = [
        os.path.join(state(), name) for name in os.listdir(state()) if name.endswith(".json")
    ]
    assert originals.load(str(config))
    os.chmod(record, 0o644)
    assert originals.load(str(config)) == {}
    assert unwrap_file(str(config)).outcomes[0].state == "derived"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"path": 1}', '{"servers": [{"at": 1}]}'])
def test_a_broken_record_is_ignored(config, content):
    wrap_file(str(config), REQUEST)
    [record] = [
        os.path.join(state(), name) for name in os.listdir(state()) if name.endswith(".json")
    ]
    with open(record, "w", encoding="utf-8") as stream:
        stream.write(content)
    assert originals.load(str(config)) == {}


@posix
def test_a_directory_of_records_that_others_can_use_is_refused(config):
    os.makedirs(state())
    os.chmod(state(), 0o755)
    with pytest.raises(SandboxError, match="only you can"):
        wrap_file(str(config), REQUEST)
    assert config.read_bytes() == TEXT.encode()


def test_a_state_directory_that_cannot_be_made_is_reported(config):
    place = directories().state
    os.makedirs(os.path.dirname(place))
    with open(place, "w", encoding="utf-8"):
        pass
    with pytest.raises(SandboxError, match="cannot record") as caught:
        wrap_file(str(config), REQUEST)
    assert caught.value.hint.startswith("nothing was changed; set XDG_STATE_HOME")
    assert config.read_bytes() == TEXT.encode()


def test_only_the_last_backups_are_kept(config):
    for _ in range(originals.MAX_BACKUPS):
        wrap_file(str(config), REQUEST)
        unwrap_file(str(config))
    backups = [name for name in os.listdir(state()) if name.endswith(".backup")]
    assert len(backups) == originals.MAX_BACKUPS


HOME = "/home/me" if sys.platform != "win32" else "C:\\Users\\me"
PATHS = {
    "linux": {
        "claude-desktop": ".config/Claude/claude_desktop_config.json",
        "claude-code": ".claude.json",
        "cursor": ".cursor/mcp.json",
        "vscode": ".config/Code/User/mcp.json",
        "windsurf": ".codeium/windsurf/mcp_config.json",
        "zed": ".config/zed/settings.json",
        "gemini": ".gemini/settings.json",
        "codex": ".codex/config.toml",
        "cline": ".cline/data/settings/cline_mcp_settings.json",
        "continue": ".continue/config.yaml",
        "goose": ".config/goose/config.yaml",
    },
    "darwin": {
        "claude-desktop": "Library/Application Support/Claude/claude_desktop_config.json",
        "vscode": "Library/Application Support/Code/User/mcp.json",
        "zed": ".config/zed/settings.json",
        "goose": ".config/goose/config.yaml",
    },
    "win32": {
        "claude-desktop": "AppData/Roaming/Claude/claude_desktop_config.json",
        "vscode": "AppData/Roaming/Code/User/mcp.json",
        "zed": "AppData/Roaming/Zed/settings.json",
        "goose": "AppData/Roaming/Block/goose/config/config.yaml",
        "cursor": ".cursor/mcp.json",
    },
}


@pytest.mark.parametrize("platform", PATHS)
def test_each_client_has_its_files_on_each_system(platform):
    environ = {"HOME": HOME, "USERPROFILE": HOME}
    for name, path in PATHS[platform].items():
        found = catalogue.own_files(catalogue.find_client(name), platform=platform, environ=environ)
        assert found[0] == os.path.join(HOME, *path.split("/"))


def test_environment_variables_move_a_configuration():
    environ = {
        "HOME": HOME,
        "USERPROFILE": HOME,
        "CODEX_HOME": os.path.join(HOME, "c"),
        "XDG_CONFIG_HOME": "relative",
    }
    codex, goose = (
        catalogue.own_files(catalogue.find_client(name), platform="linux", environ=environ)[0]
        for name in ("codex", "goose")
    )
    assert codex == os.path.join(HOME, "c", "config.toml")
    assert goose == os.path.join(HOME, ".config", "goose", "config.yaml")


def test_every_client_has_a_page_with_its_command():
    pages = pathlib.Path(__file__).parents[3] / "docs" / "clients"
    for client in catalogue.CLIENTS:
        text = (pages / f"{client.name}.md").read_text(encoding="utf-8")
        assert f"corral wrap {client.name}\n" in text
        for file in client.project:
            assert file.partition("*")[0] in text


def write(home, path, data):
    (home / path).parent.mkdir(parents=True, exist_ok=True)
    (home / path).write_text(json.dumps(data))


def test_a_server_is_found_by_client_and_name(home, monkeypatch):
    monkeypatch.setenv("WHO", "me")
    entry = {
        "command": "node",
        "args": ["${WHO}", "x"],
        "env": {"T": "${env:WHO}", "U": "${NOT:-else}"},
        "cwd": "${userHome}",
    }
    write(home, ".cursor/mcp.json", {"mcpServers": {"a": entry}})
    found = find_server("cursor:a")
    assert (found.argv, found.env) == (("node", "me", "x"), {"T": "me", "U": "else"})
    assert (found.cwd, found.flags) == (str(home), ())


def test_a_wrapped_server_is_found_by_its_inner_command(home):
    entry = {"command": "uvx", "args": ["mcp-server-time"]}
    write(home, ".cursor/mcp.json", {"mcpServers": {"a": entry}})
    assert find_server("cursor:a").argv == ("pypi:mcp-server-time",)
    wrap_file(str(home / ".cursor/mcp.json"), REQUEST)
    found = find_server("cursor:a")
    assert (found.argv, found.flags) == (("pypi:mcp-server-time",), ("--profile", "time"))


def test_additional_packages_of_a_clients_server_become_flags(home):
    entry = {"command": "uvx", "args": ["--with", "mcp<2", "server"]}
    write(home, ".cursor/mcp.json", {"mcpServers": {"a": entry}})
    found = find_server("cursor:a")
    assert (found.argv, found.flags) == (("pypi:server",), ("--with", "mcp<2"))


def test_flags_for_variables_that_only_the_client_sets_are_left_out(home):
    args = [
        "run",
        "--secret",
        "T_KEY",
        "--env",
        "LANG",
        "--env",
        "A=1",
        "--read",
        "/x",
        "--",
        "srv",
    ]
    entry = {"command": "/usr/bin/corral", "args": args, "env": {"T_KEY": "t"}}
    write(home, ".cursor/mcp.json", {"mcpServers": {"a": entry}})
    found = find_server("cursor:a")
    assert found.flags == ("--env", "LANG", "--env", "A=1", "--read", "/x")
    assert found.env == {"T_KEY": "t"}


def test_a_server_of_the_current_project_is_preferred_to_others_of_its_name(home, monkeypatch):
    here = os.path.realpath(home)
    monkeypatch.chdir(here)
    scopes = {
        here: {"mcpServers": {"a": {"command": "here"}}},
        "/elsewhere": {"mcpServers": {"b": {"command": "b"}}},
    }
    write(
        home, ".claude.json", {"mcpServers": {"a": {"command": "everywhere"}}, "projects": scopes}
    )
    assert find_server("claude-code:a").argv == ("here",)
    with pytest.raises(SandboxError, match="no server 'b'"):
        find_server("claude-code:b")


REFUSED = {
    "nobody:a": "not a client",
    "cursor:nothing": "no server",
    "cursor:far": "remote",
    "cursor:box": "container",
    "cursor:asks": "only the client itself",
    "cursor:unset": "the environment variable NOT_SET_ANYWHERE is not set",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_that_cannot_be_run_is_reported(home, name):
    servers = {
        "far": {"url": "https://x"},
        "box": {"command": "docker", "args": ["run", "x"]},
        "asks": {"command": "x", "env": {"K": "${input:key}"}},
        "unset": {"command": "x", "args": ["${NOT_SET_ANYWHERE}"]},
    }
    write(home, ".cursor/mcp.json", {"mcpServers": servers})
    with pytest.raises(SandboxError, match=REFUSED[name]):
        find_server(name)


def test_placeholders_that_only_an_editor_can_fill_in_are_refused():
    for text in ("${workspaceFolder}/x", "${fileDirname}", "${input:x}", "${config:x}"):
        with pytest.raises(SandboxError):
            fill_variables(text)
    assert fill_variables("$5 {x} $HOME") == "$5 {x} $HOME"


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@posix
def test_corral_is_written_with_the_path_that_started_it(home, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    monkeypatch.setattr(
        "corral.clients.corral_path._temporary_directories", lambda: ["/nonexistent"]
    )
    real = program(home / "venvs" / "bin" / "corral")
    link = home / "bin" / "corral"
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.setattr(sys, "argv", [str(link)])
    # An upgrade may remove the file behind the link, so corral must use the link.
    assert find_corral() == str(link)
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "executable", str(home / "venvs" / "bin" / "python"))
    assert find_corral() == real
    monkeypatch.setattr(sys, "executable", str(home / "nowhere" / "python"))
    with pytest.raises(SandboxError, match="cannot find its own program"):
        find_corral()
    assert find_corral(real) == real
    with pytest.raises(SandboxError, match="cannot be executed"):
        find_corral(str(home / "absent"))


@posix
@pytest.mark.parametrize(
    "place",
    [
        ".cache/uv/archive-v0/abc/bin/corral",
        ".local/pipx/.cache/abc/bin/corral",
        "tmp/x/bin/corral",
    ],
)
def test_a_corral_in_a_temporary_directory_is_refused(home, monkeypatch, place):
    monkeypatch.setattr(
        "corral.clients.corral_path._temporary_directories", lambda: [str(home / "tmp")]
    )
    monkeypatch.setattr(sys, "argv", [program(home / place)])
    with pytest.raises(SandboxError, match="temporary directory") as caught:
        find_corral()
    # corral is in no package index, so the hint installs from a checkout
    assert "`uv tool install .`" in caught.value.hint


@pytest.mark.parametrize("word", ["corral", "/x/corral", "C:\\x\\corral.exe", "CORRAL.EXE"])
def test_programs_named_corral_are_recognized(word):
    assert is_corral(word)
    assert not is_corral(f"{word}x")
