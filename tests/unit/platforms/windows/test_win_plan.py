"""Test Windows plans. The tests supply the findings, so they run on any host."""

from __future__ import annotations

import types

import pytest

from corral.api import wire_format
from corral.errors import PolicyError, UnenforceableError
from corral.plan import decide as plan
from corral.plan.host import Finding, Host
from corral.plan.model import Plan
from corral.platforms.contract import Ending, Reaped
from corral.platforms.windows import backend as backends
from corral.platforms.windows import layers, options, undo
from corral.platforms.windows.files.granted_tree import Node, Tree
from corral.platforms.windows.layers import BASE
from corral.platforms.windows.mechanisms import (
    app_container,
    desktop,
    job,
    mitigations,
    network_capabilities,
    path_grants,
    process_creation,
    restricted_token,
    work_directory,
)
from corral.platforms.windows.probes import doctor
from corral.platforms.windows.relay import start as relay_start
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.policy.model import WALLS, Grant, Limits, Policy, Windows
from corral.programs.model import Program
from corral.record import replace
from corral.supervisor import report

JOBS = (
    "job_read_back", "job_kill_on_close", "job_memory", "job_processes", "job_cpu_rate",
    "job_accounting",
)  # fmt: skip
FULL = (
    *JOBS, "job_ui", "job_priority", "child_process_policy", "app_container", "desktop", "relay",
    "restricted token", "mitigations", "strict_handles",
)  # fmt: skip
HOME = "C:\\Users\\someone"
PROGRAM = Program(path="C:\\x\\server.exe", argv=("C:\\x\\server.exe",), typed=("server",))
LETTING_GO = Policy(best_effort=True)


def host(*proven: str) -> Host:
    names = dict.fromkeys((*FULL, "session", "minifilter driver"))
    findings = [
        Finding(
            capability=name,
            status="proven" if name in proven else "absent",
            evidence=f"{name} was tried",
        )
        for name in names
    ]
    return Host(system="windows", machine="amd64", findings=tuple(findings))


def decided(policy: Policy, machine: Host) -> dict[str, plan.Held]:
    found = plan.decide(policy, machine, options.chains(policy))
    return {held.control: held for held in found}


def composed(policy: Policy, machine: Host, program: Program = PROGRAM) -> tuple[plan.Step, ...]:
    controls = plan.decide(policy, machine, options.chains(policy))
    return layers.compose(policy, program, controls, home=HOME, run="1-abc").steps


def kinds(steps: tuple[plan.Step, ...]) -> list[type]:
    return [type(step) for step in steps]


def missing(policy: Policy, machine: Host) -> set[str]:
    with pytest.raises(UnenforceableError) as caught:
        decided(policy, machine)
    return {control for control, _, _ in caught.value.missing}


def test_every_wall_is_verified_if_everything_was_proven():
    held = decided(Policy(), host(*FULL))
    assert {wall: held[wall].status for wall in WALLS} == dict.fromkeys(WALLS, "verified")
    assert {held[name].status for name in ("memory", "pids")} == {"applied"}
    assert held["syscalls"].mechanism == (
        "app container + own desktop + mitigations + ui restrictions + priority"
    )


def test_every_wall_is_missing_if_nothing_was_proven():
    assert missing(Policy(), host()) == set(WALLS)


@pytest.mark.parametrize("limit", ["io", "fds", "disk", "address_space"])
def test_a_limit_that_windows_lacks_is_refused_only_if_stated(limit):
    limits = replace(Limits(), **{limit: 1 << 20})
    assert missing(Policy(limits=limits, stated=frozenset({limit})), host(*FULL)) == {limit}
    assert decided(Policy(limits=limits), host(*FULL))[limit].status == "degraded"


@pytest.mark.parametrize(
    ("limit", "need"),
    [("memory", "job_memory"), ("cpu", "job_cpu_rate"), ("pids", "job_processes")],
)
def test_a_limit_without_effect_is_refused_if_it_is_stated(limit, need):
    limits = Limits(memory=1 << 26, cpu=500, pids=4)
    stated = Policy(limits=limits, stated=frozenset({limit}), subprocess=True)
    lacking = host(*(name for name in FULL if name != need))
    assert missing(stated, lacking) == {limit}
    assert decided(stated, host(*FULL))[limit].mechanism == "job object"
    assert decided(replace(stated, best_effort=True), lacking)[limit].status == "degraded"


