"""Test the seccomp filters in the running kernel. Each act is tried with the filter and, as a
sanity check, without it.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys

import pytest

import corral
from corral.abi.linux_syscalls import TABLES
from corral.platforms.linux.mechanisms import seccomp_init_rules, seccomp_rules

MACHINE = platform.machine()
SOURCE = os.path.dirname(os.path.dirname(corral.__file__))
if sys.platform != "linux" or MACHINE not in TABLES:
    pytest.skip(f"no filter for {sys.platform} on {MACHINE}", allow_module_level=True)

COOKIE = (0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x00FF00FF12345678)
EPERM, ENOSYS, EISCONN, EPROTONOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT = 1, 38, 106, 93, 95, 97

# Every child starts with this code. `tried` makes a raw system call and prints its errno, or 0.
PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
N = {table!r}
def call(number, *args):
    ctypes.set_errno(0)
    words = [a if isinstance(a, bytes) else ctypes.c_uint64(a & 2**64 - 1) for a in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    return ctypes.get_errno() if result == -1 else 0
def tried(name, *args):
    print(call(N[name], *args), flush=True)
class Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))
def enter(raw):
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    program = Program(len(raw) // 8, raw)
    assert libc.syscall(ctypes.c_long(N["seccomp"]), 1, 0, ctypes.byref(program)) == 0
raw = bytes.fromhex(sys.argv[1])
"""


def target(**changes):
    options = {"subprocess": False, "unix_sockets": False, "namespaces": True, "cookie": COOKIE}
    rules = seccomp_rules.target_rules(**{**options, **changes})
    return seccomp_rules.compile_filter(MACHINE, rules)


def child(code, program, before=""):
    """In a child process, run `before`, install the filter `program` unless it is None, and run
    `code`. Return the child's lines of output and its exit status.
    """
    source = PRELUDE.format(table=TABLES[MACHINE]) + before
    source += "\nif raw: enter(raw)\n" + code + "\nsys.stdout.flush(); os._exit(0)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source, (program or b"").hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout.split("\n")[:-1], done.returncode


def both(code, program=None, before=""):
    """Return the output of `code` with the filter and without it."""
    held, status = child(code, program or target(), before)
    free, control = child(code, None, before)
    assert status == control == 0
    return held, free


def test_unshare_io_uring_and_bpf_are_always_denied():
    held, free = both("tried('unshare', 0); tried('io_uring_setup', 0, 0); tried('bpf', 999, 0, 0)")
    assert held == [str(EPERM)] * 3
    assert free[0] == "0"
    if os.path.exists("/proc/sys/kernel/io_uring_disabled"):
        with open("/proc/sys/kernel/io_uring_disabled") as disabled:
            assert (free[1] == str(EPERM)) == (disabled.read().strip() == "2")


@pytest.mark.parametrize(
    ("name", "arguments", "errno"),
    [
        ("unix", "1, 1, 0", EPERM),
        ("unix, junk above the domain", "1 | 7 << 32, 1, 0", EPERM),
        ("netlink, not routes", "16, 3, 15", EPROTONOSUPPORT),
    ],
)
def test_denied_sockets_get_their_errno(name, arguments, errno):
    held, free = both(
        f"tried('socket', {arguments}); tried('socket', 2, 1, 0); tried('socket', 10, 2, 17)"
    )
    assert held == [str(errno), "0", "0"], name
    assert free == ["0", "0", "0"]


def test_other_socket_families_look_absent():
    """Check that AF_PACKET, AF_ALG, AF_VSOCK, AF_SMC and AF_XDP give the same error as on a kernel
    without them.
    """
    held, free = both("for family in (17, 38, 40, 43, 44): tried('socket', family, 3, 0)")
    assert held == [str(EAFNOSUPPORT)] * 5
    assert set(free) != set(held)


def test_mptcp_and_sock_packet_are_denied():
    held, free = both("tried('socket', 2, 1, 262); tried('socket', 2, 10, 0x300)")
    assert held == [str(EPROTONOSUPPORT)] * 2
    # Without the filter, SOCK_PACKET works, or fails with the error for a missing privilege.
    assert free[1] != str(EPROTONOSUPPORT)


