"""Attack the files, terminals and sockets behind a target's standard streams."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "inside"))
from attempts import BOTH_TIERS, PRELUDE

TIOCGEXCL, TIOCNXCL = 0x80045440, 0x540D
AWAY = """
import json, os, socket, struct, sys
found = socket.socket(fileno=0)
port = int(sys.argv[1])
try:
    found.connect(("127.0.0.1", port)) if found.type == socket.SOCK_DGRAM else 0
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.connect(0, struct.pack("H14x", 0), 16)  # AF_UNSPEC: disconnects
    found.connect(("127.0.0.1", port))
    said = "out"
except OSError as error:
    said = type(error).__name__
print(said, flush=True)
"""


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def internet(kind):
    if kind == socket.SOCK_DGRAM:
        made = socket.socket(socket.AF_INET, kind)
        made.connect(("127.0.0.1", 9))
        return made, None
    server = socket.create_server(("127.0.0.1", 0))
    made = socket.create_connection(server.getsockname())
    peer = server.accept()[0]
    server.close()
    return made, peer


def on_stdin(user, stream, *command):
    pipe = subprocess.PIPE
    argv = user.corral_argv("run", "--", *command)
    process = user.popen(argv, stdin=stream, stdout=pipe, stderr=pipe)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


@BOTH_TIERS
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_an_internet_socket_as_a_stream_is_refused(user, listener, kind):
    made, peer = internet(kind)
    port = str(listener.getsockname()[1])
    with made:
        code, out, err = on_stdin(user, made, user.python, "-c", AWAY, port)
    if peer:
        peer.close()
    assert (code, out) == (125, ""), err
    assert "stdin: is a socket" in err
    assert "hint: put pipes around corral" in err


@BOTH_TIERS
def test_only_connected_unix_sockets_pass_as_streams(user):
    """Pass sockets as stdin. corral must accept connected sockets, because clients use them. It
    must refuse sockets that the target could still connect elsewhere.
    """
    seen = {}
    kinds = {"stream": socket.SOCK_STREAM, "seqpacket": socket.SOCK_SEQPACKET}
    for name, kind in {**kinds, "datagram": socket.SOCK_DGRAM}.items():
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        with one, other:
            other.sendall(b"hello\n")
            other.shutdown(socket.SHUT_WR)
            seen[name] = on_stdin(user, one, "/bin/cat")[:2]
            assert os.get_blocking(one.fileno())
    with socket.socket(socket.AF_UNIX) as single:
        seen["unconnected"] = on_stdin(user, single, "/bin/cat")[:2]
    passed, refused = (0, "hello\n"), (125, "")
    assert seen["unconnected"] == seen["datagram"] == refused
    assert seen["stream"] == seen["seqpacket"] == passed


NAME = """
import socket, sys
found = socket.socket(fileno=0)
try:
    found.bind(chr(0) + sys.argv[1])
    print("bound", flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
found.recv(1)
"""


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_socket_on_stdin_cannot_take_an_abstract_name_of_the_host(user, walls):
    """Let the target bind its stdin, a socket from the client, to an abstract name. Another program
    on the host must still be able to use this name. Sanity check: without walls, it cannot.
    """
    name = f"corral-{os.getpid()}-{os.urandom(4).hex()}"
    one, other = socket.socketpair()
    command = [user.python, "-c", NAME, name]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=one, stdout=subprocess.PIPE, text=True)
    one.close()  # otherwise the target gets a pipe in place of a socket that others share
    said = process.stdout.readline().strip()
    with socket.socket(socket.AF_UNIX) as program:
        try:
            program.bind(f"\0{name}")
            is_free = True
        except OSError:
            is_free = False
    other.close()
    process.communicate(timeout=60)
    # With namespaces the target's bind fails, because corral has already bound the socket to an
    # unused name. Without namespaces it fails, because the seccomp filter denies the call.
    # An ordinary user's corral cannot see whether this test, which runs as root, shares the socket.
    # So the target gets a pipe, and the test program prints nothing.
    assert said in ({"OSError", "PermissionError", ""} if walls else {"bound"})
    assert said or user.uid
    assert is_free == walls


FLAGS = """
import fcntl, os
O_ASYNC = 0o20000
for fd in range(3):
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT | O_ASYNC)
"""


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_flags_of_pipes_that_others_share_are_not_changed(user, walls):
    """Let the target change the flags of its streams, which are pipes that this process also has
    open. A log's pipe may be shared with other programs in this way. The flags must not change.
    Sanity check: without walls, they change.
    """
    pipes = [os.pipe(), os.pipe(), os.pipe()]
    shared = [pipes[0][0], pipes[1][1], pipes[2][1]]
    for fd in shared:
        os.fchown(fd, user.uid, user.uid)
    before = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in shared]
    command = [user.python, "-c", FLAGS]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=shared[0], stdout=shared[1], stderr=shared[2])
    assert process.wait(60) == 0
    after = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in shared]
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)
    assert [new == old for new, old in zip(after, before, strict=True)] == [walls] * 3


MISUSE = (
    PRELUDE
    + """
