"""Add the example mechanism of docs/adding-a-mechanism.md to a copy of corral, with the code on
that page, and run the copy.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import corral

SOURCE = pathlib.Path(corral.__file__).parent
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "adding-a-mechanism.md"
ENTRY = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.__main__ import main; main()"
IMPORT = "from corral.platforms.linux.mechanisms import mdwe"
ACT = "import mmap; mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)"


def insert(path: pathlib.Path, before: str, text: str) -> None:
    parts = path.read_text("utf-8").split(before, 1)
    assert len(parts) == 2, f"{path.name} has no {before!r}"
    path.write_text(f"{parts[0]}{text}{before}{parts[1]}", "utf-8")


@pytest.fixture
def extended(tmp_path):
    """Return a function that runs a copy of corral to which the guide's code has been added."""
    copy = tmp_path / "lib" / "corral"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    constants, step, probe, option, order = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    linux = copy / "platforms" / "linux"
    insert(copy / "abi" / "linux.py", "\nCLOSE_RANGE_CLOEXEC", constants)
    (linux / "mechanisms" / "mdwe.py").write_text(step, "utf-8")
    (linux / "probes" / "mdwe.py").write_text(probe, "utf-8")
    insert(linux / "probes" / "host.py", "    namespaces,\n", "    mdwe,\n")
    insert(
        linux / "probes" / "host.py",
        "    processes.adopt_orphan",
        "    mdwe.deny_executable_memory,\n",
    )
    unchanged = '        "syscalls": (_verified("seccomp", "seccomp"),),\n'
    insert(linux / "options.py", unchanged, option)
    path = linux / "options.py"
    path.write_text(path.read_text("utf-8").replace(unchanged, ""), "utf-8")
    for name in ("tier_namespaces.py", "tier_landlock.py"):
        insert(linux / name, "\nTYPE_CHECKING = False", f"{IMPORT}\n")
        insert(linux / name, "def compose(", f"{order}\n\n")
    insert(linux / "tier_namespaces.py", "        _seccomp(policy, program", "*_mdwe(mechanisms),")
    insert(
        linux / "tier_landlock.py",
        "    steps.append(\n        seccomp.Seccomp",
        "    steps += _mdwe(mechanisms)\n",
    )
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-c", ENTRY, str(copy.parent), *words]
        return subprocess.run(
            argv, env=environment, cwd="/", capture_output=True, text=True, check=False
        )

    return run


def test_the_mechanism_of_the_guide_works(extended):
    shown = extended("doctor", "-v").stdout
    if "Executable memory: NOT available" in shown:
        pytest.skip("needs a kernel with PR_SET_MDWE (Linux 6.3)")
    assert "Executable memory: denied\n      memory cannot be writable and executable (" in shown
    assert "`corral run` works here" in shown
    plan = extended("explain", "-v", "--", "/usr/bin/python3", "-V").stdout
    assert "seccomp + mdwe" in plan
    assert "target: mdwe: no memory is writable and executable" in plan
    done = extended("run", "--", "/usr/bin/python3", "-c", ACT)
    assert (done.returncode, "PermissionError" in done.stderr) == (1, True), done.stderr
    argv = ["/usr/bin/python3", "-c", ACT]
    assert subprocess.run(argv, check=False).returncode == 0  # sanity check
