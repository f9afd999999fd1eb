"""Finding and preparing what corral is compared with, in one directory that is thrown away.

corral itself is measured as users have it: installed from this checkout into a virtual environment,
with its console script and its compiled modules.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = "/bin/true"
SRT = "@anthropic-ai/sandbox-runtime"
SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc") if os.path.exists(path)]
SANDLOCK = f"""
import sandlock
box = sandlock.Sandbox(fs_readable={SYSTEM!r}, fs_writable=["/tmp"])
def once():
    return box.run([{TARGET!r}]).exit_code
"""
NONO = f"""
import nono_py
caps = nono_py.CapabilitySet()
for path in {SYSTEM!r}:
    caps.allow_path(path, nono_py.AccessMode.READ)
caps.block_network()
def once():
    return nono_py.sandboxed_exec(caps, [{TARGET!r}]).exit_code
"""
IN_PROCESS = {"sandlock": SANDLOCK, "nono-py": NONO}
"""Peers that are Python packages: `once` runs /bin/true behind their walls."""


@dataclasses.dataclass(frozen=True)
class Installed:
    """One virtual environment with corral in it."""

    python: str
    corral: str


@dataclasses.dataclass(frozen=True)
class Missing:
    name: str
    why: str

    def __str__(self) -> str:
        return f"skipped {self.name}: {self.why}"


def install(directory: str, packages: Sequence[str] = ()) -> Installed:
    """A virtual environment with the checkout and `packages`, everything compiled."""
    uv = shutil.which("uv")
    bare = ["--without-pip"] if uv else []
    _run([sys.executable, "-m", "venv", *bare, directory])
    python = os.path.join(directory, "bin", "python")
    # Not `uv venv`: its environments run a module of their own at every start.
    tool = (
        [uv, "pip", "install", "--python", python, "--compile-bytecode", "--quiet"]
        if uv
        else [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    )
    for wanted in (CHECKOUT, *packages):
        _run([*tool, wanted])
    return Installed(python, os.path.join(directory, "bin", "corral"))


def view(corral: str, environment: Mapping[str, str]) -> dict[str, object]:
    """The filesystem view of `corral run -- /bin/true`, as `explain` tells it."""
    command = [corral, "explain", "--json", "--", TARGET]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    steps = json.loads(done.stdout)["steps"]
    data: dict[str, object] = next(
        item["data"] for item in steps if item["step"] == "root_filesystem"
    )
    return data


def bubblewrap(walls: Mapping[str, object], directory: str) -> list[str] | Missing:
    """bubblewrap with the namespaces and the view of corral; no Landlock, no seccomp, no limits."""
    program = shutil.which("bwrap")
    if program is None:
        return Missing("bubblewrap", "install the package `bubblewrap`")
    spaces = ["user", "pid", "net", "ipc", "uts", "cgroup"]
    argv = [program, *(f"--unshare-{name}" for name in spaces), "--hostname", "corral"]
    argv += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    argv += ["--uid", "1000", "--gid", "1000", "--setenv", "PATH", "/bin:/usr/bin"]
    return [*argv, *filesystem(walls, directory), "--", TARGET]


def filesystem(walls: Mapping[str, object], directory: str) -> list[str]:
    """bubblewrap's words for corral's view."""
    words = ["--dev", "/dev", "--proc", "/proc"]
    for bind in _records(walls["binds"]):
        if not str(bind["target"]).startswith("/dev/"):
            kind = "--bind" if bind["access"] == "write" else "--ro-bind"
            words += [kind, str(bind["source"]), str(bind["target"])]
    for path in _strings(walls["private"]):
        words += ["--tmpfs", path]
    for path, target in _pairs(walls["links"]):
        if not path.startswith("/dev/"):
            words += ["--symlink", target, path]
    for number, (path, text) in enumerate(_pairs(walls["files"])):
        made = os.path.join(directory, f"made-{number}")
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        words += ["--ro-bind", made, path]
    return [*words, "--remount-ro", "/"]


def firejail() -> list[str] | Missing:
    program = shutil.which("firejail")
    if program is None:
        return Missing("firejail", "install the package `firejail`")
    private = ["--private", "--private-dev", "--private-tmp", "--net=none"]
    rest = ["--caps.drop=all", "--nonewprivs", "--seccomp"]
    return [program, "--quiet", "--noprofile", *private, *rest, TARGET]


def srt(directory: str) -> list[str] | Missing:
    program = srt_program(directory)
    return program if isinstance(program, Missing) else [program, TARGET]


def srt_program(directory: str) -> str | Missing:
    npm = shutil.which("npm")
    if npm is None:
        return Missing("srt", f"needs npm to install `{SRT}`")
    needed = {"bwrap": "bubblewrap", "socat": "socat", "rg": "ripgrep"}
    lacking = [package for name, package in needed.items() if shutil.which(name) is None]
    if lacking:
        return Missing("srt", f"install the packages it needs: {', '.join(lacking)}")
    try:
        _run([npm, "install", "--prefix", directory, "--no-audit", "--no-fund", "--silent", SRT])
    except subprocess.CalledProcessError as error:
        return Missing("srt", f"npm could not install `{SRT}`: {_last_line(error.stderr)}")
    return os.path.join(directory, "node_modules", ".bin", "srt")


def srt_network(directory: str, host: str) -> list[str] | Missing:
    """srt as it lets a command reach `host`: through its proxy, which the command is told of."""
    program = srt_program(directory)
    if isinstance(program, Missing):
        return program
    settings = os.path.join(directory, "settings.json")
    network = {"allowedDomains": [host], "deniedDomains": []}
    files: dict[str, list[str]] = {"denyRead": [], "allowWrite": [], "denyWrite": []}
    with open(settings, "w", encoding="utf-8") as file:
        json.dump({"network": network, "filesystem": files}, file)
    return [program, "--settings", settings, "--"]


def python_peers(directory: str, notice: Callable[[object], None]) -> tuple[Installed, list[str]]:
    """An environment of its own, so that corral's start is not measured among their files."""
    installed = install(directory)
    found = []
    for name in IN_PROCESS:
        try:
            install_into(installed.python, name)
            found.append(name)
        except subprocess.CalledProcessError as error:
            notice(Missing(name, f"`{name}` cannot be installed: {_last_line(error.stderr)}"))
    return installed, found


def install_into(python: str, package: str) -> None:
    uv = shutil.which("uv")
    if uv:
        _run([uv, "pip", "install", "--python", python, "--compile-bytecode", "--quiet", package])
    else:
        _run([python, "-m", "pip", "install", "--quiet", package])


def try_out(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> Missing | None:
    """A peer that cannot run here is left out, with its own words."""
    done = subprocess.run(argv, capture_output=True, check=False, env=environment)
    if done.returncode == 0:
        return None
    return Missing(name, f"does not run here: {_last_line(done.stderr) or done.returncode}")


def _last_line(raw: bytes | None) -> str:
    lines = (raw or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _records(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []


def _strings(value: object) -> list[str]:
    return value if isinstance(value, list) else []


def _pairs(value: object) -> list[tuple[str, str]]:
    return [(pair[0], pair[1]) for pair in value] if isinstance(value, list) else []
