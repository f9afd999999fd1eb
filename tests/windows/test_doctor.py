"""Check that `corral doctor` does not report a limit as working if Windows accepts it without
enforcing it.
"""

from __future__ import annotations

import json
import os

import pytest

from corral.abi import win32, win32_process
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import host as probes
from corral.platforms.windows.probes import trial

ARCHITECTURE = os.environ["PROCESSOR_ARCHITECTURE"].lower()


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, str]]:
    from windows.conftest import Corral

    done = Corral()("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["os"], told["arch"]) == ("windows", ARCHITECTURE)
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
        ("job_priority", Job(priority=True)),
        ("job_read_back", Job()),
    ],
)
def test_a_limit_that_windows_does_not_keep_is_reported_as_absent(findings, capability, step):
    """Check that `doctor` reports a limit as absent if the system drops it, as Wine does. If the
    system keeps a limit, accept any status: real Windows may keep a limit that has no effect, such
    as UI limits in a nested job.
    """
    found = findings[capability]
    assert keeps(step) or found["status"] == "absent", found
    assert found["evidence"]


def test_doctor_proves_that_all_processes_end_with_their_job(findings):
    assert findings["job_kill_on_close"]["status"] == "proven", findings["job_kill_on_close"]


@pytest.mark.parametrize("probe", [probes._kill_on_close, probes._accounting])
def test_unexpected_output_of_a_trial_is_an_absent_finding(monkeypatch, probe):
    """Start a program that does not print what the probe expects. The finding must then be absent,
    because this output proves nothing.
    """
    other = os.path.join(os.environ["SYSTEMROOT"], "System32", "hostname.exe")
    before = win32.open_handles()
    plain = Job(read_back=keeps(Job()))
    # Sanity check: python prints what the probe expects.
    assert "no number" not in probes._try("it", lambda: probe(plain)).evidence
    monkeypatch.setattr(trial, "own_interpreter", lambda: other)
    found = probes._try("it", lambda: probe(plain))
    assert (found.status, "no number" in found.evidence) == ("absent", True)
    assert win32.open_handles() == before


@pytest.mark.real_windows(reason="it accepts limits and has no AppContainers")
@pytest.mark.parametrize(
    "capability",
    [
        "job_read_back",
        "job_memory",
        "job_processes",
        "job_cpu_rate",
        "job_accounting",
        "job_priority",
        "child_process_policy",
        "app_container",
        "desktop",
        "relay",
        "mitigations",
        "restricted token",
    ],
)
def test_every_probe_succeeds_on_real_windows(findings, capability):
    assert findings[capability]["status"] == "proven", findings[capability]


@pytest.mark.real_windows(reason="it accepts limits and has no AppContainers")
def test_the_clipboard_is_closed_by_job_or_desktop(findings):
    """Check that UI limits or a private desktop close the clipboard. The test does not require UI limits, because
    Microsoft's documentation contradicts itself about them in a nested job.
    """
    assert "proven" in {findings[name]["status"] for name in ("job_ui", "desktop")}


@pytest.mark.real_windows(reason="it has no AppContainers")
def test_a_target_can_open_nul_exactly_if_doctor_says_so(corral, findings):
    """Compare `doctor` with a target, because not every build of Windows lets a container open NUL."""
    code = "try:\n    open('NUL').close()\n    answer = True\nexcept OSError:\n    answer = False"
    assert corral.outside(code) is True
    # Call nt.open, because the preload changes the builtin `open` so that NUL works.
    inside = corral.inside(
        f"import nt\n{code.replace('open(', 'nt.open(').replace(').close()', ', 0)')}"
    )
    assert inside == (findings["nul"]["status"] == "proven"), findings["nul"]


def test_doctor_reports_the_windows_session_of_its_process(findings):
    session = win32_process.session_of(os.getpid())
    assert (findings["session"]["status"] == "proven") == (session != 0)
    assert session == 0 or findings["session"]["evidence"] == f"session {session}"


def test_a_limit_that_reads_back_differently_is_reported_with_both_values(findings):
    if keeps(Job(memory=96 << 20)):
        pytest.skip("this Windows keeps its limits")
    assert findings["job_memory"]["evidence"] == (
        "JobMemoryLimit was set to 0x6000000, but reads back as 0x0"
    )


def test_doctor_prints_the_expected_lines(corral, findings):
    done = corral("doctor", "-v", env=None)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == f"[✓] OS: windows ({ARCHITECTURE})"
    assert "[✓] Job Objects: supported" in lines
    proven = {name for name, item in findings.items() if item["status"] == "proven"}
    held = {"job_memory", "job_processes", "job_cpu_rate"} <= proven
    assert ("[✓] Resource limits: CPU, memory, pids supported" in lines) == held
    walled = "app_container" in proven
    assert ("[!] Network isolation: NOT available (requires WFP driver)" in lines) != walled
    assert ("[!] Filesystem sandbox: limited (NTFS permissions only)" in lines) != walled
    assert "[⚠] Recommendation: Use Windows Sandbox or WSL2 for strict security" in lines
    assert "Verdict: `corral run` " in lines[-1]
