"""Test which mechanisms are chosen on macOS, and how a process tree is found in a fake process
table.
"""

import os
import pathlib
import signal
import subprocess
import sys
import types

import pytest

from corral.abi import darwin, darwin_proc, darwin_sandbox, darwin_spawn
from corral.errors import PolicyError, UnenforceableError
from corral.plan.decide import decide, sample
from corral.plan.host import Finding, Host
from corral.plan.model import Plan, Results
from corral.platforms import evidence
from corral.platforms.contract import Usage
from corral.platforms.macos import (
    cache_key,
    options,
    spawn,
    tier_seatbelt,
    watcher,
    working_directory,
)
from corral.platforms.macos.backend import Macos
from corral.platforms.macos.mechanisms import jetsam, loopback_proxy, seatbelt, seatbelt_profile
from corral.platforms.macos.probes import doctor
from corral.platforms.macos.probes import host as probes
from corral.platforms.macos.process_table import Process
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import rlimits, run_directories
from corral.platforms.steps import StepFailed
from corral.policy.manifest import from_data
from corral.policy.model import Grant, Limits, Policy, Source
from corral.policy.model import Macos as MacosPolicy
from corral.programs.model import Program
from corral.record import replace
from corral.supervisor import prepare
from ledger.evidence import MACOS, format_table

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX user ids and signals")
CAPABILITIES = (
    "seatbelt", "starts python", "starts node", "disclaim", "marker", "loopback_proxy", "rlimits", "nproc", "watcher", "sampling",
    "jetsam",
)  # fmt: skip
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


def test_with_seatbelt_every_wall_is_enforced():
    held = decided(Policy())
    for wall in ("filesystem", "network", "subprocess"):
        assert held[wall] == ("seatbelt", "verified")
    assert held["syscalls"] == ("seatbelt + disclaimed consent", "verified")
    assert held["tree"] == ("watcher + seatbelt", "applied")
    assert held["memory"] == (options.JETSAM, "cooperative")
    assert held["pids"] == ("RLIMIT_NPROC", "cooperative")
    assert held["disk"][1] == "degraded"


def test_without_a_seatbelt_marker_ending_all_processes_is_reported_as_cooperative():
    assert decided(Policy(), "marker")["tree"] == ("watcher + seatbelt", "cooperative")


def test_a_runtime_that_does_not_start_disables_no_wall():
    held = decided(Policy(), "starts python", "starts node")
    assert held["filesystem"] == ("seatbelt", "verified")


def test_a_runtime_that_did_not_start_is_reported_in_its_runs():
    python = replace(PROGRAM, path="/opt/x/python3.12", real="/opt/x/python3.12")
    (text,) = prepare._runtime_warnings(python, mac("starts python"))
    assert text == "python did not start in the sandbox when it was probed: seen"
    assert prepare._runtime_warnings(PROGRAM, mac("starts python")) == ()
    assert prepare._runtime_warnings(python, mac("starts node")) == ()
    # On Linux no finding says whether a runtime starts, so there is no warning.
    assert prepare._runtime_warnings(python, Host(system="linux", machine="x86_64")) == ()


@pytest.mark.parametrize(
    ("policy", "missing", "disclaims"),
    [
        (Policy(), (), True),
        (Policy(), ("disclaim",), False),
        (Policy(macos=MacosPolicy(disclaim=False)), (), False),
        (Policy(best_effort=True), ("seatbelt",), True),
    ],
)
def test_the_target_does_not_inherit_corrals_privacy_consents_unless_the_policy_says_so(
    policy, missing, disclaims
):
    assert ("Disclaimer" in steps(policy, *missing)) == disclaims
    held = decide(policy, mac(*missing), options.chains(policy))
    (syscalls,) = [item for item in held if item.control == "syscalls"]
    assert ("privacy consents" in syscalls.why) == (not disclaims and "seatbelt" not in missing)


def test_a_grant_that_needs_consent_is_reported_in_the_plan(tmp_path):
    home = os.path.realpath(tmp_path)
    (tmp_path / "Documents/notes").mkdir(parents=True)
    for path, told in ((f"{home}/Documents/notes", True), (home, False)):
        grant = Grant(path=path, access="read", device=1, inode=1, directory=True, owner=1, group=1)
        for disclaim in (True, False):
            policy = Policy(grants=(grant,), macos=MacosPolicy(disclaim=disclaim))
            controls = decide(policy, mac(), options.chains(policy))
            made = tier_seatbelt.compose(policy, PROGRAM, controls, home=home)
            assert any("macOS asks the user before" in text for text in made.warnings) == (
                told and disclaim
            )


