"""What macOS can hold, chosen on any host; and the walk over a tree of processes, on a table that is written out."""

import os
import signal
import sys

import pytest

from corral.abi import darwin, darwin_proc, darwin_sandbox, darwin_spawn
from corral.errors import PolicyError, UnenforceableError
from corral.plan.decide import decide, sample
from corral.plan.host import Finding, Host
from corral.plan.model import Plan, Results
from corral.platforms.contract import Usage
from corral.platforms.macos import cache_key, options, spawn, tier_seatbelt
from corral.platforms.macos.mechanisms import jetsam, loopback_proxy, seatbelt
from corral.platforms.macos.probes import doctor
from corral.platforms.macos.probes import host as probes
from corral.platforms.macos.process_table import Process
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import rlimits, run_directories
from corral.platforms.steps import StepFailed
from corral.policy.model import Limits, Macos, Policy
from corral.programs.model import Program
from corral.record import replace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="user ids and signals are POSIX")
CAPABILITIES = ("seatbelt", "door", "rlimits", "nproc", "watcher", "sampling", "jetsam")
PROGRAM = Program(path="/usr/bin/true", argv=("true",), real="/usr/bin/true")


def mac(*missing):
    findings = [
        Finding(capability=name, status="absent" if name in missing else "proven", evidence="seen")
        for name in CAPABILITIES
    ]
    return Host(system="darwin", machine="arm64", findings=tuple(findings))


def decided(policy, *missing):
    held = decide(policy, mac(*missing), options.chains(policy))
    return {item.control: (item.mechanism, item.status) for item in held}


def steps(policy, *missing):
    controls = decide(policy, mac(*missing), options.chains(policy))
    made = tier_seatbelt.compose(policy, PROGRAM, controls, home="/Users/anna")
    return {type(step).__name__: step for step in made.steps}


def test_with_seatbelt_every_wall_is_up():
    held = decided(Policy())
    for wall in ("filesystem", "network", "subprocess", "syscalls"):
        assert held[wall] == ("seatbelt", "verified")
    assert held["tree"] == ("watcher + seatbelt", "applied")
    assert held["memory"] == (options.JETSAM, "cooperative")
    assert held["pids"][1] == held["disk"][1] == "degraded"


@pytest.mark.parametrize(
    ("policy", "missing"),
    [(Policy(), ("seatbelt",)), (Policy(macos=Macos(seatbelt="off")), ())],
    ids=["unproven", "off"],
)
def test_without_seatbelt_the_run_refuses_and_best_effort_is_cooperative(policy, missing):
    with pytest.raises(UnenforceableError) as refused:
        decided(policy, *missing)
    assert {control for control, _, _ in refused.value.missing} == {
        "filesystem",
        "network",
        "syscalls",
    }
    loose = Policy(best_effort=True, macos=policy.macos)
    held = decided(loose, *missing)
    assert held["filesystem"] == held["network"] == ("", "degraded")
    assert held["tree"] == ("watcher", "cooperative")
    assert held["subprocess"] == ("RLIMIT_NPROC", "applied")


def test_a_list_of_hosts_is_held_by_the_door_where_its_probe_proved_it():
    policy = Policy(allow=("example.com",))
    held = decide(policy, mac(), options.chains(policy))
    (network,) = [item for item in held if item.control == "network"]
    assert (network.mechanism, network.status) == (f"seatbelt + {options.PROXY}", "verified")
    assert "proxy variables" in network.why
    made = steps(policy)
    assert made["LoopbackProxy"].allow == ("example.com",)
    assert made["Seatbelt"].proxy
    # The control: nothing is opened that nobody asked for.
    assert "LoopbackProxy" not in steps(Policy())
    assert not steps(Policy())["Seatbelt"].proxy


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({"allow": ("example.com",)}, ("door",)),
        ({"listen": (8080,)}, ()),
        ({"allow": ("example.com",), "listen": (8080,)}, ()),
    ],
)
def test_what_nothing_holds_is_refused_and_opens_no_door(asked, missing):
    with pytest.raises(UnenforceableError, match="network"):
        decided(Policy(**asked), *missing)
    loose = Policy(**asked, best_effort=True)
    assert decided(loose, *missing)["network"] == ("", "degraded")
    # The network stays closed all the same.
    made = steps(loose, *missing)
    assert "(deny network*)" in made["Seatbelt"].profile
    assert not made["Seatbelt"].proxy
    assert "LoopbackProxy" not in made


