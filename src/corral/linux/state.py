"""`state = true` on Linux: the directory that survives runs is found at one place inside."""

from __future__ import annotations

from corral.posix.state import State, path_for

__all__ = ["INSIDE", "State", "path_for"]

INSIDE = "/state"
