"""Write a message to a stream without waiting for a reader, even if the stream is full.

To ask by poll whether the stream has room is not enough. The target uses the same stderr, and may
fill it after the poll and before the message is written.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

NOT_OFFERED = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))
RWF_NOWAIT = 8
"""`os` lacks this constant if Python was built on an older system."""


def write_at_once(fd: int, data: bytes) -> bool:
    """Write as much as the stream accepts at once. Return whether all data was written."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.write(fd, data) == len(data)
    try:
        if sys.platform == "linux":
            return _write_linux(fd, data) == len(data)
        return _write_if_ready(fd, data) == len(data)
    except BlockingIOError:
        return False


def _write_if_ready(fd: int, data: bytes) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    done = 0
    while done < len(data) and poll.poll(0):
        done += os.write(fd, data[done : done + select.PIPE_BUF])
    return done


if sys.platform == "linux":

    def _write_linux(fd: int, data: bytes) -> int:
        """Write with the flag RWF_NOWAIT, which pipes and sockets support since Linux 6.5.

        Where it is not supported, write through a non-blocking descriptor.
        """
        try:
            return os.pwritev(fd, [data], -1, RWF_NOWAIT)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NOT_OFFERED:
                raise
        try:
            # Open the stream again, to get a descriptor with an O_NONBLOCK of its own. On `fd`
            # itself, O_NONBLOCK would also affect the other processes that share it.
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            # A socket, or another user's terminal, cannot be opened again.
            return _write_if_ready(fd, data)
        try:
            return os.write(own, data)
        finally:
            os.close(own)
