"""Test `corral demo` as root and as an ordinary user: its verdicts and its server."""

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import venv
from contextlib import ExitStack

import pytest

from corral.demo import server
from corral.demo.acts import Act, list_acts
from corral.demo.decoys import Decoys
from corral.demo.run import (
    ActResult,
    Attempt,
    Wall,
    check_attempt,
    has_passed,
    judge,
    start_outside,
    summarize,
)
from corral.messages.client import Client, ConversationError

DONE = Attempt(done=True, text="evidence")
DENIED = Attempt(done=False, text="EPERM: Operation not permitted")
UP = Wall(control="network", mechanism="network namespace", status="verified")
DOWN = Wall(control="network", mechanism="", status="degraded", why="no namespaces")


def demo(user, *flags, **options):
    done = user.corral("demo", "--json", *flags, **options)
    return done, json.loads(done.stdout)


@pytest.fixture
def place(user):
    """Yield the directory for the demo's temporary files, and check that it is empty afterwards."""
    path = user.package.parent / f"demo-{user.name}-{os.getpid()}"
    path.mkdir(mode=0o700)
    os.chown(path, user.uid, user.uid)
    yield path
    path.rmdir()  # fails if the directory is not empty


# The whole demo


def test_every_act_is_stopped_inside_and_succeeds_outside(user, place):
    done, data = demo(user, env=user.environment(TMPDIR=str(place)))
    assert done.returncode == 0, (done.stderr.decode(), data)
    assert data["ok"] is True
    forbidden = [row for row in data["acts"] if row["wall"]]
    permitted = [row for row in data["acts"] if not row["wall"]]
    assert len(forbidden) == 17
    assert [row["act"] for row in forbidden if row["inside"]["done"]] == []
    assert [row["act"] for row in forbidden if not row["outside"]["done"]] == []
    assert len(permitted) == 3
    assert all(row["verdict"] == "works" for row in permitted)
    assert data["summary"].startswith("17 of 17 acts stopped inside; all 17 succeed outside")
    for row in forbidden:
        held = row["wall"]["status"] in ("verified", "applied", "cooperative")
        assert row["verdict"] == ("stopped" if held else "unpromised"), row


