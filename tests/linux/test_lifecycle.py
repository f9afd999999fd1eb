"""Test a run from start to end: its streams, signals and deadlines, and what happens when one of
its processes is killed.
"""

import json
import os
import signal
import subprocess
import termios
from subprocess import DEVNULL, PIPE

import pytest
from traces import PATIENCE, Traces, children, ended, processes, readable, wait_until_gone

TELL_SIGNALS = """
import os, signal, time
def got(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    os._exit(40 + number)
for number in (1, 2, 3, 15):
    signal.signal(number, got)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # pause() would miss a signal whose handler Python has not called yet
"""
IGNORE_SIGNALS = """
import signal
for number in (1, 2, 3, 15):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def traces(user):
    assert user.run("/bin/true").returncode == 0  # this run caches the findings
    return Traces(user.home)


def start(user, *command, flags=(), **options):
    """Start `corral run`. Its streams are pipes unless `options` says otherwise."""
    argv = user.corral_argv("run", *flags, "--", *command)
    return user.popen(argv, **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **options})


def wait_for_ready(process):
    assert process.stdout.readline() == b"ready\n", process.stderr.read()


def left_after_a_kill(user, traces) -> dict[str, object]:
    """Check that nothing is left of the killed run, except for its record. Then start another run,
    which must remove this record, and return what is left after that.
    """
    left = traces.left_in_the_end()
    files = left.pop("files", [])
    assert left == {}
    assert [path for path in files if "/corral/runs/" not in path] == []
    assert user.run("/bin/true").returncode == 0
    return traces.left()


def finish(process) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_end_of_file_on_stdin_ends_a_target_that_reads_it(user, traces):
    process = start(user, "cat", traces.argument, "-")
    process.stdin.close()
    assert ended(process.pid)
    process.stdin = None
    finish(process)
    assert traces.left() == {}


def test_the_target_sees_no_end_of_file_before_the_client_sends_it(user):
    process = start(user, "cat")
    process.stdin.write(b"once\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"once\n"
    process.stdin.write(b"twice\n")
    assert finish(process)[:2] == (0, b"twice\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_reaches_the_target_which_chooses_the_exit_code(user, traces, number):
    process = start(user, user.python, "-c", TELL_SIGNALS, traces.argument)
    wait_for_ready(process)
    process.send_signal(number)
    code, out, err = finish(process)
    assert (code, out) == (40 + number, f"{number.name}\n".encode()), err
    assert traces.left() == {}


def test_a_target_that_ignores_sigterm_is_killed_after_the_grace(user, traces):
    user.grace_seconds = 0.2
    process = start(user, user.python, "-c", IGNORE_SIGNALS, traces.argument)
    wait_for_ready(process)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGKILL, err
    assert traces.left() == {}


def test_the_grace_is_five_seconds_unless_a_test_shortens_it():
    from corral.platforms import deadlines

    assert deadlines.GRACE_SECONDS == 5.0


def test_a_second_interrupt_does_not_wait_for_the_grace(user, traces):
    """Make the grace period after the first signal so long that only the second signal can end the
    run.
    """
    user.grace_seconds = 3600
    process = start(user, user.python, "-c", IGNORE_SIGNALS, traces.argument)
    wait_for_ready(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    while not ended(process.pid, 0.2):
        # The kernel merges two signals if the first is still pending, so send the second one again.
        process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 128 + signal.SIGKILL
    assert traces.left() == {}


@pytest.mark.parametrize("target", [TELL_SIGNALS, IGNORE_SIGNALS], ids=["obeys", "ignores"])
def test_a_timeout_exits_with_124_and_is_in_the_report(user, scratch, traces, target):
    report = scratch / "report.json"
    flags = ("--timeout", "300ms", "--report", str(report))
    user.grace_seconds = 0.2
    process = start(user, user.python, "-c", target, traces.argument, flags=flags)
    code, _, err = finish(process)
    told = json.loads(report.read_text())
    report.unlink()
    assert code == 124, err
    assert told["outcome"]["kind"] == "timeout"
    assert told["outcome"]["exit_code"] == 124
    assert told["usage"]["wall_ms"] >= 300
    assert b"timeout limit (300ms)" in err
    assert traces.left() == {}


def test_a_target_that_ends_in_time_is_not_reported_as_timeout(user):
    done = user.run("/bin/true", flags=("--timeout", "1h"))
    assert done.returncode == 0


def test_corral_and_all_processes_end_with_the_target(user, traces):
    """Let the target start a daemon that keeps the target's streams open. When the target ends, the
    run must end the daemon, and must not wait for it.
    """
    daemon = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    signal.signal(15, signal.SIG_IGN)\n"
        "    while True: signal.pause()\n"
        "os.wait()\n"
        "print('ready', flush=True)\n"
        "open(0).read()\n"
        "os._exit(3)\n"
    )
    process = start(user, user.python, "-c", daemon, traces.argument, flags=("--allow-subprocess",))
    wait_for_ready(process)
    assert len(processes(traces.argument)) == 4  # corral, init, the target and the daemon
    assert finish(process)[0] == 3
    assert traces.left() == {}


def test_killing_init_ends_the_run(user, scratch, traces):
    report = scratch / "report.json"
    process = start(
        user, user.python, "-c", IGNORE_SIGNALS, traces.argument, flags=("--report", str(report))
    )
    wait_for_ready(process)
    [init] = children(process.pid)
    os.kill(init, signal.SIGKILL)
    code, _, err = finish(process)
    told = json.loads(report.read_text())["outcome"]
    report.unlink()
    assert (code, told["kind"], told["signal"]) == (137, "signalled", 9), err
    assert traces.left() == {}


NURSERY = """
import json, os, select, sys
sys.path.insert(0, sys.argv[1])
from corral.supervisor import report
from corral.cli import main, run
from corral.platforms.linux import backend, spawn
from corral.platforms import steps