def test_cpu_time_is_sampled_only_if_stated():
    limits = Limits(cpu_time=1000)
    assert decided(Policy(limits=limits), host(*FULL))["cpu_time"].status == "degraded"
    stated = Policy(limits=limits, stated=frozenset({"cpu_time"}))
    assert decided(stated, host(*FULL))["cpu_time"].status == "cooperative"
    assert missing(stated, host(*(name for name in FULL if name != "job_accounting"))) == {
        "cpu_time"
    }


def test_a_job_that_cannot_be_read_back_still_ends_the_tree():
    """Use the findings that corral gets under Wine: closing the job ends the processes, but the
    job's limits cannot be read back.
    """
    loose = decided(LETTING_GO, host("job_kill_on_close"))
    assert (loose["tree"].status, loose["tree"].mechanism) == ("applied", job.UNREAD)
    (made,) = [
        step for step in composed(LETTING_GO, host("job_kill_on_close")) if type(step) is job.Job
    ]
    assert made == job.Job(read_back=False)


def test_the_steps_with_an_app_container_are_in_order():
    steps = composed(Policy(), host(*FULL))
    assert kinds(steps) == [
        undo.Claim,
        app_container.Profile,
        restricted_token.FilteredToken,
        desktop.PrivateDesktop,
        path_grants.Grants,
        runtimes.Store,
        network_capabilities.Network,
        job.Job,
        mitigations.Mitigations,
        process_creation.Creation,
    ]
    held = {type(step): step for step in steps}
    assert held[app_container.Profile].capabilities == (desktop.CAPABILITY,)
    assert held[desktop.PrivateDesktop].package == held[app_container.Profile].package
    limits = job.Job(memory=1 << 30, processes=1, ui=job.UI_LIMITS, priority=True)
    assert held[job.Job] == limits
    assert held[mitigations.Mitigations].bits == BASE
    assert held[mitigations.Mitigations].children is False
    assert held[undo.Claim].profile == held[app_container.Profile].profile


def test_optional_restrictions_that_were_not_proven_are_not_used():
    plain = host(*JOBS, "app_container")
    steps = {type(step): step for step in composed(Policy(), plain)}
    assert steps[mitigations.Mitigations] == mitigations.plan(0, subprocess=True)
    assert steps[job.Job].ui == 0
    # This plan does not use the child process policy, so the job's limit must forbid children.
    assert steps[job.Job].processes == 1


def test_the_job_counts_allowed_subprocesses():
    policy = Policy(subprocess=True, limits=Limits(pids=7))
    steps = {type(step): step for step in composed(policy, host(*FULL))}
    assert steps[job.Job].processes == 8  # seven processes, and the console that they share
    assert steps[mitigations.Mitigations].children is True


def test_no_token_is_restricted_in_an_app_container():
    """Check that corral does not combine the container with a restricted token, because node and
    python do not start with such a token.
    """
    found = set(kinds(composed(Policy(), host(*FULL))))
    assert not found & {
        restricted_token.RestrictedToken, restricted_token.LowIntegrity,
    }  # fmt: skip


WITHOUT = tuple(name for name in FULL if name not in {"app_container", "relay"})


def test_the_fallback_needs_permission_and_does_not_restrict_reads_or_network():
    word = Windows(fail_on_app_container_error=False)
    assert missing(Policy(), host(*WITHOUT)) == {"filesystem", "network", "syscalls"}
    held = decided(Policy(windows=word), host(*WITHOUT))
    for control, open_to in {"filesystem": "can read every file", "network": "every host"}.items():
        assert (held[control].status, open_to in held[control].why) == ("degraded", True)
    told = plan.warnings(list(held.values()))
    assert len([line for line in told if "AppContainers do not work here" in line]) == 2


def test_the_fallback_switch_affects_only_the_container_and_only_if_needed():
    word = Policy(windows=Windows(fail_on_app_container_error=False))
    without = decided(word, host(*(name for name in WITHOUT if name != "restricted token")))
    assert (without["syscalls"].status, "all of your rights" in without["syscalls"].why) == (
        "degraded", True,
    )  # fmt: skip
    assert missing(word, host()) == {"subprocess", "tree"}
    assert missing(replace(word, listen=(8080,)), host(*FULL)) == {"network"}
    assert missing(replace(word, allow=("example.com",)), host(*WITHOUT)) == {"network"}
    held = decided(word, host(*FULL))
    assert {wall: held[wall].status for wall in WALLS} == dict.fromkeys(WALLS, "verified")


