"""Wrap every client's configuration, start its servers as the client does, and unwrap it. It must
then have its original bytes.
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tomllib
from subprocess import PIPE

import pytest
import yaml

from corral.clients import catalogue
from corral.formats import jsonc
from corral.messages.client import Client

KEEPS = "keep a home directory of its own between runs"
CLIENT_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
NO_INDEX = "http://127.0.0.1:9/simple"
# The names of this server's tools say what the server can see.
SERVER = """\
import json, os, sys
seen = ["variable-" + name for name in ("API_TOKEN", "LEVEL", "HIDDEN") if name in os.environ]
seen += ["argument-" + word for word in sys.argv[2:]]
try:
    open(sys.argv[1]).close()
    seen.append("private-file")
except OSError:
    pass
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer = {"tools": [{"name": name, "inputSchema": {}} for name in seen]}
        if request["method"] == "initialize":
            answer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)
"""
MCP_SERVERS = """\
{
  // servers of mine
  "mcpServers": {
    "one": {
      "command": "%(python)s", /* python */
      "args": [
        "%(server)s", // the script
        "%(private)s", "first argument"
      ],
      "env": { "API_TOKEN": "hunter2", "LEVEL": "\\u0033" },
    },
    "two": {"args": ["%(server)s", "%(private)s"], "command": "%(python)s", "disabled": false},
    "far": {"url": "https://example.com/mcp"},
    "off": {"command": "%(python)s", "disabled": true},
    "box": {"command": "docker", "args": ["run", "-i", "image"]},
  },
  "theme": "dark", "bell": true,
}
"""
STRICT = """\
{"mcpServers": {
  "one": {"type": "stdio", "command": "%(python)s", "args": ["%(server)s", "%(private)s", "first argument"], "env": {"API_TOKEN": "x", "LEVEL": "3"}},
  "two": {"command": "%(python)s", "args": ["%(server)s", "%(private)s"], "env": {}},
  "far": {"type": "http", "url": "https://example.com/mcp"}
}}
"""
ONE_LIST = """\
{
  // program and arguments are one list
  "mcp": {
    "one": {
      "type": "local",
      "command": ["%(python)s", "%(server)s", "%(private)s", "first argument"],
      "environment": {"API_TOKEN": "x", "LEVEL": "3"},
      "enabled": true,
    },
    "two": {"type": "local", "command": [
      "%(python)s", // python
      "%(server)s", "%(private)s",
    ]},
    "far": {"type": "remote", "url": "https://example.com/mcp", "enabled": true},
  },
  "lsp": {"go": {"command": ["gopls"]}},
}
"""
SETTINGS = {
    "opencode": ONE_LIST,
    "kilo": ONE_LIST,
    "copilot": STRICT.replace('"type": "stdio"', '"type": "local", "tools": ["*"]'),
    "copilot-jetbrains": STRICT.replace("mcpServers", "servers"),
    "junie": STRICT.replace('"type": "stdio", ', ""),
    "qwen": STRICT.replace('{"mcpServers"', '{"mcp": {"allowed": ["one"]}, "mcpServers"'),
    "roo": STRICT.replace('"env": {}', '"disabled": false, "alwaysAllow": []'),
    "amp": STRICT.replace("mcpServers", "amp.mcpServers"),
    "droid": STRICT.replace('"env": {}', '"disabled": false'),
    "crush": STRICT.replace("mcpServers", "mcp"),
    "lmstudio": MCP_SERVERS,
    "kiro": STRICT.replace('"env": {}', '"autoApprove": []'),
    "antigravity": STRICT.replace('"type": "http", "url"', '"serverUrl"'),
    "warp": STRICT,
    "claude-desktop": MCP_SERVERS.replace("\n", "\r\n"),
    "claude-code": """\
{"numStartups": 41, "mcpServers": {"one": {"type": "stdio", "command": "%(python)s", "args": ["%(server)s", "%(private)s", "first argument"], "env": {"API_TOKEN": "x", "LEVEL": "3"}}},
"projects": {"/home/me/project": {"history": [{"display": "a \\"quoted\\" line"}], "mcpServers": {"two": {"command": "%(python)s", "args": ["%(server)s", "%(private)s"], "env": {}}}}}}""",
    "cursor": "\ufeff" + MCP_SERVERS,
    "vscode": MCP_SERVERS.replace("mcpServers", "servers"),
    "windsurf": MCP_SERVERS.replace("https://", "http://")
    .replace('"url"', '"serverUrl"')
    .replace("  ", "\t"),
    "zed": """\
// Zed settings
{
  "vim_mode": true, // of course
  "context_servers": {
    "one": {
      "source": "custom",
      "enabled": true,
      "command": "%(python)s",
      "args": ["%(server)s", "%(private)s", "first argument"],
      "env": {"API_TOKEN": "x", "LEVEL": "3"},
    },
    "two": {"command": {"path": "%(python)s", "args": ["%(server)s", "%(private)s"]}, "settings": {}},
    "extension": {"settings": {"a": 1}},
  },
}
""",
    "gemini": MCP_SERVERS.replace('"disabled": false', '"cwd": "%(home)s", "trust": false').replace(
        "url", "httpUrl"
    ),
    "codex": """\
model = "some"   # a comment

[mcp_servers.one]
command = "%(python)s" # python
args = [
  "%(server)s", # the script
  '%(private)s', "first argument",
]
startup_timeout_sec = 20

  [mcp_servers.one.env]
  API_TOKEN = "x"
  LEVEL = "3"

[mcp_servers]
two = { args = ["%(server)s", "%(private)s"], command = "%(python)s", cwd = "%(home)s" }
far.url = "https://example.com/mcp"

[[tools]]
name = "x"
""",
    "cline": MCP_SERVERS.replace('"disabled": false', '"autoApprove": []'),
    "continue": """\
name: mine
version: 0.0.1
schema: v1
models:
  - name: local # comment
mcpServers:
  - name: one
    command: %(python)s  # python
    args:
      # the script
      - "%(server)s"
      - %(private)s
      - first argument
    env:
      API_TOKEN: x
      LEVEL: '3'
  - {name: two, command: "%(python)s", args: ["%(server)s", "%(private)s"]}
  - name: far
    type: streamable-http
    url: https://example.com/mcp
""",
    "goose": """\
extensions:
  developer:
    type: builtin
    name: developer
    enabled: true
  one:
    type: stdio
    enabled: true
    cmd: %(python)s
    args:
    - %(server)s
    - %(private)s
    - first argument
    envs:
      LEVEL: "3"
      API_TOKEN: x
    env_keys: []
    timeout: 300
  two:
    name: two
    type: stdio
    cmd: %(python)s
    args: ['%(server)s', "%(private)s"]
    enabled: true
GOOSE_MODEL: some
""",
}


class Desk:
    """A home with a client's file, an executable `corral` and a server."""

    def __init__(self, user, home):
        self.user, self.home = user, home
        self.private = self.put("private.txt", "private")
        self.server = self.put("server.py", SERVER)
        code = f"#!{user.python}\nimport sys\nsys.path.insert(0, {str(user.package)!r})\nfrom corral.cli import main\nsys.exit(main())\n"
        self.corral_path = self.put("bin/corral", code, mode=0o755)
        # The user's Python may have no PyYAML, so copy this interpreter's.
        shutil.copytree(os.path.dirname(yaml.__file__), home / "lib" / "yaml")
        (home / "lib").chmod(0o755)

    def put(self, name, text, mode=0o644):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(mode)
        for one in (path, *path.parents):
            if one == self.home:
                break
            os.chown(one, self.user.owner, self.user.owner)
        return path

    def environment(self):
        return {
            **self.user.environment(),
            "HOME": str(self.home),
            "PYTHONPATH": str(self.home / "lib"),
            "HIDDEN": "x",
        }

    def corral(self, *words):
        return self.user.corral(*words, env=self.environment(), cwd=self.home)

    def does(self, *words):
        done = self.corral(*words)
        assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
        return done.stdout.decode()

    def config(self, client):
        """Write the client's file, with paths in this home, and return its path."""
        words = {
            "python": self.user.python,
            "server": self.server,
            "private": self.private,
            "home": self.home,
        }
        [path, *_] = catalogue.own_files(
            catalogue.find_client(client), platform="linux", environ={"HOME": str(self.home)}
        )
        return self.put(os.path.relpath(path, self.home), SETTINGS[client] % words)

    def tools(self, entry):
        """Start a server as clients do, and ask for its tools."""
        table = entry["command"] if isinstance(entry.get("command"), dict) else entry
        command = table.get("path") or table.get("command") or table.get("cmd")
        base = {
            name: value for name, value in self.environment().items() if name in CLIENT_VARIABLES
        }
        given = table.get("env") or table.get("envs") or table.get("environment") or {}
        env = {**base, **given}
        argv = [*([command] if isinstance(command, str) else command), *table.get("args", [])]
        with self.user.popen(
            argv,
            env=env,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=entry.get("cwd", self.home),
            start_new_session=True,
        ) as process:
            try:
                client = Client(process.stdout, process.stdin)
                assert client.initialize()["protocolVersion"] == "2025-11-25"
                found = [tool["name"] for tool in client.list_all("tools/list")]
                process.stdin.close()
                assert process.wait(90) == 0
            except Exception as error:
                process.kill()
                raise AssertionError(process.stderr.read().decode()) from error
        return found


