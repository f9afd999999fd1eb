"""Check that corral either works or refuses to run, whatever Windows answers. These tests use calls
whose results are undocumented or differ between versions.

Each test replaces the result of one call. The test's docstring says where this result was seen or
is documented.
"""

from __future__ import annotations

import ast
import pathlib
import re
import socket
import types

import pytest

from corral.abi import win32, win32_files, win32_process, win32_security, win32_token
from corral.abi.win32 import Handle
from corral.abi.win32_security import parse_sid
from corral.plan.decide import needed_capabilities
from corral.plan.host import Finding, Host
from corral.plan.model import Plan, Results
from corral.platforms import evidence
from corral.platforms.contract import Reaped
from corral.platforms.windows import options
from corral.platforms.windows.files import access_list, file_trees, granted_tree
from corral.platforms.windows.mechanisms import (
    app_container,
    desktop,
    job,
    minifilter,
    mitigations,
    process_creation,
    restricted_token,
)
from corral.platforms.windows.probes import app_container as container
from corral.platforms.windows.probes import doctor, host, trial
from corral.policy.model import Policy
from corral.programs.model import Program
from corral.record import replace
from ledger.evidence import WINDOWS, format_table

ROOT = pathlib.Path(__file__).parents[4]
USER, LOGON = "S-1-5-21-1-2-3-1001", "S-1-5-5-0-77"
ADMINISTRATORS = restricted_token.ADMINISTRATORS
ORDINARY = ("SeChangeNotifyPrivilege", "SeShutdownPrivilege", "SeIncreaseWorkingSetPrivilege")
ELEVATED = (*ORDINARY, "SeDebugPrivilege", "SeBackupPrivilege", "SeImpersonatePrivilege")


def windows_error(code: int) -> OSError:
    error = OSError(0, f"error {code}", "CreateAppContainerProfile")
    error.winerror = code
    return error


class Tokens:
    """The privileges and groups of fake tokens. Token 1 is corral's own token, and token 2 is the
    target's.
    """

    def __init__(self, monkeypatch) -> None:
        self.privileges = {1: ORDINARY, 2: ()}
        self.groups = {1: [(LOGON, 0xC0000007)], 2: [(LOGON, 0xC0000007)]}
        self.made: list[tuple[int, int]] = []
        self.default = ""
        monkeypatch.setattr(Handle, "close", lambda handle: handle._value and handle.detach())
        monkeypatch.setattr(win32_token, "own_token", lambda _access: Handle(1))
        monkeypatch.setattr(restricted_token, "open_token", lambda _process: Handle(2))
        monkeypatch.setattr(win32_token, "token_privileges", self.privileges.__getitem__)
        monkeypatch.setattr(restricted_token, "token_groups", self._groups)
        monkeypatch.setattr(win32_token, "create_restricted_token", self._restrict)
        monkeypatch.setattr(win32_token, "token_user", lambda _token: parse_sid(USER))
        monkeypatch.setattr(win32_token, "set_token_default_dacl", self._set)

    def _groups(self, token: int, _kind: int) -> list[tuple[bytes, int]]:
        return [(parse_sid(sid), bits) for sid, bits in self.groups[token]]

    def _restrict(self, token: int, flags: int, restricting: tuple[bytes, ...]) -> Handle:
        self.made.append((flags, len(restricting)))
        return Handle(3)

    def _set(self, _token: int, text: str) -> None:
        self.default = text


@pytest.fixture
def tokens(monkeypatch) -> Tokens:
    return Tokens(monkeypatch)


def created() -> Results:
    process = win32_process.Process.__new__(win32_process.Process)
    process.handle = types.SimpleNamespace(value=7)
    results = Results()
    results.add(process)
    return results


def test_an_ordinary_user_keeps_the_same_token(tokens):
    results = Results()
    restricted_token.FilteredToken().apply(results)
    assert tokens.made == []
    assert results.find(restricted_token.PrimaryToken) is None


