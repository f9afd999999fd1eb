"""Test `corral run npm:...` and `pypi:...`, which install a package in a sandbox and run it. The
packages come from the tests' own registries.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from callers import Caller

import debian_python
import rigs
from registries import Registries, tarball, wheel

REFUSED = 125
# Installing takes seconds. Therefore tests whose result is the same for all users run only as this
# one.
ONE_USER = pytest.mark.parametrize("user", ["ordinary"], indirect=True)
SERVER = """
const fs = require("fs");
const dep = (() => { try { return require("dep"); } catch { return "none"; } })();
console.log(JSON.stringify({
  args: process.argv.slice(2), dep, version: require("./package.json").version,
  home: fs.readdirSync(process.env.HOME), marks: fs.readdirSync(__dirname),
}));
"""
PYTHON_SERVER = """
import json, os, sys

def main():
    import dep
    print(json.dumps({"args": sys.argv, "dep": dep.name, "prefix": sys.prefix, "path": sys.path}))
"""


def said(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def entries(user, env) -> list[dict]:
    return json.loads(user.corral("cache", "ls", "--json", env=env).stdout)


def left(env) -> list[str]:
    place = pathlib.Path(env["XDG_CACHE_HOME"], "corral-staging")
    return [path.name for path in place.iterdir()] if place.exists() else []


def publish(registry, version: str = "1.0.0", name: str = "server", **package: object) -> str:
    data = {"bin": {"tool": "main.js"}, **package}
    return registry.publish_npm(name, version, {"main.js": SERVER}, **data)


def test_a_package_is_installed_once_and_then_runs_without_the_registry(user, env, registry, npm):
    registry.publish_npm("dep", "2.0.0", {"index.js": "module.exports = 'dep 2'"})
    publish(registry, dependencies={"dep": "^2.0.0"})
    first = user.corral("run", "npm:server@1.0.0", "a", "--b", env=env)
    answer = said(first)
    assert (answer["args"], answer["dep"]) == (["a", "--b"], "dep 2")
    assert b"corral: installing npm:server@1.0.0 ...\n" in first.stderr
    assert b"installed server 1.0.0 from " + registry.url.encode() in first.stderr
    asked = len(registry.asked)
    assert asked >= 4
    watched = {**env, "PYTHONPROFILEIMPORTTIME": "1"}
    again = user.corral("run", "npm:server@1.0.0", env=watched)
    assert said(again)["dep"] == "dep 2"
    # Sanity check: the trace of imports lists modules that the run does import.
    assert b"corral.servers.packages.package" in again.stderr
    for name in (
        b"subprocess",
        b"corral.api.launch",
        b"corral.servers.packages.sandboxed_install",
        b"socket",
    ):
        assert b" " + name + b"\n" not in again.stderr
    assert len(registry.asked) == asked
    (row,) = entries(user, env)
    assert row["integrity"].startswith("sha512-")
    assert os.path.exists(f"{row['path']}/package-lock.json")
    assert not os.path.exists(f"{row['path']}/.npmrc")
    assert left(env) == []


@ONE_USER
def test_the_chosen_node_installs_and_starts_a_package(user, env, registry, npm, scratch):
    registry.publish_npm("needs", "1.0.0", {"main.js": SERVER}, bin={"tool": "main.js"})
    other = scratch / ".nvm" / "versions" / "node" / "v97.0.0" / "bin" / "node"
    other.parent.mkdir(parents=True)
    shutil.copy("/usr/bin/node", other)
    for path in [scratch / ".nvm", *(scratch / ".nvm").rglob("*")]:
        os.chown(path, user.uid, user.uid)
    managed = {**env, "NVM_DIR": str(scratch / ".nvm")}
    said(user.corral("run", "--node", "97", "npm:needs", env=managed))
    (row,) = entries(user, managed)
    assert row["command"][0] == str(other)
    assert user.corral("run", "--node", "96", "npm:needs", env=managed).returncode == 127
    refused = user.corral("run", "--python", "3.11", "npm:needs", env=managed)
    assert refused.returncode == REFUSED
    assert b"--python cannot be used with npm: packages" in refused.stderr


@pytest.mark.rig("pyenv")
@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_pyenvs_python_installs_and_starts_a_package(user, env, registry, tools):
    versions = pathlib.Path.home() / ".pyenv" / "versions"
    # `own` is the version of the Python that runs both the tests and root's corral.
    own = ".".join(map(str, sys.version_info[:2]))
    others = [one.name for one in versions.iterdir() if not one.name.startswith(f"{own}.")]
    other = next(one for one in sorted(others) if one.startswith(("3.12.", "3.13.")))
    minor = other.rpartition(".")[0]
    body = "import sys\n\ndef main():\n    print(list(sys.version_info[:2]))\n"
    registry.publish_wheel("needs", "1.0.0", {"needs.py": body}, {"needs": "needs:main"})
    env = {**env, "PATH": f"{tools}:{env['PATH']}", "PYENV_ROOT": str(versions.parent)}
    done = user.corral("run", "--python", minor, "pypi:needs", env=env)
    assert done.stdout.decode().strip() == str(list(map(int, minor.split(".")))), done.stderr
    # Sanity check: without `--python`, the package runs on the Python version that corral runs on.
    plain = user.corral("run", "pypi:needs", env=env)
    assert plain.stdout.decode().strip() == str(list(map(int, own.split(".")))), plain.stderr
    registry.files["/simple/newer/"] = (
        registry.files["/simple/needs/"]
        .replace(b"needs-1", b"newer-1")
        .replace(b"<a ", b'<a data-requires-python="&gt;=' + minor.encode() + b'" ')
    )
    refused = user.corral("run", "pypi:newer", env=env)
    assert refused.returncode == REFUSED
    assert f"is installed here: --python {minor.partition('.')[0]}.".encode() in refused.stderr


@ONE_USER
def test_a_python_that_the_server_may_not_read_is_refused_before_the_installation(
    user, env, registry, tools, scratch
):
    body = "def main():\n    print('ran')\n"
    registry.publish_wheel("needs", "1.0.0", {"needs.py": body}, {"needs": "needs:main"})
    python = scratch / "python" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    shutil.copy(os.path.realpath(user.python), python)
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    words = ["--python", str(python)]
    refused = user.corral("run", *words, "pypi:needs", env=env)
    assert refused.returncode == REFUSED
    grant = ["--read", str(python.parents[1])]
    assert refused.stderr.decode().split()[-2:] == grant
    assert (registry.asked, entries(user, env)) == ([], [])
    done = user.corral("run", *words, *grant, "pypi:needs", env=env)
    # Sanity check: with a grant for the directory, the package is installed.
    assert done.stdout == b"ran\n", done.stderr
    assert registry.asked


@pytest.mark.rig("debian_python")
@pytest.mark.parametrize("user", ["root"], indirect=True)
@pytest.mark.parametrize("form", ["path", "version", "uv"])
def test_the_chosen_python_installs_and_starts_a_package(user, env, registry, tools, scratch, form):
    """Choose a Python by its path, or by its version. In the second case corral finds it on PATH,
    or in the directory of the Pythons that uv has installed.
    """
    python = debian_python.find()
    body = "import sys\n\ndef main():\n    print(list(sys.version_info[:2]))\n"
    registry.publish_wheel("needs", "1.0.0", {"needs.py": body}, {"needs": "needs:main"})
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    if form == "version":
        env["PATH"] += f":{python.parent}"
    if form == "uv":
        place = scratch / "pythons" / "cpython-3.9.2-linux-x86_64-gnu"
        place.parent.mkdir()
        shutil.copytree(python.parents[1], place, symlinks=True)
        (place / "bin" / "python3").unlink(missing_ok=True)
        (place / "bin" / "python3").symlink_to("python3.9")
        env["UV_PYTHON_INSTALL_DIR"] = str(place.parent)
    words = ["--python", str(python) if form == "path" else "3.9"]
    if form == "path":  # the user has to grant a path that corral does not know
        refused = user.corral("run", *words, "pypi:needs", env=env)
        words += refused.stderr.decode().split()[-2:]
        assert words[2:] == ["--read", str(python.parents[1])]
    done = user.corral("run", *words, "pypi:needs", env=env)
    assert done.stdout == b"[3, 9]\n", done.stderr.decode()
    # Sanity check: without `--python`, the package runs on another Python version.
    own = user.corral("run", "pypi:needs", env=env)
    assert own.stdout != b"[3, 9]\n"
    assert own.returncode == 0, own.stderr.decode()


@ONE_USER
def test_without_a_version_the_newest_is_taken_once(user, env, registry, npm):
    publish(registry)
    first = user.corral("run", "npm:server", env=env)
    assert b"npm:server stays at 1.0.0" in first.stderr
    publish(registry, "2.0.0")
    assert said(user.corral("run", "npm:server", env=env))["version"] == "1.0.0"
    assert user.corral("cache", "rm", "npm:server", env=env).returncode == 0
    assert said(user.corral("run", "npm:server", env=env))["version"] == "2.0.0"


@ONE_USER
def test_without_a_version_npm_takes_the_newest_that_fits_node(user, env, registry, npm):
    publish(registry, "1.0.0", engines={"node": ">=1"})
    publish(registry, "2.0.0", engines={"node": ">=999"})
    assert said(user.corral("run", "npm:server", env=env))["version"] == "1.0.0"
    publish(registry, "3.0.0", name="other", engines={"node": ">=1"})
    assert said(user.corral("run", "npm:other", env=env))["version"] == "3.0.0"


SPY = """
const fs = require("fs"), net = require("net"), [, , own, port, target] = process.argv;
const seen = {};
try { seen.own = fs.readFileSync(own, "utf8"); } catch (e) { seen.own = e.code; }
const done = (what) => { seen.net = what; fs.writeFileSync(target, JSON.stringify(seen)); process.exit(0); };
const socket = net.connect(Number(port), "127.0.0.1", () => done("connected"));
socket.on("error", (e) => done(e.code));
"""


def test_install_scripts_run_only_when_asked_and_then_inside_walls(
    user, env, registry, npm, scratch
):
    """Check that an install script cannot read the user's files, and cannot connect to other ports
    than the registry's. Sanity check: without a sandbox, the script reads the file and connects to
    another port.
    """
    own = scratch / "secret"
    own.write_text("mine")
    os.chown(own, user.uid, user.uid)
    other = Registries()
    spy = f"node spy.js {own} {other.port} seen.json"
    try:
        registry.publish_npm(
            "server", "1.0.0", {"main.js": SERVER, "spy.js": SPY},
            bin={"tool": "main.js"}, scripts={"postinstall": spy}, hasInstallScript=True,
        )  # fmt: skip
        assert "seen.json" not in said(user.corral("run", "npm:server@1.0.0", env=env))["marks"]
        asked = user.corral("run", "--allow-install-scripts", "npm:server@1.0.0", env=env)
        assert "seen.json" in said(asked)["marks"]
        (row,) = [row for row in entries(user, env) if " scripts " in row["key"]]
        seen = json.loads(pathlib.Path(row["path"], "node_modules/server/seen.json").read_text())
        assert seen["own"] == "ENOENT"
        assert seen["net"] != "connected"
        # Sanity check: run the same script as the same user without a sandbox.
        (scratch / "spy.js").write_text(SPY)
        os.chown(scratch / "spy.js", user.uid, user.uid)
        argv = ["node", "spy.js", str(own), str(other.port), "seen.json"]
        with user.popen(argv, cwd=scratch, stdin=subprocess.DEVNULL) as process:
            assert process.wait(90) == 0
        assert json.loads((scratch / "seen.json").read_text()) == {
            "own": "mine",
            "net": "connected",
        }
    finally:
        other.close()


@ONE_USER
def test_an_archive_with_another_digest_is_refused(user, env, registry, npm):
    path = publish(registry)
    good = registry.files[path]
    registry.files[path] = tarball(
        {"package.json": '{"name": "server", "version": "1.0.0"}', "main.js": "evil"}
    )
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert done.returncode == REFUSED
    assert b"EINTEGRITY" in done.stderr
    assert entries(user, env) == []
    assert left(env) == []
    registry.files[path] = good
    assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"


@ONE_USER
def test_credentials_reach_only_the_registry(user, env, registry, npm, scratch):
    publish(registry)
    registry.token = "s3cret-token"
    rc = scratch / ".npmrc"
    rc.write_text(f"//127.0.0.1:{registry.port}/:_authToken=wrong-token\n")
    os.chown(rc, user.uid, user.uid)
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert done.returncode == REFUSED
    assert b"wrong-token" not in done.stderr
    rc.write_text(f"//127.0.0.1:{registry.port}/:_authToken=${{TOKEN}}\n")
    done = user.corral("run", "npm:server@1.0.0", env={**env, "TOKEN": "s3cret-token"})
    assert said(done)["version"] == "1.0.0"
    assert b"s3cret" not in done.stderr
    for path in pathlib.Path(env["XDG_CACHE_HOME"]).rglob("*"):
        assert not path.is_file() or b"s3cret-token" not in path.read_bytes()


@ONE_USER
def test_a_package_without_a_clear_program_and_an_unknown_package_are_refused(
    user, env, registry, npm
):
    registry.publish_npm("library", "1.0.0", {"index.js": ""})
    registry.publish_npm(
        "many", "1.0.0", {"a.js": SERVER, "b.js": ""}, bin={"a": "a.js", "b": "b.js"}
    )
    odd = {"$(touch x)": "a.js", "; id": "a.js"}
    registry.publish_npm("odd", "1.0.0", {"a.js": ""}, bin=odd)
    registry.publish_npm("shell", "1.0.0", {"a.js": ""}, bin={**odd, "z": "a.js"})
    for word, why in {
        "npm:odd@1.0.0": b"hint: corral starts only programs whose names consist of letters",
        "npm:shell@1.0.0": b"hint: name one of them: npm:shell@1.0.0#z\n",
        "npm:absent@1.0.0": b"404",
        "npm:library@1.0.0": b"has no program to run",
        "npm:many@1.0.0": b"hint: name one of them: npm:many@1.0.0#a",
        "npm:many@1.0.0#c": b"has no program c",
    }.items():
        done = user.corral("run", word, env=env)
        assert (done.returncode, why in done.stderr) == (REFUSED, True), done.stderr.decode()
    assert said(user.corral("run", "npm:many@1.0.0#a", env=env))["version"] == "1.0.0"


@ONE_USER
def test_two_starts_at_once_install_once(user, env, registry, npm):
    path = publish(registry)
    argv = user.corral_argv("run", "npm:server@1.0.0")
    both = [
        user.popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        assert json.loads(out)["version"] == "1.0.0"
    assert registry.asked.count(path) == 1


@ONE_USER
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_an_interrupted_installation_leaves_nothing_unfinished(user, env, registry, npm, number):
    path = publish(registry)
    registry.held[path] = threading.Event()
    process = user.popen(
        user.corral_argv("run", "npm:server@1.0.0"),
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert registry.reached.wait(60)
        process.send_signal(number)
        process.wait(90)
    assert entries(user, env) == []
    if number == signal.SIGINT:
        assert [name.partition(".")[2] for name in left(env)] == ["downloads"]
    registry.held.pop(path).set()
    assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"
    assert left(env) == []


@ONE_USER
def test_downloads_are_kept_until_an_installation_succeeds(user, env, registry, tools):
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    kept = publish_python(registry)
    last = "/files/dep-2.0.0-py3-none-any.whl"  # the installer downloads this file last
    words = ("run", "pypi:my-server==1.0.0")
    registry.held[last] = threading.Event()
    argv = user.corral_argv(*words)
    pipe = subprocess.PIPE
    with user.popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        assert registry.reached.wait(60)
        process.kill()
        stderr = process.stderr.read()
    assert f"installing {words[1]} ...".encode() in stderr
    assert any(name.endswith(".downloads") for name in left(env))
    registry.held.pop(last).set()
    asked = []
    for _ in range(2):  # first with the kept downloads, then (sanity check) without them
        registry.asked.clear()
        assert said(user.corral(*words, env=env))["dep"] == "dep 2"
        assert left(env) == []
        asked.append(registry.asked.count(kept))
        user.corral("cache", "rm", words[1], env=env)
    assert asked[0] < asked[1]


@ONE_USER
def test_npms_downloads_are_kept_until_an_installation_succeeds(user, env, registry, npm):
    """Make the download of a dependency fail. The next attempt must not download the main package
    again. Sanity check: it is downloaded again if the downloads are not kept.
    """
    dep = registry.publish_npm("dep", "2.0.0", {"index.js": "module.exports = 'dep 2'"})
    kept = publish(registry, dependencies={"dep": "^2.0.0"})
    words = ("run", "npm:server@1.0.0")
    registry.redirects[dep] = "http://127.0.0.1:9/dep.tgz"
    failed = user.corral(*words, env=env)
    assert failed.returncode == REFUSED
    assert any(name.endswith(".downloads") for name in left(env)), failed.stderr.decode()
    del registry.redirects[dep]
    asked = []
    for _ in range(2):
        registry.asked.clear()
        assert said(user.corral(*words, env=env))["dep"] == "dep 2"
        assert left(env) == []
        asked.append(registry.asked.count(kept))
        user.corral("cache", "rm", "server", env=env)
    assert asked == [0, 1]


@ONE_USER
def test_a_package_with_a_profile_names_the_profile(user, env, registry, npm):
    publish(registry, name="@modelcontextprotocol/server-memory")
    publish(registry)
    note = b"corral: there is a curated policy for this server: --profile memory"
    reference = "npm:@modelcontextprotocol/server-memory"
    assert note in user.corral("run", reference, env=env).stderr
    assert note not in user.corral("run", "--profile", "memory", reference, env=env).stderr
    # A command with --state was written by `wrap`, here with --no-profile. `run` does not print the
    # note for it, because the user does not want the profile.
    assert note not in user.corral("run", "--state", reference, env=env).stderr
    assert b"--profile" not in user.corral("run", "npm:server", env=env).stderr


EVIL = {
    "a place on disk": "file:/etc/ssl",
    "another host": "http://127.0.0.1:9/x.tgz",
    "a repository": "git+https://127.0.0.1:9/x.git",
}


@ONE_USER
@pytest.mark.parametrize("case", EVIL)
def test_a_dependency_that_is_not_from_the_registry_is_refused(user, env, registry, npm, case):
    publish(registry, dependencies={"dep": EVIL[case]})
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert done.returncode == REFUSED, done.stdout
    assert entries(user, env) == []
    publish(registry, "1.0.1")
    assert said(user.corral("run", "npm:server@1.0.1", env=env))["dep"] == "none"


@ONE_USER
def test_the_users_ceilings_apply_to_installers(user, env, registry, npm):
    publish(registry)
    config = pathlib.Path(env["XDG_CONFIG_HOME"], "corral")
    (config / "config.toml").write_text('[ceilings]\npids = 200\ntimeout = "5m"\n')
    for path in (config, config / "config.toml"):
        os.chown(path, user.uid, user.uid)
    assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"
    (config / "config.toml").write_text('[ceilings]\ntimeout = "50ms"\n')
    assert user.corral("cache", "rm", "server", env=env).returncode == 0
    assert user.corral("run", "npm:server@1.0.0", env=env).returncode == REFUSED


def on_terminal(user, argv, env) -> bytes:
    """Run a command with a terminal as its stderr, and return what appears there."""
    terminal, own = os.openpty()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": own}
    with user.popen(argv, env=env, **streams) as process:
        os.close(own)
        shown = b""
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # EIO: the other end of the terminal is closed
                break
        assert process.wait(60) == 0, shown
    os.close(terminal)
    return shown


@ONE_USER
def test_progress_is_shown_on_terminals_only(user, env, registry, npm):
    publish(registry)
    shown = on_terminal(user, user.corral_argv("run", "npm:server@1.0.0"), env)
    assert b"\rcorral: installing npm:server@1.0.0 ..." in shown.replace(b"\033[K", b"")
    # At the end corral erases the line that shows the progress.
    assert shown.rindex(b"installing npm") < shown.rindex(b"\r\033[K")
    assert user.corral("cache", "rm", "server", env=env).returncode == 0
    plain = user.corral("run", "npm:server@1.0.0", env=env).stderr
    assert (plain.count(b"installing"), plain.count(b"\r")) == (1, 0)


@ONE_USER
def test_a_missing_npm_is_reported(user, env, registry, scratch):
    done = user.corral("run", "npm:server@1.0.0", env={**env, "PATH": str(scratch)})
    assert done.returncode == 127
    assert b"npm was not found on PATH" in done.stderr
    assert b"hint: install Node.js" in done.stderr
    # corral must not say that it is installing. (The test above shows that it says so otherwise.)
    assert b"installing" not in done.stderr


@ONE_USER
def test_a_server_cannot_write_installed_files(user, env, registry, npm):
    evil = "try { require('fs').writeFileSync(__filename, 'x'); console.log('written'); } catch (e) { console.log(e.code); }"
    registry.publish_npm("server", "1.0.0", {"main.js": evil}, bin="main.js")
    assert user.corral("run", "npm:server@1.0.0", env=env).stdout.strip() in {b"EROFS", b"EACCES"}


def publish_python(registry, version: str = "1.0.0") -> str:
    registry.publish_wheel("dep", "2.0.0", {"dep.py": "name = 'dep 2'"}, {})
    made = wheel(
        "my-server", version, {"my_server.py": PYTHON_SERVER}, {"my-server": "my_server:main"}
    )
    made = with_dependency(made, version)
    return registry.publish_file("my-server", f"my_server-{version}-py3-none-any.whl", made)


def with_dependency(made: bytes, version: str) -> bytes:
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made)) as old, zipfile.ZipFile(held, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(
                name, text + b"Requires-Dist: dep\n" if name.endswith("METADATA") else text
            )
    return held.getvalue()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_wheel_is_installed_once_and_then_runs_without_the_index(
    user, env, registry, tools, installer
):
    publish_python(registry)
    if installer == "uv":
        env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    else:
        rigs.need("pip")
        env = {**env, "PATH": "/usr/bin:/bin"}
    done = user.corral("run", "pypi:My_Server==1.0.0", "a", env=env)
    answer = said(done)
    assert (answer["args"], answer["dep"]) == (["my-server", "a"], "dep 2")
    (row,) = entries(user, env)
    assert answer["prefix"] == row["path"]
    assert all(not path or path.startswith((row["path"], "/")) for path in answer["path"])
    lock = pathlib.Path(row["path"], "requirements.lock").read_text()
    assert "my-server==1.0.0" in lock
    assert lock.count("--hash=sha256:") == 2
    asked = len(registry.asked)
    assert said(user.corral("run", "pypi:my-server==1.0.0", env=env))["dep"] == "dep 2"
    assert len(registry.asked) == asked
    assert left(env) == []


def test_explain_names_the_home_directory_that_run_keeps(user, env, registry, tools):
    """Start a package with `--state`, so that its server keeps its home between runs. `explain`
    must name the same home as `run` uses. `corral cache homes` must list it under the name of the
    package, not under the path of the installed files.
    """
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    publish_python(registry)
    shown = user.corral("explain", "-v", "--state", "pypi:my-server", env=env)
    assert shown.returncode == 0, shown.stderr
    assert user.corral("run", "--state", "pypi:my-server", env=env).returncode == 0
    homes = json.loads(user.corral("cache", "homes", "--json", env=env).stdout)
    [path] = [home["path"] for home in homes if home["server"] == ["pypi:my-server"]]
    assert f"keep /state in {path}\n" in shown.stdout.decode()


@ONE_USER
@pytest.mark.parametrize("runner", [["uvx"], ["--", "uvx", "-q"], ["uv", "tool", "run"]])
def test_a_python_runner_is_replaced_by_its_package(user, env, registry, tools, runner):
    publish_python(registry)
    registry.publish_wheel("more", "3.0.0", {"more.py": ""}, {})
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    words = [*runner, "--with", "more<4", "my-server@1.0.0", "a", "--b"]
    done = user.corral("run", *words, env=env)
    assert said(done)["args"] == ["my-server", "a", "--b"]
    (line,) = [one for one in done.stderr.splitlines() if b"is not started" in one]
    assert b"corral installs pypi:my-server==1.0.0 and runs it" in line
    (row,) = entries(user, env)
    assert "more==3.0.0" in pathlib.Path(row["path"], "requirements.lock").read_text()
    explained = user.corral("explain", *words, env=env)
    assert explained.returncode == 0
    assert row["path"].encode() in explained.stdout


@ONE_USER
@pytest.mark.parametrize("runner", ["npx -y", "npm exec --", "pnpm dlx", "bunx"])
def test_a_node_runner_is_replaced_by_its_package(user, env, registry, npm, runner):
    publish(registry)
    done = user.corral("run", *runner.split(), "server@1.0.0", "-a", env=env)
    assert said(done)["args"] == ["-a"]
    assert b"corral installs npm:server@1.0.0 and runs it" in done.stderr


@ONE_USER
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["npx", "--call", "x"], b"name its program"),
        (["uvx", "--python", ">=3.12", "my-server"], b"virtual environment"),
        (["uv", "run", "server.py"], b".venv/bin/python"),
        (["docker", "run", "image"], b"the server's own program"),
    ],
)
def test_a_runner_that_cannot_be_replaced_is_refused(user, env, scratch, words, hint):
    program = scratch / words[0]
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    env = {**env, "PATH": f"{scratch}:{env['PATH']}"}
    os.chown(program, user.uid, user.uid)
    done = user.corral("run", *words, env=env)
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    assert hint in done.stderr.partition(b"hint:")[2]
    control = user.corral("run", "--allow-subprocess", *words, env=env)
    assert (control.returncode, control.stdout) == (0, b"started\n"), control.stderr


@ONE_USER
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_dependency_without_a_wheel_is_named_and_no_older_version_is_used(
    user, env, registry, tools, scratch, installer
):
    """Install a server that depends on a package without a wheel. corral must refuse this, with a
    flag in the hint. With this flag it must build the package inside the sandbox. Sanity check: a
    package with a wheel needs no flag.
    """
    if installer == "uv":
        env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    else:
        rigs.need("pip")
        env = {**env, "PATH": "/usr/bin:/bin"}
    old = {"my_server.py": "def main(): print('old')"}
    registry.publish_wheel("my-server", "1.0.0", old, {"my-server": "my_server:main"})
    new = {"my_server.py": "import dep\ndef main(): print('new', dep.name)"}
    made = wheel("my-server", "2.0.0", new, {"my-server": "my_server:main"})
    made = with_dependency(made, "2.0.0")
    registry.publish_file("my-server", "my_server-2.0.0-py3-none-any.whl", made)
    private = scratch / "private"
    private.touch()
    os.chown(private, user.uid, user.uid)
    registry.publish_file("dep", "dep-1.0.tar.gz", source_archive("dep", "1.0", private))
    done = user.corral("run", "pypi:my-server", env=env)
    assert done.returncode == REFUSED
    assert b"dep has no wheel" in done.stderr
    hint = done.stderr.decode().rpartition("hint: ")[2].split()
    assert hint[0] == "--allow-install-scripts"
    assert entries(user, env) == []
    built = user.corral("run", hint[0], "pypi:my-server", env=env)
    assert built.stdout == b"new built\n", built.stderr.decode()
    registry.publish_wheel("dep", "2.0.0", {"dep.py": "name = 'dep 2'"}, {})
    assert user.corral("run", "pypi:my-server", env=env).stdout == b"new dep 2\n"


@ONE_USER
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_newest_version_without_a_wheel_is_reported(user, env, registry, tools, installer):
    """Publish a server whose newest version has no wheel. corral must name this version in its
    refusal, and not silently install an older one. Sanity checks: before this version is published,
    the server can be installed. After that, an older version can be installed by its number.
    """
    if installer == "uv":
        env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    else:
        rigs.need("pip")
        env = {**env, "PATH": "/usr/bin:/bin"}
    body = {"my_server.py": "def main(): print('old')"}
    registry.publish_wheel("my-server", "1.0.0", body, {"my-server": "my_server:main"})
    registry.publish_file("my-server", "my_server-0.9.0.tar.gz", b"older, so it does not matter")
    assert user.corral("run", "pypi:my-server", env=env).stdout == b"old\n"
    assert user.corral("cache", "rm", "my-server", env=env).returncode == 0
    registry.publish_file("my-server", "my_server-2.0.0.tar.gz", b"not looked at")
    done = user.corral("run", "pypi:my-server", env=env)
    assert done.returncode == REFUSED
    assert b"my-server 2.0.0 has no wheel" in done.stderr
    assert b"my-server==1.0.0 is the newest with a wheel" in done.stderr
    assert entries(user, env) == []
    assert user.corral("run", "pypi:my-server==1.0.0", env=env).stdout == b"old\n"


@ONE_USER
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_package_with_pre_releases_only_is_installed(user, env, registry, tools, installer):
    if installer == "uv":
        env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    else:
        rigs.need("pip")
        env = {**env, "PATH": "/usr/bin:/bin"}
    body = {"my_server.py": "def main(): print('alpha')"}
    registry.publish_wheel("my-server", "0.0.1a8", body, {"my-server": "my_server:main"})
    done = user.corral("run", "pypi:my-server", env=env)
    assert done.stdout == b"alpha\n", done.stderr.decode()


BUILDS = """
import os, zipfile
def build_wheel(place, settings=None, metadata=None):
    if os.path.exists("{private}"):
        raise SystemExit("the build sees the user's file")
    name = "{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(place, name), "w") as wheel:
        wheel.writestr("{name}.py", "name = 'built'")
        info = "{name}-{version}.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def source_archive(name: str, version: str, private: pathlib.Path) -> bytes:
    """Return a source archive that can be built without other packages. The build must fail if it
    sees the file `private`.
    """
    import io
    import tarfile

    values = {"private": str(private), "name": name, "version": version}
    backend = BUILDS
    for key, value in values.items():
        backend = backend.replace(f"{{{key}}}", value)
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "pyproject.toml": f'{build}[project]\nname = "{name}"\nversion = "{version}"\n',
        "backend.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for file, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{file}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