@pytest.mark.parametrize(
    ("policy", "missing"),
    [({}, ("seatbelt", "door")), ({"macos": Macos(seatbelt="off")}, ())],
    ids=["unproven", "off"],
)
def test_without_seatbelt_there_is_no_door_either(policy, missing):
    with pytest.raises(UnenforceableError, match="network"):
        decided(Policy(allow=("example.com",), **policy), *missing)
    loose = Policy(allow=("example.com",), best_effort=True, **policy)
    assert decided(loose, *missing)["network"] == ("", "degraded")
    assert "LoopbackProxy" not in steps(loose, *missing)


def test_the_profile_gets_the_port_of_its_own_door(monkeypatch):
    given = []
    monkeypatch.setattr(darwin_sandbox, "init", lambda text, _: given.append(text))
    monkeypatch.setattr(darwin_proc, "threads", lambda _: 1)
    monkeypatch.setattr(os, "listdir", lambda _: [])
    results = Results()
    loopback_proxy.LoopbackProxy(allow=("example.com",)).apply(results)
    number = results.get(loopback_proxy.ProxyPort).number
    for opened, rule in ((True, f'(remote tcp "localhost:{number}")'), (False, "localhost")):
        step = seatbelt.Seatbelt(
            profile="(version 1)\n", parameters=(), closed="/", alone=True, proxy=opened
        )
        step.apply(results)
        assert (rule in given.pop()) == opened
        assert str(number) not in step.describe()
    results.release()


def test_a_failed_birth_leaves_no_door_open(monkeypatch):
    before = set(os.listdir("/dev/fd"))
    opened = []

    def fail(_step, results):
        opened.append(results.get(loopback_proxy.ProxyPort).listener.fileno())
        raise OSError(28, "full")

    monkeypatch.setattr(run_directories.WorkDirectory, "apply", fail)
    plan = Plan(
        program=PROGRAM,
        steps=(
            loopback_proxy.LoopbackProxy(allow=("example.com",)),
            run_directories.WorkDirectory(path="/nowhere", uid=0, gid=0),
        ),
        controls=(),
        environment=(),
    )
    with pytest.raises(StepFailed, match="full"):
        spawn.spawn(plan, (0, 1, 2), None)
    assert opened
    assert set(os.listdir("/dev/fd")) == before


def test_only_stated_limits_are_looked_at():
    assert sample(decide(Policy(), mac(), options.chains(Policy())), Policy()) is None
    stated = Policy(
        limits=Limits(memory=1 << 28, cpu=500, cpu_time=1000, pids=9),
        stated=frozenset({"memory", "cpu", "cpu_time", "pids"}),
    )
    controls = decide(stated, mac(), options.chains(stated))
    looked = sample(controls, stated)
    assert (looked.memory, looked.cpu, looked.cpu_time, looked.pids) == (1 << 28, 500, 1000, 9)
    assert {item.status for item in controls if item.mechanism == "sampling"} == {"cooperative"}


def test_io_and_disk_that_are_stated_are_refused():
    for name in ("io", "disk"):
        with pytest.raises(UnenforceableError, match=name):
            decided(Policy(limits=Limits(**{name: 1 << 20}), stated=frozenset({name})))


def test_the_kernels_limit_is_for_one_process_whose_limit_nobody_stated():
    assert steps(Policy())["Jetsam"].megabytes == 1024
    assert "Jetsam" not in steps(Policy(subprocess=True))
    assert "Jetsam" not in steps(Policy(stated=frozenset({"memory"})))
    assert "Jetsam" not in steps(Policy(), "jetsam")
    assert jetsam.plan((5 << 20) + 1).megabytes == 5
    assert jetsam.plan(1).megabytes == 1


def test_who_killed_a_target_with_a_limit_of_the_kernels():
    limit = jetsam.FootprintLimit(megabytes=100)
    assert limit.has_killed(signal.SIGKILL, 100 << 20)
    assert not limit.has_killed(signal.SIGKILL, 50 << 20)
    assert not limit.has_killed(signal.SIGTERM, 100 << 20)
    assert not limit.has_killed(9 << 8, 100 << 20)  # it exited with 9
    assert not limit.has_killed(None, 100 << 20)


def test_exec_gets_the_kernels_limit_only_from_its_step():
    results = Results()
    assert results.find(jetsam.FootprintLimit) is None
    jetsam.plan(5 << 20).apply(results)
    assert results.get(jetsam.FootprintLimit).megabytes == 5