import fcntl, json, os, socket, stat, sys
def write_to_stdin(): os.write(os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK), b"evil\\n")
def read_stderr(): return os.read(os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK), 100).decode()
def close_mode(): os.fchmod(2, 0)
def shut_down(): socket.socket(fileno=2).shutdown(socket.SHUT_RDWR)
act = globals()[sys.argv[1]]
print(json.dumps(tried(act)), flush=True)
"""
)


def misuse_shared(user, act, walls, stdin, stderr):
    """Let a target misuse a stream that this process also has. Return the result of the act."""
    command = [user.python, "-c", MISUSE, act]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def misuse_pipe(user, act, walls, before=b"", stdin_end=0, mode=0o600):
    """Give the target one end of a pipe that this process also has, and let it misuse the pipe. Return
    what is in the pipe afterwards. `before` is in the pipe from the start.
    """
    pipe = os.pipe()
    end = pipe[stdin_end if act == "write_to_stdin" else 1]
    if mode == 0o600:
        os.fchown(end, user.uid, user.uid)
    os.fchmod(end, mode)
    os.write(pipe[1], before)
    streams = (end, subprocess.DEVNULL) if act == "write_to_stdin" else (subprocess.DEVNULL, end)
    misuse_shared(user, act, walls, *streams)
    os.write(pipe[1], b"end\n")
    left = os.read(pipe[0], 100)
    for fd in pipe:
        os.close(fd)
    return left


@BOTH_TIERS
@pytest.mark.parametrize("end", [0, 1], ids=["read end", "write end"])
@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_write_to_another_programs_stdin(user, walls, end):
    """Let the target write to its stdin, a pipe from which this process also reads. This process
    must not get the target's text. A shell that reads its script from such a pipe would execute the
    text. Sanity check: without walls, the text arrives.
    The stdin can also be the pipe's write end, as with `<&1`.
    """
    left = misuse_pipe(user, "write_to_stdin", walls, stdin_end=end)
    assert left == (b"end\n" if walls else b"evil\nend\n")


TOKEN = b"token of another program\n"


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_read_another_programs_stderr(user, walls):
    left = misuse_pipe(user, "read_stderr", walls, before=TOKEN)
    assert left == (TOKEN + b"end\n" if walls else b"end\n")


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_change_the_mode_of_a_shared_pipe(user, walls):
    read, write = os.pipe()
    os.fchown(write, user.uid, user.uid)
    misuse_shared(user, "close_mode", walls, subprocess.DEVNULL, write)
    mode = os.fstat(write).st_mode & 0o777
    os.close(read)
    os.close(write)
    assert mode == (0o600 if walls else 0)


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_shut_down_a_socket_that_others_share(user, walls):
    one, other = socket.socketpair()
    os.fchown(other.fileno(), user.uid, user.uid)
    misuse_shared(user, "shut_down", walls, subprocess.DEVNULL, other)
    try:
        other.sendall(b"still open")
        sent = one.recv(100)
    except BrokenPipeError:
        sent = b""
    one.close()
    other.close()
    assert sent == (b"still open" if walls else b"")


REWRITE = (
    PRELUDE
    + """
