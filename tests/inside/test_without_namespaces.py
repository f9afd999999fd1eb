"""Attack from a target in the host's namespaces.

The target can see the names of other processes and files, but must not access them. The tests also
check what stays visible, because the docs must not promise otherwise.
"""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
from attempts import (
    PRELUDE,
    by_a_grandchild,
    everywhere,
    give,
    give_directory,
    inside,
    launched,
    outside,
)

from corral.abi.linux import landlock_abi

pytestmark = pytest.mark.parametrize("tier", ["bare"], indirect=True)

VICTIM = """
import os, signal, sys
signal.signal(signal.SIGURG, lambda *_: os.write(1, b"!"))
os.write(1, b".")
while os.read(0, 1): pass
"""


def as_target(user):
    """Return `Popen` options that set the target's user id. Only root's target has its own."""
    return {"user": user.owner, "group": user.owner} if user.owner != user.uid else {}


@pytest.fixture
def victim(user):
    """Start a process with the target's user id that reports every SIGURG. Other processes
    ignore this signal, so tests may send it to any process.
    """
    process = user.popen(
        [user.python, "-c", VICTIM],
        env={"VICTIM_TOKEN": "of the host"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        **as_target(user),
    )
    assert process.stdout.read(1) == b"."
    yield process
    process.communicate()


REACH = """
import fcntl
RLIMIT_CPU, SIGURG = 0, signal.SIGURG
def signalled(name, pid):
    if name == "pidfd_send_signal":
        call(name, call("pidfd_open", pid, 0), SIGURG, None, 0)
    elif name == "rt_sigqueueinfo":
        call(name, pid, SIGURG, struct.pack("=iii116x", SIGURG, 0, -1))
    elif name == "tgkill":
        call(name, pid, pid, SIGURG)
    else:
        os.kill(pid, SIGURG)
def owned(pid):
    end = os.pipe()[0]
    fcntl.fcntl(end, 8, pid)
def owned_by_pointer(pid):
    fcntl.fcntl(os.pipe()[0], 15, struct.pack("=ii", 1, pid))
def memory(name, pid):
    into = ctypes.create_string_buffer(8)
    call(name, pid, struct.pack("PN", ctypes.addressof(into), 8), 1, struct.pack("PN", 1, 8), 1, 0)
def advised(pid):
    call("process_madvise", call("pidfd_open", pid, 0), struct.pack("PN", 4096, 4096), 1, 20, 0)
def taken(pid):
    os.close(call("pidfd_getfd", call("pidfd_open", pid, 0), 0, 0))
def attempts(pid):
    return {
        **{name: tried(signalled, name, pid) for name in ("kill", "tgkill", "rt_sigqueueinfo", "pidfd_send_signal")},
        "prlimit": tried(lambda: call("prlimit64", pid, RLIMIT_CPU, struct.pack("=QQ", 60, 60), None)),
        "setpriority": tried(os.setpriority, os.PRIO_PROCESS, pid, 19),
        "setpriority of a group": tried(os.setpriority, os.PRIO_PGRP, pid, 19),
        "sched_setaffinity": tried(os.sched_setaffinity, pid, os.sched_getaffinity(0)),
        "sched_setscheduler": tried(os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0)),
        "sched_setparam": tried(os.sched_setparam, pid, os.sched_param(0)),
        "sched_setattr": tried(lambda: call("sched_setattr", pid, struct.pack("=IIQiIQQQ", 48, 3, 0, 19, 0, 0, 0, 0), 0)),
        "ioprio_set": tried(lambda: call("ioprio_set", 1, pid, 3 << 13)),
        "ioprio_set of a group": tried(lambda: call("ioprio_set", 2, pid, 3 << 13)),
        "F_SETOWN": tried(owned, pid),
        "F_SETOWN_EX": tried(owned_by_pointer, pid),
        "read": tried(memory, "process_vm_readv", pid),
        "write": tried(memory, "process_vm_writev", pid),
        "madvise": tried(advised, pid),
        "descriptor": tried(taken, pid),
        "compare": tried(lambda: call("kcmp", pid, os.getpid(), 1, 0, 0)),
        "seize": tried(lambda: call("ptrace", 0x4206, pid, 0, 0)),
    }
def shown(pid):
    def looked(name):
        path = f"/proc/{pid}/{name}"
        if name in ("root", "task", "net", "cwd"):
            os.listdir(path)
        elif name == "exe" or "/" in name:
            os.readlink(path)
        else:
            with open(path, "rb") as file:
                if name != "mem":
                    file.read(1)
    names = ("environ", "mem", "maps", "root", "cwd", "exe", "fd/0", "ns/net", "io", "auxv", "stack", "syscall",
             "personality", "cmdline", "status")
    return {name: tried(looked, name) for name in names}
"""
SECRET = {"environ", "mem", "maps", "root", "cwd", "exe", "fd/0", "ns/net", "io", "auxv"}
SECRET |= {"stack", "syscall", "personality"}


def inside_with_pids(user, code, *arguments, flags=()):
    """Run code inside. The code can use `supervisor` and `guardian`: the pid of the supervisor, and
    the pid of corral's subreaper, which is the target's parent.
    """
    script = f"import json, os, sys\n{PRELUDE}{REACH}supervisor, guardian = int(sys.stdin.readline()), os.getppid()\n"
    script += f"{code}\nprint(json.dumps(answer))"
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", script, *arguments)
    pipe = subprocess.PIPE
    # In a container the tests may be in process group 1. kill(-1) would then signal every process.
    process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0)
    out, err = process.communicate(b"%d\n" % process.pid, timeout=60)
    assert process.returncode == 0, err.decode()
    import json

    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("flags", [(), ("--allow-subprocess",)], ids=["alone", "subprocess"])