def entries(path):
    """Return the client's entries by name. TOML and YAML are read with parsers other than corral's."""
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix == ".toml":
        return tomllib.loads(text)["mcp_servers"]
    if path.suffix == ".yaml":
        data = yaml.safe_load(text)
        listed = data.get("mcpServers")
        return data["extensions"] if listed is None else {entry["name"]: entry for entry in listed}
    data = jsonc.load(text)
    keys = ("mcpServers", "servers", "context_servers", "amp.mcpServers", "mcp")
    found = dict(next(data[key] for key in keys if key in data))
    for project in data.get("projects", {}).values():
        found.update(project["mcpServers"])
    return found


def at(user):
    home = user.home / f"desk-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, user.owner, user.owner)
    yield Desk(user, home)
    shutil.rmtree(home)


@pytest.fixture
def desk(ordinary):
    yield from at(ordinary)


@pytest.fixture
def any_desk(user):
    yield from at(user)


@pytest.mark.parametrize("user", ["root"], indirect=True)
@pytest.mark.parametrize("client", ["cursor", "codex", "goose"])
def test_roots_clients_are_found(any_desk, client):
    round_trip(any_desk, client)


@pytest.mark.parametrize("client", catalogue.NAMES)
def test_a_wrapped_configuration_works_and_is_restored(desk, client):
    round_trip(desk, client)


def round_trip(desk, client):
    path = desk.config(client)
    before = path.read_bytes()
    bare = entries(path)
    assert desk.tools(bare["one"]) == [
        "variable-API_TOKEN",
        "variable-LEVEL",
        "argument-first argument",
        "private-file",
    ]
    assert desk.tools(bare["two"]) == ["private-file"]

    told = json.loads(desk.does("wrap", "--json", "--corral", str(desk.corral_path), client))
    states = {one["name"]: one["state"] for file in told for one in file["servers"]}
    assert (states.pop("one"), states.pop("two")) == ("wrapped", "wrapped")
    assert set(states.values()) <= {"left"}

    wrapped = entries(path)
    assert desk.tools(wrapped["one"]) == [
        "variable-API_TOKEN",
        "variable-LEVEL",
        "argument-first argument",
    ]
    assert desk.tools(wrapped["two"]) == []
    assert {name: entry for name, entry in wrapped.items() if name not in {"one", "two"}} == {
        name: entry for name, entry in bare.items() if name not in {"one", "two"}
    }

    rows = json.loads(desk.does("status", "--json", client))[0]["servers"]
    may = {row["name"]: (row["state"], row["may"]) for row in rows}
    assert may["two"] == ("wrapped", [KEEPS])
    assert set(may["one"][1]) == {
        KEEPS,
        "see the secret API_TOKEN",
        "see the environment variable LEVEL",
    }

    desk.does("wrap", "--corral", str(desk.corral_path), client)
    assert entries(path) == wrapped
    desk.does("unwrap", client)
    assert path.read_bytes() == before


def test_wrap_refuses_a_file_in_which_it_does_not_recognize_the_servers(desk):
    other = '{"tools": {"mcp": {"a": {"command": "x"}}}, "mcpServers": {}}'
    for name, text in (("a.json", '{"programs": {"a": {"command": "x"}}}'), ("b.json", other)):
        path = desk.put(name, text)
        done = desk.corral("wrap", name, "--corral", str(desk.corral_path))
        assert done.returncode != 0
        assert b"corral knows" in done.stderr or b"does not support" in done.stdout
        assert path.read_text() == text
    assert desk.corral("status", "b.json").returncode == 1
    desk.put("c.json", '{"mcpServers": {}}')
    told = "  no servers in it (looked for mcpServers, "
    assert told in desk.does("wrap", "c.json", "--corral", str(desk.corral_path))


def test_a_connection_string_is_a_secret_by_its_form(desk):
    env = {
        "WHERE": "postgresql://u:hunter2@h/db",
        "DATABASE_URI": "x",
        "SOME_DSN": "y",
        "LEVEL": "https://h/",
    }
    entry = {"command": str(desk.user.python), "args": [str(desk.server)], "env": env}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"db": entry}}))
    shown = desk.does("wrap", "--dry-run", "cursor", "--corral", str(desk.corral_path))
    assert "hunter2" not in shown
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    words = entries(path)["db"]["args"]
    flags = {
        words[at + 1]: words[at] for at in range(words.index("--")) if words[at].startswith("--")
    }
    assert {name for name, flag in flags.items() if flag == "--secret"} == set(env) - {"LEVEL"}


def test_the_tests_have_settings_for_every_client():
    assert set(SETTINGS) == set(catalogue.NAMES)


def test_wraps_flags_become_the_servers_grants(desk):
    path = desk.config("cursor")
    flags = ("--read", "private.txt", "--corral", str(desk.corral_path))
    desk.does("wrap", "cursor", "two", *flags)
    assert desk.tools(entries(path)["two"]) == ["private-file"]
    # The command line did not name the server `one`, so it must not be wrapped.
    assert entries(path)["one"]["command"] == desk.user.python
    assert str(desk.private) in desk.does("status", "cursor")
    hosts = ("--allow-net", "a.example.com", "--allow-net", "b.example.com:5432")
    shown = desk.does("wrap", "cursor", "two", *hosts, "--corral", str(desk.corral_path))
    reach = "connect to a.example.com on ports 80 and 443; connect to b.example.com:5432"
    assert reach in shown
    assert reach in desk.does("status", "cursor")
    desk.does("unwrap", "cursor", "two")
    desk.does("wrap", "cursor", "two", "--grant-arguments", "--corral", str(desk.corral_path))
    assert desk.tools(entries(path)["two"]) == ["private-file"]


def test_wrap_names_the_arguments_that_a_wrapped_server_lacks(desk):
    """Use `--grant-arguments` with a server that is already wrapped. `wrap` must leave it
    unchanged, and print a command that grants the arguments.
    """
    path = desk.config("cursor")
    corral = ("--corral", str(desk.corral_path))
    desk.does("wrap", "cursor", "two", *corral)
    before = entries(path)["two"]
    told = desk.does("wrap", "cursor", "two", "--grant-arguments", *corral)
    assert entries(path)["two"] == before
    assert "two  unchanged: it already starts through corral" in told
    [line] = [line for line in told.splitlines() if "to grant it: " in line]
    hint = line.partition("to grant it: corral ")[2].removesuffix(" (or --write)")
    desk.does(*hint.split(), *corral)
    assert desk.tools(entries(path)["two"]) == ["private-file"]
    assert "to grant it" not in desk.does("wrap", "cursor", "two", "--grant-arguments", *corral)


def test_wrap_names_the_path_in_a_variable_that_the_server_would_not_find(desk):
    data, key = desk.put("data/memory.json", "kept"), desk.put(".ssh/id", "x")
    code = "import os; print(os.path.exists(os.environ['DATA']))"
    env = {"DATA": str(data), "ID_FILE": str(key)}
    entry = {"command": str(desk.user.python), "args": ["-c", code], "env": env}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"app": entry}}))
    corral = ("--corral", str(desk.corral_path))

    def start():
        now = entries(path)["app"]
        process = desk.user.popen(
            [now["command"], *now["args"]], env={**desk.environment(), **env}, stdout=PIPE
        )
        return process.communicate()[0]

    told = desk.does("wrap", "cursor", *corral)
    assert f"configured with {data}, which is not granted; to grant it: corral wrap --read" in told
    assert f"configured with {key}, which is not granted; it may contain secrets\n" in told
    assert start() == b"False\n"
    desk.does("unwrap", "cursor")
    told = desk.does("wrap", "cursor", "--grant-arguments", *corral)
    assert str(data) not in told.partition("configured with")[2]
    assert str(key) not in entries(path)["app"]["args"]
    assert start() == b"True\n"


