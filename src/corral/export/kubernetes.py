"""Export a policy as Kubernetes objects, with corral as the inner layer of the pod.

`kubectl exec -i` starts a server on stdio, once for each client, so the pod itself only waits. A
server that listens on a port is the pod's own process.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from corral.errors import SandboxError
from corral.export.containerfile import COPIED, Build
from corral.export.pod import PodPath, PodPolicy, policy_document
from corral.export.publish import publish
from corral.export.yaml_text import format_documents
from corral.network.rules import AllowEntry, parse_rules
from corral.paths.posix import is_inside
from corral.policy.model import Policy
from corral.record import record

POLICY_DIRECTORY = "/etc/corral"
POLICY_FILE = f"{POLICY_DIRECTORY}/policy.json"
HOME = "/home/corral"
OWN_PLACES = (POLICY_DIRECTORY, HOME, "/tmp", "/opt/corral", "/usr")  # noqa: S108 - the pod's
SECRETS = "corral-secrets"
OBJECTS_FILE = "kubernetes.yaml"
USER = 1000
# The kernel gives PID 1 only signals that it blocks or handles. With SIGCHLD ignored, it reaps
# orphans of sessions itself.
WAIT = """\
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
"""
OWN_MEMORY = 64 << 20
"""The memory for corral itself and the waiting process, in addition to the target's."""
OWN_CPU = 10
"""The thousandths of a processor that a pod asks for, unless its limit is lower."""
# A public name must not resolve to addresses of the cluster or to its machines' metadata.
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
PRIVATE_V6 = ("fc00::/7", "fe80::/10")
DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
CLUSTER_DNS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
MAX_IMAGE_LENGTH = 500
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?\Z")
IMAGE = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)

Object = dict[str, object]


@record
class Workload:
    """An exported server: its name, its image, its command in the image, and its policy."""

    name: str
    image: str
    argv: tuple[str, ...]
    pod: PodPolicy

    @property
    def listens(self) -> bool:
        return bool(self.pod.policy.listen)

    def command(self) -> list[str]:
        policy = self.pod.policy
        flags = [*(["--strict"] * policy.strict), *(["--best-effort"] * policy.best_effort)]
        return ["corral", "run", "--policy", POLICY_FILE, *flags, "--", *self.argv]


def check_name(name: str) -> str:
    if not LABEL.match(name):
        raise SandboxError(
            f"{name!r} cannot name an object of Kubernetes",
            hint="--name takes lower-case letters, digits and hyphens, at most 52",
        )
    return name


def check_image(image: str) -> str:
    if len(image) > MAX_IMAGE_LENGTH or not IMAGE.match(image):
        raise SandboxError(
            f"{image!r} is not the name of an image",
            hint="--image takes registry/name:tag or registry/name@sha256:DIGEST",
        )
    return image


def make_name(words: Sequence[str]) -> str:
    """Return a name from the reference or the program: `npm:@scope/notes@1.2` gives `notes`."""
    word = next((word for word in words if not word.startswith("-")), "")
    word = re.split(r"[@=#\[]", word.rpartition("/")[2].rpartition(":")[2])[0]
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:52].strip("-") or "server"


def make_objects(workload: Workload, *, cilium: bool) -> list[Object]:
    """Return the objects in the order of their creation."""
    objects = [_config_map(workload)]
    if workload.pod.policy.state:
        objects.append(_claim(workload))
    objects.append(_network_policy(workload, names_by_cilium=cilium))
    if cilium:
        objects.append(_cilium_policy(workload))
    if workload.listens:
        return [*objects, _deployment(workload), _service(workload)]
    return [*objects, _object("v1", "Pod", workload, _pod_spec(workload))]


def make_sandbox_objects(workload: Workload, *, replicas: int) -> list[Object]:
    """Return the same pod as a template, a warm pool and a claim of agent-sandbox.

    The template always has a network policy, because without one the pod reaches the public
    internet. Secrets are in the template, because a claim with variables gets no warm sandbox.
    """
    kind = "extensions.agents.x-k8s.io/v1beta1"
    template: Object = {
        "podTemplate": {"metadata": {"labels": _labels(workload)}, "spec": _pod_spec(workload)},
        "networkPolicyManagement": "Managed",
        "networkPolicy": {"ingress": _ingress(workload.pod.policy), "egress": _egress(workload)},
        "envVarsInjectionPolicy": "Disallowed",
    }
    pool: Object = {"replicas": replicas, "sandboxTemplateRef": {"name": workload.name}}
    claim: Object = {"warmPoolRef": {"name": workload.name}}
    objects = [_config_map(workload)]
    if workload.pod.policy.state:
        objects.append(_claim(workload))
    return [
        *objects,
        _object(kind, "SandboxTemplate", workload, template),
        _object(kind, "SandboxWarmPool", workload, pool),
        _object(kind, "SandboxClaim", workload, claim),
    ]


def _object(version: str, kind: str, workload: Workload, spec: Object, suffix: str = "") -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": workload.name + suffix, "labels": _labels(workload)},
        "spec": spec,
    }


