"""Implement the tools of the demo server. Each tool does one thing and returns evidence, or fails.

The tools do no harm even if nothing stops them. Memory is reserved but not touched, files are
removed, threads end, and the daemon of `outlive` ends when the demo closes its FIFO. A tool's
docstring is its description for the client, and its annotations are its input schema.
"""

import array
import contextlib
import errno
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.abi import linux as abi

assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MIB = 1 << 20
MAX_ANSWER = 4096
NETWORK_SECONDS = 3.0
THREAD_STACK = 256 * 1024  # small, so that threads use little memory
# From asm-generic/mman.h, because the mmap module contains this constant only since Python 3.13.
MAP_NORESERVE = 0x4000
# After this time the daemon ends, even if the demo has not closed its end of the FIFO.
DAEMON_MILLISECONDS = 20_000


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def read_file(path: str) -> str:
    """Read a text file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(MAX_ANSWER).strip()


def write_file(path: str, text: str) -> str:
    """Write a text file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"{len(text)} characters written"


def read_environment(name: str) -> str:
    """Read an environment variable."""
    if name not in os.environ:
        raise OSError(errno.ENOENT, f"{name} is not set")
    return os.environ[name]


def connect_tcp(port: int) -> str:
    """Read from a TCP port of this machine."""
    return _receive(socket.socket(), ("127.0.0.1", port))


def ask_udp(port: int) -> str:
    """Send a question to a UDP port of this machine, and return the answer."""
    return _receive(socket.socket(type=socket.SOCK_DGRAM), ("127.0.0.1", port), b"?")


def connect_unix(path: str) -> str:
    """Read from a unix socket."""
    return _receive(socket.socket(socket.AF_UNIX), path)


def _receive(sock: socket.socket, address: tuple[str, int] | str, question: bytes = b"") -> str:
    with sock:
        sock.settimeout(NETWORK_SECONDS)
        sock.connect(address)
        if question:
            sock.send(question)
        return sock.recv(MAX_ANSWER).decode()


def run_shell(command: str) -> str:
    """Run a shell command."""
    shell = ["cmd.exe", "/c"] if sys.platform == "win32" else ["/bin/sh", "-c"]
    done = subprocess.run([*shell, command], capture_output=True, check=False)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip())
    return done.stdout.decode(errors="replace").strip()


def list_processes(pid: int) -> str:
    """Report whether a process is visible in /proc, and how many processes are visible."""
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    if str(pid) not in seen:
        raise OSError(errno.ESRCH, f"sees only its own processes, {len(seen)} of them")
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(MAX_ANSWER).decode(errors="replace").split("\0")
    return f"sees {len(seen)} processes, among them {' '.join(words[-2:]).strip()}"


def send_signal(pid: int, number: int) -> str:
    """Send a signal to a process."""
    os.kill(pid, number)
    return f"signal {number} sent to {pid}"


def read_memory(pid: int, address: int, size: int) -> str:
    """Read the memory of a process."""
    found = array.array("B", bytes(size))
    local = struct.pack("@PN", found.buffer_info()[0], size)
    remote = struct.pack("@PN", address, size)
    abi.syscall("process_vm_readv", pid, local, 1, remote, 1, 0)
    return found.tobytes().decode(errors="replace")


def call_kernel() -> str:
    """Try system calls that servers do not need."""
    parameters = array.array("B", bytes(128))
    address = parameters.buffer_info()[0]
    calls: dict[str, Callable[[], object]] = {
        "io_uring_setup": lambda: os.close(abi.syscall("io_uring_setup", 1, address)),
        "unshare": lambda: _call_in_child(lambda: abi.unshare(abi.CLONE_NEWUSER)),
        "userfaultfd": lambda: os.close(abi.syscall("userfaultfd", 1)),
        "keyctl": lambda: abi.syscall("keyctl", 0, -3, 0),
    }
    allowed: list[str] = []
    denied: list[str] = []
    for name, call in calls.items():
        try:
            call()
            allowed.append(name)
        except OSError as error:
            denied.append(f"{name} {errno.errorcode.get(error.errno or 0, '?')}")
    if not allowed:
        raise OSError(errno.EPERM, ", ".join(denied))
    return f"{', '.join(allowed)} allowed" + (f"; {', '.join(denied)}" if denied else "")


def _call_in_child(call: Callable[[], None]) -> None:
    """Run `call` in a child process, so that it cannot change the server.

    If no child process can be started, run `call` in this process.
    """
    try:
        child = os.fork()
    except OSError:
        call()
        return
    if child == 0:
        code = 0
        try:
            call()
        except OSError as error:
            code = error.errno or 1
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def reserve_memory(mebibytes: int) -> str:
    """Reserve memory."""
    # Private writable memory counts against limits, but uses no RAM until it is touched.
    size = mebibytes * MIB
    if sys.platform == "win32":
        mmap.mmap(-1, size).close()
    else:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE).close()
    return f"{mebibytes} MiB reserved"


def start_threads(count: int) -> str:
    """Run threads at the same time."""
    end, before = threading.Event(), threading.active_count()
    threading.stack_size(THREAD_STACK)
    try:
        for _ in range(count):
            threading.Thread(target=end.wait).start()
    except RuntimeError as error:
        started = threading.active_count() - before
        raise OSError(errno.EAGAIN, f"{started} threads, then {error}") from error
    finally:
        end.set()
    return f"{count} threads at once"


def grow_file(mebibytes: int) -> str:
    """Make a large temporary file."""
    # A sparse file uses no disk space, but its size counts against the limit on a file's size.
    with tempfile.TemporaryFile() as file:
        file.truncate(mebibytes * MIB)
    return f"a file of {mebibytes} MiB"


def open_files(count: int) -> str:
    """Hold files open."""
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * count), hard))
    with contextlib.ExitStack() as files:
        for number in range(count):
            try:
                files.enter_context(open(os.devnull, "rb"))
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} after {number}") from error
    return f"{count} files open at once"


def outlive(path: str) -> str:
    """Leave a daemon behind."""
    # The daemon keeps this end of the FIFO open, until the reader closes the other end.
    with open(path, "wb", buffering=0) as fifo:
        child = os.fork()
        if child == 0:
            _become_daemon(fifo.fileno())
        os.waitpid(child, 0)
    return "a daemon was left behind"


def _become_daemon(fifo: int) -> None:
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            poll = select.poll()
            # Wait for no event except POLLERR, which is reported when the reader closes its end.
            poll.register(fifo, 0)
            poll.poll(DAEMON_MILLISECONDS)
    finally:
        os._exit(0)


TOOLS = {
    tool.__name__: tool
    for tool in (
        add, read_file, write_file, read_environment, connect_tcp, ask_udp, connect_unix, run_shell,
        list_processes, send_signal, read_memory, call_kernel, reserve_memory, start_threads,
        grow_file, open_files, outlive,
    )
}  # fmt: skip
