"""Serve the tools that `corral demo` abuses: JSON-RPC 2.0 over stdio, one message per line.

If a wall stops a tool, the tool answers with the operating system's error. The tools do not check
whether they run in a sandbox.
"""

import errno
import json
import sys
from typing import TYPE_CHECKING

from corral.demo import server_tools

assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

Message = dict[str, object]

INFO = {"name": "corral-demo", "version": "1"}
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
BATCHING = "2025-03-26"  # the only revision of MCP with JSON-RPC batches

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
JSON_TYPES = {str: "string", int: "integer"}
OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "what": {"type": "string"}},
    "required": ["done", "what"],
}


class RequestError(Exception):
    """Raised to answer a request with a JSON-RPC error. The arguments are the error's code and
    message.
    """


class Server:
    """Answers one client. Before `initialize`, requests to list or call tools get an error."""

    def __init__(self) -> None:
        self.version = ""

    def answer_line(self, line: bytes) -> object:
        """Return the answer to a line, or None if the line (a notification) needs no answer."""
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            return _failure(None, PARSE_ERROR, f"this is not JSON: {error}")
        if isinstance(message, list) and message and self.version == BATCHING:
            return [answer for item in message if (answer := self.answer(item))] or None
        return self.answer(message)

    def answer(self, message: object) -> Message | None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return _failure(None, INVALID_REQUEST, "this is not a JSON-RPC 2.0 message")
        if "method" not in message and ("result" in message or "error" in message):
            return None  # ignore answers, because this server sends no requests
        method, number = message.get("method"), message.get("id")
        known = isinstance(number, str | int) and not isinstance(number, bool)
        if not isinstance(method, str) or ("id" in message and not known):
            return _failure(number if known else None, INVALID_REQUEST, "this is not a request")
        if "id" not in message:
            return None
        try:
            result = self._result(method, message.get("params", {}))
        except RequestError as error:
            return _failure(number, *error.args)
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _result(self, method: str, params: object) -> Message:
        if not isinstance(params, dict):
            raise RequestError(INVALID_PARAMS, "`params` must be an object")
        if method == "ping":
            return {}
        if method == "initialize":
            return self._initialize(params.get("protocolVersion"))
        if method not in {"tools/list", "tools/call"}:
            raise RequestError(METHOD_NOT_FOUND, f"there is no method {method}")
        if not self.version:
            raise RequestError(INVALID_REQUEST, "`initialize` has to be the first request")
        if method == "tools/list":
            return {"tools": [_describe(name) for name in server_tools.TOOLS]}
        return _call(str(params.get("name")), params.get("arguments", {}))

    def _initialize(self, wanted: object) -> Message:
        """Choose the MCP revision that the client wants, or the newest revision if this server does
        not know the wanted one.
        """
        if not isinstance(wanted, str):
            raise RequestError(INVALID_PARAMS, "`protocolVersion` is missing")
        self.version = wanted if wanted in VERSIONS else VERSIONS[0]
        return {"protocolVersion": self.version, "capabilities": {"tools": {}}, "serverInfo": INFO}


def _list_arguments(name: str) -> dict[str, str]:
    kinds = server_tools.TOOLS[name].__annotations__.items()
    return {argument: JSON_TYPES[kind] for argument, kind in kinds if argument != "return"}


def _describe(name: str) -> Message:
    arguments = _list_arguments(name)
    return {
        "name": name,
        "description": server_tools.TOOLS[name].__doc__,
        "inputSchema": {
            "type": "object",
            "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
            "required": list(arguments),
        },
        "outputSchema": OUTPUT_SCHEMA,
    }


def _call(name: str, arguments: object) -> Message:
    if name not in server_tools.TOOLS:
        raise RequestError(INVALID_PARAMS, f"there is no tool {name}")
    given = arguments if isinstance(arguments, dict) else {"": arguments}
    kinds = {key: JSON_TYPES.get(type(value)) for key, value in given.items()}
    if kinds != _list_arguments(name):
        raise RequestError(INVALID_PARAMS, f"{name} takes {_list_arguments(name)}")
    done = False
    try:
        what = server_tools.TOOLS[name](**given)
        done = True
    except OSError as error:
        kind = errno.errorcode.get(error.errno or 0, type(error).__name__)
        what = f"{kind}: {error.strerror or error}"
    except (ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
    return {
        "content": [{"type": "text", "text": what}],
        "structuredContent": {"done": done, "what": what},
        "isError": not done,
    }


def _failure(number: object, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}


if __name__ == "__main__":
    server = Server()
    with open(1, "wb", buffering=0, closefd=False) as stdout:
        for line in sys.stdin.buffer:
            answer = server.answer_line(line) if line.strip() else None
            if answer is not None:
                try:
                    stdout.write(json.dumps(answer).encode() + b"\n")
                except BrokenPipeError:
                    break  # the client has ended