def test_strict_handles_are_used_only_on_request_and_are_then_required():
    word = Policy(windows=Windows(strict_handles=True))
    steps = {type(step): step for step in composed(word, host(*FULL))}
    assert steps[mitigations.Mitigations].bits == BASE | mitigations.STRICT_HANDLES.bit
    lacking = host(*(name for name in FULL if name != "strict_handles"))
    assert missing(word, lacking) == {"syscalls"}
    assert decided(Policy(), lacking)["syscalls"].status == "verified"


def test_a_target_on_the_users_desktop_is_reported():
    lacking = host(*(name for name in FULL if name != "desktop"))
    for machine, reported in ((lacking, 1), (host(*FULL), 0)):
        controls = plan.decide(Policy(), machine, options.chains(Policy()))
        made = layers.compose(Policy(), PROGRAM, controls, home=HOME, run="1-abc")
        assert len([text for text in made.warnings if "your desktop" in text]) == reported
        assert (desktop.PrivateDesktop in kinds(made.steps)) is not bool(reported)


@pytest.mark.parametrize("name", ["cmd.exe", "powershell.exe", "PWSH.EXE"])
def test_a_shell_in_a_container_causes_a_warning(name):
    shell = replace(PROGRAM, path=f"C:\\Windows\\{name}")
    controls = plan.decide(Policy(), host(*FULL), options.chains(Policy()))
    made = layers.compose(Policy(), shell, controls, home=HOME, run="1-abc")
    assert any("`cd`, `dir` and `if exist`" in text for text in made.warnings)
    assert layers.compose(Policy(), PROGRAM, controls, home=HOME, run="1-abc").warnings == ()


def test_the_job_also_limits_cpu_time():
    policy = Policy(limits=Limits(cpu_time=1500), stated=frozenset({"cpu_time"}))
    steps = {type(step): step for step in composed(policy, host(*FULL))}
    assert steps[job.Job].user_time == 1500
    wanted = job.extended(steps[job.Job]).BasicLimitInformation
    assert (wanted.PerJobUserTimeLimit, wanted.LimitFlags & 0x4) == (15_000_000, 0x4)
    assert not job.extended(job.Job()).BasicLimitInformation.LimitFlags & 0x4
    ended = Ending(
        reason="", wall=1.0,
        reaped=Reaped(status=1816 << 8, cpu=1.5, memory=0, hit=("cpu_time",)),
    )  # fmt: skip
    bare = Plan(program=PROGRAM, steps=(), controls=(), environment=())
    assert report.find_outcome(bare, ended).kind == "cpu_time"
    other = replace(ended, reaped=replace(ended.reaped, hit=()))
    assert report.find_outcome(bare, other).kind == "exited"


def test_the_steps_with_a_restricted_token_are_in_order():
    word = Policy(windows=Windows(fail_on_app_container_error=False))
    held = decided(word, host(*WITHOUT))
    assert (held["filesystem"].status, held["network"].status) == ("degraded", "degraded")
    assert held["syscalls"].mechanism.startswith("restricted token")
    assert kinds(composed(word, host(*WITHOUT))) == [
        work_directory.WorkDirectory,
        restricted_token.RestrictedToken,
        restricted_token.LowIntegrity,
        desktop.PrivateDesktop,
        job.Job,
        mitigations.Mitigations,
        process_creation.Creation,
    ]


def test_an_app_container_is_preferred_to_the_fallback():
    word = Policy(windows=Windows(fail_on_app_container_error=False))
    assert app_container.Profile in kinds(composed(word, host(*FULL)))


def test_an_app_container_that_is_switched_off_is_not_used():
    off = Policy(windows=Windows(app_container=False))
    assert missing(off, host(*FULL)) == {"filesystem", "network"}
    loose = composed(replace(off, best_effort=True), host(*FULL))
    assert app_container.Profile not in kinds(loose)
    assert restricted_token.RestrictedToken in kinds(loose)


