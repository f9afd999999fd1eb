"""Read the proportional memory (PSS), the CPU time and the wake-ups of a process from /proc."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Process:
    role: str
    pid: int


def field(text: str, name: str) -> int:
    """Return the number after `name:` in a file of /proc, without its unit."""
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise KeyError(name)


def pss(pid: int) -> float | None:
    """Return the proportional set size in MB, or None if only root may read it. This is the case
    for a sandbox's PID 1.
    """
    try:
        return field(read(f"/proc/{pid}/smaps_rollup"), "Pss") / 1024
    except PermissionError:
        return None


def wake_ups(pid: int) -> int:
    return field(read(f"/proc/{pid}/status"), "voluntary_ctxt_switches")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, but not of its children."""
    # Split only what follows the program's name, because the name, which is in parentheses, may
    # contain spaces.
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def parent(pid: int) -> int:
    return field(read(f"/proc/{pid}/status"), "PPid")


def read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