def test_processes_with_the_same_id_are_out_of_reach(user, victim, flags):
    """Let the target try to signal, trace, read and change other processes: one of the same user,
    the guardian and the supervisor.
    """
    code = "answer = {name: attempts(pid) for name, pid in (('victim', int(sys.argv[1])), ('guardian', guardian), ('supervisor', supervisor))}"
    for name, held in inside_with_pids(user, code, str(victim.pid), flags=flags).items():
        assert held == dict.fromkeys(held, "EPERM"), (name, held)
    os.set_blocking(victim.stdout.fileno(), False)
    assert victim.stdout.read() is None  # no signal arrived
    code = f"{PRELUDE}{REACH}\nanswer = attempts(int(sys.argv[1]))"
    free = user.outside(code, str(victim.pid), **as_target(user))
    # Sanity check: outside, reading and writing fail only because no memory is mapped at address 1.
    # madvise on another process's memory may need privileges.
    assert (free.pop("read"), free.pop("write")) == ("EFAULT", "EFAULT")
    assert free.pop("madvise") in {"done", "EPERM", "ENOMEM", "EINVAL"}
    assert free == dict.fromkeys(free, "done")
    os.set_blocking(victim.stdout.fileno(), True)
    assert victim.stdout.read(1) == b"!"


def test_signals_to_all_processes_stay_with_the_target(user, victim):
    """Let the target signal all processes, its group and other groups. Only the target itself must
    get SIGURG.
    """
    code = """
came = []
signal.signal(signal.SIGURG, lambda *_: came.append(1))
group = os.getpgid(supervisor)
answer = [tried(os.kill, -1, SIGURG), tried(os.kill, 0, SIGURG), len(came) > 0]
answer += [tried(os.kill, -int(sys.argv[1]), SIGURG), tried(os.kill, -group, SIGURG)]
"""
    first, own, came, group, supervisors = inside_with_pids(user, code, str(victim.pid))
    # "done" means that the kernel sent the signal only to processes in the Landlock domain, and
    # the target is the only one.
    assert first in {"EPERM", "ESRCH", "done"}
    assert (own, came) == ("done", True)
    assert {group, supervisors} == {"EPERM"}
    os.set_blocking(victim.stdout.fileno(), False)
    assert victim.stdout.read() is None
    os.set_blocking(victim.stdout.fileno(), True)
    outside(user, "os.kill(-int(sys.argv[1]), signal.SIGURG)", str(victim.pid))
    assert victim.stdout.read(1) == b"!"


