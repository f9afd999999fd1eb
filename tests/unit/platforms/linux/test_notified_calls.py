"""Check that the kernel continues a notified call only if corral's table allows this, even if a
decider (a function of the supervisor that answers calls) wants it. All call numbers are tried.
"""

from __future__ import annotations

import sys

import pytest

from corral.abi.linux_notifications import Notification
from corral.abi.linux_syscalls import TABLES
from corral.platforms.linux.mechanisms import seccomp_rules
from corral.platforms.linux.mechanisms.seccomp_compiler import ALLOW, NOTIFY
from corral.platforms.linux.notified_calls import (
    CALLS,
    CHANGES,
    CREATES,
    MEMORY,
    PATHS,
    SOCKET_NAMES,
    SOCKETS,
    STARTS,
    Decision,
)

if sys.platform == "linux":
    from corral.platforms.linux.notifications import judge


class Yes:
    """A decider that lets every call continue."""

    def decide(self, _call, _request):
        return Decision(verdict="continue")

    def pause_seconds(self):
        return 0.0


def request(number: int, flags: int = 0) -> Notification:
    return Notification(id=1, pid=1, number=number, arguments=(flags, *(0,) * 5))


EVERY = {row.decider: Yes() for rows in CALLS.values() for row in rows}


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("machine", TABLES)
@pytest.mark.parametrize("flags", [0, 17, 0x10000, 0x10F00])
def test_the_supervisor_lets_only_calls_continue_that_the_table_permits(machine, flags):
    """Check that the kernel continues a call after the supervisor's answer only in three cases:
    corral only watches the call, the call starts a task that corral only counts, or the call asks a
    socket for a name or for received data. A continued call reads its arguments from the target's
    memory again, but in these cases the target gains nothing if it has changed them.

    Without namespaces, calls that change modes and times never continue, not even in `corral
    learn`.
    """
    names = {one: name for name, one in TABLES[machine].items()}
    for number in range(-1, 601):
        check_verdicts(names, number, flags)


def check_verdicts(names: dict[int, str], number: int, flags: int) -> None:
    name = names.get(number, "")
    is_thread = name == "clone" and bool(flags & 0x10000)
    asked = request(number, flags)
    watched_paths = {*PATHS, MEMORY} - {*CHANGES}
    goes_on = name in watched_paths or is_thread or name in SOCKET_NAMES
    assert judge(asked, names, EVERY).verdict == ("continue" if goes_on else "deny")
    learned = {"path_watch": Yes()}  # without namespaces
    assert judge(asked, names, learned).verdict == ("continue" if name in watched_paths else "deny")
    assert judge(asked, names, {"file_changes": Yes()}).verdict == "deny"
    both = {"file_changes": Yes(), "change_watch": Yes()}
    assert judge(asked, names, both).verdict == "deny"
    walled = {"change_watch": Yes()}
    assert judge(asked, names, walled).verdict == ("continue" if name in CHANGES else "deny")
    counted = {"task_count": Yes()}
    goes_on = name in {"fork", "vfork", "clone"}
    assert judge(asked, names, counted).verdict == ("continue" if goes_on else "deny")
    assert judge(asked, names, {}).verdict == "deny"
    # `socket_watch` records calls for `corral learn`. Only `connect` and `bind` may continue.
    watched = {"socket_watch": Yes()}
    goes_on = name in {"connect", "bind"}
    assert judge(asked, names, watched).verdict == ("continue" if goes_on else "deny")
    brokered = {"socket_broker": Yes()}
    goes_on = name in SOCKET_NAMES
    assert judge(asked, names, brokered).verdict == ("continue" if goes_on else "deny")


def test_code_that_only_reports_process_starts_can_only_deny_them():
    for name in STARTS:
        assert [row.may for row in CALLS[name] if row.decider == "denied_starts"] == [("deny",)]


