"""Try to reach the host's processes through sockets, terminals, shared memory and descriptors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import pathlib
import platform
import socket
import struct
import subprocess
import termios
import tty

import pytest
from attempts import (
    BOTH_TIERS,
    PRELUDE,
    by_tier,
    everywhere,
    give,
    give_directory,
    has_landlock,
    has_unix_scope,
    inside,
    launched,
    outside,
)

from corral.abi.linux_syscalls import TABLES

CONNECT = """
import socket
def connect(kind, address):
    with socket.socket(socket.AF_UNIX, kind) as end:
        end.connect(address)
        end.send(b"out")
stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
"""


class Host:
    """Listens on sockets of the host, and counts those that the target reaches."""

    def __init__(self):
        self.sockets = []

    def add(self, family, kind, address):
        end = socket.socket(family, kind)
        end.bind(address)
        if isinstance(address, str) and not address.startswith("\0"):
            os.chmod(address, 0o777)
        if kind == socket.SOCK_STREAM:
            end.listen(16)
        end.setblocking(False)
        self.sockets.append(end)
        return end.getsockname()

    def arrived(self):
        """Return how many sockets were reached since the last call."""
        return sum(map(self._reached, self.sockets))

    @staticmethod
    def _reached(end):
        count = 0
        try:
            while True:
                if end.type == socket.SOCK_STREAM:
                    end.accept()[0].close()
                else:
                    end.recv(64)
                count += 1
        except BlockingIOError:
            return bool(count)


@pytest.fixture
def host():
    listeners = Host()
    yield listeners
    for end in listeners.sockets:
        end.close()


BY_LANDLOCK = {
    "abstract": "ECONNREFUSED",
    "abstract datagram": "ECONNREFUSED",
    "agent": "ENOENT",
    "read": "EACCES",
    "write": "EACCES",
    "write datagram": "EACCES",
}
"""Answers since Linux 7.1, where the target may make unix sockets, but Landlock denies connections
to the host's sockets.
"""


@BOTH_TIERS
def test_unix_sockets_of_the_host_are_not_reached(user, scratch, host):
    """Try to connect to abstract sockets, to a socket in /tmp like an ssh-agent's, and to sockets in grants."""
    read, write = give_directory(user, scratch / "read"), give_directory(user, scratch / "write")
    name = f"corral-{os.getpid()}-{user.name}"
    agent = f"/tmp/{name}-agent"
    addresses = {
        "abstract": [1, "\0" + name],
        "abstract datagram": [2, f"\0{name}-datagram"],
        "agent": [1, agent],
        "read": [1, f"{read}/docker.sock"],
        "write": [1, f"{write}/bus"],
        "write datagram": [2, f"{write}/log"],
    }
    for kind, address in addresses.values():
        host.add(socket.AF_UNIX, socket.SocketKind(kind), address)
    code = (
        CONNECT
        + f"answer = {{name: tried(connect, *where) for name, where in {addresses!r}.items()}}"
    )
    try:
        assert outside(user, code) == dict.fromkeys(addresses, "done")
        assert host.arrived() == len(addresses)
        flags = ("--read", read, "--write", write)
        for held in everywhere(user, code, flags=flags):
            assert held in (dict.fromkeys(addresses, "EPERM"), BY_LANDLOCK)
        assert host.arrived() == 0
    finally:
        os.unlink(agent)


@BOTH_TIERS
def test_a_socketpair_cannot_be_connected_elsewhere(user, scratch, host):
    write = give_directory(user, scratch / "write")
    host.add(socket.AF_UNIX, socket.SOCK_DGRAM, f"{write}/log")
    host.add(socket.AF_UNIX, socket.SOCK_STREAM, f"{write}/listener")
    code = f"""
import socket
def led(kind, address):
    with socket.socketpair(socket.AF_UNIX, kind)[0] as end:
        end.connect(address)
        end.send(b"out")
def unpaired(address):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    right.close()
    left.connect(address)
answer = [
    tried(led, socket.SOCK_DGRAM, {write!r} + "/log"),
    tried(led, socket.SOCK_STREAM, {write!r} + "/listener"),
    tried(unpaired, {write!r} + "/listener"),
]
"""
    assert outside(user, code) == ["done", "EISCONN", "EISCONN"]
    assert host.arrived() == 1
    # With its unix socket scope, Landlock denies the connection before the kernel looks at the
    # state of the socket.
    held = ["EACCES"] * 3 if has_unix_scope(user) else ["EPERM", "EISCONN", "EISCONN"]
    assert everywhere(user, code, flags=("--write", write)) == (held,) * 2
    assert host.arrived() == 0


