"""Start servers with `corral.launch`. `fleet.Launched` runs this program in the virtual environment
that has corral. The program reads one call from each line of stdin, and prints one line with the
answer.
"""

from __future__ import annotations

import json
import sys

import fleet
import peers

import corral


def hold(running: list[corral.Sandbox], servers: list[list[str]]) -> list[int]:
    for argv in servers:
        sandbox = corral.launch(argv, stdin=corral.PIPE, stdout=corral.PIPE)
        running.append(sandbox)
        fleet.exchange(sandbox.stdin, sandbox.stdout, "initialize")
    return [sandbox.pid for sandbox in running]


def start(number: int) -> list[int]:
    null = corral.DEVNULL
    for _ in range(number):
        with corral.launch([peers.TARGET], stdin=null, stdout=null) as sandbox:
            if code := sandbox.wait():
                raise SystemExit(f"corral.launch: exit code {code}")
    return []


def ask(running: list[corral.Sandbox]) -> list[int]:
    for sandbox in running:
        fleet.exchange(sandbox.stdin, sandbox.stdout, "ping")
    return []


def main() -> int:
    running: list[corral.Sandbox] = []
    for line in sys.stdin:
        method, value = json.loads(line)
        if method == "hold":
            answer = hold(running, value)
        else:
            answer = start(value) if method == "start" else ask(running)
        print(json.dumps(answer), flush=True)
    for sandbox in running:
        sandbox.stdin.close()
    for sandbox in running:
        sandbox.wait()
        sandbox.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