import json, os
def rewrite(): os.write(os.open("/proc/self/fd/0", os.O_RDWR), b"evil")
print(json.dumps([os.read(0, 100).decode(), tried(rewrite)]))
"""
)


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_write_to_a_memory_file_on_its_stdin(user, walls):
    made = os.memfd_create("given")
    os.fchown(made, user.uid, user.uid)
    os.write(made, b"question")
    stdin = os.open(f"/proc/self/fd/{made}", os.O_RDONLY)
    command = [user.python, "-c", REWRITE]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)[0] == "question"
    assert os.pread(made, 100, 0) == (b"question" if walls else b"evil" + b"tion")
    os.close(made)
    os.close(stdin)


@BOTH_TIERS
@pytest.mark.parametrize("kind", ["pipe", "socket", "memfd"])
def test_a_target_takes_only_what_it_reads_from_a_shared_stdin(user, kind):
    """Let a target read 5000 bytes of a stdin that this process shares. The rest must stay in the
    stream, because the next command of a script may read it.
    """
    data = b"".join(b"line %05d\n" % number for number in range(2000))
    if kind == "pipe":
        stdin, writer = os.pipe()
        os.fchown(stdin, user.uid, user.uid)
        os.write(writer, data)
    elif kind == "socket":
        one, other = socket.socketpair()
        stdin, writer = one.detach(), other.detach()
        os.fchown(stdin, user.uid, user.uid)
        os.write(writer, data)
    else:
        stdin = os.memfd_create("given")
        os.fchown(stdin, user.uid, user.uid)
        os.write(stdin, data)
        os.lseek(stdin, 0, os.SEEK_SET)
        writer = -1
    code = "import os; seen = b''\nwhile len(seen) < 5000: seen += os.read(0, 5000 - len(seen))\nos.write(1, seen)"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert (out, err) == (data[:5000], b"")
    if writer >= 0:
        os.close(writer)
    rest = b""
    while chunk := os.read(stdin, 65536):
        rest += chunk
    os.close(stdin)
    assert rest == data[5000:]


ENLARGE = """
import fcntl, os, select
fcntl.fcntl(0, 1031, 1 << 20)
seen = 0
while chunk := os.read(0, 65536):
    seen += len(chunk)
print(seen)
"""


def test_a_larger_pipe_does_not_cut_a_shared_stdin(user):
    read, write = os.pipe()
    os.fchown(read, user.uid, user.uid)
    os.write(write, b"x" * 60000)
    argv = user.corral_argv("run", "--", user.python, "-c", ENLARGE)
    process = user.popen(argv, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(write)
    out, err = process.communicate(timeout=60)
    os.close(read)
    assert (out, err) == (b"60000\n", b"")


def test_a_slow_reader_gets_all_output_of_a_shared_stdout(user):
    """Read the shared pipe only after corral has ended. The pipe holds less than the output."""
    read, write = os.pipe()
    os.fchown(write, user.uid, user.uid)
    code = "import os; os.write(1, b'x' * 120000)"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    os.close(write)
    with open(read, "rb") as file:
        assert len(file.read()) == 120000
    assert (process.returncode, err) == (0, b"")


LINES = """
import os
os.set_blocking(1, False)
for number in range(1000):
    os.write(1, b"line %d\\n" % number)
