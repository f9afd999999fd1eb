"""Accept connections on a loopback port inside an AppContainer, and forward them over two pipes.

This inner end of the relay runs in the target's AppContainer, where a program can reach only ports
of the same container. The inner end is a separate program (`python -I -S -c <this source>`, frames
on stdin and stdout), so this file uses only the standard library. The inner end decides nothing,
because the target can take it over and send any frames. All checks are made by the outer end,
`outside.py`.

    frame   u8 kind, u8 0, u16 length, u32 stream, then `length` bytes; little-endian
    HELLO   inner -> outer, once: u16 port on which the inner end listens
    OPEN    inner -> outer: a new stream; its number is larger than all earlier numbers
    DATA    at most CHUNK bytes, and never more than the other side has given credit for
    CREDIT  u32: how many further bytes the other side may send on this stream
    END     no more DATA from this side
    RESET   the stream is closed in both directions

Each side starts with WINDOW bytes of credit for each stream, and returns credit for the bytes that
it has consumed, so a stream that is not read stops only its own sender. The thread that reads the
pipe never waits for anything else.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

HEADER = struct.Struct("<BBHI")
PORT = struct.Struct("<H")
NUMBER = struct.Struct("<I")
HELLO, OPEN, DATA, END, RESET, CREDIT = range(1, 7)
CHUNK = 1 << 15
WINDOW = 1 << 17
MAX_STREAMS = 128
LENGTHS = {
    HELLO: (2, 2),
    OPEN: (0, 0),
    DATA: (1, CHUNK),
    END: (0, 0),
    RESET: (0, 0),
    CREDIT: (4, 4),
}
LINGER_NOT = struct.pack("ii" if os.name == "posix" else "hh", 1, 0)


class ProtocolError(Exception):
    """The other side broke the protocol, so no more frames are accepted from it."""


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, 0, len(payload), stream) + payload


class Frames:
    """Splits bytes into whole frames. Raises ProtocolError for an invalid header."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._data += chunk
        at = 0
        try:
            while len(self._data) - at >= HEADER.size:
                kind, zero, length, stream = HEADER.unpack_from(self._data, at)
                low, high = LENGTHS.get(kind, (1, 0))
                if zero or not low <= length <= high:
                    raise ProtocolError(f"kind {kind}, length {length}")
                end = at + HEADER.size + length
                if len(self._data) < end:
                    return
                payload = bytes(self._data[at + HEADER.size : end])
                at = end
                yield kind, stream, payload
        finally:
            del self._data[:at]


def read_hello(reader: int) -> int:
    """Wait for the first frame, and return the port on which the inner end listens."""
    data = b""
    while len(data) < HEADER.size + PORT.size:
        chunk = os.read(reader, HEADER.size + PORT.size - len(data))
        if not chunk:
            raise OSError(0, "the network relay's process did not start")
        data += chunk
    for kind, stream, payload in Frames().feed(data):
        port = PORT.unpack(payload)[0] if (kind, stream) == (HELLO, 0) else 0
        if port:
            return int(port)
    raise ProtocolError("the first frame is not HELLO")


class Stream:
    """One connection. `recv` and `send` block, and raise OSError once the stream is reset."""

    def __init__(self, mux: Mux, number: int) -> None:
        self.number = number
        self._mux = mux
        self._changed = threading.Condition()
        self._arrived: deque[bytes] = deque()
        self._buffered = 0
        self._owed = 0
        self._credit = WINDOW
        self._ended = self._end_sent = self._gone = False

    def recv(self, timeout: float | None = None) -> bytes:
        """Return some bytes, or b"" at the end. Raise TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._arrived and not self._ended and not self._gone:
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or not self._changed.wait(left):
                    raise TimeoutError("no data arrived in time")
            if self._gone:
                raise ConnectionResetError("the stream was reset")
            if not self._arrived:
                return b""
            data = self._arrived.popleft()
            self._buffered -= len(data)
            self._owed += len(data)
            owed = self._owed if self._owed >= WINDOW // 4 and not self._ended else 0
            self._owed -= owed
        if owed:
            self._mux.write(frame(CREDIT, self.number, NUMBER.pack(owed)))
        return data

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._changed:
                while not self._credit and not self._gone:
                    self._changed.wait()
                if self._gone or self._end_sent:
                    raise ConnectionResetError("the stream was reset")
                size = min(len(view), self._credit, CHUNK)
                self._credit -= size
            self._mux.write(frame(DATA, self.number, bytes(view[:size])))
            view = view[size:]

    def end(self) -> None:
        """Close the sending direction. Data that has already been sent still arrives."""
        with self._changed:
            if self._end_sent or self._gone:
                return
            self._end_sent = True
            done = self._ended
        # Remove the stream before END is sent. The other side may open a new stream as soon as it
        # gets END. If the old stream still counted towards MAX_STREAMS, this side would refuse the
        # new one.
        if done:
            self._mux.forget(self)
        self._mux.write(frame(END, self.number))

    def reset(self) -> None:
        with self._changed:
            if self._gone or (self._ended and self._end_sent):
                return
        self.lost()
        self._mux.forget(self)
        self._mux.write(frame(RESET, self.number))

    def lost(self) -> None:
        """Mark the stream as closed, and wake the threads that wait for it."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def take(self, kind: int, payload: bytes) -> bool:
        """Handle a frame from the other side. Return whether both directions have now ended."""
        with self._changed:
            if kind == DATA:
                self._buffered += len(payload)
                if self._ended or self._buffered + self._owed > WINDOW:
                    raise ProtocolError("more data than the credit allows")
                self._arrived.append(payload)
            elif kind == CREDIT:
                self._credit += NUMBER.unpack(payload)[0]
                if self._credit > WINDOW:
                    raise ProtocolError("more credit than data was sent")
            elif kind == END:
                if self._ended:
                    raise ProtocolError("a second END")
                self._ended = True
            else:
                self._gone = True
            self._changed.notify_all()
            return self._gone or (self._ended and self._end_sent)


