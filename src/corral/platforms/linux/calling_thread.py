"""Read the memory and descriptors of a thread whose system call waits for the supervisor.

The kernel allows this only to a process that may debug the target. An ordinary user may debug
processes with the same user id. If root runs corral, the target has a different user id, and root
needs CAP_SYS_PTRACE, which containers lack by default. Without this capability, the supervisor's
thread switches to the target's user id for the time of the read.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from corral.abi import linux as abi
from corral.abi import linux_notifications
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.abi.linux_notifications import Notification

CAP_SYS_PTRACE = 19
INT_BITS = 32
PAGE = 4096
"""The smallest page size. All larger page sizes are multiples of it."""
PATH_MAX = 4096
"""The maximum length of a path, including its zero byte."""


@record
class TargetIds:
    """The target's ids on the host. With `taken`, a `with` block switches this thread to them."""

    uid: int
    gid: int
    taken: bool = False

    def __enter__(self) -> None:
        if self.taken:
            abi.setresgid(self.gid, self.gid, 0)
            try:
                abi.setresuid(self.uid, self.uid, 0)
            except OSError:
                abi.setresgid(0, 0, 0)
                raise

    def __exit__(self, *_: object) -> None:
        if self.taken:
            abi.setresuid(0, 0, 0)
            abi.setresgid(0, 0, 0)

    def as_target(self) -> TargetIds:
        """Return a copy whose `with` block runs with the target's ids.

        A connection to a unix socket must be made in this block, because the server at this socket
        can see the ids of the process that connects.
        """
        return replace(self, taken=self.uid != os.geteuid())


def find_ids(uid: int, gid: int) -> TargetIds:
    may_read = uid == os.geteuid() or abi.capget()[0] >> CAP_SYS_PTRACE & 1
    return TargetIds(uid=uid, gid=gid, taken=not may_read)


class HiddenMemoryError(PermissionError):
    """The target's memory cannot be read, because the target is not dumpable or executes a file
    that it is not allowed to read.
    """


class CallingThread:
    def __init__(self, request: Notification, ids: TargetIds) -> None:
        self._request = request
        self._ids = ids
        self._proc = f"/proc/{request.pid}"

    def read(self, address: int, size: int) -> bytes:
        """Return a copy of the caller's memory. Read the memory only once, because another thread
        of the target can change it at any moment. Raise OSError (EFAULT) if the memory cannot be
        read.
        """
        memory = self._open_memory(os.O_RDONLY)
        try:
            found = os.pread(memory, size, address)
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, "the memory cannot be read") from error
        finally:
            os.close(memory)
        if len(found) != size:
            raise OSError(errno.EFAULT, "the memory cannot be read")
        return found

    def read_text(self, address: int) -> bytes:
        """Return a copy of the string that starts at `address` and ends before the next zero byte.

        Read each byte only once, and do not read beyond the page that the string ends in. Raise
        ENAMETOOLONG if the string is longer than a path can be.
        """
        found = b""
        while len(found) < PATH_MAX:
            part = self.read(address, PAGE - address % PAGE)
            before, ended, _ = part.partition(b"\0")
            found += before
            if ended and len(found) < PATH_MAX:
                return found
            address += len(part)
        raise OSError(errno.ENAMETOOLONG, "the path is too long")

    def write(self, address: int, data: bytes) -> None:
        """Write to the caller's memory. Raise ESRCH if the caller is no longer waiting.

        The pid of a dead process may be reused. So open the memory first, and check afterwards that
        the call is still waiting. If it is, the memory belongs to the caller.
        """
        memory = self._open_memory(os.O_RDWR)
        try:
            self.check()
            os.pwrite(memory, data, address)
        except ProcessLookupError:
            raise
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, "the memory cannot be written") from error
        finally:
            os.close(memory)

    def protocol(self, fd: int) -> str:
        """Return a socket's kind, such as TCPv6 or UNIX-STREAM. Raise ENOTSOCK for other files."""
        if not self.inode(fd):
            raise OSError(errno.ENOTSOCK, "the descriptor is not a socket")
        with self._ids:
            found = os.getxattr(self._path("fd", fd), "system.sockprotoname")
        return found.rstrip(b"\0").decode()

    def inode(self, fd: int) -> int:
        """Return a socket's inode, or 0 for other files. Raise EBADF for a closed descriptor."""
        link = self.path_of(fd)
        return int(link[8:-1]) if link.startswith("socket:[") else 0

    def path_of(self, fd: int) -> str:
        """Return the path of an open file. Raise EBADF for a closed descriptor."""
        try:
            with self._ids:
                return os.readlink(self._path("fd", fd))
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, "no such descriptor") from error

    def identity(self, fd: int) -> tuple[int, int]:
        """Return the device and the inode of an open file."""
        with self._ids:
            seen = os.stat(self._path("fd", fd))
        return seen.st_dev, seen.st_ino

    def flags(self, fd: int) -> int:
        """Return the flags of an open descriptor (O_PATH and others) as one number."""
        with self._ids:
            content = abi.read_file(self._path("fdinfo", fd))
        return int(content.partition(b"flags:")[2].split(None, 1)[0], 8)

    def working_directory(self) -> str:
        with self._ids:
            return os.readlink(f"{self._proc}/cwd")

    def take(self, fd: int) -> _socket.socket:
        """Return a copy of the caller's open socket. Raise ESRCH if the caller is no longer
        waiting.
        """
        try:
            pidfd = abi.pidfd_open(self._request.pid, abi.PIDFD_THREAD)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            pidfd = abi.pidfd_open(self._find_process())  # Linux before 6.9 has no thread pidfds
        try:
            with self._ids:
                taken = abi.pidfd_getfd(pidfd, to_int(fd))
        finally:
            os.close(pidfd)
        try:
            self.check()
            # The type and protocol here may be wrong, but no code uses them. Without them Python
            # would ask the kernel, which costs two more calls.
            return _socket.socket(type=_socket.SOCK_STREAM, proto=0, fileno=taken)
        except OSError:
            os.close(taken)
            raise

    def check(self) -> None:
        """Raise ESRCH if the thread is no longer waiting. Another thread may then have its id."""
        if not linux_notifications.is_waiting(self._request):
            raise ProcessLookupError(errno.ESRCH, "the caller is gone")

    def _path(self, kind: str, fd: int) -> str:
        return f"{self._proc}/{kind}/{to_int(fd)}"

    def _open_memory(self, mode: int) -> int:
        try:
            with self._ids:
                return os.open(f"{self._proc}/mem", mode | os.O_CLOEXEC)
        except PermissionError as error:
            raise HiddenMemoryError(errno.EACCES, "the process hides its memory") from error

    def _find_process(self) -> int:
        status = abi.read_file(f"{self._proc}/status")
        return int(status.partition(b"Tgid:")[2].split(None, 1)[0])


def to_int(register: int) -> int:
    """Return the lower 32 bits of a register as a signed C int."""
    low = register & (1 << INT_BITS) - 1
    return low - (1 << INT_BITS) if low >> (INT_BITS - 1) else low