"""


def test_many_short_lines_fit_into_a_shared_stdout(user):
    """Write a thousand lines without waiting, as Node does before it exits. The target's pipe must
    have room for as much as any other pipe.
    """
    read, write = os.pipe()
    os.fchown(write, user.uid, user.uid)
    argv = user.corral_argv("run", "--", user.python, "-c", LINES)
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() == b"".join(b"line %d\n" % number for number in range(1000))
    assert (process.returncode, err) == (0, b"")


def test_an_orphan_gets_no_pipe_that_its_lost_parent_shared(ordinary):
    """Start corral from a shell that ends at once, so that corral cannot find out whether another
    program shares the pipe on stdin. The target must get another pipe in its place.
    """
    read, write = os.pipe()
    os.fchown(read, ordinary.uid, ordinary.uid)
    argv = ordinary.corral_argv("run", "--", ordinary.python, "-c", MISUSE, "write_to_stdin")
    start = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
    shell = [ordinary.python, "-c", start, *argv]
    process = ordinary.popen(shell, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    os.write(write, b"end\n")
    left = os.read(read, 100)
    os.close(read)
    os.close(write)
    assert (out, left) == (b'"done"\n', b"end\n"), err


@pytest.mark.parametrize("walls", [True, False])
def test_a_target_cannot_open_another_users_pipe(ordinary, walls):
    """Give the target a pipe of root that all users may open. Sanity check: without walls, it can be
    opened.
    """
    left = misuse_pipe(ordinary, "read_stderr", walls, before=TOKEN, mode=0o666)
    assert left == (TOKEN + b"end\n" if walls else b"end\n")


def test_the_end_of_a_shared_stdin_reaches_the_target(user):
    read, write = os.pipe()
    os.fchown(read, user.uid, user.uid)
    argv = user.corral_argv("run", "--", "/bin/cat")
    process = user.popen(argv, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.write(write, b"x" * 20000)
    os.close(write)
    out, _ = process.communicate(timeout=60)
    os.close(read)
    assert out == b"x" * 20000
    assert process.returncode == 0


def test_both_outputs_in_one_shared_pipe_keep_their_order(user):
    read, write = os.pipe()
    os.fchown(write, user.uid, user.uid)
    script = "for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done"
    argv = user.corral_argv("run", "--allow-subprocess", "--", "/bin/sh", "-c", script)
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=write, stderr=write)
    assert process.wait(timeout=60) == 0
    os.close(write)
    with open(read) as file:
        lines = file.read().splitlines()
    assert lines == [f"{kind} {n}" for n in range(1, 6) for kind in ("out", "err")]


def test_a_run_ends_although_nobody_reads_its_shared_stderr(user):
    read, write = os.pipe()
    os.fchown(write, user.uid, user.uid)
    flood = "import os\nwhile True: os.write(2, b'x' * 65536)"
    argv = user.corral_argv("run", "--timeout", "1s", "--", user.python, "-c", flood)
    process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=write)
    code = process.wait(timeout=60)
    os.close(read)
    os.close(write)
    assert code == 124


SPARE = """
import json, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
import corral
read, write = os.pipe()
os.write(write, b"token of another program\\n")
command = [sys.executable, "-c", sys.argv[2], "read_stderr"]
with corral.Pool() as pool:
    for _ in range(2):
        with pool.launch(command, stdin=subprocess.DEVNULL, stdout=corral.PIPE, stderr=write) as target:
            target.stdout.read()
            target.wait()
os.write(write, b"end\\n")
print(json.dumps(os.read(read, 100).decode()))
"""


def test_a_spare_sandbox_gets_no_shared_pipe(user):
    """Launch two targets from a pool, and let them read from their stderr, a pipe that their
    launcher also has open. Neither must get its content. The first launch makes the pool prepare
    sandboxes for later commands (spares), and the second launch uses one of them.
    """
    argv = [*user.host, user.python, "-c", SPARE, str(user.package), MISUSE]
    process = user.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert json.loads(out or "null") == "token of another program\nend\n", err.decode()


LOCK = """
import fcntl, struct
for fd, act in ((1, lambda: fcntl.flock(1, fcntl.LOCK_EX)), (2, lambda: fcntl.fcntl(2, 37, struct.pack("=hhxxxxqqixxxx", 1, 0, 0, 0, 0)))):
    act()
"""


@BOTH_TIERS
@pytest.mark.parametrize("walls", [True, False])
def test_locks_of_a_shared_log_are_released(user, scratch, walls):
    """Let the target lock two files that this process also has open. corral must remove these locks
    after the run, but keep this process's own lock on a third file.
    """
    os.chown(scratch, user.uid, user.uid)
    files = [os.open(scratch / name, os.O_RDWR | os.O_CREAT) for name in ("out", "log", "kept")]
    for fd in files:
        os.fchown(fd, user.uid, user.uid)
    fcntl.flock(files[2], fcntl.LOCK_SH)
    command = [user.python, "-c", LOCK]
    argv = user.corral_argv("run", "--", *command) if walls else command
    process = user.popen(argv, stdin=files[2], stdout=files[0], stderr=files[1])
    assert process.wait(60) == 0
    held = []
    for name, lock in (("out", fcntl.flock), ("log", fcntl.lockf), ("kept", fcntl.flock)):
        with open(scratch / name, "r+") as other:
            try:
                lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
    for fd in files:
        os.close(fd)
    assert held == ([False, False, True] if walls else [True, True, True])


@BOTH_TIERS
def test_the_client_sees_that_the_target_closed_its_stdout_pipe(user):
    """Check that the client sees the end of the target's stdout while the run continues."""
    code = "import os, sys; os.write(1, b'x'); os.close(1); sys.stdin.read()"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.read() == b"x"
    assert process.poll() is None
    process.communicate(timeout=60)
    assert process.returncode == 0


