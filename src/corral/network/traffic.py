"""What went through the gateway, for the report."""

from __future__ import annotations

from corral.record import record

MOST_COUNTED = 4096


@record
class Traffic:
    """What went to one name or address: `up` from the target, `down` to it, in bytes."""

    connections: int = 0
    failed: int = 0
    up: int = 0
    down: int = 0


def count(found: dict[str, Traffic], host: str, *, failed: bool, up: int, down: int) -> None:
    """One more connection. Under a wildcard the target makes up the names, so there is an end."""
    if host not in found and len(found) >= MOST_COUNTED:
        host = ""  # all others
    before = found.get(host, Traffic())
    found[host] = Traffic(
        connections=before.connections + 1,
        failed=before.failed + failed,
        up=before.up + up,
        down=before.down + down,
    )