@pytest.mark.parametrize(
    ("privileges", "administrators"),
    [(ELEVATED, 0xF), (ORDINARY, 0xF), ((*ORDINARY, "SeImpersonatePrivilege"), 0x10)],
    ids=["elevated", "administrator without privileges", "service account"],
)
def test_an_administrator_gets_a_filtered_token_without_restricting_sids(
    tokens, privileges, administrators
):
    """Check that the target's token has no restricting SIDs, because node and python do not start
    with such a token.
    """
    tokens.privileges[1] = privileges
    tokens.groups[1].append((ADMINISTRATORS, administrators))
    results = Results()
    restricted_token.FilteredToken().apply(results)
    assert tokens.made == [(win32_token.DISABLE_MAX_PRIVILEGE | win32_token.LUA_TOKEN, 0)]
    assert results.get(restricted_token.PrimaryToken).handle.value == 3
    assert USER in tokens.default
    results.release()


@pytest.mark.parametrize(
    ("privileges", "administrators", "found"),
    [(ELEVATED, 0xF, (USER, LOGON)), (ORDINARY, 0x10, ())],
    ids=["elevated", "ordinary"],
)
def test_only_an_elevated_callers_targets_get_other_sids_than_the_caller(
    tokens, privileges, administrators, found
):
    tokens.privileges[1] = privileges
    tokens.groups[1].append((ADMINISTRATORS, administrators))
    assert restricted_token.ordinary_sids() == found


@pytest.mark.parametrize(
    ("privileges", "groups", "told"),
    [
        ((), [], ""),
        (("SeChangeNotifyPrivilege",), [(ADMINISTRATORS, 0x10)], ""),
        (("SeDebugPrivilege",), [], "SeDebugPrivilege"),
        ((), [(ADMINISTRATORS, 0xF)], "administrator rights"),
    ],
    ids=["dropped", "deny only", "privileges kept", "groups kept"],
)
def test_privileges_left_in_the_token_of_a_container_are_refused(tokens, privileges, groups, told):
    """Check that a run ends if the target's token still has privileges or an administrator's
    groups. Microsoft does not document whether a process in a container loses the privileges of the
    user's token, and in NVIDIA/OpenShell#3430 it kept the groups.
    """
    tokens.privileges[2] = privileges
    tokens.groups[2] += groups
    if told:
        with pytest.raises(OSError, match=f"the target's token has {told}"):
            restricted_token.FilteredToken().verify(created())
    else:
        restricted_token.FilteredToken().verify(created())


@pytest.mark.parametrize(
    ("code", "why", "hint"),
    [
        (1753, "firewall service", "MpsSvc"),
        (1058, "firewall service", "MpsSvc"),
        (win32.ERROR_ACCESS_DENIED, "not allowed to create", "outside any sandbox"),
        (win32.ERROR_NOT_SUPPORTED, "no AppContainers", "WSL2"),
    ],
)
def test_errors_of_creating_a_profile_have_a_hint(monkeypatch, code, why, hint):
    """Check that the finding names the cause and a remedy. Windows returns EPT_S_NOT_REGISTERED
    (1753) or ERROR_SERVICE_DISABLED (1058) if the firewall service MpsSvc is stopped.
    """

    def refuse(*_arguments: object) -> bytes:
        raise windows_error(code)

    monkeypatch.setattr(win32_security, "create_profile", refuse)
    found = app_container.probe()
    assert (found.status, why in found.evidence, hint in found.hint) == ("absent", True, True)


def test_a_profile_is_created_without_capabilities(monkeypatch):
    """Check that corral passes no capabilities when it creates the profile, because only the
    capabilities in the target's token matter. Other sandboxes (Chromium, mxc, maka and agentcad)
    do the same.
    """
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        win32_security, "_made_sid", lambda _call, *arguments: asked.append(arguments) or b"sid"
    )
    win32_security.create_profile("name", "title", "text")
    assert asked == [("name", "title", "text", None, 0)]