def _labels(workload: Workload) -> Object:
    return {"app.kubernetes.io/name": workload.name, "app.kubernetes.io/managed-by": "corral"}


def _selector(workload: Workload) -> Object:
    return {"app.kubernetes.io/name": workload.name}


def _config_map(workload: Workload) -> Object:
    text = json.dumps(policy_document(workload.pod), indent=2) + "\n"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{workload.name}-policy", "labels": _labels(workload)},
        "data": {"policy.json": text},
    }


def _claim(workload: Workload) -> Object:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": _amount(workload.pod.policy.limits.disk)}},
    }
    return _object("v1", "PersistentVolumeClaim", workload, spec, "-state")


def _deployment(workload: Workload) -> Object:
    spec: Object = {
        "replicas": 1,
        "selector": {"matchLabels": _selector(workload)},
        "template": {"metadata": {"labels": _labels(workload)}, "spec": _pod_spec(workload)},
    }
    if workload.pod.policy.state:
        spec["strategy"] = {"type": "Recreate"}  # two pods cannot share the claim
    return _object("apps/v1", "Deployment", workload, spec)


def _service(workload: Workload) -> Object:
    ports = [{"name": f"port-{port}", "port": port} for port in workload.pod.policy.listen]
    return _object("v1", "Service", workload, {"selector": _selector(workload), "ports": ports})


def _pod_spec(workload: Workload) -> Object:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(workload)],
        "volumes": [volume for volume, _ in _volumes(workload)],
    }


def _container(workload: Workload) -> Object:
    policy = workload.pod.policy
    container: Object = {
        "name": "server",
        "image": workload.image,
        "command": workload.command() if workload.listens else ["python3", "-c", WAIT],
        "env": _environment(policy),
        "resources": _resources(policy),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [mount for _, mount in _volumes(workload)],
    }
    if policy.listen:
        container["ports"] = [{"containerPort": port} for port in policy.listen]
    return container


def _environment(policy: Policy) -> list[Object]:
    """Return the variables. A secret is a reference to an object that the user creates."""
    secrets: list[Object] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": name}}}
        for name in policy.secret_names
    ]
    return [{"name": "HOME", "value": HOME}, *secrets]


def _resources(policy: Policy) -> Object:
    limits: Object = {}
    if policy.limits.memory is not None:
        limits["memory"] = _amount(policy.limits.memory + OWN_MEMORY)
    if policy.limits.cpu is not None:
        limits["cpu"] = f"{policy.limits.cpu}m"
    if policy.limits.disk is not None:
        limits["ephemeral-storage"] = _amount(policy.limits.disk)
    cpu = OWN_CPU if policy.limits.cpu is None else min(OWN_CPU, policy.limits.cpu)
    return {
        "limits": limits,
        "requests": {**limits, "memory": _amount(OWN_MEMORY), "cpu": f"{cpu}m"},
    }


def _amount(value: int | None) -> str:
    size = (1 << 30) if value is None else value
    return f"{size >> 20}Mi" if size % (1 << 20) == 0 else str(size)


def _volumes(workload: Workload) -> list[tuple[Object, Object]]:
    """Return each volume of the pod with its mount."""
    policy = workload.pod.policy
    sized: Object = {} if policy.limits.disk is None else {"sizeLimit": _amount(policy.limits.disk)}
    found = [
        _volume("policy", POLICY_DIRECTORY, {"configMap": {"name": f"{workload.name}-policy"}}),
        _volume("tmp", "/tmp", {"emptyDir": sized}),  # noqa: S108 - the pod's own
        _volume("home", HOME, {"emptyDir": sized}),
    ]
    if policy.state:
        state = {"persistentVolumeClaim": {"claimName": f"{workload.name}-state"}}
        found.append(_volume("state", f"{HOME}/.local/state", state))
    for number, path in enumerate(workload.pod.paths):
        found.append(_volume(f"grant-{number}", path.path, _volume_source(path)))
        if path.access == "read":
            found[-1][1]["readOnly"] = True
    return found


def _volume(name: str, path: str, source: Mapping[str, object]) -> tuple[Object, Object]:
    return {"name": name, **source}, {"name": name, "mountPath": path}


def _volume_source(path: PodPath) -> Object:
    kind, _, name = path.volume.partition(":")
    if kind == "claim":
        return {"persistentVolumeClaim": {"claimName": name}}
    return {"configMap": {"name": name}} if kind == "configmap" else {"emptyDir": {}}


def parse_volume(text: str) -> tuple[str, str]:
    """Split `PATH=claim:NAME`, `PATH=configmap:NAME` or `PATH=emptydir`."""
    path, equals, volume = text.rpartition("=")
    kind, _, name = volume.partition(":")
    named = kind in {"claim", "configmap"} and LABEL.match(name)
    path = path.rstrip("/")
    plain = path == os.path.normpath(path) and path.isprintable() and ":" not in path
    if not equals or not path.startswith("/") or not plain or not (named or volume == "emptydir"):
        raise SandboxError(
            f"--volume {text!r} is not a volume of a pod",
            hint="write PATH=claim:NAME, PATH=configmap:NAME or PATH=emptydir, with an absolute"
            " path without colons",
        )
    for own in OWN_PLACES:
        if is_inside(path, own) or is_inside(own, path):
            raise SandboxError(
                f"--volume {path}: the pod has {own} for corral itself", hint="use another path"
            )
    return path, volume


