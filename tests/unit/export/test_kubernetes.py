"""Test the Kubernetes objects that are made from policies, and the policies that are refused."""

import json

import pytest

from corral.errors import PolicyError, SandboxError, UnenforceableError
from corral.export import kubernetes, kubernetes_files
from corral.export.pod import HELD_BY_POD, make_pod_policy, policy_document
from corral.export.workload import (
    Workload,
    check_image,
    check_name,
    make_name,
    parse_volume,
    parse_volumes,
)
from corral.policy.manifest import from_data
from corral.policy.model import Policy, Source
from corral.record import fields, replace

KINDS = ("configMap", "emptyDir", "persistentVolumeClaim")


def workload(policy=None, volumes=None, argv=("server",)):
    manifest = from_data({"version": 1, **(policy or {})}, "policy.toml")
    sources = [Source(manifest=manifest, trust="user", approved=True)]
    pod = make_pod_policy(sources, volumes or {}, home="/home/nobody", cwd="/")
    return Workload(name="notes", image="registry.example/notes:1", argv=argv, pod=pod)


def objects(policy=None, volumes=None, **options):
    found = kubernetes.make_objects(workload(policy, volumes), cilium=False, **options)
    return {one["kind"]: one for one in found}


def pod_spec(found):
    if "Pod" in found:
        return found["Pod"]["spec"]
    return found["Deployment"]["spec"]["template"]["spec"]


def restricted(spec):
    """Check a pod against the Pod Security standard "restricted". Yield a boolean for each
    requirement: whether the pod meets it.
    """
    context = spec["securityContext"]
    yield context["runAsNonRoot"] is True
    yield context["runAsUser"] != 0
    yield context["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost"}
    yield not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for volume in spec["volumes"]:
        yield set(volume) - {"name"} <= set(KINDS)
    for container in spec["containers"]:
        yield container["securityContext"]["allowPrivilegeEscalation"] is False
        yield container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    "policy", [{}, {"network": {"listen": [8080]}}, {"filesystem": {"state": True}}]
)
def test_every_pod_is_restricted_with_a_read_only_root(policy):
    spec = pod_spec(objects(policy))
    assert all(restricted(spec))
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False