def test_wrap_neither_grants_nor_suggests_sensitive_paths_in_arguments(desk):
    """Put the paths of the user's keys into a server's arguments, as a project could do."""
    key, kept = desk.put(".ssh/id", "x"), desk.put("kept/data", "x")
    words = ["server.py", str(key), "--keys=${HOME}/.ssh", str(kept)]
    entry = {"command": str(desk.user.python), "args": words}
    path = desk.put("work/.mcp.json", json.dumps({"mcpServers": {"app": entry}}))
    told = desk.does("wrap", str(path), "--grant-arguments", "--corral", str(desk.corral_path))
    words = entries(path)["app"]["args"]
    flags = words[: words.index("--")]
    assert str(kept) in flags
    assert not any(".ssh" in word for word in flags)
    assert f"configured with {key}, which is not granted; it may contain secrets\n" in told
    assert f"--read {key}" not in told


def test_wrap_does_not_grant_secrets_to_which_links_of_the_home_lead(desk):
    """Let `~/.ssh` be a link into a repository of settings, and the home itself a link. A project
    names the secrets by their paths behind the links. `wrap` must not grant these paths either.
    """
    key, token = desk.put("dotfiles/ssh/id", "x"), desk.put(".config/gh/hosts.yml", "x")
    kept = desk.put("kept/data", "x")
    home = desk.home.with_name(f"{desk.home.name}-link")
    (desk.home / ".ssh").symlink_to("dotfiles/ssh")
    home.symlink_to(desk.home)
    entry = {"command": "/bin/cat", "args": [str(key), str(token), str(kept)]}
    path = desk.put("work/.mcp.json", json.dumps({"mcpServers": {"app": entry}}))
    corral = str(desk.corral_path)
    desk.home = home
    told = desk.does("wrap", str(path), "--grant-arguments", "--corral", corral)
    words = entries(path)["app"]["args"]
    assert words[: words.index("--")] == ["run", "--state", "--read", str(kept)]
    assert told.count("which is not granted; it may contain secrets\n") == 2


def test_wrap_does_not_suggest_to_read_keys_that_a_project_names_as_its_script(desk):
    key, script = desk.put(".ssh/id", "x"), desk.put("kept/server.py", "x")
    python = str(desk.user.python)
    servers = {
        "keys": {"command": python, "args": [str(key)]},
        "there": {"command": python, "args": ["server.py"], "cwd": str(key.parent)},
        "kept": {"command": python, "args": [str(script)]},
    }
    path = desk.put("work/.mcp.json", json.dumps({"mcpServers": servers}))
    done = desk.corral("wrap", str(path), "--corral", str(desk.corral_path))
    text = done.stdout.decode()
    assert done.returncode == 1
    assert text.count("outside of its project, which may contain secrets\n") == 2
    assert ".ssh" not in "".join(one for one in text.splitlines() if "--read" in one)
    assert f"to let it read this: corral wrap --read {script} {path} kept\n" in text
    assert entries(path) == servers


def test_wrap_prints_each_servers_result(desk):
    desk.config("cursor")
    text = desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    assert f"one was configured with {desk.private}, which is not granted" in text
    assert f"may: {KEEPS}; see the environment variable LEVEL; see the secret API_TOKEN" in text
    assert "far  left alone: it is remote" in text
    assert "off  left alone: it is switched off" in text
    assert "box  left alone: docker starts the server in a container" in text
    assert "hunter2" not in text


def test_a_command_that_this_host_would_refuse_is_not_written(desk):
    path = desk.config("cursor")
    before = path.read_bytes()
    words = ("wrap", "cursor", "two", "--corral", str(desk.corral_path))
    done = desk.corral(*words, "--read", "/nowhere/at/all")
    assert done.returncode == 1
    assert b"two  refused" in done.stdout
    assert b"/nowhere/at/all" in done.stdout
    assert path.read_bytes() == before
    # `wrap` accepts this path without checking it, because only the client knows the variable.
    desk.does(*words, "--read", "${workspaceFolder}")
    assert "${workspaceFolder}" in entries(path)["two"]["args"]


@pytest.mark.parametrize("tier", ["listened"], indirect=True)
def test_a_profile_that_the_host_cannot_enforce_is_reported_before_it_is_written(desk):
    """Use a profile with an allowlist on a host that cannot enforce it. `wrap` must leave the entry
    unchanged, because corral would refuse to start it.
    """
    servers = {
        "gh": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"]},
        "time": {"command": "uvx", "args": ["mcp-server-time"]},
    }
    path = desk.put("some.json", json.dumps({"mcpServers": servers}))
    words = ("wrap", "some.json", "--no-install", "--corral", str(desk.corral_path))
    done = desk.corral(*words)
    assert done.returncode == 1, done.stderr
    assert b"gh  refused: this host cannot enforce network" in done.stdout
    assert entries(path)["gh"] == servers["gh"]
    # Sanity check: another server is wrapped.
    assert entries(path)["time"]["command"] == str(desk.corral_path)


def test_a_broken_file_does_not_stop_the_edit_of_another(desk):
    path = desk.config("vscode")
    settings = desk.put(".config/Code/User/settings.json", "")
    # An empty settings file is accepted.
    desk.does("wrap", "vscode", "two", "--corral", str(desk.corral_path))
    settings.write_text('{"mcp": {')
    done = desk.corral("wrap", "vscode", "--corral", str(desk.corral_path))
    assert done.returncode == 125
    assert b"settings.json: line 1, column 10" in done.stderr
    assert b"one  wrapped" in done.stdout
    assert entries(path)["one"]["command"] == str(desk.corral_path)
    assert settings.read_text() == '{"mcp": {'


def test_wrap_and_run_refuse_a_home_in_the_same_words(desk):
    corral = ("--corral", str(desk.corral_path))
    home, words = str(desk.home), "a home directory, which is never granted as a whole"
    for value in (home, "${userHome}", "/"):
        entry = {"command": desk.user.python, "args": [str(desk.server), value]}
        path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"one": entry}}))
        before = path.read_bytes()
        if value != "/":
            done = desk.corral("wrap", "cursor", "--grant-arguments", *corral)
            assert words in (done.stdout + done.stderr).decode()
            assert path.read_bytes() == before
        done = desk.corral("wrap", "cursor", "--read", value, *corral)
        assert words in (done.stdout + done.stderr).decode()
        assert path.read_bytes() == before
        # No suggested flag may grant the home.
        shown = desk.does("wrap", "cursor", "--dry-run", *corral)
        assert f"--read {home}\n" not in shown


@pytest.mark.parametrize("flags", [(), ("--grant-arguments",)])
def test_a_file_server_for_the_home_gets_a_hint_that_wraps_it(desk, flags):
    """Check the hint for a server whose argument is the home directory. It must not suggest
    `--grant-arguments`, which never grants the whole home.
    """
    others = ("--no-install", "--corral", str(desk.corral_path))
    entry = {"command": "npx", "args": ["@modelcontextprotocol/server-filesystem", str(desk.home)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"files": entry}}))
    directory = desk.put("notes/a.md", "").parent
    done = desk.corral("wrap", "cursor", *flags, *others)
    assert done.returncode == 1
    shown = done.stdout.decode()
    assert f"writes to {desk.home}, and a home directory is never granted as a whole" in shown
    hint = shown.partition("hint: grant the directories that it needs: corral ")[2]
    words = shlex.split(hint.splitlines()[0].replace(f"{desk.home}/DIRECTORY", str(directory)))
    assert "files  wrapped" in desk.does(*words, *others)
    assert ["--write", str(directory)] == entries(path)["files"]["args"][2:4]


def test_wrap_passes_a_policy_that_the_user_typed_unchanged(desk):
    path = desk.config("cursor")
    policy = '{"version": 1, "limits": {"pids": 20}}'
    desk.does("wrap", "cursor", "two", "--policy", policy, "--corral", str(desk.corral_path))
    assert entries(path)["two"]["args"][:5] == ["run", "--state", "--policy", policy, "--"]
    assert desk.tools(entries(path)["two"]) == []


def test_backups_are_hidden_from_servers(desk):
    """Check that servers cannot see the backups of a client's file, because these contain the
    tokens of all servers.
    """
    desk.config("cursor")
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    code = "import os; answer = [len(os.listdir(sys.argv[1])), os.path.exists(sys.argv[1] + '/clients')]"
    place = str(desk.home / ".local/state/corral")
    env = {"env": desk.environment()}
    flags = ("--read", str(desk.home / ".local"))
    # Sanity check: outside of the sandbox the backups are visible.
    assert desk.user.outside(code, place, **env) == [1, True]
    assert desk.user.inside(code, place, flags=flags, **env) == [0, False]


