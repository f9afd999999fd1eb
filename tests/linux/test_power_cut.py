"""Interrupt corral at each call that changes a file. Afterwards the disk must be in the old or the
new state, but never in between.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import shutil
import subprocess

import pytest
from test_faults import bundle
from test_packages import publish

pytestmark = pytest.mark.timeout(1200)
PROGRAM = pathlib.Path(__file__).with_name("cut_calls.py").read_text()


class Home:
    """A new home for one trial. It contains a copy of corral's cached findings, which are the
    results of its probes of this host.
    """

    def __init__(self, user, scratch) -> None:
        self.user = user
        self.path = scratch / "home"
        self.variables: dict[str, str] = {}
        self.path.mkdir()
        known = user.home / ".cache/corral/findings"
        if not known.is_dir():
            assert user.run("/bin/true").returncode == 0
        shutil.copytree(known, self.path / ".cache/corral/findings")
        self.own()

    def own(self) -> None:
        for path in (self.path, *self.path.rglob("*")):
            os.chown(path, self.user.uid, self.user.uid)
            path.chmod(0o700 if path.is_dir() or path.name == "corral" else 0o600)

    def put(self, name: str, text: str | bytes) -> pathlib.Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        self.own()
        return path

    def environment(self) -> dict[str, str]:
        return self.user.environment(HOME=str(self.path), **self.variables)

    def does(self, *words: str) -> None:
        done = self.user.corral(*words, env=self.environment(), cwd=self.path)
        assert done.returncode == 0, done.stderr.decode()

    def trial(self, command, after, how, *, probed: bool = True) -> list[dict]:
        job = {"package": str(self.user.package), "root": str(self.path), "probed": probed}
        job |= {"command": command, "after": after, "how": how}
        process = self.user.popen(
            [self.user.python, "-c", PROGRAM],
            env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        out, _ = process.communicate(json.dumps(job).encode(), timeout=1200)
        assert process.returncode == 0
        return json.loads(out)


def text(result: dict, name: str, when: str = "files") -> bytes | None:
    found = result[when].get(name)
    return None if found is None else base64.b64decode(found)


CONFIG = ".cursor/mcp.json"
FAST, ALL = ["kill", "model"], ["kill", "half", "EIO", "full", "EROFS", "model"]
HOW = pytest.mark.parametrize(
    "how", [FAST, pytest.param(ALL, marks=pytest.mark.rig("long"))], ids=["fast", "all"]
)
SERVER = "print('served')\n"


@pytest.fixture
def home(ordinary):
    place = ordinary.home / "trial"
    place.mkdir()
    os.chown(place, ordinary.uid, ordinary.uid)
    return Home(ordinary, place)


def problems(results: list[dict], wrong) -> dict[str, list[str]]:
    """Return the problems after each interruption, such as partial files, leftover temporary files,
    and commands that fail without a hint.
    """
    first, *stopped = results
    assert first["code"] == 0, first["err"]
    assert first["files"] == first["modelled"], "the model of the disk differs from the real files"
    assert len(stopped) > len(first["calls"]) > 3
    found = {result["what"]: [*_usual(result), *wrong(result, first)] for result in stopped}
    return {what: seen for what, seen in found.items() if seen}


def _usual(result: dict) -> list[str]:
    found = [f"left: {path}" for path in result["end"] if path.endswith(".corral-new")]
    for code, out, err in ((result["code"], "", result["err"]), *result["after"]):
        if "Traceback" in err:
            found.append(err)
        elif code not in (None, 0, -9) and "\nhint: " not in err:
            found.append(f"{code} without a hint: {out} {err}")
    return found


def configured(home) -> bytes:
    server = home.put("server.py", SERVER)
    home.put("bin/corral", "#!/bin/sh\n")
    entry = {"command": "/usr/bin/python3", "args": [str(server)], "env": {"TOKEN": "hunter2"}}
    return home.put(CONFIG, json.dumps({"mcpServers": {"notes": entry}}, indent=3)).read_bytes()


def edited(old: bytes):
    """Return a function that yields the problems after an interruption. Problems are a partial
    client file, a lost record, or a file that the last command, `unwrap`, has not restored byte for
    byte.
    """

    def wrong(result, first):
        if text(result, CONFIG) not in (old, text(first, CONFIG)):
            yield f"half: {text(result, CONFIG)}"
        if text(result, CONFIG, "end") != text(first, CONFIG, "original"):
            yield f"not brought back: {text(result, CONFIG, 'end')} {result['after']}"
        if "without a record" in str(result["after"]) or "no record" in str(result["after"]):
            yield f"the record is lost: {result['after']}"

    return wrong


@HOW
def test_an_interrupted_wrap_leaves_the_old_or_the_new_file(home, how):
    old = configured(home)
    wrap = ["wrap", "cursor", "--corral", str(home.path / "bin/corral")]
    results = home.trial(wrap, [["unwrap", "cursor"]], how)
    results[0]["original"] = {CONFIG: base64.b64encode(old).decode()}
    assert problems(results, edited(old)) == {}


@pytest.mark.rig("long")
def test_an_interrupted_grant_leaves_the_old_or_the_new_file(home):
    original = configured(home)
    home.does("wrap", "cursor", "--corral", str(home.path / "bin/corral"))
    old = (home.path / CONFIG).read_bytes()
    grant = ["grant", "notes", "--read", str(home.path / "server.py")]
    results = home.trial(grant, [["unwrap", "cursor"]], ALL)
    results[0]["original"] = {CONFIG: base64.b64encode(original).decode()}
    assert problems(results, edited(old)) == {}


@HOW
def test_an_interrupted_unwrap_leaves_the_old_or_the_new_file(home, how):
    original = configured(home)
    home.does("wrap", "cursor", "--corral", str(home.path / "bin/corral"))
    old = (home.path / CONFIG).read_bytes()
    results = home.trial(["unwrap", "cursor"], [["unwrap", "cursor"]], how)
    results[0]["original"] = {CONFIG: base64.b64encode(original).decode()}
    assert problems(results, edited(old)) == {}


def served(result, first):
    """Yield a problem if the last command has not run the server."""
    code, out, err = result["after"][-1]
    if (code, "served" in out) != (0, True):
        yield f"{code} {out} {err}"


@HOW
def test_an_interrupted_approve_leaves_the_old_or_the_new_state(home, how):
    home.put("srv/main.py", SERVER)
    asks = '[server]\ncommand = ["python3", "main.py"]\n[network]\nallow = ["x.org"]\n'
    home.put("srv/corral.toml", f"version = 1\n{asks}")
    srv = str(home.path / "srv")

    def wrong(result, first):
        listed, again, *run = result["after"]
        if listed[0] != 0 or len(json.loads(listed[1])) > 1 or again[0] != 0:
            yield f"{listed} {again}"
        if run:
            yield from served(result, first)

    approve = ["approve", "--yes", srv]
    after = [["approve", "--list", "--json"], approve, *([["run", srv]] if how == ALL else [])]
    assert problems(home.trial(approve, after, how), wrong) == {}


OFFER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    tools = [{"name": "add", "description": "WORDS", "inputSchema": {"type": "object"}}]
    result = {"tools": tools} if asked["method"] == "tools/list" else {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.rig("long")
def test_an_interrupted_inspect_leaves_the_old_or_the_new_pins(home):
    """Interrupt `inspect --pin`. Afterwards the file must contain either the old or the new pins.
    Otherwise a pinned server could count as not pinned.
    """
    script = home.put("srv.py", OFFER.replace("WORDS", "adds"))
    pin = ["inspect", "--pin", "--yes", "--", "/usr/bin/python3", str(script)]
    home.does(*pin)
    [file] = (home.path / ".config/corral/pins").iterdir()
    name, old = str(file.relative_to(home.path)), json.loads(file.read_text())["pins"]
    home.put("srv.py", OFFER.replace("WORDS", "adds and tells"))

    def pinned(result, when="files"):
        return json.loads(text(result, name, when) or b'{"pins": "lost"}')["pins"]

    def wrong(result, first):
        if pinned(result) not in (old, pinned(first)):
            yield f"{text(result, name)}"
        if result["after"][-1][0] != 0 or pinned(result, "end") != pinned(first):
            yield f"{result['after']} {text(result, name, 'end')}"

    results = home.trial(pin, [pin], ["kill", "half", "full", "model"])
    assert pinned(results[0]) != old
    assert problems(results, wrong) == {}


@pytest.mark.rig("long")
def test_an_interrupted_installation_leaves_a_usable_store(home):
    """Interrupt the first run of a bundle, which unpacks the bundle into the store. If the unpacked
    files are damaged, the next run must notice this, and its error must say what to type.
    """
    path = str(home.put("hello.mcpb", bundle({"main.py": SERVER})))

    def wrong(result, first):
        second = result["after"][0]
        if second[0] != 0 and "corral cache rm" not in second[2]:
            yield f"{second}"
        yield from served(result, first)

    after = [["run", path], ["cache", "rm", "hello"], ["run", path]]
    assert problems(home.trial(["run", path], after, ["kill", "full", "model"]), wrong) == {}


DENIED = """
import os, socket
try:
    socket.getaddrinfo("example.org", 80)
