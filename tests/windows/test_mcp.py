"""A real MCP session through `corral run` and through the API."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import corral as package
from corral.messages.client import Client

SERVER = (sys.executable, "-m", "corral.demo.server")
LOOSE = {
    "environment": {"pass": ["PYTHONPATH"]},
    "degrade": {
        "allow": [
            *("filesystem", "network", "subprocess", "syscalls"),
            *("memory", "pids", "fds", "disk"),
        ]
    },
}


@pytest.fixture
def session(corral):
    flags = ("--best-effort", "--env", "PYTHONPATH")
    argv = corral.argv("run", *flags, "--", *SERVER)
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def test_a_session(session, tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("written outside")
    client = Client(session.stdout, session.stdin)
    assert client.initialize()["serverInfo"]["name"] == "corral-demo"
    assert "read_file" in client.list_tools()
    answer = client.call_tool("read_file", {"path": str(note)})
    assert (answer.error, "written outside" in answer.text) == (False, True)
    assert client.call_tool("read_file", {"path": str(tmp_path / "none")}).error  # the control
    session.stdin.close()
    assert session.wait(20) == 0
    assert session.stdout.read() == b""


def test_the_end_of_input_ends_a_session_that_never_began(session):
    session.stdin.close()
    assert session.wait(20) == 0


def test_a_session_of_the_api():
    with package.launch(
        SERVER, LOOSE, stdin=package.PIPE, stdout=package.PIPE, env=os.environ
    ) as sandbox:
        client = Client(sandbox.stdout, sandbox.stdin)
        assert client.initialize()["serverInfo"]["name"] == "corral-demo"
        assert "read_file" in client.list_tools()
        sandbox.stdin.close()
        assert sandbox.wait(20) == 0
    assert sandbox.report.outcome.kind == "exited"