TAKE = """
import socket
def take(kind, name):
    end = socket.socketpair(socket.AF_UNIX, kind)[0]
    end.bind(name)
    kept.append(end)
kept = []
names = [chr(0) + sys.argv[1], chr(0) + sys.argv[1][-9:]]
answer = [tried(take, kind, name) for name in names for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_socketpair_takes_no_abstract_name_of_the_host(user, walls):
    """Try to bind sockets of socketpairs to two abstract names. With namespaces, the target may do
    so, because its abstract names are not those of the host.

    Without namespaces, the target may bind only netlink sockets. The seccomp filter sees only how
    long an address is, and denies the first name, because it is longer than a netlink address. The
    second name makes an address of exactly this length, so the supervisor has to deny it.
    """
    name = f"corral-{os.getpid()}-{os.urandom(4).hex()}"
    code = f"import json, os, sys{PRELUDE}{TAKE}"
    command = [user.python, "-c", code, name]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    answer = json.loads(process.stdout.readline())
    free = [_is_free(one) for one in (name, name[-9:])]
    process.communicate(timeout=60)
    if walls:
        assert set(answer) == {by_tier(user, walled="done", bare="EPERM")}
        assert free == [True, True]
    else:
        assert (set(answer), free) == ({"done"}, [False, False])


def _is_free(name):
    """Return whether a program on the host can take an abstract name."""
    with socket.socket(socket.AF_UNIX) as other:
        try:
            other.bind(f"\0{name}")
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


@BOTH_TIERS
def test_data_passes_through_a_socketpair_of_streams(user):
    code = """
import socket
left, right = socket.socketpair()
left.send(b"hello")
answer = right.recv(5).decode()
"""
    assert inside(user, code) == "hello"


TERMINAL = """
import fcntl, termios
TIOCLINUX = 0x541c
def owned():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
def typed():
    fcntl.ioctl(0, termios.TIOCSTI, b"!")
if "--setsid" in sys.argv:
    os.setsid()
answer = {
    "terminal": os.isatty(0),
    "controlling": tried(owned),
    "TIOCSTI": tried(typed),
    "TIOCSTI, junk above": tried(lambda: raw(IOCTL, 0, 0x5412 | 7 << 32, b"!")),
    "TIOCLINUX": tried(lambda: fcntl.ioctl(0, TIOCLINUX, b"\\x02")),
    "TIOCSETD": tried(lambda: fcntl.ioctl(0, termios.TIOCSETD, struct.pack("i", 0))),
    "size": tried(lambda: fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))),
    "TIOCSWINSZ": tried(lambda: fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 1, 2, 0, 0))),
}
print(json.dumps(answer))
"""


def terminal_code():
    number = TABLES[platform.machine()]["ioctl"]
    return f"import json, os, sys\n{PRELUDE}\nIOCTL = {number}\n{TERMINAL}"


@pytest.fixture
def terminal(user):
    """Open a pseudo terminal that is not the controlling terminal of a session yet. Return its slave
    end, from which a test can read the characters that a target typed with TIOCSTI.
    """
    master, slave = os.openpty()
    tty.setraw(slave)
    os.fchown(slave, user.owner, user.owner)
    yield slave
    os.close(master)
    os.close(slave)


def typed_into(slave):
    waiting = struct.unpack("i", fcntl.ioctl(slave, termios.FIONREAD, bytes(4)))[0]
    return os.read(slave, waiting) if waiting else b""


def ask(user, argv, stdin, stderr=subprocess.PIPE):
    process = user.popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@BOTH_TIERS
def test_a_target_cannot_type_into_an_inherited_terminal(user, terminal):
    """Let the target make the terminal its controlling terminal, and then try to type into it. The
    kernel itself denies TIOCSTI on any other terminal.
    """
    # Since Linux 6.2 this sysctl can deny TIOCSTI to processes that do not run as root. Older
    # kernels always allow it.
    switch = pathlib.Path("/proc/sys/dev/tty/legacy_tiocsti")
    possible = user.uid == 0 or not switch.exists() or switch.read_text().strip() == "1"
    code = terminal_code()
    seen = ask(user, user.corral_argv("run", "--", user.python, "-c", code), terminal)
    assert seen == {
        "terminal": True,
        "controlling": "done",
        "TIOCSTI": "EPERM",
        "TIOCSTI, junk above": "EPERM",
        "TIOCLINUX": "EPERM",
        "TIOCSETD": "EPERM",
        "size": "done",
        "TIOCSWINSZ": "EPERM",
    }
    assert typed_into(terminal) == b""
    assert struct.unpack("4H", fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))[:2] != (1, 2)
    free = ask(user, [user.python, "-c", code, "--setsid"], terminal)
    # A pseudo terminal has no TIOCLINUX, so the kernel's errno differs from the filter's.
    expected = {"terminal": True, "controlling": "done", "TIOCLINUX": "ENOTTY"}
    assert {name: free[name] for name in expected} == expected
    assert free["TIOCSETD"] == free["TIOCSWINSZ"] == "done"
    assert struct.unpack("4H", fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))[:2] == (1, 2)
    assert free["TIOCSTI"] == free["TIOCSTI, junk above"] == ("done" if possible else "EIO")
    assert typed_into(terminal) == (b"!!" if possible else b"")


@BOTH_TIERS
def test_a_terminal_cannot_be_opened_again(user, terminal):
    """Try to open the terminal again through /proc/self/fd, which would give the target a descriptor with other rights than the inherited one."""
    code = f"import json, os, sys\n{PRELUDE}\nprint(json.dumps([os.isatty(0), tried(os.open, '/proc/self/fd/0', os.O_RDWR | os.O_NOCTTY)]))"
    assert ask(user, [user.python, "-c", code], terminal) == [True, "done"]
    inside_argv = user.corral_argv("run", "--", user.python, "-c", code)
    assert ask(user, inside_argv, terminal) == [True, "EACCES" if has_landlock() else "done"]


@BOTH_TIERS
def test_the_target_does_not_inherit_descriptors_of_corrals_caller(user, scratch):
    secret = give(user, scratch / "secret", "of the caller", 0o600)
    code = """