def _network_policy(workload: Workload, *, names_by_cilium: bool) -> Object:
    """Deny all except the listed ports. With Cilium, its own policy allows the destinations."""
    spec: Object = {
        "podSelector": {"matchLabels": _selector(workload)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": _ingress(workload.pod.policy),
        "egress": [] if names_by_cilium else _egress(workload),
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", workload, spec)


def _ingress(policy: Policy) -> list[Object]:
    ports = [{"protocol": "TCP", "port": port} for port in policy.listen]
    return [{"ports": ports}] if ports else []


def _egress(workload: Workload) -> list[Object]:
    """Allow the ports of all names. This object cannot express names, so corral checks them."""
    rules = parse_rules(workload.pod.policy.allow)
    named = [
        entry for found in (rules.names, rules.under) for one in found.values() for entry in one
    ]
    egress: list[Object] = []
    if named:
        egress.append({"to": [CLUSTER_DNS], "ports": DNS_PORTS})
        public = [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE)}},
            {"ipBlock": {"cidr": "::/0", "except": list(PRIVATE_V6)}},
        ]
        egress.append({"to": public, "ports": _ports(named)})
    for network, entry in rules.networks:
        egress.append({"to": [{"ipBlock": {"cidr": str(network)}}], "ports": _ports([entry])})
    return egress


def _ports(entries: Sequence[AllowEntry]) -> list[Object]:
    ranges = sorted({ports for entry in entries for ports in entry.ports})
    return [
        {"protocol": "TCP", "port": low, **({"endPort": high} if high > low else {})}
        for low, high in ranges
    ]


def _cilium_policy(workload: Workload) -> Object:
    rules = parse_rules(workload.pod.policy.allow)
    names = [*rules.names.items(), *((f"*.{name}", found) for name, found in rules.under.items())]
    egress: list[Object] = []
    if names:
        dns = {
            "toEndpoints": [
                {
                    "matchLabels": {
                        "k8s:io.kubernetes.pod.namespace": "kube-system",
                        "k8s-app": "kube-dns",
                    }
                }
            ],
            "toPorts": [
                {
                    "ports": [{"port": "53", "protocol": "ANY"}],
                    "rules": {"dns": [_fqdn(name) for name, _ in names]},
                }
            ],
        }
        egress.append(dns)
    egress += [
        {"toFQDNs": [_fqdn(name)], "toPorts": [{"ports": _cilium_ports(entries)}]}
        for name, entries in names
    ]
    egress += [
        {"toCIDR": [str(network)], "toPorts": [{"ports": _cilium_ports([entry])}]}
        for network, entry in rules.networks
    ]
    spec: Object = {"endpointSelector": {"matchLabels": _selector(workload)}, "egress": egress}
    return _object("cilium.io/v2", "CiliumNetworkPolicy", workload, spec)


def _fqdn(name: str) -> Object:
    return {"matchPattern" if name.startswith("*.") else "matchName": name}


def _cilium_ports(entries: Sequence[AllowEntry]) -> list[Object]:
    return [{**port, "port": str(port["port"])} for port in _ports(entries)]


def write_objects(
    objects: Sequence[Object], build: Build | None, directory: str, *, force: bool
) -> None:
    files = {OBJECTS_FILE: format_documents(objects).encode()}
    if build is not None:
        files |= {"Containerfile": build.text.encode(), **build.files}

    def fill(fresh: str) -> None:
        for name, content in files.items():
            with open(os.path.join(fresh, name), "wb") as file:
                file.write(content)

    known = (OBJECTS_FILE, "Containerfile", *(name for names in COPIED.values() for name in names))
    publish(directory, fill, names=known, force=force)


def next_steps(workload: Workload, directory: str, *, build: bool) -> list[str]:
    """Return the commands that the user has to type next."""
    name, policy = workload.name, workload.pod.policy
    where = shlex.quote(directory)
    image = workload.image
    lines = [f"podman build -t {image} {where}", f"podman push {image}"] if build else []
    if policy.secret_names:
        words = " ".join(f'--from-literal={one}="${one}"' for one in policy.secret_names)
        lines.append(f"kubectl create secret generic {SECRETS} {words}")
    lines.append(f"kubectl apply -f {where}/{OBJECTS_FILE}")
    if workload.listens:
        lines.append(f"kubectl port-forward deployment/{name} {policy.listen[0]}")
    else:
        lines.append(f"kubectl exec -i {name} -- {shlex.join(workload.command())}")
    return [f"wrote {directory}; next:", *(f"  {line}" for line in lines)]