class Mux:
    """Carries many streams over two pipes. For each stream that the other side opens, it calls
    `arrived`, which must not block.
    """

    def __init__(
        self, reader: int, writer: int, *, arrived: Callable[[Stream], None] | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._arrived = arrived
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._closed = False
        self._free = threading.Semaphore(MAX_STREAMS)

    def write(self, data: bytes) -> None:
        """Write to the pipe, or raise OSError if the pipe is closed."""
        with self._writing:
            view = memoryview(data)
            while view:
                view = view[os.write(self._writer, view) :]

    def open(self) -> Stream:
        """Open a stream. Wait while MAX_STREAMS streams are open."""
        self._free.acquire()
        with self._writing:
            # Hold `_writing` from the choice of the number until OPEN is written, because the other
            # side accepts stream numbers only in ascending order.
            with self._lock:
                if self._closed:
                    raise ConnectionResetError("the relay is closed")
                self._last += 1
                stream = self._streams[self._last] = Stream(self, self._last)
            os.write(self._writer, frame(OPEN, stream.number))
        return stream

    def forget(self, stream: Stream) -> None:
        with self._lock:
            if self._streams.pop(stream.number, None) is not None:
                self._free.release()

    def run(self) -> None:
        """Handle frames until the pipe ends. Raise ProtocolError for a frame that breaks the
        protocol. In both cases close all streams.
        """
        frames = Frames()
        try:
            while chunk := self._read():
                for kind, number, payload in frames.feed(chunk):
                    self._take(kind, number, payload)
        finally:
            self._lose_all()

    def _read(self) -> bytes:
        try:
            return os.read(self._reader, 1 << 16)
        except OSError:
            return b""

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == OPEN:
            self._accept(number)
            return
        with self._lock:
            stream = self._streams.get(number)
            known = 0 < number <= self._last
        if kind == HELLO or not known:
            raise ProtocolError(f"unexpected frame of kind {kind} for stream {number}")
        # Ignore frames that still arrive for a stream that this side has reset or ended.
        if stream is not None and stream.take(kind, payload):
            self.forget(stream)

    def _accept(self, number: int) -> None:
        with self._lock:
            if self._arrived is None or number <= self._last or len(self._streams) >= MAX_STREAMS:
                raise ProtocolError(f"stream {number} cannot be opened")
            self._last = number
            stream = self._streams[number] = Stream(self, number)
        self._free.acquire(blocking=False)
        self._arrived(stream)

    def _lose_all(self) -> None:
        with self._lock:
            self._closed = True
            lost = list(self._streams.values())
        for stream in lost:
            stream.lost()
            self.forget(stream)


class Splice:
    """Copies bytes in both directions between a socket and a stream, until both directions have
    ended.
    """

    def __init__(self, end: socket.socket, stream: Stream) -> None:
        self.up = self.down = 0
        self._end = end
        self._stream = stream

    def run(self) -> None:
        back = threading.Thread(target=self._from_stream, daemon=True)
        back.start()
        self._from_socket()
        back.join()
        self._end.close()

    def _from_socket(self) -> None:
        try:
            while data := self._end.recv(CHUNK):
                self._stream.send(data)
                self.down += len(data)
            self._stream.end()
        except OSError:
            self._abort()

    def _from_stream(self) -> None:
        try:
            while data := self._stream.recv():
                self._end.sendall(data)
                self.up += len(data)
            self._end.shutdown(socket.SHUT_WR)
        except OSError:
            self._abort()

    def _abort(self) -> None:
        """Reset the stream and the socket. On some systems the thread for the other direction wakes
        up only if both are reset.
        """
        with suppress(OSError):  # the pipe may be closed too
            self._stream.reset()
        abort(self._end)


def abort(end: socket.socket) -> None:
    """Reset a connection, so that the peer does not see an orderly close."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        if sys.platform != "win32":
            end.shutdown(socket.SHUT_RD)
    end.close()


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform == "win32":
        # Without this option another program could bind the same port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(MAX_STREAMS)
    return listener


def _accept_all(listener: socket.socket, mux: Mux) -> None:
    while True:
        client, _ = listener.accept()
        try:
            stream = mux.open()
        except OSError:
            return
        threading.Thread(target=Splice(client, stream).run, daemon=True).start()


def main() -> None:
    mux = Mux(0, 1)
    listener = _listen()
    mux.write(frame(HELLO, 0, PORT.pack(listener.getsockname()[1])))
    threading.Thread(target=_accept_all, args=(listener, mux), daemon=True).start()
    try:
        mux.run()
    finally:
        # End without waiting for the threads, which may block in calls that cannot be interrupted.
        os._exit(0)


if __name__ == "__main__":
    main()