def test_without_allowed_hosts_the_network_is_denied_explicitly():
    spec = objects()["NetworkPolicy"]["spec"]
    assert spec["egress"] == []
    assert spec["ingress"] == []
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_ports_of_allowed_host_names_are_open_to_public_addresses_only():
    allow = ["api.example.com", "*.example.org:8443", "10.1.0.0/16:5432-5440"]
    dns, public, network = objects({"network": {"allow": allow}})["NetworkPolicy"]["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    # A DNS cache on the node is not a pod, so a rule can allow it only by its address.
    addresses = {one["ipBlock"]["cidr"] for one in dns["to"] if "ipBlock" in one}
    assert addresses == {"169.254.20.10/32", "169.254.169.254/32"}
    assert [port["port"] for port in public["ports"]] == [80, 443, 8443]
    assert "169.254.0.0/16" in public["to"][0]["ipBlock"]["except"]
    assert network["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    assert network["ports"] == [{"protocol": "TCP", "port": 5432, "endPort": 5440}]


def test_cilium_rules_allow_hosts_by_name():
    made = workload({"network": {"allow": ["api.example.com", "*.example.org:8443"]}})
    found = {one["kind"]: one.get("spec") for one in kubernetes.make_objects(made, cilium=True)}
    assert found["NetworkPolicy"]["egress"] == []
    _, first, second = found["CiliumNetworkPolicy"]["egress"]
    assert first["toFQDNs"] == [{"matchName": "api.example.com"}]
    assert second["toFQDNs"] == [{"matchPattern": "**.example.org"}]
    assert second["toPorts"] == [{"ports": [{"protocol": "TCP", "port": "8443"}]}]


def test_a_listening_server_has_a_service_and_one_open_port():
    found = objects({"network": {"listen": [8080]}})
    assert found["NetworkPolicy"]["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8080}]}
    ]
    assert found["Service"]["spec"]["ports"] == [{"name": "port-8080", "port": 8080}]
    (container,) = pod_spec(found)["containers"]
    assert container["readinessProbe"] == {"tcpSocket": {"port": 8080}}
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["corral", "run"]
    inside = policy_document(workload({"network": {"listen": [8080]}}).pod)
    assert inside["network"]["listen_everywhere"] is True


def test_the_policy_inside_the_pod_omits_limits_that_the_pod_enforces():
    stated = {"memory": "64M", "cpu": 0.5, "disk": "2G", "fds": 64, "timeout": "5m"}
    made = workload({"limits": stated})
    limits = policy_document(made.pod)["limits"]
    assert {name: limits[name] for name in HELD_BY_POD} == dict.fromkeys(HELD_BY_POD, "none")
    assert limits["fds"] == 64
    assert limits["timeout"] == "5m"
    resources = kubernetes.make_objects(made, cilium=False)[-1]["spec"]["containers"][0][
        "resources"
    ]
    assert resources["limits"] == {"memory": "128Mi", "cpu": "500m", "ephemeral-storage": "2048Mi"}
    from_data(policy_document(made.pod), "inside")  # corral accepts this policy


UNITS = {"Mi": 1 << 20, "m": 1, "": 1}


def amount(text):
    number = text.rstrip("Mim")
    return int(number) * UNITS[text.removeprefix(number)]


@pytest.mark.parametrize(
    "limits", [{}, {"memory": "32M", "cpu": 0.005}, {"memory": "1M"}, {"memory": "2G", "cpu": 4}]
)
def test_a_pod_requests_no_more_than_its_limits(limits):
    """Check that no resource request exceeds its limit, because an API server rejects a pod that
    requests more.
    """
    resources = pod_spec(objects({"limits": limits}))["containers"][0]["resources"]
    for name, limit in resources["limits"].items():
        assert amount(resources["requests"][name]) <= amount(limit), name


def test_corrals_own_memory_is_added_to_the_targets_limit():
    stated, other = (
        pod_spec(objects({"limits": {"memory": size}}))["containers"][0]["resources"]["limits"]
        for size in ("32M", "64M")
    )
    assert stated["memory"] == "96Mi"
    assert other["memory"] == "128Mi"


def test_secrets_have_names_and_no_values(monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    found = objects({"environment": {"secrets": ["TOKEN"]}})
    assert "hunter2" not in json.dumps(found)
    (variable,) = [one for one in pod_spec(found)["containers"][0]["env"] if one["name"] == "TOKEN"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "notes-secrets", "key": "TOKEN"}


def test_each_grant_is_mounted_at_its_own_path():
    paths = {"filesystem": {"read": ["/data"], "write": ["/out", "/scratch"], "state": True}}
    volumes = {"/data": "configmap:texts", "/out": "claim:results", "/scratch": "emptydir"}
    found = objects(paths, volumes)
    spec = pod_spec(found)
    mounts = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}
    assert mounts["/data"]["readOnly"] is True
    assert "readOnly" not in mounts["/out"]
    sources = {one["name"]: one for one in spec["volumes"]}
    assert sources[mounts["/data"]["name"]]["configMap"] == {"name": "texts"}
    assert sources[mounts["/out"]["name"]]["persistentVolumeClaim"] == {"claimName": "results"}
    assert sources[mounts["/scratch"]["name"]]["emptyDir"] == {}
    assert found["PersistentVolumeClaim"]["metadata"]["name"] == "notes-state"
    document = policy_document(workload(paths, volumes).pod)["filesystem"]
    assert document == {"read": ["/data"], "write": ["/out", "/scratch"], "state": True}


def test_a_refusal_names_all_grants_without_a_volume():
    with pytest.raises(PolicyError) as caught:
        objects({"filesystem": {"read": ["/data"], "write": ["/out"]}})
    assert "/data, /out" in str(caught.value)
    assert "--volume /data=claim:NAME --volume /out=claim:NAME" in caught.value.hint


def test_a_volume_without_a_grant_is_refused():
    with pytest.raises(PolicyError, match="does not grant: /data"):
        objects({}, {"/data": "emptydir"})


def test_a_volume_inside_a_read_only_volume_is_refused():
    """Refuse a volume in a read-only volume, because a runtime cannot make its mount point
    there.
    """
    volumes = {"/d": "configmap:x", "/d/e": "emptydir"}
    with pytest.raises(PolicyError, match="/d is read-only"):
        objects({"filesystem": {"read": ["/d"], "write": ["/d/e"]}}, volumes)
    # Sanity check: the inner volume is accepted if the outer one is writable.
    objects({"filesystem": {"write": ["/d", "/d/e"]}}, volumes)


def test_grants_of_the_hosts_sockets_are_refused():
    with pytest.raises(PolicyError, match="does not exist in a pod"):
        objects({"filesystem": {"unix_sockets": ["/run/x.sock"]}})


def test_a_stated_limit_that_cannot_be_enforced_is_refused():
    with pytest.raises(UnenforceableError, match="io"):
        objects({"limits": {"io": "1M"}})
    objects({"limits": {"io": "1M"}, "degrade": {"allow": ["io"]}})


SAYS = {
    "limits": {"limits": {"fds": 64}},
    "allow": {"network": {"allow": ["example.com"]}},
    "listen": {"network": {"listen": [8080]}},
    "grants": {"filesystem": {"read": ["/data"]}},
    "state": {"filesystem": {"state": True}},
    "subprocess": {"subprocess": {"allow": True}},
    "pass_names": {"environment": {"pass": ["LANG"]}},
    "set_values": {"environment": {"set": {"A": "b"}}},
    "secret_names": {"environment": {"secrets": ["TOKEN"]}},
    "degrade": {"degrade": {"allow": ["io"]}},
    "own_unix_sockets": {"filesystem": {"own_unix_sockets": True}},
    "mcp": {"mcp": {"tools": {"allow": ["read_*"]}}},
}
NOT_SAID = {
    "listen_everywhere": "the export sets it if there are ports",
    "admit": "from the user's own configuration; without it fewer addresses are allowed",
    "covered": "describes this machine's mounts",
    "warnings": "belong to one run",
    "requested_names": "only for masking; in a pod all variables count as the user's",
    "given_values": "only for masking, and no file contains a secret",
    "stated": "computed from the other fields",
    "strict": "a flag, tested below",
    "best_effort": "a flag, tested below",
    "windows": "another system",
    "macos": "another system",
}


def test_every_field_of_a_policy_is_exported_or_refused():
    """Check that no field of a policy is ignored: each field is in the objects, is refused, or is
    listed here with a reason.
    """
    assert {*SAYS, *NOT_SAID} == set(fields(Policy()))
    plain = objects()
    for name, policy in SAYS.items():
        volumes = {"/data": "emptydir"} if name == "grants" else {}
        try:
            assert objects(policy, volumes) != plain, name
        except PolicyError:
            assert name in {"own_unix_sockets", "mcp"}


def test_strict_is_passed_to_corral_inside_the_pod():
    made = workload()
    strict = replace(made, pod=replace(made.pod, policy=replace(made.pod.policy, strict=True)))
    assert "--strict" in strict.command()
    assert "--strict" not in made.command()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/corral",
        "/srv/server/lib",
        "/etc",
        "/home/corral/x",
        "/tmp/x",
        "/usr/lib",
        "/a/../etc",
        "/a\nb",
        "/",
    ],
)
def test_a_volume_at_an_invalid_path_or_a_path_of_corral_is_refused(path):
    with pytest.raises(SandboxError):
        parse_volume(f"{path}=emptydir")
    # Sanity check: an ordinary path gets a volume.
    assert parse_volume("/data=emptydir") == ("/data", "emptydir")