@pytest.mark.parametrize("found", ["C:\\planned\\AC", "D:\\redirected\\AC"])
def test_the_folder_of_a_profile_is_the_one_that_windows_names(monkeypatch, found):
    """Check that corral uses the profile folder that Windows reports, even if it is not the folder
    that corral expected. The two differ if a packaged client started corral, because Windows then
    redirects AppData.
    """
    profile = app_container.Profile(profile="corral-x", capabilities=(), home="C:\\planned\\AC")
    monkeypatch.setattr(app_container, "_create", lambda _step: parse_sid(profile.package))
    monkeypatch.setattr(win32_security, "profile_folder", lambda _sid: found)
    monkeypatch.setattr(app_container.os, "makedirs", lambda *_, **__: None)
    results = Results()
    profile.apply(results)
    assert process_creation._moved("C:\\planned\\AC\\Temp", results) == f"{found}\\Temp"
    assert process_creation._moved("C:\\planned\\ACE", results) == "C:\\planned\\ACE"
    assert process_creation._moved("C:\\planned\\AC", Results()) == "C:\\planned\\AC"


@pytest.mark.parametrize(("code", "told"), [(1260, "AppLocker"), (5, "error 5")])
def test_errors_of_creating_a_process_have_a_hint(code, told):
    """Check that the error names AppLocker for ERROR_ACCESS_DISABLED_BY_POLICY (1260). AppLocker
    causes this error for programs in directories that a user can write to.
    """
    assert told in str(process_creation._explain(windows_error(code)))


@pytest.mark.parametrize(
    ("processes", "children", "flag"),
    [
        (1, True, win32_process.DETACHED_PROCESS),
        (8, True, win32_process.CREATE_NO_WINDOW),
        (None, True, win32_process.CREATE_NO_WINDOW),
        (None, False, win32_process.DETACHED_PROCESS),
    ],
)
def test_a_target_with_children_has_a_console_without_a_window(processes, children, flag):
    """Check that a target gets a console only if it may have children. Windows starts the console's
    process as a child of the target (Project Zero issue 213), so a target without children cannot
    have a console.
    """
    attributes = mitigations.plan(0, subprocess=children).attributes()
    assert process_creation._console(job.Job(processes=processes), attributes) == flag


@pytest.mark.parametrize("found", ["C:\\Users\\ann\\AppData\\Local", ""])
def test_a_container_always_gets_the_variables_that_windows_needs(monkeypatch, found):
    """Check that LOCALAPPDATA is set. Without it CreateProcess fails with 0x800700CB
    (microsoft/mxc#1130, #1158).
    """
    monkeypatch.setattr(win32_process, "windows_directory", lambda: "C:\\Windows")
    monkeypatch.setattr(process_creation.os.path, "expanduser", lambda _: "D:\\ann")
    monkeypatch.setenv("LOCALAPPDATA", found)
    path = "C:\\python.exe"
    plan = Plan(
        program=Program(path=path, argv=(path,)), steps=(), controls=(), environment=(("a", "b"),)
    )
    results = Results()
    # Sanity check: without a container no variable is added.
    assert dict(process_creation._variables(plan, results)) == {"a": "b"}
    results.add(win32_security.Capabilities(parse_sid("S-1-15-2-1"), ()))
    assert dict(process_creation._variables(plan, results)) == {
        "SystemRoot": "C:\\Windows",
        "LOCALAPPDATA": found or "D:\\ann\\AppData\\Local",
        "a": "b",
    }
    own = replace(plan, environment=(("LocalAppData", "E:\\x"),))
    assert ("LocalAppData", "E:\\x") in process_creation._variables(own, results)


EMPTY = access_list.write(access_list.Descriptor(control=0, revision=2, entries=()))
OWN = access_list.write(
    access_list.Descriptor(control=0, revision=2, entries=(desktop.station_entry(),))
)
LOW, NONE = "S:(ML;;NW;;;LW)", ""


