"""A program that can be started inside: what to execute and which of the host's files it needs."""

from __future__ import annotations

from corral.record import record


@record
class Program:
    """`path` is what execve gets: absolute and unresolved, since a resolved path loses a venv.

    `reads` are real paths, bound read-only at the same place inside; `links` are the symlinks that lead
    to them, recreated inside as (path, target text). `cwd` is where the target starts.
    """

    path: str
    argv: tuple[str, ...]
    reads: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    search: tuple[str, ...] = ()
    cwd: str = ""
    typed: tuple[str, ...] = ()
