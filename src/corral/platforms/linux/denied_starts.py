"""Record the names of the programs that a target was not allowed to start.

Usually a target calls `fork` before it names the program in a call of `execve`. The `fork` is
denied, so corral guesses the name from the program's arguments, which are already on the calling
thread's stack. No decision depends on this guess. corral keeps only the name, because the arguments
can contain secrets.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from corral.network.budgets import RateLimit
from corral.platforms.linux.notified_calls import Decision
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import Self

    from corral.abi.linux_notifications import Notification
    from corral.denials.records import Denials

FLAG = "--allow-subprocess"
MAX_NAMED = 64
"""The maximum number of starts for which the supervisor searches for the program's name."""
BURST, RATE = 64, 64
"""The rate limit for answering starts: a burst of BURST starts, and then RATE starts per second.
Further starts wait, which does not cost CPU time.
"""
PAGE = 4096
STACK_BYTES = 8 * PAGE
STACK_TRIES, STACK_RETRY_SECONDS = 8, 0.0005
MAX_WORDS = 32
MAX_READS, MAX_PAGES = 8192, 256
"""The maximum numbers of reads and of copied pages for one start. Without these bounds a target
could keep the supervisor busy with a stack full of pointers.
"""
MAX_NAME_LENGTH = 64
MAX_STRING = 1024
LOWEST_ADDRESS, HIGHEST_ADDRESS = 1 << 16, 1 << 47
MARKS = (b"-", b"/", b" ", b".")
CLONE_VFORK = 0x4000


class DeniedStarts:
    def __init__(self, denials: Denials) -> None:
        self._denials = denials
        self._rate_limit = RateLimit(time.monotonic, burst=BURST, rate=RATE)
        self._left = MAX_NAMED
        self._vforked = 0

    def pause_seconds(self) -> float:
        return self._rate_limit.pause_seconds()

    def decide(self, call: str, request: Notification) -> Decision:
        self._rate_limit.use()
        # Python calls vfork and, because that is denied, then fork. Count both calls as one start.
        is_vfork = _is_vfork(call, request.arguments)
        again = not is_vfork and request.pid == self._vforked
        self._vforked = request.pid if is_vfork else 0
        if again:
            return Decision(verdict="deny")
        name = self._name(call, request)
        guessed = not call.startswith("exec")
        destination = name or f"a process by {_read_comm(request.pid)}"

        def record() -> None:
            self._denials.add("start", destination, allow=FLAG, guessed=guessed and bool(name))

        return Decision(verdict="deny", then=record)

    def _name(self, call: str, request: Notification) -> str:
        if self._left <= 0:
            return ""
        self._left -= 1
        try:
            with Memory(request.pid) as memory:
                if call == "execve":
                    return _base_name(memory.string(request.arguments[0]))
                if call == "execveat":
                    return _base_name(memory.string(request.arguments[1]))
                return guess_name(memory, request.pid)
        except (OSError, ValueError):
            return ""


class Memory:
    """The memory of a waiting thread, read in whole pages."""

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._pages: dict[int, bytes] = {}
        self._reads = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def word(self, address: int) -> int:
        page = self._page(address - address % PAGE)
        at = address % PAGE
        return int(struct.unpack_from("=Q", page, at)[0]) if len(page) >= at + 8 else 0

    def string(self, address: int) -> bytes:
        """Return the string from `address` to the next zero byte, or b"" if there is none."""
        found = b""
        while len(found) < MAX_STRING and LOWEST_ADDRESS <= address < HIGHEST_ADDRESS:
            at = address % PAGE
            part, ended, _ = self._page(address - at)[at:].partition(b"\0")
            found += part
            if ended:
                return found
            if not part:
                break
            address += len(part)
        return b""

    def _page(self, start: int) -> bytes:
        self._reads += 1
        if self._reads > MAX_READS or len(self._pages) > MAX_PAGES:
            raise ValueError("the search for the program's name would read too much memory")
        if start not in self._pages:
            try:
                self._pages[start] = os.pread(self._fd, PAGE, start)
            except (OSError, OverflowError):
                self._pages[start] = b""
        return self._pages[start]


def _is_vfork(call: str, arguments: tuple[int, ...]) -> bool:
    """Return whether libc's vfork() made this call.

    On machines without the system call vfork, libc's vfork() calls clone without a new stack.
    posix_spawn also calls clone, but passes a stack for the new process.
    """
    by_clone = call == "clone" and arguments[0] & CLONE_VFORK and not arguments[1]
    return call == "vfork" or bool(by_clone)


def guess_name(memory: Memory, pid: int) -> str:
    """Guess the program's name from a list of arguments that the thread's stack points to.

    Return "" if there is no such list. The memory of libraries also contains lists of words that
    look like arguments, so prefer a list with a path or an option. Accept only ASCII names, because
    random memory can be valid UTF-8.
    """
    stack = _read_stack_pointer(pid)
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        own = file.read().rstrip(b"\0").split(b"\0")
    tried: set[int] = set()
    weak = ""
    for at in range(stack & ~7, (stack & ~7) + STACK_BYTES, 8):
        vector = memory.word(at)
        if vector % 8 or vector in tried or not LOWEST_ADDRESS <= vector < HIGHEST_ADDRESS:
            continue
        tried.add(vector)
        words = _words(memory, vector)
        name = _common_name(words) if words and words != own[: len(words)] else ""
        if name and name.isascii():
            if b"/" in words[0] or any(mark in word for word in words[1:] for mark in MARKS):
                return name
            weak = weak or name
    return weak


def _read_stack_pointer(pid: int) -> int:
    """Read the stack pointer of a sleeping thread.

    Raise ValueError if the thread is not yet asleep, or if a signal has woken it up.
    """
    for _ in range(STACK_TRIES):
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            words = file.read().split()
        if len(words) > 2:
            return int(words[-2], 16)
        time.sleep(STACK_RETRY_SECONDS)
    raise ValueError("the thread is not asleep")


def _words(memory: Memory, vector: int) -> list[bytes]:
    """Return the strings in a list of pointers, or [] if one of them is not text."""
    found: list[bytes] = []
    for position in range(MAX_WORDS):
        pointer = memory.word(vector + 8 * position)
        if pointer == 0:
            return found
        text = memory.string(pointer)
        if not text or not _is_text(text):
            return []
        found.append(text)
    return found  # of a longer list, only the first MAX_WORDS strings are read


def _is_text(raw: bytes) -> bool:
    try:
        return "".join(raw.decode().split()).isprintable()
    except ValueError:
        return False


def _common_name(words: list[bytes]) -> str:
    """Return the name of the program that a list of words would start.

    Usually the words are the program's arguments, and the first is the program itself. They can
    also be the paths that Python tries, one for each directory in PATH, which all end in the
    program's name. Return "" if the words are environment variables.
    """
    names = {_base_name(word) for word in words}
    if len(names) == 1 and len(words) > 1 and all(word.startswith(b"/") for word in words):
        return names.pop()
    if all(b"=" in word for word in words):
        return ""
    return _base_name(words[0])


def _base_name(path: bytes) -> str:
    name = os.fsdecode(path.rpartition(b"/")[2])
    plain = name and len(name) <= MAX_NAME_LENGTH and not any(c.isspace() for c in name)
    return printable(name) if plain else ""


def _read_comm(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return printable(os.fsdecode(file.read().strip()))
    except OSError:
        return "the target"
