"""Run type checkers on code that uses the public API: policies, streams, and the README's example."""

import pathlib
import re
import subprocess
import sys

import corral
import policy_types

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOOD = """
import corral
from corral import Denial, Manifest, Outcome, PolicyDict, Report

policy: PolicyDict = {"limits": {"memory": "512M", "pids": 64}, "environment": {"pass": ["LANG"]}}

with corral.launch(["x"], policy, stdin=corral.PIPE, stdout=corral.PIPE) as sandbox:
    sandbox.stdin.write(b"x")
    line: bytes = sandbox.stdout.readline()
with corral.launch(["x"], stdin=corral.PIPE) as sandbox2:
    sandbox2.stdin.write(b"x")
with corral.launch(["x"], stderr=corral.PIPE, stdout=corral.PIPE, stdin=corral.PIPE) as sandbox3:
    sandbox3.stderr.read()


def show(outcome: Outcome, denial: Denial, manifest: Manifest, report: Report) -> str:
    return outcome.kind + denial.allow + manifest.origin + str(report.usage.memory)
"""
BAD = (
    '{"limts": {"memory": "1G"}}',
    '{"network": {"alow": []}}',
    '{"limits": {"pids": "many"}}',
    '{"degrade": {"allow": ["everything"]}}',
)


def check(folder: pathlib.Path, text: str) -> tuple[int, str]:
    file = folder / "client.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), str(file)],
        cwd=folder, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_type_of_a_policy_matches_the_schema():
    assert policy_types.FILE.read_text("utf-8") == policy_types.render()


def test_the_readme_example_passes_strict_mypy(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert check(tmp_path, example) == (0, "Success: no issues found in 1 source file\n")


def test_requested_streams_have_no_optional_type(tmp_path):
    assert check(tmp_path, GOOD) == (0, "Success: no issues found in 1 source file\n")


def test_type_checkers_find_mistakes_in_policies_and_streams(tmp_path):
    """Check that the checker reports each mistake on its line. A checker that finds nothing would
    pass the tests above, but not this one.
    """
    lines = ["import corral"]
    lines += [f"corral.run(['x'], {policy})" for policy in BAD]
    lines += [
        "corral.launch(['x']).stdin.write(b'x')",
        "corral.launch(['x'], stdin=-3).stdin.write(b'x')",
    ]
    code, out = check(tmp_path, "\n".join(lines) + "\n")
    assert code == 1
    found = {int(number) for number in re.findall(r"client\.py:(\d+): error", out)}
    assert found == set(range(2, len(lines) + 1)), out


def test_every_public_name_exists():
    assert all(hasattr(corral, name) for name in corral.__all__)
    assert {"Denial", "Outcome", "Manifest", "PolicyDict"} <= set(corral.__all__)