@pytest.mark.parametrize("trustd", [True, False])
def test_the_target_may_use_the_systems_certificate_service_only_if_the_user_allows_it(trustd):
    policy = Policy(allow=("example.com",), macos=MacosPolicy(trustd=trustd))
    assert ("com.apple.trustd" in steps(policy)["Seatbelt"].profile) == trustd
    closed = Policy(macos=MacosPolicy(trustd=trustd))
    assert "com.apple.trustd" not in steps(closed)["Seatbelt"].profile


def test_each_run_has_its_own_marker():
    one, two = (steps(Policy())["Seatbelt"] for _ in range(2))
    assert f'(global-name "{one.marker}")' in one.profile
    assert one.marker != two.marker
    assert seatbelt.find_marker((one,)) == one.marker
    assert seatbelt.find_marker(()) == ""


def test_a_grant_of_everything_is_refused_with_an_explanation():
    grant = Grant(path="/", access="read", device=1, inode=1, directory=True, owner=0, group=0)
    with pytest.raises(PolicyError, match="so corral cannot check the sandbox"):
        steps(Policy(grants=(grant,)))


@pytest.mark.parametrize(
    ("policy", "missing"),
    [(Policy(), ("seatbelt",)), (Policy(macos=MacosPolicy(seatbelt="off")), ())],
    ids=["unproven", "off"],
)
def test_without_seatbelt_a_run_is_refused_and_best_effort_is_cooperative(policy, missing):
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


def test_the_proxy_enforces_a_list_of_hosts_if_its_probe_succeeded():
    policy = Policy(allow=("example.com",))
    held = decide(policy, mac(), options.chains(policy))
    (network,) = [item for item in held if item.control == "network"]
    assert (network.mechanism, network.status) == (f"seatbelt + {options.PROXY}", "verified")
    assert "proxy variables" in network.why
    made = steps(policy)
    assert made["LoopbackProxy"].allow == ("example.com",)
    assert made["Seatbelt"].proxy
    # Sanity check: without an allowlist no port is opened.
    assert "LoopbackProxy" not in steps(Policy())
    assert not steps(Policy())["Seatbelt"].proxy


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({"allow": ("example.com",)}, ("loopback_proxy",)),
        ({"listen": (8080,)}, ()),
        ({"allow": ("example.com",), "listen": (8080,)}, ()),
    ],
)
def test_an_unenforceable_network_is_refused_and_opens_no_port(asked, missing):
    with pytest.raises(UnenforceableError, match="network"):
        decided(Policy(**asked), *missing)
    loose = Policy(**asked, best_effort=True)
    assert decided(loose, *missing)["network"] == ("", "degraded")
    # With `best_effort` the network stays closed.
    made = steps(loose, *missing)
    assert "(deny network*)" in made["Seatbelt"].profile
    assert not made["Seatbelt"].proxy
    assert "LoopbackProxy" not in made


@pytest.mark.parametrize(
    ("policy", "missing"),
    [({}, ("seatbelt", "loopback_proxy")), ({"macos": MacosPolicy(seatbelt="off")}, ())],
    ids=["unproven", "off"],
)
def test_without_seatbelt_there_is_no_proxy(policy, missing):
    with pytest.raises(UnenforceableError, match="network"):
        decided(Policy(allow=("example.com",), **policy), *missing)
    loose = Policy(allow=("example.com",), best_effort=True, **policy)
    assert decided(loose, *missing)["network"] == ("", "degraded")
    assert "LoopbackProxy" not in steps(loose, *missing)


def test_the_profile_gets_the_port_of_its_own_proxy(monkeypatch):
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


def test_a_failed_spawn_leaves_no_port_open(monkeypatch):
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


def test_only_stated_limits_are_sampled_on_macos():
    assert sample(decide(Policy(), mac(), options.chains(Policy())), Policy()) is None
    stated = Policy(
        limits=Limits(memory=1 << 28, cpu=500, cpu_time=1000, pids=9),
        stated=frozenset({"memory", "cpu", "cpu_time", "pids"}),
    )
    controls = decide(stated, mac(), options.chains(stated))
    looked = sample(controls, stated)
    assert (looked.memory, looked.cpu, looked.cpu_time, looked.pids) == (1 << 28, 500, 1000, 9)
    assert {item.status for item in controls if item.mechanism == "sampling"} == {"cooperative"}