def test_proc_shows_little_of_other_processes(user, victim):
    """Check what /proc shows of other processes. With `--allow-subprocess` the target can list
    them, and see their command lines and their status. Otherwise it can see nothing.
    """
    code = "answer = [shown(int(sys.argv[1])), shown(guardian), shown(supervisor), tried(os.listdir, '/proc')]"
    *seen, listed = inside_with_pids(user, code, str(victim.pid))
    for held in seen:
        assert held == dict.fromkeys(held, "EACCES")
    assert listed == "EACCES"
    *seen, listed = inside_with_pids(user, code, str(victim.pid), flags=("--allow-subprocess",))
    for held in seen:
        assert {held[name] for name in SECRET} <= {"EACCES", "EPERM"}, held
        assert (held["cmdline"], held["status"]) == ("done", "done")
    assert listed == "done"
    free = outside(user, f"{REACH}\nanswer = shown(int(sys.argv[1]))", str(victim.pid))
    assert {name: free[name] for name in SECRET - {"stack", "syscall"}} == dict.fromkeys(
        SECRET - {"stack", "syscall"}, "done"
    )


def test_a_target_can_read_its_own_directory_in_proc(user):
    """Check that the target can read the files about its own process and the machine, but nothing
    about the host's network, other processes or the kernel.
    """
    code = """
def read(name):
    with open(f"/proc/self/{name}", "rb") as file:
        file.read(1)
names = ("maps", "status", "stat", "statm", "cgroup", "cmdline", "comm", "environ", "limits", "smaps", "mountinfo", "fdinfo/0")
answer = {
    "own": sorted({tried(read, name) for name in names}),
    "listed": [tried(os.listdir, f"/proc/self/{name}") for name in ("", "fd", "task")],
    "net": [tried(read, f"net/{name}") for name in ("tcp", "unix", "route")] + [tried(got, "/proc/net/dev")],
    "thread": tried(read, f"task/{os.getpid()}/net/unix"),
    "machine": [tried(got, f"/proc/{name}") for name in ("meminfo", "cpuinfo", "sys/vm/overcommit_memory")],
    "others": [tried(got, f"/proc/{name}") for name in ("1/status", "keys", "mounts", "kallsyms", "sysvipc/shm")],
}
"""
    held = inside(user, code)
    mounts = held["others"].pop(2)
    assert mounts == "done"  # /proc/mounts is a symlink to the target's own /proc/self/mounts
    assert held == {
        "own": ["done"],
        "listed": ["done"] * 3,
        "net": ["EACCES"] * 4,
        "thread": "EACCES",
        "machine": ["done"] * 3,
        "others": ["EACCES"] * 4,
    }
    free = outside(user, code)
    assert free["net"] == ["done"] * 4
    assert free["others"] == ["done"] * 5


