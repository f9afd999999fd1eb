"""Bind seccomp_unotify(2): receive the system calls that a filter reports, and answer them."""

from __future__ import annotations

import struct
import sys

from corral.record import record

if sys.platform != "win32":
    import fcntl

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100
SECCOMP_IOCTL_NOTIF_SEND = 0xC0182101
SECCOMP_IOCTL_NOTIF_ID_VALID = 0x40082102
SECCOMP_IOCTL_NOTIF_ADDFD = 0x40182103
SECCOMP_IOCTL_NOTIF_SET_FLAGS = 0x40082104
SECCOMP_ADDFD_FLAG_SETFD = 1
SECCOMP_ADDFD_FLAG_SEND = 2
SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP = 1
# The fields of struct seccomp_notif are id, pid, flags and the fields of seccomp_data: number,
# architecture, instruction pointer and six arguments.
SECCOMP_NOTIF = "=QIIiIQ6Q"
SECCOMP_NOTIF_RESP = "=QqiI"
SECCOMP_NOTIF_ADDFD = "=QIIII"


@record
class Notification:
    """A system call of the target that waits for an answer.

    `pid` is the id of the calling thread in this process's pid namespace, and `number` is the
    number of the system call.
    """

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]
    listener: int = -1


def receive(listener: int) -> Notification:
    """Return the next call that waits for an answer.

    Raise FileNotFoundError if the calling thread has been killed.
    """
    buffer = bytearray(struct.calcsize(SECCOMP_NOTIF))
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, buffer)
    found, pid, _, number, _, _, *arguments = struct.unpack(SECCOMP_NOTIF, buffer)
    return Notification(
        id=found, pid=pid, number=number, arguments=tuple(arguments), listener=listener
    )


def is_waiting(request: Notification) -> bool:
    """Return whether the caller still waits for an answer. If so, its pid has not been reused."""
    try:
        fcntl.ioctl(request.listener, SECCOMP_IOCTL_NOTIF_ID_VALID, struct.pack("=Q", request.id))
    except OSError:
        return False
    return True


def add_descriptor(request: Notification, fd: int, *, flags: int) -> None:
    """Answer a call with a new descriptor: a copy of `fd` at the caller's lowest free number."""
    _add_descriptor(request, fd, SECCOMP_ADDFD_FLAG_SEND, 0, flags)


def replace_descriptor(request: Notification, fd: int, *, flags: int, number: int) -> None:
    """Replace the caller's descriptor `number` with a copy of `fd`, without answering the call."""
    _add_descriptor(request, fd, SECCOMP_ADDFD_FLAG_SETFD, number, flags)


def _add_descriptor(request: Notification, fd: int, how: int, number: int, flags: int) -> None:
    argument = struct.pack(SECCOMP_NOTIF_ADDFD, request.id, how, fd, number, flags)
    fcntl.ioctl(request.listener, SECCOMP_IOCTL_NOTIF_ADDFD, argument)


def send(listener: int, call: int, *, value: int = 0, error: int = 0, flags: int = 0) -> None:
    """Answer the call that has this id. Raise FileNotFoundError if the calling thread has ended."""
    answer = struct.pack(SECCOMP_NOTIF_RESP, call, value, -error, flags)
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer)


def wake_synchronously(listener: int) -> None:
    """Let the kernel run the caller and the listener on the same processor, which halves the time
    that a call takes. Do nothing on kernels before Linux 6.6.
    """
    try:
        fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
    except OSError:
        return