@pytest.mark.parametrize(
    ("lists", "labels", "problem"),
    [
        ((OWN, OWN), (LOW, LOW, LOW), ""),
        ((EMPTY, OWN), (NONE, LOW, LOW), ""),
        ((EMPTY, EMPTY), (LOW, LOW, LOW), "no entry for the target"),
        ((OWN, OWN), (NONE, NONE, LOW), "window station is not labelled Low"),
        ((OWN, OWN), (LOW, LOW, NONE), "private desktop is not labelled Low"),
    ],
    ids=["ours", "of another program", "entry not kept", "label not kept", "desktop not low"],
)
def test_an_existing_window_station_of_this_logon_is_used(monkeypatch, lists, labels, problem):
    """Check that corral uses the window station that this logon already has. corral must add an
    entry to its access list and label it with Low integrity, unless both are there already. If
    Windows does not keep the entry or the label, corral must end the run.

    Each logon has one such window station. Another program, such as Chromium's sandbox, may have
    created it.
    """
    told, seen = list(labels), list(lists)
    closed: list[str] = []
    set_to: list[object] = []
    made = types.SimpleNamespace

    monkeypatch.setattr(desktop, "own_sids", lambda: (USER, LOGON))
    station = made(value=1, close=lambda: closed.append("station"))
    monkeypatch.setattr(win32_token, "open_window_station", lambda *_: station)
    names: list[str] = []

    def create(_station: int, name: str, _access: int, security: str) -> object:
        names.append(name)
        assert f"(A;;{desktop.ACCESS:#x};;;S-1-15-2-9)" in security
        return made(value=2, close=lambda: closed.append("desktop"))

    monkeypatch.setattr(win32_token, "create_desktop", create)
    monkeypatch.setattr(
        win32_token,
        "user_object_name",
        lambda handle: "Service-0x0-1$" if handle == 1 else names[0],
    )
    monkeypatch.setattr(win32_token, "user_object_security", lambda _: seen.pop(0))
    monkeypatch.setattr(win32_token, "user_object_label", lambda _: told.pop(0))
    monkeypatch.setattr(win32_token, "set_user_object_dacl", lambda _, raw: set_to.append(raw))
    monkeypatch.setattr(win32_token, "set_user_object_label", lambda _, text: set_to.append(text))
    if problem:
        with pytest.raises(OSError, match=problem):
            desktop.create("S-1-15-2-9")
        assert closed == ["desktop", "station"]
        return
    found = desktop.create("S-1-15-2-9")
    assert found.path == f"Service-0x0-1$\\{names[0]}"
    assert set_to == ([] if lists[0] == OWN else [OWN, LOW])
    found.release()
    assert closed == ["desktop", "station"]


def test_a_target_has_no_right_to_the_clipboard():
    assert not desktop.STATION & 0x4  # WINSTA_ACCESSCLIPBOARD
    assert not desktop.STATION & 0x200  # WINSTA_READSCREEN
    # These are the rights to install hooks, to record the user's input, to play input back, and to
    # switch to this desktop.
    assert not desktop.ACCESS & (0x8 | 0x10 | 0x20 | 0x100)


def test_setting_the_clock_does_not_change_the_boot_time(monkeypatch):
    """Check that `boot_time` subtracts the bias, which is the sum of all changes to the clock. When
    someone sets the clock, Windows (KeSetSystemTime) adds the change to the boot time and also to
    the bias, so their difference stays the same.
    """

    def answer(boot: int, bias: int):
        def call(_kind: int, block: object, _size: int, _needed: object) -> int:
            block._obj[0], block._obj[4] = boot, bias
            return 0

        return call

    found = []
    for boot, bias in ((1000, 0), (1600, 600), (2000, 0)):
        monkeypatch.setattr(win32_process, "NtQuerySystemInformation", answer(boot, bias))
        found.append(win32_process.boot_time())
    assert found == [1000, 1000, 2000]


