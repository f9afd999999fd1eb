"""Parse the exceptions from the address guard in the user's config (`network.admit`).

An exception is a network whose addresses may be dialled for allowed names, although they are
guarded. It does not allow any name by itself. Because exceptions apply to every run and every
allowed name, they are restricted: an exception may not be larger than the guarded network that
contains it, and each loopback or link-local address needs an exception of its own. Metadata
services cannot be exceptions, because they give out a cloud's credentials.
"""

from corral.network.addresses import Network, parse_network
from corral.network.guard import NOT_ADMISSIBLE, find_guarded, guarded_networks

ADDRESS_BY_ADDRESS = {
    "loopback": "services of this host that trust local programs",
    "link-local": "neighbours on the link, and services of clouds",
}


def parse_admitted(text: str) -> Network:
    """Parse an entry of `network.admit`. If the entry is invalid, raise ValueError with the reason
    as its message.
    """
    network = parse_network(text)
    guarded = find_guarded(network.address, network.bits)
    if guarded is None:
        _check_unguarded(network)
    elif not guarded.why:
        raise ValueError("contains IPv4 addresses: name an IPv4 network instead")
    elif guarded.why in NOT_ADMISSIBLE:
        raise ValueError(f"is {guarded.why}: nothing can be reached there")
    elif guarded.why == "metadata":
        raise ValueError(
            "is a metadata service, which gives out credentials: "
            "name it in network.allow of the policy that needs it"
        )
    elif guarded.why in ADDRESS_BY_ADDRESS and not _is_address(network):
        raise ValueError(f"is {guarded.why}: name each address separately")
    return network


def format_warning(network: Network) -> str:
    """Return the warning that every run with an allowlist prints about an entry of `network.admit`,
    or "" if the entry needs no warning.
    """
    guarded = find_guarded(network.address, network.bits)
    if guarded is None or guarded.why not in ADDRESS_BY_ADDRESS:
        return ""
    return (
        f"config.toml admits {network} ({guarded.why}): "
        f"connections to an allowed name may reach {ADDRESS_BY_ADDRESS[guarded.why]}"
    )


def _check_unguarded(network: Network) -> None:
    if _is_address(network):
        # Accept a single address that is not in the table of guarded networks. It may be one of the
        # host's own addresses, which are guarded too.
        return
    inner = [
        guarded.network for guarded in guarded_networks() if guarded.network.address in network
    ]
    if inner:
        widest = min(inner, key=lambda found: found.bits)
        raise ValueError(
            f"is wider than any guarded network: name a guarded network in it, such as {widest}"
        )
    raise ValueError("is not guarded: allowed names may resolve to it anyway")


def _is_address(network: Network) -> bool:
    return network.bits == len(network.address) * 8
