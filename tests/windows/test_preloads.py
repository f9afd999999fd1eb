"""Test the preloads: the code that corral makes Python and node load before a server.

Some tests need only a Python for Windows, and the others need AppContainers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from corral.platforms.windows.runtime_copies import store

PIPES = """
import _winapi, asyncio, multiprocessing, sys
names = []
real = _winapi.CreateNamedPipe
_winapi.CreateNamedPipe = lambda name, *more: names.append(name) or real(name, *more)
exec(open(sys.argv[1]).read())
async def child():
    pipe = asyncio.subprocess.PIPE
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('said')", stdout=pipe)
    return (await made.communicate())[0].split()
one, other = multiprocessing.Pipe()
one.send("sent")
print(asyncio.run(child()), other.recv(), {name.startswith("\\\\\\\\.\\\\pipe\\\\LOCAL\\\\") for name in names})
"""


def test_pythons_pipes_have_names_that_a_container_may_use():
    done = subprocess.run(
        [sys.executable, "-c", PIPES, store.PYTHON_PRELOAD], capture_output=True, check=False
    )
    assert done.stdout.decode().strip() == "[b'said'] sent {True}", done.stderr


REPAIRED = {
    "mkdtemp": "import tempfile; open(os.path.join(tempfile.mkdtemp(), 'x'), 'w').close()",
    "realpath": "os.path.realpath(os.environ['TEMP'], strict=True)",
    "asyncio": "import asyncio; asyncio.run(asyncio.create_subprocess_exec(sys.executable, '-c', '', stdout=-1))",
    "DEVNULL": "import subprocess; subprocess.run([sys.executable, '-c', ''], stdin=-3, check=True)",
}


@pytest.mark.real_windows
@pytest.mark.parametrize("form", REPAIRED)
def test_python_works_in_a_container(corral, form):
    code = f"{REPAIRED[form]}\nanswer = 'done'"
    flags = ("--allow-subprocess",) if form in {"asyncio", "DEVNULL"} else ()
    assert corral.inside(code, flags=flags, timeout=300) == "done"


NODE = {
    "realpath": (
        "fs.promises.realpath(process.cwd()).then("
        "(found) => console.log(found === fs.realpathSync('.') ? 42 : found))"
    ),
    "execFile": (
        "cp.execFile(process.execPath, ['-p', '6*7'], (error, output) => console.log(error ?? output))"
    ),
    "spawn": "cp.spawn(process.execPath, ['-p', '6*7']).stdout.pipe(process.stdout)",
    "spawnSync": "console.log(cp.spawnSync(process.execPath, ['-p', '6*7']).stdout.toString())",
    "execFileSync": "console.log(cp.execFileSync(process.execPath, ['-p', '6*7']).toString())",
    "ignored": (
        "cp.spawn(process.execPath, ['-e', 'process.exit(42)'], { stdio: 'ignore' })"
        ".on('error', (error) => console.log(error)).on('exit', (code) => console.log(code))"
    ),
    "ignored, sync": (
        "const done = cp.spawnSync(process.execPath, ['-e', 'process.exit(42)'], { stdio: 'ignore' });"
        "console.log(done.error ?? done.status)"
    ),
    "partly ignored": (
        "const stdio = ['ignore', 'pipe', 'ignore'];"
        "console.log(cp.spawnSync(process.execPath, ['-p', '6*7'], { stdio }).stdout.toString())"
    ),
}


@pytest.mark.real_windows
@pytest.mark.parametrize("form", NODE)
def test_node_works_in_a_container(corral, tmp_path, form):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (tmp_path / "package.json").write_text("{}")
    needs = "const fs = require('fs'), cp = require('child_process');"
    (tmp_path / "main.js").write_text(needs + NODE[form])
    done = corral.run(
        *(node, os.path.join(str(tmp_path), "main.js")), flags=("--allow-subprocess",), timeout=300
    )
    assert (done.returncode, done.stdout.split()) == (0, [b"42"]), done.stderr


@pytest.mark.real_windows
def test_a_hidden_environment_file_is_empty_for_python(corral, tmp_path):
    """Check that the file can be opened and appears to be empty. pydantic-settings, which FastMCP
    uses, opens every `.env` that exists, so a server would fail if the file could not be opened.
    """
    (tmp_path / ".env").write_text("TOKEN=told")
    code = "answer = [os.path.isfile(sys.argv[1]), open(sys.argv[1]).read()]"
    path = str(tmp_path / ".env")
    # Sanity check: outside of the sandbox, the file has its content.
    assert corral.outside(code, path) == [True, "TOKEN=told"]
    assert corral.inside(code, path, flags=("--read", str(tmp_path)), timeout=300) == [True, ""]
