"""Write the network rules of a policy as a NetworkPolicy or a CiliumNetworkPolicy.

A NetworkPolicy cannot contain host names. For each allowed name it therefore allows the port at all
public addresses, and corral in the pod checks the name.
"""

from collections.abc import Mapping, Sequence

from corral.network.rules import AllowEntry, parse_rules
from corral.policy.model import Policy

Rule = dict[str, object]

# The rules for host names exclude these addresses, because a public name must not resolve to an
# address in the cluster or to the metadata service of its machines.
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
PRIVATE_V6 = ("fc00::/7", "fe80::/10")
DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
DNS_APPS = ("kube-dns", "node-local-dns")
# These are the addresses of DNS caches on the node. They have to be allowed by address, because
# such a cache is not a pod. The first address is NodeLocal DNSCache, and the second is Cloud DNS on
# GKE. The metadata service also has the second address, but it uses a different port.
NODE_DNS = ("169.254.20.10/32", "169.254.169.254/32")
CLUSTER_DNS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def has_names(policy: Policy) -> bool:
    rules = parse_rules(policy.allow)
    return bool(rules.names or rules.under)


def make_network_rules(policy: Policy, *, names_by_cilium: bool) -> Rule:
    """Return rules that allow only the policy's listening ports and destinations.

    With `names_by_cilium` the rules allow no destinations, because the CiliumNetworkPolicy allows
    them.
    """
    ports = [{"protocol": "TCP", "port": port} for port in policy.listen]
    return {
        "ingress": [{"ports": ports}] if ports else [],
        "egress": [] if names_by_cilium else _egress(policy),
    }


def _egress(policy: Policy) -> list[Rule]:
    rules = parse_rules(policy.allow)
    named = [
        entry for found in (rules.names, rules.under) for one in found.values() for entry in one
    ]
    egress: list[Rule] = []
    if named:
        on_node = [{"ipBlock": {"cidr": address}} for address in NODE_DNS]
        egress.append({"to": [CLUSTER_DNS, *on_node], "ports": DNS_PORTS})
        public = [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE)}},
            {"ipBlock": {"cidr": "::/0", "except": list(PRIVATE_V6)}},
        ]
        egress.append({"to": public, "ports": _ports(named)})
    for network, entry in rules.networks:
        egress.append({"to": [{"ipBlock": {"cidr": str(network)}}], "ports": _ports([entry])})
    return egress


def _ports(entries: Sequence[AllowEntry]) -> list[Rule]:
    ranges = sorted({ports for entry in entries for ports in entry.ports})
    return [
        {"protocol": "TCP", "port": low, **({"endPort": high} if high > low else {})}
        for low, high in ranges
    ]


def make_cilium_rules(policy: Policy, selector: Mapping[str, object]) -> Rule:
    """Return rules that allow the policy's host names and networks. The rules also allow DNS
    queries for these names, because Cilium learns the addresses of a name from the answers.
    """
    rules = parse_rules(policy.allow)
    # `**.` matches names at any depth, as `*.` does in corral. Before Cilium 1.19 `**.` matched
    # only one label.
    wild = ((f"**.{name}", found) for name, found in rules.under.items())
    names = [*rules.names.items(), *wild]
    egress = [_cilium_dns([name for name, _ in names])] if names else []
    egress += [
        {"toFQDNs": [_fqdn(name)], "toPorts": [{"ports": _cilium_ports(entries)}]}
        for name, entries in names
    ]
    egress += [
        {"toCIDR": [str(network)], "toPorts": [{"ports": _cilium_ports([entry])}]}
        for network, entry in rules.networks
    ]
    return {"endpointSelector": {"matchLabels": selector}, "egress": egress}


def _cilium_dns(names: Sequence[str]) -> Rule:
    labels = {"k8s:io.kubernetes.pod.namespace": "kube-system"}
    questions = {
        "ports": [{"port": "53", "protocol": "ANY"}],
        "rules": {"dns": [_fqdn(name) for name in names]},
    }
    servers = [{"matchLabels": {**labels, "k8s-app": app}} for app in DNS_APPS]
    return {"toEndpoints": servers, "toPorts": [questions]}


def _fqdn(name: str) -> Rule:
    return {"matchPattern" if name.startswith("**.") else "matchName": name}


def _cilium_ports(entries: Sequence[AllowEntry]) -> list[Rule]:
    return [{**port, "port": str(port["port"])} for port in _ports(entries)]
