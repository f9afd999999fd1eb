"""Run an MCP server on a real Mac. Its project has a `.env`, which the server looks for and may not read."""

import importlib.util
import json
import pathlib
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="only macOS has Seatbelt")
SERVER = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("notes")

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
    """Return the answer to the last message."""
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.mark.parametrize("hidden", [True, False], ids=["with .env", "without"])
def test_a_fastmcp_server_answers(mac, hidden):
    if importlib.util.find_spec("mcp") is None:
        pytest.skip("the package mcp is not installed")
    project = pathlib.Path(mac.place)
    (project / "server.py").write_text(SERVER)
    if hidden:
        (project / ".env").write_text("TOKEN=told\n")
    flags = ("--write", mac.place)
    process = mac.start(sys.executable, str(project / "server.py"), flags=flags, cwd=mac.place)
    hello = exchange(process, {"id": 1, "method": "initialize", "params": HELLO})
    assert hello["result"]["serverInfo"]["name"] == "notes", process.stderr.read()
    answer = exchange(
        process,
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 2, "b": 3}}},
    )
    assert answer["result"]["content"][0]["text"] == "5"
    process.communicate()