@pytest.mark.parametrize(
    ("level", "sids"),
    [
        ("none", ()),
        ("outbound", ("S-1-15-3-1",)),
        ("local", ("S-1-15-3-3",)),
        ("full", ("S-1-15-3-1", "S-1-15-3-2", "S-1-15-3-3")),
    ],
)
def test_network_levels_are_capabilities_and_name_what_stays_open(level, sids):
    policy = Policy(windows=Windows(network=level))
    held = decided(policy, host(*FULL))["network"]
    assert held.mechanism == f"app container, network {level}"
    assert held.asked == ("none" if level == "none" else f"level {level}")
    # On Linux the `windows.network` level has no effect.
    assert plan.describe_control("network", policy, "linux") == "none"
    assert bool(held.why) == (level != "none")
    assert held.status == ("verified" if level == "none" else "applied")
    steps = {type(step): step for step in composed(policy, host(*FULL))}
    assert steps[app_container.Profile].capabilities == (*sids, desktop.CAPABILITY)


def test_listening_is_refused():
    assert missing(Policy(listen=(8080,)), host(*FULL)) == {"network"}


def test_allowed_host_names_are_reached_by_the_relay_without_a_network_capability(monkeypatch):
    policy = Policy(allow=("example.com",))
    assert missing(policy, host(*(name for name in FULL if name != "relay"))) == {"network"}
    copies = runtimes.Store(trees=(), program=replace(PROGRAM, path="C:\\store\\python.exe"))
    monkeypatch.setattr(runtimes, "plan_own_interpreter", lambda _home: copies)
    steps = {type(step): step for step in composed(policy, host(*FULL))}
    assert steps[app_container.Profile].capabilities == (desktop.CAPABILITY,)
    assert steps[relay_start.NamedHosts].python == "C:\\store\\python.exe"
    assert steps[relay_start.NamedHosts].allow == ("example.com",)
    # The target may take over the shim, the relay's process in the container. So the shim must have
    # the same restrictions as the target.
    assert steps[relay_start.NamedHosts].ui == steps[job.Job].ui == job.UI_LIMITS
    assert steps[relay_start.NamedHosts].bits == steps[mitigations.Mitigations].bits != 0


def test_allowed_host_names_that_cannot_be_enforced_do_not_open_the_network():
    """Check a plan in which an allowlist cannot be enforced, because the host has no relay. The
    allowlist must be dropped, and the network must stay closed instead of being opened to all
    hosts.
    """
    policy = Policy(allow=("example.com",), degrade=frozenset({"network"}))
    lacking = host(*(name for name in FULL if name != "relay"))
    steps = {type(step): step for step in composed(policy, lacking)}
    assert relay_start.NamedHosts not in steps
    assert steps[app_container.Profile].capabilities == (desktop.CAPABILITY,)


def test_a_policy_with_allowed_host_names_and_a_network_level_is_refused():
    policy = Policy(allow=("example.com",), windows=Windows(network="outbound"))
    with pytest.raises(PolicyError, match="would open all hosts"):
        composed(policy, host(*FULL))


def test_a_server_with_state_keeps_its_app_container_profile():
    kept = {type(step): step for step in composed(Policy(state=True), host(*FULL))}
    assert kept[app_container.Profile].keep
    assert kept[undo.Claim].profile == ""
    again = {type(step): step for step in composed(Policy(state=True), host(*FULL))}
    assert again[app_container.Profile].profile == kept[app_container.Profile].profile
    once = {type(step): step for step in composed(Policy(), host(*FULL))}
    assert once[app_container.Profile].profile.endswith("1-abc")


def test_a_server_with_state_needs_an_app_container():
    with pytest.raises(PolicyError, match="needs an AppContainer"):
        composed(replace(LETTING_GO, state=True), host())
    controls = plan.decide(Policy(state=True), host(*FULL), options.chains(Policy(state=True)))
    made = backends.compose(Policy(state=True), PROGRAM, controls, home=HOME)
    assert dict(made.environment)["STATE_DIRECTORY"] == made.home