@pytest.mark.parametrize("image", ["notes", "a/b/c:1", "reg.example:5000/n@sha256:" + "a" * 64])
def test_valid_image_names_are_accepted(image):
    assert check_image(image) == image


@pytest.mark.parametrize(
    "image", ["", "Notes", "a b", "a:b:c", "a@sha256:1", "../x", "-a", "a\n", "a" * 600]
)
def test_invalid_image_names_are_refused(image):
    with pytest.raises(SandboxError, match="is not an image name"):
        check_image(image)


@pytest.mark.parametrize("name", ["", "Notes", "a_b", "-a", "a-", "a" * 53, "a\n", "ä"])
def test_invalid_object_names_are_refused(name):
    with pytest.raises(SandboxError, match="is not a valid name"):
        check_name(name)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["npm:@scope/My_Notes@1.2.3"], "my-notes"),
        (["pypi:mcp-server-time==1.0"], "mcp-server-time"),
        (["pypi:x[extra]#prog"], "x"),
        (["pypi:" + "x" * 99], "x" * 45),
        (["--", "/opt/srv/run.sh"], "run-sh"),
        (["--", "!!!"], "server"),
    ],
)
def test_the_object_name_comes_from_the_server(words, name):
    found = check_name(make_name(words))
    assert found.rpartition("-")[0] == name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["npm:@a/notes"], ["npm:@b/notes"]),
        (["npm:notes"], ["pypi:notes"]),
        (["pypi:x#one"], ["pypi:x==1.0#two"]),
        (["--", "/opt/a/notes"], ["--", "/opt/b/notes"]),
        (["--", "node", "a.js"], ["--", "node", "b.js"]),
    ],
)
def test_different_servers_get_different_object_names(one, other):
    assert make_name(one) != make_name(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["npm:@a/notes"], ["npm:@a/notes@1.2"]),
        (["npm:@a/notes@1.1"], ["npm:@a/notes@1.2"]),
        (["pypi:x==1.0#one"], ["pypi:x#one"]),
    ],
)
def test_all_versions_of_a_server_get_the_same_object_name(one, other):
    assert make_name(one) == make_name(other)