SOCKETS = """
import socket, tempfile
place = tempfile.mkdtemp()
outside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
outside.bind(place + "/log")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(place + "/listener")
listener.listen()
packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets.bind(place + "/packets")
packets.listen()
"""
ESCAPE = """
def escape(kind, name):
    try:
        end, other = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        return print("no pair", error.errno)
    results = []
    other.setblocking(False)
    def send():  # a packet socket ignores the address and sends to its peer
        end.sendto(b"out", place + name)
        assert other.recv(3) != b"out", "to its peer"
    for act in (
        lambda: end.connect(place + name),
        send,
        lambda: (other.close(), end.connect(place + name)),
        lambda: (end.shutdown(2), end.connect(place + name)),
    ):
        try:
            act()
            results.append("out")
        except BlockingIOError:
            results.append("out")  # not to the peer
        except AssertionError:
            results.append("peer")
        except OSError as error:
            results.append(error.errno)
    print(*results)
escape(socket.SOCK_STREAM, "/listener")
escape(socket.SOCK_SEQPACKET, "/packets")
escape(socket.SOCK_DGRAM, "/log")
escape(socket.SOCK_RAW, "/log")
for name in ("log", "listener", "packets"):
    os.unlink(place + "/" + name)
os.rmdir(place)
"""


def test_a_socketpair_reaches_only_its_peer():
    held, free = both(ESCAPE, before=SOCKETS)
    assert held[2:] == [f"no pair {EPERM}"] * 2
    for line in held[:2]:
        assert "out" not in line
        assert line.split().count(str(EISCONN)) == 3 + (line == held[0])
    assert free[2].startswith("out out")
    assert free[3].startswith("out out")


def test_tty_commands_are_denied_with_junk_in_the_high_word():
    code = "tried('ioctl', 0, 0x5412 | 5 << 32, 0); tried('ioctl', 0, 0x541c, 0); tried('ioctl', 0, 0x541b, 0)"
    held, free = both(code)
    assert held[:2] == [str(EPERM)] * 2
    assert str(EPERM) not in free[:2]
    assert held[2] == free[2] != str(EPERM)


def test_clone3_and_unknown_system_calls_fail_as_if_the_kernel_lacked_them():
    held, free = both("tried('clone3', 0, 0); print(call(999))")
    assert held == [str(ENOSYS)] * 2
    assert free[0] != str(ENOSYS)


def test_threads_start_and_processes_do_not():
    code = """
import threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(done))
try:
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0)
    print("forked")
except OSError as error:
    print(error.errno)
try:
    print(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1])
except OSError as error:
    print(error.errno)
"""
    held, free = both(code)
    assert held == ["8", str(EPERM), str(EPERM)]
    assert free == ["8", "forked", "0"]
    allowed, _ = child(code, target(subprocess=True))
    assert allowed == free


def exec_with(*words):
    return f"""
argv = (ctypes.c_char_p * 3)(b"/bin/echo", b"executed", None)
address = ctypes.addressof(argv)
path = ctypes.create_string_buffer(b"/bin/echo")
tried('execve', ctypes.addressof(path), address, 0, *{words!r})
"""


def test_exec_is_allowed_only_with_the_secret_numbers_in_its_arguments():
    assert child(exec_with(*COOKIE), target()) == (["executed"], 0)
    assert child(exec_with(0, 0, 0), None) == (["executed"], 0)
    for wrong in ((0, 0, 0), (COOKIE[0], COOKIE[1], COOKIE[2] ^ 1 << 63), COOKIE[::-1]):
        assert child(exec_with(*wrong), target()) == ([str(EPERM)], 0)
    assert child(exec_with(*COOKIE), target(cookie=None)) == ([str(EPERM)], 0)


