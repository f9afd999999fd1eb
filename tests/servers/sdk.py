"""Make each Python environment with an MCP SDK only once, and keep it with the rigs' downloads."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

import rigs

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
SESSION = HERE / "session.py"


def python(name: str, *requirements: str) -> str:
    """Return the interpreter of an environment with these packages. The first worker makes the environment."""
    return rigs.once(f"sdk-{name}", lambda: make_python(name, *requirements))


def make_python(name: str, *requirements: str) -> str:
    place = rigs.cache(f"sdk-{name}-{sys.version_info.major}.{sys.version_info.minor}")
    if not (place / "complete").exists():
        from uv import find_uv_bin

        uv = find_uv_bin()
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, place], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", place, *requirements], check=True)
        (place / "complete").touch()
    return str(place / "bin" / "python")


def session(interpreter: str, around: dict[str, str], **asked: object) -> dict:
    """Run session.py with the arguments `asked` and the environment `around`, and return its results."""
    done = subprocess.run(
        [interpreter, str(SESSION), str(SOURCE), json.dumps(asked)],
        env=around,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
