"""Record the paths in a target's system calls.

This module does not restrict the target: it lets every call with a path continue. Another thread of
the target can change a path between corral's read and the kernel's read, so the kernel may use a
different path from the recorded one. `corral learn` watches all calls with a path. Other runs watch
only calls that create files.
"""

from __future__ import annotations

import os
import sys
import time

from corral.platforms.linux import denied_starts
from corral.platforms.linux.notified_calls import (
    DENIED,
    LINKS,
    MEMORY,
    PATHS,
    WRITES,
    Decision,
    Given,
)

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.abi.linux_notifications import Notification
    from corral.platforms.linux.descriptor_channel import DescriptorChannel

    Access = tuple[str, bool]

MAX_PATHS = 20_000
MAX_CHARACTERS = 4 << 20
"""The maximum total number of characters in all paths. The target chooses the paths, and each of
them can be long.
"""
MAX_READ = 1000
"""The maximum number of created files whose paths corral reads outside `corral learn`."""
AT_FDCWD = (1 << 32) - 100
WORD = 0xFFFFFFFF
O_ACCMODE, O_CREAT, O_TRUNC = 3, 0o100, 0o1000
AF_UNIX, SOCK_NONBLOCK, SOCK_CLOEXEC = 1, 0o4000, 0o2000000
OPEN_FLAGS = {"open": 1, "openat": 2}
MAKES_DIRECTORY = ("mkdir", "mkdirat")
CONTINUED = Decision(verdict="continue")


class PathWatch:
    """Records for `corral learn` which paths, Unix sockets and memory the target asks for.

    - `seen` counts calls. The key is (path, whether the call writes).
    - `directories` contains the paths at which the target tried to make a directory.
    - `calls` counts all watched calls except `socket`.
    - `unreadable` counts calls whose path, or whose request for memory, could not be read.
    - `bound` is the first path to which the target tried to bind a Unix socket, or a text that says
      that the address was an abstract name.
    - `memory` is the most data, in bytes, that a process would have had if RLIMIT_DATA had not
      denied a request for memory. It is 0 if the limit denied nothing.
    - `seconds` is the total time that calls waited for this object.

    With `only_opens`, calls that only read metadata are not counted, because Landlock allows them.
    """

    def __init__(self, channel: DescriptorChannel, *, only_opens: bool = False) -> None:
        self.seen: dict[Access, int] = {}
        self.directories: set[str] = set()
        self.calls = 0
        self.unreadable = 0
        self.bound = ""
        self.memory = 0
        self.seconds = 0.0
        self._only_opens = only_opens
        self._left = MAX_CHARACTERS
        self._channel = channel
        self._sockets: list[int] = []

    def pause_seconds(self) -> float:
        return 0.0

    def decide(self, call: str, request: Notification) -> Decision:
        if call == "socket":
            is_unix = request.arguments[0] & WORD == AF_UNIX
            return self._give_socket(request.arguments[1]) if is_unix else DENIED
        started = time.monotonic()
        self.calls += 1
        try:
            if call == MEMORY:
                self.memory = max(self.memory, read_denied_memory(request))
            elif call == "connect":
                self._count_socket(request)
            elif call == "bind":
                self._note_bound(request)
            else:
                self._look(call, request)
        except (OSError, ValueError):
            self.unreadable += 1
        self.seconds += time.monotonic() - started
        return CONTINUED

    def _look(self, call: str, request: Notification) -> None:
        for path, is_write in read_accesses(call, request):
            if is_write or call in OPEN_FLAGS or not self._only_opens:
                self._count((path, is_write))
                if call in MAKES_DIRECTORY and (path, is_write) in self.seen:
                    self.directories.add(path)

    def _count_socket(self, request: Notification) -> None:
        if path := _read_unix_address(request):
            self._count((os.path.normpath(os.path.join("/", path)), False))

    def _give_socket(self, kind: int) -> Decision:
        """Give the target one end of a socket pair instead of a new Unix socket.

        This end is already connected, so the target's `connect` will fail, but corral can record
        the path in the call. The pair was made in the sandbox, because a pair that the supervisor
        made would belong to the host's network namespace.
        """
        self._sockets += self._channel.take("unix_socket")
        if not self._sockets:
            return DENIED
        given = os.dup(self._sockets[0])
        os.set_blocking(given, not kind & SOCK_NONBLOCK)
        flags = os.O_CLOEXEC if kind & SOCK_CLOEXEC else 0
        return Decision(verdict="answer", error=0, given=Given(fd=given, flags=flags))

    def _note_bound(self, request: Notification) -> None:
        path = _read_unix_address(request)
        if path is not None:
            self.bound = self.bound or path or "an abstract name"

    def _count(self, key: Access) -> None:
        if key not in self.seen:
            if len(self.seen) == MAX_PATHS or len(key[0]) > self._left:
                return
            self._left -= len(key[0])
        self.seen[key] = self.seen.get(key, 0) + 1


