"""The tools of the demo server. Each does one thing for real and gives evidence, or fails.

They are bounded, so that they are harmless where nothing stops them: memory is reserved and not
touched, files are removed, threads end, and what outlives its server ends with its reader.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from corral.record import record

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIB = 1 << 20
ANSWER = 4096
NETWORK_PATIENCE = 3.0
STACK = 256 * 1024  # so that a thread counts as a thread, and hardly as memory
MAP_NORESERVE = 0x4000  # asm-generic/mman.h; in module mmap only since Python 3.13
OUTLIVES = 20_000  # ms, should its reader never go away


@record
class Tool:
    """`takes` are (name, JSON type) of its arguments, all required."""

    name: str
    description: str
    run: object
    takes: tuple[tuple[str, str], ...] = ()


def fits(tool: Tool, arguments: Mapping[str, object]) -> bool:
    kinds = {"string": str, "integer": int}
    return set(arguments) == {name for name, _ in tool.takes} and all(
        type(arguments[name]) is kinds[kind] for name, kind in tool.takes
    )


def attempt(tool: Tool, arguments: Mapping[str, object]) -> tuple[bool, str]:
    """(whether it was done, the evidence or the error)."""
    try:
        return True, tool.run(**arguments)  # type: ignore[operator]
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        return False, f"{name}: {error.strerror or error}"
    except (ValueError, AttributeError) as error:
        return False, f"{type(error).__name__}: {error}"


def add(a: int, b: int) -> str:
    return str(a + b)


def read_file(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(ANSWER).strip()


def write_file(path: str, text: str) -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"{len(text)} characters written"


def read_environment(name: str) -> str:
    if name not in os.environ:
        raise OSError(errno.ENOENT, f"{name} is not set")
    return os.environ[name]


def connect_tcp(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), NETWORK_PATIENCE) as connection:
        return connection.recv(ANSWER).decode()


def ask_udp(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(NETWORK_PATIENCE)
        connection.connect(("127.0.0.1", port))
        connection.send(b"?")
        return connection.recv(ANSWER).decode()


def connect_unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(NETWORK_PATIENCE)
        connection.connect(path)
        return connection.recv(ANSWER).decode()


def run_shell(command: str) -> str:
    import subprocess

    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip())
    return done.stdout.decode(errors="replace").strip()


def list_processes(pid: int) -> str:
    """How many there are, and the command line of one of them."""
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    if str(pid) not in seen:
        raise OSError(errno.ESRCH, f"sees {len(seen)} of its own, no other")
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(ANSWER).decode(errors="replace").split("\0")
    return f"sees {len(seen)} processes, among them {' '.join(words[-2:]).strip()}"


def send_signal(pid: int, number: int) -> str:
    os.kill(pid, number)
    return f"signal {number} sent to {pid}"


def read_memory(pid: int, address: int, size: int) -> str:
    """process_vm_readv, as debuggers and thieves use it."""
    import array
    import struct

    from corral.abi import linux as abi

    room = array.array("B", bytes(size))
    local = struct.pack("@PN", room.buffer_info()[0], size)
    remote = struct.pack("@PN", address, size)
    abi.syscall("process_vm_readv", pid, local, 1, remote, 1, 0)
    return room.tobytes().decode(errors="replace")


def call_kernel() -> str:
    """System calls with a history of holes that no ordinary server needs; which ones are let in?"""
    import array

    from corral.abi import linux as abi

    parameters = array.array("B", bytes(128))
    calls: dict[str, Callable[[], object]] = {
        "io_uring_setup": lambda: os.close(
            abi.syscall("io_uring_setup", 1, parameters.buffer_info()[0])
        ),
        "unshare": lambda: _apart(lambda: abi.unshare(abi.CLONE_NEWUSER)),
        "userfaultfd": lambda: os.close(abi.syscall("userfaultfd", 1)),
        "keyctl": lambda: abi.syscall("keyctl", 0, -3, 0),
    }
    denied: list[str] = []
    for name, call in calls.items():
        try:
            call()
        except OSError as error:
            denied.append(f"{name} {errno.errorcode.get(error.errno or 0, '?')}")
    if len(denied) == len(calls):
        raise OSError(errno.EPERM, ", ".join(denied))
    allowed = [name for name in calls if not any(text.startswith(name) for text in denied)]
    return f"{', '.join(allowed)} let in" + (f"; {', '.join(denied)}" if denied else "")


def _apart(call: Callable[[], None]) -> None:
    """In a child, since the server has to stay what it is; here, where there can be no child."""
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
    """Private writable memory that is never touched: it counts and costs nothing."""
    import mmap

    size = mebibytes * MIB
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE).close()
    return f"{mebibytes} MiB reserved"


def start_threads(count: int) -> str:
    import threading

    end = threading.Event()
    started: list[threading.Thread] = []
    size = threading.stack_size(STACK)
    try:
        for _ in range(count):
            thread = threading.Thread(target=end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"{len(started)} threads, then {error}") from error
    finally:
        threading.stack_size(size)
        end.set()
        for thread in started:
            thread.join()
    return f"{count} threads at once"


def fill_disk(mebibytes: int) -> str:
    """In files of 2 MiB, so that no limit for single files is met first."""
    import tempfile

    written, chunk = 0, b"\1" * (2 * MIB)
    with tempfile.TemporaryDirectory() as directory:
        try:
            while written < mebibytes * MIB:
                with open(os.path.join(directory, str(written)), "wb", buffering=0) as file:
                    if file.write(chunk) < len(chunk):
                        file.write(chunk)  # a short write tells nothing; the next one does
                written += len(chunk)
        except OSError as error:
            text = f"{error.strerror} after {written // MIB} MiB"
            raise OSError(error.errno, text) from error
    return f"{mebibytes} MiB written"


def open_files(count: int) -> str:
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        text = f"{error.strerror} after {len(opened)}"
        raise OSError(error.errno, text) from error
    finally:
        for fd in opened:
            os.close(fd)
    return f"{count} files open at once"


def outlive(path: str) -> str:
    """Leave a daemon behind that holds the FIFO at `path` open until its reader goes away."""
    hold = os.open(path, os.O_WRONLY)
    try:
        child = os.fork()
        if child == 0:
            _daemon(hold)
        os.waitpid(child, 0)
    finally:
        os.close(hold)
    return "a daemon was left behind"


def _daemon(hold: int) -> None:
    import select

    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            poll = select.poll()
            poll.register(hold, 0)  # POLLERR, the end of its reader, always counts
            poll.poll(OUTLIVES)
    finally:
        os._exit(0)


_PATH, _PORT, _PID = ("path", "string"), ("port", "integer"), ("pid", "integer")
_ADDRESS, _COUNT = ("address", "integer"), ("count", "integer")
_SIZE = ("mebibytes", "integer")
TOOLS: dict[str, Tool] = {
    run.__name__: Tool(name=run.__name__, description=description, run=run, takes=takes)
    for run, description, takes in (
        (add, "Add two numbers.", (("a", "integer"), ("b", "integer"))),
        (read_file, "Read a text file.", (_PATH,)),
        (write_file, "Write a text file.", (_PATH, ("text", "string"))),
        (read_environment, "Read an environment variable.", (("name", "string"),)),
        (connect_tcp, "Read from a TCP port of this machine.", (_PORT,)),
        (ask_udp, "Ask a UDP port of this machine.", (_PORT,)),
        (connect_unix, "Read from a unix socket.", (_PATH,)),
        (run_shell, "Run a shell command.", (("command", "string"),)),
        (list_processes, "Look for a process among all.", (_PID,)),
        (send_signal, "Send a signal to a process.", (_PID, ("number", "integer"))),
        (read_memory, "Read the memory of a process.", (_PID, _ADDRESS, ("size", "integer"))),
        (call_kernel, "Try system calls that servers do not need.", ()),
        (reserve_memory, "Reserve memory.", (_SIZE,)),
        (start_threads, "Run threads at the same time.", (_COUNT,)),
        (fill_disk, "Write temporary files.", (_SIZE,)),
        (open_files, "Hold files open.", (_COUNT,)),
        (outlive, "Leave a daemon behind.", (_PATH,)),
    )
}  # fmt: skip
