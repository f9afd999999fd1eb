"""Choose attacks from `tests/inside` for a host on which all of them would take hours, and report
each result.

This pytest plugin reports a test when it starts and again when it ends, because the machine may
crash or be stopped at any time. `CORRAL_ATTACKS_DONE` may name tests that already have a result, so
that they are not run again.

If corral refuses to run in a test's tier (with or without namespaces) on this host, the test is
skipped, and the reason for the skip quotes the refusal.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

MARK = "@@attack@@"
MODULES = ("exec", "filesystem", "ipc", "kernel", "network", "processes")
WIDTH, DONE = "CORRAL_ATTACKS", "CORRAL_ATTACKS_DONE"
FIRST, ONE, EVERY = "first", "one", "every"
"""Which tests are chosen: the first test function of each module in MODULES (FIRST), one case of
each test function in each tier (ONE), or every case (EVERY).
"""
STARTED = "did not end"
"""The outcome of a test until its result is known."""

RULES = {
    FIRST: f"Only some tests were run. From each of the modules {', '.join(MODULES)} in `tests/inside`, the first test function was chosen, "
    "and of this function the first case in each tier that this user can run.",
    ONE: "For each user, the first case of each test function in `tests/inside` was chosen in each tier. "
    "Attacks on the network allowlist need namespaces that only root can make, so root's process ran them for both users.",
    EVERY: "Every case of every test function in `tests/inside` was chosen.",
}
TIERS = {"walled": "", "bare": " without namespaces"}


def parameters(item: Any) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def belongs_to_this_user(item: Any) -> bool:
    """Return whether this process's user runs the test. Root also runs the ordinary user's cases of
    tests that only root can run.
    """
    if only_root(item):
        return not os.geteuid()
    return (parameters(item).get("user") == "root") == (os.geteuid() == 0)


def only_root(item: Any) -> bool:
    """Return whether only root can run the test, because its `skipif` mark says so, or because it
    uses the fixture `world`.
    """
    marked = [mark.kwargs.get("reason", "") for mark in item.iter_markers("skipif")]
    return "world" in item.fixturenames or any("only root" in reason for reason in marked)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Choose the tests that the variable CORRAL_ATTACKS asks for, and remove all others. Let the
    files take turns, so that even a run that is stopped early has tried something from every file.
    """
    width = os.environ.get(WIDTH, FIRST)
    turns: dict[pathlib.Path, dict[str, int]] = {}
    cases: dict[tuple[object, ...], Any] = {}
    for item in filter(belongs_to_this_user, items):
        names = turns.setdefault(item.path, {})
        turn = names.setdefault(item.originalname, len(names))
        kind = (parameters(item).get("user", ""), parameters(item).get("tier", "walled"))
        case = item.name if width == EVERY else kind
        if width != FIRST or turn == 0:
            cases.setdefault((turn, item.path, item.originalname, case), item)
    chosen = [cases[key] for key in sorted(cases, key=lambda key: key[0])]
    tell({"chosen": [item.nodeid for item in chosen]})
    done = os.environ.get(DONE, "").split("\n")
    chosen = [item for item in chosen if item.nodeid not in done]
    kept = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = chosen


def pytest_collectreport(report: Any) -> None:
    """Report a file that pytest cannot import on this host as a failed test."""
    if report.failed:
        tell({"name": report.nodeid, "outcome": "failed", "text": report.longreprtext[-2000:]})


def pytest_runtest_logstart(nodeid: str) -> None:
    tell({"name": nodeid, "outcome": STARTED, "text": ""})


def pytest_runtest_setup(item: Any) -> None:
    import pytest

    if said := refusal(user_of(item), parameters(item).get("tier", "walled")):
        pytest.skip(said)


def user_of(item: Any) -> str:
    return str(parameters(item).get("user", "ordinary" if os.geteuid() else "root"))


@functools.cache
def refusal(name: str, tier: str) -> str:
    """Return corral's error if it refuses to run as this user in this tier, or "" if it runs."""
    from users import SOURCE, make_user

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (package := pathlib.Path(folder, "src")).symlink_to(SOURCE)
        done = make_user(name, package, tier).run("/bin/true")
    if not done.returncode:
        return ""
    error = done.stderr.decode().partition("\nhint:")[0].strip().removeprefix("corral: ")
    return f"corral refuses to run{TIERS.get(tier, f' ({tier})')}: {error}"


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
        if report.failed:
            text = report.longreprtext[-2000:]
        tell({"name": report.nodeid, "outcome": report.outcome, "text": text})


def tell(line: dict[str, Any]) -> None:
    sys.__stdout__.write(f"\n{MARK}{json.dumps(line)}\n")
    sys.__stdout__.flush()
