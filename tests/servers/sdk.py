"""Python environments with an MCP SDK in them, made once and kept with the other rigs' downloads."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
SESSION = HERE / "session.py"


def cache() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "corral-rigs"


def python(name: str, *requirements: str) -> str:
    """The interpreter of an environment that has these."""
    place = cache() / f"sdk-{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not (place / "complete").exists():
        uv = shutil.which(
            "uv", path=os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
        )
        if uv is None:
            pytest.skip("uv is not installed (pip install uv)")
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, place], check=True)
        subprocess.run([uv, "pip", "install", "-q", "-p", place, *requirements], check=True)
        (place / "complete").touch()
    return str(place / "bin" / "python")


def session(interpreter: str, around: dict[str, str], **asked: object) -> dict:
    """A real client's session with one server, in the environment `around`; see session.py."""
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
