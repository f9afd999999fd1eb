"""`corral doctor`: nothing that was only accepted is reported as there."""

from __future__ import annotations

import json
import os

import pytest

from corral.abi import win32
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import host as probes
from corral.platforms.windows.probes import trial


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, str]]:
    from windows.conftest import Corral

    done = Corral()("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["os"], told["arch"]) == ("windows", "amd64")
    return {item["capability"]: item for item in told["findings"]}


def keeps(step: Job) -> bool:
    try:
        job.create(step).release()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("capability", "step"),
    [
        ("job_memory", Job(memory=96 << 20)),
        ("job_processes", Job(processes=1)),
        ("job_cpu_rate", Job(cpu=200)),
        ("job_ui", Job(ui=job.UI_LIMITS)),
        ("job_read_back", Job()),
    ],
)
def test_a_limit_that_is_not_kept_is_absent(findings, capability, step):
    """Under Wine none is kept; on Windows each must have been seen to hold."""
    found = findings[capability]
    assert (found["status"] == "proven") == keeps(step), found
    assert found["evidence"]


def test_the_tree_dies_with_its_job_everywhere(findings):
    assert findings["job_kill_on_close"]["status"] == "proven", findings["job_kill_on_close"]


@pytest.mark.parametrize("probe", [probes._kill_on_close, probes._accounting])
def test_a_trial_that_says_something_else_is_a_finding_too(monkeypatch, probe):
    """As where no interpreter starts: what cannot be understood was not seen."""
    other = os.path.join(os.environ["SYSTEMROOT"], "System32", "hostname.exe")
    before = win32.open_handles()
    plain = Job(read_back=keeps(Job()))
    assert "did not say" not in probes._try("it", lambda: probe(plain)).evidence  # the control
    monkeypatch.setattr(trial, "own_interpreter", lambda: other)
    found = probes._try("it", lambda: probe(plain))
    assert (found.status, "did not say" in found.evidence) == ("absent", True)
    assert win32.open_handles() == before


def test_what_was_not_kept_is_named_with_its_numbers(findings):
    if keeps(Job(memory=96 << 20)):
        pytest.skip("this Windows keeps its limits")
    assert findings["job_memory"]["evidence"] == (
        "JobMemoryLimit was set to 0x6000000 and reads back as 0x0"
    )


def test_the_lines(corral, findings):
    done = corral("doctor", "-v", env=None)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "[✓] OS: windows (amd64)"
    assert "[✓] Job Objects: supported" in lines
    proven = {name for name, item in findings.items() if item["status"] == "proven"}
    held = {"job_memory", "job_processes", "job_cpu_rate"} <= proven
    assert ("[✓] Resource limits: CPU, memory, pids supported" in lines) == held
    walled = "app_container" in proven
    assert ("[!] Network isolation: NOT available (requires WFP driver)" in lines) != walled
    assert ("[!] Filesystem sandbox: limited (NTFS permissions only)" in lines) != walled
    assert lines[-1] == "[⚠] Recommendation: Use Windows Sandbox or WSL2 for strict security"