def test_status_reports_wrapped_servers_whose_corral_no_longer_exists(desk):
    path = desk.config("cursor")
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    assert "does not exist" not in desk.does("status", "cursor")
    desk.corral_path.unlink()
    shown = desk.does("status", "cursor")
    assert f"it cannot start: {desk.corral_path} does not exist" in shown
    assert f"or: corral wrap {path} " in shown


def move_corral(desk, name="moved"):
    """Move the executable `corral`, and return its new path."""
    place = desk.home / name
    place.mkdir()
    return desk.corral_path.rename(place / "corral")


@pytest.mark.parametrize("client", ["cursor", "codex", "opencode", "goose"])
def test_a_moved_corral_keeps_the_grants_of_the_servers(desk, client):
    path = desk.config(client)
    bare = path.read_bytes()
    flags = ("--allow-net", "example.com", "--max-pids", "40")
    desk.does("wrap", client, *flags, "--corral", str(desk.corral_path))
    wrapped = path.read_text()
    new = move_corral(desk)
    assert f"or: corral wrap {path} " in desk.does("status", client)
    corral = ("--corral", str(new))
    dry = desk.does("wrap", "--dry-run", client, *corral)
    assert dry.count("is now started by this corral") == 2
    assert path.read_text() == wrapped
    shown = desk.does("wrap", client, *corral)
    assert shown.count("is now started by this corral") == 2
    assert path.read_text() == wrapped.replace(str(desk.corral_path), str(new))
    assert "does not exist" not in desk.does("status", client)
    assert desk.tools(entries(path)["one"])
    desk.does("unwrap", client)
    assert path.read_bytes() == bare


def test_a_moved_corral_does_not_keep_flags_that_it_did_not_write(desk):
    path = desk.config("cursor")
    desk.does("wrap", "cursor", "--max-pids", "40", "--corral", str(desk.corral_path))
    new = move_corral(desk)
    text = path.read_text().replace('"40"', '"4000"', 1)
    path.write_text(text)
    done = desk.corral("wrap", "cursor", "--corral", str(new))
    assert done.returncode == 1
    assert done.stdout.count(b"which is not this corral") == 1
    # Sanity check: the other server has its original flags, so `wrap` has moved it to the new
    # corral.
    assert path.read_text().count(str(new)) == 1


def test_a_named_server_moves_from_a_corral_that_still_exists(desk):
    path = desk.config("cursor")
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    new = desk.home / "moved" / "corral"
    new.parent.mkdir()
    shutil.copy2(desk.corral_path, new)
    done = desk.corral("wrap", "cursor", "--corral", str(new))
    assert done.returncode == 1
    assert path.read_text().count(str(new)) == 0
    desk.does("wrap", "cursor", "one", "--corral", str(new))
    assert entries(path)["one"]["command"] == str(new)
    assert entries(path)["two"]["command"] == str(desk.corral_path)


@pytest.mark.parametrize("missing", ["script", "program on PATH", "program"])
def test_a_missing_program_or_script_is_named_by_wrap_status_and_why(desk, missing):
    path, script = desk.home / ".cursor/mcp.json", desk.home / "project/server.py"
    absent = str(desk.home / "no-such-program")
    entry, told = {
        "script": (
            {"command": desk.user.python, "args": [str(script)]},
            f"server.py does not exist in {script.parent}",
        ),
        "program on PATH": (
            {"command": "no-such-program"},
            "'no-such-program' was not found on PATH",
        ),
        "program": ({"command": absent}, f"{absent!r} is not a program"),
    }[missing]
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    done = desk.corral("wrap", "cursor", "--corral", str(desk.corral_path))
    assert f"corral: notes would not start: {told}; install it, or correct it in {path}\n" in (
        done.stderr.decode()
    )
    assert entries(path)["notes"]["command"] == str(desk.corral_path)  # it may be installed later
    why = f"'{absent}': No such file or directory" if missing == "program" else told
    for command in ("status", "why"):
        assert f"it does not start: {why}\n" in desk.does(command, "cursor")
    assert f"it is already wrapped, but does not start: {why}" in desk.does(
        "wrap", "cursor", "--corral", str(desk.corral_path)
    )


def test_programs_that_exist_are_not_reported_as_missing(desk):
    desk.put("project/server.py", "")
    for program in (desk.user.python, "cat", "${PROGRAM}"):
        entry = {"command": program, "args": [str(desk.home / "project/server.py")]}
        path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
        done = desk.corral("wrap", "cursor", "--corral", str(desk.corral_path))
        assert "would not start" not in done.stderr.decode()
        for command in ("status", "why"):
            assert "it does not start" not in desk.does(command, "cursor")
        desk.does("unwrap", str(path))


def test_a_mistyped_flag_in_an_entry_is_named_by_status_and_why(desk):
    path = desk.config("cursor")
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    path.write_text(path.read_text().replace('"--state"', '"--statte"', 1))
    hint = f"it does not start: unknown option --statte\n{{}}hint: correct it in {path}\n"
    assert hint.format("    ") in desk.does("status", "cursor")
    assert hint.format("  ") in desk.does("why", "one")
    assert "it does not start" not in desk.does("why", "two")  # a control


def test_a_command_line_in_one_word_is_refused(desk):
    path = desk.put(".cursor/mcp.json", "")
    spaced = desk.put("my programs/server", "#!/bin/sh\n")
    spaced.chmod(0o755)
    corral = ("--corral", str(desk.corral_path))
    for program in ("sh -c true", "npx -y x", "uvx x"):
        text = json.dumps({"mcpServers": {"notes": {"command": program}}})
        path.write_text(text)
        done = desk.corral("wrap", "cursor", *corral)
        first = program.partition(" ")[0]
        assert done.returncode == 1
        assert f"notes  refused: its command is '{first}' with arguments" in done.stdout.decode()
        assert f"hint: in the file, write only {first} as its command" in done.stdout.decode()
        assert path.read_text() == text
        done = desk.corral("run", "cursor:notes")
        assert f"hint: in the file, write only {first} as its command" in done.stderr.decode()
    # Sanity check: a command that is the path of a program may contain a space.
    path.write_text(json.dumps({"mcpServers": {"notes": {"command": str(spaced)}}}))
    assert "refused" not in desk.does("wrap", "cursor", "--dry-run", *corral)


