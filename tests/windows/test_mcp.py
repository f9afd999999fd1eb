"""Run a real MCP session through `corral run` and through the API."""

from __future__ import annotations

import os
import subprocess

import pytest

import corral as package
from corral.messages.client import Client, ConversationError
from windows.conftest import PYTHON

SOURCE = os.path.dirname(os.path.dirname(package.__file__))
# PYTHON is not the Python of a virtual environment, so corral has few packages to copy. It can
# import corral, because PYTHONPATH names corral's files and the policy grants them.
SERVER = (PYTHON, "-m", "corral.demo.server")
VARIABLES = {**os.environ, "PYTHONPATH": SOURCE}
LOOSE = {
    "environment": {"pass": ["PYTHONPATH"]},
    "filesystem": {"read": [SOURCE]},
    "degrade": {
        "allow": [
            *("filesystem", "network", "subprocess", "syscalls"),
            *("memory", "pids", "fds", "disk"),
        ]
    },
}


@pytest.fixture
def session(corral, tmp_path):
    grants = ("--read", SOURCE, "--read", str(tmp_path))
    flags = ("--best-effort", "--env", "PYTHONPATH", *grants)
    argv = corral.argv("run", *flags, "--", *SERVER)
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=VARIABLES
    ) as process:
        yield process
        process.kill()


def test_an_mcp_session_works_through_corral_run(session, tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("written outside")
    client = Client(session.stdout, session.stdin)
    assert client.initialize()["serverInfo"]["name"] == "corral-demo"
    assert "read_file" in [tool["name"] for tool in client.list_all("tools/list")]
    answer = client.call_tool("read_file", {"path": str(note)})
    assert (answer.error, "written outside" in answer.text) == (False, True)
    # Sanity check: a missing file is an error.
    assert client.call_tool("read_file", {"path": str(tmp_path / "none")}).error
    session.stdin.close()
    assert session.wait(90) == 0
    assert session.stdout.read() == b""


def test_the_end_of_input_ends_a_server_that_got_no_message(session):
    session.stdin.close()
    assert session.wait(90) == 0


def test_an_mcp_session_works_through_the_python_api():
    with package.launch(
        SERVER, LOOSE, stdin=package.PIPE, stdout=package.PIPE, env=VARIABLES
    ) as sandbox:
        client = Client(sandbox.stdout, sandbox.stdin)
        assert client.initialize()["serverInfo"]["name"] == "corral-demo"
        assert "read_file" in [tool["name"] for tool in client.list_all("tools/list")]
        sandbox.stdin.close()
        assert sandbox.wait(90) == 0
    assert sandbox.report.outcome.kind == "exited"


def test_an_mcp_session_works_through_the_message_guard():
    """Test the guard on Windows, where pipes cannot be polled, so the guard uses threads to read
    and write them.
    """
    policy = {**LOOSE, "mcp": {"tools": {"deny": ["read_file"]}}}
    with package.launch(
        SERVER, policy, stdin=package.PIPE, stdout=package.PIPE, env=os.environ
    ) as sandbox:
        client = Client(sandbox.stdout, sandbox.stdin)
        assert client.initialize()["serverInfo"]["name"] == "corral-demo"
        listed = [tool["name"] for tool in client.list_all("tools/list")]
        assert listed
        assert "read_file" not in listed
        with pytest.raises(ConversationError, match=r"mcp\.tools\.deny"):
            client.call_tool("read_file", {"path": "any"})
        sandbox.stdin.close()
        assert sandbox.wait(90) == 0
    assert [row.kind for row in sandbox.report.denials] == ["tool"]