def test_a_mutex_is_the_same_in_every_session_and_private_to_the_user(monkeypatch, tokens):
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(win32_files, "own_mutex", lambda *arguments: asked.append(arguments))
    granted_tree.mutex("S-1-15-3-9")
    ((name, security),) = asked
    assert name == f"Global\\corral-{USER}-S-1-15-3-9"
    # The access list names the user, so that the user can open the mutex without elevation, even if
    # an elevated process created it.
    assert f";{USER})" in security
    assert security.endswith("S:(ML;;NW;;;ME)")


def test_new_bytecode_files_cause_no_new_copy_of_a_python():
    listed = file_trees.Listing(directories=("", "Lib"), files=(("Lib\\a.py", 1, 2),))
    compiled = file_trees.Listing(
        directories=("", "Lib", "Lib\\__pycache__"),
        files=(("Lib\\__pycache__\\a.cpython-311.pyc", 3, 4), ("Lib\\a.py", 1, 2)),
    )
    changed = file_trees.Listing(directories=("", "Lib"), files=(("Lib\\a.py", 1, 3),))
    keys = [file_trees.copy_key("C:\\py", one) for one in (listed, compiled, changed)]
    assert keys[0] == keys[1] != keys[2]


def test_docs_and_doctor_agree_on_how_each_mechanism_was_checked():
    """Check that SECURITY.md contains the evidence table, and that `doctor` shows its rows."""
    rows = {row.capability for row in WINDOWS}
    assert {capability for capability, _, _ in host.LABELS} == set(host.PROBES) <= rows
    assert set(evidence.SEEN["windows"]) <= rows
    text = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    assert format_table("windows") in text
    seen = Finding(capability="desktop", status="absent", evidence="it was tried")
    machine = Host(system="windows", machine="amd64", findings=(seen,))
    lines = [line for _, line, finding in doctor.lines(machine) if finding is seen]
    assert lines == ["Private desktop: NOT available (it was tried) [read]"]


@pytest.mark.parametrize("row", WINDOWS, ids=lambda row: row.capability)
def test_evidence_from_wine_matches_the_tests_that_run_there(row):
    """Check that a row says "seen under Wine" if and only if its test runs under Wine. A test that
    is skipped under Wine proves nothing.
    """
    file, _, name = row.test.partition("::")
    tree = ast.parse((ROOT / "tests" / "windows" / file).read_text(encoding="utf-8"))
    whole = "real_windows" in "".join(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)
    )
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    marks = [ast.unparse(mark) for mark in tests[name].decorator_list] if name else []
    runs_there = not whole and not any("real_windows" in mark for mark in marks)
    # Wine is the only evidence, because none of these tests has run on real Windows.
    assert evidence.SEEN["windows"].get(row.capability) == (evidence.WINE if runs_there else None)
    assert evidence.format_basis("windows", row.capability) == (
        "seen under Wine" if runs_there else "read"
    )


def test_only_wanted_capabilities_are_probed(monkeypatch):
    """Check that a run probes only the capabilities that its plan needs, and their dependencies,
    because each probe starts processes.
    """
    tried: list[str] = []
    for name, probe in host.PROBES.items():
        monkeypatch.setitem(host.PROBES, name, counted(name, probe, tried))
    monkeypatch.setattr(host, "_try", lambda name, _act: proven(name))
    for module in (app_container, restricted_token, minifilter):
        monkeypatch.setattr(module, "probe", lambda *_, name=module.CAPABILITY: proven(name))
    found = {item.capability: item.status for item in host.probe({"relay"})}
    needed = {"app_container_profile", "desktop", "app_container", "relay"}
    assert set(tried) == needed
    assert {name for name, status in found.items() if status == "proven"} == needed
    assert {status for name, status in found.items() if name not in needed} == {"unknown"}
    assert len(tried) == len(set(tried))
    tried.clear()
    assert all(item.status == "proven" for item in host.probe())
    assert set(tried) == set(host.PROBES)


