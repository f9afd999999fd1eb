"""Give the target a pipe of its own in place of a standard stream that it could misuse.

A target can open the file behind a stream again, by a path such as `/proc/self/fd/1`, and get more
rights than corral gave it. Landlock denies this for ordinary files, but not for unnamed pipes and
memfds. If another program has the same pipe, the target could write to that program's stdin, or
read what it writes to its stderr. The target could also shut down a socket that both have. So in
place of such a stream the target gets a pipe, and a process outside of the sandbox copies the data.
"""

from __future__ import annotations

import _socket
import os
import select
import stat
import struct
import sys
import time

from corral.abi import linux as abi
from corral.platforms import steps
from corral.record import record, replace

if sys.platform != "win32":
    import fcntl

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import NoReturn

    from corral.platforms.contract import Stdio

CHUNK = 1 << 16
END_SECONDS = 1.0
"""How long corral waits for the copying after the target has ended. The program that reads the copy
may be slow, or may not read at all.
"""
RETRY_MS = 10
ENDED = -1
"""A number that no process has, so that the directory of its descriptors cannot be read."""
F_SETPIPE_SZ, FIONREAD, SPLICE_F_NONBLOCK = 1031, 0x541B, 2
MSG_PEEK, MSG_DONTWAIT = 2, 0x40
SHAREABLE = ("pipe:", "socket:")


