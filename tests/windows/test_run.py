"""`corral run` and its sisters: what is held is named, what is not is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys

import pytest

import corral as package
from corral.errors import UnenforceableError
from corral.platforms.windows.mechanisms import job
from corral.platforms.windows.mechanisms.job import Job

QUICK = (sys.executable, "-c", "print('ran')")
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


def test_a_memory_limit_that_is_not_kept_refuses(corral, tmp_path):
    """The test of honesty: Wine accepts the limit, so only reading it back tells."""
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


@pytest.mark.parametrize("package", ["npm:left-pad@1.3.0", "pypi:mcp-server-time"])
def test_packages_are_refused(corral, package):
    done = corral("run", package)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"packages are not installed on Windows yet" in done.stderr
    assert b"hint:" in done.stderr


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
def test_what_windows_cannot_hold_refuses_when_it_is_stated(corral, tmp_path, flags, control):
    loose = [name for name in LETTING_GO if name.encode() != control]
    chosen = policy(tmp_path / "p.toml", f"[degrade]\nallow = {json.dumps(loose)}")
    done = corral.run(*QUICK, flags=(*chosen, *flags))
    assert (done.returncode, done.stdout) == (125, b"")
    assert control in done.stderr
    everything = policy(tmp_path / "q.toml", f"[degrade]\nallow = {json.dumps(LETTING_GO)}")
    assert corral.run(*QUICK, flags=everything).returncode == 0  # the control


def test_io_refuses_when_it_is_stated(corral, tmp_path):
    text = f'[limits]\nio = "1M"\n[degrade]\nallow = {json.dumps(LETTING_GO)}'
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    assert (done.returncode, b"io: nothing on windows holds it" in done.stderr) == (125, True)


def test_the_report_names_what_held(corral, tmp_path):
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
    done = corral("explain", "--best-effort", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode()
    assert "clone: create the process suspended, in the job" in said
    assert "supervisor: job object" in said
    assert not mark.exists()
    assert corral.run(sys.executable, "-c", code, flags=("--best-effort",)).returncode == 0
    assert mark.exists()  # the control: the same command does something


def test_without_a_word_it_refuses_all_that_is_missing(corral):
    """Nothing is put up halfway: every wall that lacks is named at once."""
    doctor = json.loads(corral("doctor", "--json").stdout)["findings"]
    if any(item["capability"] == "app_container" for item in doctor if item["status"] == "proven"):
        pytest.skip("the walls can be put up here")
    done = corral.run(*QUICK)
    assert (done.returncode, done.stdout) == (125, b"")
    for wall in (b"filesystem", b"network", b"syscalls", b"subprocess"):
        assert wall in done.stderr


def test_the_fallback_must_be_the_users_word(corral, tmp_path):
    """Layering B is no wall for reads or the network: those stay missing, whoever allows it."""
    text = "[windows]\nfail_on_app_container_error = false"
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    if done.returncode == 0:
        pytest.skip("the walls can be put up here")
    assert done.returncode == 125
    assert re.search(rb"filesystem, network[a-z, ]*: no app_container", done.stderr)


def test_an_app_container_that_was_switched_off_is_missed(corral, tmp_path):
    text = "[windows]\napp_container = false"
    done = corral.run(*QUICK, flags=policy(tmp_path / "p.toml", text))
    assert done.returncode == 125
    assert b"no windows.app_container = true" in done.stderr


def test_the_api(tmp_path):
    code = "import sys; print(sys.stdin.read()); sys.stderr.write('e'); sys.exit(3)"
    done = package.run([sys.executable, "-c", code], LOOSE, input=b"hello")
    assert (done.exit_code, done.stdout.split(), done.stderr) == (3, [b"hello"], b"e")
    assert done.report.outcome.kind == "exited"
    assert done.report.usage.wall_ms > 0


def test_the_api_moves_more_than_a_pipe_holds():
    data = os.urandom(1 << 20)
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert package.run([sys.executable, "-c", code], LOOSE, input=data).stdout == data


def test_the_api_refuses_as_an_error():
    if keeps(Job(memory=64 << 20)):
        pytest.skip("this Windows keeps its limits")
    stated = {"limits": {"memory": "64M"}, "degrade": {"allow": ["filesystem"]}}
    with pytest.raises(UnenforceableError, match="job_memory"):
        package.run([*QUICK], stated)


def test_the_api_has_a_deadline_of_its_own():
    waiting = [sys.executable, "-c", "input()"]
    with package.launch(waiting, LOOSE, stdin=package.PIPE) as sandbox:
        with pytest.raises(TimeoutError):
            sandbox.wait(0.1)
        assert sandbox.kill() == 137
    assert sandbox.report.outcome.kind == "signalled"


def test_ps_lists_a_live_run(corral):
    waiting = [sys.executable, "-c", "print('here', flush=True); input()"]
    with package.launch(waiting, LOOSE, stdin=package.PIPE, stdout=package.PIPE) as sandbox:
        assert sandbox.stdout.readline().strip() == b"here"
        listed = json.loads(corral("ps", "--json").stdout)
        assert [entry["command"] for entry in listed] == [waiting]
        assert listed[0]["tasks"] == 1
    assert json.loads(corral("ps", "--json").stdout) == []


def test_the_async_api():
    code = "import sys; print(sys.stdin.read()); sys.stderr.write('e'); sys.exit(4)"

    async def both():
        argv = [sys.executable, "-c", code]
        runs = (package.run_async(argv, LOOSE, input=text) for text in (b"one", b"two"))
        return await asyncio.gather(*runs)

    for done, text in zip(asyncio.run(both()), (b"one", b"two"), strict=True):
        assert (done.exit_code, done.stdout.split(), done.stderr) == (4, [text], b"e")


def test_clean_takes_back_what_was_kept_and_nothing_else(corral, tmp_path):
    """Nothing was kept here: there is nothing to take back, and that is no error."""
    done = corral("clean", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert corral("clean", "more").returncode != 0


def test_the_demo_says_why_it_does_not_play(corral):
    done = corral("demo")
    assert (done.returncode, b"hint: `corral doctor -v`" in done.stderr) == (125, True)
