"""Run MCP servers on a real Mac, in a project with a `.env` file that the servers look for but may
not read.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="only macOS has Seatbelt")
PYTHONS = {"mcp 1": sys.executable, "mcp 2": os.environ.get("CORRAL_MCP_2_PYTHON", "")}
"""The Python interpreters with the two versions of `mcp`, because one environment cannot have both.
Only version 1 reads `.env` by itself.
"""
SERVER = """
try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer
server = MCPServer("notes")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

server.run()
"""
HELLO = {
    "protocolVersion": "2025-03-26",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def exchange(process, *messages):
    """Send the messages, and return the answer to the last one."""
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def installed_version(python):
    """Return the version of `mcp` for this interpreter, or "" if `mcp` is not installed."""
    code = "import importlib.metadata as found; print(found.version('mcp'))"
    if not python:
        return ""
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("hidden", [True, False], ids=["with .env", "without"])
@pytest.mark.parametrize("version", PYTHONS)
def test_a_fastmcp_server_answers(mac, hidden, version):
    python = PYTHONS[version]
    if not installed_version(python).startswith(version[-1]):
        pytest.skip(f"{version} is not installed")
    project = pathlib.Path(mac.place)
    (project / "server.py").write_text(SERVER)
    if hidden:
        (project / ".env").write_text("TOKEN=told\n")
    flags = ("--write", mac.place)
    process = mac.start(python, str(project / "server.py"), flags=flags, cwd=mac.place)
    hello = exchange(process, {"id": 1, "method": "initialize", "params": HELLO})
    assert hello["result"]["serverInfo"]["name"] == "notes", process.stderr.read()
    answer = exchange(
        process,
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 2, "b": 3}}},
    )
    assert answer["result"]["content"][0]["text"] == "5"
    process.communicate()
