"""Choose some attacks of `tests/inside` and report each result.

This pytest plugin is for hosts on which all attacks would take hours.

A test is skipped if corral refuses to run on the host in the test's tier. The skip's reason quotes corral's refusal.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
from typing import Any

MARK = "@@attack@@"
MODULES = ("exec", "filesystem", "ipc", "kernel", "network", "processes")
WIDTH = "CORRAL_ATTACKS"
FIRST, EVERY = "the first test function", "every test function"


def rule(width: str) -> str:
    return (
        f"Only some tests were run: {width} of each of the modules {', '.join(MODULES)} in `tests/inside`. In each tier its "
        "first case that this user can run was chosen."
    )


TIERS = {"walled": "", "bare": " without namespaces"}


def parameters(item: Any) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    first: dict[pathlib.Path, str] = {}
    cases: dict[tuple[pathlib.Path, str, str], Any] = {}
    for item in items:
        if parameters(item).get("user") == "root" and os.geteuid():
            continue
        name = item.originalname
        if first.setdefault(item.path, name) == name or os.environ.get(WIDTH) == EVERY:
            cases.setdefault((item.path, name, parameters(item).get("tier", "walled")), item)
    chosen = list(cases.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_runtest_setup(item: Any) -> None:
    import pytest

    if said := refusal(parameters(item).get("tier", "walled")):
        pytest.skip(said)


@functools.cache
def refusal(tier: str) -> str:
    """Return corral's refusal to run in this tier, or an empty text if corral runs."""
    from users import SOURCE, User

    user = User(
        "root" if os.geteuid() == 0 else "ordinary", os.geteuid(), pathlib.Path.home(), SOURCE, tier
    )
    done = user.run("/bin/true")
    if not done.returncode:
        return ""
    error = done.stderr.decode().partition("\nhint:")[0].strip().removeprefix("corral: ")
    return f"corral refuses to run{TIERS.get(tier, f' ({tier})')}: {error}"


def pytest_runtest_logreport(report: Any) -> None:
    """Write one line for each test at once, because the machine may crash before the last test."""
    if report.when == "call" or report.outcome != "passed":
        text = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
        line = {"name": report.nodeid, "outcome": report.outcome, "text": text}
        sys.__stdout__.write(f"\n{MARK}{json.dumps(line)}\n")
        sys.__stdout__.flush()