except OSError:
    open(os.environ["HOME"] + "/written", "w").write("x")
print("served")
"""


@pytest.mark.rig("long")
def test_an_interrupted_run_leaves_usable_files(home):
    """Interrupt a run while it writes its files: the findings of the probes, its run record, the
    real paths of its grants, its denials, and the audit file. Another run, `why` and `clean` must
    work after that.
    """
    home.put("data/file", "x")
    script = home.put("srv.py", DENIED)
    audit = str(home.path / "audit.jsonl")
    flags = ["--read", str(home.path / "data")]
    command = ["run", *flags, "--audit", audit, "--", "/usr/bin/python3", str(script)]

    def wrong(result, first):
        run, why, clean, audited, *_ = result["after"]
        if run[0] != 0 or why[0] != 0 or clean[0] != 0:
            yield f"{result['after']}"
        if audited[0] != 0 and "name a new file" not in audited[2]:
            yield f"{audited}"
        yield from (f"left: {path}" for path in result["end"] if "/runs/" in path)

    after = [command[:3] + command[5:], ["why"], ["clean"], command, ["audit", audit]]
    results = home.trial(command, after, ["kill", "full", "model"])
    assert problems(results, wrong) == {}


@pytest.mark.rig("long", "node")
def test_an_interrupted_upgrade_leaves_one_working_version(home, registry):
    """Interrupt an upgrade. Afterwards either the old or the new version must run."""
    home.variables = {"npm_config_registry": f"{registry.url}/"}
    publish(registry)
    home.does("run", "npm:server")
    publish(registry, "1.1.0")
    home.does("upgrade", "--yes", "npm:server")

    def wrong(result, first):
        code, out, err = result["after"][-1]
        if code != 0 or json.loads(out)["version"] not in ("1.0.0", "1.1.0"):
            yield f"{code} {out} {err}"

    back = ["upgrade", "--yes", "--to", "1.0.0", "npm:server"]
    after = [["cache", "gc"], ["run", "npm:server"]]
    results = home.trial(back, after, ["kill", "full", "model"])
    assert problems(results, wrong) == {}
