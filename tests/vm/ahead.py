"""Machines booted ahead of their tests, by a process beside the whole suite's, at the lowest priority.

The suite keeps one processor busy, a machine another: so a run of everything takes little longer than the rest of it.
`guest_run` asks here first, and boots by itself what nobody booted ahead.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from vm import guest_run, qemu, systemd, uml

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


def answer(machine: guest_run.Machine, name: str, user: str) -> guest_run.Told | None:
    """What a boot ahead came to; None if there was none, or it failed: then it is tried again."""
    if not _running or not any(
        (where, what) == (NAMES.get(machine), name) and user in users
        for where, what, users in BOOTS
    ):
        return None
    process, place = _running[-1]
    file = place / f"{NAMES[machine]}-{name}-{user}"
    while not file.exists() and process.poll() is None:
        time.sleep(PACE)
    found = json.loads(file.read_text()) if file.exists() else None
    return (found[0], found[1]) if found else None


def main(place: str) -> None:
    for where, name, users in BOOTS:
        waiting = guest_run.booted(MACHINES[where], name, users)
        for user, future in waiting.items():
            try:
                text = json.dumps(future.result())
            except BaseException:  # noqa: BLE001 - a skip is one too: its own test will say why
                text = "null"
            made = pathlib.Path(place, f".{where}-{name}-{user}")
            made.write_text(text)
            made.rename(made.with_name(made.name.removeprefix(".")))


if __name__ == "__main__":
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    main(sys.argv[1])
