"""Make each step that sets up a sandbox fail. The target must never run, the error must name the
step, and no files or processes may be left over.

The tests run with and without namespaces. In this file `init` means PID 1 with namespaces, and the
subreaper without them.
"""

import json
import os
from subprocess import PIPE

import pytest
from traces import Traces

FAIL = """
import errno, json, os, sys
sys.path.insert(0, sys.argv[1])
from corral.cli import main
from corral.abi import linux as abi
from corral.platforms.linux import backend, tier_landlock, spawn, subreaper, init
from corral.platforms.linux.mechanisms import root_filesystem, seccomp, idmapped_mounts, user_ids, landlock, privileges, sysv_ipc, task_limit, writable_places, netlink_sockets
from corral.platforms.posix import run_directories
from corral.platforms import steps

def fail(*_, **__):
    raise OSError(errno.EIO, "injected")

def in_init():
    return os.getpid() == 1 or os.getppid() == supervisor

def class_of(name):
    found = {
        item for key, module in sys.modules.items() if key.startswith("corral.platforms.")
        for item in vars(module).values()
        if isinstance(item, type) and getattr(item, "name", "") == name and hasattr(item, "apply")
    }
    [cls] = found
    return cls

def fail_step(name, verb, when):
    '''Before the step did its work, or after: then what it made has to go again.'''
    cls = class_of(name)
    real = getattr(cls, verb)
    def failing(step, results):
        if when == "after":
            real(step, results)
        fail()
    setattr(cls, verb, failing)

def skip_step(name):
    '''As a kernel that says yes and does nothing.'''
    class_of(name).apply = lambda step, results: None

def skip_masks(kind):
    new_root = root_filesystem._NewRoot
    real = new_root.mask
    new_root.mask = lambda self, mask: None if mask.kind == kind else real(self, mask)

def run(injection, arguments):
    '''The command line in a fork of its own: exit code, stdout, stderr.'''
    streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
    pid = os.fork()
    if pid == 0:
        for number, fd in enumerate(streams, 1):
            os.dup2(fd, number)
            os.close(fd)
        code = 99
        try:
            globals()["supervisor"] = os.getpid()
            exec(injection, globals())
            code = main(arguments)
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for fd in streams:
        os.lseek(fd, 0, os.SEEK_SET)
    return code, *(open(fd).read() for fd in streams)

injections, arguments = json.load(sys.stdin)
print(json.dumps([run(injection, arguments) for injection in injections]))
"""
TARGET = 'echo ran; echo ran > "$1"/ran'
"""A target that would write to stdout and into a write grant if it ran."""


