"""Test `import corral`: the sandbox from Python, with threads, event loops and forks."""

import ast
import signal

import pytest
from callers import Caller
from traces import PATIENCE, wait_until_gone

from users import SOURCE


@pytest.fixture
def caller(user):
    return Caller(user)


def test_the_package_exports_exactly_the_documented_names(caller):
    names = sorted(ast.literal_eval(caller.run("print(corral.__all__)")))
    assert names == [
        "AsyncSandbox", "CommandError", "DEVNULL", "Denial", "Finding", "Host", "LaunchError",
        "Manifest", "ManifestError", "Outcome",
        "PIPE", "Plan", "PolicyDict", "PolicyError", "Pool", "Report", "Result", "Sandbox",
        "SandboxError", "SupervisionError", "UnenforceableError", "launch", "launch_async", "probe",
        "run", "run_async",
    ]  # fmt: skip


def test_every_public_name_can_be_read_and_other_names_cannot(caller):
    caller.run(
        "assert all(getattr(corral, name) is not None for name in corral.__all__)\n"
        "assert set(corral.__all__) <= set(dir(corral))\n"
        "refused(lambda: corral.no_such_name, AttributeError)\n"
    )


def test_the_readmes_example_prints_what_the_readme_says(caller):
    """Run the first lines of the README's example, and compare their output with the README."""
    text = (SOURCE.parent / "README.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].partition("\nwith ")[0]
    expected = [line.partition("  # ")[2] for line in example.splitlines() if "  # " in line]
    assert len(expected) == 2
    assert caller.run(example).splitlines() == expected


def test_run_captures_both_streams_and_the_exit_code(caller):
    caller.run(
        "result = corral.run(['/bin/sh', '-c', 'read line; echo \"$line\"; echo err >&2; exit 3', trace], input=b'in\\n')\n"
        "assert (result.exit_code, result.stdout, result.stderr) == (3, b'in\\n', b'err\\n'), result\n"
        "assert result.report.outcome.kind == 'exited'\n"
        "assert result.report.usage.wall_ms >= 0\n"
        "held = {item.control: item.status for item in result.report.controls}\n"
        "assert held['filesystem'] == held['syscalls'] == 'verified', held\n"
    )


def test_more_data_than_a_pipe_takes_passes_in_both_directions(caller):
    caller.run(
        "data = os.urandom(3 << 20)\n"
        "assert corral.run(['cat'], input=data).stdout == data\n"
        "result = asyncio.run(corral.run_async(['cat'], input=data))\n"
        "assert result.stdout == data\n"
        "both = 'import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d); sys.stderr.buffer.write(d)'\n"
        "result = corral.run([python, '-c', both], input=data)\n"
        "assert result.stdout == result.stderr == data\n"
    )


def test_a_target_that_does_not_read_its_input_is_not_an_error(caller):
    caller.run(
        "assert corral.run(['/bin/true', trace], input=bytes(1 << 20)).exit_code == 0\n"
        "result = asyncio.run(corral.run_async(['/bin/true', trace], input=bytes(1 << 20)))\n"
        "assert result.exit_code == 0\n"
    )


def test_streams_may_be_pipes_files_descriptors_or_nothing(caller):
    caller.run(
        "read, write = os.pipe()\n"
        "with corral.launch(['/bin/echo', trace], stdin=corral.DEVNULL, stdout=write) as box:\n"
        "    os.close(write)\n"
        "    assert box.stdin is box.stdout is box.stderr is None\n"
        "    with open(read, 'rb') as file: assert file.read().decode().strip() == trace\n"
        "    assert box.wait() == 0\n"
        "import tempfile\n"
        "with tempfile.TemporaryFile() as file:\n"
        "    with corral.launch(['/bin/echo', trace], stdout=file) as box: assert box.wait() == 0\n"
        "    file.seek(0); assert file.read().decode().strip() == trace\n"
    )


def test_wait_gives_up_after_its_timeout_and_can_be_called_again(caller):
    caller.run(
        "with corral.launch(['cat'], stdin=corral.PIPE) as box:\n"
        "    refused(lambda: box.wait(timeout=0), TimeoutError)\n"
        "    refused(lambda: box.wait(timeout=0.05), TimeoutError)\n"
        "    assert box.report is None\n"
        "    box.stdin.close()\n"
        "    assert box.wait(timeout=20) == box.wait() == 0\n"
        "    assert box.report.outcome.exit_code == 0\n"
    )


def test_wait_keeps_its_timeout_while_another_thread_waits(caller):
    caller.run(
        "with corral.launch(['cat'], stdin=corral.PIPE) as box:\n"
        "    thread = threading.Thread(target=box.wait)\n"
        "    thread.start()\n"
        "    refused(lambda: box.wait(timeout=0.2), TimeoutError)\n"
        "    box.stdin.close()\n"
        "    thread.join()\n"
    )


def test_stop_kill_and_a_signal_end_the_target(caller):
    caller.run(
        "wait = 'import signal; signal.signal(2, signal.SIG_DFL); print(1, flush=True); signal.pause()'\n"
        "for end, code in ((corral.Sandbox.stop, 143), (corral.Sandbox.kill, 137),\n"
        "                  (lambda box: (box.send_signal(signal.SIGINT), box.wait())[1], 130)):\n"
        "    with corral.launch([python, '-c', wait, trace], stdout=corral.PIPE) as box:\n"
        "        box.stdout.readline()\n"
        "        assert os.path.exists(f'/proc/{box.pid}')\n"
        "        found = end(box)\n"
        "        assert found == code, (found, code)\n"
        "        assert end(box) == code  # a second call returns the same\n"
    )


@pytest.mark.parametrize("number", [0, -1, 65, 200, 256])
def test_an_invalid_signal_number_is_the_callers_error(caller, number):
    caller.run(
        "with corral.launch(['cat'], stdin=corral.PIPE) as box:\n"
        f"    refused(lambda: box.send_signal({number}), ValueError)\n"
        "    refused(lambda: box.wait(timeout=0), TimeoutError)  # it still runs\n"
        "    box.stdin.close()\n"
        "    assert box.wait() == 0\n"
    )


def test_leaving_the_context_stops_the_target(caller):
    caller.run(
        "wait = 'import signal; print(1, flush=True); signal.pause()'\n"
        "try:\n"
        "    with corral.launch([python, '-c', wait, trace], stdout=corral.PIPE) as box:\n"
        "        box.stdout.readline()\n"
        "        raise KeyError('of the caller')\n"
        "except KeyError:\n"
        "    assert box.report.outcome.signal == signal.SIGTERM\n"
        "    assert not os.path.exists(f'/proc/{box.pid}')\n"
    )


def test_leaving_the_context_stops_the_targets_children(caller):
    """Let the target start a daemon, and leave the context. Both processes have a pipe open, and
    its end of file shows that both have ended.
    """
    caller.run(
        "import select\n"
        "code = ('import os, signal\\nif os.fork() == 0:\\n    os.setsid()\\n    signal.signal(15, signal.SIG_IGN)'\n"
        "        '\\nos.write(1, b\".\")\\nwhile True: signal.pause()')\n"
        "read, write = os.pipe()\n"
        "with corral.launch([python, '-c', code, trace], {'subprocess': {'allow': True}}, stdout=write):\n"
        "    os.close(write)\n"
        "    assert os.read(read, 1) == os.read(read, 1) == b'.'\n"
        "    assert not select.select([read], [], [], 0)[0]  # Sanity check: both processes have it open\n"
        "assert select.select([read], [], [], 60)[0] and os.read(read, 1) == b''\n"
    )


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("corral.run(['no-such-program'])", "CommandError"),
        ("corral.run(['/etc/passwd'])", "CommandError"),
        ("corral.run(['/bin/true'], {'limits': {'memroy': '1G'}})", "ManifestError"),
        ("corral.run(['/bin/true'], {'no_such_table': {}})", "ManifestError"),
        ("corral.run(['/bin/true'], '/no/such/policy.toml')", "SandboxError"),
        ("corral.run(['/bin/true'], {'filesystem': {'read': ['/no/such/path']}})", "SandboxError"),
        (
            "corral.run(['/bin/true'], {'environment': {'secrets': ['NOT_SET_ANYWHERE']}})",
            "PolicyError",
        ),
        ("corral.run(['/bin/true'], {'limits': {'io': '1M'}})", "UnenforceableError"),
    ],
)
def test_errors_have_their_own_class_and_a_text(caller, call, error):
    caller.run(
        f"error = refused(lambda: {call}, corral.SandboxError)\n"
        f"assert isinstance(error, corral.{error}), repr(error)\n"
        "assert str(error)\n"
    )


