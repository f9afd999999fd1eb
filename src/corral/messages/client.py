"""A small MCP client over a pair of pipes: enough to list and to call the tools of a server."""

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from corral.errors import SandboxError

PROTOCOL = "2025-11-25"
ANSWER_SECONDS = 30.0
CHUNK = 65536


class ConversationError(SandboxError):
    """The server ended, was silent for too long, or sent something that is not MCP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a tool."""

    text: str
    error: bool


class Client:
    """Sends one request at a time; notifications and requests of the server are ignored."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader.fileno()
        self._writer = writer
        self._pending = b""
        self._number = 0

    def initialize(self) -> dict[str, object]:
        client = {"name": "corral", "version": "1"}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        result = self.request("initialize", params)
        self._send({"method": "notifications/initialized"})
        return result

    def list_tools(self) -> list[str]:
        listed = self.request("tools/list", {}).get("tools")
        if not isinstance(listed, list):
            raise ConversationError("the server lists no tools")
        return [str(tool.get("name")) for tool in listed if isinstance(tool, dict)]

    def call_tool(self, tool: str, arguments: Mapping[str, object]) -> Answer:
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        content = result.get("content")
        parts = content if isinstance(content, list) else []
        texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
        return Answer(text="\n".join(texts), error=result.get("isError") is True)

    def request(self, method: str, params: Mapping[str, object]) -> dict[str, object]:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number and "method" not in answer:
                break
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ConversationError(f"{method}: the server answered {answer.get('error')}")
        return result

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            self._writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self._writer.flush()
        except OSError as error:
            raise ConversationError("the server ended") from error

    def _receive(self, deadline: float) -> dict[str, object]:
        while b"\n" not in self._pending:
            self._wait(deadline)
            chunk = os.read(self._reader, CHUNK)
            if not chunk:
                raise ConversationError("the server ended")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConversationError(f"the server sent no JSON: {error}") from error
        return message if isinstance(message, dict) else {}

    def _wait(self, deadline: float) -> None:
        if sys.platform == "win32":
            return  # pipes cannot be polled there
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if not poll.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            raise ConversationError(f"the server was silent for {ANSWER_SECONDS:.0f} s")
