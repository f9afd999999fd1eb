"""Unpack Debian for another architecture, as the root of a machine that QEMU emulates.

The packages are only unpacked, because their scripts cannot run here. The Debian release has the same version of
Python as `rig.pytest_for_guest`, so that the compiled files of pytest work in the machine.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import rigs
from vm import rig

if TYPE_CHECKING:
    import pathlib

SUITE = "bookworm"
INCLUDE = ("python3", "util-linux", "coreutils", "dash", "base-files", "procps")
# The packages' scripts, which do not run here, would make these directories.
DIRECTORIES = ("dev", "home", "mnt", "proc", "root", "run", "srv", "sys", "tmp")
RECIPE = 1  # part of the cached image's name: add 1 whenever the image changes


def image(architecture: str) -> pathlib.Path:
    """Return the directory of the unpacked root. The first call creates it."""
    target = rigs.cache(f"root-{SUITE}-{architecture}-{RECIPE}")
    if not target.exists():
        with rig.building(target) as partial:
            build(architecture, partial)
    return target


def build(architecture: str, target: pathlib.Path) -> None:
    archive = target.with_suffix(".tar")
    argv = ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={architecture}"]
    argv += [f"--include={','.join(INCLUDE)}", SUITE, str(archive)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            rigs.broken("qemu", f"mmdebstrap failed: {done.stderr.strip()[-400:]}")
        unpack = ["tar", "--extract", "--no-same-owner", "--exclude=./dev/*", "--mode=a+rX"]
        subprocess.run([*unpack, f"--directory={target}", f"--file={archive}"], check=True)
        subprocess.run(["chmod", "-R", "a+rX,u+w", target], check=True)
        for name in DIRECTORIES:
            (target / name).mkdir(exist_ok=True)
    finally:
        archive.unlink(missing_ok=True)
