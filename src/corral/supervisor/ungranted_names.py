"""Find arguments that name addresses or variables that the target cannot use."""

from __future__ import annotations

from corral.denials.records import allow_net
from corral.network.addresses import format_address, parse_address
from corral.network.guard import is_admissible
from corral.network.rules import format_host_port, parse_rules
from corral.policy.variables import is_loader_variable, is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.plan.model import Ungranted

MAX_NAMES = 5
LOCAL = ("0.", "127.")
PORTS = {"https": 443, "http": 80, "postgres": 5432, "postgresql": 5432, "mysql": 3306}
PORTS |= {"redis": 6379, "mongodb": 27017, "amqp": 5672, "ssh": 22, "wss": 443, "ws": 80}
DEFAULT_PORT = 443


def find_addresses(words: Iterable[str], allow: Sequence[str]) -> tuple[Ungranted, ...]:
    """Find the IPv4 addresses in the words, except addresses of this machine. For each address that
    the policy does not allow, return (kind, address, flag). `flag` is the flag that allows it.
    """
    rules = parse_rules(allow)
    found: dict[str, Ungranted] = {}
    for word in words:
        scheme, mark, rest = word.rpartition("=")[2].rpartition("://")
        host, _, port = rest.partition("/")[0].rpartition("@")[2].partition(":")
        try:
            address = parse_address(host)
            number = int(port) if port else PORTS.get(scheme if mark else "", DEFAULT_PORT)
        except ValueError:
            continue
        if host.startswith(LOCAL) or not is_admissible(address) or len(found) >= MAX_NAMES:
            continue
        if rules.allows_address(address, number) is None:
            wanted = format_host_port(format_address(address), number)
            found[wanted] = ("address", wanted, allow_net(wanted))
    return tuple(found.values())


def find_variables(
    words: Iterable[str], environment: Mapping[str, str], given: Iterable[str]
) -> tuple[Ungranted, ...]:
    """Find the words that are names of variables. For each variable that is set here but not passed
    to the target, return (kind, name, flag). `flag` is the flag that passes the variable.
    """
    known = set(given)
    found: list[Ungranted] = []
    for name in dict.fromkeys(words):
        if name in environment and name not in known and not is_loader_variable(name):
            flag = "--secret" if is_secret(name, environment[name]) else "--env"
            found.append(("variable", name, f"{flag} {name}"))
    return tuple(found[:MAX_NAMES])
