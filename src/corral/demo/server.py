"""A small MCP server that `corral demo` abuses: JSON-RPC 2.0, one message a line, over stdio.

It is a real server with tools like those of many others, and every tool really does what it says.
A tool that is stopped answers with the operating system's own words; none of them knows whether
there are walls around it.
"""

from __future__ import annotations

import json
import sys

from corral.demo import server_tools

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import IO

    Message = dict[str, object]

NAME = "corral-demo"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
BATCHING = "2025-03-26"
"""The only revision with JSON-RPC batches; the next one took them back."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
OUTCOME = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "what": {"type": "string"}},
    "required": ["done", "what"],
}


class Refused(Exception):  # noqa: N818 - becomes a JSON-RPC error object
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Server:
    """One conversation: before `initialize` it answers nothing but `ping`."""

    def __init__(self) -> None:
        self.version = ""

    def answer_line(self, line: bytes) -> object:
        """What is to be said to a line; None for a notification."""
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _failure(None, PARSE_ERROR, f"this is no JSON: {error}")
        if isinstance(message, list) and message and self.version == BATCHING:
            answers = [answer for item in message if (answer := self.answer(item)) is not None]
            return answers or None
        return self.answer(message)

    def answer(self, message: object) -> Message | None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _failure(None, INVALID_REQUEST, "this is no JSON-RPC 2.0 message")
        if "method" not in message and ("result" in message or "error" in message):
            return None  # an answer, and this server asks nothing
        method, number = message.get("method"), message.get("id")
        known = isinstance(number, str | int) and not isinstance(number, bool)
        if not isinstance(method, str) or ("id" in message and not known):
            return _failure(number if known else None, INVALID_REQUEST, "this is no request")
        if "id" not in message:
            return None
        try:
            result = self._result(method, message.get("params", {}))
        except Refused as refusal:
            return _failure(number, refusal.code, str(refusal))
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _result(self, method: str, params: object) -> Message:
        if not isinstance(params, dict):
            raise Refused(INVALID_PARAMS, "`params` is an object")
        if method == "ping":
            return {}
        if method == "initialize":
            return self._initialize(params)
        if method not in {"tools/list", "tools/call"}:
            raise Refused(METHOD_NOT_FOUND, f"there is no method {method}")
        if not self.version:
            raise Refused(INVALID_REQUEST, "`initialize` comes first")
        return {"tools": _listing()} if method == "tools/list" else _call(params)

    def _initialize(self, params: Message) -> Message:
        """The client's revision if it is known here, otherwise the newest one."""
        wanted = params.get("protocolVersion")
        if not isinstance(wanted, str):
            raise Refused(INVALID_PARAMS, "`protocolVersion` is missing")
        self.version = wanted if wanted in VERSIONS else VERSIONS[0]
        return {
            "protocolVersion": self.version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NAME, "version": "1"},
        }


def _listing() -> list[Message]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {
                "type": "object",
                "properties": {name: {"type": kind} for name, kind in tool.takes},
                "required": [name for name, _ in tool.takes],
            },
            "outputSchema": OUTCOME,
        }
        for tool in server_tools.TOOLS.values()
    ]


def _call(params: Message) -> Message:
    tool = server_tools.TOOLS.get(str(params.get("name")))
    if tool is None:
        raise Refused(INVALID_PARAMS, f"there is no tool {params.get('name')}")
    arguments = params.get("arguments", {})
    if not isinstance(arguments, dict) or not server_tools.fits(tool, arguments):
        raise Refused(INVALID_PARAMS, f"{tool.name} takes {dict(tool.takes)}")
    done, what = server_tools.attempt(tool, arguments)
    return {
        "content": [{"type": "text", "text": what}],
        "structuredContent": {"done": done, "what": what},
        "isError": not done,
    }


def _failure(number: object, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}


def serve(reader: IO[bytes], writer: IO[bytes]) -> None:
    server = Server()
    for line in reader:
        answer = server.answer_line(line) if line.strip() else None
        if answer is not None:
            try:
                writer.write(json.dumps(answer).encode() + b"\n")
            except BrokenPipeError:
                return  # nobody listens any more


if __name__ == "__main__":
    with open(1, "wb", buffering=0, closefd=False) as stdout:
        serve(sys.stdin.buffer, stdout)
