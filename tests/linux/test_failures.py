"""Any step of the set-up may fail: then the target never runs, the error names the step, nothing is left.

In both tiers; `keeper` is init in the one and the guardian in the other.
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
from corral.platforms.linux.mechanisms import seccomp_rules, idmapped_mounts, user_ids, landlock, privileges, sysv_ipc
from corral.platforms import steps

def fail(*_, **__):
    raise OSError(errno.EIO, "injected")

def in_keeper():
    return os.getpid() == 1 or os.getppid() == supervisor

def fail_step(name, verb, when):
    '''Before the step did its work, or after: then what it made has to go again.'''
    module_name, class_name = name.rsplit(".", 1)
    [module] = [m for n, m in sys.modules.items() if n.startswith("corral.") and n.endswith("." + module_name)]
    real = getattr(module, verb)
    def failing(step, scene):
        if type(step).__name__ != class_name:
            return real(step, scene)
        if when == "after":
            real(step, scene)
        fail()
    setattr(module, verb, failing)

def skip_step(name):
    '''As a kernel that says yes and does nothing.'''
    module_name, class_name = name.rsplit(".", 1)
    [module] = [m for n, m in sys.modules.items() if n.startswith("corral.") and n.endswith("." + module_name)]
    real = module.apply
    module.apply = lambda step, scene: None if type(step).__name__ == class_name else real(step, scene)

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
"""Would be seen on stdout and in a write grant, and starts no process."""


class Trial:
    """One user's run that would leave a mark if its target ran."""

    def __init__(self, user, scratch) -> None:
        self.user = user
        self.granted = scratch / "granted"
        self.temporary = scratch / "temporary"
        for place in (self.granted, self.temporary):
            place.mkdir()
            os.chown(place, user.owner, user.owner)
        self.traces = Traces(user.home)
        # Stated, so that a host without cgroups has steps for it.
        self.flags = ("--write", str(self.granted), "--max-memory", "1G")
        self.command = ("/bin/sh", "-c", TARGET, "sh", str(self.granted), self.traces.argument)

    def steps(self) -> list[str]:
        done = self.user.corral("explain", "--json", *self.flags, "--", *self.command)
        assert done.returncode == 0, done.stderr.decode()
        return [step["step"] for step in json.loads(done.stdout)["steps"]]

    def runs(self, injections: list[str], *flags: str) -> list[tuple[int, str, str]]:
        """Run the command line once for each injection; every process of it carries the argument."""
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
        """Injections -> words to be said. What is wrong with how each of these runs ended."""
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
    # The first run of a user's probes the machine and caches that: not a trace of any run.
    done = user.run("/bin/true")
    assert done.returncode == 0, done.stderr.decode()
    return Trial(user, scratch)


def test_control_without_an_injected_failure_the_target_runs(trial):
    code, out, err = trial.run("pass")
    assert (code, out) == (0, "ran\n"), err
    assert trial.traces.left() == {"files": [str(trial.granted / "ran")]}


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_step_may_fail_to_apply(trial, when):
    steps = trial.steps()
    assert len(steps) > {"walled": 10, "bare": 6}[trial.user.tier]
    assert len(set(steps)) == len(steps)
    cases = {f"fail_step({step!r}, 'apply', {when!r})": (step, "injected") for step in steps}
    assert trial.problems(cases) == {}


WALLS = {
    "walled": {
        *("namespaces", "ids", "loopback", "root"),
        *("privileges", "rlimits", "landlock", "seccomp"),
    },
    "bare": {"privileges", "rlimits", "landlock", "seccomp"},
}
"""Mechanisms whose effect is tried from inside before every exec."""
VERIFIED = """
import importlib.util
sys.path.insert(0, sys.argv[1])
def module(name):
    folder = next(f for f in ("linux", "posix") if importlib.util.find_spec(f"corral.{f}.{name}"))
    return importlib.import_module(f"corral.{folder}.{name}")
answer = [name for name in sys.argv[2:] if hasattr(module(name), "verify")]
"""