def start(arguments, prepare=lambda: None):
    '''A command line whose interpreter is past its fork, which forgets signals that came during it.'''
    born_read, born_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            prepare()
            os.close(born_write)
            code = main(arguments)
        finally:
            os._exit(code)
    os.close(born_write)
    os.read(born_read, 1)
    os.close(born_read)
    return pid, os.pidfd_open(pid)

def end(pid, pidfd, number):
    os.kill(pid, number)
    os.close(pidfd)
    return os.waitpid(pid, 0)[1]

"""
AT_DELAYS = """
number, delays, arguments = json.load(sys.stdin)
statuses = []
for delay in delays:
    pid, pidfd = start(arguments)
    select.select([pidfd], [], [], delay)
    statuses.append(end(pid, pidfd, number))
print(json.dumps(statuses))
"""
AT_STEPS = """
arguments = json.load(sys.stdin)
there_read, there_write = os.pipe()

def hold(at, release):
    '''Stand still before attempt number `at` until the other end of a pipe is closed.'''
    real, count = steps.attempt, [0]
    def attempt(step, verb, results):
        if count[0] == at:
            os.write(there_write, f"{'apply' if verb == step.apply else 'verify'} {step.name} ".encode())
            os.read(release, 1)
        count[0] += 1
        real(step, verb, results)
    steps.attempt = attempt

held = []
while True:
    release_read, release_write = os.pipe()
    def prepare():
        os.close(release_write)
        hold(len(held), release_read)
    pid, pidfd = start(arguments, prepare)
    os.close(release_read)
    ready = select.select([there_read, pidfd], [], [])[0]
    if there_read in ready:
        held.append(os.read(there_read, 4096).decode())
        end(pid, pidfd, 9)
        os.close(release_write)
    else:
        end(pid, pidfd, 9)
        break
