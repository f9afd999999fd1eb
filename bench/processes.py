"""Read from /proc a process's share of memory, and how often it woke up."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Process:
    role: str
    pid: int


def field(text: str, name: str) -> int:
    """Return the number behind `name:` in a file of /proc, without its unit."""
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    raise KeyError(name)


def pss(pid: int) -> float | None:
    """Return MB of proportional set size; None where only root may read it, as for init."""
    try:
        return field(_read(f"/proc/{pid}/smaps_rollup"), "Pss") / 1024
    except PermissionError:
        return None


def wake_ups(pid: int) -> int:
    return field(_read(f"/proc/{pid}/status"), "voluntary_ctxt_switches")


def parent(pid: int) -> int:
    return field(_read(f"/proc/{pid}/status"), "PPid")


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