def proven(name: str) -> Finding:
    return Finding(capability=name, status="proven", evidence="seen")


def counted(name, probe, tried):
    def find(machine):
        tried.append(name)
        return probe(machine)

    return find


def test_a_default_run_probes_only_capabilities_that_it_can_use():
    policy = Policy()
    wanted = needed_capabilities(policy, options.chains(policy), "windows")
    assert {"app_container", "job_memory", "child_process_policy", "desktop"} <= wanted
    slow = {"job_cpu_rate", "job_accounting", "relay", "restricted token", "strict_handles", "nul"}
    assert not slow & wanted
    limited = replace(policy, limits=replace(policy.limits, cpu=500), allow=("example.com",))
    wanted = needed_capabilities(limited, options.chains(limited), "windows")
    assert {"job_cpu_rate", "relay"} <= wanted


@pytest.mark.parametrize(
    ("free", "limited", "status"),
    [
        ((0.9, 0.5), (0.03, 0.5), "proven"),
        ((0.6, 0.5), (0.6, 0.5), "unknown"),  # the limit has no effect
        ((0.1, 0.5), (0.03, 0.5), "unknown"),  # the process without a limit is slow too
        ((0.0, 0.0), (0.0, 0.0), "unknown"),  # no CPU time is counted
    ],
)
def test_a_cpu_rate_is_judged_by_comparing_two_processes(monkeypatch, free, limited, status):
    """Check that a CPU limit counts as proven only if the limited process is slow and the unlimited
    one is not. A busy machine slows down both.
    """
    monkeypatch.setattr(host.job, "create", lambda _step: types.SimpleNamespace(release=int))
    monkeypatch.setattr(host, "_race", lambda first, _second: limited if first.cpu else free)
    found = host._try("job_cpu_rate", lambda: host._cpu_rate(job.Job()))
    assert found.status == status, found


NO_LOCATION = "Failed to find real location of C:\\store\\python.exe"
"""Python 3.13 and newer print this on stderr in an AppContainer (python/cpython#128823)."""


def outcome(output: str, *, status: int = 0, errors: str = "") -> trial.Outcome:
    reaped = Reaped(status=status, cpu=0.0, memory=0, hit=())
    return trial.Outcome(output=output, reaped=reaped, errors=errors)