@pytest.mark.parametrize("word", ["npm:some-server", "pypi:some-server", "server.mcpb"])
@pytest.mark.parametrize("launch", ["corral.run", "corral.launch", "corral.Pool().launch"])
def test_the_error_for_a_package_as_program_names_the_call_that_runs_it(caller, launch, word):
    caller.run(
        f"error = refused(lambda: {launch}([{word!r}]), corral.CommandError)\n"
        f"assert ' `mcp`: sandboxed({{\"command\": ' + repr({word!r}) in error.hint, error.hint\n"
        f"other = refused(lambda: {launch}(['no-such-program']), corral.CommandError)\n"
        "assert 'sandboxed' not in other.hint  # Sanity check: this is not a package\n"
        f"none = refused(lambda: {launch}([]), corral.CommandError)\n"
        "assert 'sandboxed' not in none.hint\n"
    )


@pytest.mark.parametrize("launch", ["corral.launch", "corral.Pool().launch"])
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ("'/bin/true'", "TypeError", "argv must be a list of words"),
        ("b'/bin/true'", "TypeError", "argv must be a list of words"),
        ("['/bin/true'], cwd='/no/such/directory'", "OSError", "/no/such/directory"),
        ("['/bin/true'], cwd='/etc/passwd'", "OSError", "/etc/passwd"),
    ],
)
def test_a_mistaken_argument_is_the_callers_error(caller, launch, arguments, error, said):
    caller.run(
        f"error = refused(lambda: {launch}({arguments}), {error})\n"
        f"assert {said!r} in str(error), error\n"
        "assert corral.run(['/bin/true'], cwd='/etc').exit_code == 0  # sanity check\n"
    )


