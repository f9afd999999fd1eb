"""Which processes there are: what the tree of a target is read from."""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Table(Protocol):
        """The host's processes, those that have ended left out.

        `fileno` becomes readable when a process that is followed has forked; -1 where nothing
        tells. A table is used by the process that made it or a fork of it, never by both.
        """

        def rows(self) -> Sequence[Row]: ...
        def unique(self, pid: int) -> int: ...
        def group(self, leader: int) -> Sequence[int]: ...
        def use(self, pid: int) -> Usage: ...
        def follow(self, pid: int) -> None: ...
        def fileno(self) -> int: ...
        def drain(self) -> None: ...


@record
class Row:
    """`unique` is never given out twice. `parent` is who forked it, whoever adopted it since."""

    pid: int
    unique: int
    parent: int


@record
class Usage:
    """CPU time in seconds, with that of reaped children; bytes; threads."""

    cpu: float = 0.0
    memory: int = 0
    tasks: int = 0