class Trials:
    """Replace a probe's two trials with given results. The first trial runs outside a container,
    and the second one inside.

    For each trial, `arrives` says whether its connection reaches the listener.
    """

    def __init__(self, monkeypatch, inside: str, *, outside: str = "done done done done") -> None:
        self.answers = [outside, inside]
        self.arrives = [True, False]
        self.errors = ""
        monkeypatch.setattr(container.trial, "observe", self.observe)
        monkeypatch.setattr(container, "steps", lambda *, desktop: ())

    def observe(self, _code: str, _steps: object, _secret: str, port: str) -> object:
        if self.arrives.pop(0):
            socket.create_connection(("127.0.0.1", int(port))).close()
        return outcome(self.answers.pop(0), status=0xC0000142 << 8, errors=self.errors)


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        # The four words say whether the process could read a file of the user, connect to the
        # host's loopback, write to its own directory, and connect to itself. This result was seen
        # on 10.0.26200: loopback works inside one container, but connections to the host's loopback
        # are dropped.
        ("denied denied done done", ""),
        # A firewall may also deny loopback inside the container. In that case asyncio fails, and so
        # does every Python server that uses it.
        ("denied denied done denied", "inside: denied denied done denied"),
        ("denied done done done", "inside: denied done done done"),
        ("done denied done done", "inside: done denied done done"),
        ("", r"inside: {} \(exit code 0xc0000142\)"),
    ],
)
@pytest.mark.parametrize("errors", ["", NO_LOCATION], ids=["silent", "python 3.13"])
def test_the_app_container_is_proven_only_if_the_probe_finds_every_wall(
    monkeypatch, tmp_path, inside, problem, errors
):
    monkeypatch.setenv("HOME", str(tmp_path))
    Trials(monkeypatch, inside).errors = errors
    problem = problem.format(re.escape(errors) or "it printed nothing")
    found = host._try("app_container", lambda: container.try_walls(job.Job(), desktop=True))
    assert found.status == ("absent" if problem else "proven")
    assert re.search(problem, found.evidence)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arrives", "told"),
    [
        ([True, True], "arrived on the host's loopback"),
        ([False, False], "the sanity check failed"),
    ],
)
def test_a_connection_counts_only_if_it_arrives(monkeypatch, tmp_path, arrives, told):
    """Check that a connection counts as successful only if it reaches the listener, whatever the
    process in the sandbox prints. If the connection from outside does not arrive, the probe's
    sanity check has failed.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    Trials(monkeypatch, "denied denied done done").arrives = list(arrives)
    found = host._try("app_container", lambda: container.try_walls(job.Job(), desktop=True))
    assert found.status == "absent"
    assert told in found.evidence


@pytest.mark.parametrize(
    ("printed", "refused"),
    [
        ("started", ""),
        (
            "PermissionError: [WinError 10013] ... forbidden by its access permissions",
            "WinError 10013",
        ),
    ],
)
def test_a_python_whose_event_loop_does_not_start_is_refused(monkeypatch, printed, refused):
    """Check that a Python counts as working only if its event loop starts. `asyncio` first makes a
    socket pair, which is a loopback connection on Windows, so a network wall may break it.
    """
    assert "asyncio.run(" in trial.LINES["python"][-1]
    done = (
        outcome("", status=256, errors=f"{NO_LOCATION}\nTraceback\n{printed}")
        if refused
        else outcome(printed, errors=NO_LOCATION)
    )
    monkeypatch.setattr(trial, "Trial", lambda _plan: types.SimpleNamespace(finish=lambda: done))
    plan = Plan(
        program=Program(path="C:\\python.exe", argv=("x",)), steps=(), controls=(), environment=()
    )
    problem = trial._try_runtime(plan, trial.LINES["python"])
    assert (refused in problem) if refused else problem == ""


@pytest.mark.parametrize("errors", ["", NO_LOCATION], ids=["silent", "python 3.13"])
@pytest.mark.parametrize("output", ["started", ""])
def test_only_the_output_of_a_trial_proves_that_a_program_starts(monkeypatch, output, errors):
    monkeypatch.setattr(trial, "observe", lambda *_: outcome(output, errors=errors))
    machine = host.Machine()
    for name in ("job_read_back", "app_container", "desktop", restricted_token.CAPABILITY):
        machine.found[name] = Finding(capability=name, status="absent", evidence="")
    found = machine.find("mitigations")
    assert found.status == ("proven" if output else "absent")
    assert output or (errors or "it printed nothing") in found.evidence


WINDOW = "corral-0123456789abcdef"


@pytest.mark.parametrize(
    ("outside", "inside", "status"),
    [
        # corral runs in a user session. Service-0x0-LUID$ is the window station that
        # CreateWindowStationW(NULL) makes.
        ("WinSta0|Default|opened", f"Service-0x0-1$|{WINDOW}|denied", "proven"),
        ("WinSta0|Default|opened", f"WinSta0|{WINDOW}|denied", "absent"),
        ("WinSta0|Default|opened", "Service-0x0-1$|Default|denied", "absent"),
        ("WinSta0|Default|opened", f"Service-0x0-1$|{WINDOW}|opened", "absent"),
        # corral runs in session 0, so the window station outside the sandbox has the same kind of
        # name. Only the desktop differs.
        ("Service-0x0-1$|Default|opened", f"Service-0x0-1$|{WINDOW}|denied", "proven"),
        ("Service-0x0-1$|Default|opened", "Service-0x0-1$|Default|denied", "absent"),
        ("Service-0x0-1$|Default|opened", f"|{WINDOW}|denied", "absent"),
        ("WinSta0|Default|opened", "", "absent"),
        ("", f"Service-0x0-1$|{WINDOW}|denied", "absent"),
        # OpenClipboard also returns ERROR_ACCESS_DENIED while another program has the clipboard
        # open.
        ("WinSta0|Default|denied", f"Service-0x0-1$|{WINDOW}|denied", "unknown"),
    ],
)
def test_the_private_desktop_is_proven_only_by_the_results_inside_and_outside(
    monkeypatch, outside, inside, status
):
    answers = [outcome(outside), outcome(inside, errors=NO_LOCATION)]
    monkeypatch.setattr(container.trial, "observe", lambda *_: answers.pop(0))
    monkeypatch.setattr(container, "steps", tuple)
    found = host._try("desktop", lambda: container.try_desktop(job.Job()))
    assert found.status == status, found


@pytest.mark.parametrize("errors", ["", NO_LOCATION], ids=["silent", "python 3.13"])
@pytest.mark.parametrize(
    ("output", "problem"),
    [("200 403", ""), ("200 200", "200 200"), ("403 403", "403 403"), ("", "nothing|location")],
)
def test_the_relay_is_proven_only_if_it_allows_the_named_port_and_denies_another(
    monkeypatch, output, problem, errors
):
    """Check that the relay is proven only if it answers 200 for a port that the policy names, and
    403 for another port.
    """
    started: list[object] = []

    def start(_code: str, steps: tuple[object, ...], *_ports: str) -> object:
        started.extend(steps)
        child = types.SimpleNamespace(relay_pipes=lambda: (1, 2))
        return types.SimpleNamespace(child=child, finish=lambda: outcome(output, errors=errors))

    monkeypatch.setattr(container.trial, "start", start)
    closing = types.SimpleNamespace(close=lambda: started.append("closed"))
    monkeypatch.setattr(container, "Relay", lambda *_: closing)
    found = host._try("relay", lambda: container.try_relay((job.Job(),)))
    assert found.status == ("absent" if problem else "proven")
    assert re.search(problem, found.evidence)
    assert started[-1] == "closed"


@pytest.mark.parametrize("errors", ["", NO_LOCATION], ids=["silent", "python 3.13"])
@pytest.mark.parametrize("output", ["open", "[Errno 13] Permission denied: 'NUL'"])
def test_the_nul_device_counts_as_usable_only_if_the_target_can_open_it(
    monkeypatch, output, errors
):
    """Check that NUL counts as usable only if the target can open it. For example, the sandbox of
    nub (nubjs/nub) could open NUL on Windows build 26200, but not on 26100.
    """
    monkeypatch.setattr(container.trial, "observe", lambda *_: outcome(output, errors=errors))
    found = host._try("nul", lambda: container.try_nul(()))
    assert found.status == ("proven" if output == "open" else "absent")


def test_a_probe_that_does_not_end_is_unknown(monkeypatch):
    """Check that a capability does not count as absent if its probe times out. The machine may only
    be busy, so the next run that needs the capability must probe again.
    """

    def late() -> str:
        raise TimeoutError(0, "a trial did not end")

    assert host._try("relay", late).status == "unknown"


def test_the_evidence_names_the_time_to_create_a_profile(monkeypatch):
    """Check that `doctor -v` shows how long it takes to create a profile. This time matters,
    because every run creates and deletes one through the firewall service.
    """
    monkeypatch.setattr(app_container, "_create", lambda step: parse_sid(step.package))
    monkeypatch.setattr(win32_security, "DeleteAppContainerProfile", lambda _name: None)
    found = host.PROBES[app_container.CAPABILITY](host.Machine())
    assert found.status == "proven"
    assert re.fullmatch(r"a profile was created and deleted in \d+ ms", found.evidence)