def base_python(user) -> str:
    code = "answer = os.path.realpath(sys._base_executable)"
    return str(user.outside(code))


SDIST = """
from setuptools import setup
open({mark!r}, "w").write("ran")
setup(name="built", version="1.0")
"""


@ONE_USER
def test_a_source_archive_is_not_built(user, env, registry, tools, scratch):
    """Publish a package only as a source archive. corral must refuse it, because building it would
    run the package's code. Sanity check: a wheel of the same project runs.
    """
    import io
    import tarfile

    mark = str(scratch / "mark")
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, text in {
            "setup.py": SDIST.format(mark=mark),
            "PKG-INFO": "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n",
        }.items():
            info = tarfile.TarInfo(f"built-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    registry.publish_file("built", "built-1.0.tar.gz", held.getvalue())
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    done = user.corral("run", "pypi:built==1.0", env=env)
    assert done.returncode == REFUSED
    assert not os.path.exists(mark)
    assert entries(user, env) == []
    registry.publish_wheel(
        "built", "1.0", {"built.py": "def main(): print('fine')"}, {"built": "built:main"}
    )
    assert user.corral("run", "pypi:built==1.0", env=env).stdout == b"fine\n"


@ONE_USER
def test_a_wheel_with_another_digest_is_refused(user, env, registry, tools):
    path = publish_python(registry)
    good = registry.files[path]
    registry.files[path] = wheel(
        "my-server", "1.0.0", {"my_server.py": "evil"}, {"my-server": "my_server:main"}
    )
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    done = user.corral("run", "pypi:my-server==1.0.0", env=env)
    assert done.returncode == REFUSED
    # uv and pip word this error differently, but both mention the hash ("Hash" or "hash").
    assert b"ash" in done.stderr
    assert entries(user, env) == []
    registry.files[path] = good
    assert said(user.corral("run", "pypi:my-server==1.0.0", env=env))["dep"] == "dep 2"


@ONE_USER
def test_an_index_on_this_machine_can_be_read_but_not_the_files_beside_it(
    user, env, tools, scratch
):
    import hashlib

    made = wheel(
        "local", "1.0", {"local.py": "def main(): print('local')"}, {"local": "local:main"}
    )
    place = scratch / "index" / "simple" / "local"
    (scratch / "index" / "files").mkdir(parents=True)
    place.mkdir(parents=True)
    file = "local-1.0-py3-none-any.whl"
    (scratch / "index" / "files" / file).write_bytes(made)
    digest = hashlib.sha256(made).hexdigest()
    (place / "index.html").write_text(f'<a href="../../files/{file}#sha256={digest}">{file}</a>')
    for path in (scratch / "index").rglob("*"):
        os.chown(path, user.uid, user.uid)
    os.chown(scratch / "index", user.uid, user.uid)
    env = {
        **env,
        "PATH": f"{tools}:{env['PATH']}",
        "UV_DEFAULT_INDEX": f"file://{scratch}/index/simple",
    }
    done = user.corral("run", "pypi:local==1.0", env=env)
    assert done.stdout == b"local\n", done.stderr.decode()


@ONE_USER
@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_without_namespaces_a_package_is_installed(user, env, registry, npm):
    """Install with npm, which changes the modes and times of files. Without namespaces, the
    supervisor makes the changes on npm's behalf.
    """
    publish(registry)
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert said(done)["version"] == "1.0.0"


@ONE_USER
@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_without_namespaces_a_python_package_is_installed(user, env, registry, tools):
    publish_python(registry)
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    done = user.corral("run", "pypi:my-server==1.0.0", env=env)
    assert said(done)["dep"] == "dep 2"


@ONE_USER
def test_a_package_whose_interpreter_is_gone_is_installed_again(user, env, registry, tools):
    publish_python(registry)
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    said(user.corral("run", "pypi:my-server==1.0.0", env=env))
    (row,) = entries(user, env)
    link = pathlib.Path(row["path"], "bin", "python")
    link.parent.chmod(0o700)
    link.unlink()
    link.symlink_to("/nowhere/python")
    os.chown(link, user.uid, user.uid, follow_symlinks=False)
    asked = len(registry.asked)
    done = user.corral("run", "pypi:my-server==1.0.0", env=env)
    assert len(registry.asked) > asked
    assert done.returncode == 0, done.stderr.decode()


@ONE_USER
def test_an_interpreter_that_prints_without_end_fills_no_file(user):
    """Let corral ask an interpreter for its version. The interpreter never stops printing. corral
    must read the output through a pipe, not through a file, and close the pipe after 4096 bytes.
    """
    Caller(user).run(
        "import tempfile\n"
        "from corral.servers.packages.sandboxed_install import ask_program\n"
        "tempfile.TemporaryFile = None  # the answer must not be in a file of the host\n"
        "ask = lambda command: ask_program(['/bin/sh', '-c', command, trace])\n"
        "assert ask('exec yes') == ''\n"
        "assert ask('exec head -c 200000 /dev/zero') == ''\n"
        "assert ask('echo 3.12.7') == '3.12.7\\n'  # sanity check\n"
        "assert ask('echo 3.12.7; exit 1') == ''\n"
    )
