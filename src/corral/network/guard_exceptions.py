"""The exceptions from the address guard in the user's config (`network.admit`).

An exception opens nothing by itself: it is a network where names that a policy allows may lead. It
applies to every run and every such name, so an entry must not admit more than was meant: nothing
wider than the guarded network, this host and its neighbours on the link only address by address,
and the services that hand out a cloud's credentials not at all.
"""

from corral.network.addresses import Network, parse_network
from corral.network.guard import GUARDED_NETWORKS, NOT_ADMISSIBLE, find_guarded

ADDRESS_BY_ADDRESS = {
    "loopback": "services of this host that trust whoever is local",
    "link-local": "neighbours on the link, and what clouds put there",
}


def parse_admitted(text: str) -> Network:
    """Parse an entry of `network.admit`; ValueError says what is wrong with it."""
    network = parse_network(text)
    guarded = find_guarded(network.address, network.bits)
    if guarded is None:
        _check_unguarded(network)
    elif not guarded.why:
        raise ValueError("carries IPv4 addresses: name those")
    elif guarded.why in NOT_ADMISSIBLE:
        raise ValueError(f"is {guarded.why}: nothing can be reached there")
    elif guarded.why == "metadata":
        raise ValueError(
            "is a metadata service, which hands out credentials: "
            "name it in network.allow of the policy that needs it"
        )
    elif guarded.why in ADDRESS_BY_ADDRESS and not _is_address(network):
        raise ValueError(f"is {guarded.why}, which is admitted address by address")
    return network


def format_warning(network: Network) -> str:
    """Return the warning that every run with an allowlist shows for an entry; empty for most."""
    guarded = find_guarded(network.address, network.bits)
    if guarded is None or guarded.why not in ADDRESS_BY_ADDRESS:
        return ""
    return (
        f"config.toml admits {network} ({guarded.why}): "
        f"a name that is allowed may lead to {ADDRESS_BY_ADDRESS[guarded.why]}"
    )


def _check_unguarded(network: Network) -> None:
    if _is_address(network):
        return  # it may be the host's own, which is guarded too
    inner = [guarded.network for guarded in GUARDED_NETWORKS if guarded.network.address in network]
    if inner:
        widest = min(inner, key=lambda found: found.bits)
        raise ValueError(f"is wider than what is guarded in it, such as {widest}: name that")
    raise ValueError("is not guarded: names may lead there anyway")


def _is_address(network: Network) -> bool:
    return network.bits == len(network.address) * 8
