"""Make a server write a file that is lost when the run ends.

The server has to report a failure, or corral has to name the lost file.

The published server excel-mcp-server reported a lost workbook as created. The stand-in, a small
server in this file, does the same, so that one test needs no rig.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from corral.messages import client as messages
from servers import sdk
from servers.test_published import MAIN, environment, home  # noqa: F401 - fixtures

START_SECONDS = 400.0
TOOL = "create_workbook"
STAND_IN = """
import json, os, sys
def answer(method, params):
    if method == "initialize":
        about = {"name": "stand-in", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        return {"tools": [{"name": "create_workbook", "inputSchema": schema}]}
    path = os.path.abspath(params["arguments"]["path"])
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write("a workbook")
    except OSError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    return {"content": [{"type": "text", "text": path}]}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message["params"])
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
SERVERS = {
    "published": ("--profile", "excel", "pypi:excel-mcp-server", "stdio"),
    "stand-in": ("--", "/usr/bin/python3", "-c", STAND_IN),
}


def create(client: messages.Client, path: str) -> bool:
    """Make the server create a workbook. Return whether it reports success."""
    tools = {one["name"]: one for one in client.list_all("tools/list")}
    (name,) = tools[TOOL]["inputSchema"]["required"]
    return not client.call_tool(TOOL, {name: path}).error


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["host", "home", "relative"])
@pytest.mark.parametrize(
    "server", [pytest.param("published", marks=pytest.mark.rig("servers")), "stand-in"]
)
def test_a_lost_file_is_reported_by_the_server_or_by_corral(
    request, monkeypatch, tmp_path, server, where
):
    place, variables = "/srv/corral", {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    if server == "published":
        place = request.getfixturevalue("home")
        variables = request.getfixturevalue("environment")
    monkeypatch.setattr(messages, "ANSWER_SECONDS", START_SECONDS)
    # HOME of the stand-in is in /tmp, where corral does not report lost files. So the stand-in has
    # to write to a path of the host outside of /tmp, below `place`.
    path = {"host": f"{place}/Documents/report.xlsx", "home": "/home/user/Documents/report.xlsx"}
    argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), "run", *SERVERS[server]]
    with subprocess.Popen(
        argv,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        client = messages.Client(process.stdout, process.stdin)
        client.initialize()
        succeeded = create(client, path.get(where, "report.xlsx"))
        process.stdin.close()
        said = process.stderr.read().decode()
    assert not os.path.lexists(f"{place}/Documents")
    named = "corral: discarded after the run: ~/" in said and "report.xlsx" in said
    assert named == succeeded, said
    if server == "stand-in":
        assert succeeded == (where != "host"), said
    if where == "home" and named:
        assert (
            "`mkdir -p ~/Documents; touch ~/Documents/report.xlsx`, then --write ~/Documents/report.xlsx"
            in said
        )
