"""The acts of `corral demo`: what the server is asked to do, and which control has to stop it."""

import os
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corral.demo.decoys import TOKEN, Decoys


@dataclass(frozen=True, slots=True)
class Act:
    """One call of a tool. `control` is empty for an act that has to work.

    `proof` is text that only the host knows. `witness` gets whether the server claims success, and
    returns whether the host saw it happen.
    """

    name: str
    tool: str
    arguments: Mapping[str, object]
    control: str = ""
    proof: str = ""
    witness: Callable[[bool], bool] | None = None


def list_acts(decoys: Decoys) -> list[Act]:
    """Return all acts but `outlive the server`, which needs servers of its own."""
    secret, pid, host = decoys.secrets, decoys.bystander.pid, decoys.secrets["host"]
    note, plan = f"{decoys.granted}/note", f"{decoys.project}/plan"
    stolen = {"pid": pid, "address": decoys.memory_address, "size": len(secret["memory"])}
    kill = {"pid": pid, "number": int(signal.SIGTERM)}
    left, right = secrets.randbelow(9000) + 1000, secrets.randbelow(9000) + 1000
    multiply = {"command": f"echo $(({left} * {right}))"}
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
        Act("see other processes", "list_processes", {"pid": pid}, "filesystem", secret["name"]),
        Act("read another's memory", "read_memory", stolen, "syscalls", secret["memory"]),
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
        Act("connect to a unix socket", "connect_unix", {"path": decoys.socket}, "syscalls", host),
        Act("start a shell", "run_shell", multiply, "subprocess", str(left * right)),
        Act("attack the kernel", "call_kernel", {}, "syscalls"),
        Act("eat memory", "reserve_memory", {"mebibytes": 1280}, "memory"),
        Act("start 200 threads", "start_threads", {"count": 200}, "pids"),
        Act("hold 200 files open", "open_files", {"count": 200}, "fds"),
        Act("fill the disk", "fill_disk", {"mebibytes": 16}, "disk"),
    ]  # fmt: skip
