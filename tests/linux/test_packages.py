"""`corral run npm:...` and `pypi:...`: installed inside walls from the tests' own registries, then run without either."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from corral.servers.store.tree import remove_tree
from registries import Registries, tarball, wheel

REFUSED = 125
# Installing takes seconds; what does not depend on who installs is tried as one user.
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


@pytest.fixture
def registry():
    made = Registries()
    yield made
    made.close()


@pytest.fixture(scope="session")
def tools(package) -> pathlib.Path:
    """uv where every user can start it."""
    uv = pytest.importorskip("uv", reason="missing: uv, of the development tools")
    place = package.parent / "tools"
    place.mkdir(mode=0o755, exist_ok=True)
    shutil.copy(uv.find_uv_bin(), place / "uv")
    (place / "uv").chmod(0o755)
    return place


@pytest.fixture
def npm() -> None:
    if shutil.which("npm", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("missing: npm")


@pytest.fixture
def env(user, scratch, registry):
    """A user whose registries are the tests' own, with an empty store of packages."""
    cache = scratch / "cache"
    findings = user.home / ".cache" / "corral" / "findings"
    if findings.is_dir():  # what the host can do is remembered from other tests
        shutil.copytree(findings, cache / "corral" / "findings")
    else:
        (cache / "corral").mkdir(parents=True)
    (scratch / "config").mkdir()
    for path in [scratch, *scratch.rglob("*")]:
        os.chown(path, user.uid, user.uid)
        path.chmod(0o700 if path.is_dir() else 0o600)
    yield user.environment(
        XDG_CACHE_HOME=str(cache),
        XDG_CONFIG_HOME=str(scratch / "config"),
        npm_config_registry=f"{registry.url}/",
        npm_config_userconfig=str(scratch / ".npmrc"),
        UV_DEFAULT_INDEX=f"{registry.url}/simple",
        CORRAL_REGISTRY=registry.url,
    )
    remove_tree(str(cache))  # read-only directories are in the way of others


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


def test_a_package_is_installed_once_and_then_runs_by_itself(user, env, registry, npm):
    registry.publish_npm("dep", "2.0.0", {"index.js": "module.exports = 'dep 2'"})
    publish(registry, dependencies={"dep": "^2.0.0"})
    first = user.corral("run", "npm:server@1.0.0", "a", "--b", env=env)
    answer = said(first)
    assert (answer["args"], answer["dep"]) == (["a", "--b"], "dep 2")
    assert b"installed server 1.0.0 from " + registry.url.encode() in first.stderr
    asked = len(registry.asked)
    assert asked >= 4
    watched = {**env, "PYTHONPROFILEIMPORTTIME": "1"}
    again = user.corral("run", "npm:server@1.0.0", env=watched)
    assert said(again)["dep"] == "dep 2"
    assert (
        b"corral.servers.packages.package" in again.stderr
    )  # the control: what was imported is there
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
def test_without_a_version_the_newest_is_taken_once(user, env, registry, npm):
    publish(registry)
    first = user.corral("run", "npm:server", env=env)
    assert b"npm:server stays at 1.0.0" in first.stderr
    publish(registry, "2.0.0")
    assert said(user.corral("run", "npm:server", env=env))["version"] == "1.0.0"
    assert user.corral("cache", "rm", "npm:server", env=env).returncode == 0
    assert said(user.corral("run", "npm:server", env=env))["version"] == "2.0.0"


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
    """A script sees nothing of the user's and reaches nothing but the registry; outside, it would."""
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
        # The control: the same script as the same user, without walls.
        (scratch / "spy.js").write_text(SPY)
        os.chown(scratch / "spy.js", user.uid, user.uid)
        argv = ["node", "spy.js", str(own), str(other.port), "seen.json"]
        with user.popen(argv, cwd=scratch, stdin=subprocess.DEVNULL) as process:
            assert process.wait(30) == 0
        assert json.loads((scratch / "seen.json").read_text()) == {
            "own": "mine",
            "net": "connected",
        }
    finally:
        other.close()


@ONE_USER
def test_an_archive_that_is_not_what_the_registry_promised(user, env, registry, npm):
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
def test_credentials_reach_the_registry_and_nobody_else(user, env, registry, npm, scratch):
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
def test_an_unknown_package_and_a_package_without_a_program(user, env, registry, npm):
    registry.publish_npm("library", "1.0.0", {"index.js": ""})
    registry.publish_npm(
        "many", "1.0.0", {"a.js": SERVER, "b.js": ""}, bin={"a": "a.js", "b": "b.js"}
    )
    for word, why in {
        "npm:absent@1.0.0": b"404",
        "npm:library@1.0.0": b"has no program to run",
        "npm:many@1.0.0": b"hint: say which: npm:many@1.0.0#a",
        "npm:many@1.0.0#c": b"does not have c",
    }.items():
        done = user.corral("run", word, env=env)
        assert (done.returncode, why in done.stderr) == (REFUSED, True), done.stderr.decode()
    assert said(user.corral("run", "npm:many@1.0.0#a", env=env))["version"] == "1.0.0"


