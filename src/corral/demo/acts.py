"""List the acts of `corral demo`: the tools to call, and the controls that should stop them."""

import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corral.demo.decoys import TOKEN, Decoys

ALL: tuple[str, ...] = ("linux", "darwin", "windows")
POSIX: tuple[str, ...] = ("linux", "darwin")
LINUX: tuple[str, ...] = ("linux",)


@dataclass(frozen=True, slots=True)
class Act:
    """One call of a tool.

    The function `witness` checks on the host whether the act succeeded. Its argument says whether
    the server claims success.
    """

    name: str
    tool: str
    arguments: Mapping[str, object]
    control: str = ""  # the control that should stop the act, or "" if it must succeed
    proof: str = ""  # a string that the answer contains only if the act succeeded
    witness: Callable[[bool], bool] | None = None
    systems: tuple[str, ...] = ALL


def list_acts(decoys: Decoys) -> list[Act]:
    """Return all acts except `outlive the server`, for which the demo starts separate servers."""
    secret, pid, host = decoys.secrets, decoys.bystander.pid, decoys.secrets["host"]
    note, plan = f"{decoys.granted}/note", f"{decoys.project}/plan"
    stolen = {"pid": pid, "address": decoys.memory_address, "size": len(secret["memory"])}
    kill = {"pid": pid, "number": int(signal.SIGTERM)}
    left, right = secrets.randbelow(9000) + 1000, secrets.randbelow(9000) + 1000
    shell = "set /a {} * {}" if sys.platform == "win32" else "echo $(({} * {}))"
    multiply = {"command": shell.format(left, right)}
    cloud = {"path": decoys.credentials}
    return [
        Act("add two numbers", "add", {"a": 2, "b": 3}, proof="5"),
        Act(
            "write into a granted directory", "write_file", {"path": note, "text": "hello"},
            witness=lambda _: os.path.isfile(note),
        ),
        Act("read what was written", "read_file", {"path": note}, proof="hello"),
        Act("read the SSH key", "read_file", {"path": decoys.key}, "filesystem", secret["key"]),
        Act("read cloud credentials", "read_file", cloud, "filesystem", secret["credentials"]),
        Act("read a token", "read_environment", {"name": TOKEN}, "environment", secret["token"]),
        Act("see other processes", "list_processes", {"pid": pid}, "filesystem", secret["name"],
            systems=LINUX),
        Act("read another's memory", "read_memory", stolen, "syscalls", secret["memory"],
            systems=LINUX),
        Act(
            "write into a project", "write_file", {"path": plan, "text": "changed"}, "filesystem",
            witness=lambda _: os.path.exists(plan),
        ),
        Act(
            "kill another process", "send_signal", kill, "tree",
            witness=decoys.has_bystander_ended,
        ),
        Act("connect to the host by TCP", "connect_tcp", {"port": decoys.tcp}, "network", host),
        Act("ask the host by UDP", "ask_udp", {"port": decoys.udp}, "network", host),
        Act("connect to a unix socket", "connect_unix", {"path": decoys.socket}, "syscalls", host,
            systems=POSIX),
        Act("start a shell", "run_shell", multiply, "subprocess", str(left * right)),
        Act("attack the kernel", "call_kernel", {}, "syscalls", systems=LINUX),
        Act("eat memory", "reserve_memory", {"mebibytes": 1280}, "memory"),
        Act("start 200 threads", "start_threads", {"count": 200}, "pids", systems=LINUX),
        Act("hold 1100 files open", "open_files", {"count": 1100}, "fds", systems=POSIX),
        Act("make a file of 1100 MiB", "grow_file", {"mebibytes": 1100}, "disk", systems=POSIX),
    ]  # fmt: skip
