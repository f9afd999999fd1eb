"""Test `corral run` with the macOS backend on Linux, in the model of a Mac in `mac_world.py`.

There is no Seatbelt here, so most runs use `--best-effort`. Features that only Linux has are turned
off. The model's process waits for all processes of the run, so no process outlives a test.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import uuid
from subprocess import PIPE

import pytest

WORLD = pathlib.Path(__file__).parent / "mac_world.py"
BEST = "--best-effort"
MANY = ("--allow-subprocess",)
PATIENCE = 90
DAEMON = """
import os, sys
ready, released = os.pipe(), sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        os.write(ready[1], b"x")
        open(released).read()   # blocks until a process opens the fifo for writing
    os._exit(0)
os.wait()
os.read(ready[0], 1)
"""
STAY = "import sys; print('ready', flush=True); sys.stdin.read()"
IGNORE = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True)\nwhile True: signal.pause()"
SPIN = "while True: pass"


class Mac:
    def __init__(self, user, package):
        self.user = user
        self.world = package.parent / WORLD.name
        shutil.copy(WORLD, self.world)
        self.world.chmod(0o644)
        self.package = package
        self.pid_files = []

    def argv(self, *arguments):
        return [self.user.python, str(self.world), str(self.package), *arguments]

    def file(self, name):
        """Return a path at which no file exists yet."""
        return str(self.user.home / f"mac-{uuid.uuid4().hex}-{name}")

    def popen(self, *arguments, env=None, **options):
        environment = self.user.environment(**{"MAC_WORLD_PID": self.file("pid"), **(env or {})})
        self.pid_files.append(pathlib.Path(environment["MAC_WORLD_PID"]))
        return self.user.popen(
            self.argv(*arguments),
            env=environment,
            **{"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, **options},
        )

    def run(self, *command, flags=(), env=None, input=b"", **options):
        process = self.popen("run", BEST, *flags, "--", *command, env=env, **options)
        try:
            out, err = process.communicate(input, timeout=PATIENCE)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def python(self, code, *arguments, **options):
        return self.run(self.user.python, "-c", code, *arguments, **options)

    def reported(self, code, *arguments, flags=(), **options):
        path = self.file("report")
        done = self.python(code, *arguments, flags=("--report", path, *flags), **options)
        return done, json.loads(pathlib.Path(path).read_text())

    def directories(self):
        """Return the private directories of this test's runs."""
        found = pathlib.Path("/tmp").glob(f"corral-{self.user.uid}-*")
        pids = {path.read_text() for path in self.pid_files if path.exists()}
        return {path for path in found if path.name.split("-")[2] in pids}

    def left(self):
        """Return the private directories and records that are left over from finished runs."""
        over = [
            path
            for path in self.directories()
            if not pathlib.Path("/proc", path.name.split("-")[2]).exists()
        ]
        runs = self.user.home / ".cache" / "corral" / "runs"
        return [*over, *(os.listdir(runs) if runs.exists() else [])]


@pytest.fixture
def mac(ordinary, package):
    return Mac(ordinary, package)


def word(report, control):
    return next(held for held in report["controls"] if held["control"] == control)


def started(mac, code, *arguments, flags=(), env=None):
    """Start a run and wait until its target is ready. Return the process and corral's pid."""
    path = mac.file("pid")
    process = mac.popen(
        "run", BEST, *flags, "--", mac.user.python, "-c", code, *arguments,
        env={"MAC_WORLD_PID": path, **(env or {})},
    )  # fmt: skip
    assert process.stdout.readline() == b"ready\n", process.stderr.read()
    return process, int(pathlib.Path(path).read_text())