def test_every_step_has_a_unique_name(monkeypatch):
    """Check the names and stages of the steps, because errors name the step that failed, and
    `explain` prints the stages.
    """
    found = Finding(capability="minifilter driver", status="proven", evidence="it listens")
    monkeypatch.setattr(layers.minifilter, "probe", lambda: found)
    copies = runtimes.Store(trees=(), program=PROGRAM)
    monkeypatch.setattr(runtimes, "plan_own_interpreter", lambda _home: copies)
    relayed = composed(Policy(allow=("example.com",)), host(*FULL))
    word = Windows(fail_on_app_container_error=False)
    fallback = composed(replace(LETTING_GO, windows=word), host(*WITHOUT))
    steps = {type(step): step for step in (*relayed, *fallback)}
    assert len(steps) == 15
    assert len({step.name for step in steps.values()}) == len(steps)
    assert {step.stage for step in steps.values()} == {"supervisor", "clone", "after_clone"}


def test_the_driver_gets_the_process_before_it_runs(monkeypatch):
    """Check the order of the steps: the process is registered with the minifilter driver after it
    is created, while it is still suspended.
    """
    found = Finding(capability="minifilter driver", status="proven", evidence="it listens")
    monkeypatch.setattr(layers.minifilter, "probe", lambda: found)
    assert kinds(composed(Policy(), host(*FULL)))[-2:] == [
        process_creation.Creation,
        layers.minifilter.Minifilter,
    ]


def test_the_driver_gets_the_readable_paths(monkeypatch, tmp_path):
    """Check which paths the minifilter driver lets the target read: the copy from which the target
    runs, but no directory above it. Without a copy, the server's own directory is readable.
    """
    found = Finding(capability="minifilter driver", status="proven", evidence="it listens")
    monkeypatch.setattr(layers.minifilter, "probe", lambda: found)
    (tmp_path / "server.js").touch()
    program = replace(PROGRAM, reads=(str(tmp_path),), why=("the server",))
    steps = {type(step): step for step in composed(Policy(), host(*FULL), program)}
    step, private = steps[layers.minifilter.Minifilter], steps[app_container.Profile].home
    (tree,) = steps[runtimes.Store].trees
    assert (step.workspace, step.write) == (private, (private,))
    assert tree.staged in step.read
    assert not any(path and tree.directory.startswith(path) for path in step.read)
    bare = {type(step): step for step in composed(LETTING_GO, host(), program)}
    assert str(tmp_path) in bare[layers.minifilter.Minifilter].read
    off = Policy(windows=Windows(minifilter=False))
    assert layers.minifilter.Minifilter not in kinds(composed(off, host(*FULL)))


@pytest.mark.parametrize(
    ("millicores", "processors", "rate"),
    [(1000, 8, 1250), (500, 1, 5000), (1, 64, 1), (64_000, 4, 10_000), (2000, 2, 10_000)],
)
def test_the_cpu_rate_counts_all_processors(millicores, processors, rate):
    assert job.cpu_rate(millicores, processors) == rate


def test_all_extended_limits_are_in_one_structure():
    wanted = job.extended(job.Job(memory=1 << 26, processes=3))
    assert wanted.BasicLimitInformation.LimitFlags == 0x2000 | 0x400 | 0x200 | 0x100 | 0x8
    assert (wanted.JobMemoryLimit, wanted.ProcessMemoryLimit) == (1 << 26, 1 << 26)
    assert wanted.BasicLimitInformation.ActiveProcessLimit == 3


def test_a_memory_limit_is_rounded_down_to_pages():
    """Use 100 MB, which is not a multiple of the page size. The limit must not exceed the requested
    size.
    """
    wanted = job.extended(job.Job(memory=100_000_000))
    assert wanted.JobMemoryLimit == wanted.ProcessMemoryLimit == 99_999_744


@pytest.mark.parametrize(
    "escape",
    [job.abi.JOB_OBJECT_LIMIT_BREAKAWAY_OK, job.abi.JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK],
)
def test_a_job_that_lets_processes_break_away_is_refused(monkeypatch, escape):
    set_to: list[job.abi.JOBOBJECT_EXTENDED_LIMIT_INFORMATION] = []
    handle = types.SimpleNamespace(value=4, close=lambda: None)
    monkeypatch.setattr(job.abi, "create_job", lambda: handle)
    monkeypatch.setattr(job.abi, "create_completion_port", lambda: handle)
    monkeypatch.setattr(job.abi, "set_information", lambda _job, wanted: set_to.append(wanted))
    monkeypatch.setattr(job.abi, "query_information", lambda _job, _kind: set_to[0])
    assert job.create(job.Job()).handle is handle
    set_to.clear()

    def widened(_job, _kind):
        seen = type(set_to[0]).from_buffer_copy(set_to[0])
        seen.BasicLimitInformation.LimitFlags |= escape
        return seen

    monkeypatch.setattr(job.abi, "query_information", widened)
    with pytest.raises(OSError, match="LimitFlags was set to"):
        job.create(job.Job())


