"""Quotas of the kernel that the whole machine or all of the user's processes share."""

from __future__ import annotations

import pytest
from attempts import BOTH_TIERS, by_tier, give, inside, outside

QUOTAS = """
import fcntl, os
N.update(EXTRA)
context = ctypes.c_uint64(0)
def lease():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.fcntl(fd, 1024, 0)
def whiteout():
    put("from")
    call("renameat2", -100, b"from", -100, b"to", 4)
def exchange():
    put("one"), put("two")
    call("renameat2", -100, b"one", -100, b"two", 2)
os.chdir(os.environ.get("TMPDIR", sys.argv[1] + ".d"))
answer = {
    "aio": tried(lambda: call("io_setup", 1, ctypes.byref(context))),
    "lease": tried(lease),
    "whiteout": tried(whiteout),
    "exchange": tried(exchange),
}
"""


def quotas():
    from attempts import TABLE

    names = ("io_setup", "renameat2", "inotify_init1", "setpriority", "ioprio_set", "timer_create")
    return QUOTAS.replace("EXTRA", repr({name: TABLE[name] for name in names}))


@BOTH_TIERS
def test_shared_quotas_and_leases(user, scratch):
    path = give(user, scratch / "file", "text")
    (scratch / "file.d").mkdir(mode=0o777)
    (scratch / "file.d").chmod(0o777)
    seen = inside(user, quotas(), path, flags=("--read", path))
    assert seen == {"aio": "EPERM", "lease": "EPERM", "whiteout": "EPERM", "exchange": "done"}
    control = outside(user, quotas(), path)
    assert (control["aio"], control["exchange"]) == ("done", "done")
    if user.tier == "walled":  # whose file it is
        assert (control["lease"], control["whiteout"]) == ("done", "done")


INOTIFY = """
N.update(EXTRA)
taken = []
try:
    while len(taken) < 10_000:
        taken.append(call("inotify_init1", 0))
except OSError as error:
    answer = [len(taken), errno.errorcode[error.errno]]
"""


@BOTH_TIERS
def test_inotify_instances_are_left_for_the_user(user):
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as file:
        most = int(file.read())
    code = INOTIFY.replace("N.update(EXTRA)", "")
    taken, why = inside(user, code)
    assert (taken, why) == by_tier(user, (most // 4, "EMFILE"), (0, "EPERM"))
    assert outside(user, code)[0] > most // 4  # the control


MAXIMA = """
def words(name):
    with open("/proc/sys/" + name) as file:
        return file.read().split()
answer = [int(words("kernel/msgmni")[0]), int(words("kernel/shmmni")[0]), int(words("kernel/sem")[3])]
"""


def test_system_v_maxima(user):
    """Only uid 0 of a namespace may lower them, which an ordinary user does not have."""
    if user.uid:
        pytest.skip("an ordinary user cannot: docs/SECURITY.md says so")
    assert inside(user, MAXIMA) == [1024, 1024, 1024]
    assert min(outside(user, MAXIMA)) > 1024  # the control


INIT = """
import os
N.update(EXTRA)
def on(pid):
    return {
        "prlimit": tried(lambda: call("prlimit64", pid, 7, struct.pack("=QQ", 64, 64), None)),
        "nice": tried(os.setpriority, os.PRIO_PROCESS, pid, 19),
        "group": tried(os.setpriority, os.PRIO_PGRP, pid, 19),
        "affinity": tried(os.sched_setaffinity, pid, {0}),
        "scheduler": tried(os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0)),
        "io": tried(lambda: call("ioprio_set", 1, pid, 3 << 13)),
    }
answer = [on(1), tried(os.setpriority, os.PRIO_USER, 0, 19), tried(lambda: call("ioprio_set", 3, os.getuid(), 3 << 13)), on(0), on(os.getpid())]
"""


def test_pid_1_is_not_adjusted(user):
    init, users, io_users, caller, own = inside(user, INIT.replace("N.update(EXTRA)", ""))
    assert set(init.values()) == {"EPERM"}
    assert users == io_users == "EPERM"
    assert set(caller.values()) == {"done"}  # the control
    own.pop("group")  # the target's own session: its group has the number of the target
    assert set(own.values()) == {"done"}


CONTINUE = """
N.update(EXTRA)
import fcntl, os
SIGCONT = 18
def timer():
    event = struct.pack("=qii48x", 0, SIGCONT, 0)
    call("timer_create", 1, event, ctypes.byref(ctypes.c_int(0)))
answer = {
    "timer": tried(timer),
    "F_SETSIG": tried(fcntl.fcntl, os.pipe()[0], 10, SIGCONT),
    "PDEATHSIG": tried(lambda: call("prctl", 1, SIGCONT, 0, 0, 0)),
    "other signal": tried(fcntl.fcntl, os.pipe()[0], 10, 10),
}
"""


@BOTH_TIERS
def test_a_duty_cycle_is_not_undone_by_timers(user):
    from attempts import TABLE

    code = CONTINUE.replace("EXTRA", repr({"timer_create": TABLE["timer_create"]}))
    held = inside(user, code, flags=("--max-cpu", "0.9"))
    assert held == {
        "timer": "EPERM",
        "F_SETSIG": "EPERM",
        "PDEATHSIG": "EPERM",
        "other signal": "done",
    }
    free = inside(user, code)  # the control
    assert (free["timer"], free["F_SETSIG"]) == ("done", "done")
