"""What went through the gateway, for the report."""

from __future__ import annotations

from corral.record import record


@record
class Traffic:
    """What went to one name or address: `up` from the target, `down` to it, in bytes."""

    connections: int = 0
    failed: int = 0
    up: int = 0
    down: int = 0