class CreationWatch:
    """Calls `then` for each call that creates a file, with the call's name and the file's path.

    The target's call does not wait for `then`. After MAX_READ calls no more paths are read.
    """

    def __init__(self, then: Callable[[str, str], None]) -> None:
        self._then = then
        self._left = MAX_READ

    def pause_seconds(self) -> float:
        return 0.0

    def decide(self, call: str, request: Notification) -> Decision:
        if self._left <= 0:
            return CONTINUED
        self._left -= 1
        try:
            ((path, _),) = read_accesses(call, request)
        except (OSError, ValueError):
            return CONTINUED
        return Decision(verdict="continue", then=lambda: self._then(call, path))


def _read_unix_address(request: Notification) -> str | None:
    """Return the path of a Unix address, or "" for an abstract address.

    Return None for an address of another family.
    """
    with denied_starts.Memory(request.pid) as memory:
        if memory.word(request.arguments[1]) & 0xFFFF != AF_UNIX:
            return None
        path = memory.string(request.arguments[1] + 2)[: request.arguments[2] - 2]
    return os.fsdecode(path)


def read_accesses(call: str, request: Notification) -> list[Access]:
    """Return (path, whether the call changes the file) for each path of a waiting call."""
    found = []
    with denied_starts.Memory(request.pid) as memory:
        for number, (position, directory) in enumerate(PATHS[call]):
            text = os.fsdecode(memory.string(request.arguments[position]))
            if text and not text.startswith("/"):
                text = os.path.join(_read_base(request, directory), text)
            if text.startswith("/"):
                is_source = call in LINKS and not number
                is_write = _is_write(call, request.arguments) and not is_source
                found.append((os.path.normpath(text), is_write))
    return found


def read_denied_memory(request: Notification) -> int:
    """Return 0 if RLIMIT_DATA allows this request for memory.

    Otherwise return how many bytes of data the process would have if it got the memory.
    """
    with open(f"/proc/{request.pid}/limits", encoding="ascii") as file:
        limit = next(line for line in file if line.startswith("Max data size")).split()[3]
    with open(f"/proc/{request.pid}/status", encoding="utf-8", errors="replace") as file:
        data = next(line for line in file if line.startswith("VmData:")).split()[1]
    wanted = int(data) * 1024 + request.arguments[1]
    return wanted if limit != "unlimited" and wanted > int(limit) else 0


def _read_base(request: Notification, directory: int) -> str:
    """Return the directory that a relative path starts from, as the target sees it.

    `directory` is the position of this directory's descriptor among the call's arguments, or -1 for
    the working directory.
    """
    fd = AT_FDCWD if directory < 0 else request.arguments[directory] & WORD
    name = "cwd" if fd == AT_FDCWD else f"fd/{fd}"
    return os.readlink(f"/proc/{request.pid}/{name}")


def _is_write(call: str, arguments: tuple[int, ...]) -> bool:
    if call in OPEN_FLAGS:
        flags = arguments[OPEN_FLAGS[call]]
        return bool(flags & O_ACCMODE or flags & (O_CREAT | O_TRUNC))
    return call in WRITES
