"""Treat corral as MCP clients treat a server: start it, talk to it, close its stdin, terminate it
and kill it.

The Python SDK signals the process group, the TypeScript SDKs only the direct child. Either way, the
whole tree must end.
"""

import json
import os
import signal
import subprocess
from subprocess import PIPE

import pytest
from traces import PATIENCE, Traces, ended, readable

SERVER = """
import json, os, signal, subprocess, sys
behaviour = sys.argv[1]
if "stubborn" in behaviour:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if "family" in behaviour:
    # Starts a child in its own session, as some servers do with helpers.
    if os.fork() == 0:
        os.setsid()
        while True:
            signal.pause()
for line in sys.stdin.buffer:
    try:
        request = json.loads(line)
    except ValueError:
        if "echo" not in behaviour:
            raise
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        continue
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"method": request["method"]}}
    print(json.dumps(answer), flush=True)
if "deaf" in behaviour:
    while True:
        signal.pause()
"""
CLIENT_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")


class Client:
    """A client that starts corral as the SDKs do, with few environment variables and in a new
    session, and that sends one message per line.
    """

    def __init__(self, user, behaviour: str, *, code: str | None = None) -> None:
        self.traces = Traces()
        flags = ["--allow-subprocess"] if "family" in behaviour else []
        command = [user.python, "-c", SERVER, behaviour, self.traces.argument]
        argv = user.corral_argv("run", *flags, "--", *command)
        if code is not None:
            argv[2] = code
        env = {
            name: value for name, value in user.environment().items() if name in CLIENT_VARIABLES
        }
        self.process = user.popen(
            argv, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )

    def request(self, number: int, method: str) -> dict:
        message = {"jsonrpc": "2.0", "id": number, "method": method}
        self.send(message)
        assert readable(self.process.stdout.fileno()), self.process.stderr.read()
        return json.loads(self.process.stdout.readline())

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def greet(self) -> None:
        """Initialize the server, and ask for its tools."""
        assert self.request(1, "initialize")["result"]["method"] == "initialize"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert self.request(2, "tools/list")["id"] == 2

    def close_stdin(self) -> None:
        self.process.stdin.close()

    def gone(self) -> int:
        assert ended(self.process.pid)
        code = self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        assert self.traces.left_in_the_end() == {}
        return code


@pytest.fixture
def client(user):
    started = []

    def start(behaviour: str, **options) -> Client:
        started.append(Client(user, behaviour, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        for stream in (one.process.stdin, one.process.stdout, one.process.stderr):
            stream.close()
        one.process.wait()


def test_a_server_answers_and_ends_with_its_stdin(client):
    one = client("polite")
    one.greet()
    one.close_stdin()
    assert one.gone() == 0


def test_a_client_may_begin_with_a_message_of_the_newer_mcp_protocol(client):
    one = client("polite")
    assert one.request("first", "server/discover")["id"] == "first"
    one.close_stdin()
    assert one.gone() == 0


def test_all_bytes_pass_unchanged(client):
    """Send messages of up to 25 KB, and lines that are not messages. The server must echo them
    unchanged.
    """
    one = client("polite echo")
    for number in range(50):
        text = "x" * (number * 500) + "\u2028ü\U0001f600"
        assert one.request(number, text)["result"]["method"] == text
    for line in (b"not json\n", b"{}}\r\n", b"\n", bytes({*range(256)} - {10}) + b"\n"):
        one.process.stdin.write(line)
        one.process.stdin.flush()
        assert readable(one.process.stdout.fileno()), one.process.stderr.read()
        assert one.process.stdout.readline() == line
    one.close_stdin()
    assert one.gone() == 0


def test_corral_writes_nothing_to_stdout(client):
    one = client("polite")
    one.close_stdin()
    assert one.process.stdout.read() == b""
    assert one.gone() == 0


@pytest.mark.parametrize("behaviour", ["polite", "deaf", "deaf family"])
def test_sigterm_to_the_group_ends_the_tree(client, behaviour):
    """Do what the Python SDK does: close stdin, wait, and send SIGTERM to the process group."""
    one = client(behaviour)
    one.greet()
    if "deaf" in behaviour:
        one.close_stdin()
    os.killpg(one.process.pid, signal.SIGTERM)
    assert one.gone() == 128 + signal.SIGTERM


@pytest.mark.parametrize("behaviour", ["polite", "deaf", "deaf family"])
def test_sigterm_to_the_direct_child_ends_the_tree(client, behaviour):
    """Do what the TypeScript SDKs do: send SIGTERM to the direct child."""
    one = client(behaviour)
    one.greet()
    if "deaf" in behaviour:
        one.close_stdin()
    one.process.terminate()
    assert one.gone() == 128 + signal.SIGTERM


@pytest.mark.parametrize("behaviour", ["polite", "deaf stubborn", "deaf stubborn family"])
@pytest.mark.parametrize("whom", ["group", "child"])
def test_sigkill_of_corral_ends_the_tree(client, behaviour, whom):
    one = client(behaviour)
    one.greet()
    if "deaf" in behaviour:
        one.close_stdin()
        one.process.terminate()
        assert not ended(one.process.pid, 0.1)  # Sanity check: it does not end by itself
    if whom == "group":
        os.killpg(one.process.pid, signal.SIGKILL)
    else:
        one.process.kill()
    assert one.gone() == -signal.SIGKILL


def test_the_whole_stop_sequence_ends_a_server_that_ignores_it(client):
    """Stop a server that ignores every request to end, as clients do: close stdin, wait, send
    SIGTERM to the process group, wait, and kill corral. The server must then end, too.
    """
    one = client("deaf stubborn family")
    one.greet()
    one.close_stdin()
    assert not ended(one.process.pid, 0.1)
    os.killpg(one.process.pid, signal.SIGTERM)
    assert not ended(one.process.pid, 0.1)
    one.process.kill()
    assert one.gone() == -signal.SIGKILL


def test_the_death_of_a_client_ends_the_server(user):
    """Kill a client. corral gets no signal, so the end of its stdin must end the server."""
    traces = Traces()
    code = (
        "import os, subprocess, sys\n"
        "process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\n"
        'process.stdin.write(b\'{"id": 1, "method": "x"}\\n\'); process.stdin.flush()\n'
        "process.stdout.readline()\n"
        "os.write(1, b'ready\\n')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    server = [user.python, "-c", SERVER, "polite", traces.argument]
    argv = [user.python, "-c", code, *user.corral_argv("run", "--", *server)]
    with user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert traces.left_in_the_end() == {}


def test_two_runs_of_one_server_work_at_once(client):
    """Run one server twice at the same time. Some TypeScript clients do so: they first start the
    server only to test it.
    """
    first, second = client("polite"), client("polite")
    second.greet()
    first.greet()
    first.close_stdin()
    assert first.gone() == 0
    assert second.request(3, "still/there")["id"] == 3
    second.close_stdin()
    assert second.gone() == 0