CHANGE = (
    PRELUDE
    + """
import fcntl, json, os
acl = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, 6, who) for tag, who in
    ((1, 2**32 - 1), (2, os.getuid()), (4, 2**32 - 1), (16, 2**32 - 1), (32, 2**32 - 1)))
def nodump():
    flags = struct.unpack("Q", fcntl.ioctl(0, 0x80086601, bytes(8)))[0]
    fcntl.ioctl(0, 0x40086602, struct.pack("Q", flags | 0x40))
print(json.dumps({
    "mode": tried(os.fchmod, 0, 0o666),
    "attribute": tried(os.setxattr, 0, "user.left", b"x"),
    "list": tried(os.setxattr, 0, "system.posix_acl_access", acl),
    "inode flags": tried(nodump),
    "version": tried(lambda: fcntl.ioctl(0, 0x40087602, struct.pack("Q", 7))),
    "flags": tried(fcntl.fcntl, 0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK),
    "exclusive": tried(fcntl.ioctl, 0, 0x540C),
}))
"""
)


def state(fd):
    seen = os.fstat(fd)
    found = [seen.st_mode, seen.st_uid, seen.st_gid, fcntl.fcntl(fd, fcntl.F_GETFL)]
    try:
        found.append({name: os.getxattr(fd, name) for name in os.listxattr(fd)})
        found.append(fcntl.ioctl(fd, 0x80086601, bytes(8)))
    except OSError:
        pass  # a terminal has no inode flags, and may have no extended attributes
    return found