def test_rlimits_are_those_that_mean_something_there():
    alone = dict(steps(Policy())["Rlimits"].values)
    assert alone == {"CORE": 1, "NOFILE": 1024, "FSIZE": 1 << 30, "NPROC": 1}
    assert "NPROC" not in dict(steps(Policy(subprocess=True))["Rlimits"].values)
    asked = Policy(limits=Limits(address_space=1 << 34, cpu_time=1500))
    assert dict(steps(asked)["Rlimits"].values) | {"AS": 1 << 34, "CPU": 2} == dict(
        steps(asked)["Rlimits"].values
    )


def test_a_limit_that_the_system_refuses_is_a_failed_step():
    """As macOS does with an address space below what is mapped; here by a limit that can be no limit."""
    with pytest.raises(OSError, match="RLIMIT_NOFILE"):
        rlimits.Rlimits(values=(("NOFILE", -5),)).apply(None)


def test_without_seatbelt_no_profile_is_applied():
    assert "Seatbelt" in steps(Policy())
    assert "Seatbelt" not in steps(Policy(best_effort=True), "seatbelt")


def test_the_directory_that_must_be_closed_is_one_that_is_not_granted():
    assert seatbelt.directory_outside(("/opt/homebrew",)) == "/Users"
    assert seatbelt.directory_outside(("/Users",)) == "/Library/Preferences"
    assert seatbelt.directory_outside(("/Users", "/Library")) == "/Applications"
    with pytest.raises(PolicyError, match="nothing can show"):
        seatbelt.directory_outside(("/Users", "/Library", "/Applications"))