def children(pid):
    return [
        int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def ended(process):
    try:
        process.communicate(timeout=PATIENCE)
    except BaseException:
        process.kill()
        raise
    return process.returncode


def fifo(mac):
    path = mac.file("fifo")
    os.mkfifo(path, 0o666)
    os.chmod(path, 0o666)
    return path


def test_a_run_without_seatbelt_is_refused_and_the_error_names_the_missing_walls(mac):
    process = mac.popen("run", "--", "/bin/echo", "ran")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (125, b"")
    for wall in (b"filesystem", b"network", b"syscalls", b"seatbelt"):
        assert wall in err


def test_best_effort_runs_and_warns_of_every_wall(mac):
    done = mac.run("/bin/echo", "ran")
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    for wall in (b"filesystem", b"network", b"syscalls"):
        assert b"warning: " + wall + b" is not enforced" in done.stderr


def test_exit_codes_are_passed_on(mac):
    assert mac.python("raise SystemExit(7)").returncode == 7
    assert mac.python("import os; os.kill(os.getpid(), 15)").returncode == 143
    assert mac.run("/nonexistent/program").returncode == 127
    broken = pathlib.Path(mac.file("broken"))
    broken.write_bytes(b"\x7fELF is not all there is to it")
    broken.chmod(0o755)
    assert mac.run(str(broken)).returncode == 126


def test_the_target_has_the_callers_streams(mac):
    done = mac.python("import sys; sys.stdout.write(sys.stdin.read().upper())", input=b"hello")
    assert done.stdout == b"HELLO"


def test_an_allowlist_is_refused_and_never_widened(mac):
    process = mac.popen("run", "--allow-net", "example.com", "--", "/bin/echo", "ran")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (125, b"")
    assert b"network" in err
    assert mac.run("/bin/echo", "ran", flags=("--allow-net", "example.com")).stdout == b"ran\n"


def test_the_callers_environment_is_not_passed_on(mac):
    code = "import os; print('PLANTED' in os.environ, os.environ['HOME'], os.environ['TMPDIR'])"
    planted, home, temporary = mac.python(code, env={"PLANTED": "1"}).stdout.decode().split()
    assert planted == "False"
    assert home.startswith(f"/tmp/corral-{mac.user.uid}-")
    assert os.path.dirname(home) == os.path.dirname(temporary)


def test_the_target_does_not_inherit_descriptors_of_corrals_caller(mac):
    code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4])"
    with open(__file__) as file:
        inherited = os.dup2(file.fileno(), 77)
        done = mac.python(code, pass_fds=(inherited,))
        control = mac.user.popen(
            [mac.user.python, "-c", "import os; os.fstat(77)"], pass_fds=(inherited,)
        )
        assert control.wait() == 0
        os.close(inherited)
    # Descriptor 3 is open only because the target lists its descriptors.
    assert done.stdout == b"[0, 1, 2, 3]\n"


def test_the_number_of_descriptors_is_limited(mac):
    code = "import os\nn = 0\ntry:\n  while True: os.open('/', 0); n += 1\nexcept OSError as e: print(n < 16, e.errno)"
    assert mac.python(code, flags=("--max-fds", "16")).stdout == b"True 24\n"


def test_rlimit_nproc_denies_a_second_process(mac):
    """Check that corral denies subprocesses with an RLIMIT_NPROC of 1. The user already has more
    processes, so the target cannot start another one. The kernel does not apply this limit to root.
    """
    code = "import os\ntry:\n  os.waitpid(os.fork(), 0); print('forked')\nexcept OSError as e: print(e.errno)"
    done, report = mac.reported(code)
    assert done.stdout == b"11\n"
    assert word(report, "subprocess")["mechanism"] == "RLIMIT_NPROC"
    assert b"forked" in mac.python(code, flags=MANY).stdout


def test_a_requested_address_space_limit_is_set(mac):
    policy = pathlib.Path(mac.file("policy.toml"))
    policy.write_text('version = 1\n[limits]\naddress_space = "3G"\n')
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[1])"
    assert mac.python(code, flags=("--policy", str(policy))).stdout.strip() == str(3 << 30).encode()


def test_the_report_names_each_control_and_its_status(mac):
    _, report = mac.reported("pass", flags=("--max-memory", "1G", "--timeout", "1m"))
    assert word(report, "tree") | {"why": ""} == {
        "control": "tree", "asked": "always", "stated": False,
        "mechanism": "watcher", "status": "cooperative", "why": "",
    }  # fmt: skip
    assert (word(report, "memory")["mechanism"], word(report, "memory")["status"]) == (
        "sampling",
        "cooperative",
    )
    assert word(report, "filesystem")["status"] == "degraded"
    assert word(report, "fds")["status"] == "applied"
    assert report["outcome"]["kind"] == "exited"


def test_a_timeout_ends_the_run(mac):
    done, report = mac.reported("import time; time.sleep(600)", flags=("--timeout", "300ms"))
    assert (done.returncode, report["outcome"]["kind"]) == (124, "timeout")


