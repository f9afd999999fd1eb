"""The tests of `guest/` as tests of the host: each of theirs is one here, and one boot runs a file of them.

A guest test that did not report is a failure: the machine may have come down.
"""

from __future__ import annotations

import ast
import functools
import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from vm import rig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    class Machine(Protocol):
        """`uml`, or a `qemu.Machine`."""

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
    """What each test of a guest file came to, and all that was printed."""

GUEST = rig.HERE / "guest"
MARK = "@@guest@@"
TIMEOUT = 400
USERS = {"root": None, "ordinary": rig.ORDINARY}


def tests_in(name: str) -> list[str]:
    """Their functions; parameters are the guest's own business."""
    tree = ast.parse((GUEST / f"{name}.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


SYSCTLS = {"no_user_namespaces": {"user.max_user_namespaces": "0"}}
OPTIONS = ("-s", "-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null")


@functools.cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=len(USERS))


@functools.cache
def booted(machine: Machine, name: str, users: tuple[str, ...]) -> dict[str, Future[Told]]:
    """Boots for all users at once, since one machine keeps one processor busy."""
    return {user: pool().submit(told, machine, name, user) for user in users}


@functools.cache
def outcome(machine: Machine, name: str, user: str, users: tuple[str, ...]) -> Told:
    from vm import ahead

    found = ahead.answer(ahead.key(machine, name, user))
    return found or booted(machine, name, users)[user].result()


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


def expect_passed(
    machine: Machine, name: str, user: str, test: str, users: tuple[str, ...] = tuple(USERS)
) -> None:
    machine.require()
    found, output = outcome(machine, name, user, users)
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