def test_stated_io_and_disk_limits_are_refused():
    for name in ("io", "disk"):
        with pytest.raises(UnenforceableError, match=name):
            decided(Policy(limits=Limits(**{name: 1 << 20}), stated=frozenset({name})))


def test_jetsam_is_used_for_one_process_without_a_stated_limit():
    assert steps(Policy())["Jetsam"].megabytes == 1024
    assert "Jetsam" not in steps(Policy(subprocess=True))
    assert "Jetsam" not in steps(Policy(stated=frozenset({"memory"})))
    assert "Jetsam" not in steps(Policy(), "jetsam")
    assert jetsam.plan((5 << 20) + 1).megabytes == 5
    assert jetsam.plan(1).megabytes == 1


def test_kills_at_the_jetsam_limit_are_recognized():
    limit = jetsam.FootprintLimit(megabytes=100)
    assert limit.has_killed(signal.SIGKILL, 100 << 20)
    assert not limit.has_killed(signal.SIGKILL, 50 << 20)
    assert not limit.has_killed(signal.SIGTERM, 100 << 20)
    assert not limit.has_killed(9 << 8, 100 << 20)  # this status means exit code 9, not signal 9
    assert not limit.has_killed(None, 100 << 20)


def test_a_jetsam_memory_limit_is_set_only_if_its_step_was_applied():
    results = Results()
    assert results.find(jetsam.FootprintLimit) is None
    jetsam.plan(5 << 20).apply(results)
    assert results.get(jetsam.FootprintLimit).megabytes == 5


def test_rlimits_match_those_that_macos_enforces():
    alone = dict(steps(Policy())["Rlimits"].values)
    assert alone == {"CORE": 1, "NOFILE": 1024, "FSIZE": 1 << 30, "NPROC": 1}
    many = Policy(subprocess=True)
    controls = decide(many, mac(), options.chains(many))
    made = tier_seatbelt.compose(many, PROGRAM, controls, home="/Users/anna", running=400)
    assert dict(made.steps[1].values)["NPROC"] == 400 + 128
    unbounded = Policy(subprocess=True, limits=Limits(pids=None))
    assert "NPROC" not in dict(steps(unbounded)["Rlimits"].values)
    asked = Policy(limits=Limits(address_space=1 << 34, cpu_time=1500))
    assert dict(steps(asked)["Rlimits"].values) | {"AS": 1 << 34, "CPU": 2} == dict(
        steps(asked)["Rlimits"].values
    )


def test_an_address_space_that_macos_does_not_accept_is_refused_or_degraded(monkeypatch):
    """Imitate macOS, which refuses a limit below the size that is already mapped. Linux accepts
    such a limit.
    """

    def refuse(*_):
        raise ValueError("current limit exceeds maximum limit")

    policy = Policy(limits=Limits(address_space=1 << 26), stated=frozenset({"address_space"}))
    # Sanity check: on Linux the limit is accepted.
    assert decided(policy)["address_space"] == ("RLIMIT_AS", "applied")
    monkeypatch.setattr(rlimits.resource, "setrlimit", refuse)
    with pytest.raises(UnenforceableError, match="RLIMIT_AS of 67108864 was refused"):
        decided(policy)
    loose = replace(policy, best_effort=True)
    assert decided(loose)["address_space"] == ("", "degraded")
    assert "AS" not in dict(steps(loose)["Rlimits"].values)


def test_a_limit_that_the_system_does_not_accept_is_a_failed_step():
    """Use a limit that every system refuses, so that the test works on Linux too."""
    with pytest.raises(OSError, match="RLIMIT_NOFILE"):
        rlimits.Rlimits(values=(("NOFILE", -5),)).apply(None)


def test_without_seatbelt_no_profile_is_applied():
    assert "Seatbelt" in steps(Policy())
    assert "Seatbelt" not in steps(Policy(best_effort=True), "seatbelt")


def test_the_check_from_inside_uses_a_directory_that_is_not_granted():
    assert seatbelt.directory_outside(("/opt/homebrew",)) == "/Users"
    assert seatbelt.directory_outside(("/Users",)) == "/Library/Preferences"
    assert seatbelt.directory_outside(("/Users", "/Library")) == "/Applications"
    with pytest.raises(PolicyError, match="so corral cannot check the sandbox"):
        seatbelt.directory_outside(("/Users", "/Library", "/Applications"))


