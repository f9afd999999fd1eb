"""Probe what Landlock can deny on this kernel."""

import os
import socket
import sys
import tempfile
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.plan.model import Results
from corral.platforms.linux.mechanisms import landlock
from corral.platforms.linux.probes import probe
from corral.platforms.posix import disposable

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


SOCKET_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


def _restrict(read: str) -> None:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    landlock.Landlock(read=(read,), write=()).apply(Results())


@probe.probe("landlock", "Landlock", hint="a kernel with Landlock (CONFIG_SECURITY_LANDLOCK, lsm=)")
def deny_file() -> str:
    os.close(os.open("/proc/self/stat", os.O_RDONLY))
    version = abi.landlock_abi()
    _restrict("/usr")
    words = disposable.refused(lambda: os.open("/proc/self/stat", os.O_RDONLY))
    os.close(os.open("/usr", os.O_RDONLY | os.O_DIRECTORY))
    return f"ABI {version}: an ungranted file is denied ({words}), but was readable before"


@probe.probe(
    "landlock_wall",
    "Landlock as the only wall",
    hint="a newer kernel: Linux 6.2 or later, whose Landlock can deny truncation",
)
def deny_truncation() -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/file"
        with open(path, "w", encoding="utf-8") as file:
            file.write("text")

        def attempt() -> str:
            os.truncate(path, 3)
            _restrict("/")
            return disposable.refused(lambda: os.truncate(path, 0))

        denied, words = disposable.observe(attempt)
    if not denied:
        raise RuntimeError(words)
    return f"truncating an ungranted file is denied ({words}), but succeeded before"


@probe.probe(
    "landlock_scope",
    "Landlock signal scope",
    hint="a newer kernel: Linux 6.12 or later, whose Landlock can scope signals",
)
def deny_signal() -> str:
    parent = os.getppid()
    os.kill(parent, 0)
    _restrict("/")
    words = disposable.refused(lambda: os.kill(parent, 0))
    os.kill(os.getpid(), 0)
    return f"a signal to a process outside is denied ({words}), but was sent before"


@probe.probe(
    "landlock_unix",
    "Landlock unix socket scope",
    hint="a newer kernel: Linux 7.1 or later, whose Landlock can deny connections to unix sockets",
)
def deny_foreign_socket() -> str:
    """Check that a process can reach only unix sockets of its own Landlock domain.

    Try both stream and datagram sockets.
    """
    with tempfile.TemporaryDirectory() as directory:
        theirs = [_bind(f"{directory}/{kind}", kind) for kind in SOCKET_KINDS]

        def attempt() -> str:
            for kind in SOCKET_KINDS:
                _reach(f"{directory}/{kind}", kind)
            abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            rules = landlock.Landlock(read=("/",), write=(), private=(directory,), unix_scope=True)
            rules.apply(Results())
            words = ""
            for kind in SOCKET_KINDS:
                words = disposable.refused(lambda: _reach(f"{directory}/{kind}", kind))  # noqa: B023
                own = _bind(f"{directory}/own-{kind}", kind)
                _reach(f"{directory}/own-{kind}", kind)
                own.close()
            return words

        denied, words = disposable.observe(attempt)
        for one in theirs:
            one.close()
    if not denied:
        raise RuntimeError(words)
    return (
        f"another program's socket is denied ({words}), but was reached before; "
        "the process's own socket answers"
    )


def _bind(path: str, kind: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(path)
    if kind != socket.SOCK_DGRAM:
        made.listen()
    return made


def _reach(path: str, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as client:
        if kind == socket.SOCK_DGRAM:
            client.sendto(b"x", path)
        else:
            client.connect(path)
