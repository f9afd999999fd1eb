"""Choose the network capabilities in an AppContainer's token, which decide what the target can
reach.

An AppContainer without a network capability reaches nothing: no internet, no DNS, and not even the
host's own loopback.

Capabilities cannot express the host names in `network.allow`. If the policy contains such names,
the token gets no network capability. Programs that use the proxy variables then reach these hosts,
and no others, through a relay (`relay/`).
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.errors import PolicyError
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.policy import model as policies
from corral.record import record

INTERNET_CLIENT = "S-1-15-3-1"
INTERNET_CLIENT_SERVER = "S-1-15-3-2"
PRIVATE_NETWORK = "S-1-15-3-3"

CAPABILITIES: Mapping[policies.WindowsNetwork, tuple[str, ...]] = {
    "none": (),
    "outbound": (INTERNET_CLIENT,),
    "local": (PRIVATE_NETWORK,),
    "full": (INTERNET_CLIENT, INTERNET_CLIENT_SERVER, PRIVATE_NETWORK),
}
"""The SIDs of the capabilities in the token for each value of `windows.network`."""

STOPS: Mapping[policies.WindowsNetwork, str] = {
    "none": "no internet, no local network, no DNS, no access to the host's loopback",
    "outbound": "no incoming connections, no access to the host's loopback",
    "local": "no internet, no access to the host's loopback",
    "full": "no access to the host's loopback",
}
LEAVES: Mapping[policies.WindowsNetwork, str] = {
    "none": "",
    "outbound": "every host on the internet, and private ranges too if Windows classifies the "
    "network as public",
    "local": "every host on the local network, both ways; the network's profile decides what "
    "Windows classifies as local",
    "full": "every host, both ways",
}


@record
class Network:
    """Describes what the target can reach. `level` is the value of `windows.network`, which decides
    the target's capabilities. With `relay`, the target reaches the hosts in `network.allow` through
    the relay.
    """

    name = "network_capabilities"
    level: policies.WindowsNetwork
    relay: bool = False
    stage: model.Stage = "clone"
    verify = unverified

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

    def apply(self, results: Results) -> None:
        """Do nothing, because the step for the AppContainer profile (`app_container.py`) sets and
        verifies the capabilities.
        """


def plan(policy: policies.Policy) -> Network:
    """Return the step. Raise PolicyError if the capabilities and the relay cannot enforce the
    policy.
    """
    if policy.listen:
        raise PolicyError(
            "network.listen is not available on Windows: a port inside an AppContainer cannot be "
            "reached from outside",
            hint="run the server over stdio, or in WSL2",
        )
    level = policy.windows.network
    if policy.allow and level != "none":
        raise PolicyError(
            f'network.allow lists hosts, but windows.network = "{level}" would open all hosts',
            hint='remove one of the two; network.allow is enforced if windows.network is "none"',
        )
    return Network(level=level, relay=bool(policy.allow))
