"""Run real clients from npm with wrapped servers. Each test uses only what works without an
account.

Each client has three servers: one that npx starts, one that uvx starts, and a script that tries
forbidden acts.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

import rigs
from vm.rig import building

pytestmark = [pytest.mark.rig("clients"), pytest.mark.timeout(900)]
PINNED = {
    "@anthropic-ai/claude-code": "2.1.197",
    "@openai/codex": "0.169.0",
    "@google/gemini-cli": "0.61.0",
    "opencode-ai": "1.18.33",
    "@modelcontextprotocol/inspector": "2.12.0",
    "node": "24.21.0",  # the MCP inspector needs this version of node
}
SERVERS = ("everything", "time", "plain")
SCRIPT = """
import json, os, socket, subprocess, sys

def tried(act):
    try:
        return act()
    except OSError as error:
        return f"denied: {error.strerror}"

def act():
    home, port = os.environ["REAL_HOME"], int(os.environ["REAL_PORT"])
    return {
        "key": tried(lambda: open(f"{home}/.ssh/id_rsa").read()),
        "home": tried(lambda: os.listdir(home)),
        "program": tried(lambda: subprocess.check_output(["/bin/echo", "started"]).decode()),
        "host": tried(lambda: socket.create_connection(("127.0.0.1", port), 5).close() or "reached"),
    }

