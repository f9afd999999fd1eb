"""Test the seccomp listener with which corral reports denied process starts, in four situations:
the supervisor is paused, has ended, is itself in a sandbox, or lacks a privilege.
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time

import pytest
from traces import PATIENCE

from corral.abi.linux_syscalls import TABLES

TABLE = TABLES[os.uname().machine]
FORKS = {str(TABLE[name]) for name in ("fork", "vfork", "clone") if name in TABLE}
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
TWO_THREADS = """
import ctypes, sys, threading
libc = ctypes.CDLL(None, use_errno=True)  # ctypes releases the interpreter's lock during a call
go = threading.Event()
def start():
    go.wait()
    libc.syscall(int(sys.argv[1]), 17, 0, 0, 0, 0)
    print("denied", ctypes.get_errno(), flush=True)
thread = threading.Thread(target=start)
thread.start()
print("up", flush=True)
sys.stdin.readline()
go.set()
for line in sys.stdin:
    print("runs", line.strip(), flush=True)
thread.join()
"""


def threads_of(supervisor: int) -> list[str]:
    """Return the number of the current system call for each thread of the supervisor and of its
    descendants.
    """
    found, waiting = [], [supervisor]
    while waiting:
        pid = waiting.pop()
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    waiting += map(int, file.read().split())
                with open(f"/proc/{pid}/task/{task}/syscall") as file:
                    found.append(file.read().split()[0])
    return found


def wait_for_a_start(supervisor: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not FORKS.intersection(threads_of(supervisor)):
        assert time.monotonic() < deadline, threads_of(supervisor)
        time.sleep(0.01)


def start_of(user, *arguments):
    process = user.popen(user.corral_argv("run", *arguments), **PIPES)
    return process, process.stdout.readline()


def send(process, line: bytes) -> None:
    process.stdin.write(line)
    process.stdin.flush()


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_paused_supervisor_delays_only_process_starts(user):
    process, _ = start_of(user, "--", user.python, "-c", TWO_THREADS, str(TABLE["clone"]))
    process.send_signal(signal.SIGSTOP)
    try:
        send(process, b"go\n")
        wait_for_a_start(process.pid)
        send(process, b"on\n")
        assert process.stdout.readline() == b"runs on\n"
        assert FORKS.intersection(threads_of(process.pid))
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.stdout.readline() == b"denied 1\n"
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_sigterm_while_a_start_waits_ends_the_run(user):
    process, _ = start_of(user, "--", user.python, "-c", TWO_THREADS, str(TABLE["clone"]))
    process.send_signal(signal.SIGSTOP)
    send(process, b"go\n")
    wait_for_a_start(process.pid)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    process.communicate()


START = """
import subprocess
try:
    print(subprocess.run(["/bin/true"]).returncode)
except OSError as error:
    print("denied", error.errno)
"""
INNER = """
import subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr, sep="|")
"""


def test_corral_inside_corral_refuses_to_start_a_target(ordinary):
    """Run corral inside a sandbox. It can prove neither namespaces nor a second filter there, so it
    must not start a target.
    """
    inner = ordinary.corral_argv("run", "--", ordinary.python, "-c", START)
    flags = ("--allow-subprocess", "--read", str(ordinary.package))
    done = ordinary.run(ordinary.python, "-c", INNER, *inner, flags=flags, timeout=120)
    code, out, errors = done.stdout.decode().split("|", 2)
    assert (code, out) == ("125", ""), errors
    assert "this host cannot enforce" in errors
    control = ordinary.run(ordinary.python, "-c", START, flags=("--allow-subprocess",))
    assert control.stdout == b"0\n"


def without_ptrace(argv: list[str]) -> list[str]:
    return ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", *argv]


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_programs_name_is_reported_only_if_the_targets_memory_can_be_read(user):
    """Run corral as root without CAP_SYS_PTRACE. The name of the program that a target tries to
    start is in the target's memory. corral can then read this memory only in a user namespace that
    it has created itself.
    """
    if user.uid:
        pytest.skip("an ordinary user needs no capability to read its targets")
    argv = without_ptrace(user.corral_argv("run", "--", user.python, "-c", START))
    process = user.popen(argv, **PIPES)
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == b"denied 1\n", errors
    wanted = b"start of true;" if user.tier == "walled" else b"start of a process by python"
    assert b"corral: denied: " + wanted in errors


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_learn_reports_unreadable_memory(user):
    if user.uid:
        pytest.skip("an ordinary user needs no capability to read its targets")
    argv = without_ptrace(user.corral_argv("learn", "--", "/bin/true"))
    process = user.popen(argv, **PIPES)
    _, errors = process.communicate(timeout=PATIENCE)
    if user.tier == "walled":
        assert process.returncode == 0, errors
        return
    assert process.returncode == 125
    assert b"paths could be read from the target's memory" in errors
    assert b"CAP_SYS_PTRACE" in errors


def test_learn_reports_an_outer_listener(user):
    from test_denial_flags import OUTER

    argv = user.corral_argv("learn", "--", "/bin/true")
    process = user.popen([user.python, "-c", OUTER, str(user.package), *argv], **PIPES)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    assert b"cannot be watched here" in errors


ASKS = """
import os, sys
for name in ("one", "two"):
    try:
        open(os.path.expanduser("~/" + name))
    except OSError:
        pass
print("up", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def learning(user, policy):
    """Start `corral learn` on a new terminal, and wait for the target's first line."""
    for name in ("one", "two"):
        (user.home / name).touch()
        os.chown(user.home / name, user.owner, user.owner)
    master, slave = pty.openpty()
    argv = user.corral_argv("learn", "--output", str(policy), "--", user.python, "-c", ASKS)
    argv = [user.python, "-c", TERMINAL, *argv]
    process = user.popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    terminal = os.fdopen(master, "r+b", buffering=0)
    try:
        read_until(terminal, b"up")
        yield process, terminal
    finally:
        process.kill()
        process.wait()
        terminal.close()


TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def read_until(terminal, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        try:
            piece = terminal.read(1024)
        except OSError:
            piece = b""
        assert piece, seen
        seen += piece
    return seen


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_control_c_ends_the_target_and_keeps_its_requests(user, scratch):
    policy = scratch / "policy.toml"
    with learning(user, policy) as (process, terminal):
        terminal.write(b"\x03")
        seen = read_until(terminal, b"[y/N]")
        assert f"--read {user.home}/one".encode() in seen
        terminal.write(b"y\n")
        read_until(terminal, b"[y/N]")
        terminal.write(b"\n")
        read_until(terminal, b"written: ")
        assert process.wait(PATIENCE) == 0
    text = policy.read_text()
    assert f'"{user.home}/one",' in text
    assert f"{user.home}/two" not in text


def test_control_c_at_a_question_accepts_nothing(user, scratch):
    policy = scratch / "policy.toml"
    with learning(user, policy) as (process, terminal):
        terminal.write(b"\x03")
        read_until(terminal, b"[y/N]")
        terminal.write(b"y\n")
        read_until(terminal, b"[y/N]")
        terminal.write(b"\x03")
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    assert not policy.exists()
