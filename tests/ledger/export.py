"""List the promises in docs/export.md and docs/kubernetes.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

PAGE = "docs/export.md"
OCI = "tests/linux/test_export_oci.py"
ATTACKS = "tests/inside/test_exported_bundles.py"
CLUSTER = "docs/kubernetes.md"
K8S = "tests/linux/test_export_kubernetes.py"
OBJECTS = "tests/unit/export/test_kubernetes.py"
BUILD = "tests/unit/export/test_containerfile.py"
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
            "The bundle's syscall filter allows the same calls as the filter of a run. It also allows exec, because the runtime loads the filter before it executes the target. So the target can replace itself with another program.",
            ANY,
            (f"{PROFILE}::test_the_profile_allows_the_calls_of_the_filter",),
        ),
        (
            "export-refuses",
            "A bundle cannot contain a network allowlist, a timeout or an I/O rate, so `corral export` refuses a policy that has one of them. If an ordinary user exports the bundle, it also refuses a limit of memory or CPU shares.",
            LINUX,
            (
                f"{OCI}::test_controls_that_no_runtime_enforces_are_refused",
                f"{OCI}::test_without_root_a_memory_limit_is_refused",
            ),
        ),
        (
            "export-secrets",
            "The bundle's files do not contain secrets.",
            LINUX,
            (f"{OCI}::test_no_bundle_file_contains_a_secret",),
        ),
        (
            "export-force",
            "`--force` replaces only an earlier bundle.",
            LINUX,
            (f"{OCI}::test_force_replaces_only_a_bundle",),
        ),
        (
            "export-list",
            "The list of controls that `corral export` prints says so.",
            LINUX,
            (
                f"{ATTACKS}::test_each_private_directory_has_the_disk_limit",
                f"{ATTACKS}::test_quotas_that_a_bundle_does_not_limit_are_on_its_list",
            ),
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
            "Each client gets a separate process in the pod.",
            LINUX,
            (f"{K8S}::test_the_containerfile_builds_an_image_whose_server_answers",),
        ),
        (
            "k8s-lock",
            "corral never writes a Containerfile for a bundle, or for a package that was installed with `--allow-install-scripts`, because such a package may have written its own lock file.",
            ANY,
            (
                f"{BUILD}::test_a_bundle_with_the_files_of_a_package_gets_no_containerfile",
                f"{BUILD}::test_a_lock_file_that_a_package_may_have_written_is_refused",
                f"{BUILD}::test_a_lock_file_with_options_is_refused",
                f"{BUILD}::test_corral_is_installed_before_the_server_and_by_another_user",
            ),
        ),
        (
            "k8s-waits",
            "When the pod is deleted, it ends at once. Sessions that end do not leave zombies.",
            LINUX,
            (
                "tests/linux/test_export_wait.py::test_the_waiting_process_ends_at_once_and_reaps_orphans",
            ),
        ),
        (
            "k8s-names-differ",
            "The name of an object consists of the server's name and a hash of its reference or command. So two servers have different names, and the names differ from those of any Helm chart.",
            ANY,
            (
                f"{OBJECTS}::test_different_servers_get_different_object_names",
                f"{OBJECTS}::test_selectors_match_the_pods_of_this_server_only",
                f"{K8S}::test_a_directory_contains_the_export_of_only_one_server",
            ),
        ),
        (
            "k8s-deadline",
            "Its `activeDeadlineSeconds` is the timeout plus five minutes for the start.",
            ANY,
            (f"{OBJECTS}::test_a_listening_server_with_a_timeout_is_not_started_again",),
        ),
        (
            "k8s-cilium",
            "Older versions of Cilium match only one label, and so block names that corral would allow.",
            ANY,
            (f"{OBJECTS}::test_cilium_rules_allow_hosts_by_name",),
        ),
        (
            "k8s-sandbox-state",
            "With `--state` each sandbox gets its own PersistentVolumeClaim. With `--listen` each sandbox gets its own headless service.",
            ANY,
            (
                f"{OBJECTS}::test_each_sandbox_of_a_pool_has_its_own_state_and_service",
                f"{OBJECTS}::test_printed_commands_name_objects_that_are_written",
            ),
        ),
        (
            "k8s-requests",
            "`resources.requests` asks for 64 MiB and 10m of a processor for each pod, but never for more than the limits.",
            ANY,
            (f"{OBJECTS}::test_a_pod_requests_no_more_than_its_limits",),
        ),
        (
            "k8s-http",
            "A listening server answered by HTTP.",
            LINUX,
            (f"{K8S}::test_a_listening_server_in_podman_answers_by_http",),
        ),
        (
            "k8s-listen",
            "The NetworkPolicy opens only the server's port.",
            ANY,
            (
                f"{OBJECTS}::test_a_listening_server_has_a_service_and_one_open_port",
                "tests/linux/test_listen.py::test_other_addresses_are_published_only_on_request",
            ),
        ),
        (
            "k8s-volumes",
            "If a granted path has no volume, the export fails and lists every such path.",
            ANY,
            (f"{OBJECTS}::test_a_refusal_names_all_grants_without_a_volume",),
        ),
        (
            "k8s-secrets",
            "The pod takes each value from the Secret `NAME-secrets` of its server, and the export prints the command that makes this Secret.",
            ANY,
            (
                f"{OBJECTS}::test_secrets_have_names_and_no_values",
                f"{OBJECTS}::test_each_server_has_its_own_secret_and_field_manager",
                f"{K8S}::test_exported_files_do_not_contain_the_value_of_a_secret",
            ),
        ),
        (
            "k8s-names",
            "With `--allow-net` it opens the ports of the allowed names to all public addresses, because it cannot name hosts, and it opens the cluster's DNS. corral in the pod allows only these names.",
            LINUX,
            (
                f"{OBJECTS}::test_ports_of_allowed_host_names_are_open_to_public_addresses_only",
                f"{K8S}::test_a_pod_in_podman_answers_and_reaches_only_its_hosts",
            ),
        ),
        (
            "k8s-agent-sandbox",
            "It forbids variables in claims, because a claim with variables of its own does not get a warm sandbox.",
            ANY,
            (
                f"{OBJECTS}::test_agent_sandbox_objects_state_a_network_policy_and_forbid_variables",
                f"{K8S}::test_agent_sandbox_definitions_accept_the_files",
            ),
        ),
        (
            "k8s-restricted",
            'The pod meets the Pod Security standard "restricted": it does not run as root, has no capabilities and a read-only root, and uses the engine\'s seccomp profile.',
            ANY,
            (f"{OBJECTS}::test_every_pod_is_restricted_with_a_read_only_root",),
        ),
        (
            "k8s-refuses",
            "Like a run, the export refuses a policy with a wall or a stated limit that nothing can enforce.",
            ANY,
            (f"{OBJECTS}::test_a_stated_limit_that_cannot_be_enforced_is_refused",),
        ),
        (
            "k8s-played",
            "A published server answered over `exec -i`, an allowed name answered, and a name that was not allowed was refused and logged.",
            LINUX,
            (
                f"{K8S}::test_the_containerfile_builds_an_image_whose_server_answers",
                f"{K8S}::test_a_pod_in_podman_answers_and_reaches_only_its_hosts",
                f"{K8S}::test_kubernetes_schemas_accept_the_files",
            ),
        ),
    )
)