def test_an_entry_that_no_longer_starts_is_listed_with_its_remedy(desk):
    """Break wrapped entries in several ways: a path is missing, a path has become a symlink, or an
    older corral wrote a grant or flag that no longer works. `status` must name each cause, and a
    command that repairs the entry.
    """
    places = {name: desk.put(f"{name}/file", "").parent for name in ("gone", "linked", "home")}
    flags = {name: ("--read", str(place)) for name, place in places.items()}
    flags |= {"flag": ("--max-pids", "20"), "fine": (), "script": ()}
    entry = {"command": desk.user.python, "args": [str(desk.server), "/absent"]}
    script = desk.put("project/server.py", desk.server.read_text())
    desk.put("project/pyproject.toml", "")
    servers = dict.fromkeys(flags, entry)
    servers["script"] = {"command": desk.user.python, "args": [str(script), "/absent"]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": servers}))
    for name, words in flags.items():
        desk.does("wrap", "cursor", name, *words, "--corral", str(desk.corral_path))
    assert "does not start" not in desk.does("status", "cursor")
    shutil.rmtree(places["gone"])
    os.rename(places["linked"], desk.home / "moved")
    os.symlink("moved", places["linked"])
    other = desk.put("other/server.py", desk.server.read_text())
    script.unlink()
    script.symlink_to(other)
    for file in (path, *(desk.home / ".local/state/corral/clients").rglob("*")):
        if file.is_file():
            text = file.read_text().replace(str(places["home"]), str(desk.home))
            file.write_text(text.replace("--max-pids", "--old-flag"))
    rows = json.loads(desk.does("status", "--json", "cursor"))[0]["servers"]
    refused = {one["name"]: (one["refused"], one["mend"]) for one in rows if one["refused"]}
    assert "does not exist" in refused["gone"][0]
    assert "never granted as a whole" in refused["home"][0]
    assert {name: mend for name, (_, mend) in refused.items()} == {
        "gone": f"corral grant cursor:gone --remove --read {places['gone']}",
        "linked": f"corral approve --path {places['linked']}",
        "home": f"corral grant cursor:home --remove --read {desk.home}",
        "flag": "corral unwrap cursor flag && corral wrap cursor flag",
        "script": f"corral wrap --read {other.parent} cursor script",
    }
    [by_path] = json.loads(desk.does("status", "--json", str(path)))
    by_name = {one["name"]: one["mend"] for one in by_path["servers"]}
    assert by_name["gone"] == f"corral grant {path}:gone --remove --read {places['gone']}"
    more = {"approve": ("--yes",), "wrap": ("--corral", str(desk.corral_path))}
    shown = desk.does("wrap", "cursor", *more["wrap"])
    assert shown.count("unchanged: it is already wrapped, but does not start: ") == 5
    assert "fine  unchanged: it already starts through corral\n" in shown  # sanity check
    for name, (why, mend) in refused.items():
        assert f"    hint: {mend}\n" in shown
        assert f"  it does not start: {why}\n  hint: {mend}\n" in desk.does("why", name)
    assert "does not start" not in desk.does("why", "fine")
    for name, (_, mend) in refused.items():
        assert f"hint: {mend}\n" in desk.does("status", "cursor")
        # Try both forms of the hint: for `gone` the command that names the file, and for the other
        # servers the command that names the client.
        for command in (by_name[name] if name == "gone" else mend).split(" && "):
            words = shlex.split(command)[1:]
            desk.does(*words, *more.get(words[0], ()))
    assert "does not start" not in desk.does("status", "cursor")
    for name in refused:
        assert desk.tools(entries(path)[name]) == []


def test_a_server_without_required_pins_is_listed_with_the_command_that_pins_it(desk):
    """Check the hints for a client's server and for a server of another file. If the server's
    command contains a secret, the hint must not contain the command: corral would mask the secret,
    and the command would then not work.
    """
    words = {
        "a": ["/absent", "first"],
        "b": ["/absent", "b c"],
        "c": ["/absent", "--token=hunter2"],
    }
    servers = {
        name: {"command": desk.user.python, "args": [str(desk.server), *args]}
        for name, args in words.items()
    }
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"a": servers["a"]}}))
    other = desk.put("some.json", json.dumps({"mcpServers": {**servers, "fine": servers["a"]}}))
    corral = ("--corral", str(desk.corral_path))
    desk.does("wrap", "cursor", "--pins", "refuse", *corral)
    desk.does("wrap", str(other), "--pins", "refuse", *corral, "b", "c")
    desk.does("wrap", str(other), *corral, "fine")
    command = shlex.join([desk.user.python, str(desk.server), "/absent", "b c"])
    for file, server, mend in (
        ("cursor", "a", "corral inspect --pin cursor:a"),
        (str(other), "b", f"corral inspect --pin {command}"),
    ):
        assert f"    hint: {mend}\n" in desk.does("status", file)
        assert f"  hint: {mend}\n" in desk.does("why", f"{file}:{server}")
        desk.does(*shlex.split(mend)[1:])
        assert mend not in desk.does("status", file)
        assert mend not in desk.does("why", f"{file}:{server}")
    shown = desk.does("status", str(other))
    assert "hint: type `corral inspect --pin` and the server's whole command\n" in shown
    assert "hunter2" not in shown
    assert shown.count("it does not start: ") == 1  # only `c` still has no pins


def test_wrap_says_how_to_pin_the_tools_of_a_server_that_is_already_wrapped(desk):
    entry = {"command": desk.user.python, "args": [str(desk.server), "/absent"]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"a": entry}}))
    wrap = ("wrap", "cursor", "--corral", str(desk.corral_path))
    desk.does(*wrap)
    assert b"pinned" not in desk.corral(*wrap).stderr  # the control
    done = desk.corral(*wrap, "--pin-tools")
    assert done.returncode == 0
    start = "corral: a is already wrapped, so its tools were not pinned; to pin them: "
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(start)
    for command in line.removeprefix(start).split(" && "):
        desk.does(*shlex.split(command)[1:])
    assert desk.corral(*wrap, "--pin-tools").stderr == b""
    assert "--pins" in entries(path)["a"]["args"]
    assert desk.tools(entries(path)["a"]) == []


def test_wrap_does_not_replace_the_pins_of_another_server_with_the_same_command(desk):
    """With `--pin-tools`, wrap servers with the same command in different directories. If the
    second server has other tools, corral must not replace the first server's pins with them.
    """
    wrapped = {}
    for name, word in (("honest", "a"), ("evil", "b"), ("alike", "a")):
        desk.put(f"{name}/server.py", SERVER.replace("argument-", word))
        entry = {"command": str(desk.user.python), "args": ["server.py", "/absent", "x"]}
        servers = {name: {**entry, "cwd": str(desk.home / name)}}
        file = desk.put(f"{name}/settings.json", json.dumps({"mcpServers": servers}))
        done = desk.corral("wrap", "--pin-tools", "--corral", str(desk.corral_path), str(file))
        wrapped[name] = (done.returncode, "--pins" in file.read_text())
        if name == "evil":
            said = done.stderr.decode() + done.stdout.decode()
            assert "its tools differ from those that are pinned for the same command" in said
            assert "corral inspect --pin " in said
            assert json.loads(file.read_text())["mcpServers"] == servers
    assert wrapped["evil"][0] != 0
    # Sanity checks: the first server is pinned, and an equal one is accepted.
    assert (wrapped["honest"], wrapped["alike"]) == ((0, True), (0, True))


def test_a_wrapped_program_that_is_gone_is_not_mended_by_wrapping_it_again(desk):
    program = desk.put("venv/bin/server", f"#!{desk.user.python}\n", mode=0o755)
    path = desk.put(
        ".cursor/mcp.json", json.dumps({"mcpServers": {"a": {"command": str(program)}}})
    )
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    assert "does not start" not in desk.does("status", "cursor")
    program.unlink()
    shown = desk.does("status", "cursor")
    assert f"it does not start: '{program}': No such file or directory\n" in shown
    assert f"hint: install the program again, or correct its path in {path}\n" in shown
    assert "unwrap" not in shown


def test_a_profile_names_the_grants_that_it_leaves_to_the_user(desk):
    database = {"command": "npx", "args": ["@modelcontextprotocol/server-postgres", "postgres://x"]}
    alone = {"command": "npx", "args": ["@modelcontextprotocol/server-sequential-thinking"]}
    for entry, hints in ((database, 1), (alone, 0)):
        path = desk.put("some.json", json.dumps({"mcpServers": {"a": entry}}))
        others = ("--no-install", "--corral", str(desk.corral_path))
        text = desk.does("wrap", "--dry-run", str(path), *others)
        assert "a  would be wrapped" in text
        hint = "hint: name the database's host with --allow-net HOST:5432; to allow what it was denied: "
        assert text.count(f"{hint}corral grant {path}:a\n") == hints


def test_an_unknown_client_gets_a_hint_with_the_clients_here(desk):
    """Type names that resemble several clients. The hint prefers the clients with settings here."""

    def hint(word):
        return desk.corral("wrap", word).stderr.decode().partition("hint: ")[2]

    assert hint("code") == "did you mean codex?\n"  # Sanity check: no client has settings here
    assert hint("claude") == "did you mean claude-code?\n"
    for name in ("Code/User/mcp.json", "Claude/claude_desktop_config.json"):
        desk.put(f".config/{name}", "{}")
    assert hint("code") == "did you mean vscode?\n"
    assert hint("claude") == "did you mean claude-desktop?\n"
    assert hint("curser") == "did you mean cursor?\n"


def test_a_missing_directory_in_the_arguments_is_named(desk):
    server = "@modelcontextprotocol/server-filesystem"
    words = [server, "~/Desktop", f"{desk.home}/notes", "https://example.com/x"]
    desk.put("notes/a.md", "")
    entry = {"command": "npx", "args": words}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"files": entry}}))
    others = ("--no-install", "--corral", str(desk.corral_path))
    done = desk.corral("wrap", "cursor", "--grant-arguments", *others)
    assert b"files  wrapped" in done.stdout
    named = [line for line in done.stderr.decode().splitlines() if "does not exist" in line]
    [line] = named
    assert "files: ~/Desktop does not exist, so the server cannot use it" in line


