"""Talk to an MCP server over a pair of pipes: list its definitions and call its tools.

The client supports both handshakes of MCP: `initialize`, and the stateless `server/discover`.
"""

import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from corral.errors import SandboxError
from corral.messages.definitions import LISTS, list_items
from corral.messages.frames import FrameReader, Message, TooLong, decode, encode, id_key, kind_of

PROTOCOL = "2025-11-25"
STATELESS_PROTOCOL = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
CLIENT_INFO = {"name": "corral", "version": "1"}
MAX_ERROR_LENGTH = 1000
ANSWER_SECONDS = 30.0
CHUNK = 65536
MAX_MESSAGE_BYTES = 16 << 20
MAX_PAGES = 100
MAX_CONVERSATION_BYTES = 64 << 20
METHOD_NOT_FOUND = -32601


class ConversationError(SandboxError):
    """Raised if a server ends, is silent for too long, or sends data that is not MCP."""


class AnswerError(ConversationError):
    """Raised if a server answers with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    error: bool


class Client:
    """Sends one request at a time, ignores notifications and refuses the server's requests.

    `strays` counts the lines that are not JSON-RPC messages.
    """

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader.fileno()
        self._writer = writer
        self._frames = FrameReader(MAX_MESSAGE_BYTES)
        self._received: list[bytes | TooLong] = []
        self._number = 0
        self._bytes = 0
        self._meta: Message = {}
        self.strays = 0

    def connect(self) -> Message:
        """Send `initialize` or, if the server answers it with an error, `server/discover`. Return
        the server's description of itself.
        """
        try:
            return self.initialize()
        except AnswerError:
            self._meta = {
                f"{PREFIX}protocolVersion": STATELESS_PROTOCOL,
                f"{PREFIX}clientCapabilities": {},
                f"{PREFIX}clientInfo": CLIENT_INFO,
            }
            return {"protocolVersion": STATELESS_PROTOCOL, **self.request("server/discover", {})}

    def initialize(self) -> Message:
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": CLIENT_INFO}
        result = self.request("initialize", params)
        deadline = time.monotonic() + ANSWER_SECONDS
        self._send({"method": "notifications/initialized"}, deadline)
        return result

    def list_all(self, method: str) -> list[Message]:
        """Return the items on all pages of a list. Stop if the server answers with an error,
        because it may not support the method. Raise ConversationError if there are too many pages.
        """
        found: list[Message] = []
        params: Message = {}
        for _ in range(MAX_PAGES):
            try:
                page = self.request(method, params)
            except AnswerError:
                return found
            found += list_items(page, LISTS[method].field)
            params = {"cursor": page.get("nextCursor")}
            if not isinstance(params["cursor"], str):
                return found
        raise ConversationError(f"{method}: the list has more than {MAX_PAGES} pages")

    def call_tool(self, tool: str, arguments: Mapping[str, object]) -> Answer:
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        content = result.get("content")
        parts = content if isinstance(content, list) else []
        texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
        return Answer(text="\n".join(texts), error=result.get("isError") is True)

    def request(self, method: str, params: Mapping[str, object]) -> Message:
        self._number += 1
        meta = {"_meta": self._meta} if self._meta else {}
        deadline = time.monotonic() + ANSWER_SECONDS
        self._send({"id": self._number, "method": method, "params": {**params, **meta}}, deadline)
        while True:
            message = self._receive(deadline)
            kind = kind_of(message)
            if kind == "answer" and message.get("id") == self._number:
                break
            if kind == "request" and id_key(message["id"]) is not None:
                problem = {"code": METHOD_NOT_FOUND, "message": "this client has no methods"}
                self._send({"id": message["id"], "error": problem}, deadline)
            self.strays += kind is None
        result = message.get("result")
        if not isinstance(result, dict):
            text = str(message.get("error"))[:MAX_ERROR_LENGTH]
            raise AnswerError(f"{method}: the server answered {text}")
        return result

    def _send(self, message: Mapping[str, object], deadline: float) -> None:
        """Send a message. On POSIX systems, write it in pieces that are small enough never to block
        on a ready pipe. Otherwise a server that does not read its input could block corral.
        """
        frame = memoryview(encode({"jsonrpc": "2.0", **message}))
        try:
            if sys.platform == "win32":  # pipes cannot be polled there, so write without a deadline
                self._writer.write(frame)
                self._writer.flush()
                return
            while frame:
                self._wait(self._writer.fileno(), deadline, writable=True)
                frame = frame[os.write(self._writer.fileno(), frame[: select.PIPE_BUF]) :]
        except OSError as error:
            raise ConversationError("the server ended") from error

    def _receive(self, deadline: float) -> Message:
        """Return the next message, or an empty dict for a line that is not a message."""
        while not self._received:
            self._wait(self._reader, deadline)
            chunk = os.read(self._reader, CHUNK)
            if not chunk:
                raise ConversationError("the server ended")
            self._bytes += len(chunk)
            if self._bytes > MAX_CONVERSATION_BYTES:
                raise ConversationError(f"the server sent more than {MAX_CONVERSATION_BYTES} bytes")
            self._received += self._frames.feed(chunk)
        frame = self._received.pop(0)
        if isinstance(frame, TooLong):
            why = f"the server sent a line of {frame.size} bytes, more than {MAX_MESSAGE_BYTES}"
            raise ConversationError(why)
        try:
            message = decode(frame)
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}

    def _wait(self, descriptor: int, deadline: float, *, writable: bool = False) -> None:
        if sys.platform == "win32":
            return  # pipes cannot be polled there, so the read that follows has no deadline
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT if writable else select.POLLIN)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(int(left * 1000) + 1):
            raise ConversationError(f"the server did not answer within {ANSWER_SECONDS:.0f} s")
