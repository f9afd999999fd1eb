"""What a tree uses, seen from outside its job: for `corral ps`. Inside, the job itself counts."""

from __future__ import annotations

from corral.abi import win32_process as abi
from corral.record import record


@record
class Usage:
    """`tasks` are processes."""

    cpu: float
    memory: int
    tasks: int


def measure(root: int) -> Usage:
    """A process whose parent has ended is not found: the job would know, and has no name."""
    cpu, memory, tasks = 0.0, 0, 0
    for pid in tree(root, abi.parents()):
        try:
            with abi.open_process(pid, abi.PROCESS_QUERY_LIMITED_INFORMATION) as process:
                cpu += abi.cpu_seconds(process)
                memory += abi.committed(process)
                tasks += 1
        except OSError:
            continue  # it ended while being looked at
    return Usage(cpu=cpu, memory=memory, tasks=tasks)


def tree(root: int, parents: dict[int, int]) -> list[int]:
    """`root` and all that descend from it."""
    found = [root]
    for pid in found:
        found += [one for one, parent in parents.items() if parent == pid and one not in found]
    return found
