"""Provide Python 3.9, which is too old for corral. It comes from packages of an old Debian release."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile

import rigs

SUITE, VERSION, RECIPE = "bullseye", "3.9", 1


def find() -> pathlib.Path:
    """Return the path of the interpreter, which finds its library relative to this path."""
    place = rigs.cache(f"python-{SUITE}-{RECIPE}")
    with rigs.alone(place.name):
        if not place.exists():
            _unpack(place)
    return place / "usr" / "bin" / f"python{VERSION}"


def _unpack(place: pathlib.Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as made:
        root = pathlib.Path(made, "root")
        words = ["--quiet", "--variant=extract", f"--include=python{VERSION},python3-distutils"]
        done = subprocess.run(
            ["mmdebstrap", *words, SUITE, root], capture_output=True, text=True, check=False
        )
        if done.returncode:
            rigs.broken("debian_python", done.stderr[-400:])
        root.chmod(0o755)
        root.rename(place)