CHANGES = """
path = sys.argv[1]
def opened():
    return os.open(path, os.O_RDONLY)
def by_path(act):
    # Opening with O_PATH needs no rights, so opening the file again through /proc could bypass the check.
    fd = os.open(path, os.O_PATH)
    try:
        return act(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
def emptied(name):
    fd = call("openat2", -100, path.encode(), struct.pack("=QQQ", os.O_WRONLY | os.O_TRUNC, 0, 0), 24)
    os.close(fd)
def through_root(act):
    return act("/proc/self/root" + path)
def from_here():
    os.chdir(os.path.dirname(path))
    open(os.path.basename(path), "r+").close()
acts = {
    "chmod": lambda: os.chmod(path, 0o777),
    "lchown": lambda: os.lchown(path, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(path, (0, 0)),
    "setxattr": lambda: os.setxattr(path, "user.corral", b"x"),
    "chmod by O_PATH": lambda: by_path(lambda name: os.chmod(name, 0o777)),
    "utime by O_PATH": lambda: by_path(lambda name: os.utime(name, (0, 0))),
    "watch": lambda: call("inotify_add_watch", call("inotify_init1", 0), path.encode(), 0xFFF),
    "truncate": lambda: os.truncate(path, 0),
    "O_TRUNC": lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "O_TRUNC and reading": lambda: os.close(os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "append": lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)),
    "truncate by O_PATH": lambda: by_path(lambda name: os.truncate(name, 0)),
    "open by O_PATH": lambda: by_path(lambda name: os.close(os.open(name, os.O_RDWR))),
    "open by the root in /proc": lambda: through_root(lambda name: os.close(os.open(name, os.O_RDWR))),
    "open from its directory": from_here,
}
answer = {name: tried(act) for name, act in acts.items()}
"""
FILTERED = {"chmod", "lchown", "utime", "chmod by O_PATH", "utime by O_PATH", "watch"}
BY_DESCRIPTOR = """
import fcntl
fd = os.open(sys.argv[1], os.O_RDONLY)
answer = [
    tried(os.fchmod, fd, 0o777),
    tried(os.utime, fd, (0, 0)),
    tried(os.setxattr, fd, "user.corral", b"x"),
    tried(lambda: call("ioctl", fd, 0x40086602, struct.pack("=q", 0))),
]
"""


def look_of(path):
    seen = os.stat(path)
    with open(path, encoding="ascii") as file:
        return file.read(), stat.S_IMODE(seen.st_mode), seen.st_mtime_ns, os.listxattr(path)


def test_ungranted_and_read_only_files_cannot_be_changed(user, scratch):
    """Check that the target cannot change an ungranted file or a file in a read grant, by path, by
    descriptor or through /proc.
    """
    give_directory(user, scratch / "read")
    kept = [
        give(user, scratch / "secret", "kept", 0o600),
        give(user, scratch / "read/file", "kept"),
    ]
    before = [look_of(path) for path in kept]
    flags = ("--read", str(scratch / "read"))
    for path in kept:
        for held in everywhere(user, CHANGES, path, flags=flags):
            assert held.pop("setxattr") == "ENOTSUP"
            assert held == {name: "EPERM" if name in FILTERED else "EACCES" for name in held}, path
    denied = ["EPERM", "EPERM", "ENOTSUP", "EPERM"]
    assert inside(user, BY_DESCRIPTOR, kept[1], flags=flags) == denied
    assert inside(user, BY_DESCRIPTOR.partition("answer")[0], kept[1], flags=flags) is None
    assert [look_of(path) for path in kept] == before
    assert outside(user, BY_DESCRIPTOR, kept[1])[:2] == ["done", "done"]
    free = outside(user, CHANGES, kept[0])
    assert free.pop("setxattr") == "done"
    assert free == dict.fromkeys(free, "done")
    assert look_of(kept[0])[0] == ""


def test_files_move_only_between_write_grants(user, scratch):
    """Check that a file can be moved between write grants, but not out of a read grant, and not
    into or out of an ungranted place.
    """
    for name in ("one", "two", "read", "none"):
        give_directory(user, scratch / name)
        give(user, scratch / name / "file", name)
    code = """
os.chdir(sys.argv[1])
def exchanged(left, right):
    call("renameat2", -100, left.encode(), -100, right.encode(), 2)
def linked(path):
    fd = os.open(path, os.O_PATH)
    call("linkat", -100, f"/proc/self/fd/{fd}".encode(), -100, b"one/linked", 0x400)
answer = {
    "into the open": tried(os.rename, "one/file", "none/moved"),
    "out of the dark": tried(os.rename, "none/file", "one/moved"),
    "exchange": tried(exchanged, "one/file", "none/file"),
    "exchange with read": tried(exchanged, "one/file", "read/file"),
    "over read": tried(os.rename, "one/file", "read/file"),
    "link read": tried(os.link, "read/file", "one/linked"),
    "link read by descriptor": tried(linked, "read/file"),
    "link none by descriptor": tried(linked, "none/file"),
    "directory": tried(os.rename, "read", "one/read"),
    "between": tried(os.rename, "one/file", "two/moved"),
}
"""
    flags = (
        "--write",
        str(scratch / "one"),
        "--write",
        str(scratch / "two"),
        "--read",
        str(scratch / "read"),
    )
    held = inside(user, code, str(scratch), flags=flags)
    assert held.pop("between") == "done"
    assert set(held.values()) <= {"EACCES", "EXDEV"}, held
    assert (scratch / "two/moved").read_text() == "one"
    assert [(scratch / name / "file").read_text() for name in ("read", "none")] == ["read", "none"]
    os.rename(scratch / "two/moved", scratch / "one/file")
    free = outside(user, code, str(scratch))
    assert (free["into the open"], free["out of the dark"], free["link read"]) == ("done",) * 3