@pytest.mark.parametrize("machine", [host(*FULL), host(*WITHOUT), host()], ids="AB-")
def test_a_decoded_windows_plan_equals_the_original(machine):
    policy = replace(LETTING_GO, windows=Windows(fail_on_app_container_error=False))
    controls = plan.decide(policy, machine, options.chains(policy))
    made = backends.compose(policy, PROGRAM, controls, home=HOME)
    whole = Plan(program=PROGRAM, steps=made.steps, controls=controls, environment=made.environment)
    assert wire_format.decode(wire_format.encode(whole), Plan) == whole
    assert all(step.describe() for step in whole.steps)


def test_a_run_without_a_container_has_a_private_directory_to_remove():
    controls = plan.decide(LETTING_GO, host(), options.chains(LETTING_GO))
    made = backends.compose(LETTING_GO, PROGRAM, controls, home=HOME)
    (left,) = made.residue
    values = dict(made.environment)
    for name in ("USERPROFILE", "TEMP", "TMP", "LOCALAPPDATA", "APPDATA"):
        assert values[name].startswith(left)
    assert made.home == values["USERPROFILE"]


def test_a_run_in_a_container_has_a_journal():
    controls = plan.decide(Policy(), host(*FULL), options.chains(Policy()))
    made = backends.compose(Policy(), PROGRAM, controls, home=HOME)
    (left,) = made.residue
    assert left.endswith(f"{made.run}.grants")


def test_the_store_and_the_watcher_get_the_granted_paths(monkeypatch):
    top = Node(name="", directory=True)
    monkeypatch.setattr(
        path_grants, "read_trees", lambda _policy, **_more: {"D:\\work": Tree(nodes=(top,))}
    )
    granted = Grant(
        path="D:\\work", access="write", device=1, inode=2, directory=True, owner=0, group=0
    )
    policy = Policy(grants=(granted,))
    controls = plan.decide(policy, host(*FULL), options.chains(policy))
    made = backends.compose(policy, PROGRAM, controls, home=HOME)
    (store,) = [step for step in made.steps if isinstance(step, runtimes.Store)]
    assert store.granted == ("D:\\work",)
    assert "D:\\work\\.mcp.json" in made.watched


def test_doctor_reports_only_proven_mechanisms():
    full = [words for _, words, _ in doctor.lines(host(*FULL))]
    assert "Resource limits: CPU, memory, pids supported" in full
    assert "Network isolation: AppContainer" in full
    none = [words for _, words, _ in doctor.lines(host())]
    assert "Job Objects: NOT available (job_kill_on_close was tried)" in none
    assert "Resource limits: CPU, memory, pids NOT available (job_cpu_rate was tried)" in none
    assert "Network isolation: NOT available (requires WFP driver)" in none
    assert "Filesystem sandbox: limited (NTFS permissions only)" in none
    some = [words for _, words, _ in doctor.lines(host("job_memory", "job_kill_on_close"))]
    assert (
        "Resource limits: memory supported, CPU, pids NOT available (job_cpu_rate was tried)"
        in (some)
    )
    for told in (full, none, some):
        assert "Recommendation: Use Windows Sandbox or WSL2 for strict security" in told


@pytest.mark.parametrize(
    ("code", "hit", "kind"),
    [
        (0xC0000409, ("memory",), "memory"),
        (0xC0000409, (), "exited"),
        (1, ("memory",), "exited"),
        (0, ("memory",), "exited"),
    ],
    ids=["crash at the limit", "crash", "handled", "fine"],
)
def test_a_crash_at_the_memory_limit_is_reported_as_the_limit(code, hit, kind):
    whole = Plan(program=PROGRAM, steps=(), controls=(), environment=())
    reaped = Reaped(status=code << 8, cpu=0.0, memory=0, hit=hit)
    found = report.build_report(whole, Ending(reaped=reaped, reason="", wall=1.0))
    assert (found.outcome.kind, found.outcome.exit_code, found.hit) == (kind, code, hit)