def changed(user, fd, tmp):
    """Let a target change the file or terminal on its stdin. Return the result of each change, and
    the warnings in the report.
    """
    report = tmp / "report.json"
    argv = user.corral_argv("run", f"--report={report}", "--", user.python, "-c", CHANGE)
    process = user.popen(argv, stdin=fd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    warnings = json.loads(report.read_text())["warnings"]
    told = [line for line in warnings if "changed during the run" in line]
    assert all(line in err.decode() for line in told)
    return json.loads(out), told


@BOTH_TIERS
def test_mode_and_attributes_of_a_file_on_stdin_are_restored_after_the_run(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    path = scratch / "file"
    path.write_text("x")
    path.chmod(0o600)
    os.setxattr(path, "user.kept", b"1")
    os.chown(path, user.uid, user.uid)
    with open(path, "rb") as file:
        before = state(file.fileno())
        did, told = changed(user, file.fileno(), scratch)
        assert state(file.fileno()) == before
    if user.tier == "walled" and user.uid:  # Sanity check: the target may change its own file
        assert (did["mode"], did["attribute"], did["list"]) == ("done", "done", "done")
        wanted = {"mode", "extended attributes"}
        assert {line.split(" of ")[0].removeprefix("the ") for line in told} >= wanted
    else:
        assert did["mode"] == "EPERM"
    assert did["flags"] == "done"
    assert (did["inode flags"], did["version"]) == ("EPERM", "EPERM")


def test_without_walls_flags_and_version_of_a_file_on_stdin_can_be_changed(user, scratch):
    """Sanity check: without walls, a file's owner can change its flags and version even through a
    read-only descriptor.
    """
    path = scratch / "file"
    path.write_text("x")
    os.chown(path, user.owner, user.owner)
    with open(path, "rb") as file:
        argv = [user.python, "-c", CHANGE]
        out = user.popen(argv, stdin=file, stdout=subprocess.PIPE).communicate(timeout=60)[0]
    did = json.loads(out)
    assert did["inode flags"] == "done"
    # Not every file system lets a file's owner set the version.
    assert did["version"] in {"done", "ENOTTY", "EPERM"}


@BOTH_TIERS
def test_the_mode_of_a_named_pipe_on_stdin_is_restored_after_the_run(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    path = scratch / "pipe"
    os.mkfifo(path, 0o600)
    os.chown(path, user.uid, user.uid)
    fd = os.open(path, os.O_RDWR)
    did, told = changed(user, fd, scratch)
    os.close(fd)
    seen = path.stat()
    assert (seen.st_mode & 0o777, seen.st_uid, os.listxattr(path)) == (0o600, user.uid, [])
    # Sanity check: as the owner of the pipe, an ordinary user's target may change the mode.
    if user.tier == "walled" and user.uid:
        assert did["mode"] == "done"
        assert "the mode of stdin changed during the run: restored" in told
    else:
        assert did["mode"] == "EPERM"


def test_the_client_sees_that_the_target_closed_its_named_pipe(user, scratch):
    """Check that the client reads end of file after the target has closed the pipe. corral must not
    keep the pipe open.
    """
    path = scratch / "pipe"
    os.mkfifo(path, 0o600)
    os.chown(path, user.uid, user.uid)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(path, os.O_WRONLY)
    code = "import os; os.write(1, b'x'); os.close(1); os.read(0, 1)"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    process = user.popen(argv, stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.set_blocking(reading, True)
    with open(reading, "rb") as said:
        # `read` returns at the end of file, which the client gets although the target still runs.
        assert said.read() == b"x"
    assert process.communicate(b"", timeout=60)[1] is not None
    assert process.returncode == 0


@BOTH_TIERS
def test_a_mode_that_the_user_tightened_is_not_widened(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    path = scratch / "file"
    path.write_text("x\n")
    path.chmod(0o644)
    os.chown(path, user.uid, user.uid)
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    argv = user.corral_argv("run", "--", user.python, "-c", code)
    with open(path, "ab") as file:
        process = user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
        assert process.stdout.readline() == b"ready\n"
        path.chmod(0o600)
        process.communicate(b"", timeout=60)
    assert process.returncode == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("killed", [True, False])
def test_a_killed_corral_does_not_restore_the_mode_of_a_file_on_stdin(ordinary, scratch, killed):
    """Let the target change the mode of the file on its stderr, and kill corral. The mode must then
    stay changed, because the sandbox's init ends with corral and has no rights to the file. Sanity
    check: without a kill, corral restores the mode.
    """
    os.chown(scratch, ordinary.uid, ordinary.uid)
    path = scratch / "file"
    path.write_text("x\n")
    path.chmod(0o600)
    os.chown(path, ordinary.uid, ordinary.uid)
    code = "import os, sys; os.fchmod(2, 0o622); print('done', flush=True); sys.stdin.read()"
    argv = ordinary.corral_argv("run", "--", ordinary.python, "-c", code)
    with open(path, "ab") as file:
        process = ordinary.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)
        assert process.stdout.readline() == b"done\n"
        if killed:
            process.kill()
        process.communicate(b"", timeout=60)
    assert path.stat().st_mode & 0o777 == (0o622 if killed else 0o600)


CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0)  # cap_setuid, effective


@BOTH_TIERS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file capabilities")
@pytest.mark.parametrize("text", ["written", ""])
def test_capabilities_of_a_written_file_are_not_restored(user, scratch, text):
    """Write to a file that has capabilities. Writing removes them, and corral must not restore
    them.
    """
    os.chown(scratch, user.uid, user.uid)
    path = scratch / "program"
    path.write_text("x")
    os.chown(path, user.uid, user.uid)
    os.setxattr(path, "security.capability", CAPABILITY)
    code = "import os, sys; os.write(1, sys.argv[1].encode())"
    with open(path, "ab") as file:
        argv = user.corral_argv("run", "--", user.python, "-c", code, text)
        process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 0, error
    assert path.read_text() == "x" + text
    kept = "security.capability" in os.listxattr(path)
    assert kept == (not text)  # Sanity check: without a write the file keeps its capabilities


LEADER = """
import fcntl, os, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
before = termios.tcgetattr(0)
code = subprocess.call(sys.argv[1:])
os.set_blocking(1, False)
try:
    written = os.write(1, b"after")
except BlockingIOError:
    written = 0
print(code, termios.tcgetattr(0) == before, written, file=sys.stderr)
"""
SPOIL = """
import fcntl, termios
changed = termios.tcgetattr(0)
changed[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
termios.tcsetattr(0, termios.TCSANOW, changed)
termios.tcflow(0, termios.TCOOFF)
"""


@BOTH_TIERS
@pytest.mark.parametrize("sandboxed", [True, False])
def test_echo_and_output_of_a_terminal_are_restored_after_a_run(user, sandboxed):
    """Turn the terminal's echo off, and stop the terminal's output. corral must undo both.
    Sanity check: without the sandbox, both changes remain.
    """
    command = [user.python, "-ISc", SPOIL]
    if sandboxed:
        command = user.corral_argv("run", "--", *command)
    master, slave = os.openpty()
    os.fchown(slave, user.uid, user.uid)
    process = user.popen(
        [user.python, "-c", LEADER, *command],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    told = process.communicate(timeout=60)[1].decode()
    assert told.splitlines()[-1] == ("0 True 5" if sandboxed else "0 False 0"), told
    assert ("the settings of stdin changed during the run: restored" in told) == sandboxed
    os.close(master)
    os.close(slave)


@BOTH_TIERS
def test_mode_and_state_of_a_terminal_are_restored_after_the_run(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    master, slave = os.openpty()
    os.fchown(slave, user.uid, user.uid)
    os.fchmod(slave, 0o600)
    before = state(slave)
    did, told = changed(user, slave, scratch)
    exclusive = struct.unpack("i", fcntl.ioctl(slave, TIOCGEXCL, bytes(4)))[0]
    fcntl.ioctl(slave, TIOCNXCL)
    assert (state(slave), exclusive) == (before, 0)
    # Sanity check: the target did set the exclusive mark, so corral has removed it.
    assert did["exclusive"] == "done"
    assert "the exclusive mark of stdin changed during the run: restored" in told
    if user.tier == "walled" and user.uid:
        assert did["mode"] == "done"
        assert "the mode of stdin changed during the run: restored" in told
    os.close(master)
    os.close(slave)


WITHOUT_LANDLOCK = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler
machine = os.uname().machine
table = TABLES[machine]
absent = seccomp_compiler.errno_action(38)
rules = dict.fromkeys(table.values(), seccomp_compiler.ALLOW)
rules.update({number: absent for name, number in table.items() if name.startswith("landlock_")})
limit = 0x40000000 if machine == "x86_64" else None
program = seccomp_compiler.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=absent, number_limit=limit)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
abi.seccomp_set_filter(program)
os.execv(sys.argv[1], sys.argv[1:])
"""
REOPEN = (
    PRELUDE
    + """
import json, os, sys
said = {
    "stdin": sys.stdin.read(),
    "write to stdin": tried(lambda: os.write(os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK), b"evil")),
    "read stdout": tried(lambda: os.read(os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK), 100)),
}
print(json.dumps(said), file=sys.stderr, flush=True)
print("said", flush=True)
"""
)


@pytest.mark.parametrize("landlock", ["absent", "there"])
def test_file_streams_cannot_be_opened_again(user, scratch, landlock):
    """Try to open the files behind the target's streams again through /proc. With Landlock this is
    denied. Without Landlock corral passes pipes instead of the files, so the target can only reach
    the pipes.
    """
    os.chown(scratch, user.uid, user.uid)
    given, log, told = scratch / "given", scratch / "log", scratch / "told"
    given.write_text("question")
    log.write_text("of others\n")
    told.touch()
    for path in (given, log, told):
        path.chmod(0o666)
        os.chown(path, user.uid, user.uid)
    host = [user.python, "-c", WITHOUT_LANDLOCK, str(user.package)] if landlock == "absent" else []
    env = user.environment(XDG_CACHE_HOME=str(scratch / "cache"))
    argv = [*host, *user.corral_argv("run", "--", user.python, "-c", REOPEN)]
    with open(given, "rb") as stdin, open(log, "ab") as stdout, open(told, "ab") as stderr:
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        process = user.popen(argv, env=env, **streams)
        assert process.wait(timeout=60) == 0, told.read_text()
    said = json.loads(told.read_text().splitlines()[-1])
    assert said["stdin"] == "question"
    assert given.read_text() == "question"
    assert log.read_text() == "of others\nsaid\n"
    if landlock == "there":
        assert (said["write to stdin"], said["read stdout"]) == ("EACCES", "EACCES")
    else:
        assert said["read stdout"] != "done"


def test_both_outputs_in_one_file_keep_their_order(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    log = scratch / "log"
    log.touch()
    os.chown(log, user.uid, user.uid)
    host = [user.python, "-c", WITHOUT_LANDLOCK, str(user.package)]
    env = user.environment(XDG_CACHE_HOME=str(scratch / "cache"))
    script = "for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done"
    argv = [*host, *user.corral_argv("run", "--allow-subprocess", "--", "/bin/sh", "-c", script)]
    with open(log, "ab") as file:
        process = user.popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        assert process.wait(timeout=60) == 0
    lines = [line for line in log.read_text().splitlines() if line.startswith(("out", "err"))]
    assert lines == [f"{kind} {n}" for n in range(1, 6) for kind in ("out", "err")]