def test_a_target_that_ignores_sigterm_is_killed_after_the_grace(mac):
    process, _ = started(mac, IGNORE, env={"MAC_WORLD_GRACE": "0.3"})
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 137


def test_sigterm_is_passed_on_and_the_target_chooses_the_exit_code(mac):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('ready', flush=True)\nwhile True: time.sleep(0.1)"
    process, _ = started(mac, code)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 9


def test_memory_beyond_the_limit_ends_the_run(mac):
    code = "x = b'x' * (300 << 20); import time; time.sleep(600)"
    done, report = mac.reported(code, flags=("--max-memory", "100M"))
    assert (done.returncode, report["outcome"]["kind"]) == (137, "memory")
    assert report["usage"]["memory"] > 100 << 20
    assert mac.python("x = b'x' * (300 << 20)", flags=("--max-memory", "2G")).returncode == 0


def test_memory_of_many_processes_is_added_up(mac):
    code = "import os, time\nfor _ in range(6):\n  if os.fork() == 0: break\nx = b'x' * (40 << 20)\ntime.sleep(600)"
    done, report = mac.reported(code, flags=("--max-memory", "150M", *MANY))
    assert (done.returncode, report["outcome"]["kind"]) == (137, "memory")


def test_cpu_time_beyond_the_limit_ends_the_run(mac):
    done, report = mac.reported(SPIN, flags=("--max-cpu-time", "500ms"))
    assert (done.returncode, report["outcome"]["kind"]) == (137, "cpu_time")
    assert report["usage"]["cpu_ms"] >= 450


def test_a_share_of_the_cpu_is_enforced(mac):
    code = "import time\nt = time.monotonic()\nwhile time.monotonic() - t < 1: pass\nprint(time.process_time() / (time.monotonic() - t))"
    held = float(mac.python(code, flags=("--max-cpu", "200")).stdout)
    assert held < 0.4
    while float(mac.python(code).stdout) <= held:
        # Sanity check: without a limit the target gets a larger share of CPU time. On a busy
        # machine this may need several attempts.
        pass


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="RLIMIT_NPROC counts this user's other processes, which the model's process table does not list",
)
def test_too_many_processes_end_the_run(mac):
    code = "import os, sys, time\nfor _ in range(int(sys.argv[1])):\n  if os.fork() == 0: time.sleep(600)\ntime.sleep(float(sys.argv[2]))"
    done, report = mac.reported(code, "12", "600", flags=("--max-pids", "8", *MANY))
    assert (done.returncode, report["outcome"]["kind"]) == (137, "pids"), done.stderr
    assert mac.python(code, "3", "0", flags=("--max-pids", "8", *MANY)).returncode == 0


def test_a_daemon_ends_with_the_target(mac):
    """Let the target start a daemon in its own session, and end. corral must end the daemon.
    Otherwise the test would hang, because the model's process waits for all processes of the run.
    """
    assert mac.python(DAEMON, fifo(mac), flags=MANY).returncode == 0


def test_a_daemon_outlives_its_program_without_corral(mac):
    path = fifo(mac)
    process = mac.popen("--bare", mac.user.python, "-c", DAEMON, path)
    assert process.stdout.read() == b""  # end of file: the daemon's parent has ended
    assert process.poll() is None
    with open(path, "w"):  # returns as soon as the daemon reads
        pass
    assert ended(process) == 0


@pytest.mark.parametrize("walled", [True, False], ids=["seatbelt", "the control"])
def test_a_daemon_whose_parent_is_unknown_is_found_by_its_seatbelt_label(mac, walled):
    """Start a daemon with a double fork. The middle process ends at once, so the process table does
    not show who forked the daemon.

    corral still finds the daemon if the fake Seatbelt of mac_world.py has marked the run's
    processes. A process cannot remove the mark. Without it the daemon survives.
    """
    path = fifo(mac)
    environment = {"MAC_WORLD_FORGETS": "1", **({"MAC_WORLD_SEATBELT": "1"} if walled else {})}
    process = mac.popen(
        "run", BEST, *MANY, "--", mac.user.python, "-c", DAEMON, path, env=environment
    )
    if walled:
        assert ended(process) == 0  # the model's process ends only after the daemon has ended
        return
    assert process.stdout.read() == b""  # end of file: corral has ended
    assert process.poll() is None
    with open(path, "w"):  # returns as soon as the daemon reads
        pass
    assert ended(process) == 0