print(json.dumps(held))
"""


def run_forks(user, traces, code: str, request: object) -> object:
    """Run `code`, which starts corral in forks and then ends these. Give it the `request` as JSON,
    and return its answer. All processes have `traces.argument` in their command lines, so that
    leftovers can be found.
    """
    argv = [user.python, "-c", NURSERY + code, str(user.package), traces.argument]
    with user.popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        try:
            out, err = process.communicate(json.dumps(request).encode(), timeout=110)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, err.decode()
    assert b"corral/" not in err, err.decode()  # stderr contains no traceback of corral's code
    return json.loads(out)


DELAYS = [at / 1000 for at in range(60)] + [0.1, 0.15]


def test_kill_9_of_corral_at_any_moment_leaves_no_process_or_file(user, traces):
    arguments = ["run", "--", user.python, "-c", IGNORE_SIGNALS, traces.argument]
    statuses = run_forks(user, traces, AT_DELAYS, [signal.SIGKILL, DELAYS, arguments])
    assert statuses == [signal.SIGKILL] * len(DELAYS)
    assert left_after_a_kill(user, traces) == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_at_any_moment_ends_the_run_and_leaves_no_process_or_file(user, traces, number):
    """Send a signal at different moments between corral's start and the exec of its target.

    The target is not Python, because Python may swallow an interrupt while it starts.
    """
    arguments = ["run", "--", "tail", "-F", traces.argument]
    delays = [*DELAYS[::4], 0.15, 0.2, 0.25]
    statuses = run_forks(user, traces, AT_DELAYS, [number, delays, arguments])
    codes = {os.waitstatus_to_exitcode(status) for status in statuses}
    # Before corral installs its handlers, the signal ends corral itself (SIGINT by raising an
    # exception). After that, corral returns the exit code of its target.
    assert codes <= {-number, 128 + number, *([99] if number == signal.SIGINT else [])}, codes
    assert left_after_a_kill(user, traces) == {}


def test_kill_9_of_corral_at_every_step_of_the_set_up_leaves_no_process_or_file(user, traces):
    arguments = ["run", "--", user.python, "-c", "pass", traces.argument]
    held = run_forks(user, traces, AT_STEPS, arguments)
    # corral was killed in each step's `apply`, and in most `verify` calls.
    assert len(held) > 18
    assert {"apply", "verify"} == {verb.split()[0] for verb in held}
    assert left_after_a_kill(user, traces) == {}


def test_kill_9_of_corral_started_from_the_command_line_leaves_no_process_or_file(user, traces):
    for delay in range(0, 280, 20):
        process = start(
            user, user.python, "-c", IGNORE_SIGNALS, traces.argument, stdout=DEVNULL, stderr=DEVNULL
        )
        ended(process.pid, delay / 1000)
        process.kill()
        process.wait()
        process.stdin.close()
    assert left_after_a_kill(user, traces) == {}


def test_kill_9_of_corral_leaves_nothing_of_a_target_with_child_processes(user, traces):
    tree = (
        "import os, signal\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0: os.setsid()\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    process = start(user, user.python, "-c", tree, traces.argument, flags=("--allow-subprocess",))
    for _ in range(8):
        wait_for_ready(process)
    process.kill()
    finish(process)
    assert left_after_a_kill(user, traces) == {}


def test_stdout_closes_towards_the_client_when_the_target_closes_it(user):
    code = "import os, sys; os.close(1); sys.stdin.read()"
    process = start(user, user.python, "-c", code)
    assert process.stdout.read() == b""
    assert process.poll() is None
    assert finish(process)[0] == 0


def test_stdin_closes_towards_the_client_when_the_target_closes_it(user):
    code = "import os, sys; os.close(0); print('ready', flush=True); sys.stdin = None\nimport signal; signal.pause()"
    process = start(user, user.python, "-c", code)
    wait_for_ready(process)
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"nobody reads this")
    process.terminate()
    assert finish(process)[0] == 128 + signal.SIGTERM


def test_a_reader_that_goes_away_ends_the_target_by_sigpipe(user, traces):
    process = start(user, "yes", traces.argument)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    code, _, err = finish(process)
    assert code == 128 + signal.SIGPIPE
    assert b"Traceback" not in err
    assert traces.left() == {}


def test_a_stderr_without_a_reader_does_not_stop_the_target(user):
    """Close the reading end of the pipe that is corral's stderr. corral's warnings are lost, but
    the run must continue.
    """
    read, write = os.pipe()
    os.close(read)
    process = start(user, "/bin/sh", "-c", "echo ran; exit 7", stderr=write)
    os.close(write)
    assert finish(process)[:2] == (7, b"ran\n")


CLOSED = """
import os, sys
sys.path.insert(0, sys.argv[1])
numbers = [int(number) for number in sys.argv[2].split(",")]
for number in numbers:
    os.close(number)