class Trial:
    """Runs corral as one user, with failures that the test injects. The target, if it starts,
    writes a file and prints to stdout, so the test can see that it ran.
    """

    def __init__(self, user, scratch) -> None:
        self.user = user
        self.granted = scratch / "granted"
        self.temporary = scratch / "temporary"
        for place in (self.granted, self.temporary):
            place.mkdir()
            os.chown(place, user.owner, user.owner)
        for name in (".env", ".envrc") if user.tier == "walled" else ():
            (self.granted / name).write_text("hidden, or only protected")
            os.chown(self.granted / name, user.owner, user.owner)
        self.traces = Traces(user.home)
        # A limit that the user states adds steps to the plan, even on a host without cgroups.
        self.flags = ("--write", str(self.granted), "--max-memory", "1G")
        self.command = ("/bin/sh", "-c", TARGET, "sh", str(self.granted), self.traces.argument)

    def steps(self) -> list[str]:
        done = self.user.corral("explain", "--json", *self.flags, "--", *self.command)
        assert done.returncode == 0, done.stderr.decode()
        return [step["step"] for step in json.loads(done.stdout)["steps"]]

    def runs(self, injections: list[str], *flags: str) -> list[tuple[int, str, str]]:
        """Run corral once for each of the `injections`, which are Python code that makes a part of
        corral fail. Every process of these runs has `traces.argument` in its command line, so that
        the test can find leftover processes.
        """
        argv = [self.user.python, "-c", FAIL, str(self.user.package), self.traces.argument]
        argv = [*self.user.host, *argv]
        env = self.user.environment(TMPDIR=str(self.temporary))
        process = self.user.popen(argv, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        arguments = ["run", *self.flags, *flags, "--", *self.command]
        out, err = process.communicate(json.dumps([injections, arguments]).encode(), timeout=100)
        assert process.returncode == 0, err.decode()
        return [tuple(result) for result in json.loads(out)]

    def run(self, injection: str, *flags: str) -> tuple[int, str, str]:
        return self.runs([injection], *flags)[0]

    def problems(self, cases: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
        """Run corral with each injection, and return the problems of each run. `cases` maps an
        injection to words that its error must contain.
        """
        endings = self.runs(list(cases))
        wrong = {
            injection: found
            for (injection, said), ending in zip(cases.items(), endings, strict=True)
            if (found := self._wrong(said, *ending))
        }
        if (self.granted / "ran").exists():
            wrong["a grant"] = ["the target ran"]
        if left := self.traces.left():
            wrong["left"] = [str(left)]
        return wrong

    @staticmethod
    def _wrong(said: tuple[str, ...], code: int, out: str, err: str) -> list[str]:
        found = [f"exit {code}"] if code != 125 else []
        found += [f"{word!r} not in {err!r}" for word in said if word not in err]
        found += [f"traceback: {err}"] if "Traceback" in err else []
        return found + (["the target ran"] if out else [])


pytestmark = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)


@pytest.fixture
def trial(user, scratch):
    # The first run caches the findings. Otherwise the cache would later count as a leftover.
    done = user.run("/bin/true")
    assert done.returncode == 0, done.stderr.decode()
    return Trial(user, scratch)


def test_the_target_runs_without_an_injected_failure(trial):
    code, out, err = trial.run("pass")
    assert (code, out) == (0, "ran\n"), err
    assert trial.traces.left() == {"files": [str(trial.granted / "ran")]}


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_target_runs_if_a_step_fails(trial, when):
    steps = trial.steps()
    assert len(steps) > {"walled": 10, "bare": 6}[trial.user.tier]
    assert len(set(steps)) == len(steps)
    cases = {f"fail_step({step!r}, 'apply', {when!r})": (step, "injected") for step in steps}
    assert trial.problems(cases) == {}


WALLS = {
    "walled": {
        *("namespaces", "cgroup_namespace", "set_ids", "no_nested_user_namespaces", "loopback"),
        *("root_filesystem", "bounding_set", "capabilities", "rlimits", "landlock", "seccomp"),
    },
    "bare": {"capabilities", "rlimits", "landlock", "seccomp"},
}
"""Steps whose effect is verified from inside before the target is executed."""
VERIFIED = (
    FAIL.partition("injections, arguments =")[0].replace("sys.argv[1])", "sys.argv.pop(1))", 1)
    + """
answer = [name for name in sys.argv[1:] if class_of(name).verify is not steps.unverified]
"""
)


def test_no_target_runs_if_a_verification_fails(trial):
    steps = trial.steps()
    tried = trial.user.outside(VERIFIED, str(trial.user.package), *steps)
    assert set(tried) >= WALLS[trial.user.tier]
    cases = {f"fail_step({step!r}, 'verify', 'after')": (step, "injected") for step in tried}
    assert trial.problems(cases) == {}


MISSING = {
    "walled": (
        *(f"real = abi.clone\nabi.clone = lambda flags: real(flags & ~abi.CLONE_NEW{kind})" for kind in ("NET", "PID", "IPC", "UTS", "NS")),
        *(f"skip_step({step!r})" for step in ("root_filesystem", "bounding_set", "capabilities", "rlimits", "seccomp")),
        *(f"skip_masks({kind!r})" for kind in ("hide", "protect")),
    ),
    "bare": tuple(f"skip_step({step!r})" for step in ("landlock", "rlimits", "seccomp")),
}  # fmt: skip


def test_a_step_that_silently_has_no_effect_prevents_the_start(trial):
    """Make a step do nothing, but report success. The checks that corral makes inside the sandbox
    before it starts the target must detect this.
    """
    cases = dict.fromkeys(MISSING[trial.user.tier], ("not started",))
    assert trial.problems(cases) == {}


BETWEEN = {
    "real = os.fork\nos.fork = lambda: fail() if in_init() else real()": "init",
    "os.setsid = fail": "init",
    "spawn._arrange_descriptors = fail": "target",
    "abi.reset_signals = fail": "target",
    "os.umask = fail": "target",
}
BETWEEN_IN = {
    "walled": {
        "real = abi.clone\n"
        "abi.clone = lambda flags: fail() if flags & abi.CLONE_NEWPID else real(flags)": "namespaces",
        "user_ids.write_maps = fail": "id_maps",
    },
    "bare": {"abi.clone = fail": "clone"},
}


def test_no_target_runs_if_code_between_the_steps_fails(trial):
    cases = {**BETWEEN, **BETWEEN_IN[trial.user.tier]}
    assert trial.problems({code: (where, "injected") for code, where in cases.items()}) == {}


LOCKS = {
    "dumpable": "real = abi.prctl\n"
    "abi.prctl = lambda option, *a: fail() if option == abi.PR_SET_DUMPABLE else real(option, *a)",
    "descriptors": "steps.keep_only = fail",
    "signals": "real = abi.signalfd\n"
    "abi.signalfd = lambda signals: fail() if in_init() else real(signals)",
}
LOCKS_IN = {
    "walled": {
        "capabilities": "real = privileges.drop\n"
        "privileges.drop = lambda: fail() if in_init() else real()",
        "filter": "seccomp.init_filter = fail",
    },
    "bare": {
        "a view of its tree": "landlock.open_proc_files = fail",
        "its own death": "real = abi.prctl\n"
        "abi.prctl = lambda option, *a: fail() if (option, *a) == (abi.PR_SET_PDEATHSIG, 0) else real(option, *a)",
    },
}


def locks(trial):
    return [*LOCKS.values(), *LOCKS_IN[trial.user.tier].values()]


def test_the_target_does_not_start_if_protecting_init_from_it_fails(trial):
    """Make each system call that protects init from the target fail, one call per run."""
    assert trial.problems(dict.fromkeys(locks(trial), ("not started",))) == {}


def test_a_failure_to_protect_init_from_the_target_is_reported_with_its_reason(trial):
    assert trial.problems(dict.fromkeys(locks(trial), ("init", "injected"))) == {}


@pytest.mark.parametrize("error", ["RuntimeError('a bug')", "KeyboardInterrupt()", "MemoryError()"])
def test_no_target_runs_after_an_unexpected_exception(trial, error):
    raising = (
        "real = steps.apply\n"
        "def apply(planned, stage, results):\n"
        "    real(planned, stage, results)\n"
        f"    if stage == '{{where}}': raise {error}\n"
        "steps.apply = apply"
    )
    name = error.partition("(")[0]
    cases = {raising.format(where=where): (where, name) for where in ("init", "target")}
    assert trial.problems(cases) == {}


def test_a_broken_pipe_in_the_set_up_is_a_failure(trial):
    """Make the set-up fail with BrokenPipeError. corral must report this failure, although it
    ignores broken pipes when it prints messages.
    """
    broken = "def run(*_, **__): raise BrokenPipeError(32, 'Broken pipe')\n"
    broken += "from corral.supervisor import start\nstart.run = run"
    assert trial.problems({broken: ("Broken pipe", "hint: ")}) == {}


KILLED_IN = {
    "walled": {
        "init before its ids are mapped": "user_ids.write_maps = lambda maps, pid: os.kill(pid, 9)",
        "init after its ids are mapped": (
            "real = user_ids.write_maps\n"
            "def write_maps(maps, pid):\n"
            "    real(maps, pid)\n"
            "    os.kill(pid, 9)\n"
            "user_ids.write_maps = write_maps"
        ),
        "init at work": "init.run_init = lambda *a, **k: os._exit(1)",
    },
    "bare": {
        "the subreaper before it is one": (
            "real = steps.apply\n"
            "def apply(planned, stage, results):\n"
            "    if stage == 'init': os.kill(os.getpid(), 9)\n"
            "    real(planned, stage, results)\n"
            "steps.apply = apply"
        ),
    },
}
KILLED = {
    "the target's process": "steps.verify = lambda planned, results: os.kill(os.getpid(), 9)",
    "the target's process, by its own exit": "steps.verify = lambda planned, results: os._exit(0)",
}


def test_a_death_during_the_set_up_is_reported(trial):
    killed = (*KILLED.values(), *KILLED_IN[trial.user.tier].values())
    cases = dict.fromkeys(killed, ("died before it was executed",))
    assert trial.problems(cases) == {}


def test_no_target_is_released_after_its_init_has_ended(trial):
    """End init before the target is released. The error comes from the target's process or from
    corral, whichever notices first.
    """
    run = {"walled": "init.run_init", "bare": "subreaper.run_subreaper"}[trial.user.tier]
    deaths = ("os._exit(1)", "os.kill(os.getpid(), 9)")
    cases = [f"{run} = lambda *a, **k: {death}" for death in deaths]
    assert trial.problems(dict.fromkeys(cases, ("not started",))) == {}


@pytest.mark.parametrize(
    ("number", "expected"), [("ENOENT", 127), ("EACCES", 126), ("ENOEXEC", 126), ("E2BIG", 126)]
)
def test_a_failed_exec_has_its_own_exit_code(trial, number, expected):
    injection = f"def execve(*a): raise OSError(errno.{number}, os.strerror(errno.{number}))\nabi.execve = execve"
    code, out, err = trial.run(injection)
    assert (code, out) == (expected, ""), err
    assert "cannot execute" in err
    assert "/bin/sh" in err
    assert "\nhint: " in err
    assert trial.traces.left() == {}


def test_a_file_that_is_not_a_program_exits_with_126(trial):
    program = trial.granted / "program"
    program.write_bytes(b"\x7fELF and nothing more")
    program.chmod(0o755)
    done = trial.user.run(str(program))
    assert done.returncode == 126, done.stderr.decode()


def test_a_missing_command_exits_with_127(trial):
    done = trial.user.run("no-such-program-anywhere")
    assert done.returncode == 127
    assert b"no-such-program-anywhere" in done.stderr


def test_the_report_names_a_failed_set_up(trial):
    path = trial.temporary / "report.json"
    step = {"walled": "root_filesystem", "bare": "landlock"}[trial.user.tier]
    code, _, _ = trial.run(f"fail_step({step!r}, 'apply', 'before')", "--report", str(path))
    told = json.loads(path.read_text())
    assert code == 125
    assert told["outcome"]["kind"] == "setup_failed"
    assert told["outcome"]["exit_code"] == 125
    assert step in told["outcome"]["detail"]


def test_the_report_names_an_unexpected_error(trial):
    path = trial.temporary / "report.json"
    injection = "from corral.platforms import run_records; run_records.sweep = lambda *_, **__: os.listdir('/no/such/place')"
    code, _, err = trial.run(injection, "--report", str(path))
    told = json.loads(path.read_text())["outcome"]
    assert (code, told["kind"], told["exit_code"]) == (125, "refused", 125)
    assert told["detail"] == "'/no/such/place': No such file or directory"
    assert told["detail"] in err
