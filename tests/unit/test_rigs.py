"""Test the table of rigs, which are the programs and machines that some tests need. A declared rig
must exist, and tests that did not run are reported.
"""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import rigs

TESTS = pathlib.Path(rigs.__file__).parent


@pytest.fixture
def declare(monkeypatch):
    def act(text: str, option: str | None = None) -> frozenset[str]:
        monkeypatch.setenv(rigs.VARIABLE, text)
        rigs.declare(option)
        return rigs.declared()

    return act


def test_a_group_declares_all_its_rigs_and_the_option_adds_to_the_variable(declare, monkeypatch):
    monkeypatch.setitem(rigs.RIGS, "plain", rigs.Rig("nothing"))
    monkeypatch.setitem(rigs.GROUPS, "some", ("plain", "long"))
    assert declare("some") == {"plain", "long"}
    assert declare("long", "plain") == {"plain", "long"}
    assert declare("") == frozenset()


def test_an_unknown_rig_is_an_error(declare):
    with pytest.raises(pytest.UsageError, match="no rig 'umll'"):
        declare("long,umll")


def test_a_declared_rig_that_is_missing_is_an_error(declare, monkeypatch):
    monkeypatch.setitem(rigs.RIGS, "odd", rigs.Rig("nothing", {"no-such-program": "odd-package"}))
    with pytest.raises(pytest.UsageError, match="the rig odd needs odd-package"):
        declare("odd")
    monkeypatch.setitem(rigs.RIGS, "odd", rigs.Rig("nothing", {sys.executable: "python3"}))
    assert declare("odd") == {"odd"}  # Sanity check: a rig whose program exists is accepted


def test_a_test_with_an_undeclared_rig_is_skipped(declare):
    declare("")
    with pytest.raises(pytest.skip.Exception, match="needs the rig long"):
        rigs.need("long")
    declare("long")
    rigs.need("long")


def test_the_summary_names_the_tests_that_did_not_run():
    reasons = ["needs the rig git", "needs the rig long node", "this process is not root"]
    said = " ".join(rigs.closing(reasons).split())
    assert said.startswith("Not tried: 3 tests. 2 need rigs that are not declared: node (")
    assert "--rigs=node,git,long" in said
    assert said.endswith("this process is not root (1).")
    assert rigs.closing([]) == ""


@pytest.mark.parametrize(("name", "status"), [("nonsense", 4), ("long", 5)])
def test_pytest_ends_before_the_first_test_if_a_rig_is_unknown(tmp_path, name, status):
    """Declare a rig. If there is no rig with this name, pytest must exit with 4. Otherwise pytest
    goes on, finds no test named `nothing`, and exits with 5.
    """
    argv = [
        sys.executable,
        "-m",
        "pytest",
        f"--rigs={name}",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-k",
        "nothing",
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    done = subprocess.run(
        [*argv, TESTS / "unit/test_units.py"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == status, done.stdout
    assert (b"there is no rig 'nonsense'" in done.stderr) == (status == 4)


def test_every_rig_that_a_test_names_is_in_the_table():
    import re

    used = {
        name
        for path in TESTS.rglob("*.py")
        for call in re.findall(
            r"(?:rigs\.need|mark\.rig)\(([^)]*)\)", path.read_text(encoding="utf-8")
        )
        for name in re.findall(r'"(\w+)"', call)
    }
    assert used <= set(rigs.RIGS)
    assert {"uml", "node", "git"} <= used


def test_no_test_is_skipped_because_a_program_is_not_on_path():
    """Check that no test looks for a program on PATH by itself. Such a test would run only on some
    machines, and the summary would not say how to run it.

    The tests for macOS and Windows are not checked, because rigs exist only for Linux. On macOS and
    Windows the workflows install node.
    """
    found = []
    skip, search = "pytest.skip", "shutil.which"
    for path in TESTS.rglob("test_*.py"):
        if path.parent.name in {"macos", "windows"}:
            continue
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.FunctionDef):
                text = ast.unparse(one)
                if search in text and f"{skip}(" in text and "mark.rig(" not in text:
                    found.append(f"{path.name}::{one.name}")
    assert found == []
