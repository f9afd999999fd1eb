"""Try corral on this host as this user, and print the parts of a record for `hosts.py`.

The program prints each part as soon as it is known, as one marked line of JSON, and passes on the
output of the attacks. It uses only the standard library, because the host may have nothing else.
Only the attacks need pytest in `PYTHONPATH`.

    python3 tests/host_trial.py [PART...]      the default parts, or some of: system doctor runs demo attacks
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
OPTIONS = (
    "--continue-on-collection-errors",
    "-q",
    "--color=no",
    "--tb=short",
    "-p",
    "no:cacheprovider",
    "-c",
    "/dev/null",
)
NOT_STARTED = "not started"
COMMANDS = (("run", "--", "/bin/true"), ("run", "--strict", "--", "/bin/true"))


Told = dict[str, Any]
"""The last report of each attack, by the attack's name, or None if it did not start."""


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
    """Return doctor's verdict, the proven capabilities, and the findings about all others."""
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


def attacks() -> dict[str, Any]:
    """Run the attacks of `FIRST`, the smallest choice, and return their results."""
    told = run_attacks(attack_choice.FIRST, [f"test_{name}.py" for name in attack_choice.MODULES])
    return {"attacks": summary(attack_choice.FIRST, {system()["user"]: told})}


def every_attack() -> dict[str, Any]:
    """Run the attacks that the environment variable CORRAL_ATTACKS chooses, in all files. The
    caller reads their results from the output.
    """
    run_attacks(os.environ[attack_choice.WIDTH], [""])
    return {}


def run_attacks(width: str, files: list[str]) -> Told:
    """Run the attacks in some files of `tests/inside`, print pytest's output, and return the
    results.
    """
    argv = [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={TESTS}", "-p", "attack_choice"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        attack_choice.WIDTH: width,
    }
    argv += [str(TESTS / "inside" / name) for name in files]
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
    return attacks_in("".join(lines))


def attacks_in(output: str) -> Told:
    """Return the last outcome of each attack in the output, and None for a chosen attack that did not start."""
    told: Told = {}
    for line in output.splitlines():
        _, mark, text = line.partition(attack_choice.MARK)
        try:
            entry = json.loads(text) if mark else {}
        except ValueError:
            continue  # the machine was stopped while it printed this line
        for name in entry.get("chosen", ()):
            told.setdefault(name, None)
        if "name" in entry:
            told[entry["name"]] = entry
    return told


def summary(width: str, users: dict[str, Told]) -> dict[str, Any]:
    """Return the results of all users: totals, the reasons for skipped tests, and one row for each
    file and user.

    The user of a row is the user who runs corral. This may be the ordinary user even in root's
    results, because root's test process also runs tests as the ordinary user.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    skipped: dict[str, int] = {}
    failed = []
    for user, told in users.items():
        for name, entry in told.items():
            file = name.partition("::")[0].rpartition("/")[2]
            case = re.search(r"[\[-](root|ordinary)[\]-]", name)
            runner = case[1] if case else user
            row = rows.setdefault((file, runner), {"file": file, "user": runner})
            outcome = entry["outcome"] if entry else NOT_STARTED
            row[outcome] = row.get(outcome, 0) + 1
            if outcome == "skipped":
                skipped[entry["text"]] = skipped.get(entry["text"], 0) + 1
            if outcome in ("failed", attack_choice.STARTED):
                failed.append(name)
    totals = {
        outcome: sum(row.get(outcome, 0) for row in rows.values())
        for outcome in ("passed", "skipped", "failed", attack_choice.STARTED, NOT_STARTED)
    }
    return {
        "rule": attack_choice.RULES[width],
        "passed": totals["passed"],
        "skipped": skipped,
        "failed": failed,
        "closing": ", ".join(f"{count} {word}" for word, count in totals.items() if count)
        or "nothing was run",
        "rows": [rows[key] for key in sorted(rows)],
    }


DEFAULT = (system, doctor, runs, demo, attacks)
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    part.__name__: part for part in (*DEFAULT, every_attack)
}


def parts_in(output: str) -> dict[str, Any]:
    """Merge the marked lines in a trial's output into a record."""
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
