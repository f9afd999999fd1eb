"""Try corral on this host as this user, and print the parts of a record for `hosts.py`.

This program prints one marked line of JSON for each part as soon as it is known, and the output of the attacks. It
uses only the standard library, because the host may have nothing else. The attacks also need pytest in `PYTHONPATH`.

    python3 tests/host_trial.py [PART...]      the default parts, or some of: system doctor runs demo attacks every_attack
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import attack_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TESTS = pathlib.Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
MARK = "@@trial@@"
OPTIONS = ("-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-c", "/dev/null")
COMMANDS = (("run", "--", "/bin/true"), ("run", "--strict", "--", "/bin/true"))


def corral(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    argv = [sys.executable, "-m", "corral", *arguments]
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def system() -> dict[str, Any]:
    name = os.uname()
    user = "as root" if os.geteuid() == 0 else "as an ordinary user"
    return {
        "architecture": platform.machine(),
        "system": f"{name.sysname} {name.release}",
        "user": user,
    }


def doctor() -> dict[str, Any]:
    """Return doctor's verdict, the capabilities that it has proven, and its findings about the others."""
    done = corral("doctor", "--json")
    told = json.loads(done.stdout)
    absent = {
        found["capability"]: {key: found[key] for key in ("status", "evidence", "hint")}
        for found in told["findings"]
        if found["status"] != "proven"
    }
    held = [found["capability"] for found in told["findings"] if found["status"] == "proven"]
    return {"verdict": told["verdict"], "held": held, "absent": absent}


def runs() -> dict[str, Any]:
    """Return the exit code and the messages of each run in `COMMANDS`."""
    ended = [(command, corral(*command)) for command in COMMANDS]
    return {
        "runs": [
            {
                "command": " ".join(("corral", *command)),
                "code": done.returncode,
                "said": done.stderr.strip(),
            }
            for command, done in ended
        ]
    }


def demo() -> dict[str, Any]:
    told = json.loads(corral("demo", "--json").stdout)
    acts = {act["act"]: act["verdict"] for act in told["acts"]}
    return {"demo": {"summary": told["summary"], "acts": acts, "not_tried": told["not_tried"]}}


def attacks(width: str = attack_choice.FIRST) -> dict[str, Any]:
    """Run the attacks that `attack_choice.py` chooses, and return their results."""
    argv = [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={TESTS}", "-p", "attack_choice"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        attack_choice.WIDTH: width,
    }
    argv += [str(TESTS / f"inside/test_{name}.py") for name in attack_choice.MODULES]
    process = subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout
    lines = []
    with process:
        for line in process.stdout:
            lines.append(line)
            sys.stdout.write(line)
            sys.stdout.flush()
    return {"attacks": {"rule": attack_choice.rule(width), **outcome(lines)}}


def every_attack() -> dict[str, Any]:
    """Run many more attacks in place of the chosen ones. They take an hour on an emulated machine."""
    return attacks(attack_choice.EVERY)


def outcome(lines: list[str]) -> dict[str, Any]:
    """Return the results that `attack_choice` printed, and pytest's last line without its time."""
    told = [
        json.loads(line.partition(attack_choice.MARK)[2])
        for line in lines
        if attack_choice.MARK in line
    ]
    skipped: dict[str, int] = {}
    for entry in told:
        if entry["outcome"] == "skipped":
            skipped[entry["text"]] = skipped.get(entry["text"], 0) + 1
    closing = next((line for line in reversed(lines) if line.strip()), "nothing was run")
    return {
        "passed": sum(entry["outcome"] == "passed" for entry in told),
        "skipped": skipped,
        "failed": [entry["name"] for entry in told if entry["outcome"] == "failed"],
        "closing": re.sub(r" in [\d.]+s.*", "", closing.strip()),
    }


DEFAULT = (system, doctor, runs, demo, attacks)
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    part.__name__: part for part in (*DEFAULT, every_attack)
}


def parts_in(output: str) -> dict[str, Any]:
    """Return the record that the marked lines of a trial make together."""
    seen: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            seen.update(json.loads(line.removeprefix(MARK)))
    return seen


def main(names: Iterable[str]) -> None:
    for name in names:
        sys.stdout.write(f"\n{MARK}{json.dumps(PARTS[name]())}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:] or [part.__name__ for part in DEFAULT])