TOOL = {"name": "act", "description": "act", "inputSchema": {"type": "object", "properties": {}}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answers = {
        "initialize": lambda: {
            "protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        },
        "tools/list": lambda: {"tools": [TOOL]},
        "tools/call": lambda: {"content": [{"type": "text", "text": json.dumps(act())}]},
    }
    result = answers.get(asked["method"], dict)()
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
WITHOUT_WALLS = {"key": "KEY\n", "program": "started\n", "host": "reached"}
DENIED = {
    "key": "denied: No such file or directory",
    "home": "denied: No such file or directory",
    "program": "denied: Operation not permitted",
    "host": "denied: Connection refused",
}


@pytest.fixture(scope="module")
def installed() -> pathlib.Path:
    """Install the clients once for all tests, because they need about 1.4 GB."""
    return pathlib.Path(rigs.once("clients", install))


def install() -> str:
    target = rigs.cache("clients-" + "-".join(PINNED.values()))
    if not target.exists():
        with building(target) as partial:
            packages = [f"{name}@{version}" for name, version in PINNED.items()]
            argv = ["npm", "install", "--no-audit", "--no-fund", "--silent", *packages]
            done = subprocess.run(argv, cwd=partial, capture_output=True, text=True, check=False)
            if done.returncode:
                rigs.broken("clients", done.stderr[-500:])
    return str(target)


class Person:
    """A user with a home, a project, and the clients on PATH."""

    def __init__(self, home: pathlib.Path, clients: pathlib.Path) -> None:
        self.home, self.project = home, home / "project"
        self.project.mkdir()
        (home / ".ssh").mkdir()
        (home / ".ssh" / "id_rsa").write_text("KEY\n")
        tools = (clients / "node_modules/.bin", clients / "node_modules/node/bin")
        path = ":".join([*map(str, tools), os.path.dirname(sys.executable), "/usr/bin", "/bin"])
        kept = ("LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "https_proxy")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {"HOME": str(home), "PATH": path, "TERM": "dumb", "NO_COLOR": "1", "CI": "1"}

    def run(self, *argv: str, both: bool = False, timeout: float = 300) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.project, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout + done.stderr * both


@pytest.fixture(scope="module")
def person(tmp_path_factory, installed):
    """Share one home among all tests, so that packages are installed only once.

    The installed packages are in the home, because clients do not pass XDG_CACHE_HOME on to corral.
    """
    return Person(tmp_path_factory.mktemp("home"), installed)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def servers(tmp_path, person, port) -> dict[str, dict]:
    script = tmp_path / "server" / "plain.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    return {
        "everything": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-everything@2026.8.31"],
        },
        "time": {
            "command": "uvx",
            "args": ["mcp-server-time@2026.10.19"],
            "env": {"MY_TOKEN": "secret"},
        },
        "plain": {
            "command": "/usr/bin/python3",
            "args": [str(script)],
            "env": {"REAL_HOME": str(person.home), "REAL_PORT": str(port)},
        },
    }


def json_file(person: Person, name: str, content: object) -> pathlib.Path:
    path = person.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def toml_text(servers: dict[str, dict]) -> str:
    lines = []
    for name, server in servers.items():
        lines += [f"[mcp_servers.{name}]", f"command = {json.dumps(server['command'])}"]
        lines.append(f"args = {json.dumps(server['args'])}")
        values = [f"{key} = {json.dumps(value)}" for key, value in server.get("env", {}).items()]
        lines += [f"[mcp_servers.{name}.env]", *values] if values else []
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def wrapped(person: Person, client: str, path: pathlib.Path):
    """Wrap all three servers. At the end, unwrap them and check that the client's configuration is
    restored.
    """
    before = path.read_bytes()
    answer = json.loads(person.run("corral", "wrap", "--json", client))
    states = {one["name"]: one["state"] for file in answer for one in file["servers"]}
    assert states == dict.fromkeys(SERVERS, "wrapped"), answer
    assert path.read_bytes() != before
    yield
    person.run("corral", "unwrap", client)
    after = path.read_bytes()
    if client == "claude-code":  # Claude Code writes other keys into this file when it starts
        assert json.loads(after)["mcpServers"] == json.loads(before)["mcpServers"]
    else:
        assert after == before


def test_without_walls_the_script_does_every_forbidden_act(person, servers):
    plain = servers["plain"]
    asked = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"id": 2, "method": "tools/call", "params": {"name": "act", "arguments": {}}},
    ]
    done = subprocess.run(
        [plain["command"], *plain["args"]],
        input="".join(f"{json.dumps(one)}\n" for one in asked),
        env={**person.env, **plain["env"]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = json.loads(json.loads(done.stdout.splitlines()[1])["result"]["content"][0]["text"])
    assert {name: answer[name] for name in WITHOUT_WALLS} == WITHOUT_WALLS
    assert ".ssh" in answer["home"]


def test_claude_code_starts_wrapped_servers(person, servers):
    typed = {name: {"type": "stdio", **one} for name, one in servers.items()}
    path = json_file(person, ".claude.json", {"mcpServers": typed})
    with wrapped(person, "claude-code", path):
        listed = person.run("claude", "mcp", "list")
        for name in SERVERS:
            (line,) = [one for one in listed.splitlines() if one.startswith(f"{name}: ")]
            assert "corral run" in line
            assert line.endswith("Connected"), listed


def test_gemini_starts_wrapped_servers(person, servers):
    path = json_file(person, ".gemini/settings.json", {"mcpServers": servers})
    json_file(person, ".gemini/trustedFolders.json", {str(person.project): "TRUST_FOLDER"})
    with wrapped(person, "gemini", path):
        # gemini waits only five seconds for a server, so this test may fail on a busy machine.
        listed = person.run("gemini", "mcp", "list", both=True)
        for name in SERVERS:
            (line,) = [one for one in listed.splitlines() if f" {name}: " in one]
            assert "corral run" in line
            assert line.endswith("Connected"), listed


def test_opencode_starts_wrapped_servers(person, servers):
    entries = {
        name: {
            "type": "local",
            "command": [one["command"], *one["args"]],
            "environment": one.get("env", {}),
        }
        for name, one in servers.items()
    }
    path = json_file(
        person,
        ".config/opencode/opencode.json",
        {"$schema": "https://opencode.ai/config.json", "mcp": entries},
    )
    with wrapped(person, "opencode", path):
        listed = person.run("opencode", "mcp", "list")
        assert listed.count("connected") == len(SERVERS), listed
        assert listed.count("corral run") == len(SERVERS), listed


def test_the_inspector_starts_wrapped_servers(person, servers):
    path = json_file(person, "inspector.json", {"mcpServers": servers})

    def call(server: str, tool: str, *arguments: str) -> str:
        words = [word for one in arguments for word in ("--tool-arg", one)]
        name = ("--config", str(path), "--server", server)
        method = ("--method", "tools/call", "--tool-name", tool, *words)
        answer = person.run("mcp-inspector", "--cli", *name, *method)
        return json.loads(answer)["content"][0]["text"]

    with wrapped(person, str(path), path):
        assert "Echo: hello" in call("everything", "echo", "message=hello")
        assert "Europe/Berlin" in call("time", "get_current_time", "timezone=Europe/Berlin")
        assert json.loads(call("plain", "act")) == DENIED


class AppServer:
    """A session with `codex app-server`. Each line that is sent or received is one JSON object."""

    def __init__(self, person: Person) -> None:
        self.number = 0
        self.process = subprocess.Popen(
            ["codex", "app-server"], env=person.env, cwd=person.project, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict) -> dict:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == self.number and "method" not in answer:
                assert "result" in answer, answer
                return answer["result"]
        raise AssertionError("codex app-server ended")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def test_codex_starts_wrapped_servers(person, servers):
    path = person.home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(toml_text(servers))
    with wrapped(person, "codex", path), contextlib.closing(AppServer(person)) as codex:
        codex.ask("initialize", {"clientInfo": {"name": "t", "title": "t", "version": "1"}})
        codex.send({"method": "initialized"})
        thread = codex.ask("thread/start", {"cwd": str(person.project)})["thread"]["id"]
        tools = {one["name"]: one["tools"] for one in codex.ask("mcpServerStatus/list", {})["data"]}
        assert set(tools) >= set(SERVERS)
        assert "act" in tools["plain"]

        def call(server: str, tool: str, **arguments: object) -> str:
            asked = {"server": server, "threadId": thread, "tool": tool, "arguments": arguments}
            return codex.ask("mcpServer/tool/call", asked)["content"][0]["text"]

        assert "Echo: hello" in call("everything", "echo", message="hello")
        assert "UTC" in call("time", "get_current_time", timezone="UTC")
        assert json.loads(call("plain", "act")) == DENIED