@pytest.mark.parametrize(
    "call", ["corral.run", "lambda *a, **k: asyncio.run(corral.run_async(*a, **k))"]
)
def test_text_as_input_is_the_callers_error(caller, call):
    """Pass text as `input`, which must be bytes. If corral started the target anyway, the target
    would wait for its input forever.
    """
    caller.run(
        "import asyncio\n"
        f"run = {call}\n"
        "error = refused(lambda: run(['/bin/cat'], input='text'), TypeError)\n"
        "assert 'input must be bytes' in str(error), error\n"
        "for given in (b'bytes', bytearray(b'bytes'), memoryview(b'bytes')):  # sanity check\n"
        "    assert run(['/bin/cat'], input=given).stdout == b'bytes'\n"
    )


@pytest.mark.parametrize("policy", ["5", "['/notes']", "b'policy.toml'"])
def test_a_policy_of_a_wrong_type_is_the_callers_error(caller, policy):
    caller.run(
        f"error = refused(lambda: corral.run(['/bin/true'], {policy}), TypeError)\n"
        "assert str(error).startswith('policy must be a mapping or the path of a file, not '), error\n"
        "assert corral.run(['/bin/true'], {}).exit_code == 0  # sanity check\n"
    )


def test_a_failing_step_is_a_launch_error_with_its_step(caller):
    """Replace a granted directory between the plan and the launch, so that a step fails."""
    caller.run(
        "import tempfile\n"
        "from corral.api.launch import plan as make_plan\n"
        "base = tempfile.mkdtemp()\n"
        "inner = os.path.join(base, 'granted'); os.mkdir(inner)\n"
        "plan = make_plan(['/bin/echo', trace], {'filesystem': {'read': [inner]}})\n"
        "os.rename(inner, inner + '-old'); os.mkdir(inner)\n"
        "error = refused(lambda: corral.Sandbox(plan, stdin=None, stdout=None, stderr=None), corral.LaunchError)\n"
        "assert error.step in ('bind_sources', 'idmapped_mounts'), error.step\n"
        "assert error.exit_code == 125 and error.hint and inner in error.cause, error.cause\n"
        "os.rmdir(inner); os.rmdir(inner + '-old'); os.rmdir(base)\n"
    )


def test_sixteen_threads_launch_at_once(caller):
    caller.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def one(number):\n"
        "    return corral.run(['/bin/echo', str(number), trace]).stdout\n"
        "with ThreadPoolExecutor(16) as pool:\n"
        "    found = list(pool.map(one, range(50)))\n"
        "assert found == [f'{n} {trace}\\n'.encode() for n in range(50)]\n"
    )


def test_zygote_and_supervisor_have_no_secret_of_their_caller(caller):
    caller.run(
        "def parent(pid):\n"
        "    with open(f'/proc/{pid}/stat') as file: return int(file.read().rpartition(')')[2].split()[1])\n"
        "os.environ['TOKEN'] = 'secret-' + trace\n"
        "policy = {'environment': {'secrets': ['TOKEN']}}\n"
        "argv = ['/bin/sh', '-c', 'echo $TOKEN; read line', trace]\n"
        "with corral.launch(argv, policy, stdin=corral.PIPE, stdout=corral.PIPE) as box:\n"
        "    assert box.stdout.readline().decode() == os.environ['TOKEN'] + '\\n'  # sanity check\n"
        "    supervisor = parent(parent(box.pid))\n"
        "    for pid in (supervisor, parent(supervisor)):\n"
        "        with open(f'/proc/{pid}/environ', 'rb') as file: found = file.read()\n"
        "        assert b'HOME=' in found and b'TOKEN' not in found, found\n"
        "    box.stdin.close()\n"
        "    assert box.wait() == 1\n"
    )