def test_a_process_list_that_is_too_long_is_read_again(monkeypatch):
    """Let the number of processes grow after corral has asked for it and before corral reads the
    list. corral must read the list again, with more room.
    """
    living = list(range(1, 10001))

    def listed(room, size):
        if room is None:
            return 100
        count = min(len(living), size // 4)
        room[:count] = living[-count:]
        return count

    def listed_bytes(_kind, _id, room, size):
        return listed(room, size) * 4

    monkeypatch.setattr(darwin_proc, "proc_listallpids", listed)
    monkeypatch.setattr(darwin_proc, "proc_listpids", listed_bytes)
    monkeypatch.setattr(darwin_proc, "proc_listpgrppids", lambda _group, *room: listed(*room))
    assert darwin_proc.all_pids() == living
    assert darwin_proc.count_user(501) == len(living)
    assert darwin_proc.group_pids(7) == living


def test_a_process_group_that_cannot_be_listed_counts_as_empty(monkeypatch):
    monkeypatch.setattr(darwin_proc, "proc_listpgrppids", lambda *_: -1)
    assert darwin_proc.group_pids(7) == []


def test_without_a_wall_every_check_from_inside_fails():
    """Run the checks without a sandbox. Every check must fail, which proves that it can fail."""
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


def test_a_failure_for_another_reason_is_not_a_denial(tmp_path):
    missing, kept = tmp_path / "missing", tmp_path / "kept"
    results = Results()
    results.add(run_directories.PrivateDirectory(path=str(tmp_path)))
    (tmp_path / "home").mkdir()
    with pytest.raises(FileNotFoundError):
        probes.try_inside(results, str(missing), os.getpid())
    # Sanity check: the probe notices that a readable file can be read.
    kept.touch()
    with pytest.raises(RuntimeError, match="succeeded"):
        probes.try_inside(results, str(kept), os.getpid())


def test_doctor_shows_proven_mechanisms():
    told = {text: status for status, text, _ in doctor.lines(mac())}
    assert told["Seatbelt: supported [read]"] == "proven"
    assert all("[" in text for _, text, finding in doctor.lines(mac()) if finding)
    assert told["Network isolation: supported on macOS"] == "proven"
    assert told["Seccomp: NOT available (Linux only)"] == "absent"
    told = {text: status for status, text, _ in doctor.lines(mac("seatbelt", "watcher"))}
    assert told["Network isolation: NOT supported on macOS"] == "absent"
    assert told["Timeout enforcement: NOT supported"] == "absent"


def test_every_row_of_evidence_names_its_basis_and_its_test(monkeypatch):
    """Check the evidence rows for Macs. `doctor` and SECURITY.md may say "seen on a Mac" only if
    SEEN has a date for it.
    """
    rows = {row.capability for row in MACOS}
    assert {name for name, _, _ in probes.LABELS} | set(evidence.SEEN["darwin"]) <= rows
    folder = pathlib.Path(__file__).parents[3] / "macos"
    for row in MACOS:
        file, _, test = row.test.partition("::")
        assert f"def {test or 'test_'}" in (folder / file).read_text(), row.test
        assert evidence.format_basis("darwin", row.capability) == (
            "seen on a Mac" if row.capability in evidence.SEEN["darwin"] else "read"
        )
    assert evidence.format_basis("linux", "seatbelt") == ""
    monkeypatch.setitem(evidence.SEEN["darwin"], "seatbelt", "macos-15, 2026-12-01")
    assert evidence.format_basis("darwin", "seatbelt") == "seen on a Mac"
    assert "seen on a Mac (macos-15, 2026-12-01)" in format_table("darwin")
    assert "Seatbelt: supported [seen on a Mac]" in [text for _, text, _ in doctor.lines(mac())]


@pytest.mark.skipif(sys.platform == "darwin", reason="tests other systems than macOS")
def test_the_bindings_fail_clearly_on_other_systems():
    for call in (
        darwin_proc.all_pids,
        lambda: darwin_spawn.exec_in_place("/bin/true", ("true",), ()),
        lambda: darwin_sandbox.init("(version 1)", ()),
        lambda: darwin.sysctl_text("kern.bootsessionuuid"),
    ):
        with pytest.raises(darwin.MissingFunctionError, match="only macOS"):
            call()
    assert cache_key.build("/usr/bin/node")[-1] == "/usr/bin/node"


def test_no_library_with_guarded_descriptors_is_loaded_before_the_fork():
    """Check that the watcher imports neither sqlite3 nor _scproxy. Their libraries open guarded
    descriptors, and macOS would kill the watcher when it closes its inherited descriptors.
    """
    code = (
        "import sys, corral.platforms.macos.backend, corral.platforms.macos.spawn, corral.supervisor.start\n"
        "print(sorted({'sqlite3', '_sqlite3', '_scproxy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Written:
    """A fake process table that records the signals that corral sends."""

    def __init__(self, *rows):
        self.living = {row.pid: row for row in rows}
        self.sent = []
        self.followed = []
        self.groups = {}
        self.forbidden = set()
        self.forks = {}
        self.marked = {}
        self.answering = {}

    def has_marker(self, pid, marker):
        return self.marked.get(pid) == marker

    def responsible(self, pid):
        return self.answering.get(pid, pid)

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
    """Return a table with the tree 1 -> 10 (the target) -> 11 -> 12, and with process 20, which
    does not belong to the tree.
    """
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


def test_a_tree_contains_the_forks_of_its_processes(table):
    walked = tree(table)
    assert pids(walked.walk()) == [10, 11, 12]
    assert sorted(table.followed) == [10, 11, 12]
    walked.walk()
    assert len(table.followed) == 3  # no process is followed twice


def test_children_of_a_process_that_has_ended_still_belong_to_its_tree(table):
    walked = tree(table)
    walked.walk()
    del table.living[10], table.living[11]
    table.living[13] = Process(pid=13, unique=113, parent=111)
    assert pids(walked.walk()) == [12, 13]


def test_processes_of_the_group_belong_to_the_tree(table):
    table.living[30] = Process(pid=30, unique=130, parent=999)
    table.groups[10] = [10, 30]
    assert pids(tree(table, grouped=True).walk()) == [10, 11, 12, 30]
    assert pids(tree(table).walk()) == [10, 11, 12]


def test_an_orphan_is_recognized_by_profile_or_responsible_process(table):
    """Use orphans whose parents are no longer in the process table. corral recognizes an orphan by
    its profile or by its responsible process. The latter counts only until the target is reaped,
    because another process may then get the target's pid.
    """
    for pid in (31, 32, 33):
        table.living[pid] = Process(pid=pid, unique=100 + pid, parent=999)
    table.living[34] = Process(pid=34, unique=134, parent=131)
    table.marked = {31: "ours", 32: "theirs"}
    table.answering = {33: 10}
    assert pids(Tree(table, 10, 110, grouped=False, marker="ours").walk()) == [10, 11, 12, 31, 34]
    assert pids(Tree(table, 10, 110, grouped=True).walk()) == [10, 11, 12, 33]
    assert pids(Tree(table, 10, 110, grouped=False).walk()) == [10, 11, 12]
    Tree(table, 10, 110, grouped=True, marker="ours").kill()
    assert pids(table.living.values()) == [20, 32]


def test_processes_with_an_unknown_parent_are_not_in_a_tree(table):
    """Use parent 0, which the process table reports for unknown parents. The unique id of a target
    that ended at once is 0 too. corral must not kill a process merely because both numbers are 0.
    """
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


def test_all_processes_are_stopped_before_any_is_killed(table):
    tree(table).kill()
    numbers = [number for _, number in table.sent]
    assert numbers == [signal.SIGSTOP] * 3 + [signal.SIGKILL] * 3
    assert pids(table.living.values()) == [20]


def test_a_process_forked_during_the_walk_is_killed_too(table):
    table.forks[11] = [Process(pid=14, unique=114, parent=111)]
    tree(table).kill()
    assert pids(table.living.values()) == [20]
    assert table.sent.index((14, signal.SIGSTOP)) < table.sent.index((10, signal.SIGKILL))


def test_a_reused_pid_is_not_signalled(table):
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


def test_usage_of_the_tree_is_added_up(table):
    assert tree(table).measure() == Usage(cpu=3.0, memory=33, tasks=6)
    assert tree(table).measure(excluded=10) == Usage(cpu=2.0, memory=23, tasks=4)


@pytest.mark.parametrize(
    ("argv", "found", "warned"),
    [
        (("python3", "/x/server.py"), "/home", "starts in its private home"),
        (("python3", "-m", "mcp_server_time"), "/home", "starts in its private home"),
        (("python3", "-m", "server"), "", "many servers exit if they cannot read it"),
        (("python3", "-m", "package.sub"), "", "many servers exit if they cannot read it"),
        (("python3", "-u", "-c", "import server"), "", "many servers exit if they cannot read it"),
        (("python3", "/x/server.py", "-c", "/x/settings"), "/home", "starts in its private home"),
        (("python3", "/x/server.py", "data"), "", "many servers exit if they cannot read it"),
        (
            ("python3", "/x/server.py", "--root=./data"),
            "",
            "many servers exit if they cannot read it",
        ),
        (("node", "/x/server.js"), "", ""),
    ],
)
def test_a_python_server_does_not_start_beside_a_hidden_environment_file(
    tmp_path, argv, found, warned
):
    """Check that the server starts in another directory if a `.env` in its working directory is
    hidden. pydantic-settings reads this file, so the server could fail with a PermissionError (seen
    with pydantic-settings 2.14.1).
    """
    for name in ("server.py", "data", "package"):
        (tmp_path / name).touch()
    (tmp_path / ".env").touch()
    top = os.path.realpath(tmp_path)
    program = Program(path=f"/usr/bin/{argv[0]}", argv=argv, cwd=top)
    view = seatbelt_profile.View(execute=(), needed=(), private="/p", write=(top,))
    start_in, warnings = working_directory.choose(view, program, "/home")
    assert start_in == found
    assert [warned in text and f"--read {top}/.env" in text for text in warnings] == (
        [True] if warned else []
    )
    readable = seatbelt_profile.View(execute=(), needed=(), private="/p", read=(f"{top}/.env",))
    assert working_directory.choose(readable, program, "/home") == ("", [])
    (tmp_path / ".env").unlink()
    assert working_directory.choose(view, program, "/home") == ("", [])


def test_the_plan_starts_no_server_beside_a_hidden_environment_file(tmp_path):
    (tmp_path / ".env").touch()
    top = os.path.realpath(tmp_path)
    grant = Grant(path=top, access="write", device=1, inode=1, directory=True, owner=501, group=20)
    policy = Policy(grants=(grant,))
    controls = decide(policy, mac(), options.chains(policy))
    program = Program(path="/usr/bin/python3", argv=("python3", "/x/server.py"), cwd=top)
    made = tier_seatbelt.compose(policy, program, controls, home="/Users/anna")
    assert made.start_in == made.home
    assert any("/.env is hidden" in text for text in made.warnings)
    node = replace(program, path="/usr/bin/node", argv=("node", "/x/server.js"))
    assert tier_seatbelt.compose(policy, node, controls, home="/Users/anna").start_in == ""


@pytest.mark.parametrize("hidden", [True, False])
def test_the_whole_plan_starts_in_the_private_home(monkeypatch, tmp_path, hidden):
    backend = Macos(types.SimpleNamespace(count_own=lambda: 0))
    monkeypatch.setattr(prepare.current, "load", lambda: backend)
    top = os.path.realpath(tmp_path)
    (tmp_path / "server.py").touch()
    if hidden:
        (tmp_path / ".env").touch()
    manifest = from_data({"version": 1, "filesystem": {"write": [top]}}, "corral.toml")
    plan = prepare.prepare(
        [sys.executable, f"{top}/server.py"],
        [Source(manifest=manifest, trust="user")],
        environment=dict(os.environ),
        cwd=top,
        machine=mac(),
    )
    home = dict(plan.environment)["HOME"]
    assert plan.program.cwd == (home if hidden else top)
    assert any("/.env is hidden" in text for text in plan.warnings) is hidden


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no signal mask")
def test_a_failed_fork_leaves_no_signal_blocked_and_no_pipe_open(monkeypatch):
    def fail():
        raise BlockingIOError(11, "no process is left")

    opened = []
    make = watcher.open_pipes
    monkeypatch.setattr(watcher, "open_pipes", lambda: opened.extend(make()) or opened)
    monkeypatch.setattr(os, "fork", fail)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(StepFailed, match="fork"):
        spawn._fork_watcher(None, None, (0, 1, 2), None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert len(opened) == 2
    for descriptor in (*opened[0].descriptors(), *opened[1].descriptors()):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
