"""Install the built wheel and sdist as users do: with pip, pipx, uv tool and uvx.

The tests run only if the rig `packaging` is declared (CORRAL_RIGS=packaging), because installers download tools.
"""

import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = pathlib.Path(sys.executable).parent
CLIENT = """
import corral

policy: corral.PolicyDict = {"limits": {"timeout": "10s"}}
with corral.launch(["x"], policy, stdin=corral.PIPE, stdout=corral.PIPE) as sandbox:
    sandbox.stdin.write(b"x")
    line: bytes = sandbox.stdout.readline()
result = corral.run(["true"], {"network": {"allow": ["example.com"]}})
kind: str = result.report.outcome.kind


async def ask() -> bytes:
    async with corral.launch_async(["x"], policy, stdin=corral.PIPE, stdout=corral.PIPE) as server:
        server.stdin.write(b"x")
        await server.stdin.drain()
        return await server.stdout.readline()
"""

pytestmark = [pytest.mark.rig("packaging"), pytest.mark.timeout(600)]


def run(*words: object, cwd: pathlib.Path, **variables: str) -> str:
    env = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Build corral, and return the paths of the wheel and of the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--out-dir", folder, ROOT, cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture
def home(tmp_path):
    """Return an empty home for the installers, without the user's files."""
    return tmp_path


def variables(home: pathlib.Path) -> dict[str, str]:
    places = {
        name: str(home / name)
        for name in ("PIPX_HOME", "PIPX_BIN_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR")
    }
    return {**places, "UV_PYTHON": sys.executable}


def test_wheel_and_sdist_contain_the_expected_files(built):
    wheel, sdist = built
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "corral/py.typed",
        "corral/schemas/report.json",
        "corral/policy/profiles/git.toml",
    } <= set(names)
    assert all(name.startswith(("corral/", "mcp_corral-")) for name in names)
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/tests/claims.py") for name in archive.getnames())


def test_the_metadata_has_no_requirements(built):
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        lines = wheel.read(name).decode().partition("\n\n")[0].splitlines()
    needed = [line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert needed == []
    assert "Requires-Python: >=3.11" in lines


def test_uv_tool_installs_corral(built, home):
    env = variables(home)
    run("uv", "tool", "install", built[0], cwd=home, **env)
    for name in ("corral", "mcp-corral"):
        assert run(home / "UV_TOOL_BIN_DIR" / name, "version", cwd=home).startswith("corral ")
    run(home / "UV_TOOL_BIN_DIR" / "corral", "demo", cwd=home)


def test_uvx_runs_corral(built, home):
    out = run("uvx", "--from", built[0], "mcp-corral", "demo", cwd=home, **variables(home))
    assert "acts stopped inside" in out


def test_pipx_installs_corral(built, home):
    run("uv", "tool", "run", "pipx", "install", built[0], cwd=home, **variables(home))
    out = run(home / "PIPX_BIN_DIR" / "corral", "demo", cwd=home)
    assert "acts stopped inside" in out


@pytest.mark.parametrize("which", [0, 1], ids=["wheel", "sdist"])
def test_strict_type_checkers_accept_a_client_of_the_package(built, home, which):
    run("uv", "venv", "--python", sys.executable, home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    run("uv", "pip", "install", "--python", python, built[which], "mypy", "pyright", cwd=home)
    (home / "client.py").write_text(CLIENT)
    (home / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    run(python, "-m", "mypy", "--strict", "client.py", cwd=home)
    assert "0 errors" in run(python, "-m", "pyright", "--pythonpath", python, "client.py", cwd=home)
