"""Start published servers through corral with their profiles, and talk to them with the official
SDK.

The tests also try forbidden acts with each server's runtime, under the server's profile.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import threading

import pytest

import rigs
from servers import sdk
from servers.conftest import STARTS
from servers.published import SERVERS
from users import User
from world import PUBLIC, Inhabitant, make_world

pytestmark = pytest.mark.rig("servers")
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; main()"
PAGE = b"<html><body><p>a page of the host</p></body></html>"
ANSWER = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def home():
    """Return a home directory with an SSH key and the packages that earlier test runs installed."""
    place = rigs.cache("servers")
    (place / ".ssh").mkdir(mode=0o700, parents=True, exist_ok=True)
    (place / ".ssh" / "id_ed25519").write_text("a key")
    return place


@pytest.fixture(scope="module")
def environment(home):
    names = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "https_proxy")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "HOME": str(home)}


@pytest.fixture(scope="module")
def page():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def client():
    return sdk.python("mcp-2", "mcp>=2")


@pytest.fixture
def work(tmp_path, environment):
    repository = tmp_path / "repository"
    git = functools.partial(
        subprocess.run, cwd=repository, check=True, env=environment, capture_output=True
    )
    repository.mkdir()
    git(["git", "init", "-q", "."])
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    git(["git", *who, "commit", "-q", "--allow-empty", "-m", "the first"])
    (repository / "new.txt").write_text("new")
    return tmp_path


def filled(item: object, words: dict[str, str]) -> object:
    """Return a copy of `item` with each `{name}` replaced by `words[name]`, also in strings inside
    dicts, lists and tuples.
    """
    if isinstance(item, str):
        for name, value in words.items():
            item = item.replace(f"{{{name}}}", value)
        return item
    if isinstance(item, dict):
        return {key: filled(value, words) for key, value in item.items()}
    return [filled(entry, words) for entry in item] if isinstance(item, list | tuple) else item


def corral(environment, *arguments: str, timeout: float = 110) -> subprocess.CompletedProcess:
    argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), *arguments]
    return subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    )


def bare_argv(environment, server, words) -> list[str]:
    """Return the server's own command, as `corral explain` prints it, so that a test can start the
    server without corral.
    """
    arguments = server.arguments if server.bare is None else server.bare
    done = corral(
        environment,
        "explain",
        "--json",
        "--profile",
        server.profile,
        server.reference,
        *filled(arguments, words),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["program"]["argv"]


def processes_with(mark: str) -> list[str]:
    """Return the ids of the processes whose environment contains `mark`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass  # the process has ended, or belongs to another user
    return found


def test_leftover_processes_of_a_session_would_be_found():
    mark = secrets.token_hex(8)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={"T_MARK": mark}) as process:
        assert processes_with(mark) == [str(process.pid)]
        process.stdin.close()
    assert processes_with(mark) == []


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.profile)
def test_a_published_server_works_inside(server, environment, client, page, work):
    words = {
        "work": str(work),
        "host": page,
        "url": f"http://{page}/",
        "mark": secrets.token_hex(8),
    }
    calls = [(name, filled(given, words)) for name, given, _ in server.calls]
    env = dict(filled(server.env, words))
    bare_env = {**env, **dict(filled(server.bare_env, words))}
    command = bare_argv(environment, server, words)
    bare = sdk.session(
        client,
        environment,
        command=command[0],
        args=command[1:],
        sandboxed=None,
        env=bare_env,
        calls=calls,
    )
    policy = {"profile": server.profile, "policy": filled(dict(server.policy), words) or None}
    inside = sdk.session(
        client,
        environment,
        command=server.reference,
        args=filled(server.arguments, words),
        sandboxed=policy,
        env={**env, "T_MARK": words["mark"]},
        calls=calls,
    )
    assert inside["server"] == bare["server"]
    assert inside["tools"] == bare["tools"]
    for (name, _, expected), result, outside in zip(
        server.calls, inside["results"], bare["results"], strict=True
    ):
        if expected is None:
            assert result == outside, name
            continue
        for answer in (outside, result):
            assert filled(expected, words) in answer["text"], name
            assert not answer["failed"], answer["text"]
    assert processes_with(words["mark"]) == []
    STARTS[server.reference] = (bare["started"], inside["started"])


NODE = {
    "read": "require('fs').readFileSync({target!r})",
    "connect": "require('net').connect({target!r}, '127.0.0.1')"
    ".on('connect', () => process.exit(0)).on('error', () => process.exit(9))",
    "spawn": "process.exit(require('child_process').spawnSync('/bin/true').status === 0 ? 0 : 9)",
}
PYTHON = {
    "read": "open({target!r}).read()",
    "connect": "import socket; socket.create_connection(('127.0.0.1', {target!r}), 5)",
    "spawn": "import subprocess; subprocess.run(['/bin/true'], check=True)",
}
RUNTIMES = {"node": (["node", "-e"], NODE), "python": (["/usr/bin/python3", "-c"], PYTHON)}


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.profile)
def test_a_published_server_cannot_do_forbidden_acts(
    server, environment, home, listener, page, work
):
    """Try forbidden acts with the server's runtime. Then check that the same acts succeed without
    corral.
    """
    words = {"work": str(work), "host": page, "url": f"http://{page}/"}
    start, acts = RUNTIMES[server.runtime]
    targets = {"read": str(home / ".ssh" / "id_ed25519"), "connect": listener}
    if not server.subprocess:
        targets["spawn"] = ""
    policy = json.dumps({"version": 1, **filled(dict(server.policy), words)})
    for act, target in targets.items():
        # Some profiles grant the paths in the arguments, so the secret's path is in the code.
        argv = [*start, acts[act].format(target=target)]
        control = subprocess.run(argv, env=environment, check=False, timeout=60)
        assert control.returncode == 0, act
        tried = corral(
            environment, "run", "--profile", server.profile, "--policy", policy, "--", *argv
        )
        assert tried.returncode not in {0, 125, 126, 127}, (act, tried.stderr)