def test_a_caller_and_its_fork_can_both_launch(caller):
    caller.run(
        "def one(): return corral.run(['/bin/echo', trace]).stdout.decode().strip() == trace\n"
        "assert one()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    code = 1\n"
        "    try:\n"
        "        code = 0 if one() else 2\n"
        "    finally:\n"
        "        os._exit(code)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert one()\n"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_target_ends_with_its_caller_even_if_a_fork_lives_on(caller, number):
    caller.check_fork_keeps_nothing_alive(
        "box = corral.launch(['cat', '-', trace], stdin=corral.PIPE, stdout=corral.DEVNULL)\n"
        "pids = [box.pid]\n",
        number,
    )


def test_a_zygote_that_died_is_replaced(caller):
    caller.run(
        "def one(): return corral.run(['/bin/echo', trace]).exit_code\n"
        "assert one() == 0\n"
        "with open(f'/proc/self/task/{os.getpid()}/children') as file: [zygote] = file.read().split()\n"
        "os.kill(int(zygote), 9)\n"
        "fd = os.pidfd_open(int(zygote))\n"
        "import select; select.select([fd], [], []); os.close(fd)\n"
        "assert one() == 0\n"
        "with open(f'/proc/self/task/{os.getpid()}/children') as file: assert len(file.read().split()) == 1\n"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_targets_end_with_the_calling_process(caller, number):
    code = (
        "box = corral.launch(['cat', '-', trace], stdin=corral.PIPE, stdout=corral.DEVNULL)\n"
        "other = corral.launch([python, '-c', 'import signal\\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\\n"
        "print(1, flush=True)\\nsignal.pause()', trace], stdout=corral.PIPE)\n"
        "other.stdout.readline()\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with caller.start(code) as process:
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        process.send_signal(number)
        process.wait(PATIENCE)
        wait_until_gone(caller.traces.argument)
        process.stdin.close()


def test_probe_returns_the_findings_of_doctor(caller):
    caller.run(
        "host = corral.probe()\n"
        "assert host.system == 'linux' and host.machine == os.uname().machine\n"
        "assert host.has('seccomp') and not host.has('no_such_capability')\n"
        "assert host.finding('no_such_capability').status == 'unknown'\n"
        "fresh = corral.probe(fresh=True)\n"
        "assert [f.capability for f in fresh.findings] == [f.capability for f in host.findings]\n"
        "assert all(isinstance(item, corral.Finding) and item.evidence for item in fresh.findings)\n"
    )


def test_a_policy_may_be_a_path_a_string_or_a_mapping(caller):
    caller.run(
        "import pathlib, tempfile\n"
        "with tempfile.TemporaryDirectory() as base:\n"
        "    path = pathlib.Path(base, 'policy.toml')\n"
        "    path.write_text('version = 1\\n[environment]\\nset = { SAID = \"so\" }\\n')\n"
        "    for policy in (path, str(path), {'environment': {'set': {'SAID': 'so'}}}):\n"
        "        assert corral.run(['/bin/sh', '-c', 'echo $SAID'], policy).stdout == b'so\\n'\n"
        "assert corral.run(['/bin/sh', '-c', 'echo $SAID']).stdout == b'\\n'\n"
    )


def test_the_env_argument_replaces_the_callers_environment(caller):
    caller.run(
        "policy = {'environment': {'secrets': ['TOKEN']}}\n"
        "env = {**os.environ, 'TOKEN': 'a-secret-value'}\n"
        "result = corral.run(['/bin/sh', '-c', 'echo $TOKEN'], policy, env=env)\n"
        "assert result.stdout == b'a-secret-value\\n'\n"
        "assert 'a-secret-value' not in repr(result.report)\n"
        "refused(lambda: corral.run(['/bin/true'], policy), corral.PolicyError)\n"
    )


ASYNC = """
async def main():
{body}
asyncio.run(main())
"""


def in_loop(body: str) -> str:
    return ASYNC.format(body="\n".join(f"    {line}" for line in body.splitlines()))


def test_async_streams_and_wait_work(caller):
    caller.run(
        in_loop(
            "async with corral.launch_async(['cat'], stdin=corral.PIPE, stdout=corral.PIPE) as box:\n"
            "    box.stdin.write(b'hello\\n'); await box.stdin.drain()\n"
            "    assert await box.stdout.readline() == b'hello\\n'\n"
            "    box.stdin.close()\n"
            "    assert await box.wait() == 0\n"
            "    assert box.report.outcome.kind == 'exited'\n"
            "box = await corral.launch_async(['/bin/true', trace])\n"
            "assert await box.wait() == await box.wait() == 0\n"
            "async with box: pass\n"
        )
    )


def test_many_async_runs_work_at_once(caller):
    caller.run(
        in_loop(
            "runs = [corral.run_async(['/bin/echo', str(n), trace]) for n in range(20)]\n"
            "found = [result.stdout for result in await asyncio.gather(*runs)]\n"
            "assert found == [f'{n} {trace}\\n'.encode() for n in range(20)]\n"
        )
    )


def test_two_tasks_may_wait_for_one_sandbox(caller):
    caller.run(
        in_loop(
            "async with corral.launch_async(['cat'], stdin=corral.PIPE) as box:\n"
            "    first, second = asyncio.create_task(box.wait()), asyncio.create_task(box.wait())\n"
            "    await asyncio.sleep(0)\n"
            "    box.stdin.close()\n"
            "    assert await asyncio.wait_for(asyncio.gather(first, second), 20) == [0, 0]\n"
        )
    )


def test_a_cancelled_wait_leaves_the_sandbox_usable(caller):
    caller.run(
        in_loop(
            "async with corral.launch_async(['cat'], stdin=corral.PIPE) as box:\n"
            "    try:\n"
            "        await asyncio.wait_for(box.wait(), 0.05)\n"
            "    except asyncio.TimeoutError: pass\n"
            "    else: raise AssertionError\n"
            "    box.stdin.close()\n"
            "    assert await box.wait() == 0\n"
        )
    )


def test_cancelling_a_task_that_uses_a_sandbox_leaves_no_process_or_file(caller):
    caller.run(
        in_loop(
            "started = asyncio.Event()\n"
            "async def use():\n"
            "    wait = 'import signal; print(1, flush=True); signal.pause()'\n"
            "    async with corral.launch_async([python, '-c', wait, trace], stdout=corral.PIPE) as box:\n"
            "        await box.stdout.readline()\n"
            "        started.set()\n"
            "        await box.wait()\n"
            "task = asyncio.create_task(use())\n"
            "await started.wait()\n"
            "task.cancel()\n"
            "try: await task\n"
            "except asyncio.CancelledError: pass\n"
            "else: raise AssertionError\n"
        )
    )


def test_cancelling_a_launch_at_any_moment_leaves_no_process_or_file(caller):
    caller.run(
        in_loop(
            "wait = 'import signal; signal.pause()'\n"
            "await corral.run_async(['/bin/true'])\n"
            "for delay in range(0, 24, 2):\n"
            "    async def use():\n"
            "        async with corral.launch_async([python, '-c', wait, trace], stdout=corral.PIPE) as box:\n"
            "            await box.wait()\n"
            "    task = asyncio.create_task(use())\n"
            "    await asyncio.wait([task], timeout=delay / 1000)\n"
            "    task.cancel()\n"
            "    try: await task\n"
            "    except asyncio.CancelledError: pass\n"
            "    else: raise AssertionError\n"
        )
    )


def test_a_sandbox_with_unread_output_leaves_no_descriptor_open(caller):
    """Leave most of the target's output unread. When asyncio's buffer is full, asyncio pauses
    reading and therefore never sees the end of the pipe. So the context manager has to close the
    pipe.
    """
    caller.run(
        in_loop(
            "before = len(os.listdir('/proc/self/fd'))\n"
            "for _ in range(3):\n"
            "    async with corral.launch_async(['yes', trace], stdout=corral.PIPE, stderr=corral.PIPE) as box:\n"
            "        await box.stdout.readline()\n"
            "    await asyncio.sleep(0)\n"
            "after = len(os.listdir('/proc/self/fd'))\n"
            "assert after <= before + 1, (before, after)  # the zygote keeps one descriptor\n"
        )
    )


@pytest.mark.parametrize("user", ["root"], indirect=True)
def test_a_caller_that_gives_up_root_ends_without_an_error(caller):
    """Give up root in a caller that has started a target. The zygote, a process that starts the
    caller's targets, still runs as root. The caller may not signal it, but must still end without
    an error.
    """
    caller.run(
        "assert corral.run(['/bin/true', trace]).exit_code == 0\n"
        "os.setgroups([]); os.setgid(65533); os.setuid(65533)\n"
    )
