"""Run the source code of an attack inside the sandbox, and outside as a sanity check.

`PRELUDE` gives the code raw system calls by name, and the function `tried`, which returns "done" or
the name of the errno. Tests always compare the errno, because a failure with another errno does not
show that the wall denied the act.
"""

from __future__ import annotations

import json
import os
import platform

import pytest

from corral.abi.linux import landlock_abi
from corral.abi.linux_syscalls import TABLES

CALLS = """
    add_key bind bpf chroot clone clone3 connect execve execveat exit fanotify_init fsopen getpid inotify_add_watch
    inotify_init1 io_uring_setup ioctl ioprio_set kcmp keyctl kill linkat listen memfd_create mknod mknodat modify_ldt mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree openat2 perf_event_open personality pidfd_getfd pidfd_open
    pidfd_send_signal pivot_root prctl prlimit64 process_madvise process_vm_readv process_vm_writev
    ptrace renameat2 request_key rt_sigqueueinfo sched_setattr seccomp sendto setns setsockopt socket socketpair tgkill
    umount2 unshare userfaultfd vfork
"""
TABLE = TABLES[platform.machine()]

NUMBERS = {name: TABLE[name] for name in CALLS.split() if name in TABLE}
PRELUDE = """
import ctypes, errno, mmap, signal, struct
N = NUMBERS
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def word(item):
    if isinstance(item, int):
        return ctypes.c_uint64(item & 2**64 - 1)
    return item

def raw(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(word, arguments))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def call(name, *arguments):
    # aarch64 never had mknod, modify_ldt and vfork.
    return raw(N.get(name, -1), *arguments)

def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def put(path, text="x"):
    with open(path, "w") as file:
        file.write(text)

def got(path):
    with open(path, errors="replace") as file:
        return file.read()

def in_child(act):
    # Call act() in a child process. If no child can be started, call it in this process, where it must fail.
    sys.stdout.flush()
    try:
        pid = os.fork()
    except OSError:
        return tried(act)
    if pid == 0:
        try:
            act()
        except OSError as error:
            os._exit(error.errno)
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    code = os.WEXITSTATUS(status)
    return errno.errorcode[code] if code else "done"
""".replace("NUMBERS", repr(NUMBERS))

# Make the same attempts in a grandchild of the target. The target's child passes the grandchild's
# answer on to the target.
GRANDCHILD = """
import subprocess
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    started = subprocess.run([sys.executable, "-c", SOURCE, *sys.argv[1:]], stdout=subprocess.PIPE)
    os.write(writing, started.stdout)
    os._exit(started.returncode)
os.close(writing)
with open(reading) as said:
    answer = json.loads(said.read().splitlines()[-1])
assert os.waitpid(pid, 0)[1] == 0
"""


def inside(user, code, *arguments, flags=(), **options):
    return user.inside(PRELUDE + code, *arguments, flags=flags, **options)


def outside(user, code, *arguments, **options):
    return user.outside(PRELUDE + code, *arguments, **options)


def by_a_grandchild(user, code, *arguments, flags=(), **options):
    source = f"import json, os, sys\nanswer = None\n{PRELUDE}{code}\nprint(json.dumps(answer))"
    flags = ("--allow-subprocess", *flags)
    return user.inside(f"SOURCE = {source!r}\n{GRANDCHILD}", *arguments, flags=flags, **options)


def everywhere(user, code, *arguments, flags=(), **options):
    """Return two answers: that of the target, and that of a grandchild of a second run's target."""
    return (
        inside(user, code, *arguments, flags=flags, **options),
        by_a_grandchild(user, code, *arguments, flags=flags, **options),
    )


def give(user, path, text="", mode=0o644):
    """Create a file that belongs to the user."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    os.chown(path, user.owner, user.owner)
    return str(path)


def give_directory(user, path, mode=0o755):
    """Create a directory that belongs to the user, and its missing parents."""
    missing = [path, *path.parents]
    for place in reversed(
        missing[: next(at for at, place in enumerate(missing) if place.exists())]
    ):
        place.mkdir()
        os.chown(place, user.owner, user.owner)
    if path != user.home:  # do not change the home's mode, because root's target depends on it
        path.chmod(mode)
    return str(path)


BOTH_TIERS = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)


def has_landlock(least=1):
    """Return whether this kernel's Landlock has at least version `least` of its ABI. Debian 12's
    user-mode Linux has no Landlock at all.
    """
    try:
        return landlock_abi() >= least
    except OSError:
        return False


def has_unix_scope(user):
    """Return whether Landlock limits this user's target to its own unix sockets. This requires
    namespaces and Linux 7.1.
    """
    return user.tier == "walled" and has_landlock(9)


def mechanism_of(user, control, *flags):
    """Return the mechanism that enforces a control on this host, as `corral explain` names it."""
    told = json.loads(user.corral("explain", "--json", *flags, "--", "/bin/true").stdout)
    return {one["control"]: one["mechanism"] for one in told["controls"]}[control]


def by_tier(user, walled, bare):
    """Return `walled` if the user's sandboxes have namespaces, and otherwise `bare`. Tests use this
    for results that depend on the tier.
    """
    return walled if user.tier == "walled" else bare


LAUNCH = """
import json, os, sys
sys.path.insert(0, PACKAGE)
from corral.platforms import current
from corral.supervisor import start
from corral.abi import linux as abi
from corral.policy.manifest import from_flags
from corral.policy.model import Source
from corral.supervisor.prepare import prepare

def planned(argv, **values):
    # Make the plan that `corral run` would make for the target.
    source = Source(manifest=from_flags({name.replace("__", "."): value for name, value in values.items()},
                                        best_effort=None, strict=None), trust="user", approved=True)
    return prepare(argv, [source], environment=os.environ, cwd=os.getcwd())

def started(plan, stdio=(0, 1, 2)):
    # Start the plan's target. Return its exit code, or the error of the step that failed.
    from corral.errors import SandboxError
    from corral.supervisor.report import find_outcome
    try:
        watch = start.run(plan, stdio, signals=current.load().signals(()), control=-1)
    except SandboxError as error:
        return str(error)
    return find_outcome(plan, watch.until_end()).exit_code
"""


def launched(user, code, *arguments, **options):
    """Run `code` as the user, with corral imported, so that the code can change files between
    planning a run and starting it.
    """
    code = f"PACKAGE = {str(user.package)!r}\n{LAUNCH}\n{code}"
    return user.outside(code, *arguments, host=user.host, **options)