def listed():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.fstat(int(number)).st_ino
        except OSError:
            pass  # the descriptor of the listing itself
    return found
inode = int(sys.argv[1])
answer = [sorted(listed()), tried(lambda: os.pread(7, 64, 0)), inode in listed().values()]
"""
    launch = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for number in (7, 200):
    os.dup2(fd, number)
os.execv(sys.argv[2], sys.argv[2:])
"""
    script = f"import json, os, sys\n{PRELUDE}\n{code}\nprint(json.dumps(answer))"
    argv = [user.python, "-c", script, str(os.stat(secret).st_ino)]
    opened = [user.python, "-c", launch, secret]
    assert ask(user, [*opened, *argv], subprocess.DEVNULL) == [[0, 1, 2, 7, 200], "done", True]
    for flags in ((), ("--allow-subprocess",)):
        confined = user.corral_argv("run", *flags, "--", *argv)
        assert ask(user, [*opened, *confined], subprocess.DEVNULL) == [[0, 1, 2], "EBADF", False]


@BOTH_TIERS
def test_a_closed_stream_is_not_replaced_by_corrals_descriptor(user, scratch):
    """Start corral with closed streams. The next file that corral opens gets the number of a closed
    stream. It must not become the target's stream.
    """
    report, seen = scratch / "report.json", give_directory(user, scratch / "seen")
    code = """
def kind(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError as error:
        return errno.errorcode[error.errno]
put(sys.argv[1], json.dumps([kind(fd) for fd in range(3)]))
"""
    script = f"import errno, json, os, sys\n{PRELUDE}\n{code}"
    for closed in ((0,), (0, 1), (0, 1, 2)):
        launch = f"""
for fd in {closed!r}:
    os.close(fd)
os.execv(sys.argv[1], sys.argv[1:])
"""
        argv = user.corral_argv(
            "run", "--report", str(report), "--write", seen, "--",
            user.python, "-c", script, f"{seen}/{len(closed)}",
        )  # fmt: skip
        wrapped = [user.python, "-c", f"import os, sys\n{launch}", *argv]
        process = user.popen(
            wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.communicate(timeout=60)
        assert process.returncode == 0
        with open(f"{seen}/{len(closed)}", encoding="ascii") as file:
            streams = json.load(file)
        assert [streams[fd] for fd in closed] == ["/dev/null"] * len(closed)


@BOTH_TIERS
def test_a_file_inherited_for_reading_cannot_be_reopened_for_writing(user, scratch):
    """Try to open an inherited stream again with other rights, and to reach the files beside it."""
    log = give(user, scratch / "log", "before", 0o644)
    give(user, scratch / "neighbour", "secret", 0o600)
    code = """
here = "/proc/self/fd/0"
answer = {
    "reopen to write": tried(lambda: os.open(here, os.O_WRONLY)),
    "truncate": tried(lambda: os.truncate(here, 0)),
    "neighbour": tried(lambda: got(os.path.join(os.path.dirname(os.readlink(here)), "neighbour"))),
}
"""
    with open(log, "rb") as stream:
        free = run_with(user, code, stream, outside=True)
        assert free == dict.fromkeys(free, "done")
    give(user, log, "before")
    with open(log, "rb") as stream:
        held = run_with(user, code, stream)
    to_write = truncated = "EACCES"
    if not has_landlock(3):
        # Before ABI 3, Landlock does not control truncation. The target then gets a pipe in place
        # of the file. The pipe belongs to the user who runs corral.
        to_write, truncated = "done" if user.uid else "EACCES", "EINVAL"
    assert held == {
        "reopen to write": to_write,
        "truncate": truncated,
        "neighbour": by_tier(user, "ENOENT", "EACCES"),
    }
    with open(log, encoding="ascii") as file:
        assert file.read() == "before"


@BOTH_TIERS
def test_a_directory_as_a_stream_gives_no_access_to_its_files(user, scratch):
    """Use the Python API to start a shell that has a directory as a stream. The target is a shell,
    because Python cannot start with such a stream.
    """
    give_directory(user, scratch / "inner")
    secret = scratch / "secret"
    give(user, secret, "secret\n", 0o600)
    script = """
cd -P /proc/self/fd/2/.. && echo entered
(read line < /proc/self/fd/2/../secret && echo "read $line")
(read line < secret && echo "read $line")
(echo overwritten > /proc/self/fd/2/../secret && echo wrote)
(echo made > /proc/self/fd/2/made && echo made)
echo end
"""
    code = """
stream = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
reading, writing = os.pipe()
argv = ["/bin/sh", "-c", sys.argv[2]]
if sys.argv[3] == "confined":
    plan = planned(argv, subprocess__allow=True)
    try:
        code = started(plan, (0, writing, stream))
    except Exception as error:
        code = str(error)
else:
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=[
        (os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, stream, 2)])
    code = os.waitpid(pid, 0)[1]
os.close(writing)
answer = [code, open(reading).read().splitlines()]
"""
    inner = str(scratch / "inner")
    free = ["entered", "read secret", "read secret", "wrote", "made", "end"]
    assert launched(user, code, inner, script, "free") == [0, free]
    give(user, secret, "secret\n", 0o600)
    os.unlink(f"{inner}/made")
    refused = launched(user, code, inner, script, "confined")
    assert refused == ["stderr: is a directory", []]
    assert secret.read_text() == "secret\n"
    assert os.listdir(inner) == []


def run_with(user, code, stream, *, outside=False, **options):
    script = f"import json, os, sys\n{PRELUDE}\n{code}\nprint(json.dumps(answer))"
    argv = [user.python, "-c", script]
    return ask(user, argv if outside else user.corral_argv("run", "--", *argv), stream, **options)


@BOTH_TIERS
def test_ipc_objects_of_the_host_are_not_visible(user):
    """Make IPC objects on the host that every process may use, such as shared memory. Inside they
    must be absent or, without namespaces, denied.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x0C0_44A1 + os.getpid()
    segment = libc.shmget(key, 4096, 0o1666)
    messages = libc.msgget(key, 0o1666)
    assert segment >= 0 <= messages
    name = f"corral-{os.getpid()}"
    queue = libc.mq_open(f"/{name}".encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
    assert queue >= 0
    shared = f"/dev/shm/{name}"
    with open(shared, "w", encoding="ascii") as file:
        file.write("x")
    os.chmod(shared, 0o666)
    code = f"""
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
libc.shmat.restype = ctypes.c_long
answer = [
    tried(lambda: checked(libc.shmget({key}, 0, 0))),
    tried(lambda: checked(libc.msgget({key}, 0))),
    tried(lambda: checked(libc.mq_open(b"/{name}", os.O_RDONLY))),
    tried(lambda: got({shared!r})),
    tried(lambda: checked(libc.shmat({segment}, 0, 0o10000))),
]
"""
    try:
        assert outside(user, code) == ["done"] * 5
        bare = ["EPERM", "EPERM", "EPERM", "EACCES", "EPERM"]
        expected = by_tier(user, ["ENOENT"] * 4 + ["EINVAL"], bare)
        assert everywhere(user, code) == (expected, expected)
    finally:
        libc.shmctl(segment, 0, None)
        libc.msgctl(messages, 0, None)
        libc.mq_unlink(f"/{name}".encode())
        os.unlink(shared)