def test_granting_a_directory_with_secrets_prints_a_warning(desk):
    keys, notes = desk.put(".ssh/id_ed25519", "").parent, desk.put("notes/a.md", "").parent
    entry = {"command": desk.user.python, "args": [str(desk.server)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    others = ("--corral", str(desk.corral_path))
    warning = f"warning: {keys} may contain secrets, which the server can then read"
    done = desk.corral("wrap", "cursor", "--read", str(keys), "--read", str(notes), *others)
    assert done.stderr.decode().count("may contain secrets") == 1
    assert warning in done.stderr.decode()
    assert str(keys) in path.read_text()
    assert (
        warning
        not in desk.corral("grant", "notes", "--remove", "--read", str(keys)).stderr.decode()
    )
    assert warning in desk.corral("grant", "notes", "--read", str(keys)).stderr.decode()
    assert b"secrets" not in desk.corral("grant", "notes", "--write", str(notes)).stderr


def test_a_file_that_does_not_exist_gets_a_hint_with_the_clients_here(desk):
    for command in ("wrap", "unwrap"):
        done = desk.corral(command, "./missing.json")
        assert done.returncode == 125
        said = "corral: ./missing.json does not exist\nhint: is it spelled right?"
        # Sanity check: without a client's file, the hint lists no clients.
        assert done.stderr.decode() == f"{said}\n"
    desk.config("cursor")
    for command in ("wrap", "unwrap"):
        done = desk.corral(command, "./missing.json")
        assert done.stderr.decode() == f"{said} clients found here: cursor\n"


def test_a_dry_run_and_status_say_that_npm_is_missing(desk):
    """Run corral with a PATH without npm, and then with npm. A dry run must refuse the same servers
    as `wrap`, and `wrap` must say which servers still start without walls.
    """
    servers = {
        "time": {"command": "npx", "args": ["-y", "@x/server-time"]},
        "notes": {"command": desk.user.python, "args": [str(desk.server)]},
    }
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": servers}))
    bare = desk.put("bare/unused", "").parent

    def shown(*words):
        env = {**desk.environment(), "PATH": str(bare)}
        done = desk.user.corral(*words, env=env, cwd=desk.home)
        return done.stdout.decode() + done.stderr.decode()

    corral = ("--corral", str(desk.corral_path))
    refused = (
        "npm was not found on PATH\n    hint: install Node.js and npm (Debian and Ubuntu: apt "
    )
    assert f"  time  not wrapped: {refused}" in shown("status", "cursor")
    # This hint is for the other server, `notes`, which does not need npm.
    assert "hint: corral wrap cursor\n" in shown("status", "cursor")
    dry = shown("wrap", "cursor", "--dry-run", *corral)
    assert f"  time  refused: {refused}" in dry
    assert "without walls" not in dry
    real = shown("wrap", "cursor", *corral)
    assert f"  time  refused: {refused}" in real
    assert real.endswith("so they still start without walls: time\n")
    assert entries(path)["time"] == servers["time"]
    assert "hint: corral wrap cursor\n" not in shown("status", "cursor")
    desk.put("bare/npm", "#!/bin/sh\n", mode=0o755)
    assert "  time  would be wrapped\n" in shown("wrap", "cursor", "--dry-run", *corral)
    assert "  time  not wrapped\n" in shown("status", "cursor")


def test_status_and_why_say_why_wrap_would_refuse_a_server(desk):
    package = "@modelcontextprotocol/server-filesystem"
    notes = str(desk.put("notes/one.md", "one").parent)
    entry = {"command": "npx", "args": ["-y", package, notes]}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"files": entry}}))
    hint = "hint: to grant them: corral wrap --grant-arguments cursor files\n"
    shown = desk.corral("status", "cursor").stdout.decode()
    assert f"arguments ({notes}), which are not granted yet\n    {hint}" in shown
    assert "hint: corral wrap cursor\n" not in shown  # `wrap` would refuse the server again
    done = desk.corral("why", "files")
    assert done.returncode == 125
    assert done.stderr.decode().endswith(hint)


def test_a_dry_run_of_unwrap_says_what_would_be_restored(desk):
    entry = {"command": desk.user.python, "args": [str(desk.server)]}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    assert "  notes  would be restored\n" in desk.does("unwrap", "cursor", "--dry-run")
    assert "  notes  restored\n" in desk.does("unwrap", "cursor")


def test_unwrap_all_restores_every_client_and_file(desk):
    """Wrap servers of two clients and of a named file. A client whose servers are not wrapped must
    stay unchanged, and a broken file must not stop the others from being restored.
    """
    entry = {"command": desk.user.python, "args": [str(desk.server)]}
    names = (".cursor/mcp.json", ".gemini/settings.json", "mine/servers.json", ".lmstudio/mcp.json")
    paths = [desk.put(name, json.dumps({"mcpServers": {"notes": entry}})) for name in names]
    before = [path.read_bytes() for path in paths]
    assert desk.does("unwrap", "--all") == "no servers are wrapped\n"
    for word in ("cursor", "gemini", str(paths[2])):
        desk.does("wrap", word, "--corral", str(desk.corral_path))
    assert [path.read_bytes() == text for path, text in zip(paths, before, strict=True)] == [
        False, False, False, True,
    ]  # fmt: skip
    refused = desk.corral("unwrap", "--all", "cursor")
    assert (refused.returncode, b"--all takes no names: cursor" in refused.stderr) == (2, True)
    desk.put(".kiro/settings/mcp.json", "{")
    done = desk.corral("unwrap", "--all")
    assert done.returncode != 0
    assert done.stdout.count(b"  notes  restored\n") == 3
    assert [path.read_bytes() for path in paths] == before


STORED = """
import os
from corral.servers.store import store
store.make_directories()
place = store.make_staging("npm:thing@1")
os.makedirs(f"{place}/lib")
open(f"{place}/lib/main.js", "w").close()
store.commit(place, {"key": "npm:thing@1", "kind": "npm", "name": "thing", "version": "1", "command": []})
"""


def test_the_quick_starts_command_removes_installed_servers(desk):
    """Run the command as it is in the docs. Sanity check: `rm` alone fails, because the directories
    of installed servers are read-only.
    """
    text = (pathlib.Path(__file__).parents[2] / "docs" / "quick-start.md").read_text()
    [command] = [line for line in text.splitlines() if line.startswith("chmod -R")]
    code = f"import sys; sys.path.insert(0, {str(desk.user.package)!r})\n{STORED}"

    def run(*argv):
        environment = {**desk.environment(), "HOME": str(desk.home)}
        environment.pop("XDG_CACHE_HOME", None)
        with desk.user.popen(argv, env=environment, stderr=PIPE, cwd=desk.home) as process:
            error = process.communicate(timeout=60)[1]
        return process.returncode, error

    assert run(desk.user.python, "-c", code) == (0, b"")
    cache = desk.home / ".cache"
    assert list(cache.glob("corral/store/trees/*/lib/main.js"))
    assert b"Permission denied" in run("rm", "-rf", str(cache / "corral"))[1]
    assert run("sh", "-c", command) == (0, b"")
    assert list(cache.iterdir()) == []


def test_status_says_what_a_profile_grants(desk):
    entry = {
        "command": str(desk.corral_path),
        "args": [
            "run",
            "--profile",
            "filesystem",
            "--best-effort",
            "--report",
            "/home/me/.profile",
            "--audit=audit",
            "--pins",
            "refuse",
            "--tools",
            "read_*",
            "--",
            "npm:x",
            str(desk.home),
            "${HOME}/x",
        ],
    }
    broken = {
        "command": str(desk.corral_path),
        "args": ["run", "--profile", "none-such", "--", "x"],
    }
    desk.put("some.json", json.dumps({"mcpServers": {"a": entry, "b": broken}}))
    [first, second] = json.loads(desk.does("status", "--json", "some.json"))[0]["servers"]
    assert first["may"] == [
        f"read and write {desk.home}",
        "read and write ${HOME}/x (the client chooses the path)",
        "run even if a control cannot be enforced",
        "have corral replace /home/me/.profile with a report of each run",
        "have corral append each denial to audit",
    ]
    assert first["guard"] == ["set mcp.pins to 'refuse'", "set mcp.tools.allow to 'read_*'"]
    shown = desk.does("status", "some.json")
    assert (
        shown.count("    guard: set mcp.pins to 'refuse'; set mcp.tools.allow to 'read_*'\n") == 1
    )
    assert second["may"][0].startswith("nothing: it cannot start, because there is no profile")
    assert second["guard"] == []


def test_status_without_clients_says_that_wrap_takes_any_file(desk):
    told = "hint: `corral wrap FILE` takes the settings file of any MCP client\n"
    assert desk.does("status").endswith(told)
    desk.put(".cursor/mcp.json", '{"mcpServers": {}}')
    assert told not in desk.does("status")  # Sanity check: there is now a client


def test_a_server_is_run_by_its_name_wrapped_or_not(desk):
    desk.config("cursor")
    expected = ["variable-API_TOKEN", "variable-LEVEL", "argument-first argument"]
    named = {"command": str(desk.corral_path), "args": ["run", "cursor:one"]}
    assert desk.tools(named) == expected
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    assert desk.tools(named) == expected