def test_an_executed_program_cannot_execute_another():
    code = f"""
source = "import os\\ntry: os.execv('/bin/echo', ['echo', 'again'])\\nexcept OSError as e: print(e.errno, flush=True)"
argv = (ctypes.c_char_p * 6)(sys.executable.encode(), b"-I", b"-S", b"-c", source.encode(), None)
path = ctypes.create_string_buffer(sys.executable.encode())
call(N['execve'], ctypes.addressof(path), ctypes.addressof(argv), 0, *{COOKIE!r})
"""
    assert both(code) == ([str(EPERM)], ["again"])


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 and int 0x80 exist only on x86_64")
def test_a_process_that_uses_another_system_call_abi_is_killed():
    x32 = "print(call(N['getpid'] | 0x40000000) in (0, 38))"
    assert child(x32, None) == (["True"], 0)
    assert child(x32, target()) == ([], -signal.SIGSYS)
    # The machine code is: mov eax, 20 (getpid of i386); int 0x80 (a system call of i386); ret.
    i386 = """
import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
print("called", flush=True)
os._exit(0)
"""
    assert child(i386, target()) == ([], -signal.SIGSYS)
    assert child(i386, None)[1] in {0, -signal.SIGSEGV}


def test_without_namespaces_calls_that_name_a_process_may_name_only_the_caller():
    acts = """
for pid in (os.getppid(), 0, os.getpid()):
    print(call(N['kill'], pid, 0), call(N['prlimit64'], pid, 7, 0, 0), call(N['sched_setaffinity'], pid, 128, b"\\xff" * 128))
reading, writing = os.pipe()
for pid in (os.getppid(), os.getpid()):
    print(call(N['fcntl'], reading, 8, pid))
"""
    free, status = child(acts, None)
    assert status == 0
    assert free == ["0 0 0"] * 3 + ["0"] * 2
    # The filter contains the pid of the child, so only the child itself can compile it.
    before = f"""
sys.path.insert(0, {SOURCE!r})
from corral.platforms.linux.mechanisms import seccomp_rules
rules = seccomp_rules.target_rules(subprocess=False, unix_sockets=False, namespaces=False,
                                   cookie=None, own_pid=os.getpid())
raw = seccomp_rules.compile_filter({MACHINE!r}, rules)
"""
    held, status = child(acts, None, before)
    assert status == 0
    assert held == ["1 1 1", "0 0 0", "0 0 0", "1", "0"]


def test_without_namespaces_a_read_only_descriptor_changes_nothing():
    before = """
import tempfile
path = tempfile.mkstemp()[1]
fd = os.open(path, os.O_RDONLY)
flags = (ctypes.c_long * 1)()
"""
    code = """
tried('fchmod', fd, 0o777)
tried('utimensat', fd, 0, 0, 0)
tried('fsetxattr', fd, b'user.x', b'x', 1, 0)
tried('ioctl', fd, 0x40086602, ctypes.addressof(flags))
print(oct(os.stat(path).st_mode & 0o777), os.listxattr(fd))
os.unlink(path)
"""
    held, free = both(code, target(namespaces=False), before)
    assert held == [str(code) for code in (EPERM, EPERM, EOPNOTSUPP, EPERM)] + ["0o600 []"]
    assert free[:2] == ["0", "0"]
    assert str(EPERM) not in free[2:4]
    assert free[4].startswith("0o777")


def test_init_may_wait_and_is_killed_for_any_other_call():
    before = """
import select
reading, writing = os.pipe()
poll = select.poll()
poll.register(reading, select.POLLIN)
pid = os.fork()
if not pid: os._exit(7)
"""
    waits = """
os.write(writing, b"x" * 64)
for fd, event in poll.poll(): os.read(fd, 64)
print(os.waitpid(pid, 0)[1] >> 8)
blocks = [bytearray(1 << 16) for _ in range(64)] + [bytearray(1 << 24)]
del blocks
"""
    program = seccomp_init_rules.compile_filter(MACHINE)
    assert child(waits, program, before) == (["7"], 0)
    for act in (
        "os.open('/dev/null', os.O_RDONLY)",
        "os.fork()",
        "call(N['socket'], 2, 1, 0)",
        "call(N['mmap'], 0, 4096, 7, 0x22, -1, 0)",
    ):
        assert child(f"{act}\nos._exit(0)", program, before) == ([], -signal.SIGSYS), act
        assert child(f"{act}\nos._exit(0)", None, before) == ([], 0), act
