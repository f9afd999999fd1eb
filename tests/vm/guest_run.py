"""Report each test in `guest/` as a test on the host. One boot runs all tests in a file.

A guest test that did not report a result counts as failed, because the machine may have crashed.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING

import pytest

import rigs
from vm import rig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    class Machine(Protocol):
        """The interface of `uml`, `systemd` and `qemu.Machine`."""

        NAME: str

        def require(self) -> object: ...

        def boot(
            self,
            command: Sequence[str],
            *,
            as_user: int | None,
            env: Mapping[str, str] | None,
            sysctls: Mapping[str, str] | None,
            timeout: float,
        ) -> rig.Result: ...

    Told = tuple[dict[str, list[dict[str, str]]], str]
    """The outcomes of each test in a guest file, and the whole output of the machine."""

GUEST = rig.HERE / "guest"
MARK = "@@guest@@"
TIMEOUT = 400
USERS = {"root": None, "ordinary": rig.ORDINARY}


def tests_in(name: str) -> list[str]:
    """Return the names of the test functions in a file, without their parameters."""
    tree = ast.parse((GUEST / f"{name}.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


SYSCTLS = {"no_user_namespaces": {"user.max_user_namespaces": "0"}}
OPTIONS = ("-s", "-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null")


def told(machine: Machine, name: str, user: str) -> Told:
    machine.require()
    uid = USERS[user]
    env = {
        "PYTHONPATH": "/srv/pytest",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "RIG_USER": str(uid or 0),
    }
    argv = [rig.SYSTEM_PYTHON, "-m", "pytest", *OPTIONS, "--rootdir=/srv/tests"]
    result = machine.boot(
        [*argv, f"/srv/tests/vm/guest/{name}.py"],
        as_user=uid,
        env=env,
        sysctls=SYSCTLS.get(name),
        timeout=TIMEOUT,
    )
    found: dict[str, list[dict[str, str]]] = {}
    for line in result.output.splitlines():
        if line.startswith(MARK):
            entry = json.loads(line.removeprefix(MARK))
            found.setdefault(entry["name"].partition("[")[0], []).append(entry)
    return found, result.output


def expect_passed(machine: Machine, name: str, user: str, test: str) -> None:
    key = f"{machine.NAME}-{name}-{user}"
    found, output = rigs.once(key, lambda: told(machine, name, user))
    if test not in found:
        pytest.fail(f"{test} was not run in the machine:\n{output}", pytrace=False)
    texts = {
        outcome: "\n".join(e["text"] for e in found[test] if e["outcome"] == outcome)
        for outcome in {entry["outcome"] for entry in found[test]}
    }
    if "failed" in texts:
        pytest.fail(f"in the machine:\n{texts['failed']}", pytrace=False)
    if "skipped" in texts:
        pytest.skip(f"in the machine: {texts['skipped']}")
    if "xfailed" in texts:
        pytest.xfail(f"in the machine: {texts['xfailed']}")