FETCH = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from corral.messages.client import Client
process = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
client = Client(process.stdout, process.stdin)
client.connect()
answers = [client.call_tool("fetch", {"url": f"http://{host}/"}) for host in ("page.test", "127.0.0.1")]
process.stdin.close()
process.wait()
print(json.dumps([[answer.error, answer.text] for answer in answers]))
"""


@pytest.mark.rig("node")
def test_the_fetch_profile_makes_pages_readable_without_npm(
    environment, tmp_path, tmp_path_factory
):
    """Fetch an HTML page by name. Check that the server needs no argument for that, does not start
    npm although it is installed, and still refuses an address that is not public.
    """
    assert shutil.which("npm", path=environment["PATH"])
    server = next(one for one in SERVERS if one.profile == "fetch")
    environment = {**environment, "HOME": str(tmp_path)}
    installed = corral(environment, "explain", server.reference)  # the world has no registries
    assert installed.returncode == 0, installed.stderr
    for world in make_world(tmp_path_factory.mktemp("world")):
        world.name("page.test", PUBLIC)
        world.serve(lambda end: end.recv(4096) and end.sendall(ANSWER), port=80)
        root = Inhabitant(User("root", 0, tmp_path, sdk.SOURCE, ""), world)
        argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), "run", "--profile", "fetch"]
        argv += ["--allow-net", "page.test", "--allow-net", "127.0.0.1", server.reference]
        talk = [sys.executable, "-c", FETCH, str(sdk.SOURCE), *argv, "--ignore-robots-txt"]
        with root.popen(
            talk, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err.decode()
        fetched, refused = json.loads(out)
        assert not fetched[0], err.decode()
        assert "a page of the host" in fetched[1]
        assert "not a public address" in refused[1]
        assert b"npm" not in err
        assert world.arrived == [(PUBLIC, 80)]


def test_the_memory_server_keeps_its_own_state_between_runs(environment, client, home):
    """Run the server twice with a profile that sets `state`. The second run has to read what the
    first run wrote into the server's own directory.
    """
    server = next(one for one in SERVERS if one.profile == "memory")
    start = {"command": server.reference, "args": [], "env": {}, "sandboxed": {"profile": "memory"}}
    fact = f"fact {secrets.token_hex(8)}"
    made = {"entities": [{"name": fact, "entityType": "fact", "observations": ["kept"]}]}
    sdk.session(client, environment, calls=[("create_entities", made)], **start)
    again = sdk.session(client, environment, calls=[("read_graph", {})], **start)
    assert fact in again["results"][0]["text"]


@pytest.mark.parametrize(("name", "requirement"), [("mcp-1", "mcp<2"), ("mcp-2", "mcp>=2")])
def test_both_generations_of_the_sdk_start_servers(name, requirement, environment):
    server = next(one for one in SERVERS if one.profile == "everything")
    found = sdk.session(
        sdk.python(name, requirement),
        environment,
        command=server.reference,
        args=[],
        env={"GREETING": "hello", "API_TOKEN": "a-secret"},
        sandboxed={"policy": {"limits": {"pids": 64}}},
        calls=[("get-env", {})],
    )
    inside = json.loads(found["results"][0]["text"])
    assert (inside["GREETING"], inside["API_TOKEN"]) == ("hello", "a-secret")
    assert inside["USER"] == "user"  # the value that corral sets, not the caller's value


FASTMCP = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from corral.mcp import sandboxed
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

async def main():
    plain = StdioTransport(sys.argv[2], [], keep_alive=False)
    async with Client(sandboxed(plain, profile="everything")) as client:
        answer = await client.call_tool("echo", {"message": "by FastMCP"})
        print(answer.content[0].text)

asyncio.run(main())
"""


def test_fastmcp_starts_servers(environment):
    server = next(one for one in SERVERS if one.profile == "everything")
    interpreter = sdk.python("fastmcp", "fastmcp")
    argv = [interpreter, "-c", FASTMCP, str(sdk.SOURCE), server.reference]
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "by FastMCP" in done.stdout


def test_the_example_agent_works(environment, client, tmp_path):
    (tmp_path / "a-note.txt").write_text("hello")
    argv = [client, str(sdk.SOURCE.parent / "examples" / "agent.py"), str(tmp_path)]
    done = subprocess.run(
        argv,
        env={**environment, "PYTHONPATH": str(sdk.SOURCE)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[FILE] a-note.txt" in done.stdout
    assert '"timezone": "UTC"' in done.stdout
