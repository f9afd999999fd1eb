"""Attack kernel quotas that are shared by the whole machine or by all processes of a user."""

from __future__ import annotations

import subprocess

import pytest
from attempts import BOTH_TIERS, by_tier, give, inside, mechanism_of, outside

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
def test_calls_that_use_up_quotas_shared_with_the_host_are_denied(user, scratch):
    path = give(user, scratch / "file", "text")
    (scratch / "file.d").mkdir(mode=0o777)
    (scratch / "file.d").chmod(0o777)
    seen = inside(user, quotas(), path, flags=("--read", path))
    assert seen == {"aio": "EPERM", "lease": "EPERM", "whiteout": "EPERM", "exchange": "done"}
    control = outside(user, quotas(), path)
    assert (control["aio"], control["exchange"]) == ("done", "done")
    # Only the owner of a file can take a lease, so this is checked only with namespaces. Without
    # them, the process outside may run as a user who does not own the file.
    if user.tier == "walled":
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
def test_a_target_can_take_at_most_a_quarter_of_the_users_inotify_instances(user):
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as file:
        most = int(file.read())
    code = INOTIFY.replace("N.update(EXTRA)", "")
    taken, why = inside(user, code)
    assert (taken, why) == by_tier(user, (most // 4, "EMFILE"), (0, "EPERM"))
    assert outside(user, code)[0] > most // 4  # sanity check: outside, more instances can be made


MAXIMA = """
def words(name):
    with open("/proc/sys/" + name) as file:
        return file.read().split()
answer = [int(words("kernel/msgmni")[0]), int(words("kernel/shmmni")[0]), int(words("kernel/sem")[3])]
"""


def test_root_lowers_system_v_maxima_in_the_sandbox(user):
    """Check that root's corral lowers the maxima of System V objects in the sandbox. An ordinary
    user's corral cannot do this, because only uid 0 of a namespace may do so.
    """
    if user.uid:
        pytest.skip("docs/SECURITY.md says that this cannot be prevented here")
    assert inside(user, MAXIMA) == [1024, 1024, 1024]
    assert min(outside(user, MAXIMA)) > 1024  # sanity check: outside, the maxima are higher


SYSTEM_V = """
import ctypes
libc, made = ctypes.CDLL(None), []
for make in (lambda: libc.msgget(0, 0o1600), lambda: libc.semget(0, 1, 0o1600), lambda: libc.shmget(0, 4096, 0o1600)):
    made.append(0)
    while made[-1] < int(sys.argv[1]) and make() >= 0:
        made[-1] += 1
if "wait" in sys.argv:
    sys.stdin.read()
answer = made
"""


def test_system_v_objects_are_bounded_under_a_memory_limit(user):
    """Check that the number of System V objects is bounded if the supervisor samples the memory
    usage. Each sample reads the lists of these objects, and long lists would slow it down.

    Root's target gets low maxima. An ordinary user's target is stopped when it has too many
    objects.
    """
    flags = ("--max-memory", "800M")
    # Sanity check: a thousand objects are allowed.
    assert inside(user, SYSTEM_V, "1000", flags=flags) == [1000] * 3
    if user.uid == 0:
        assert inside(user, SYSTEM_V, "40000", flags=flags) == [1024] * 3
        return
    if (how := mechanism_of(user, "memory", *flags)) != "sampling":
        pytest.skip(f"{how} limits memory here, so no sample reads the lists")
    script = f"import json, os, sys\nanswer = None\n{SYSTEM_V}"
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", script, "40000", "wait")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with user.popen(argv, **pipes) as process:
        # stdin stays open, so this read ends only because corral ends the run.
        said = process.stderr.read().decode()
    assert process.returncode != 0
    assert "too many System V objects" in said


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


def test_the_target_cannot_adjust_pid_1(user):
    init, users, io_users, caller, own = inside(user, INIT.replace("N.update(EXTRA)", ""))
    assert set(init.values()) == {"EPERM"}
    assert users == io_users == "EPERM"
    assert set(caller.values()) == {"done"}  # sanity check: the target may adjust itself
    # A process group with the target's pid exists only if the target leads its group, so "group"
    # may succeed or fail.
    own.pop("group")
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
def test_a_target_paused_by_its_cpu_share_cannot_continue_itself_with_a_timer(user):
    from attempts import TABLE

    code = CONTINUE.replace("EXTRA", repr({"timer_create": TABLE["timer_create"]}))
    flags = ("--max-cpu", "0.9")
    if (how := mechanism_of(user, "cpu", *flags)) != "sampling":
        pytest.skip(f"{how} limits the processor here, so no signal pauses the target")
    held = inside(user, code, flags=flags)
    assert held == {
        "timer": "EPERM",
        "F_SETSIG": "EPERM",
        "PDEATHSIG": "EPERM",
        "other signal": "done",
    }
    free = inside(user, code)  # sanity check: without the CPU limit these calls succeed
    assert (free["timer"], free["F_SETSIG"]) == ("done", "done")