def test_every_wall_may_fail_its_verification(trial):
    steps = trial.steps()
    modules = sorted({step.split(".")[0] for step in steps})
    verified = trial.user.outside(VERIFIED, str(trial.user.package), *modules)
    assert set(verified) >= WALLS[trial.user.tier]
    tried = [step for step in steps if step.split(".")[0] in verified]
    cases = {f"fail_step({step!r}, 'verify', 'after')": (step, "injected") for step in tried}
    assert trial.problems(cases) == {}


MISSING = {
    "walled": (
        *(f"real = abi.clone\nabi.clone = lambda flags: real(flags & ~abi.CLONE_NEW{kind})" for kind in ("NET", "PID", "IPC", "UTS", "NS")),
        *(f"skip_step({step!r})" for step in ("root.View", "privileges.Bound", "privileges.Drop", "rlimits.Rlimits", "seccomp.Seccomp")),
    ),
    "bare": tuple(f"skip_step({step!r})" for step in ("landlock.Landlock", "rlimits.Rlimits", "seccomp.Seccomp")),
}  # fmt: skip


def test_a_wall_that_is_missing_is_noticed(trial):
    """Nothing fails: the wall is not there, and what is tried from inside tells."""
    cases = dict.fromkeys(MISSING[trial.user.tier], ("not started",))
    assert trial.problems(cases) == {}


BETWEEN = {
    "real = os.fork\nos.fork = lambda: fail() if in_keeper() else real()": "init",
    "os.setsid = fail": "init",
    "birth._descriptors = fail": "target",
    "abi.reset_signals = fail": "target",
    "os.umask = fail": "target",
}
BETWEEN_IN = {
    "walled": {
        "real = abi.clone\n"
        "abi.clone = lambda flags: fail() if flags & abi.CLONE_NEWPID else real(flags)": "namespaces.Namespaces",
        "ids.write_maps = fail": "ids.Ids",
    },
    "bare": {"abi.clone = fail": "clone"},
}


def test_what_stands_between_the_steps_may_fail(trial):
    cases = {**BETWEEN, **BETWEEN_IN[trial.user.tier]}
    assert trial.problems({code: (where, "injected") for code, where in cases.items()}) == {}


LOCKS = {
    "dumpable": "real = abi.prctl\n"
    "abi.prctl = lambda option, *a: fail() if option == abi.PR_SET_DUMPABLE else real(option, *a)",
    "descriptors": "enter.keep_only = fail",
    "signals": "real = abi.signalfd\n"
    "abi.signalfd = lambda signals: fail() if in_keeper() else real(signals)",
}
LOCKS_IN = {
    "walled": {
        "capabilities": "real = privileges.drop\n"
        "privileges.drop = lambda: fail() if in_keeper() else real()",
        "filter": "filters.init = fail",
    },
    "bare": {
        "a view of its tree": "landlock.hold_proc = fail",
        "its own death": "real = abi.prctl\n"
        "abi.prctl = lambda option, *a: fail() if (option, *a) == (abi.PR_SET_PDEATHSIG, 0) else real(option, *a)",
    },
}


def locks(trial):
    return [*LOCKS.values(), *LOCKS_IN[trial.user.tier].values()]


def test_no_target_is_let_go_by_an_init_that_could_not_be_locked(trial):
    """Init is in the target's reach: unlocked it must not have a target."""
    assert trial.problems(dict.fromkeys(locks(trial), ("not started",))) == {}


def test_an_init_that_could_not_be_locked_says_why(trial):
    assert trial.problems(dict.fromkeys(locks(trial), ("init", "injected"))) == {}


@pytest.mark.parametrize("error", ["RuntimeError('a bug')", "KeyboardInterrupt()", "MemoryError()"])
def test_a_bug_on_the_way_is_no_way_out(trial, error):
    raising = (
        "real = enter.apply\n"
        "def apply(steps, place, scene):\n"
        "    real(steps, place, scene)\n"
        f"    if place == '{{where}}': raise {error}\n"
        "enter.apply = apply"
    )
    name = error.partition("(")[0]
    cases = {raising.format(where=where): (where, name) for where in ("init", "target")}
    assert trial.problems(cases) == {}