def test_selectors_match_the_pods_of_this_server_only():
    """Check that the selectors do not match the pods of a Helm chart, even if the chart sets the
    label `app.kubernetes.io/name` to this server's name.
    """
    made = workload({"network": {"listen": [8080], "allow": ["example.com"]}})
    found = {one["kind"]: one["spec"] for one in kubernetes.make_objects(made, cilium=True)[1:]}
    labels = found["Deployment"]["template"]["metadata"]["labels"]
    charts = {"app.kubernetes.io/name": "notes", "app.kubernetes.io/managed-by": "Helm"}
    for selector in (
        found["NetworkPolicy"]["podSelector"]["matchLabels"],
        found["CiliumNetworkPolicy"]["endpointSelector"]["matchLabels"],
        found["Deployment"]["selector"]["matchLabels"],
        found["Service"]["selector"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= charts.items()


def test_a_changed_policy_changes_the_pods_of_a_deployment():
    one, same, other = (
        objects({"network": {"listen": [8080]}, "limits": {"fds": fds}})["Deployment"]["spec"]
        for fds in (64, 64, 65)
    )
    assert one == same
    assert one["template"] != other["template"]


def test_host_names_are_not_looked_up_in_the_clusters_domains():
    spec = pod_spec(objects({"network": {"allow": ["example.com"]}}))
    assert spec["dnsConfig"] == {"options": [{"name": "ndots", "value": "1"}]}
    assert "dnsConfig" not in pod_spec(objects({"network": {"allow": ["10.1.0.0/16:5432"]}}))


def test_a_listening_server_with_a_timeout_is_not_started_again():
    found = objects({"network": {"listen": [8080]}, "limits": {"timeout": "90s"}})
    assert "Deployment" not in found
    assert found["Pod"]["spec"]["restartPolicy"] == "Never"
    assert found["Pod"]["spec"]["activeDeadlineSeconds"] == 90 + kubernetes.START_SECONDS
    assert "Service" in found
    # The timeout of a server without a port applies to each session, so the pod itself has none. A
    # listening server without a timeout gets a Deployment.
    waiting = objects({"limits": {"timeout": "90s"}})["Pod"]["spec"]
    assert "activeDeadlineSeconds" not in waiting
    assert "Deployment" in objects({"network": {"listen": [8080]}})
    with pytest.raises(PolicyError, match="timeout"):
        listening = workload({"network": {"listen": [8080]}, "limits": {"timeout": "90s"}})
        kubernetes.make_sandbox_objects(listening, replicas=1)


def test_notes_explain_the_limits_of_host_names_timeouts_and_memory():
    made = workload({"network": {"allow": ["example.com"]}, "limits": {"timeout": "5m"}})
    held = {one.control: one.why for one in made.pod.controls}
    assert "public addresses" in held["network"]
    assert "each session" in held["timeout"]
    assert "64 MiB" in held["memory"]
    assert not {one.control: one.why for one in workload().pod.controls}["network"]


def test_a_path_with_two_volumes_is_refused():
    assert parse_volumes(["/d=emptydir", "/e=claim:x"]) == {
        "/d": "emptydir",
        "/e": "claim:x",
    }
    with pytest.raises(SandboxError, match="two volumes for /d: emptydir and claim:x"):
        parse_volumes(["/d=emptydir", "/d/=claim:x"])


OBJECTS_OF_COMMANDS = {
    "pod/notes": "Pod",
    "service/notes": "Service",
    "deployment/notes": "Deployment",
    "sandboxclaim/notes": "SandboxClaim",
}


@pytest.mark.parametrize("sandbox", [False, True])
@pytest.mark.parametrize("listen", [[], [8080]])
@pytest.mark.parametrize("limits", [{}, {"timeout": "5m"}])
def test_printed_commands_name_objects_that_are_written(listen, limits, sandbox):
    if listen and limits and sandbox:
        return  # corral refuses this combination
    made = workload({"network": {"listen": listen}, "limits": limits})
    written = (
        kubernetes.make_sandbox_objects(made, replicas=2)
        if sandbox
        else kubernetes.make_objects(made, cilium=False)
    )
    lines = kubernetes_files.next_steps(made, written, "out", build=False)
    named = {word for line in lines for word in line.split() if "/notes" in word}
    assert named
    assert {OBJECTS_OF_COMMANDS[word] for word in named} <= {one["kind"] for one in written}
    last = lines[-1].split()
    assert last[1] == ("port-forward" if listen else "exec")
    assert ("sandboxclaim notes -o jsonpath='{.status.sandbox.name}'" in lines[-1]) == sandbox


def test_each_server_has_its_own_secret_and_field_manager():
    """Check that each of two servers has its own Secret. If they shared one, `kubectl create
    secret` would fail for the second server.
    """
    lines = []
    for name, server in (("one", "npm:one"), ("two", "npm:two")):
        made = workload({"environment": {"secrets": ["TOKEN"]}})
        made = replace(made, name=name, server=server)
        found = kubernetes.make_objects(made, cilium=False)
        lines.append(kubernetes_files.next_steps(made, found, "out", build=True))
    for number, name in enumerate(("one", "two")):
        (create,) = [line for line in lines[number] if "create secret" in line]
        assert f"generic {name}-secrets --from-literal=TOKEN=" in create
    managers = {line.partition("--field-manager=")[2].split()[0] for both in lines for line in both if "apply" in line}  # fmt: skip
    assert len(managers) == 2


@pytest.mark.parametrize(
    "text", ["", "/a", "a=emptydir", "/a=claim:", "/a=hostpath:/x", "/a=claim:A_B", "/a:b=emptydir"]
)
def test_invalid_volumes_are_refused(text):
    with pytest.raises(SandboxError, match="is not a valid volume"):
        parse_volume(text)


def test_a_path_may_contain_an_equals_sign():
    assert parse_volume("/a=b/=claim:c") == ("/a=b", "claim:c")


def test_agent_sandbox_objects_state_a_network_policy_and_forbid_variables():
    """Check that the template's network policy allows nothing, because without a policy its
    sandboxes could reach the internet. A SandboxClaim may not set environment variables, because it
    would then not get a warm sandbox.
    """
    made = workload({"environment": {"secrets": ["TOKEN"]}})
    found = {one["kind"]: one for one in kubernetes.make_sandbox_objects(made, replicas=3)}
    template = found["SandboxTemplate"]["spec"]
    assert template["networkPolicy"] == {"ingress": [], "egress": []}
    assert template["envVarsInjectionPolicy"] == "Disallowed"
    assert all(restricted(template["podTemplate"]["spec"]))
    assert found["SandboxWarmPool"]["spec"]["replicas"] == 3
    assert found["SandboxClaim"]["spec"] == {"warmPoolRef": {"name": "notes"}}
    assert "service" not in template


def test_each_sandbox_of_a_pool_has_its_own_state_and_service():
    """Check that each sandbox gets its own PersistentVolumeClaim for its state, because sandboxes
    on two nodes cannot mount the same volume.
    """
    made = workload({"filesystem": {"state": True}, "network": {"listen": [8080]}})
    found = {one["kind"]: one for one in kubernetes.make_sandbox_objects(made, replicas=3)}
    assert "PersistentVolumeClaim" not in found
    template = found["SandboxTemplate"]["spec"]
    (claim,) = template["volumeClaimTemplates"]
    mounts = template["podTemplate"]["spec"]["containers"][0]["volumeMounts"]
    assert claim["metadata"]["name"] in {one["name"] for one in mounts}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    volumes = template["podTemplate"]["spec"]["volumes"]
    assert not [one for one in volumes if "persistentVolumeClaim" in one]
    assert template["service"] is True
