"""Define fixtures for the tests that run on Windows or under Wine. The host that starts Wine does
not use them.

`corral` runs the command line in a real child process. `inside` and `outside` run the same Python
code with and without the sandbox. A test that only real Windows can pass is marked `real_windows`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import pytest

from corral.abi import win32_process
from corral.plan.model import Results

MARK = "@@windows@@"
PYTHON = getattr(sys, "_base_executable", "") or sys.executable
"""The Python of the targets. If the tests run in a virtual environment, this is the base Python,
because corral copies a target's Python with all its packages, and the base Python has only a few.
"""
MAIN = "import sys; from corral.cli import main; sys.exit(main())"
# These modules test the rig on the Linux host, so they do not run on Windows.
OF_THE_RIG = ["test_rig.py", "test_under_wine.py"]
if sys.platform == "win32":
    collect_ignore = OF_THE_RIG
else:
    here = os.path.dirname(os.path.abspath(__file__))
    collect_ignore = [
        name for name in os.listdir(here) if name.startswith("test_") and name not in OF_THE_RIG
    ]


def pytest_configure(config):
    config.addinivalue_line("markers", "real_windows: Wine does not enforce what this test tries")


def wine() -> bool:
    return sys.platform == "win32" and hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("real_windows")
    if mark is not None and wine():
        pytest.skip(
            f"Wine differs from Windows: {mark.kwargs.get('reason', 'it has no AppContainer')}"
        )


def pytest_runtest_logreport(report):
    """Print one line as soon as a test ends, because Wine may crash later. `test_under_wine.py`
    reads the lines.
    """
    if "CORRAL_UNDER_WINE" in os.environ and (report.when == "call" or report.outcome != "passed"):
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        line = {"name": report.nodeid, "outcome": outcome, "text": reason(report, outcome)}
        sys.stdout.write(f"\n{MARK}{json.dumps(line)}\n")
        sys.stdout.flush()


def reason(report, outcome: str) -> str:
    if outcome == "xfailed":
        return report.wasxfail
    if outcome == "skipped":
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


class Corral:
    """Runs corral's command line as this user."""

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", MAIN, *arguments]

    def __call__(
        self, *arguments: str, input: bytes = b"", timeout: float = 60, **options
    ) -> subprocess.CompletedProcess:
        """Run `corral ARGUMENTS` to completion, and capture the output."""
        return subprocess.run(
            self.argv(*arguments),
            input=input,
            capture_output=True,
            check=False,
            timeout=timeout,
            **options,
        )

    def run(
        self, *command: str, flags: tuple[str, ...] = (), **options
    ) -> subprocess.CompletedProcess:
        """Run `corral run FLAGS -- COMMAND`."""
        return self("run", *flags, "--", *command, **options)

    def inside(self, code: str, *arguments: str, flags: tuple[str, ...] = (), **options) -> object:
        """Run Python `code` in the sandbox and return the `answer` that it sets. Raise an error if
        the code could not run.
        """
        return answer(self.run(*script(code, *arguments), flags=flags, **options))

    def outside(self, code: str, *arguments: str, **options) -> object:
        """Run the same code as the same user, but without the sandbox, as a sanity check."""
        options = {"stdin": subprocess.DEVNULL, "timeout": 60, **options}
        argv = script(code, *arguments)
        return answer(subprocess.run(argv, capture_output=True, check=False, **options))


def script(code: str, *arguments: str) -> list[str]:
    whole = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
    return [PYTHON, "-c", whole, *arguments]


def answer(done: subprocess.CompletedProcess) -> object:
    assert done.returncode == 0, (done.returncode, done.stderr.decode(), done.stdout.decode())
    return json.loads(done.stdout.decode().splitlines()[-1])


def results_of_this_process() -> Results:
    """Return step results in which this process is the target, so that a test can call a step's `verify`."""
    process = win32_process.Process.__new__(win32_process.Process)
    process.handle = types.SimpleNamespace(value=win32_process.GetCurrentProcess())
    results = Results()
    results.add(process)
    return results


@pytest.fixture(scope="session", autouse=True)
def copied_python() -> None:
    """Copy the targets' Python before the first test, because the copy takes minutes."""
    if sys.platform == "win32" and not wine():
        Corral().run(PYTHON, "-c", "pass", timeout=600)


if sys.platform == "win32":

    @pytest.fixture
    def tmp_path():
        """Make a directory with the default access list. With pytest's mode 0o700, only
        administrators could open a directory of an elevated process, and a target is not one of
        them.
        """
        top = pathlib.Path(tempfile.gettempdir()).resolve()
        path = top / f"corral-tests-{os.urandom(6).hex()}"
        path.mkdir()
        yield path
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def corral() -> Corral:
    return Corral()
