"""What the machines have in common: what they are given, how they are started and what comes back.

A machine is started in namespaces of its own, so that its mounts and its last process go with it, and sees the
host's files read-only. Everything it is handed lies in one directory, `/srv` inside.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY = 65533
DISK = 64 << 20
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
NOISE = shutil.ignore_patterns("__pycache__", ".*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the command ended, what it wrote to stdout and stderr, and what the kernel had to say."""

    returncode: int
    output: str
    console: str


class MachineError(Exception):
    """The machine came down before its command had ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `init.py` does in the machine."""

    command: tuple[str, ...]
    as_user: int | None
    env: Mapping[str, str]
    stage: str
    output: str
    root: str = "/"
    modules: tuple[str, ...] = ()
    sysctls: Mapping[str, str] = dataclasses.field(default_factory=dict)
    delegate: str | None = None
    token: str = dataclasses.field(default_factory=lambda: f"machine-{secrets.token_hex(8)}")


def unavailable(rig: str, why: str) -> NoReturn:
    """Skip, unless the runner declared this rig (CORRAL_RIGS=uml,qemu,systemd): then it has to be there."""
    if rig in os.environ.get("CORRAL_RIGS", "").split(","):
        pytest.fail(f"the {rig} rig is declared in CORRAL_RIGS, but: {why}", pytrace=False)
    pytest.skip(f"no {rig} rig: {why}")


def need_program(rig: str, program: str, package: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return found or unavailable(rig, f"{program} is missing; install the package {package}")


def need_python(rig: str) -> None:
    """The machine runs the system's Python: the one of the tests may lie where nobody else can read."""
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([SYSTEM_PYTHON, "-c", code], check=False).returncode:
        unavailable(rig, f"{SYSTEM_PYTHON} is not Python 3.11 or newer")


def cache(name: str) -> pathlib.Path:
    """Where the build of `name` is kept; it exists only if it is complete."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "corral-rigs" / name


@contextmanager
def building(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A directory that becomes `target` in one step, if the body succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        partial.chmod(0o755)
        yield partial
        if not target.exists():  # or another run was quicker
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def pytest_for_guest() -> pathlib.Path:
    """The running pytest and what it needs, compiled for the system's Python: compiling takes seconds inside."""
    version = subprocess.check_output([SYSTEM_PYTHON, "-V"], text=True).split()[1]
    target = cache(f"pytest-{importlib.metadata.version('pytest')}-python-{version}")
    if not target.exists():
        with building(target) as partial:
            for distribution in PYTEST:
                copy_distribution(distribution, partial)
            subprocess.run(
                [
                    SYSTEM_PYTHON,
                    "-m",
                    "compileall",
                    "-q",
                    "--invalidation-mode",
                    "unchecked-hash",
                    ".",
                ],
                cwd=partial,
                check=True,
            )
    return target


def copy_distribution(name: str, target: pathlib.Path) -> None:
    for file in importlib.metadata.files(name) or ():
        if file.suffix != ".pyc" and ".." not in file.parts:
            destination = target / file
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), destination)


@contextmanager
def workplace() -> Iterator[pathlib.Path]:
    """A directory for one boot; `stage` in it is /srv inside, with corral and its tests."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="corral-rig-"))
    try:
        for name in ("memory", "stage"):
            (path / name).mkdir(parents=True)
        shutil.copytree(CHECKOUT / "src", path / "stage/src", ignore=NOISE)
        shutil.copytree(CHECKOUT / "tests", path / "stage/tests", ignore=NOISE)
        for name in ("init.py", "systemd_init.py"):
            shutil.copy(HERE / name, path / "stage" / name)
        subprocess.run([SYSTEM_PYTHON, "-m", "compileall", "-q", path / "stage/src"], check=True)
        for entry in [path, *path.rglob("*")]:
            entry.chmod(0o755 if entry.is_dir() else 0o644)
        yield path
    finally:
        shutil.rmtree(path)


def disk(work: pathlib.Path) -> pathlib.Path:
    """An empty disk for a machine; it is never written to: what changes is the machine's to keep."""
    image = work / "disk"
    with image.open("wb") as file:
        file.truncate(DISK)
    mke2fs = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    subprocess.run([mke2fs or "mke2fs", "-q", "-F", "-t", "ext4", image], check=True)
    image.chmod(0o644)
    return image


def write_job(work: pathlib.Path, job: Job) -> None:
    (work / "stage/job.json").write_text(json.dumps(dataclasses.asdict(job)))
    (work / "stage/job.json").chmod(0o644)


def enclosed(
    work: pathlib.Path,
    argv: Sequence[str],
    binds: Mapping[pathlib.Path, pathlib.Path] = MappingProxyType({}),
) -> list[str]:
    """`argv` with mount and PID namespaces of its own: nothing of it outlives the process that starts it."""
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    shown = {pytest_for_guest(): work / "stage/pytest", **binds}
    for target in shown.values():
        target.mkdir(exist_ok=True)
    pairs = ",".join(f"{source}:{target}" for source, target in shown.items())
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", *user, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *(sys.executable, "-IS", str(HERE / "enclosure.py"), str(work), pairs, *argv),
    ]


def need_namespaces(rig: str) -> None:
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    argv = ["unshare", *user, "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable(rig, f"a machine needs mount and PID namespaces: {done.stderr.strip()}")


def start(argv: Sequence[str], token: str, timeout: float) -> Result:
    """Run a machine to its end; stdout is its output line, stderr its console."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    problem = ""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        problem = f"still running after {timeout} s"
    except BaseException:
        process.kill()
        process.communicate()
        raise
    output, console = out.decode(errors="replace"), err.decode(errors="replace")
    body, found, status = output.rpartition(f"\n{token} ")
    if not found:
        problem = problem or f"ended with {process.returncode} before its command had"
        raise MachineError(f"{problem}\n--- output\n{output}\n--- console\n{console}")
    return Result(returncode=int(status.split()[0]), output=body, console=console)