def test_a_list_of_processes_that_did_not_fit_is_asked_for_again(monkeypatch):
    """More of them come between the question how many there are and the list."""
    living = list(range(1, 1001))

    def listed(room, size):
        if room is None:
            return 100
        count = min(len(living), size // 4)
        room[:count] = living[-count:]
        return count

    monkeypatch.setattr(darwin_proc, "proc_listallpids", listed)
    assert darwin_proc.all_pids() == living


def test_without_a_wall_every_trial_from_inside_fails():
    """The control of the trials: they see it when there is no wall."""
    for trial, words in (
        (seatbelt._verify_network, "network can be reached"),
        (seatbelt._verify_alone, "process can be started"),
        (
            lambda: seatbelt._expect_denial(lambda: os.listdir("/"), "can be listed"),
            "can be listed",
        ),
    ):
        with pytest.raises(OSError, match=words):
            trial()

    def denied():
        raise PermissionError

    seatbelt._expect_denial(denied, "cannot happen")


def test_an_act_that_failed_for_another_reason_was_not_denied(tmp_path):
    missing, kept = tmp_path / "missing", tmp_path / "kept"
    trial = probes.Trial(fd=-1, marker=str(missing), other=os.getpid())
    results = Results()
    results.add(run_directories.PrivateDirectory(path=str(tmp_path)))
    (tmp_path / "home").mkdir()
    with pytest.raises(FileNotFoundError):
        trial.apply(results)
    # The control: what is not there and what can be read are told apart.
    kept.touch()
    with pytest.raises(RuntimeError, match="succeeded"):
        replace(trial, marker=str(kept)).apply(results)


def test_doctor_says_what_was_proven():
    told = {text: status for status, text, _ in doctor.lines(mac())}
    assert told["Network isolation: supported on macOS"] == "proven"
    assert told["Seccomp: NOT available (Linux only)"] == "absent"
    told = {text: status for status, text, _ in doctor.lines(mac("seatbelt", "watcher"))}
    assert told["Network isolation: NOT supported on macOS"] == "absent"
    assert told["Timeout enforcement: NOT supported"] == "absent"


@pytest.mark.skipif(sys.platform == "darwin", reason="here the functions exist")
def test_elsewhere_the_bindings_say_that_this_is_no_mac():
    for call in (
        darwin_proc.all_pids,
        lambda: darwin_spawn.exec_in_place("/bin/true", ("true",), (), megabytes=0),
        lambda: darwin_sandbox.init("(version 1)", ()),
        lambda: darwin.sysctl_text("kern.bootsessionuuid"),
    ):
        with pytest.raises(darwin.MissingFunctionError, match="only macOS"):
            call()
    assert cache_key.build("/usr/bin/node")[-1] == "/usr/bin/node"


class Written:
    """A table of processes that do not exist; signals to them are written down."""

    def __init__(self, *rows):
        self.living = {row.pid: row for row in rows}
        self.sent = []
        self.followed = []
        self.groups = {}
        self.forbidden = set()
        self.forks = {}

    def processes(self):
        return list(self.living.values())

    def unique_id(self, pid):
        return self.living[pid].unique if pid in self.living else 0

    def group(self, leader):
        return self.groups.get(leader, [])

    def usage(self, pid):
        return Usage(cpu=1.0, memory=pid, tasks=2)

    def follow(self, pid):
        self.followed.append(pid)

    def kill(self, pid, number):
        self.sent.append((pid, number))
        if pid in self.forbidden:
            raise PermissionError
        if number == signal.SIGKILL:
            del self.living[pid]
        for row in self.forks.pop(pid, ()):
            self.living[row.pid] = row


@pytest.fixture
def table(monkeypatch):
    """1 -> 10 (the target) -> 11 -> 12; 20 is somebody else's."""
    made = Written(
        Process(pid=10, unique=110, parent=101),
        Process(pid=11, unique=111, parent=110),
        Process(pid=12, unique=112, parent=111),
        Process(pid=20, unique=120, parent=101),
    )
    monkeypatch.setattr(os, "kill", made.kill)
    return made


def tree(table, *, grouped=False):
    return Tree(table, 10, 110, grouped=grouped)


def pids(rows):
    return sorted(row.pid for row in rows)


def test_a_tree_is_what_was_forked_in_it(table):
    walked = tree(table)
    assert pids(walked.walk()) == [10, 11, 12]
    assert sorted(table.followed) == [10, 11, 12]
    walked.walk()
    assert len(table.followed) == 3  # each once


def test_dead_parents_still_link_their_children(table):
    walked = tree(table)
    walked.walk()
    del table.living[10], table.living[11]
    table.living[13] = Process(pid=13, unique=113, parent=111)
    assert pids(walked.walk()) == [12, 13]


def test_the_group_holds_who_lost_the_chain(table):
    table.living[30] = Process(pid=30, unique=130, parent=999)
    table.groups[10] = [10, 30]
    assert pids(tree(table, grouped=True).walk()) == [10, 11, 12, 30]
    assert pids(tree(table).walk()) == [10, 11, 12]


def test_nothing_descends_from_a_process_that_nobody_saw(table):
    """0 is what a table says of unknown parents: the tree of a target that ended at once is not the machine."""
    table.living[1] = Process(pid=1, unique=101, parent=0)
    table.living[40] = Process(pid=40, unique=140, parent=0)
    Tree(table, 10, 0, grouped=False).kill()
    assert table.sent == []
    table.groups[10] = [10, 30]
    Tree(table, 10, 0, grouped=True).kill()
    assert {pid for pid, _ in table.sent} == {10, 11, 12}


@pytest.mark.parametrize(
    "pid", [0, 1, os.getpid(), os.getppid()], ids=["kernel", "init", "self", "parent"]
)
def test_corral_and_the_system_are_never_in_a_tree(table, pid):
    table.living[pid] = Process(pid=pid, unique=199, parent=110)
    table.living[41] = Process(pid=41, unique=141, parent=199)
    table.groups[10] = [10, pid]
    assert pids(tree(table, grouped=True).walk()) == [10, 11, 12]


def test_everybody_is_stopped_before_anybody_is_killed(table):
    tree(table).kill()
    numbers = [number for _, number in table.sent]
    assert numbers == [signal.SIGSTOP] * 3 + [signal.SIGKILL] * 3
    assert pids(table.living.values()) == [20]


def test_who_was_forked_during_the_walk_is_stopped_and_killed_too(table):
    table.forks[11] = [Process(pid=14, unique=114, parent=111)]
    tree(table).kill()
    assert pids(table.living.values()) == [20]
    assert table.sent.index((14, signal.SIGSTOP)) < table.sent.index((10, signal.SIGKILL))


def test_a_number_that_was_given_out_again_is_left_alone(table):
    walked = tree(table)
    rows = walked.walk()
    table.living[12] = Process(pid=12, unique=555, parent=101)
    for row in rows:
        walked._send(row, signal.SIGKILL)
    assert (12, signal.SIGKILL) not in table.sent
    assert 12 in table.living


def test_a_process_of_another_user_does_not_keep_the_walk_going(table):
    table.forbidden.add(12)
    tree(table).kill()
    assert pids(table.living.values()) == [12, 20]


def test_use_is_added_up(table):
    assert tree(table).measure() == Usage(cpu=3.0, memory=33, tasks=6)
    assert tree(table).measure(excluded=10) == Usage(cpu=2.0, memory=23, tasks=4)
