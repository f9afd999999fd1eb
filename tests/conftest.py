"""Who runs corral in these tests, and on what host; see users.py."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

from users import SOURCE, User, make_user


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> pathlib.Path:
    """corral where every user can read it."""
    if os.geteuid():
        return SOURCE
    base = pathlib.Path("/tmp") / f"corral-tests-{os.getpid()}"
    base.mkdir(mode=0o755)
    shutil.copytree(SOURCE, base / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [base, *base.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield base / "src"
    shutil.rmtree(base)


@pytest.fixture
def tier(request) -> str:
    """`@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)` runs a test in both."""
    return getattr(request, "param", "walled")


@pytest.fixture(params=["root", "ordinary"])
def user(request, package, tier) -> User:
    if request.param == "root" and os.geteuid():
        pytest.skip("this process is not root")
    return make_user(request.param, package, tier)


@pytest.fixture
def ordinary(package, tier) -> User:
    return make_user("ordinary", package, tier)


@pytest.fixture
def scratch(user):
    """A directory of the user's own, outside every sandbox."""
    path = user.home / f"scratch-{os.getpid()}"
    path.mkdir(mode=0o700)
    os.chown(path, user.owner, user.owner)
    yield path
    shutil.rmtree(path)
