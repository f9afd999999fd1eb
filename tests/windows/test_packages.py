"""Install packages on Windows in a separate container, and start them from the store.

Wine has no containers, so under Wine the tests install packages without the sandbox. Everything
else is real: pip, pip's streams and environment, and the store. Other tests check the plan that
real Windows would use.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import sys
import zipfile

import pytest

from corral.api import launch as api
from corral.plan.host import Finding, Host
from corral.platforms.windows.mechanisms.path_grants import Grants
from corral.platforms.windows.probes import host as probes
from corral.platforms.windows.relay.start import NamedHosts
from corral.platforms.windows.runtime_copies import store as copies
from corral.policy.model import WALLS
from corral.servers.packages import npm, package, pypi, sandboxed_install
from corral.servers.packages.sources import InstallOptions, Registry
from corral.servers.reference import parse_reference
from corral.servers.store import store
from windows.conftest import wine

SERVER = """
import json, sys
import demo_words
def main():
    print(json.dumps([demo_words.WORD, sys.argv[0], sys.prefix]))
"""
ENTRY = "[console_scripts]\ndemo-server = demo_server:main\n"
FULL = Host(
    system="windows",
    machine="amd64",
    findings=tuple(
        Finding(capability=name, status="proven", evidence="as on Windows")
        for name in probes.PROBES
    ),
)


def wheel(folder: pathlib.Path, name: str, files: dict[str, str], needs: str = "") -> None:
    """Write a wheel with these files and the metadata of a published package."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n{needs}"
    files = {
        **files,
        f"{info}/METADATA": meta,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Make an index of two packages on disk, and a home for this test."""
    simple = tmp_path / "index" / "simple"
    wheel(
        simple / "demo-server",
        "demo_server",
        {"demo_server.py": SERVER, "demo_server-1.0.dist-info/entry_points.txt": ENTRY},
        "Requires-Dist: demo-words\n",
    )
    wheel(simple / "demo-words", "demo_words", {"demo_words.py": "WORD = 'hello'\n"})
    for folder in simple.iterdir():
        links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in folder.iterdir())
        (folder / "index.html").write_text(links)
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", simple.as_uri())
    return simple


@pytest.fixture
def walls(monkeypatch):
    """Return the flags for a run. Under Wine these flags allow a run without the sandbox, and this
    fixture also allows installers to run without it.
    """
    if wine():
        monkeypatch.setattr(
            sandboxed_install, "DEGRADABLE", [*sandboxed_install.DEGRADABLE, *WALLS]
        )
    return () if not wine() else ("--best-effort",)


def fetch(name: str = "pypi:demo-server"):
    said: list[str] = []
    found = package.fetch_package(parse_reference(name), InstallOptions(), said.append)
    return found, said


@pytest.mark.timeout(600)
def test_a_package_is_installed_and_starts(corral, index, walls):
    assert package.why_unproven("pypi")
    found, said = fetch()
    assert (found.version, said[0]) == ("1.0", "installing pypi:demo-server ...")
    again, said = fetch()
    assert (again.digest, said) == (found.digest, [])
    # Installing is now proven on this machine for PyPI, but not for npm.
    assert package.why_unproven("pypi") == ""
    assert package.why_unproven("npm")
    done = corral("run", *walls, "pypi:demo-server", env=None)
    assert done.returncode == 0, done.stderr.decode()
    assert b'["hello", "demo-server"' in done.stdout
    store.verify(found)


@pytest.mark.real_windows
@pytest.mark.timeout(600)
def test_a_package_is_installed_in_a_container(corral, index):
    """Install a package. The installer may run without its limits, but not without its walls,
    because they keep it away from the user's files.
    """
    assert sandboxed_install.DEGRADABLE == ["memory", "pids", "disk", "timeout"]
    found, _ = fetch()
    assert os.path.isdir(found.path())


PUBLISHED = {
    "pypi:cowsay": ("pypi.org", ("-t", "42")),
    "npm:semver": ("registry.npmjs.org", ("42.0.0",)),
}


@pytest.mark.real_windows
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_package_is_installed_over_the_network(corral, tmp_path, monkeypatch, name):
    """Check that the installer reaches its registry through the relay."""
    host, arguments = PUBLISHED[name]
    try:
        socket.create_connection((host, 443), 10).close()
    except OSError as error:
        pytest.skip(f"{host} cannot be reached: {error}")
    if name.startswith("npm:") and shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    found, _ = fetch(name)
    store.verify(found)
    done = corral("run", name, *arguments, timeout=300)
    assert (done.returncode, b"42" in done.stdout) == (0, True), done.stderr.decode()


@pytest.mark.skipif(not wine(), reason="tests a host without the walls")
def test_nothing_is_installed_without_walls(index):
    with pytest.raises(Exception, match="cannot install pypi:demo-server") as found:
        fetch()
    assert "filesystem" in str(found.value)
    assert package.why_unproven("pypi")
    assert not store.entries()


def planned(argv, staging, monkeypatch, **more):
    monkeypatch.setattr(api, "_known_hosts", [FULL])
    registry = Registry(urls=("https://registry.example:8443/",), secrets={"TOKEN": "x"})
    policy = sandboxed_install.build_policy(staging, registry, {}, subprocess=False, **more)
    environment = {**os.environ, **registry.secrets}
    plan = api.plan(argv, policy, env=environment, cwd=staging)
    return plan, {type(step): step for step in plan.steps}


def staging_for(key: str) -> str:
    store.make_directories()
    return store.make_staging(key)


def test_the_plan_for_pip_runs_it_in_a_container(index, monkeypatch):
    staging = staging_for("pypi:x")
    environment = pypi.make_environment(staging, Registry(), "x")
    words, reads = pypi.find_pip(environment.base)
    assert (words, reads) == (["-m", "pip"], [])
    argv = [environment.base, "-I", *words, "install", "--target", environment.site]
    plan, steps = planned(argv, staging, monkeypatch)
    started = copies.find(plan.steps).program
    # pip runs in a copied interpreter, which may write only to the staging directories and reach only the registry.
    assert started.path.startswith(copies.default_directory())
    assert started.argv[1:] == ("-I", "-m", "pip", "install", "--target", environment.site)
    roots = {(root.path.lower(), root.access) for root in steps[Grants].roots}
    assert roots == {(f"{staging}{end}".lower(), "write") for end in ("", store.DOWNLOADS)}
    assert steps[NamedHosts].allow == ("registry.example:8443",)
    assert all(held.status != "degraded" for held in plan.controls if held.control in WALLS)


def test_the_plan_for_npm_runs_its_script_in_a_container_without_the_batch_file(
    index, monkeypatch, tmp_path
):
    nodejs = tmp_path / "nodejs"
    script = nodejs / "node_modules" / "npm" / "bin" / "npm-cli.js"
    script.parent.mkdir(parents=True)
    script.write_text("")
    (script.parents[1] / "package.json").write_text("{}")
    (nodejs / "node.exe").write_bytes(pathlib.Path(sys.executable).read_bytes())
    (nodejs / "npm.cmd").write_text('@node "%~dp0\\node_modules\\npm\\bin\\npm-cli.js" %*\n')
    monkeypatch.setenv("PATH", str(nodejs))
    argv = npm.find_npm("")
    assert argv == [str(nodejs / "node.exe"), str(script)]
    staging = staging_for("npm:x")
    plan, steps = planned([*argv, *npm.FLAGS], staging, monkeypatch)
    started = copies.find(plan.steps).program
    inside = [one for one in started.argv if one.endswith("npm-cli.js")]
    assert len(inside) == 1
    assert inside[0].startswith(copies.default_directory())
    assert {root.access for root in steps[Grants].roots} == {"write"}
    (nodejs / "npm.cmd").rename(tmp_path / "npm.cmd")
    monkeypatch.setenv("PATH", f"{tmp_path};{nodejs}")
    with pytest.raises(Exception, match="or it is a shim"):
        npm.find_npm("")
    monkeypatch.setenv("PATH", str(nodejs))
    with pytest.raises(Exception, match=r"npm was not found on PATH$"):
        npm.find_npm("")


def test_a_virtual_environments_python_that_a_package_changed_is_not_run(index):
    made = pypi.make_environment(staging_for("pypi:x"), Registry(), "x")
    pypi.check_environment(made)  # Sanity check: the unchanged redirector is accepted
    with open(made.path(pypi.INTERPRETER), "ab") as file:
        file.write(b"more")
    with pytest.raises(Exception, match="a package changed"):
        pypi.check_environment(made)


def test_the_store_handles_paths_longer_than_260_characters(index, tmp_path):
    """Use a path that is as long as npm's paths may be. Windows accepts such paths only with the
    prefix `\\\\?\\`.
    """
    from corral.servers.store import tree

    top = str(tmp_path / "deep")
    path = "/".join(["a" * 60] * 6)
    os.makedirs(tree.path_of(top, path))
    with open(tree.path_of(top, f"{path}/file"), "w") as file:
        file.write("x")
    assert tree.measure_tree(top) == (1, 1)
    tree.check_tree(top)
    tree.make_read_only(top)
    assert len(tree.tree_digest(top)) == 64
    tree.remove_tree(top)
    assert not os.path.exists(top)
