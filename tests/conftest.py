"""Provide fixtures for all tests: users (users.py) and tiers (with or without namespaces).

Skip tests that need a rig (rigs.py), such as a virtual machine, that the caller has not declared.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

import rigs
from users import SOURCE, SYSTEM_PYTHON, User, has_system_python, make_user


def pytest_addoption(parser) -> None:
    parser.addoption("--rigs", help="rigs to use, added to CORRAL_RIGS; see tests/rigs.py")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config) -> None:
    """Use up to eight processors, if the command line names only directories and has no `-n`."""
    option = config.option
    if hasattr(config, "workerinput"):
        return
    if getattr(option, "numprocesses", 0) is None and not (option.collectonly or option.usepdb):
        places = [pathlib.Path(word.partition("::")[0]) for word in config.args]
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        if all(place.is_dir() for place in places) and processors > 1:
            option.numprocesses = min(processors, 8)
            option.dist = "worksteal"


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "rig(*names): needs these rigs; see tests/rigs.py")
    rigs.declare(config.option.rigs)
    if sys.platform == "darwin":
        # Python warns about a fork in a process with several threads. On macOS it also counts the
        # system's own threads, so it would warn about every fork.
        config.addinivalue_line("filterwarnings", "ignore:This process .* is multi-threaded")
    if not hasattr(config, "workerinput"):
        os.environ[rigs.SHARED] = tempfile.mkdtemp(prefix="corral-rigs-")


def pytest_unconfigure(config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(rigs.SHARED, ""), ignore_errors=True)


def pytest_collection_modifyitems(items) -> None:
    rigs.skip_undeclared(items)


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2].removeprefix("Skipped: ") for report in skipped]
    if paragraph := rigs.closing(reasons):
        terminalreporter.section("not tried")
        terminalreporter.write_line(paragraph)


@pytest.fixture(scope="session")
def package() -> pathlib.Path:
    """Copy corral to a directory that every user can read. The users' homes are made beside the
    copy.

    The copy is compiled here, because the tests do not let corral write compiled modules. Otherwise
    each start would compile every module and take twice as long.
    """
    base = pathlib.Path(tempfile.mkdtemp(prefix="corral-tests-"))
    base.chmod(0o755)
    shutil.copytree(SOURCE, base / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for python in {sys.executable, SYSTEM_PYTHON if has_system_python() else sys.executable}:
        subprocess.run([python, "-m", "compileall", "-q", str(base / "src")], check=True)
    for path in (base / "src").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield base / "src"
    remove(base)


@pytest.fixture
def tier(request) -> str:
    """Return the tier that the test chooses with an indirect parameter, otherwise "walled" (with
    namespaces). `users.py` describes the tiers.
    """
    return getattr(request, "param", "walled")


@pytest.fixture(params=["root", "ordinary"])
def user(request, package, tier) -> Iterator[User]:
    if request.param == "root" and os.geteuid():
        pytest.skip("this process is not root")
    with empty_home_afterwards(make_user(request.param, package, tier)) as someone:
        yield someone


@pytest.fixture
def ordinary(package, tier) -> Iterator[User]:
    with empty_home_afterwards(make_user("ordinary", package, tier)) as someone:
        yield someone


@contextlib.contextmanager
def empty_home_afterwards(user: User) -> Iterator[User]:
    """Empty the user's home after the test, except for the cache, which is slow to fill."""
    yield user
    for entry in os.scandir(user.home):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != ".cache":
                remove(pathlib.Path(entry.path))
        else:
            os.unlink(entry.path)


@pytest.fixture
def scratch(user):
    """Create a directory for the test in the user's home."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="scratch-", dir=user.home))
    os.chown(path, user.owner, user.owner)
    yield path
    remove(path)


def remove(path: pathlib.Path) -> None:
    """Remove a directory, even if a test has removed the permissions of a subdirectory."""
    os.chmod(path, 0o700)
    for folder, _, _ in os.walk(path):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
    shutil.rmtree(path)