def test_the_death_signal_of_the_guardian_cannot_be_cleared(user):
    code = """
kept = ctypes.c_int(-1)
answer = [tried(lambda: call("prctl", 1, 0, 0, 0, 0)), tried(lambda: call("prctl", 1 | 7 << 32, 0, 0, 0, 0))]
call("prctl", 2, ctypes.addressof(kept), 0, 0, 0)
answer.append(kept.value)
"""
    assert inside(user, code) == ["EPERM", "EPERM", 9]
    assert by_a_grandchild(user, code)[:2] == ["EPERM", "EPERM"]
    assert outside(user, code) == ["done", "done", 0]


ORPHAN = """
import os, signal
if os.fork() == 0:
    os.setsid()
    os.write(1, b"r")
    while True:
        signal.pause()
os.read(0, 1)
"""
KILLED = """
import select, signal
from corral.platforms.linux import usage
def walk(root):
    raise OSError("processes start faster than they are found")
target, patience = sys.argv[1], float(sys.argv[2])
(said, out), (go, end) = os.pipe(), os.pipe()
plan = planned([sys.executable, "-c", target], subprocess__allow=True)
usage.tree = walk
if os.fork() == 0:
    os.close(end)
    os.close(said)
    started(plan, (go, out, 2))
    os._exit(0)
os.close(go)
os.close(out)
assert os.read(said, 1) == b"r"
os.close(end)
gone = bool(select.select([said], [], [], patience)[0])
answer = gone and os.read(said, 1) == b""
"""


def test_the_tree_is_killed_without_listing_its_processes(user):
    """Make the listing of processes fail. corral must still kill all processes of the run. It sends
    one signal to every process that it may signal, and Landlock permits only the run's processes.
    """
    # pytest would evaluate a skipif mark on every kernel, even if this tier is not tested. On a
    # kernel without Landlock the call would then fail.
    if landlock_abi() < 6:
        pytest.skip("no landlock_scope: the guardian lists processes")
    assert launched(user, KILLED, ORPHAN, "30") is True


def test_names_and_metadata_of_ungranted_files_stay_visible(user, scratch):
    """Check that the target can see names and metadata of files. This tier cannot hide them, and
    `explain` says so.
    """
    secret = give(user, scratch / "secret", "kept", 0o600)
    os.symlink("secret", scratch / "link")
    code = """
path = sys.argv[1]
answer = [os.stat(path).st_size, os.readlink(os.path.join(os.path.dirname(path), "link")), os.path.exists(path + "-not"),
          tried(os.chdir, os.path.dirname(path)), tried(os.listdir, os.path.dirname(path)), tried(got, path)]
"""
    assert inside(user, code, secret) == [4, "secret", False, "done", "EACCES", "EACCES"]
    assert outside(user, code, secret) == [4, "secret", False, "done", "done", "done"]


