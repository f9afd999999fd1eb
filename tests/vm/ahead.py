"""Machines booted ahead of their tests, and Wine, by a process beside the whole suite's, at the lowest priority.

The suite keeps one processor busy, a machine another: so a run of everything takes little longer than the rest of it.
Tests ask here first, and start by themselves what nobody started ahead.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from vm import guest_run, qemu, systemd, uml

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINES = {"uml": uml, "systemd": systemd, **{suite: qemu.Machine(suite) for suite in qemu.SUITES}}
NAMES = {machine: name for name, machine in MACHINES.items()}
BOTH, ORDINARY = ("root", "ordinary"), ("ordinary",)
BOOTS = (
    ("uml", "limits", BOTH),
    ("uml", "no_user_namespaces", BOTH),
    ("uml", "undelegated", ("root",)),
    *(
        (suite, name, ORDINARY)
        for suite in qemu.SUITES
        for name in ("landlock", "no_user_namespaces")
    ),
    ("systemd", "login", ORDINARY),
)
WHOLE_SUITE = 2000
"""As many tests are not a selection: it pays to begin early."""
PACE = 0.2
WINE = "wine"
_running: list[tuple[subprocess.Popen, pathlib.Path]] = []


def start() -> None:
    place = pathlib.Path(tempfile.mkdtemp(prefix="ahead-"))
    # Like its machines, it dies with whoever started it.
    alive = ("setpriv", "--pdeathsig", "KILL", "nice", "-n", "19")
    argv = [*alive, sys.executable, "-m", "vm.ahead", str(place)]
    process = subprocess.Popen(
        argv, cwd=pathlib.Path(__file__).parent.parent, stdin=subprocess.DEVNULL
    )
    _running.append((process, place))


def stop() -> None:
    while _running:
        process, place = _running.pop()
        process.kill()  # its machines die with it
        process.wait()
        subprocess.run(["rm", "-rf", place], check=False)


def key(machine: guest_run.Machine, name: str, user: str) -> str:
    return f"{NAMES.get(machine)}-{name}-{user}"


KEYS = {key(MACHINES[where], name, user) for where, name, users in BOOTS for user in users} | {WINE}


def answer(wanted: str) -> guest_run.Told | None:
    """What a run ahead came to; None if there was none, or it failed: then it is tried again."""
    if not _running or wanted not in KEYS:
        return None
    process, place = _running[-1]
    file = place / wanted
    while not file.exists() and process.poll() is None:
        time.sleep(PACE)
    found = json.loads(file.read_text()) if file.exists() else None
    return (found[0], found[1]) if found else None


def main(place: str) -> None:
    from windows import wine_run

    for where, name, users in BOOTS:
        machine = MACHINES[where]
        for user, future in guest_run.booted(machine, name, users).items():
            note(place, key(machine, name, user), future.result)
    note(place, WINE, lambda: wine_run.told(wine_run.PLACES))


def note(place: str, name: str, run: Callable[[], guest_run.Told]) -> None:
    try:
        text = json.dumps(run())
    except BaseException:  # noqa: BLE001 - a skip is one too: its own test will say why
        text = "null"
    made = pathlib.Path(place, f".{name}")
    made.write_text(text)
    made.rename(made.with_name(name))


if __name__ == "__main__":
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    main(sys.argv[1])
