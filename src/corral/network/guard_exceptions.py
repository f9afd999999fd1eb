"""What the user's config may except from the address guard, for hosts whose own network needs it.

Such a network opens nothing by itself: it is where names that a policy allows may lead. It holds
for every run and every such name, so it has to be written so that it cannot admit more than was
meant: nothing wider than what the guard guards, this host and its neighbours on the link only
address by address, and the services that hand out a cloud's credentials not at all.
"""

from __future__ import annotations

from corral.network.addresses import Network, read_network
from corral.network.guard import ROWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.network.guard import Row

SINGLY = {
    "loopback": "services of this host that trust whoever is local",
    "link-local": "neighbours on the link, and what clouds put there",
}


def read_admitted(text: str) -> Network:
    """The network that an entry names; ValueError says what is wrong with it."""
    network = read_network(text)
    row = _row(network)
    if row is None:
        _check_unguarded(network)
    elif not row.why:
        raise ValueError("carries IPv4 addresses: name those")
    elif not row.admissible:
        raise ValueError(f"is {row.why}: nothing can be reached there")
    elif row.why == "metadata":
        raise ValueError(
            "is a metadata service, which hands out credentials: "
            "name it in network.allow of the policy that needs it"
        )
    elif row.why in SINGLY and not _is_address(network):
        raise ValueError(f"is {row.why}, which is admitted address by address")
    return network


def remark(network: Network) -> str:
    """What every run with an allowlist should be told of an entry; empty for most."""
    row = _row(network)
    if row is None or row.why not in SINGLY:
        return ""
    return (
        f"config.toml admits {network} ({row.why}): "
        f"a name that is allowed may lead to {SINGLY[row.why]}"
    )


def _row(network: Network) -> Row | None:
    """The guard's row that all of it lies in; of several the longest, as for addresses."""
    return next(
        (
            row
            for row in ROWS
            if row.network.bits <= network.bits and network.address in row.network
        ),
        None,
    )


def _check_unguarded(network: Network) -> None:
    if _is_address(network):
        return  # the host itself may have it, which is guarded too
    inner = [row.network for row in ROWS if row.network.address in network]
    if inner:
        widest = min(inner, key=lambda found: found.bits)
        raise ValueError(f"is wider than what is guarded in it, such as {widest}: name that")
    raise ValueError("is not guarded: names may lead there anyway")


def _is_address(network: Network) -> bool:
    return network.bits == len(network.address) * 8
