"""Start the virtual machines that tests use: prepare their files, boot them and read their results.

A machine runs in its own namespaces, so that its mounts and processes end with it. The machine sees
the host's files read-only. corral, the tests and the job are in one directory, which is `/srv` in
the machine.
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
import time
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import rigs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
SYSTEM_PYTHON = "/usr/bin/python3"
ORDINARY = 65533
DISK = 512 << 20
GLANCE = 10  # seconds between two calls of `watch`
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
NOISE = shutil.ignore_patterns("__pycache__", ".*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The results of a command in a machine: its exit status, its stdout and stderr together, and the kernel's log."""

    returncode: int
    output: str
    console: str


class MachineError(Exception):
    """Raised when a machine stops, or reaches its timeout, before its command has ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command to run in a machine, and its settings. `init.py` and `systemd_init.py` read the job
    as JSON.
    """

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


def need_python(rig: str) -> None:
    """Fail unless the system's Python is new enough. Machines use the system's Python, because they
    may be unable to read the tests' Python.
    """
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([SYSTEM_PYTHON, "-c", code], check=False).returncode:
        rigs.broken(rig, f"{SYSTEM_PYTHON} is not Python 3.11 or newer")


@contextmanager
def building(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a new directory, and rename it to `target` if the caller's `with` block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        partial.chmod(0o755)
        yield partial
        if not target.exists():  # another run may have created `target` in the meantime
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def pytest_for_guest() -> pathlib.Path:
    """Return a directory with pytest and its dependencies, compiled for the system's Python.

    They are compiled here, because compiling in the guest takes seconds.
    """
    version = subprocess.check_output([SYSTEM_PYTHON, "-V"], text=True).split()[1]
    target = rigs.cache(f"pytest-{importlib.metadata.version('pytest')}-python-{version}")
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
    """Yield a directory for one boot. Its subdirectory `stage` contains corral and the tests, and
    is /srv in the machine.
    """
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
    """Return the image of a disk with an empty ext4 file system. The image does not change, because
    the machine keeps its writes to the disk in memory.
    """
    image = work / "disk"
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run([rigs.found("mke2fs"), "-q", "-F", "-t", "ext4", image], check=True)
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
    """Return a command that runs `argv` in new mount and PID namespaces, which end with the caller."""
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    shown = {pytest_for_guest(): work / "stage/pytest", **binds}
    for target in shown.values():
        target.mkdir(parents=True, exist_ok=True)
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
        rigs.broken(rig, f"a machine needs mount and PID namespaces: {done.stderr.strip()}")


def start(
    argv: Sequence[str],
    token: str,
    timeout: float,
    watch: Callable[[bytes], None] | None = None,
) -> Result:
    """Run a machine, and return the results of its command. Raise MachineError if the command did not end in time.

    The machine writes the command's output to its stdout, and its console to its stderr. `watch` is called regularly
    with the output so far.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    try:
        ended = communicate(process, timeout, watch)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    problem = ""
    if ended is None:
        process.kill()
        ended = process.communicate()
        problem = f"still running after {timeout} s"
    output, console = (stream.decode(errors="replace") for stream in ended)
    body, found, status = output.rpartition(f"\n{token} ")
    if not found:
        problem = problem or f"ended with {process.returncode} before its command ended"
        raise MachineError(f"{problem}\n--- output\n{output}\n--- console\n{console}")
    return Result(returncode=int(status.split()[0]), output=body, console=console)


def communicate(
    process: subprocess.Popen[bytes], timeout: float, watch: Callable[[bytes], None] | None
) -> tuple[bytes, bytes] | None:
    """Return the machine's stdout and stderr, or None if the machine still runs after `timeout` seconds."""
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            return process.communicate(timeout=min(left, GLANCE) if watch else left)
        except subprocess.TimeoutExpired as expired:
            if watch:
                watch(expired.output or b"")
    return None