def test_the_demo_names_the_same_mechanism_for_each_wall_as_explain(user):
    _, data = demo(user)
    explained = user.corral("explain", "--json", "--best-effort", "--", "true")
    controls = {held["control"]: held for held in json.loads(explained.stdout)["controls"]}
    for row in data["acts"]:
        wall = row["wall"]
        if wall and wall["control"] in controls and wall["control"] != "disk":
            planned = controls[wall["control"]]
            assert (wall["mechanism"], wall["status"]) == (planned["mechanism"], planned["status"])
    named = {row["wall"]["control"] for row in data["acts"] if row["wall"]}
    assert named == {
        "filesystem", "environment", "network", "subprocess", "syscalls", "tree",
        "memory", "pids", "fds", "disk",
    }  # fmt: skip


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_every_act_is_stopped_without_namespaces(user):
    """Run the demo without namespaces. One act starts a daemon, which must end with the server.
    Otherwise it would keep the demo's pipe open.
    """
    done, data = demo(user)
    assert (done.returncode, data["ok"]) == (0, True), (done.stderr, data)
    acts = {row["act"]: row for row in data["acts"]}
    walls = {name: row["wall"]["mechanism"] for name, row in acts.items() if row["wall"]}
    assert walls["read the SSH key"] == "landlock + notification"
    assert walls["connect to the host by TCP"] == "seccomp socket families"
    assert walls["start 200 threads"] == "seccomp notification"
    assert acts["outlive the server"]["inside"]["text"] == "the daemon ended with the server"
    unpromised = {name for name, row in acts.items() if row["verdict"] == "unpromised"}
    assert "make a file of 1100 MiB" in unpromised
    assert {row["verdict"] for row in data["acts"]} <= {"stopped", "unpromised", "works"}


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_the_table_names_the_walls_without_namespaces(user):
    done = user.corral("demo", env=user.environment(COLUMNS="110", NO_COLOR="1"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert "did not hold: nothing" in lines
    assert "not tried: nothing" in lines
    assert any(
        line.startswith("! make a file of 1100 MiB: stopped, but not by a wall") for line in lines
    )


def test_the_demo_runs_without_home_in_the_environment(ordinary):
    environment = {k: v for k, v in ordinary.environment().items() if k != "HOME"}
    done, data = demo(ordinary, env=environment)
    assert (done.returncode, data["ok"]) == (0, True), done.stderr


def test_the_table_fits_80_columns_and_ends_with_the_number_of_stopped_acts(ordinary):
    done = ordinary.corral("demo", env=ordinary.environment(COLUMNS="80", NO_COLOR="1"))
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].split() == ["act", "inside", "wall", "outside"]
    assert max(map(len, lines[:-5])) <= 80
    held, failed, untried = lines[-4:-1]
    assert (held, failed) == ("held: 20 acts", "did not hold: nothing")
    assert untried == "not tried: nothing"
    assert "\033" not in done.stdout.decode()
    assert lines[-1].startswith("17 of 17 acts stopped inside; all 17 succeed outside")


def test_the_demo_runs_from_a_virtual_environment(tmp_path_factory):
    """Run the demo with a corral that is installed in a virtual environment outside the checkout.
    Its server must find corral in the environment's site-packages.
    """
    import shutil

    import corral

    root = tmp_path_factory.mktemp("installed")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    site = next((root / "venv" / "lib").glob("python*")) / "site-packages"
    package = pathlib.Path(corral.__file__).parent
    shutil.copytree(package, site / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys; from corral.cli import main; sys.exit(main())"
    done = subprocess.run(
        [root / "venv" / "bin" / "python", "-c", code, "demo", "--json"],
        capture_output=True, cwd=root, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout.decode(), done.stderr.decode())
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_temporary_files(user, place, number):
    """Interrupt the demo while it creates its temporary files."""
    process = user.popen(
        user.corral_argv("demo"), env=user.environment(TMPDIR=str(place)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        while not any(place.glob("corral-demo-*/granted/fifo")):
            assert process.poll() is None, process.stderr.read()
            select.select([process.stdout], [], [], 0.005)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert list(place.iterdir()) == []


def test_the_demo_takes_no_arguments(ordinary):
    assert ordinary.corral("demo", "extra").returncode == 2


# The next tests judge made-up results of acts, because a correct demo does not produce such
# results.


@pytest.mark.parametrize(
    ("wall", "inside", "outside", "verdict"),
    [
        (UP, DENIED, DONE, "stopped"),
        (UP, DONE, DONE, "escaped"),
        (UP, DONE, DENIED, "escaped"),
        (UP, DENIED, DENIED, "unproven"),
        (DOWN, DONE, DONE, "open"),
        (DOWN, DENIED, DONE, "unpromised"),
        (DOWN, DENIED, DENIED, "unproven"),
        (None, DONE, DONE, "works"),
        (None, DENIED, DONE, "broken"),
        (None, DONE, DENIED, "broken"),
    ],
)
def test_the_verdict_on_an_act_follows_from_its_results_inside_and_outside(
    wall, inside, outside, verdict
):
    assert judge(wall, inside, outside) == verdict


def result(verdict, wall=UP, inside=DENIED, outside=DONE):
    return ActResult(
        act="act", tool="tool", wall=wall, inside=inside, outside=outside, verdict=verdict
    )


def test_only_stopped_acts_pass():
    assert has_passed([result("stopped"), result("unpromised", DOWN), result("works", None, DONE)])
    assert not has_passed([])
    assert has_passed([result("stopped"), result("unproven")])
    assert not has_passed([result("unproven"), result("works", None, DONE)])
    for verdict in ("escaped", "open", "broken"):
        assert not has_passed([result("stopped"), result(verdict)])


def test_the_summary_counts_each_verdict():
    rows = [
        result("stopped"),
        result("open", DOWN, inside=DONE),
        result("unproven", outside=DENIED),
        result("works", None, DONE),
    ]
    assert summarize(rows) == (
        "2 of 3 acts stopped inside; 2 succeed outside; 1 not stopped on this host; "
        "1 could not be tried, because they fail outside too; "
        "1 of 1 permitted acts work"
    )


def test_an_act_is_not_judged_only_by_what_the_server_says_about_it():
    """Judge attempts whose signs of success contradict each other: the server's statement, the
    proof in its answer, and what the demo sees itself. Inside the sandbox, any sign of success is
    an escape. Outside, an attempt succeeds only if all signs agree.
    """
    act = Act(name="", tool="", arguments={}, control="network", proof="secret")
    denied_but_leaked = Attempt(done=False, text="no, but here is the secret")
    claimed = Attempt(done=True, text="I did it")
    assert check_attempt(act, denied_but_leaked, inside=True).done
    assert not check_attempt(act, DENIED, inside=True).done
    assert not check_attempt(act, claimed, inside=False).done
    seen = Act(name="", tool="", arguments={}, control="tree", witness=lambda _: True)
    assert check_attempt(seen, DENIED, inside=True).done
    assert not check_attempt(seen, DENIED, inside=False).done
    permitted = Act(name="", tool="", arguments={}, proof="5")
    assert not check_attempt(permitted, Attempt(done=True, text="6"), inside=True).done


def test_a_server_without_walls_is_caught():
    """Start the demo's server without a sandbox, but judge its acts as if it were inside one. Every
    act must be reported as an escape.
    """
    with ExitStack() as stack:
        decoys = Decoys(stack)
        server = stack.enter_context(start_outside(decoys))
        # With `walls`, `try_act` judges as for a server inside the sandbox: any sign of success is
        # an escape.
        server.walls = {"network": UP}
        tried = [server.try_act(act) for act in list_acts(decoys) if act.control]
    assert {judge(UP, attempt, DONE) for attempt in tried} == {"escaped"}
    assert len(tried) == 16


def test_the_acts_touch_only_temporary_files():
    with ExitStack() as stack:
        decoys = Decoys(stack)
        acts = list_acts(decoys)
        root = os.path.dirname(decoys.home)
        paths = [act.arguments["path"] for act in acts if "path" in act.arguments]
        assert paths
        assert all(path.startswith(f"{root}/") for path in paths)
        pids = {act.arguments["pid"] for act in acts if "pid" in act.arguments}
        assert pids == {decoys.bystander.pid}
        assert decoys.environment()["HOME"] == decoys.home
    assert not os.path.exists(root)


# The next tests talk to the demo's server.


def talk(*lines):
    """Return the server's answers to these lines, and its exit code after end of file."""
    source = pathlib.Path(server.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "corral.demo.server"],
        input=b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines),
        capture_output=True, cwd=source, timeout=30, check=False,
    )  # fmt: skip
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def request(method, number=1, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def hello(version="2025-11-25"):
    client = {"name": "test", "version": "1"}
    return request("initialize", 0, protocolVersion=version, capabilities={}, clientInfo=client)


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def test_end_of_input_ends_the_server():
    assert talk() == ([], 0)
    assert talk(hello())[1] == 0


@pytest.mark.parametrize(
    ("asked", "got"),
    [(version, version) for version in server.VERSIONS] + [("1999-01-01", "2025-11-25")],
)
def test_the_demo_server_negotiates_the_protocol_version(asked, got):
    (answer,), _ = talk(hello(asked))
    assert answer["id"] == 0
    assert answer["result"]["protocolVersion"] == got
    assert answer["result"]["capabilities"] == {"tools": {}}
    assert answer["result"]["serverInfo"]["name"] == "corral-demo"


def test_tools_are_listed_with_schemas():
    (_, answer), _ = talk(hello(), INITIALIZED, request("tools/list", "a"))
    assert answer["id"] == "a"
    tools = {tool["name"]: tool for tool in answer["result"]["tools"]}
    assert tools["add"]["inputSchema"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    assert all(tool["description"] for tool in tools.values())


def test_a_call_answers_with_text_and_structure():
    call = request("tools/call", name="add", arguments={"a": 2, "b": 40})
    (_, answer), _ = talk(hello(), INITIALIZED, call)
    assert answer["result"] == {
        "content": [{"type": "text", "text": "42"}],
        "structuredContent": {"done": True, "what": "42"},
        "isError": False,
    }


def test_a_call_that_fails_is_a_result_not_an_error():
    call = request("tools/call", name="read_file", arguments={"path": "/no/such/file"})
    (_, answer), _ = talk(hello(), INITIALIZED, call)
    assert answer["result"]["isError"] is True
    assert answer["result"]["content"][0]["text"].startswith("ENOENT")


@pytest.mark.parametrize(
    ("line", "number", "code"),
    [
        (request("resources/list", 7), 7, -32601),
        (request("tools/call", 7, name="nothing", arguments={}), 7, -32602),
        (request("tools/call", 7, name="add", arguments={"a": "2", "b": 3}), 7, -32602),
        (request("tools/call", 7, name="add", arguments={"a": True, "b": 3}), 7, -32602),
        ({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": [1]}, 7, -32602),
        ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, None, -32600),
        ({"jsonrpc": "2.0", "id": 7, "method": 5}, 7, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None, -32600),
        ([request("ping")], None, -32600),
        (b"{nothing\n", None, -32700),
        (b"\xff\xfe\n", None, -32700),
        (b"[" * 100_000 + b"\n", None, -32700),
    ],
)
def test_a_wrong_message_gets_its_error_code_and_the_server_goes_on(line, number, code):
    (_, answer, pong), status = talk(hello(), line, request("ping", 8))
    assert (answer["id"], answer["error"]["code"]) == (number, code)
    assert pong == {"jsonrpc": "2.0", "id": 8, "result": {}}
    assert status == 0


def test_only_ping_is_answered_before_initialize():
    (pong, refused), _ = talk(request("ping", 1), request("tools/list", 2))
    assert pong["result"] == {}
    assert refused["error"]["code"] == -32600


def test_notifications_answers_and_empty_lines_get_no_answer():
    silent = [INITIALIZED, {"jsonrpc": "2.0", "id": 1, "result": {}}, b"\n"]
    assert talk(*silent, {"jsonrpc": "2.0", "method": "unknown"}) == ([], 0)


def test_batches_are_accepted_by_one_revision_only():
    batch = [request("ping", 1), INITIALIZED, request("ping", 2)]
    (_, answers), _ = talk(hello("2025-03-26"), batch)
    assert [answer["id"] for answer in answers] == [1, 2]
    assert talk(hello("2025-03-26"), [INITIALIZED])[0][1:] == []


def test_the_client_reports_what_went_wrong(tmp_path):
    def answered(data):
        (tmp_path / "answers").write_bytes(data)
        reader, writer = (tmp_path / "answers").open("rb"), (tmp_path / "asked").open("wb")
        with reader, writer:
            return Client(reader, writer).request("ping", {})

    late = b'{"jsonrpc":"2.0","method":"notifications/message"}\n{"jsonrpc":"2.0","id":1,"result":{"a":1}}\n'
    assert answered(late) == {"a": 1}
    for data, words in (
        (b"", "ended"),
        (b"not json\n", "ended"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m"}}\n', "-32601"),
    ):
        with pytest.raises(ConversationError, match=words):
            answered(data)
