"""Pass messages between client and server through the MCP guard, with a pipe and a thread for each
direction.

A run without a guard does not import this module, and its target inherits the client's streams.

The supervisor's other work during a run is done in one loop, that of the watcher. This loop cannot
pass messages, because it uses poll, but the client's streams may be files, terminals or Windows
pipes, which cannot be polled. These streams cannot be made non-blocking either, because other
processes share them.
"""

from __future__ import annotations

import _thread
import json
import os
import select
import sys
from typing import cast

from corral.messages.frames import FrameReader
from corral.messages.guard import Call, Guard, Routed
from corral.messages.rules import Rules
from corral.plan.model import Held
from corral.policy.model import format_amount
from corral.policy.variables import is_secret_name, masked
from corral.safe_text import MASK
from corral.supervisor.secret_values import hide_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from corral.denials.records import Denials, Hide, Kind
    from corral.messages.definitions import Pin
    from corral.messages.frames import TooLong
    from corral.messages.rules import Refusal
    from corral.plan.model import Plan
    from corral.policy.model import Mcp

    Judge = Callable[[bytes | TooLong], Routed]

CHUNK = 1 << 16
PIPE_BUF = 512
"""A pipe that is ready accepts at least this many bytes without blocking, on every POSIX system."""
STACK_BYTES = 1 << 24
"""The stack size of the threads. JSON is parsed recursively, and musl's default of 128 KiB is too
small for that.
"""
MAX_LATE_ANSWERS = 64
"""The number of refusals from the guard that may wait for a server to read them. Further refusals
are dropped.
"""
STALLED_SECONDS = 1.0
"""After the target ends, corral waits this long for a client that has stopped reading. Then the
remaining messages are dropped.
"""
MAX_ARGUMENTS_LENGTH = 2000
TABLES = ("tools", "prompts", "resources")


class MessageRelay:
    """Passes messages between client and server, until the watcher calls `close`. `stdio` contains
    the streams for the target.
    """

    def __init__(self, plan: Plan, mcp: Mcp, stdio: tuple[int, int, int]) -> None:
        self._plan, self._mcp = plan, mcp
        read_end, to_server = os.pipe()
        from_server, write_end = os.pipe()
        self.stdio = (read_end, write_end, stdio[2])
        self._from_client, self._from_server = os.dup(stdio[0]), from_server
        self._to_client, self._to_server = Sink(os.dup(stdio[1])), Sink(to_server)
        self._stderr = os.dup(stdio[2])
        self._lock = _thread.allocate_lock()
        self._answered = _thread.allocate_lock()
        self._late = 0
        self._guard: Guard | None = None

    def close_target_ends(self) -> None:
        for fd in self.stdio[:2]:
            os.close(fd)

    def start(self, denials: Denials) -> None:
        mcp = self._mcp
        describe = (
            describe_arguments(hide_values(self._plan)) if mcp.audit_arguments else lambda _: ""
        )
        self._guard = guard = Guard(
            make_rules(mcp, self._plan.pins),
            Reporter(denials, refuses=mcp.pins == "refuse"),
            max_pending=mcp.max_pending or sys.maxsize,
            describe_arguments=describe,
        )
        size = mcp.max_message or sys.maxsize
        _thread.stack_size(STACK_BYTES)
        self._answered.acquire()
        _thread.start_new_thread(self._pass_requests, (guard, FrameReader(size)))
        _thread.start_new_thread(self._pass_answers, (guard, FrameReader(size)))

    def fileno(self) -> int:
        return -1

    def deadline(self) -> None:
        return None

    def run_ready(self) -> None:
        """Do nothing, because the threads do the work."""

    def close(self) -> None:
        """After the target ends, wait until the client has read everything or stops reading."""
        if self._guard is None:
            return
        written = -1
        while written != self._to_client.written:
            written = self._to_client.written
            if self._answered.acquire(timeout=STALLED_SECONDS):
                break
        with self._lock:
            self._guard.end()

    def _pass_requests(self, guard: Guard, frames: FrameReader) -> None:
        try:
            self._pass(self._from_client, frames, guard.from_client, self._to_server)
        finally:
            self._to_server.close()

    def _pass_answers(self, guard: Guard, frames: FrameReader) -> None:
        try:
            self._pass(self._from_server, frames, guard.from_server, self._to_client)
        finally:
            self._to_client.close()
            self._answered.release()

    def _pass(self, source: int, frames: FrameReader, judge: Judge, sink: Sink) -> None:
        """Pass frames from `source` through the guard to `sink`, until one of the two closes. Then
        close `source`. A frame is a message or any other line.
        """
        with open(source, "rb", buffering=0) as stream:
            while chunk := _read(stream.fileno()):
                if not self._send([self._judge(judge, one) for one in frames.feed(chunk)], sink):
                    return
            if (rest := frames.end()) is not None:
                self._send([self._judge(judge, rest)], sink)

    def _judge(self, judge: Judge, frame: bytes | TooLong) -> Routed:
        with self._lock:
            return judge(frame)

    def _send(self, routed: Sequence[Routed], sink: Sink) -> bool:
        """Send messages to `sink`, the guard's answers back to the sender, and a server's other
        output to stderr. Return whether `sink` still has a reader.
        """
        if aside := b"".join(one.aside for one in routed):
            write_if_ready(self._stderr, aside)
        if back := b"".join(one.back for one in routed):
            self._answer(back, sink)
        onward = b"".join(one.onward for one in routed)
        return not onward or sink.write(onward)

    def _answer(self, back: bytes, sink: Sink) -> None:
        """Answer the sender of a message.

        Answers to a server are written by separate threads, because a server that writes without
        reading would block this thread, and then the client would get nothing.
        """
        if sink is self._to_server:
            self._to_client.write(back)
            return
        with self._lock:
            if self._late >= MAX_LATE_ANSWERS:
                return
            self._late += 1
        _thread.start_new_thread(self._answer_server, (back,))

    def _answer_server(self, back: bytes) -> None:
        self._to_server.write(back)
        with self._lock:
            self._late -= 1


