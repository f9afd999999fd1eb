"""Run Windows programs on a Linux host, under Wine.

Each run has its own Wine prefix in memory, which is a copy of a prefix that is made once.
C:\\Python is the Python that `windows_python` installs, and C:\\corral is a copy of this checkout.
Both are read-only. A run starts in C:\\work, which is empty. The run cannot write to the host's
files, and leaves nothing behind.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import rigs
from vm import rig as machines
from windows import windows_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "wine"
RECIPE = 1  # increased with each change to the prefix, to make a new cache entry
PYTHON = "C:\\Python\\python.exe"
MAIN = "import sys; from corral.cli import main; sys.exit(main())"
PROGRAMS = {"python": (PYTHON,), "corral": (PYTHON, "-c", MAIN)}
CHECKOUT = "C:\\corral"
DEBIAN = "/usr/lib/wine/wine64"  # Debian's `wine` would prefer the 32-bit program
# Wine copies 700 MB of libraries into every prefix, so they are replaced with links to the originals.
MAKE_PREFIX = """
set -e
exec 3>&1 >&2
"$WINE" wineboot -i
"$WINE" reg add 'HKCU\\Software\\Wine' /v Version /d win10 /f
wineserver -w
cd "$WINEPREFIX"
for original in /usr/lib/*/wine/x86_64-windows /usr/lib/wine/x86_64-windows; do
    find . -type f | while IFS= read -r file; do
        if cmp -s "$file" "$original/${file##*/}"; then ln -sf "$original/${file##*/}" "$file"; fi
    done
done
ln -s /mnt/python drive_c/Python
ln -s /mnt/corral drive_c/corral
mkdir drive_c/work
tar -cf - . >&3
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The exit status and output of a program."""

    returncode: int
    output: str
    errors: str


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = 120,
) -> Result:
    """Run a Windows program until it ends. `python` means the rig's Python, and `corral` means this
    checkout's corral.
    """
    program = PROGRAMS.get(argv[0], (argv[0],))
    done = enclosed([wine(), *program, *argv[1:]], str(prefix()), env or {}, stdin, timeout)
    return Result(
        returncode=done.returncode,
        output=done.stdout.decode(errors="replace").replace("\r\n", "\n"),
        errors=done.stderr.decode(errors="replace").replace("\r\n", "\n"),
    )


def require() -> None:
    """Make Wine's prefix, Python and the copy of corral.

    Call this through `rigs.once`, so that parallel test processes do not make the prefix and Python twice.
    """
    windows_python.installed(NAME)
    prefix()
    staged()


def wine() -> str:
    return DEBIAN


@functools.cache
def prefix() -> pathlib.Path:
    """Return an archive of a Wine prefix that reports Windows 10."""
    version = subprocess.check_output([wine(), "--version"], text=True).split()[0]
    target = rigs.cache(f"prefix-{version}-{RECIPE}")
    if not target.exists():
        with machines.building(target) as partial:
            done = enclosed(["sh", "-c", MAKE_PREFIX], "", {}, b"", 300)
            if done.returncode:
                rigs.broken(NAME, f"Wine could not make a prefix: {done.stderr.decode()}")
            (partial / "prefix.tar").write_bytes(done.stdout)
    return target / "prefix.tar"


@functools.cache
def staged() -> pathlib.Path:
    """Copy corral and its tests. Compile corral's modules, because compiling them at each start is
    slow.
    """
    stage = pathlib.Path(tempfile.mkdtemp(prefix="corral-rig-"))
    atexit.register(shutil.rmtree, stage)
    stage.chmod(0o755)
    for name in ("src", "tests"):
        shutil.copytree(machines.CHECKOUT / name, stage / name, ignore=machines.NOISE)
    shutil.copy(machines.CHECKOUT / "pyproject.toml", stage)
    options = ("-q", "--invalidation-mode", "unchecked-hash", "-s", str(stage), "-p", "C:/corral")
    command = [sys.executable, "-m", "compileall", *options, str(stage / "src")]
    subprocess.run(command, check=True)
    for entry in stage.rglob("*"):
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    return stage


def enclosed(
    argv: Sequence[str], archive: str, env: Mapping[str, str], stdin: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    machines.need_namespaces(NAME)
    trees = {"python": windows_python.installed(NAME), "corral": staged()}
    if archive:
        trees["archive"] = pathlib.Path(archive).parent
        archive = f"/mnt/archive/{os.path.basename(archive)}"
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", *user, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *(sys.executable, "-IS", str(machines.CHECKOUT / "tests/windows/enclosure.py")),
        *(",".join(f"{name}={path}" for name, path in trees.items()), archive, *argv),
    ]
    return subprocess.run(
        command,
        env={**environment(), **env},
        input=stdin,
        capture_output=True,
        check=False,
        timeout=timeout,
        cwd="/",
    )


def environment() -> dict[str, str]:
    return {
        "PATH": f"{os.path.dirname(wine())}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/mnt/home",
        "USER": "tester",
        "LANG": "C.UTF-8",
        "WINE": wine(),
        "WINEPREFIX": "/mnt/prefix",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree=;mshtml=;winemenubuilder.exe=",
        "WINEPATH": "C:\\Python",
        "PYTHONPATH": f"{CHECKOUT}\\src",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
    }


if __name__ == "__main__":
    result = run(sys.argv[1:], timeout=600)
    sys.stdout.write(result.output)
    sys.stderr.write(result.errors)
    sys.exit(result.returncode)
