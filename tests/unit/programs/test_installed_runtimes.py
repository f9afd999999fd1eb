"""Test how corral finds the Python and Node.js versions that version managers have installed, and
how it chooses one of them by version or path.
"""

import os
import subprocess
import sys

import pytest

from corral.errors import CommandError
from corral.programs import installed_runtimes
from corral.programs.installed_runtimes import (
    find_fitting_node,
    find_fitting_python,
    find_runtime,
    list_runtimes,
    parse_version,
)
from corral.programs.runtimes import find_own_python

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="corral does not install packages on Windows yet"
)

PLACES = {
    "python": (
        (".pyenv/versions/3.97.1/bin/python3", (3, 97, 1)),
        (".local/share/uv/python/cpython-3.98.2-linux-x86_64-gnu/bin/python3", (3, 98, 2)),
        (".asdf/installs/python/3.96.0/bin/python3", (3, 96, 0)),
    ),
    "node": (
        (".nvm/versions/node/v97.1.0/bin/node", (97, 1, 0)),
        (".volta/tools/image/node/98.0.1/bin/node", (98, 0, 1)),
        (".local/share/fnm/node-versions/v96.2.0/installation/bin/node", (96, 2, 0)),
    ),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")})
    return tmp_path


def ask(argv):
    """Run a command without a sandbox, and return its output, or "" if it fails. corral itself runs
    such a command in a sandbox.
    """
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("kind", PLACES)
def test_runtimes_of_version_managers_are_found(home, kind):
    for place, version in PLACES[kind]:
        path = put(home / place)
        assert (path, version) in [(one.path, one.version) for one in list_runtimes(kind)]
        text = ".".join(map(str, version[:2]))
        assert find_runtime(kind, text, ask).path == path
    newest = put(home / (".pyenv/versions/3.97.12/bin/python3"))
    if kind == "python":
        assert find_runtime(kind, "3.97", ask).path == newest  # 3.97.12 is newer than 3.97.9


def test_runtimes_that_are_not_executable_or_too_old_are_not_found(home):
    os.chmod(put(home / ".pyenv/versions/3.97.1/bin/python3"), 0o644)
    put(home / ".pyenv/versions/3.6.15/bin/python3")
    put(home / ".pyenv/versions/pypy3.97-7.3/bin/python3")
    assert {one.version[:2] for one in list_runtimes("python")} == {sys.version_info[:2]}
    with pytest.raises(CommandError, match=r"no python '3.97' is installed") as caught:
        find_runtime("python", "3.97", ask)
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in caught.value.hint


def test_a_variable_moves_the_directory_of_a_version_manager(home, monkeypatch):
    path = put(home / "elsewhere/versions/3.97.1/bin/python3")
    with pytest.raises(CommandError):
        find_runtime("python", "3.97", ask)
    monkeypatch.setitem(os.environ, "PYENV_ROOT", str(home / "elsewhere"))
    assert find_runtime("python", "3.97", ask).path == path


def test_a_runtime_named_by_path_is_asked_for_its_version(home):
    found = find_runtime("python", find_own_python(), ask)
    assert found.version == sys.version_info[:3]
    for path in (put(home / "python3"), str(home / "nothing")):
        with pytest.raises(CommandError, match="is not a python"):
            find_runtime("python", path, ask)


def test_shims_of_version_managers_do_not_count_as_runtimes(home):
    for name in ("python3.97", "node"):
        path = home / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    assert (3, 97) not in {one.version for one in list_runtimes("python")}
    assert list_runtimes("node") == []
    put(home / "bin" / "python3.97")  # Sanity check: a real interpreter is found
    assert (3, 97) in {one.version for one in list_runtimes("python")}


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_program_that_cannot_be_read_counts_as_a_runtime(home):
    os.chmod(put(home / "bin" / "python3.97"), 0o111)
    assert (3, 97) in {one.version for one in list_runtimes("python")}


@pytest.mark.parametrize(
    ("requirement", "fitting"),
    [
        (">=3.12", "3.14"), (">=3.10,<3.12", "3.11"), ("~=3.9", "3.14"), ("==3.12.*", "3.12"),
        (">3.12,<3.13.5", "3.13"), (">=3.99", ""), ("<3.8", ""), ("!=3.14,>=3.12", "3.13"),
        ("nonsense", ""),
    ],
)  # fmt: skip
def test_the_newest_python_that_fits_is_chosen(monkeypatch, requirement, fitting):
    have = [
        installed_runtimes.Runtime(path=str(minor), version=(3, minor, 1)) for minor in range(8, 15)
    ]
    monkeypatch.setattr(installed_runtimes, "list_runtimes", lambda kind: have)
    assert find_fitting_python(requirement) == fitting


@pytest.mark.parametrize(
    ("engines", "fitting"),
    [
        (">=22", "24.1.0"), (">= 18.0.0 <21", "20.19.2"), ("^20.19.0 || >=22.12.0", "24.1.0"),
        ("^18.0.0 || ^20.19.0", "20.19.2"), ("22.x", "22.11.0"), (">=999", ""), ("latest", ""),
    ],
)  # fmt: skip
def test_the_newest_node_that_fits_engines_is_chosen(monkeypatch, engines, fitting):
    have = [
        installed_runtimes.Runtime(path=str(version), version=version)
        for version in ((20, 19, 2), (22, 11, 0), (24, 1, 0))
    ]
    monkeypatch.setattr(installed_runtimes, "list_runtimes", lambda kind: have)
    assert find_fitting_node(engines) == fitting


def test_versions_are_compared_as_numbers():
    assert parse_version("python3.12") == (3, 12)
    assert parse_version("v22.11.0") == (22, 11, 0)
    for text in ("", "latest", "3.x", "../3.12", ">=3.12"):
        assert parse_version(text) == ()


def test_version_numbers_with_too_many_digits_are_refused():
    """Use numbers with 5000 digits, because `int` raises ValueError for more than 4300 digits."""
    for text in ("9" * 5000, f"v3.{'9' * 5000}", f"3.{'0' * 10}"):
        assert parse_version(text) == ()
    # Sanity check: a shorter number is accepted.
    assert parse_version("3.999999999") == (3, 999999999)
    assert find_fitting_python(f">=3.{'9' * 5000}") == ""
    assert find_fitting_node(f">={'9' * 5000} || ^{'9' * 5000}.x") == ""