def test_a_dry_run_shows_the_difference_and_changes_nothing(desk):
    path = desk.config("cursor")
    before = path.read_bytes()
    text = desk.does("wrap", "--dry-run", "cursor", "--corral", str(desk.corral_path))
    assert f'+      "command": "{desk.corral_path}", /* python */' in text
    assert path.read_bytes() == before
    assert "hunter2" not in text
    assert "restart the client" not in text
    assert not (desk.home / ".local").exists()


def test_one_server_that_cannot_be_wrapped_does_not_stop_the_others(desk):
    servers = {"bad": {"command": "bash", "args": ["-c", "x"]}, "good": {"command": "node"}}
    path = desk.put("some.json", json.dumps({"mcpServers": servers}))
    words = ("wrap", "some.json", "--corral", str(desk.corral_path))
    assert desk.corral(*words, "--dry-run").returncode == 1
    assert entries(path) == servers
    # Sanity check: a dry run with only the good server ends with 0.
    other = desk.put("other.json", json.dumps({"mcpServers": {"good": servers["good"]}}))
    desk.does("wrap", str(other), *words[2:], "--dry-run")
    done = desk.corral(*words)
    assert done.returncode == 1
    assert b"bad  refused: bash would have to start the server as another process" in done.stdout
    assert b"restart the client" in done.stdout
    assert entries(path)["good"]["command"] == str(desk.corral_path)
    assert entries(path)["bad"] == servers["bad"]


MISTAKES = {
    ("wrap",): (2, "name a client or a file"),
    ("wrap", "curser"): (2, "neither a known client"),
    ("wrap", "cursor"): (125, "elsewhere; clients found here: codex"),
    ("wrap", "codex"): (125, "cannot find its own program"),
    ("wrap", "codex", "nobody"): (125, "no server nobody"),
    ("wrap", "codex", "--reed", "x"): (2, "unknown option --reed"),
    ("wrap", "codex", "--max-memory", "lots"): (2, "--max-memory"),
    ("wrap", "codex", "--profile", "none-such"): (2, "no profile"),
    ("unwrap",): (2, "name a client or a file"),
    ("unwrap", "/nowhere/x.json"): (125, "does not exist"),
    ("status", "half.json"): (1, "the file ends in the middle"),
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_mistakes_are_reported_and_nothing_is_changed(desk, words):
    path = desk.config("codex")
    half = desk.put("half.json", '{"mcpServers": {')
    before = path.read_bytes()
    extra = (
        ()
        if words[:2] == ("wrap", "codex") and len(words) == 2
        else ("--corral", str(desk.corral_path))
    )
    done = desk.corral(*words, *(extra if words[0] == "wrap" and len(words) > 1 else ()))
    code, text = MISTAKES[words]
    assert done.returncode == code, done.stderr.decode()
    assert text in (done.stderr + done.stdout).decode()
    assert path.read_bytes() == before
    assert half.read_text() == '{"mcpServers": {'


def test_a_directory_that_cannot_be_written_is_reported(desk):
    path = desk.put("kept/mcp.json", json.dumps({"mcpServers": {"a": {"command": "node"}}}))
    before = path.read_bytes()
    path.parent.chmod(0o555)
    done = desk.corral("wrap", str(path), "--corral", str(desk.corral_path))
    path.parent.chmod(0o755)
    assert done.returncode == 125
    assert b"mcp.json cannot be replaced: Permission denied" in done.stderr
    assert f"hint: check who may write to {path.parent}\n".encode() in done.stderr
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, ["mcp.json"])
    # Sanity check: a writable directory works.
    desk.does("wrap", str(path), "--corral", str(desk.corral_path))


def test_status_lists_all_clients_and_the_project(desk):
    """Check that `status` also lists the current project, and reports a server that another program
    named corral starts.
    """
    desk.config("codex")
    desk.config("goose")
    evil = desk.put("evil/corral", "#!/bin/sh\n", mode=0o755)
    fake = {"command": str(evil), "args": ["run", "--", "x"]}
    desk.put(".mcp.json", json.dumps({"mcpServers": {"fake\u001b[2J": fake}}))
    text = desk.does("status")
    assert text.index("codex") < text.index("goose")
    assert "one  not wrapped" in text
    assert f"it is started by {evil}, which is not this corral" in text
    assert "\u001b" not in text
    listed = [line.split()[:3] for line in text.partition("all servers\n")[2].splitlines()]
    assert ["one", "codex", "NOT"] in listed
    assert ["far", "codex", "remote"] in listed
    assert listed[-3] == ["0", "of", "6"]  # including goose's built-in extension
    assert text.endswith("  hint: corral wrap codex\n  hint: corral wrap goose\n")
    desk.does("wrap", "codex", "one", "--corral", str(desk.corral_path))
    assert ["one", "codex", "wrapped"] in [
        line.split() for line in desk.does("status").splitlines()
    ]
    assert "hint: corral wrap codex\n" in desk.does("status")  # because `two` is not wrapped
    desk.does("wrap", "codex", "--corral", str(desk.corral_path))
    assert "hint: corral wrap codex\n" not in desk.does("status")
    desk.does("unwrap", "codex", "two")
    rows = json.loads(desk.does("status", "--json"))
    walled = {
        one["name"]: one["walled"]
        for row in rows
        for one in row["servers"]
        if row["client"] == "codex"
    }
    assert walled == {"one": True, "two": False, "far": None}
    assert {row["client"] for row in rows} == {"codex", "goose", "claude-code"}


def test_status_says_that_it_could_not_count_the_servers_of_a_broken_file(desk):
    desk.config("codex")
    path = desk.put(".cursor/mcp.json", '{"mcpServers": {"one": {"command" "x"}}}')
    done = desk.corral("status")
    assert done.returncode == 1
    assert f"  not counted: the servers in {path}\n" in done.stdout.decode()
    assert (
        "hint: correct this error; the client cannot read the file either\n" in done.stdout.decode()
    )
    desk.config("cursor")  # Sanity check: a readable file is counted.
    assert "not counted" not in desk.does("status")


def test_wrap_shows_the_grants_of_entries_that_already_started_through_corral(desk):
    """Use a project's file that already starts servers through corral, with grants that the user
    did not choose. `wrap` must show these grants. It must refuse an entry that starts another
    program named corral.
    """
    evil = desk.put("evil/corral", "#!/bin/sh\n", mode=0o755)
    words = ["run", "--write", str(desk.home), "--", "x"]
    servers = {
        "ours": {"command": str(desk.corral_path), "args": words},
        "theirs": {"command": str(evil), "args": words},
    }
    desk.put(".mcp.json", json.dumps({"mcpServers": servers}))
    done = desk.corral("wrap", ".mcp.json", "--corral", str(desk.corral_path))
    assert done.returncode == 1
    first, _, second = done.stdout.decode().partition("  theirs  ")
    assert (
        f"unchanged: it already starts through corral\n    may: read and write {desk.home}" in first
    )
    assert second.startswith(f"refused: it is started by {evil}, which is not this corral")
    # no permissions are shown, because this program may ignore the flags
    assert "may:" not in second


def test_a_clients_file_in_the_home_is_not_reported_as_a_project_file(desk):
    desk.config("cursor")
    assert desk.does("status").count("mcp.json") == 1
    done = desk.corral("wrap", "cursor", "--corral", str(desk.corral_path), "--dry-run")
    assert (done.returncode, b"belongs to this project" in done.stderr) == (0, False)


def test_printed_commands_run_nothing_else_when_copied(desk):
    """Use hostile server names and arguments. corral must quote them in the commands that it
    prints.
    """
    place = desk.put("notes; touch x/a", "").parent
    entry = {"command": "/usr/bin/python3", "args": ["-c", "pass", str(place)]}
    desk.put("some.json", json.dumps({"mcpServers": {"a$(id)": entry}}))
    told = desk.does("wrap", "--dry-run", "--corral", str(desk.corral_path), "some.json")
    assert f"--read '{place}' some.json 'a$(id)'" in told


def test_help_may_follow_the_client(desk):
    for command in ("wrap", "unwrap", "status"):
        assert f"usage: corral {command}" in desk.does(command, "cursor", "--help")


def test_a_hint_of_wrap_can_be_typed_as_it_is(desk):
    """Check that a hint is a whole command. A flag alone would not tell the user where to type
    it.
    """
    others = ("--no-install", "--corral", str(desk.corral_path))
    desk.put("project/README", "")
    servers = {
        "files": {"command": "npx", "args": ["@modelcontextprotocol/server-filesystem", "/opt"]},
        "shell": {"command": "bash", "args": ["-c", "exec my-server"]},
        "sleeps": {"command": desk.user.python, "args": ["-V"], "disabled": True},
        "far away": {"command": desk.user.python, "args": [str(desk.server)]},
    }
    path = desk.put("project/.mcp.json", json.dumps({"mcpServers": servers}))
    done = desk.corral("wrap", "project/.mcp.json", *others)
    assert done.returncode == 1
    for name in servers:
        [_, shown] = done.stdout.decode().split(f"  {name}  ")
        hint = next(line for line in shown.splitlines() if line.startswith("    hint: "))
        _, *words = shlex.split(hint[hint.index("corral wrap") :])
        assert words[-2:] == ["project/.mcp.json", name], hint
        assert f"{name}  wrapped" in desk.does(*words, *others), hint
        assert entries(path)[name]["command"] == str(desk.corral_path)