def test_rlimit_nproc_bounds_the_number_of_processes_without_sampling(mac):
    """Let a target fork until it fails, and check that it gets no more processes than the limit
    allows. It may get fewer, because RLIMIT_NPROC also counts the user's other processes.
    """
    code = "import os, resource, time\nn = 0\nmost = resource.getrlimit(resource.RLIMIT_NPROC)[0]\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(600)\n    n += 1\nexcept OSError as e: print(e.errno, n <= most, flush=True)"
    done, report = mac.reported(code, flags=MANY)
    assert done.stdout == b"11 True\n"
    held = word(report, "pids")
    assert (held["mechanism"], held["status"]) == ("RLIMIT_NPROC", "cooperative")


def test_the_target_starts_in_its_private_home(mac):
    done = mac.python("import os; print(os.getcwd() == os.environ['HOME'], os.environ['LANG'])")
    assert done.stdout == b"True en_US.UTF-8\n"


def test_a_target_that_forks_without_end_is_ended(mac):
    code = "import os\nfor _ in range(40):\n  if os.fork() == 0: os.setsid()\n  else: break\nelse: pass\nwhile True: pass"
    done = mac.python(code, flags=("--timeout", "400ms", *MANY))
    assert done.returncode == 124


def test_kill_9_of_corral_ends_the_tree_and_leaves_no_directory(mac):
    code = DAEMON + STAY
    process, corral = started(mac, code, fifo(mac), flags=MANY)
    (private,) = [path for path in mac.directories() if f"-{corral}-" in path.name]
    os.kill(corral, signal.SIGKILL)
    assert ended(process) == 137
    assert not private.exists()
    assert mac.run("/bin/true").returncode == 0
    assert mac.left() == []  # the next start has removed the record as well


def test_kill_9_of_corral_just_after_the_target_leaves_no_directory(mac):
    process, corral = started(mac, STAY)
    (private,) = [path for path in mac.directories() if f"-{corral}-" in path.name]
    (watcher,) = children(corral)
    os.kill(corral, signal.SIGSTOP)
    process.stdin.close()
    process.stdin = None
    while children(watcher):
        pass  # the target is still alive
    os.kill(corral, signal.SIGKILL)
    assert ended(process) == 137
    assert not private.exists()


@pytest.mark.parametrize("closed", ["", "os.close(own.answers)"], ids=["control", "no reader"])
def test_a_watcher_whose_pipe_was_closed_still_ends_all_processes(mac, closed):
    """Close the reading end of the pipe to which the watcher writes its answers. The watcher is the
    process that kills the run's other processes. It must still do so. The model's process shows
    this, because it ends only after all of them.
    """
    code = f"""
import os
from corral.platforms.current import load
from corral.platforms.macos import watcher
from corral.platforms.posix import signals
from corral.record import replace
own, watchers = watcher.open_pipes()
if os.fork() == 0:
    signals.reset()
    own.close()
    start = os.pipe()
    target = os.fork()
    if target == 0:
        os.execv("/bin/sleep", ["sleep", "600"])
    pipes = replace(watchers, start=start[1])
    watcher.TreeWatcher(load()._table, target, pipes, directory=None, marker="").run()
watchers.close()
assert len(os.read(own.answers, 4)) == 4
{closed}
os.write(own.control, bytes([watcher.MEASURE]))
"""
    process = mac.popen("--api", code)
    assert ended(process) == 0


def test_kill_9_during_the_start_leaves_no_process(mac):
    """Kill corral as soon as it has started, eight times, so that the kill hits different moments
    of the start. No process may be left: the model's process ends only after all others.
    """
    for _ in range(8):
        path = pathlib.Path(mac.file("pid"))
        process = mac.popen(
            "run", BEST, *MANY, "--", mac.user.python, "-c", STAY, env={"MAC_WORLD_PID": str(path)}
        )
        while not path.exists():
            assert process.poll() is None
        os.kill(int(path.read_text()), signal.SIGKILL)
        assert ended(process) == 137


def test_when_the_watcher_is_killed_the_supervisor_ends_the_tree(mac):
    process, corral = started(mac, DAEMON + STAY, fifo(mac), flags=MANY)
    os.kill(children(corral)[0], signal.SIGKILL)
    assert ended(process) == 137
    assert mac.left() == []