def test_code_that_only_reports_denied_sockets_can_only_deny_them():
    assert [row.may for row in CALLS["socket"] if row.decider == "denied_sockets"] == [("deny",)]
    listed = {
        name for name, rows in CALLS.items() for row in rows if row.decider == "denied_sockets"
    }
    assert listed == {"socket"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("call", ["fork", "vfork", "clone", "execve"])
def test_if_only_threads_are_allowed_a_process_start_is_denied_without_being_counted(call):
    from corral.platforms.linux.mechanisms.task_limit import TaskCount

    count = TaskCount(1, 100, threads_only=True, hit=[])
    decision = count.decide(call, request(0))
    assert (decision.verdict, decision.error) == ("deny", 1)


def notified(rules) -> set[str]:
    found = set()
    for name, rule in rules.items():
        actions = {rule} if isinstance(rule, int) else {rule[1], *(one[1] for one in rule[0])}
        if NOTIFY in actions:
            found.add(name)
    return found


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_filter_notifies_only_starts_new_files_and_sockets_that_it_denies(namespaces):
    common = {"unix_sockets": False, "namespaces": namespaces, "cookie": (1, 2, 3)}
    rules = seccomp_rules.target_rules(subprocess=False, notices=True, **common)
    assert notified(rules) == {*STARTS, *CREATES, *(() if namespaces else ("socket",))}
    rules = seccomp_rules.target_rules(subprocess=False, **common)
    assert notified(rules) == set()
    rules = seccomp_rules.target_rules(subprocess=True, notices=True, **common)
    assert notified(rules) == set()
    rules = seccomp_rules.target_rules(subprocess=False, notices=True, watch_paths=True, **common)
    never = seccomp_rules.DENIED_WITHOUT_NAMESPACES if not namespaces else ()
    assert notified(rules) == {*STARTS, *PATHS, MEMORY, "socket", "connect", "bind"} - {*never}


@pytest.mark.parametrize("watch_paths", [True, False])
@pytest.mark.parametrize("subprocess", [True, False])
def test_the_filter_notifies_every_change_of_a_mode_or_times(subprocess, watch_paths):
    common = {"subprocess": subprocess, "unix_sockets": False, "cookie": (1, 2, 3)}
    rules = seccomp_rules.target_rules(
        **common, namespaces=False, watch_paths=watch_paths, file_changes=True
    )
    assert {*CHANGES} <= notified(rules)
    assert allowed(rules) & {*CHANGES} == set()
    quiet = seccomp_rules.target_rules(**common, namespaces=False, watch_paths=watch_paths)
    # A run that watches paths already asks the supervisor about `bind`, so `file_changes` makes no
    # difference to `bind`.
    others = set() if watch_paths else {"bind"}
    assert {name for name in quiet if rules[name] != quiet[name]} == {*CHANGES, *others}
    assert (allowed(quiet) | notified(quiet)) & {*CHANGES} == set()
    walled = {**common, "namespaces": True, "watch_paths": watch_paths}
    assert seccomp_rules.target_rules(**walled, file_changes=True) == seccomp_rules.target_rules(
        **walled
    )


@pytest.mark.parametrize("file_changes", [True, False])
def test_without_namespaces_only_addresses_of_netlink_can_be_bound(file_changes):
    common = {"unix_sockets": False, "cookie": (1, 2, 3), "subprocess": False}
    rules = seccomp_rules.target_rules(**common, namespaces=False, file_changes=file_changes)
    alternatives, other = rules["bind"]
    assert other == seccomp_rules.DENY
    assert [when for when, _ in alternatives] == [((2, 0xFFFFFFFF, 12),)]
    assert ("bind" in notified(rules)) == file_changes
    assert "bind" not in seccomp_rules.target_rules(**common, namespaces=True)


@pytest.mark.parametrize("unix_sockets", [True, False])
def test_the_filter_notifies_every_connection(unix_sockets):
    common = {"unix_sockets": unix_sockets, "namespaces": False, "cookie": (1, 2, 3)}
    rules = seccomp_rules.target_rules(subprocess=True, broker=True, **common)
    assert notified(rules) == {*SOCKETS, *SOCKET_NAMES}
    assert allowed(rules) & {"connect", "bind", "listen", "recvmsg"} == set()
    rules = seccomp_rules.target_rules(subprocess=True, **common)
    assert notified(rules) == set()


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_filter_notifies_every_task_if_tasks_are_counted(namespaces):
    common = {"unix_sockets": False, "namespaces": namespaces, "cookie": (1, 2, 3)}
    rules = seccomp_rules.target_rules(subprocess=True, limit_tasks=True, **common)
    assert notified(rules) == {"fork", "vfork", "clone"}
    assert allowed(rules) & {"fork", "vfork", "clone", "clone3"} == set()
    rules = seccomp_rules.target_rules(subprocess=False, limit_tasks=True, **common)
    assert notified(rules) == {"clone"}
    assert allowed(rules) & {"fork", "vfork", "clone", "clone3"} == set()


def allowed(rules) -> set[str]:
    """Return the calls that the filter allows for at least some arguments, including all calls
    without a rule.
    """
    asked = set(TABLES["x86_64"]) - set(rules)
    for name, rule in rules.items():
        actions = {rule} if isinstance(rule, int) else {rule[1], *(one[1] for one in rule[0])}
        if ALLOW in actions:
            asked.add(name)
    return asked
