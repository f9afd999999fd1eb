"""Landlock and cgroup v2 in one kernel, as most users' machines have them; older and newer ones side by side."""

from __future__ import annotations

import json
import os

import pytest

MIB = 1 << 20
LIMIT = 48 * MIB
# As the kernels of these tests are known to have it; corral itself never reads a version.
ABI = {"6.1": 2, "6.12": 6}


@pytest.fixture(scope="module")
def findings(request, module_person):
    found = json.loads(module_person.corral("doctor", "--json").stdout)["findings"]
    return {finding["capability"]: finding for finding in found}


@pytest.fixture(scope="module")
def ended(module_person, tmp_path_factory):
    """One run that stays within its limits and tries a file of the host's, and one that does not stay within."""
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


def test_doctor_proves_landlock_as_this_kernel_has_it(findings):
    version = ".".join(os.uname().release.split(".")[:2])
    assert findings["landlock"]["status"] == "proven"
    assert f"ABI {ABI[version]}" in findings["landlock"]["evidence"]


def test_doctor_proves_namespaces_and_cgroups_beside_it(findings):
    names = (
        "user_namespaces",
        "mount_namespace",
        "seccomp",
        "cgroup_memory",
        "cgroup_pids",
        "cgroup_cpu",
    )
    assert {name: findings[name]["status"] for name in names} == dict.fromkeys(names, "proven")


def test_walls_by_landlock_and_limits_by_cgroup_in_one_run(ended):
    done, report = ended["within"]
    assert (done.returncode, done.stdout) == (0, b"False True\n"), done.stderr
    held = {control["control"]: control["mechanism"] for control in report["controls"]}
    assert "landlock" in held["filesystem"]
    assert "cgroup" in held["memory"]
    assert "cgroup" in held["pids"]


def test_memory_beyond_the_limit_is_the_end(ended):
    done, report = ended["beyond"]
    assert (report["outcome"]["kind"], done.returncode) == ("memory", 137), done.stderr
