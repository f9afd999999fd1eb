"""Count connections and bytes by destination, for the report."""

from corral.record import record

MAX_HOSTS = 4096


@record
class Traffic:
    """The totals for one name or address. `up` counts bytes from the target, and `down` bytes to
    it.
    """

    connections: int = 0
    failed: int = 0
    up: int = 0
    down: int = 0


def count_connection(
    sums: dict[str, Traffic], host: str, *, failed: bool, up: int = 0, down: int = 0
) -> None:
    """Add one connection to the totals of its host. The number of hosts is limited, because a
    target can invent names below a wildcard.
    """
    if host not in sums and len(sums) >= MAX_HOSTS:
        host = ""  # the key for the totals of all hosts beyond MAX_HOSTS
    before = sums.get(host, Traffic())
    sums[host] = Traffic(
        connections=before.connections + 1,
        failed=before.failed + failed,
        up=before.up + up,
        down=before.down + down,
    )