def test_a_project_file_is_changed_only_when_it_is_named(desk):
    desk.config("cursor")
    shared = desk.put(
        "project/.cursor/mcp.json", json.dumps({"mcpServers": {"one": {"command": "node"}}})
    )
    before = shared.read_bytes()
    done = desk.user.corral(
        "wrap",
        "cursor",
        "--corral",
        str(desk.corral_path),
        env=desk.environment(),
        cwd=desk.home / "project",
    )
    assert done.returncode == 0
    assert b"to change it: corral wrap ./.cursor/mcp.json" in done.stderr
    assert shared.read_bytes() == before
    done = desk.user.corral(
        "wrap",
        ".cursor/mcp.json",
        "--corral",
        str(desk.corral_path),
        env=desk.environment(),
        cwd=desk.home / "project",
    )
    assert (done.returncode, shared.read_bytes() == before) == (0, False)


@pytest.mark.parametrize("runtime", ["python", "node"])
def test_an_interpreter_that_a_configuration_names_is_only_run_in_a_sandbox(desk, runtime):
    """Check that corral runs the interpreter only in a sandbox, even to ask for its version. The
    configuration may name any program, so this program must not be able to write files outside.
    """
    seen = desk.home / "seen"
    code = f"#!/bin/sh\n(echo x > {seen})\necho asked >&2\necho 3.99.0\n"
    evil = desk.put(f"evil/bin/{runtime}", code, mode=0o755)
    index = {
        "UV_DEFAULT_INDEX": NO_INDEX,
        "PIP_INDEX_URL": NO_INDEX,
        "npm_config_registry": NO_INDEX,
    }
    entry = {"command": "uvx", "args": ["--python", str(evil), "some-server"]}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"one": entry}}))
    words = {
        "python": ("wrap", "cursor", "--corral", str(desk.corral_path)),
        "node": ("run", "--node", str(evil), "npm:some-server"),
    }[runtime]
    done = desk.user.corral(*words, env={**desk.environment(), **index}, cwd=desk.home)
    assert done.returncode != 0
    # corral accepted the interpreter, so the interpreter did run, and printed a version.
    assert "is not a" not in done.stderr.decode() + done.stdout.decode()
    assert not seen.exists()
    desk.user.popen([str(evil)], env={}, stdout=PIPE, stderr=PIPE).communicate()
    assert seen.exists()  # Sanity check: outside a sandbox, it writes the file


def test_two_wraps_at_once_keep_both_changes(desk):
    """Wrap two servers of one file at the same time. The second process must not undo the first
    one's change.
    """
    path = desk.config("cursor")
    before = path.read_bytes()
    running = [
        desk.user.popen(
            desk.user.corral_argv("wrap", "cursor", name, "--corral", str(desk.corral_path)),
            env=desk.environment(), cwd=desk.home, stdout=subprocess.DEVNULL, stderr=PIPE,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert {entries(path)[name]["command"] for name in ("one", "two")} == {str(desk.corral_path)}
    told = json.loads(desk.does("unwrap", "--json", "cursor"))
    assert {one["state"] for one in told[0]["servers"]} == {"restored"}
    assert path.read_bytes() == before


LATER = {
    "a file": ({"args": ["tools/server.py"]}, "tools/server.py", "other/tools/server.py"),
    "a directory": ({"args": ["tools/server.py"]}, "tools", "other/tools"),
    "a directory before ..": ({"args": ["tools/../server.py"]}, "tools", "other/tools"),
    "a program before ..": ({"command": "tools/../server.py"}, "tools", "other/tools"),
    "the start directory": ({"args": ["server.py"], "cwd": "app"}, "app", "other"),
    "above the start directory": ({"args": ["server.py"], "cwd": "app/sub"}, "app", "other"),
}
READS = """\
#!/usr/bin/python3
import os
print("started", os.path.exists({secret!r}))
"""


@pytest.mark.parametrize("kind", LATER)
def test_a_link_that_a_project_makes_after_wrap_opens_no_other_project(desk, kind):
    """Wrap a project's server, then replace one of the project's files with a symlink to another
    project, as a new commit can do. The server must not be able to read the other project.
    Sanity check: without corral it can.
    """
    entry, replaced, target = LATER[kind]
    secret = desk.put("work/other/secret.txt", "secret")
    for project in ("project", "other"):
        for name in ("server.py", "tools/server.py", "app/server.py", "app/sub/server.py"):
            file = desk.put(f"work/{project}/{name}", READS.format(secret=str(secret)))
            file.chmod(0o755)
        desk.put(f"work/{project}/sub/server.py", READS.format(secret=str(secret)))
        desk.put(f"work/{project}/.git/HEAD", "ref: refs/heads/main")
    place = desk.home / "work/project"
    servers = {"notes": {"command": str(desk.user.python), **entry}}
    path = desk.put("work/project/.mcp.json", json.dumps({"mcpServers": servers}))
    desk.does("wrap", "--corral", str(desk.corral_path), str(path))
    assert start_in(desk, place, entries(path)["notes"]) == "started False\n"  # sanity check
    (place / replaced).rename(place / "before")
    (place / replaced).symlink_to(desk.home / "work" / target)
    # Sanity check: without corral, the server starts and finds the secret.
    assert start_in(desk, place, servers["notes"]) == "started True\n"
    assert start_in(desk, place, entries(path)["notes"]) == ""


def test_a_clients_server_is_not_run_by_its_name_in_another_directory(desk):
    """Wrap a server whose `cwd` is a symlink, and then change the symlink's target. `corral run
    cursor:notes` must then refuse to start the server.
    """
    for name in ("first", "second"):
        desk.put(f"work/{name}/server.py", "print('started')")
    place = desk.home / "work/place"
    place.symlink_to("first")
    entry = {"command": str(desk.user.python), "args": ["server.py"], "cwd": str(place)}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    desk.does("wrap", "--corral", str(desk.corral_path), "cursor")
    assert desk.does("run", "cursor:notes") == "started\n"  # sanity check
    place.unlink()
    place.symlink_to("second")
    for command in ("run", "explain"):
        done = desk.user.corral(command, "cursor:notes", env=desk.environment())
        assert done.returncode == 125
        assert b"but `corral wrap` recorded" in done.stderr


def start_in(desk, project, entry):
    """Start a server as its client does, and return its output."""
    argv = [entry["command"], *entry.get("args", [])]
    directory = project / entry.get("cwd", "")
    argv[0] = str(directory / argv[0])
    process = desk.user.popen(
        argv, env=desk.environment(), cwd=directory, stdin=subprocess.DEVNULL, stdout=PIPE
    )
    return process.communicate()[0].decode()


def test_wrap_says_how_to_name_several_clients_or_one_server(desk):
    entry = {"command": str(desk.user.python), "args": ["x.py"]}
    desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"my notes": entry}}))
    desk.put(".config/Code/User/mcp.json", json.dumps({"servers": {"time": entry}}))

    def hint(*words):
        done = desk.corral(*words)
        assert done.returncode in {2, 125}
        return done.stderr.decode().partition("hint: ")[2].strip()

    for verb in ("wrap", "unwrap"):
        commands = f"corral {verb} cursor && corral {verb} vscode"
        assert hint(verb, "cursor", "vscode") == f"name one client at a time: {commands}"
        assert hint(verb, "my notes") == "did you mean cursor 'my notes'?"
        assert hint(verb, "cursor", "time") == "the servers there: my notes"
        assert hint(verb, "nothing").startswith("clients: claude-desktop, ")
        assert hint(verb, "curser") == "did you mean cursor?"


def test_a_difference_shows_tabs_as_spaces(desk):
    entry = {"command": str(desk.user.python), "args": [str(desk.put("x.py", ""))]}
    text = json.dumps({"servers": {"time": entry}}, indent="\t")
    desk.put(".config/Code/User/mcp.json", text)
    shown = desk.does("wrap", "vscode", "--dry-run", "--corral", str(desk.corral_path))
    assert "\\t" not in shown
    assert f'+           "command": "{desk.corral_path}",\n' in shown
