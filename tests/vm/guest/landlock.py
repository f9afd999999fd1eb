"""Test Landlock and cgroup v2 together, on an older and a newer kernel."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

MIB = 1 << 20
LIMIT = 48 * MIB
# The Landlock ABI of each tested kernel. Only the tests infer it from the kernel's version; corral asks the kernel.
ABI = {"6.1": 2, "6.12": 6}


@pytest.fixture(scope="module")
def findings(request, module_person):
    found = json.loads(module_person.corral("doctor", "--json").stdout)["findings"]
    return {finding["capability"]: finding for finding in found}


@pytest.fixture(scope="module")
def ended(module_person, tmp_path_factory):
    """Make two runs, and return their results. The run "within" stays within its limits and tries
    to read a file on the host. The run "beyond" exceeds a limit.
    """
    place = tmp_path_factory.mktemp("host")
    (place / "secret").write_text("secret")
    runs = {}
    for name, code in (
        (
            "within",
            f"import os; print(os.path.exists({str(place / 'secret')!r}), os.path.exists('/usr'))",
        ),
        ("beyond", f"bytearray({3 * LIMIT})"),
    ):
        flags = ("--max-memory", str(LIMIT), "--report", str(place / name))
        done = module_person.run("python3", "-ISc", code, flags=flags, timeout=200)
        runs[name] = (done, json.loads((place / name).read_text()))
    return runs


def test_doctor_proves_the_landlock_rights_of_this_kernel(findings):
    version = ".".join(os.uname().release.split(".")[:2])
    assert findings["landlock"]["status"] == "proven"
    assert f"ABI {ABI[version]}" in findings["landlock"]["evidence"]


def test_doctor_proves_namespaces_and_cgroups(findings):
    names = (
        "user_namespaces",
        "mount_namespace",
        "seccomp",
        "cgroup_memory",
        "cgroup_pids",
        "cgroup_cpu",
    )
    assert {name: findings[name]["status"] for name in names} == dict.fromkeys(names, "proven")


def test_one_run_has_landlock_walls_and_cgroup_limits(ended):
    done, report = ended["within"]
    assert (done.returncode, done.stdout) == (0, b"False True\n"), done.stderr
    held = {control["control"]: control["mechanism"] for control in report["controls"]}
    assert "landlock" in held["filesystem"]
    assert "cgroup" in held["memory"]
    assert "cgroup" in held["pids"]


def test_memory_beyond_the_cgroup_limit_ends_the_run(ended):
    done, report = ended["beyond"]
    assert (report["outcome"]["kind"], done.returncode) == ("memory", 137), done.stderr


def test_an_inherited_file_cannot_be_truncated(module_person, tmp_path):
    """Let the target truncate the file on its stdin. Landlock controls truncation only since Linux
    6.2, so on older kernels corral replaces the file with a pipe.
    """
    log = tmp_path / "log"
    code = "import os\ntry: os.truncate('/proc/self/fd/0', 0); print('done')\nexcept OSError: print('denied')"
    log.write_text("kept")
    with open(log, "rb") as stream:
        argv = module_person.corral_argv("run", "--", "python3", "-ISc", code)
        held = module_person.popen(argv, stdin=stream, stdout=subprocess.PIPE)
        said = held.communicate(timeout=200)[0]
    assert (said, log.read_text()) == (b"denied\n", "kept")
    with open(log, "rb") as stream:  # Sanity check: without corral the file is truncated
        free = subprocess.run(
            ["python3", "-ISc", code], stdin=stream, capture_output=True, check=True
        )
    assert (free.stdout, log.read_text()) == (b"done\n", "")