@ONE_USER
def test_two_at_once_install_once(user, env, registry, npm):
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
def test_an_installation_that_is_broken_off_leaves_nothing_half_done(
    user, env, registry, npm, number
):
    path = publish(registry)
    import threading

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
        process.wait(30)
    assert entries(user, env) == []
    if number == signal.SIGINT:
        assert left(env) == []
    registry.held.pop(path).set()
    assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"
    assert left(env) == []


EVIL = {
    "a place on disk": "file:/etc/ssl",
    "another host": "http://127.0.0.1:9/x.tgz",
    "a repository": "git+https://127.0.0.1:9/x.git",
}


@ONE_USER
@pytest.mark.parametrize("case", EVIL)
def test_a_dependency_that_is_not_from_the_registry(user, env, registry, npm, case):
    publish(registry, dependencies={"dep": EVIL[case]})
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert done.returncode == REFUSED, done.stdout
    assert entries(user, env) == []
    publish(registry, "1.0.1")
    assert said(user.corral("run", "npm:server@1.0.1", env=env))["dep"] == "none"


@ONE_USER
def test_ceilings_of_the_user_hold_for_installers_too(user, env, registry, npm):
    publish(registry)
    config = pathlib.Path(env["XDG_CONFIG_HOME"], "corral")
    config.mkdir()
    (config / "config.toml").write_text('[ceilings]\npids = 200\ntimeout = "5m"\n')
    for path in (config, config / "config.toml"):
        os.chown(path, user.uid, user.uid)
    assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"
    (config / "config.toml").write_text('[ceilings]\ntimeout = "50ms"\n')
    assert user.corral("cache", "rm", "server", env=env).returncode == 0
    assert user.corral("run", "npm:server@1.0.0", env=env).returncode == REFUSED


@ONE_USER
def test_progress_is_for_terminals(user, env, registry, npm):
    publish(registry)
    terminal, own = os.openpty()
    argv = user.corral_argv("run", "npm:server@1.0.0")
    with user.popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=own
    ) as process:
        os.close(own)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # EIO: nobody holds the other side any more
                break
            shown += part
        assert json.loads(process.stdout.read())["version"] == "1.0.0"
    os.close(terminal)
    assert b"\rcorral: installing npm:server@1.0.0 ..." in shown.replace(b"\033[K", b"")
    assert shown.rindex(b"installing npm") < shown.rindex(b"\r\033[K")  # the line is taken away
    assert user.corral("cache", "rm", "server", env=env).returncode == 0
    assert b"installing" not in user.corral("run", "npm:server@1.0.0", env=env).stderr


@ONE_USER
def test_without_npm_it_says_what_is_missing(user, env, registry, scratch):
    done = user.corral("run", "npm:server@1.0.0", env={**env, "PATH": str(scratch)})
    assert done.returncode == 127
    assert b"npm was not found on PATH" in done.stderr
    assert b"hint: install Node.js" in done.stderr


@ONE_USER
def test_what_the_installer_leaves_cannot_be_written_by_the_server(user, env, registry, npm):
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
def test_a_wheel_is_installed_once_and_then_runs_by_itself(user, env, registry, tools, installer):
    publish_python(registry)
    if installer == "uv":
        env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    elif user.corral("run", "--", base_python(user), "-I", "-c", "import pip", env=env).returncode:
        pytest.skip(f"missing: pip for {base_python(user)}")
    else:
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
    """Building runs code of the package. The control is the same project as a wheel."""
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
def test_a_wheel_that_is_not_what_the_index_promised(user, env, registry, tools):
    path = publish_python(registry)
    good = registry.files[path]
    registry.files[path] = wheel(
        "my-server", "1.0.0", {"my_server.py": "evil"}, {"my-server": "my_server:main"}
    )
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    done = user.corral("run", "pypi:my-server==1.0.0", env=env)
    assert done.returncode == REFUSED
    assert b"ash" in done.stderr  # hash mismatch, in the words of whichever installer
    assert entries(user, env) == []
    registry.files[path] = good
    assert said(user.corral("run", "pypi:my-server==1.0.0", env=env))["dep"] == "dep 2"


@ONE_USER
def test_an_index_on_this_machine_is_readable_and_nothing_beside_it(user, env, tools, scratch):
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
def test_without_a_network_wall_nothing_is_installed(user, env, registry, npm):
    """Where the installer could not be held to its registry it does not run at all."""
    publish(registry)
    done = user.corral("run", "npm:server@1.0.0", env=env)
    assert done.returncode == REFUSED
    assert b"cannot install npm:server@1.0.0" in done.stderr
    assert b"network" in done.stderr
    assert registry.asked == []


@ONE_USER
def test_it_is_installed_again_when_its_interpreter_is_gone(user, env, registry, tools):
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
