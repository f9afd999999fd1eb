"""Imitate a minifilter, a Windows driver that asks corral about a target's file accesses.

The fake driver checks the sizes of messages as the real one does. A socket pair connects it to
corral. Its type is SOCK_SEQPACKET, which delivers each message as a whole, as Windows's filter
manager does. The first byte of each packet identifies the call that it stands for: M is
FilterGetMessage, R is FilterReplyMessage, S is FilterSendMessage, and A is the answer to S.
"""

import queue
import socket
import struct
import threading

HEADER = struct.Struct("<IIQ")
SIZES = {50: 32, 100: 1072, 101: 24, 104: 40, 105: 16, 107: 24}
INVALID = b"A" + struct.pack("<i", -0x3FFFFFF3)
DONE = b"A" + struct.pack("<i", 0)


class Transport:
    """The client's end of the socket pair. Its methods imitate the functions of fltlib."""

    def __init__(self, end):
        self.end = end
        self.answers = queue.SimpleQueue()
        self.messages = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while packet := self.end.recv(1 << 16):
            (self.messages if packet[:1] == b"M" else self.answers).put(packet[1:])
        self.messages.put(None)
        self.answers.put(None)

    def send(self, message):
        self.end.send(b"S" + message)
        answer = self.answers.get(timeout=30)
        if answer is None:
            raise OSError(0, "the port is closed")
        (status,) = struct.unpack_from("<i", answer)
        if status < 0:
            raise OSError(0, "the parameter is wrong")

    def receive(self, room):
        message = self.messages.get(timeout=30)
        if message is None:
            raise EOFError
        assert len(message) <= room
        return message

    def reply(self, data):
        self.end.send(b"R" + data)

    def stop(self):
        self.messages.put(None)

    def close(self):
        self.end.shutdown(socket.SHUT_RDWR)
        self.reader.join()
        self.end.close()


class Driver:
    """The driver's end of the socket pair. `seen` lists the commands that the driver accepted.
    `ask` sends a message to the client and returns the client's reply.
    """

    def __init__(self):
        self.end, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.transport = Transport(client)
        self.seen = []
        self.replies = queue.SimpleQueue()
        self.number = 0
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while packet := self.end.recv(1 << 16):
            if packet[:1] == b"R":
                self.replies.put(packet[1:])
            else:
                self.end.send(self._command(packet[1:]))

    def _command(self, message):
        if len(message) < HEADER.size:
            return INVALID
        kind, size, _ = HEADER.unpack_from(message)
        # Like the driver, refuse a message that is shorter than its structure, or whose header
        # gives a wrong size.
        if len(message) < SIZES.get(kind, 1 << 30) or size != len(message):
            return INVALID
        self.seen.append(message)
        return DONE

    def send(self, message):
        self.number += 1
        self.end.send(b"M" + struct.pack("<I4xQ", 40, self.number) + message)

    def ask(self, message):
        self.send(message)
        reply = self.replies.get(timeout=30)
        status, number = struct.unpack_from("<i4xQ", reply)
        assert (status, number) == (0, self.number)
        return reply[16:]

    def decide(self, message):
        """Return the client's decision about a message, and how long the driver may cache it."""
        reply = self.ask(message)
        assert len(reply) >= 24
        return struct.unpack_from("<II", reply, 16)

    def close(self):
        self.end.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.end.close()


def text(value, units):
    return value.encode("utf-16-le").ljust(2 * units, b"\0")


def file_check(token, operation, path, destination="", access=0, request=7):
    body = struct.pack("<QIIIII", token, 11, 12, operation, 0, access)
    body += text(path, 520) + text(destination, 520) + bytes(4)
    return HEADER.pack(1, 16 + len(body), request) + body


def registry_check(token, operation, key, value="", request=7):
    body = struct.pack("<QIIIII", token, 11, 12, operation, 1, 4)
    body += text(key, 520) + text(value, 256) + bytes(4)
    return HEADER.pack(2, 16 + len(body), request) + body


def ping(version, time, request=7):
    return HEADER.pack(0, 32, request) + struct.pack("<I4xQ", version, time)