@pytest.mark.parametrize(
    "flags", [(), ("--allow-subprocess",), ("--allow-net", "example.com")], ids=" ".join
)
def test_the_hosts_routes_stay_visible(user, flags):
    """Check that the target can read the host's network settings through netlink, but cannot change
    them. Reading must work, because runtimes use netlink to list the network interfaces.
    """
    code = """
import socket
link = socket.socket(16, 3, 0)
link.bind((0, 0))
def asked(kind, flags, body):
    link.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    code = struct.unpack_from("=i", link.recv(65536), 16)[0]
    if code < 0:
        raise OSError(-code, "")
route = struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 255, 3, 254, 2, 0)
route += struct.pack("=HH4B", 8, 1, 192, 0, 2, 0) + struct.pack("=HHI", 8, 4, 1)
answer = [tried(lambda: asked(24, 0x405, route)), len(socket.if_nameindex()) > 0]
"""
    assert inside(user, code, flags=flags) == ["EPERM", True]


def test_only_netlink_sockets_can_be_bound(user):
    """Try to bind a netlink socket to invalid addresses, and to bind files that are not netlink
    sockets.
    """
    code = """
import socket
link, pair = socket.socket(16, 3, 0), socket.socketpair()[0]
where = struct.pack("=HHII", 16, 0, 0, 0)
def bind(fd, address, size):
    call("bind", fd, address, size)
answer = {
    "bad pointer": tried(bind, link.fileno(), 1, 12),
    "no descriptor": tried(bind, -1, where, 12),
    "another file": tried(bind, os.pipe()[0], where, 12),
    "pair": tried(bind, pair.fileno(), where, 12),
    "unix address": tried(bind, link.fileno(), struct.pack("=H", 1) + bytes(10), 12),
    "longer": tried(bind, link.fileno(), where + bytes(4), 16),
    "junk above": tried(bind, link.fileno() | 7 << 32, where, 12 | 1 << 32),
    "flags": [os.get_inheritable(link.fileno()), os.get_blocking(link.fileno())],
}
"""
    assert inside(user, code) == {
        "bad pointer": "EFAULT",
        "no descriptor": "EBADF",
        "another file": "ENOTSOCK",
        "pair": "EPERM",
        "unix address": "EPERM",
        "longer": "EPERM",
        "junk above": "done",
        "flags": [False, True],
    }


def test_a_server_can_ask_for_the_addresses_to_listen_on(user):
    """Check that getaddrinfo returns the same addresses inside as outside. To sort the addresses,
    glibc connects a socket to each, and asks for the socket's own address. If an IPv6 socket
    reported a plain IPv4 address there, glibc would abort the program.
    """
    code = """
import socket
answer = sorted(one[4][0] for one in socket.getaddrinfo(None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
"""
    free = outside(user, code)
    assert "0.0.0.0" in free
    assert inside(user, code, flags=("--allow-net", "example.com")) == free


def test_attributes_of_ungranted_files_cannot_be_read(user, scratch):
    """Read extended attributes by path. Download programs store URLs there, sometimes with access
    tokens in them. The attributes of a granted file can be read through a descriptor. It must not
    be possible to get a descriptor of any other file, not even one without read and write access.
    """
    secret = give(user, scratch / "secret", "kept", 0o600)
    granted = give(user, scratch / "granted", "open", 0o600)
    for path in (secret, granted):
        os.setxattr(path, "user.origin", b"token")
    code = """
def read(path):
    return os.getxattr(path, "user.origin").decode()
def caught(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
secret, granted = sys.argv[1:]
held = os.open(granted, os.O_RDONLY)
answer = [caught(act, path) for path in (secret, granted) for act in (read, os.listxattr)]
answer.append(caught(read, held))
answer.append(caught(lambda: os.getxattr(secret, "user.origin", follow_symlinks=False).decode()))
NO_ACCESS = 3  # neither for reading nor for writing, so Landlock does not check it
answer.append(caught(lambda: read(os.open(secret, NO_ACCESS))))
"""
    free = ["token", ["user.origin"]]  # sanity check: what the calls return outside
    assert outside(user, code, secret, granted) == [*free, *free, *["token"] * 3]
    seen = inside(user, code, secret, granted, flags=("--read", granted))
    assert seen == [*["ENOTSUP"] * 4, "token", "ENOTSUP", "EPERM"]
