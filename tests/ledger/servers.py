"""The promises of docs/servers.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

PLANTED = "tests/inside/test_planted_files.py"
LAYOUTS = "tests/linux/test_project_layouts.py"
ARCHIVE = "tests/unit/servers/test_archive.py"
BUNDLES = "tests/linux/test_bundles.py"
DOWNLOAD = "tests/unit/servers/test_download.py"
PACKAGES = "tests/linux/test_packages.py"
SERVERS_PAGE = "docs/servers.md"
STORE = "tests/unit/servers/test_store.py"
SUPPLY = "tests/linux/test_supply_chain.py"

CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(id=name, sentence=sentence, tests=tests, source=SERVERS_PAGE, where=where)
        for name, sentence, where, tests in (
            (
                "package-once",
                "A cached package starts no package manager and asks no registry.",
                LINUX,
                (
                    f"{PACKAGES}::test_a_package_is_installed_once_and_then_runs_by_itself",
                    f"{PACKAGES}::test_a_wheel_is_installed_once_and_then_runs_by_itself",
                ),
            ),
            (
                "explain-starts-nothing",
                "they start nothing of it.",
                LINUX,
                (
                    "tests/linux/test_approve.py::test_explain_and_approve_start_nothing",
                    "tests/linux/test_cli.py::test_explain_starts_nothing",
                ),
            ),
            (
                "package-no-project",
                "Settings in the working directory are not read; it may be anybody's.",
                ANY,
                ("tests/unit/servers/test_package_settings.py::test_a_project_in_the_working_directory_has_no_say",),
            ),
            (
                "package-index-here",
                "An index on this machine (`file://`) is granted for reading.",
                LINUX,
                (f"{PACKAGES}::test_an_index_on_this_machine_is_readable_and_nothing_beside_it",),
            ),
            (
                "package-size",
                "is refused above 4 GiB or 200 000 files, after the fact.",
                ANY,
                ("tests/unit/servers/test_package_files.py::test_more_than_a_package_has",),
            ),
            (
                "bundle-launchers",
                "A bundle that starts `npx` or `uvx` is refused: run the package itself.",
                LINUX,
                (f"{BUNDLES}::test_a_command_that_leads_out_of_the_bundle_is_refused",),
            ),
            (
                "store-digest",
                "Trees are named by a digest of their content and are read-only.",
                ANY,
                (
                    f"{STORE}::test_it_is_private_and_read_only",
                    f"{STORE}::test_every_change_makes_another_digest",
                    f"{STORE}::test_the_same_content_is_kept_once",
                ),
            ),
            (
                "package-origin",
                "the same name from another registry is another package in the cache.",
                LINUX,
                (f"{SUPPLY}::test_another_registry_fills_the_cache_for_itself_only",),
            ),
            (
                "package-own-files",
                "a package whose `.pth` or `#!` lines lead to files of yours is refused.",
                LINUX,
                (
                    f"{SUPPLY}::test_a_wheel_names_a_project_of_the_users",
                    f"{SUPPLY}::test_a_program_of_a_package_starts_one_of_the_users",
                ),
            ),
            (
                "own-files-lead",
                "Otherwise the run refuses and names the `--read` that allows it.",
                LINUX,
                (
                    f"{PLANTED}::test_a_fresh_checkout_does_not_choose_what_is_read",
                    f"{PLANTED}::test_a_servers_directory_does_not_choose_what_is_read",
                    f"{PLANTED}::test_a_run_does_not_choose_what_the_next_one_reads",
                    f"{SUPPLY}::test_a_bundle_with_a_relative_trampoline",
                ),
            ),
            (
                "own-files-root",
                "For a program in a write grant it is that grant.",
                LINUX,
                (f"{PLANTED}::test_a_run_does_not_grow_the_project_of_the_next_one",),
            ),
            (
                "packages-above-root",
                "`node_modules` above the root is not readable; a warning names the flag.",
                LINUX,
                (
                    f"{PLANTED}::test_packages_above_the_root_are_not_bound",
                    f"{LAYOUTS}::test_a_workspace_that_does_not_list_the_package",
                ),
            ),
            (
                "own-files-layouts",
                "Editable tools, Poetry's environments and pnpm's global store may need the flags of the hint.",
                LINUX,
                (
                    f"{LAYOUTS}::test_a_hoisted_workspace",
                    f"{LAYOUTS}::test_an_editable_uv_tool",
                    f"{LAYOUTS}::test_poetrys_environment_in_the_cache",
                    f"{LAYOUTS}::test_pnpm_with_the_global_store",
                    f"{LAYOUTS}::test_a_submodule",
                ),
            ),
            (
                "wrap-asks-reads",
                "without a terminal it leaves the server as it is.",
                LINUX,
                ("tests/unit/clients/test_clients_wrapping.py::test_what_a_servers_files_lead_to_is_asked_about",),
            ),
            (
                "bundle-kept",
                "A bundle gets these values once you approved exactly that file.",
                LINUX,
                (f"{SUPPLY}::test_values_kept_for_one_bundle_are_not_anothers",),
            ),
            (
                "store-closed",
                "corral refuses and says so.",
                LINUX,
                (f"{SUPPLY}::test_root_without_namespaces_is_told_why",),
            ),
            (
                "package-walls",
                "It sees nothing of yours, and reaches nothing but the registry.",
                LINUX,
                (
                    f"{PACKAGES}::test_install_scripts_run_only_when_asked_and_then_inside_walls",
                    "tests/unit/servers/test_package_settings.py::test_exactly_the_registrys_hosts_and_ports_may_be_reached",
                ),
            ),
            (
                "package-credentials",
                "They are in no file of the cache and in no message.",
                LINUX,
                (
                    f"{PACKAGES}::test_credentials_reach_the_registry_and_nobody_else",
                    "tests/unit/servers/test_package_settings.py::test_npm_reads_the_users_file_and_the_environment",
                ),
            ),
            (
                "package-scripts",
                "nothing of a package runs before the server itself does.",
                LINUX,
                (
                    f"{PACKAGES}::test_install_scripts_run_only_when_asked_and_then_inside_walls",
                    f"{PACKAGES}::test_a_source_archive_is_not_built",
                ),
            ),
            (
                "package-integrity",
                "an archive that is not what the registry promised is refused.",
                LINUX,
                (
                    f"{PACKAGES}::test_an_archive_that_is_not_what_the_registry_promised",
                    f"{PACKAGES}::test_a_wheel_that_is_not_what_the_index_promised",
                ),
            ),
            (
                "package-pinned",
                "without one, the newest is looked up once and stays until you remove it.",
                LINUX,
                (f"{PACKAGES}::test_without_a_version_the_newest_is_taken_once",),
            ),
            (
                "package-whole",
                "an installation is whole or not there, whenever it is broken off; two at once install once.",
                LINUX,
                (
                    f"{PACKAGES}::test_an_installation_that_is_broken_off_leaves_nothing_half_done",
                    f"{PACKAGES}::test_two_at_once_install_once",
                ),
            ),
            (
                "package-needs-walls",
                "there nothing is installed.",
                LINUX,
                (f"{PACKAGES}::test_without_a_network_wall_nothing_is_installed",),
            ),
            (
                "bundle-malice",
                "and what is larger than the limits (2 GiB, 50 000 entries).",
                ANY,
                (
                    f"{ARCHIVE}::test_names_that_lead_elsewhere",
                    f"{ARCHIVE}::test_what_is_neither_file_nor_directory",
                    f"{ARCHIVE}::test_two_names_for_one_file",
                    f"{ARCHIVE}::test_encryption",
                    f"{ARCHIVE}::test_entries_that_overlap",
                    f"{ARCHIVE}::test_something_before_the_archive",
                    f"{ARCHIVE}::test_something_behind_the_archive",
                    f"{ARCHIVE}::test_ten_gigabytes_of_zeros",
                    f"{ARCHIVE}::test_too_many_entries",
                    f"{BUNDLES}::test_a_malicious_bundle_leaves_nothing_in_the_store",
                ),
            ),
            (
                "reference-first",
                "a directory is written with a slash, a package's name is never a folder's.",
                LINUX,
                (
                    "tests/linux/test_supply_chain.py::test_a_directory_that_is_called_like_a_command",
                    "tests/linux/test_supply_chain.py::test_a_directory_that_is_called_like_a_package",
                    "tests/unit/servers/test_reference.py::test_a_file_of_that_name_is_neither",
                ),
            ),
            (
                "bundle-signature",
                "`corral explain` says so and shows the digest.",
                LINUX,
                (f"{BUNDLES}::test_a_signature_is_not_verified_and_explain_says_so",),
            ),
            (
                "bundle-values",
                "Sensitive values are secrets.",
                LINUX,
                (f"{BUNDLES}::test_values_of_the_user_become_grants_and_secrets",),
            ),
            (
                "bundle-request",
                "It counts once you approved exactly that file.",
                LINUX,
                (
                    f"{BUNDLES}::test_what_a_bundle_asks_for_counts_once_approved",
                    f"{BUNDLES}::test_a_default_that_names_files_is_a_request",
                ),
            ),
            (
                "bundle-upgrade",
                "An upgrade that asks for more shows what is new.",
                LINUX,
                (f"{BUNDLES}::test_an_upgrade_that_asks_for_more_shows_the_difference",),
            ),
            (
                "registry-verified",
                "and refused if its SHA-256 is not the one in server.json.",
                LINUX,
                (
                    f"{BUNDLES}::test_a_server_of_a_registry_is_fetched_once_and_verified",
                    f"{BUNDLES}::test_a_download_that_is_not_what_was_promised_is_refused",
                    f"{DOWNLOAD}::test_what_is_too_large_is_refused_whatever_it_says",
                    f"{DOWNLOAD}::test_redirects_are_followed_a_few_times",
                ),
            ),
            (
                "registry-https",
                "Plain HTTP is for loopback only.",
                ANY,
                (
                    f"{DOWNLOAD}::test_only_loopback_may_be_asked_without_tls",
                    f"{DOWNLOAD}::test_a_redirect_may_not_leave_tls",
                ),
            ),
            (
                "registry-request",
                "A required variable that is only in your environment is a request.",
                LINUX,
                (f"{BUNDLES}::test_variables_and_arguments_of_server_json",),
            ),
            (
                "store-private",
                "The cache is yours alone (0700), and no policy can grant it.",
                ANY,
                (
                    f"{STORE}::test_it_is_private_and_read_only",
                    f"{STORE}::test_it_can_never_be_granted",
                ),
            ),
            (
                "store-verified",
                "A tree is hashed again at its first use after a boot, and refused if it changed.",
                ANY,
                (f"{STORE}::test_what_changed_is_refused_at_the_first_use_after_a_boot",),
            ),
        )
    ),
    Claim(
        id="package-windows",
        sentence="packages are not installed there yet, and a run refuses.",
        tests=("tests/windows/test_run.py::test_packages_are_refused",),
        source=SERVERS_PAGE,
        where="Windows' calls under Wine",
    ),
)  # fmt: skip
