"""What a target of layering A may reach, by the capabilities in its token.

An AppContainer without a network capability reaches nothing: no internet, no DNS, and not even the
host's own loopback. The capabilities are coarse, and what they do not stop is said here in the
words that `explain` and the report use.

Names (`network.allow`) are not something that a capability can say. They are held by having *no*
capability, and a relay (`relay.py`) through which clients that honour proxy variables get to those
names and no others. A list of names is never turned into a level.
"""

from __future__ import annotations

from corral.errors import PolicyError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.plan.model import Place
    from corral.policy.model import Policy, WindowsNetwork

INTERNET_CLIENT = "S-1-15-3-1"
INTERNET_CLIENT_SERVER = "S-1-15-3-2"
PRIVATE_NETWORK = "S-1-15-3-3"

CAPABILITIES: Mapping[WindowsNetwork, tuple[str, ...]] = {
    "none": (),
    "outbound": (INTERNET_CLIENT,),
    "local": (PRIVATE_NETWORK,),
    "full": (INTERNET_CLIENT, INTERNET_CLIENT_SERVER, PRIVATE_NETWORK),
}
"""SIDs of the capabilities that each level puts into the token."""

STOPS: Mapping[WindowsNetwork, str] = {
    "none": "no internet, no local network, no DNS, no loopback of the host",
    "outbound": "no incoming connections, no loopback of the host",
    "local": "no internet, no loopback of the host",
    "full": "no loopback of the host",
}
LEAVES: Mapping[WindowsNetwork, str] = {
    "none": "",
    "outbound": "every host on the internet, and private ranges too where Windows takes the "
    "network for a public one",
    "local": "every host of the local network, both ways; what Windows takes for local is up to "
    "the network's profile",
    "full": "every host, both ways",
}


@record
class Network:
    """`level` decides the capabilities; `relay`: named hosts are reached through the relay."""

    level: WindowsNetwork
    relay: bool = False
    place: Place = "birth"

    @property
    def capabilities(self) -> tuple[str, ...]:
        return CAPABILITIES[self.level]

    def describe(self) -> str:
        if self.relay:
            return (
                f"network: {STOPS['none']}; the hosts of network.allow through a relay, "
                "for clients that use the proxy variables"
            )
        leaves = LEAVES[self.level]
        return f"network: {STOPS[self.level]}" + (f"; open: {leaves}" if leaves else "")


def plan(policy: Policy) -> Network:
    """PolicyError for what no combination of capabilities and relay means."""
    if policy.listen:
        raise PolicyError(
            "network.listen cannot be held on Windows: nothing outside an AppContainer reaches "
            "a port inside it",
            hint="run the server over stdio, or in WSL2",
        )
    level = policy.windows.network
    if policy.allow and level != "none":
        raise PolicyError(
            f'network.allow names hosts, and windows.network = "{level}" would open all others '
            "as well",
            hint='leave out one of the two; with windows.network = "none" the names hold',
        )
    return Network(level=level, relay=bool(policy.allow))