code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; sys.exit(main())"
os.execv(sys.executable, [sys.executable, "-c", code, sys.argv[1], *sys.argv[3:]])
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "0,1", "0,1,2"])
def test_closed_streams_are_not_replaced_by_corrals_files(user, scratch, closed):
    """Start corral with closed streams. None of the descriptors that corral opens may become the
    target's stdin, stdout or stderr.
    """
    report, granted = scratch / "report.json", scratch / "granted"
    granted.mkdir()
    os.chown(granted, user.uid, user.uid)
    code = (
        "import os\n"
        "seen = {n: os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2) if os.path.lexists(f'/proc/self/fd/{n}')}\n"
        f"open({str(granted / 'seen')!r}, 'w').write(repr(seen))\n"
    )
    argv = [user.python, "-c", CLOSED, str(user.package), closed, "run", "--report", str(report)]
    argv += ["--write", str(granted), "--", user.python, "-c", code]
    process = user.popen(argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    process.wait(timeout=60)
    assert json.loads(report.read_text())["outcome"]["kind"] == "exited"
    seen = (granted / "seen").read_text()
    assert process.returncode == 0
    assert "report" not in seen


IGNORING = """
import os, signal, sys
signal.signal(int(sys.argv[1]), signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_when_corral_started_stays_ignored(user, traces, number):
    """Start corral with a signal that it inherits as ignored. corral and its target must ignore the
    signal too, so that `nohup` works. Sanity check: SIGTERM ends the run.
    """
    argv = user.corral_argv("run", "--", user.python, "-c", TELL_SIGNALS, traces.argument)
    process = user.popen(
        [user.python, "-c", IGNORING, str(int(number)), *argv], stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    wait_for_ready(process)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (40 + signal.SIGTERM, b"SIGTERM\n"), err


@pytest.mark.parametrize("timeout", ["1ms", "5ms", "10ms", "20ms"])
def test_a_timeout_before_the_target_executes_is_a_timeout(user, traces, timeout):
    command = (user.python, "-c", TELL_SIGNALS, traces.argument)
    done = user.run(*command, flags=("--timeout", timeout))
    assert done.returncode == 124, done.stderr.decode()
    assert traces.left() == {}


TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path.insert(0, sys.argv.pop(1))
from corral.cli import main
sys.exit(main())
"""


@pytest.fixture
def terminal():
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def in_terminal(user, slave, code, *arguments):
    argv = [user.python, "-c", TERMINAL, str(user.package), "run", "--"]
    argv += [user.python, "-c", code, *arguments]
    return user.popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)


def read_until(master: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        assert readable(master), found
        found += os.read(master, 4096)
    return found


def test_control_c_in_a_terminal_reaches_the_target(user, terminal, traces):
    master, slave = terminal
    before = termios.tcgetattr(slave)
    process = in_terminal(user, slave, TELL_SIGNALS, traces.argument)
    read_until(master, b"ready")
    os.write(master, b"\x03")
    read_until(master, b"SIGINT")
    assert process.wait(PATIENCE) == 40 + signal.SIGINT
    assert termios.tcgetattr(slave) == before
    assert traces.left() == {}


def test_a_terminal_gets_its_settings_back(user, terminal, traces):
    """Let a target switch its terminal to raw mode, and stop the target. corral must restore the
    terminal's settings.
    """
    master, slave = terminal
    before = termios.tcgetattr(slave)
    code = (
        "import signal, tty; tty.setraw(0); print('ready', flush=True)\nwhile True: signal.pause()"
    )
    process = in_terminal(user, slave, code, traces.argument)
    read_until(master, b"ready")
    assert termios.tcgetattr(slave) != before  # Sanity check: the target has changed the settings
    process.terminate()
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert termios.tcgetattr(slave) == before
    assert traces.left() == {}


LONG_LIVED = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import corral

def state():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = file.read().split()
    return len(os.listdir("/proc/self/fd")), children

first = corral.run(["/bin/echo", sys.argv[2]])
before = state()
codes = [corral.run(["/bin/echo", sys.argv[2]]).exit_code for _ in range(100)]
print(json.dumps([codes, before, state()]))
"""


def test_a_hundred_runs_leave_their_caller_no_descriptors_and_no_child_processes(user, traces):
    argv = [user.python, "-X", "dev", "-c", LONG_LIVED, str(user.package), traces.argument]
    process = user.popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    code, out, err = finish(process)
    assert code == 0, err.decode()
    codes, before, after = json.loads(out)
    assert codes == [0] * 100
    assert after == before
    assert len(after[1]) == 1  # the zygote is the only child
    wait_until_gone(traces.argument)
    assert traces.left() == {}
