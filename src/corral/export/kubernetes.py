"""Export a policy as Kubernetes objects. corral runs inside the pod as a second layer.

A server that uses stdio is started by `kubectl exec -i`, once for each client, so the pod's main
process only waits. A server that listens on a port is itself the pod's main process.
"""

from collections.abc import Mapping

from corral.errors import PolicyError
from corral.export.containerfile import POLICY_DIRECTORY
from corral.export.network_policy import has_names, make_cilium_rules, make_network_rules
from corral.export.pod import PodPath, format_policy
from corral.export.workload import HOME, Workload, short_hash
from corral.policy.model import Policy

STATE = "state"
SERVER_LABEL = "corral-server"
"""The label that objects such as Services use to find the pods. Standard labels cannot be used for
this, because the pods of a Helm chart may have the same labels.
"""
USER = 1000
# Time to pull the image and to start. It is added to the server's timeout, because the pod's
# deadline includes this time.
START_SECONDS = 300
# A program that only waits. It is PID 1 in the pod. The kernel drops a signal to PID 1 that PID 1
# neither handles nor blocks, so this program blocks SIGTERM and waits for it. It ignores SIGCHLD,
# so that the kernel reaps the orphans of ended sessions.
WAIT = """\
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
"""
OWN_MEMORY = 64 << 20  # for corral itself and the waiting process, on top of the target's memory
OWN_CPU = 10  # millicores that a pod requests, unless its CPU limit is lower
Object = dict[str, object]


def make_objects(workload: Workload, *, cilium: bool) -> list[Object]:
    """Return the objects in the order in which they have to be created."""
    policy = workload.pod.policy
    objects = [_config_map(workload)]
    if policy.state:
        objects.append(_object("v1", "PersistentVolumeClaim", workload, _claim(policy), "-state"))
    network: Object = {
        "podSelector": {"matchLabels": _selector(workload)},
        "policyTypes": ["Ingress", "Egress"],
        **make_network_rules(policy, names_by_cilium=cilium),
    }
    objects.append(_object("networking.k8s.io/v1", "NetworkPolicy", workload, network))
    if cilium:
        rules = make_cilium_rules(policy, _selector(workload))
        objects.append(_object("cilium.io/v2", "CiliumNetworkPolicy", workload, rules))
    # A Deployment would restart the server after a timeout, so a server with a timeout gets a Pod.
    if workload.listens and policy.limits.timeout is None:
        objects.append(_deployment(workload))
    else:
        objects.append(_pod(workload))
    return [*objects, _service(workload)] if workload.listens else objects


def make_sandbox_objects(workload: Workload, *, replicas: int) -> list[Object]:
    """Return the same pod as `make_objects`, but as a SandboxTemplate, a SandboxWarmPool and a
    SandboxClaim for agent-sandbox.

    The template sets the variables with secrets, because a claim that sets variables does not get a
    sandbox from the pool. The template also makes a volume claim for each sandbox, because the
    sandboxes of a pool cannot share one.
    """
    policy = workload.pod.policy
    if workload.listens and policy.limits.timeout is not None:
        raise PolicyError(
            "timeout: a listening server in a pool would use up its time before it is claimed",
            hint="leave the timeout out, and delete the SandboxClaim when the server has to end",
        )
    kind = "extensions.agents.x-k8s.io/v1beta1"
    volumes = [volume for volume, _ in _volumes(workload) if volume["name"] != STATE]
    template: Object = {
        "podTemplate": {
            "metadata": _pod_metadata(workload),
            "spec": {**_pod_spec(workload), "volumes": volumes},
        },
        # agent-sandbox applies the network policy below. Without any network policy the pod could
        # reach the internet.
        "networkPolicyManagement": "Managed",
        "networkPolicy": make_network_rules(policy, names_by_cilium=False),
        "envVarsInjectionPolicy": "Disallowed",
        **({"service": True} if workload.listens else {}),
    }
    if policy.state:
        template["volumeClaimTemplates"] = [{"metadata": {"name": STATE}, "spec": _claim(policy)}]
    pool: Object = {"replicas": replicas, "sandboxTemplateRef": {"name": workload.name}}
    claim: Object = {"warmPoolRef": {"name": workload.name}}
    return [
        _config_map(workload),
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
    standard = {"app.kubernetes.io/name": workload.name, "app.kubernetes.io/managed-by": "corral"}
    return {**standard, **_selector(workload)}


def _selector(workload: Workload) -> Object:
    return {SERVER_LABEL: workload.name}


def _pod_metadata(workload: Workload) -> Object:
    """Return the pod's labels, and the policy's hash as an annotation. When the hash changes, a
    Deployment replaces its pods.
    """
    return {
        "labels": _labels(workload),
        "annotations": {"corral-policy": short_hash(format_policy(workload.pod))},
    }


def _config_map(workload: Workload) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{workload.name}-policy", "labels": _labels(workload)},
        "data": {"policy.json": format_policy(workload.pod)},
    }


def _claim(policy: Policy) -> Object:
    return {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": _amount(policy.limits.disk)}},
    }


def _pod(workload: Workload) -> Object:
    timeout, spec = workload.pod.policy.limits.timeout, _pod_spec(workload)
    if workload.listens and timeout is not None:
        deadline = -(-timeout // 1000) + START_SECONDS
        spec = {"restartPolicy": "Never", "activeDeadlineSeconds": deadline, **spec}
    metadata = {"name": workload.name, **_pod_metadata(workload)}
    return {**_object("v1", "Pod", workload, spec), "metadata": metadata}


def _deployment(workload: Workload) -> Object:
    spec: Object = {
        "replicas": 1,
        "selector": {"matchLabels": _selector(workload)},
        "template": {"metadata": _pod_metadata(workload), "spec": _pod_spec(workload)},
    }
    if workload.pod.policy.state:
        spec["strategy"] = {"type": "Recreate"}  # two pods cannot share the volume claim
    return _object("apps/v1", "Deployment", workload, spec)


def _service(workload: Workload) -> Object:
    ports = [{"name": f"port-{port}", "port": port} for port in workload.pod.policy.listen]
    return _object("v1", "Service", workload, {"selector": _selector(workload), "ports": ports})


def _pod_spec(workload: Workload) -> Object:
    # With the default `ndots` of 5, the resolver would first look up each name in the cluster's
    # domains. Cilium refuses these lookups, because the CiliumNetworkPolicy allows only lookups of
    # the policy's names.
    dns: Object = {"options": [{"name": "ndots", "value": "1"}]}
    return {
        **({"dnsConfig": dns} if has_names(workload.pod.policy) else {}),
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
        "env": _environment(workload),
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
        container["readinessProbe"] = {"tcpSocket": {"port": policy.listen[0]}}
    return container


def _environment(workload: Workload) -> list[Object]:
    """Return the pod's environment variables. The value of a secret comes from a Secret object that
    the user creates.
    """
    secrets: list[Object] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": workload.secrets, "key": name}}}
        for name in workload.pod.policy.secret_names
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
    policy = workload.pod.policy
    sized: Object = {} if policy.limits.disk is None else {"sizeLimit": _amount(policy.limits.disk)}
    found = [
        _volume("policy", POLICY_DIRECTORY, {"configMap": {"name": f"{workload.name}-policy"}}),
        _volume("tmp", "/tmp", {"emptyDir": sized}),  # noqa: S108 - in the pod
        _volume("home", HOME, {"emptyDir": sized}),
    ]
    if policy.state:
        state = {"persistentVolumeClaim": {"claimName": f"{workload.name}-state"}}
        found.append(_volume(STATE, f"{HOME}/.local/state", state))
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
