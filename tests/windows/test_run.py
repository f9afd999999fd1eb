"""Check that `corral run` and other commands name the enforced controls, and refuse if a control is
missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest

import corral as package
from corral.errors import UnenforceableError
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job
from windows.conftest import PYTHON

QUICK = (PYTHON, "-c", "print('ran')")
LETTING_GO = (
    *("filesystem", "network", "subprocess", "syscalls"),
    *("memory", "pids", "fds", "disk"),
)
LOOSE = {"degrade": {"allow": list(LETTING_GO)}}


def keeps(step: Job) -> bool:
    try:
        job.create(step).release()
    except OSError:
        return False
    return True


def policy(path, text: str) -> tuple[str, str]:
    path.write_text(f"version = 1\n{text}")
    return "--policy", str(path)


def test_a_memory_limit_that_windows_does_not_keep_is_refused(corral, tmp_path):
    """Check that corral reads the limit back and refuses the run, because Wine accepts the limit and drops it."""
    if keeps(Job(memory=64 << 20)):
        pytest.skip("this Windows keeps its limits")
    report = tmp_path / "report.json"
    flags = ("--max-memory", "64M", "--report", str(report))
    done = corral.run(*QUICK, flags=flags)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"memory: no job_memory (JobMemoryLimit was set to" in done.stderr
    assert b"reads back as 0x0" in done.stderr
    outcome = json.loads(report.read_text())["outcome"]
    assert (outcome["kind"], outcome["exit_code"]) == ("refused", 125)


def test_best_effort_runs_and_warns(corral):
    if keeps(Job(memory=64 << 20)):
        pytest.skip("this Windows keeps its limits")
    done = corral.run(*QUICK, flags=("--max-memory", "64M", "--best-effort"))
    assert (done.returncode, done.stdout.split()) == (0, [b"ran"])
    assert b"warning: memory is not enforced: no job_memory (JobMemoryLimit was" in done.stderr


@pytest.mark.parametrize(
    ("flags", "control"),
    [
        (("--max-fds", "64"), b"fds"),
        (("--max-disk", "1M"), b"disk"),
        (("--listen", "8080"), b"network"),
    ],
    ids=["fds", "disk", "listen"],
)
def test_a_stated_limit_that_windows_cannot_enforce_is_refused(corral, tmp_path, flags, control):
    loose = [name for name in LETTING_GO if name.encode() != control]
    chosen = policy(tmp_path / "p.toml", f"[degrade]\nallow = {json.dumps(loose)}")
    done = corral.run(*QUICK, flags=(*chosen, *flags))
    assert (done.returncode, done.stdout) == (125, b"")
    assert control in done.stderr
    everything = policy(tmp_path / "q.toml", f"[degrade]\nallow = {json.dumps(LETTING_GO)}")
    # Sanity check: the run starts if the policy allows runs without this control too.
    assert corral.run(*QUICK, flags=everything).returncode == 0


def test_a_stated_io_limit_is_refused(corral, tmp_path):
    text = f'[limits]\nio = "1M"\n[degrade]\nallow = {json.dumps(LETTING_GO)}'
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    assert (done.returncode, b"io: no mechanism on windows enforces it" in done.stderr) == (
        125,
        True,
    )


def test_the_report_names_what_was_enforced(corral, tmp_path):
    path = tmp_path / "report.json"
    done = corral.run(*QUICK, flags=("--best-effort", "--report", str(path)))
    assert done.returncode == 0
    report = json.loads(path.read_text())
    controls = {item["control"]: item for item in report["controls"]}
    assert controls["tree"]["mechanism"].startswith("job object")
    assert controls["tree"]["status"] in {"verified", "applied"}
    assert controls["io"]["status"] == "not asked"
    assert controls["disk"]["status"] == "degraded"
    assert report["outcome"] == {"kind": "exited", "exit_code": 0, "signal": None, "detail": ""}


def test_explain_prints_the_steps_and_starts_nothing(corral, tmp_path):
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w')"
    done = corral("explain", "-v", "--best-effort", "--", PYTHON, "-c", code)
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    assert "clone: create the process suspended, in the job" in said
    assert "supervisor: job object" in said
    assert not mark.exists()
    flags = ("--best-effort", "--write", str(tmp_path))
    assert corral.run(PYTHON, "-c", code, flags=flags).returncode == 0
    assert mark.exists()  # Sanity check: the command does make the file


def test_a_refusal_names_every_missing_control(corral):
    """Check that the error names every missing wall at once, and that nothing is started."""
    doctor = json.loads(corral("doctor", "--json").stdout)["findings"]
    if any(item["capability"] == "app_container" for item in doctor if item["status"] == "proven"):
        pytest.skip("this Windows has the walls")
    done = corral.run(*QUICK)
    assert (done.returncode, done.stdout) == (125, b"")
    for wall in (b"filesystem", b"network", b"syscalls", b"subprocess"):
        assert wall in done.stderr


def test_the_fallback_switch_makes_no_other_control_optional(corral, tmp_path):
    """Check that `fail_on_app_container_error = false` makes the AppContainer's controls optional,
    but that the process limit is still required.
    """
    text = "[windows]\nfail_on_app_container_error = false"
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    if done.returncode == 0:
        pytest.skip("this Windows has the walls")
    assert done.returncode == 125
    assert b"subprocess: no child_process_policy" in done.stderr
    assert not re.search(rb"(filesystem|network|syscalls)[a-z, ]*: no ", done.stderr)


def test_a_disabled_app_container_counts_as_missing(corral, tmp_path):
    text = "[windows]\napp_container = false"
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    assert done.returncode == 125
    assert b"no windows.app_container = true" in done.stderr


def own_errors(stderr: bytes) -> bytes:
    """Return stderr without the line that Python 3.13 and newer add in an AppContainer."""
    lines = stderr.splitlines()
    return b"\n".join(one for one in lines if not one.startswith(b"Failed to find real location"))


def test_the_api_runs_a_command(tmp_path):
    code = "import sys; print(sys.stdin.read()); sys.stderr.write('e'); sys.exit(3)"
    done = package.run([PYTHON, "-c", code], LOOSE, input=b"hello")
    assert (done.exit_code, done.stdout.split()) == (3, [b"hello"])
    assert own_errors(done.stderr) == b"e"
    assert done.report.outcome.kind == "exited"
    assert done.report.usage.wall_ms > 0


def test_the_api_passes_more_data_than_a_pipe_takes():
    data = os.urandom(1 << 20)
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert package.run([PYTHON, "-c", code], LOOSE, input=data).stdout == data


def test_the_api_raises_an_error_for_a_refused_run():
    if keeps(Job(memory=64 << 20)):
        pytest.skip("this Windows keeps its limits")
    stated = {"limits": {"memory": "64M"}, "degrade": {"allow": ["filesystem"]}}
    with pytest.raises(UnenforceableError, match="job_memory"):
        package.run([*QUICK], stated)


def test_waiting_for_a_sandbox_by_the_api_can_time_out():
    waiting = [PYTHON, "-c", "input()"]
    with package.launch(waiting, LOOSE, stdin=package.PIPE) as sandbox:
        with pytest.raises(TimeoutError):
            sandbox.wait(0.1)
        assert sandbox.kill() == 137
    assert sandbox.report.outcome.kind == "signalled"


def test_ps_lists_a_live_run(corral):
    waiting = [PYTHON, "-c", "print('here', flush=True); input()"]
    with package.launch(waiting, LOOSE, stdin=package.PIPE, stdout=package.PIPE) as sandbox:
        assert sandbox.stdout.readline().strip() == b"here"
        listed = json.loads(corral("ps", "--json").stdout)
        assert [entry["command"] for entry in listed] == [waiting]
        assert listed[0]["tasks"] in {1, 2}  # Wine also counts the console's process
    assert json.loads(corral("ps", "--json").stdout) == []


def test_the_async_api_runs_two_commands():
    code = "import sys; print(sys.stdin.read()); sys.stderr.write('e'); sys.exit(4)"

    async def both():
        argv = [PYTHON, "-c", code]
        runs = (package.run_async(argv, LOOSE, input=text) for text in (b"one", b"two"))
        return await asyncio.gather(*runs)

    for done, text in zip(asyncio.run(both()), (b"one", b"two"), strict=True):
        assert (done.exit_code, done.stdout.split()) == (4, [text])
        assert own_errors(done.stderr) == b"e"


def test_clean_without_kept_grants_removes_nothing(corral):
    done = corral("clean", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert corral("clean", "more").returncode != 0


def test_the_json_output_of_the_demo_has_every_act(corral):
    """Check that the JSON output lists every act of the demo. Under Wine corral denies fewer acts,
    because Wine has no AppContainers.
    """
    data = json.loads(corral("demo", "--json").stdout)
    assert (data["version"], data["host"]["os"]) == (1, "windows")
    assert len(data["held"]) + len(data["did_not_hold"]) + len(data["not_tried"]) in {1, 20}
