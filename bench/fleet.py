"""Run many servers at once, with `corral run`, with `corral.launch` or without corral.

A fleet is a number of servers that run at once. Each kind of fleet has the same four methods.
`hold` starts servers that keep running, and `close` ends them. `ask` sends a request to every
running server and waits for the answer. `start` runs a number of short programs in the same way,
one after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Protocol

import counters
import peers
import processes

AT_ONCE = 10
"""How many servers are started before the fleet waits for their first answers."""
HOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launched.py")
Roles = dict[str, list[int]]


class Fleet(Protocol):
    def hold(self, servers: Sequence[Sequence[str]]) -> Roles: ...
    def start(self, number: int) -> None: ...
    def ask(self) -> None: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def closing(fleet: Fleet) -> Iterator[Fleet]:
    try:
        yield fleet
    finally:
        fleet.close()


class Commands:
    """Start each server as a process. If `wrapper` is not empty, put it in front of the server's
    command.
    """

    def __init__(self, wrapper: Sequence[str], options: Mapping[str, object]) -> None:
        self._wrapper = wrapper
        self._options = options
        self._running: list[subprocess.Popen[bytes]] = []

    def hold(self, servers: Sequence[Sequence[str]]) -> Roles:
        for first in range(0, len(servers), AT_ONCE):
            started = [self._popen(argv) for argv in servers[first : first + AT_ONCE]]
            self._running += started
            for process in started:
                exchange(process.stdin, process.stdout, "initialize")
        if not self._wrapper:
            return {"targets": [process.pid for process in self._running]}
        roles: Roles = {"supervisors": [], "inits": [], "targets": []}
        for process in self._running:
            for role, pid in zip(roles, (process.pid, *counters.tree(process.pid)), strict=False):
                roles[role].append(pid)
        return roles

    def start(self, number: int) -> None:
        for _ in range(number):
            process = self._popen([peers.TARGET], stdin=subprocess.DEVNULL)
            if code := _wait(process):
                raise SystemExit(f"{' '.join(process.args)}: exit code {code}")

    def ask(self) -> None:
        for process in self._running:
            exchange(process.stdin, process.stdout, "ping")

    def close(self) -> None:
        """End every server by closing its input, as clients do."""
        for process in self._running:
            if process.stdin:
                process.stdin.close()
        for process in self._running:
            _wait(process)
        self._running = []

    def _popen(self, argv: Sequence[str], stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._wrapper, *argv], stdin=stdin, stdout=subprocess.PIPE, bufsize=0, **self._options
        )  # type: ignore[call-overload,no-any-return]


class Launched:
    """Start all servers with `corral.launch` in one separate process, which runs `launched.py`."""

    def __init__(self, python: Sequence[str], options: Mapping[str, object]) -> None:
        self._holder = subprocess.Popen(
            [*python, HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
        )  # type: ignore[call-overload]

    def hold(self, servers: Sequence[Sequence[str]]) -> Roles:
        targets = self._call("hold", [list(argv) for argv in servers])
        inits = [processes.parent(pid) for pid in targets]
        supervisors = [processes.parent(pid) for pid in inits]
        zygotes = sorted({processes.parent(pid) for pid in supervisors})
        return {
            "the launching process": [self._holder.pid],
            "zygotes": zygotes,
            "supervisors": supervisors,
            "inits": inits,
            "targets": targets,
        }

    def start(self, number: int) -> None:
        self._call("start", number)

    def ask(self) -> None:
        self._call("ask", None)

    def close(self) -> None:
        self._holder.communicate()

    def _call(self, method: str, value: object) -> list[int]:
        self._holder.stdin.write(json.dumps([method, value]).encode() + b"\n")
        self._holder.stdin.flush()
        line = self._holder.stdout.readline()
        if not line:
            raise SystemExit(f"the launching process ended in `{method}`")
        answer: list[int] = json.loads(line)
        return answer


def exchange(stdin: IO[bytes] | None, stdout: IO[bytes] | None, method: str) -> None:
    """Send one request and wait for its answer."""
    assert stdin
    assert stdout
    client = {"name": "bench", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    asked = {"jsonrpc": "2.0", "id": 1, "method": method}
    messages: list[dict[str, object]] = [{**asked, "params": params}]
    if method == "initialize":
        messages.append({"jsonrpc": "2.0", "method": "notifications/initialized"})
    else:
        messages = [asked]
    stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    stdin.flush()
    if b"result" not in (line := stdout.readline()):
        print(f"a server answered {line!r} to {method}", file=sys.stderr)
        raise SystemExit(1)


def _wait(process: subprocess.Popen[bytes]) -> int:
    if process.stdout:
        process.stdout.close()
    return process.wait()