def test_a_pipe_that_breaks_on_the_way_is_no_success(trial):
    """Only a reader of corral's own words may go away without harm."""
    broken = "def run(*_, **__): raise BrokenPipeError(32, 'Broken pipe')\n"
    broken += "from corral.supervisor import start\nstart.run = run"
    assert trial.problems({broken: ("Broken pipe", "hint: ")}) == {}


KILLED_IN = {
    "walled": {
        "init before its ids are mapped": "ids.write_maps = lambda step, pid: os.kill(pid, 9)",
        "init after its ids are mapped": (
            "real = ids.write_maps\n"
            "def write_maps(step, pid):\n"
            "    real(step, pid)\n"
            "    os.kill(pid, 9)\n"
            "ids.write_maps = write_maps"
        ),
        "init at work": "init.guard = lambda *a, **k: os._exit(1)",
    },
    "bare": {
        "the guardian before it is one": (
            "real = enter.apply\n"
            "def apply(steps, place, scene):\n"
            "    if place == 'init': os.kill(os.getpid(), 9)\n"
            "    real(steps, place, scene)\n"
            "enter.apply = apply"
        ),
    },
}
KILLED = {
    "the target's process": "enter.verify = lambda steps, scene: os.kill(os.getpid(), 9)",
    "the target's process, by its own exit": "enter.verify = lambda steps, scene: os._exit(0)",
}


def test_a_death_on_the_way_is_told(trial):
    killed = (*KILLED.values(), *KILLED_IN[trial.user.tier].values())
    cases = dict.fromkeys(killed, ("died before it was executed",))
    assert trial.problems(cases) == {}


def test_no_target_is_let_go_once_its_keeper_is_gone(trial):
    """Who sees it first tells: the target's process by itself, or whoever waits for both."""
    keeper = {"walled": "init", "bare": "guardian"}[trial.user.tier]
    deaths = ("os._exit(1)", "os.kill(os.getpid(), 9)")
    cases = [f"{keeper}.guard = lambda *a, **k: {death}" for death in deaths]
    assert trial.problems(dict.fromkeys(cases, ("not started",))) == {}


@pytest.mark.parametrize(
    ("number", "expected"), [("ENOENT", 127), ("EACCES", 126), ("ENOEXEC", 126), ("E2BIG", 126)]
)
def test_exec_that_fails_has_its_own_exit_codes(trial, number, expected):
    injection = f"def execve(*a): raise OSError(errno.{number}, os.strerror(errno.{number}))\nabi.execve = execve"
    code, out, err = trial.run(injection)
    assert (code, out) == (expected, ""), err
    assert "cannot execute" in err
    assert "/bin/sh" in err
    assert "\nhint: " in err
    assert trial.traces.left() == {}


def test_a_file_that_is_no_program_is_126(trial):
    program = trial.granted / "program"
    program.write_bytes(b"\x7fELF and nothing more")
    program.chmod(0o755)
    done = trial.user.run(str(program))
    assert done.returncode == 126, done.stderr.decode()


def test_a_command_that_does_not_exist_is_127(trial):
    done = trial.user.run("no-such-program-anywhere")
    assert done.returncode == 127
    assert b"no-such-program-anywhere" in done.stderr


def test_the_report_of_a_failed_set_up_says_so(trial):
    path = trial.temporary / "report.json"
    step = {"walled": "root.View", "bare": "landlock.Landlock"}[trial.user.tier]
    code, _, _ = trial.run(f"fail_step({step!r}, 'apply', 'before')", "--report", str(path))
    told = json.loads(path.read_text())
    assert code == 125
    assert told["outcome"]["kind"] == "setup_failed"
    assert told["outcome"]["exit_code"] == 125
    assert step in told["outcome"]["detail"]


def test_the_report_of_what_nobody_expected_says_so(trial):
    path = trial.temporary / "report.json"
    injection = "from corral.platforms import run_records; run_records.sweep = lambda clean: os.listdir('/no/such/place')"
    code, _, err = trial.run(injection, "--report", str(path))
    told = json.loads(path.read_text())["outcome"]
    assert (code, told["kind"], told["exit_code"]) == (125, "refused", 125)
    assert told["detail"] == "'/no/such/place': No such file or directory"
    assert told["detail"] in err
