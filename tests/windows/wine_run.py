"""Run the requested Windows tests under Wine, divided between two processes."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess

import rigs
from windows import rig
from windows.conftest import MARK, OF_THE_RIG

HERE = pathlib.Path(__file__).resolve().parent
FILES = sorted(path for path in HERE.glob("test_*.py") if path.name not in OF_THE_RIG)
TIMEOUT = 400


def functions_of(path: pathlib.Path) -> list[str]:
    """Return the names of the test functions in a file."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


PLACES = [f"{path.name}::{test}" for path in FILES for test in functions_of(path)]


def read_outcomes(place, wanted):
    """Run the group of tests that contains `place`, and return their outcomes and output."""
    rigs.once("wine", rig.require)
    number, share = next(pair for pair in enumerate(shares(wanted)) if place in pair[1])
    output = rigs.once(f"wine-{number}", lambda: run_all(share))
    found: dict[str, list[dict[str, str]]] = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            entry = json.loads(line.removeprefix(MARK))
            place = os.path.basename(entry["name"].partition("[")[0])
            found.setdefault(place, []).append(entry)
    return found, output


def shares(places):
    """Divide the test files between two processes. This saves time, because most of the time the
    tests only wait for other processes to start.
    """
    by_file = {}
    for place in places:
        by_file.setdefault(place.partition("::")[0], []).append(place)
    found = [[], []]
    for file in sorted(by_file, key=lambda file: -len(by_file[file])):
        min(found, key=len).extend(by_file[file])
    return [share for share in found if share]


def run_all(places):
    """Run these tests under Wine. Return what they printed until they ended or reached the timeout."""
    try:
        result = rig.run(
            [
                *("python", "-m", "pytest", "-s", "-q", "--color=no", "--tb=short"),
                *("-p", "pytest_timeout", "-p", "no:cacheprovider"),
                *("-c", f"{rig.CHECKOUT}\\pyproject.toml"),
                *(f"{rig.CHECKOUT}\\tests\\windows\\{place}" for place in places),
            ],
            env={"CORRAL_UNDER_WINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace") + f"\n{error}"
    return result.output + result.errors