@pytest.mark.parametrize("pause", [600, 0.001], ids=["once", "again and again"])
@pytest.mark.parametrize("limits", [("--max-memory", "1G"), ()], ids=["sampled", "not sampled"])
def test_a_target_that_stops_the_watcher_does_not_block_corral(mac, limits, pause):
    """Let the target stop the watcher with SIGSTOP. A real Seatbelt would deny this signal.

    In one case it sends the signal only once. In the other it sends the signal again and again, and
    so also stops the watcher while corral waits for the watcher's answer.
    """
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"while True: os.kill(os.getppid(), signal.SIGSTOP); time.sleep({pause})\n"
    )
    done = mac.python(code, flags=("--timeout", "300ms", *limits), env={"MAC_WORLD_GRACE": "0.3"})
    assert done.returncode == 124


def test_a_run_leaves_no_process_or_directory(mac):
    code = "import os; os.makedirs(os.environ['HOME'] + '/a/b'); os.chmod(os.environ['HOME'] + '/a', 0); open(os.environ['TMPDIR'] + '/f', 'w')"
    assert mac.python(code).returncode == 0
    assert mac.left() == []


def test_ps_shows_a_living_run(mac):
    process, _ = started(mac, "x = b'x' * (50 << 20)\n" + STAY)
    shown = mac.popen("ps", "--json")
    out, _ = shown.communicate(timeout=PATIENCE)
    entry = json.loads(out)[0]
    assert entry["memory"] > 50 << 20
    assert entry["tasks"] == 1
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()
    process.stderr.close()


def test_processes_are_sampled_only_under_a_limit(mac):
    """Run one target with a memory limit and one without. When corral has looked at the processes
    of the first run five times, it must not have looked at those of the second.
    """
    counts = {}
    runs = {}
    for name, flags in {"without": (), "with": ("--max-memory", "1G")}.items():
        counts[name] = pathlib.Path(mac.file("looks"))
        runs[name], _ = started(mac, STAY, flags=flags, env={"MAC_WORLD_LOOKS": str(counts[name])})
    before = {name: path.stat().st_size for name, path in counts.items()}
    while counts["with"].stat().st_size < before["with"] + 5:
        assert runs["with"].poll() is None
    assert counts["without"].stat().st_size == before["without"]
    for process in runs.values():
        assert ended(process) == 0


API = """
import corral, sys
loose = {"degrade": {"allow": ["filesystem", "network", "syscalls", "subprocess", "tree"]}}
done = corral.run([sys.executable, "-c", "print(input())"], loose, input=b"hello\\n")
assert (done.exit_code, done.stdout) == (0, b"hello\\n"), done
assert {held.mechanism for held in done.report.controls if held.control == "tree"} == {"watcher"}, done.report.controls
slow = {**loose, "subprocess": {"allow": True}, "limits": {"timeout": "300ms"}}
done = corral.run([sys.executable, "-c", DAEMON + "import time; time.sleep(600)", FIFO], slow)
assert (done.exit_code, done.report.outcome.kind) == (124, "timeout"), done
with corral.launch([sys.executable, "-c", "import time; time.sleep(600)"], loose) as sandbox:
    assert sandbox.pid > 0
assert sandbox.report.outcome.kind == "signalled", sandbox.report
print("well")
"""


def test_the_python_api_works_on_a_mac(mac):
    """Run a program that uses the Python API, in the model of a Mac. The API's zygote and
    supervisors run in the model, too.
    """
    code = f"DAEMON, FIFO = {DAEMON!r}, {fifo(mac)!r}\n{API}"
    process = mac.popen("--api", code)
    # Probing and running three targets takes most of PATIENCE on a busy machine.
    out, err = process.communicate(timeout=4 * PATIENCE)
    assert (process.returncode, out) == (0, b"well\n"), err.decode()


def test_doctor_lists_what_macos_supports_and_lacks(mac):
    out, _ = mac.popen("doctor").communicate(timeout=PATIENCE)
    lines = out.decode().splitlines()
    for line in (
        "[✓] Rlimits: supported [read]",
        "[!] Cgroups: NOT available (Linux only)",
        "[!] Network namespaces: NOT available (Linux only)",
        "[!] Seccomp: NOT available (Linux only)",
        "[!] Network isolation: NOT supported on macOS",
        "[✓] Timeout enforcement: supported",
        "[⚠] Recommendation: Use Linux VM for strict security requirements",
    ):
        assert line in lines
    assert lines[0].startswith("[✓] OS: darwin (")
