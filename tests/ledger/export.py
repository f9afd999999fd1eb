"""List the promises of docs/export.md and docs/kubernetes.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

PAGE = "docs/export.md"
OCI = "tests/linux/test_export_oci.py"
ATTACKS = "tests/inside/test_exported_bundles.py"
CLUSTER = "docs/kubernetes.md"
K8S = "tests/linux/test_export_kubernetes.py"
OBJECTS = "tests/unit/export/test_kubernetes.py"
PROFILE = "tests/unit/export/test_seccomp_profile.py"

CLAIMS: tuple[Claim, ...] = tuple(
    Claim(id=name, sentence=sentence, tests=tests, source=PAGE, where=where)
    for name, sentence, where, tests in (
        (
            "export-walls",
            "The bundle has the same mounts, limits and syscall rules as a run of corral.",
            LINUX,
            (
                f"{OCI}::test_a_bundle_runs_behind_the_same_walls",
                f"{OCI}::test_the_configuration_contains_the_policy",
            ),
        ),
        (
            "export-filter",
            "Its syscall filter allows the same calls as corral's own filter, and also lets the target replace itself with another program (exec).",
            ANY,
            (f"{PROFILE}::test_the_profile_allows_the_calls_of_the_filter",),
        ),
        (
            "export-refuses",
            "without root also memory and CPU shares.",
            LINUX,
            (
                f"{OCI}::test_controls_that_no_runtime_enforces_are_refused",
                f"{OCI}::test_without_root_a_memory_limit_is_refused",
            ),
        ),
        (
            "export-secrets",
            "No file of the bundle contains a secret.",
            LINUX,
            (f"{OCI}::test_no_bundle_file_contains_a_secret",),
        ),
        (
            "export-force",
            "`--force` replaces only an earlier bundle.",
            LINUX,
            (f"{OCI}::test_only_a_bundle_is_replaced",),
        ),
        (
            "export-attacks",
            "as root and as an ordinary user.",
            LINUX,
            (f"{ATTACKS}::test_a_bundle_blocks_the_same_attacks_as_a_run",),
        ),
    )
) + tuple(
    Claim(id=name, sentence=sentence, tests=tests, source=CLUSTER, where=where)
    for name, sentence, where, tests in (
        (
            "k8s-exec",
            "Each client has a separate process in the pod.",
            LINUX,
            (f"{K8S}::test_a_pod_in_podman_answers_and_reaches_only_its_hosts",),
        ),
        (
            "k8s-listen",
            "The NetworkPolicy opens only that port.",
            ANY,
            (
                f"{OBJECTS}::test_a_listening_server_has_a_service_and_one_open_port",
                "tests/linux/test_listen.py::test_other_addresses_are_published_only_on_request",
            ),
        ),
        (
            "k8s-volumes",
            "The export refuses grants without a volume, and names all of them.",
            ANY,
            (f"{OBJECTS}::test_a_refusal_names_all_grants_without_a_volume",),
        ),
        (
            "k8s-secrets",
            "The pod takes each value from the Secret `corral-secrets`, and the export prints the command that makes this Secret.",
            ANY,
            (
                f"{OBJECTS}::test_secrets_have_names_and_no_values",
                f"{K8S}::test_no_file_contains_a_secrets_value",
            ),
        ),
        (
            "k8s-names",
            "With names it opens their ports to public addresses and the cluster's DNS, and corral in the pod allows only these names.",
            LINUX,
            (
                f"{OBJECTS}::test_ports_of_names_are_open_to_public_addresses_only",
                f"{K8S}::test_a_pod_in_podman_answers_and_reaches_only_its_hosts",
            ),
        ),
        (
            "k8s-agent-sandbox",
            "a claim with its own variables gets no warm sandbox.",
            ANY,
            (
                f"{OBJECTS}::test_agent_sandbox_objects_state_a_network_policy_and_forbid_variables",
                f"{K8S}::test_agent_sandbox_definitions_accept_the_files",
            ),
        ),
        (
            "k8s-restricted",
            "a read-only root, the engine's seccomp profile.",
            ANY,
            (f"{OBJECTS}::test_every_pod_is_restricted_with_a_read_only_root",),
        ),
        (
            "k8s-refuses",
            "The export refuses a wall or a stated limit that nothing enforces, as a run does.",
            ANY,
            (f"{OBJECTS}::test_a_stated_limit_that_cannot_be_enforced_is_refused",),
        ),
        (
            "k8s-played",
            "a published server answered over `exec -i`, an allowed name answered, and another name was refused and is in the log.",
            LINUX,
            (
                f"{K8S}::test_a_pod_in_podman_answers_and_reaches_only_its_hosts",
                f"{K8S}::test_kubernetes_schemas_accept_the_files",
            ),
        ),
    )
)