class Sink:
    """A descriptor that several threads write to. `written` is the number of bytes written so far.
    If this number does not grow during a write, the reader has stopped reading.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = _thread.allocate_lock()
        self.written = 0

    def write(self, content: bytes) -> bool:
        """Write all bytes. Return False if the descriptor has no reader or is closed."""
        view = memoryview(content)
        with self._lock:
            try:
                while view and self._fd >= 0:
                    count = os.write(self._fd, view[:CHUNK])
                    self.written += count
                    view = view[count:]
            except OSError:
                return False
            return self._fd >= 0

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


class Reporter:
    """Records the guard's decisions in the list of denials and in the audit file."""

    def __init__(self, denials: Denials, *, refuses: bool) -> None:
        self._denials = denials
        self._refuses = refuses

    def deny(self, refusal: Refusal) -> None:
        kind = cast("Kind", refusal.kind)
        self._denials.add(kind, refusal.what, allow=refusal.allow, why=refusal.rule)

    def log(self, call: Call) -> None:
        values: dict[str, str | int] = {
            "tool": call.tool,
            "outcome": call.outcome,
            "sent_bytes": call.sent,
            "received_bytes": call.received,
            "milliseconds": round(call.seconds * 1000),
        }
        if call.arguments:
            values["arguments"] = call.arguments
        self._denials.log("call", **values)

    def change(self, kind: str, name: str, text: str) -> None:
        what = f"{kind} {name or 'of the server'}"
        if self._refuses:
            self._denials.add(cast("Kind", kind), name or "of the server", why=f"mcp.pins: {text}")
        else:
            # A change without a name concerns the server's instructions, so the verb is plural.
            verb = "differs from its" if name else "differ from their"
            self._denials.note(f"{what} {verb} pin: {text}")
            self._denials.log("changed", what=what, why=text)


def make_rules(mcp: Mcp, pins: Iterable[Pin] | None) -> Rules:
    return Rules(
        allow={name: getattr(mcp, f"{name}_allow") for name in TABLES},
        deny={name: getattr(mcp, f"{name}_deny") for name in TABLES},
        requests=mcp.requests,
        pins=pins,
        refuse_changes=mcp.pins == "refuse",
    )


def describe_guard(mcp: Mcp) -> Held:
    """Return the row of the message guard for the list of a run's controls."""
    asked = []
    for name in TABLES:
        allow: tuple[str, ...] | None = getattr(mcp, f"{name}_allow")
        deny: tuple[str, ...] = getattr(mcp, f"{name}_deny")
        words = "" if allow is None else (", ".join(allow) or "none")
        words += f" not {', '.join(deny)}" if deny else ""
        asked += [f"{name} {words.strip()}"] if words else []
    asked.append(f"requests {', '.join(mcp.requests) or 'none'}")
    asked += [f"pins {mcp.pins}"] if mcp.pins != "off" else []
    asked.append(f"{format_amount('size', mcp.max_message)} a message")
    return Held(
        control="messages", asked="; ".join(asked), stated=True, mechanism="relay", status="applied"
    )


def describe_arguments(hide: Hide) -> Callable[[object], str]:
    """Return a function that describes the arguments of a tool call in a short string. Secrets are
    masked with `hide`.
    """

    def describe(arguments: object) -> str:
        text = ""
        for piece in _format(arguments, hide):
            text += piece
            if len(text) >= MAX_ARGUMENTS_LENGTH:
                break  # do not format long arguments to the end
        return text[:MAX_ARGUMENTS_LENGTH]

    return describe


def _format(value: object, hide: Hide) -> Iterator[str]:
    """Yield the JSON text of a value in pieces, with secrets masked."""
    before = ""
    if isinstance(value, dict):
        yield "{"
        for key, inner in value.items():
            yield f"{before}{_format_text(key, hide)}: "
            yield from _format(MASK if is_secret_name(key) else inner, hide)
            before = ", "
        yield "}"
    elif isinstance(value, list):
        yield "["
        for inner in value:
            yield before
            yield from _format(inner, hide)
            before = ", "
        yield "]"
    else:
        yield _format_text(value, hide) if isinstance(value, str) else json.dumps(value)


def _format_text(text: str, hide: Hide) -> str:
    """Return a string as JSON. Mask the run's secrets, and anything that looks like a secret, such
    as the password in a URL.
    """
    return json.dumps(masked((hide(text[:MAX_ARGUMENTS_LENGTH])[0],))[0])


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:
        return b""


def write_if_ready(fd: int, content: bytes) -> None:
    """Write as much as the reader accepts without waiting, and drop the rest, because a client that
    does not read stderr must not delay the messages between client and server.

    On Windows this can block, because Windows does not report whether a pipe has room.
    """
    try:
        while content and _is_ready(fd):
            content = content[os.write(fd, content[:PIPE_BUF]) :]
    except OSError:
        pass  # the pipe has no reader


def _is_ready(fd: int) -> bool:
    if sys.platform == "win32":
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