@record
class Relay:
    """The streams for the target. `ends` are the target's pipe ends, as long as this process has
    them open. `copying` lists the pids of the processes that copy.
    """

    stdio: Stdio
    ends: list[int]
    copying: list[int]

    def started(self) -> None:
        """Close this process's copies of the pipe ends that the target now has."""
        while self.ends:
            os.close(self.ends.pop())

    def release(self) -> None:
        """Wait until the target's last output is copied, but not longer than END_SECONDS. A copying
        process that needs longer goes on until it has written everything, or has no reader.
        """
        self.started()
        deadline = time.monotonic() + END_SECONDS
        for pid in self.copying:
            pidfd = os.pidfd_open(pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                os.waitpid(pid, 0)
            os.close(pidfd)


def relay(stdio: Stdio, *, files: bool, private: Collection[int]) -> Relay | None:
    """Start a copying process for each stream that the target must not have itself. Return None if
    the target may have all three streams.

    With `files`, regular files are replaced too. `private` lists the numbers of the streams that no
    other program has.
    """
    links = {number: _read_link(f"/proc/self/fd/{fd}") for number, fd in enumerate(stdio)}
    shareable = {
        number: link
        for number, link in links.items()
        if link.startswith(SHAREABLE) and number not in private and _may_be_misused(stdio[number])
    }
    chosen = _find_shared(shareable, stdio) if shareable else set()
    for number, link in links.items():
        if link.startswith("/memfd:") or (files and link and _is_file(stdio[number])):
            chosen.add(number)
    return _start_all(stdio, chosen) if chosen else None


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # the stream is closed


def _may_be_misused(fd: int) -> bool:
    """Return whether the target could misuse a shared pipe or socket. It cannot open a pipe again
    that belongs to another user, unless the pipe's mode allows it. It could shut down any socket.
    """
    seen = os.fstat(fd)
    if stat.S_ISSOCK(seen.st_mode):
        # A pipe cannot replace a socket that keeps messages apart.
        return _socket.socket(fileno=os.dup(fd)).type == _socket.SOCK_STREAM
    return seen.st_uid == os.geteuid() or bool(seen.st_mode & 0o077)


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _find_shared(streams: dict[int, str], stdio: Stdio) -> set[int]:
    """Return the numbers of the streams that another process has too: a process above corral, or a
    child of corral. `streams` maps the numbers to links such as `pipe:[123]`.

    Programs normally share a stream because a common parent gave it to them. So assume that all
    streams are shared if this parent may have ended, or if its streams cannot be read because it
    belongs to another user.
    """
    parent = os.getppid()
    if _is_orphan(parent):
        return set(streams)
    modes = {number: fcntl.fcntl(stdio[number], fcntl.F_GETFL) for number in streams}
    found: set[int] = set()
    for pid in _list_relatives():
        directory = f"/proc/{pid}/fd"
        try:
            names = os.listdir(directory)
        except OSError:
            if pid == 1:
                continue  # on most hosts PID 1 is root's, and has none of a client's streams
            return set(streams)
        for name in names:
            link = _read_link(f"{directory}/{name}")
            for number, own in streams.items():
                if link == own and _has_same_end(pid, name, modes[number]):
                    found.add(number)
        if len(found) == len(streams):
            break
    return found if os.getppid() == parent else set(streams)


def _is_orphan(parent: int) -> bool:
    """Return whether the process that started corral may have ended. Then PID 1 or the user's
    systemd is corral's parent, or the parent is in another session. Also return true if the parent
    is outside of this PID namespace.
    """
    if parent <= 1:
        return True
    try:
        name, _, rest = abi.read_file(f"/proc/{parent}/stat").rpartition(b")")
    except OSError:
        return True
    is_systemd = name.endswith(b"(systemd")
    return is_systemd or os.getsid(0) not in {os.getpid(), int(rest.split()[3])}


def _list_relatives() -> Iterator[int]:
    """Yield this process's children, and all processes above it. Yield ENDED if one of these has
    ended, because the processes above it are then unknown.
    """
    try:
        yield from map(int, abi.read_file(f"/proc/self/task/{os.getpid()}/children").split())
    except OSError:
        pass  # the kernel was built without this file
    pid = os.getppid()
    while pid:
        yield pid
        try:
            pid = int(abi.read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
        except OSError:
            yield ENDED
            return


def _has_same_end(pid: int, name: str, flags: int) -> bool:
    """Return whether a process has the same end of a pipe or socket as corral.

    Both ends of a pipe have the same link, but one is for reading and the other for writing. The
    client usually has the other end, which does not mean that it shares corral's end. `flags` are
    those of corral's descriptor. The ends of a socket have different links, so a socket with the
    same link is always the same end.
    """
    try:
        text = abi.read_file(f"/proc/{pid}/fdinfo/{name}")
    except OSError:
        return True
    theirs = int(text.partition(b"flags:")[2].split()[0], 8)
    return {flags & os.O_ACCMODE, theirs & os.O_ACCMODE} != {os.O_RDONLY, os.O_WRONLY}


def _start_all(stdio: Stdio, chosen: set[int]) -> Relay:
    streams, made = list(stdio), Relay(stdio=stdio, ends=[], copying=[])
    outputs: dict[tuple[int, int], int] = {}
    try:
        for number in sorted(chosen):
            if number == 0:
                streams[0] = _start(made, stdio[0], feeds=True)
                continue
            # If stdout and stderr are the same file, as after `2>&1`, use a single pipe for both.
            # With two pipes the order of the lines could change.
            seen = os.fstat(stdio[number])
            file = (seen.st_dev, seen.st_ino)
            if file not in outputs:
                outputs[file] = _start(made, stdio[number], feeds=False)
            streams[number] = outputs[file]
    except OSError:
        made.release()
        raise
    return replace(made, stdio=(streams[0], streams[1], streams[2]))


def _start(made: Relay, stream: int, *, feeds: bool) -> int:
    """Start a copying process. Return the target's end of its pipe."""
    read_end, write_end = os.pipe()
    ours, theirs = (write_end, read_end) if feeds else (read_end, write_end)
    pid = os.fork()
    if pid == 0:
        _copy(stream, ours, _feed if feeds else _drain)
    os.close(ours)
    made.ends.append(theirs)
    made.copying.append(pid)
    return theirs


def _copy(stream: int, pipe: int, copy: Callable[[int, int], None]) -> NoReturn:
    try:
        # Leave the terminal's session, so that Ctrl-C does not end this process: it still has to
        # write the target's last lines.
        os.setsid()
        steps.keep_only({stream, pipe})
        copy(stream, pipe)
    finally:
        os._exit(0)


def _drain(stream: int, pipe: int) -> None:
    """Copy the target's output from the pipe to the stream, until one of them is closed.

    Write whole lines if possible, and not more than the kernel writes at once. Otherwise lines of
    other programs could be written into the middle of a line.
    """
    waiting, writable = select.poll(), select.poll()
    waiting.register(pipe, select.POLLIN)
    waiting.register(stream, 0)  # reports only that the stream has no reader any more
    writable.register(stream, select.POLLOUT)
    while stream not in dict(waiting.poll()):
        chunk = os.read(pipe, CHUNK)
        if not chunk:
            return
        while chunk:
            end = len(chunk)
            if end > select.PIPE_BUF:
                end = chunk.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF
            try:
                chunk = chunk[os.write(stream, chunk[:end]) :]
            except BlockingIOError:  # another program has set O_NONBLOCK on the stream
                writable.poll()


def _feed(stream: int, pipe: int) -> None:
    """Copy data from the stream to the target's stdin. Take from the stream only what the target
    has read, because other programs may read the rest later, such as the next line of a script.

    The pipe has the size of one page. So it can be written to only after the target has read all of
    its content.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    fcntl.fcntl(pipe, F_SETPIPE_SZ, page)
    peek, take = _choose_source(stream, pipe, page)
    waiting, empty = select.poll(), select.poll()
    waiting.register(stream, select.POLLIN)
    waiting.register(pipe, 0)  # reports only that the target has closed its stdin
    empty.register(pipe, select.POLLOUT)
    count = 0  # bytes that were copied to the pipe, but not yet taken from the stream
    while True:
        is_closed = dict(empty.poll())[pipe] & select.POLLERR
        unread = struct.unpack("i", fcntl.ioctl(pipe, FIONREAD, bytes(4)))[0]
        take(count - unread)
        count = min(count, unread)
        if is_closed:
            return
        if unread:
            _shrink(pipe, page)
            continue
        if pipe in dict(waiting.poll()):
            return
        try:
            count = peek()
        except BlockingIOError:
            continue  # another program has read the data, or the target has filled the pipe
        if not count:
            return  # the stream has ended


def _shrink(pipe: int, page: int) -> None:
    """Set the pipe back to one page, because the target has enlarged it, and wait a moment."""
    try:
        fcntl.fcntl(pipe, F_SETPIPE_SZ, page)
    except OSError:
        pass  # it contains more than a page; try again when the target has read some of it
    select.poll().poll(RETRY_MS)


def _choose_source(
    stream: int, pipe: int, page: int
) -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return two functions. The first copies at most `page` bytes from the stream to the pipe, and
    returns the number of bytes. The second removes a number of bytes from the stream. It does not
    wait if another program has read them.
    """
    if _is_file(stream):
        return (
            lambda: os.write(pipe, os.pread(stream, page, os.lseek(stream, 0, os.SEEK_CUR))),
            lambda count: os.lseek(stream, count, os.SEEK_CUR),
        )
    if stat.S_ISSOCK(os.fstat(stream).st_mode):
        socket = _socket.socket(fileno=stream)
        return (
            lambda: os.write(pipe, socket.recv(page, MSG_PEEK | MSG_DONTWAIT)),
            lambda count: _discard(lambda left: len(socket.recv(left, MSG_DONTWAIT)), count),
        )
    null = os.open(os.devnull, os.O_WRONLY)
    return (
        lambda: abi.syscall("tee", stream, pipe, page, SPLICE_F_NONBLOCK),
        lambda count: _discard(
            lambda left: os.splice(stream, null, left, flags=SPLICE_F_NONBLOCK), count
        ),
    )


def _discard(remove: Callable[[int], int], count: int) -> None:
    """Call `remove` until it has removed `count` bytes, or there are none left."""
    try:
        while count > 0 and (removed := remove(count)):
            count -= removed
    except BlockingIOError:
        pass
