"""Use the official SDKs as clients of published servers. Everything has to work in the same way
with and without the guard.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import rigs
from servers import sdk
from servers.published import SERVERS

pytestmark = [pytest.mark.rig("servers"), pytest.mark.timeout(300)]
HERE = pathlib.Path(__file__).parent
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; main()"
PACKAGES = ("@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0")
GUARD = ("--policy", '{"version": 1, "mcp": {"tools": {"deny": ["none-of-these"]}, "requests": ["*"]}}')  # fmt: skip
# The servers memory and sqlite are left out, because their answers depend on earlier runs.
CHOSEN = ("everything", "filesystem", "sequential-thinking", "time", "calculator")


@pytest.fixture(scope="module")
def environment():
    names = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "https_proxy")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    home = rigs.cache("servers")
    home.mkdir(parents=True, exist_ok=True)
    return {**kept, "HOME": str(home)}


@pytest.fixture(scope="module")
def packages() -> str:
    """Install both generations of the TypeScript SDK, once for all workers."""
    return rigs.once("npm-sdks", install_packages)


def install_packages() -> str:
    place = rigs.cache("npm-sdks-1.32.2-2.4.0")
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run([*npm, *PACKAGES], cwd=place, check=True)
        (place / "complete").touch()
    return str(place)


def corral(*words: str) -> dict:
    return {"command": sys.executable, "args": ["-I", "-c", MAIN, str(sdk.SOURCE), *words]}


def read(argv: list[str], environment) -> dict:
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def python_session(environment, **asked) -> dict:
    interpreter = sdk.python("mcp-2", "mcp>=2")
    return read([interpreter, str(HERE / "python_session.py"), json.dumps(asked)], environment)


def node_session(environment, packages, **asked) -> dict:
    text = json.dumps({"sdk": packages, **asked})
    return read(["node", str(HERE / "session.mjs"), text], environment)


def calls_of(server, work) -> list:
    raw = json.dumps([(name, given) for name, given, _ in server.calls])
    return json.loads(raw.replace("{work}", str(work)))


PAIRS = [
    pytest.param(client, profile, marks=pytest.mark.rig("long"))
    if client != "python" and profile != "everything"
    else (client, profile)
    for client in ("python", "typescript 1", "typescript 2")
    for profile in CHOSEN
]


@pytest.mark.parametrize(("client", "profile"), PAIRS)
def test_published_servers_answer_the_same_with_a_guard(profile, client, environment, packages, tmp_path):  # fmt: skip
    server = next(one for one in SERVERS if one.profile == profile)
    arguments = [word.replace("{work}", str(tmp_path)) for word in server.arguments]
    calls = calls_of(server, tmp_path)
    if profile == "everything":
        calls.append(("trigger-long-running-operation", {"duration": 1, "steps": 3}))
    found = []
    for flags in ((), GUARD):
        words = corral("run", "--profile", profile, *flags, server.reference, *arguments)
        if client == "python":
            found.append(python_session(environment, mode="auto", calls=calls, **words))
        else:
            generation = int(client[-1])
            found.append(
                node_session(
                    environment, packages, generation=generation, mode="auto", calls=calls, **words
                )
            )
    assert found[0]["lists"][0]["tools"]
    if profile == "time":
        assert not any(one["calls"][0].get("error") for one in found)
        for one in found:
            one.pop("calls")
    steps = [one.pop("progress") for one in found]
    assert found[1] == found[0]
    # TypeScript clients lose a progress notification that arrives together with the answer, even
    # without the guard.
    if profile == "everything" and client == "python":
        assert steps == [[1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(("name", "requirement"), [("mcp-1", "mcp<2"), ("mcp-2", "mcp>=2")])
def test_servers_that_sandboxed_has_prepared_work_with_both_versions_of_the_sdk(
    name, requirement, environment
):
    server = next(one for one in SERVERS if one.profile == "everything")
    found = []
    for policy in ({}, {"mcp": {"tools": {"deny": ["get-env"]}}}):
        session = sdk.session(
            sdk.python(name, requirement),
            environment,
            command=server.reference,
            args=[],
            env={},
            sandboxed={"policy": {"limits": {"pids": 64}, **policy}},
            calls=[("echo", {"message": "hello"}), ("get-env", {})],
        )
        found.append(session)
    bare, held = found
    assert "get-env" in bare["tools"]
    assert held["tools"] == [tool for tool in bare["tools"] if tool != "get-env"]
    assert held["results"][0] == bare["results"][0]
    assert not bare["results"][1]["failed"]
    assert "mcp.tools.deny" in held["results"][1]["text"]


@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
def test_messages_of_the_older_and_the_newer_mcp_protocol_pass_the_guard(
    mode, environment, packages
):
    """Check that a server can ask the client for its roots through the guard. In the older protocol
    the server sends a request of its own; in the newer protocol it asks inside an answer.
    """
    interpreter = sdk.python("mcp-2", "mcp>=2")
    server = (interpreter, str(HERE / "both_eras_server.py"))
    asked = {
        "calls": [("add", {"a": 2, "b": 3}), ("slow", {}), ("roots", {})],
        "prompts": [("greet", {"name": "A"})],
        "resources": ["notes://b"],
        "mode": mode,
    }
    base = ("run", "--read", str(HERE))
    bare = python_session(environment, **corral(*base, "--", *server), **asked)
    assert bare["version"] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert "file:///project" in json.dumps(bare["calls"][2])
    assert bare["progress"] == [0, 1, 2]
    guarded = python_session(environment, **corral(*base, *GUARD, "--", *server), **asked)
    assert guarded == bare
    strict = ("--policy", '{"version": 1, "mcp": {"tools": {"allow": ["add", "roots"]}, "prompts": {"deny": ["*"]}, "resources": {"deny": ["notes:*"]}}}')  # fmt: skip
    held = python_session(environment, **corral(*base, *strict, "--", *server), **asked)
    assert [tool["name"] for tool in held["lists"][0]["tools"]] == ["add", "roots"]
    assert held["lists"][1]["prompts"] == []
    assert held["lists"][3]["resource_templates"] == []
    assert held["calls"][0] == bare["calls"][0]
    assert "mcp.tools.allow" in held["calls"][1]["error"]
    assert "file:///project" not in json.dumps(held["calls"][2])
    assert "mcp.prompts.deny" in held["prompts"][0]["error"]
    assert "mcp.resources.deny" in held["resources"][0]["error"]
    if mode == "auto":
        found = [
            node_session(
                environment, packages, generation=2, **corral(*base, *flags, "--", *server), **asked
            )
            for flags in ((), GUARD)
        ]
        assert [one["calls"] for one in found] == [found[0]["calls"]] * 2
        assert found[0]["calls"][0]["content"][0]["text"] == "5"


OFFERED = ["add", "slow", "roots", "color", "sample", "wait", "cancelled"]
ASKING = {
    "calls": [("sample", {}), ("color", {}), ("roots", {}), ("cancelled", {})],
    "cancel": ["wait"],
}
CLIENTS = ("python legacy", "python auto", "typescript 1", "typescript 2")


@pytest.mark.parametrize("client", CLIENTS)
def test_sampling_elicitation_and_cancellation_pass_the_guard(client, environment, packages):
    """Check that sampling, elicitation and cancellation work through the guard. The tool
    `cancelled` answers only after the server has seen that a call to `wait` was cancelled.
    """
    interpreter = sdk.python("mcp-2", "mcp>=2")
    base = ("run", "--read", str(HERE))
    server = ("--", interpreter, str(HERE / "both_eras_server.py"))
    kind, how = client.split()

    def session(*flags):
        words = corral(*base, *flags, *server)
        if kind == "python":
            return python_session(environment, mode=how, **words, **ASKING)
        return node_session(environment, packages, generation=int(how), mode="auto", asks=True, **words, **ASKING)  # fmt: skip

    bare, guarded = session(), session(*GUARD)
    assert [one["content"][0]["text"] for one in bare["calls"]] == ["word", "red", "file:///project", "cancelled"]  # fmt: skip
    assert bare["cancelled"] == ["cancelled"]
    assert bare["seen"] == ["Say a word.", "Which color?"]
    assert guarded == bare
    held = session("--policy", '{"version": 1, "mcp": {"requests": ["elicitation"]}}')
    assert held["seen"] == ["Which color?"]
    assert (held["calls"][1], held["calls"][3]) == (bare["calls"][1], bare["calls"][3])
    for refused in (held["calls"][0], held["calls"][2]):
        assert refused.get("error") or refused.get("isError") or refused.get("is_error"), refused


def test_inspect_works_with_both_protocols_and_pins_what_the_client_sees(environment, tmp_path):
    interpreter = sdk.python("mcp-2", "mcp>=2")
    server = ("--", interpreter, str(HERE / "both_eras_server.py"))
    around = {**environment, "XDG_CONFIG_HOME": str(tmp_path)}
    argv = corral("inspect", "--json", "--pin", "--read", str(HERE), *server)
    done = subprocess.run([argv["command"], *argv["args"]], env=around, capture_output=True, text=True, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    offer = json.loads(done.stdout)
    assert [tool["name"] for tool in offer["tools"]] == OFFERED
    assert offer["instructions"] == "Be brief."
    for mode in ("legacy", "2026-07-28", "auto"):
        words = corral("run", "--pins", "refuse", "--read", str(HERE), *server)
        held = python_session(around, mode=mode, calls=[("add", {"a": 1, "b": 1})], **words)
        assert [tool["name"] for tool in held["lists"][0]["tools"]] == OFFERED, mode
        assert held["calls"][0]["structured_content"] == {"result": 2}


def scan(scanner: pathlib.Path, environment, place: pathlib.Path, act: str) -> dict[str, dict]:
    """Scan the output of `corral inspect`. Return the scanner's verdict on each tool."""
    argv = corral("inspect", "--json", "--", "/usr/bin/python3", str(place / "hostile.py"), act)
    done = subprocess.run([argv["command"], *argv["args"]], env=environment, capture_output=True, check=True)  # fmt: skip
    offer = place / f"{act}.json"
    offer.write_bytes(done.stdout)
    scan = [str(scanner.with_name("mcp-scanner")), "--analyzers", "yara", "--raw", "static", "--tools"]  # fmt: skip
    # This variable keeps a library of the scanner from sending a request to GitHub.
    local = {**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    said = subprocess.run([*scan, str(offer)], env=local, capture_output=True, text=True, timeout=200, check=True)  # fmt: skip
    verdicts = json.loads(said.stdout[said.stdout.index("[") :])
    assert {one["status"] for one in verdicts} == {"completed"}
    return {one["tool_name"]: one for one in verdicts}


@pytest.mark.rig("frameworks")
def test_a_scanner_accepts_the_output_of_inspect(environment, tmp_path):
    """Check that the scanner finds the poisoned description of a tool, and finds nothing in a clean
    tool with the same name.

    Give it the output of `inspect`. If the scanner had to list the tools itself, it would start the
    server without a sandbox.
    """
    scanner = pathlib.Path(sdk.python("mcp-scanner", "cisco-ai-mcp-scanner"))
    shutil.copy(HERE / "hostile.py", tmp_path)
    poisoned = scan(scanner, environment, tmp_path, "poisoning")["add"]
    assert poisoned["is_safe"] is False
    assert "PROMPT INJECTION" in poisoned["findings"]["yara_analyzer"]["threat_names"]
    clean = scan(scanner, environment, tmp_path, "clean")["add"]
    assert clean["is_safe"] is True
    assert clean["findings"]["yara_analyzer"]["total_findings"] == 0
