"""List the promises in docs/servers.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

PLANTED = "tests/inside/test_planted_files.py"
LAYOUTS = "tests/linux/test_project_layouts.py"
ARCHIVE = "tests/unit/servers/test_archive.py"
BUNDLES = "tests/linux/test_bundles.py"
DOWNLOAD = "tests/unit/servers/test_download.py"
PACKAGES = "tests/linux/test_packages.py"
REGISTRIES = "tests/linux/test_registry_failures.py"
INSTALLER = "tests/linux/test_installer_process.py"
SERVERS_PAGE = "docs/servers.md"
HOMES = "tests/inside/test_kept_homes.py"
STORE = "tests/unit/servers/test_store.py"
SUPPLY = "tests/linux/test_supply_chain.py"

CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(id=name, sentence=sentence, tests=tests, source=SERVERS_PAGE, where=where)
        for name, sentence, where, tests in (
            (
                "package-once",
                "Once a package is in the cache, corral starts it without a package manager and without asking a registry.",
                LINUX,
                (
                    f"{PACKAGES}::test_a_package_is_installed_once_and_then_runs_without_the_registry",
                    f"{PACKAGES}::test_a_wheel_is_installed_once_and_then_runs_without_the_index",
                ),
            ),
            (
                "upgrade-approved",
                "The old version stays in use until you agree, at the prompt or with `--yes`.",
                LINUX,
                (
                    "tests/linux/test_upgrade.py::test_the_old_version_stays_until_the_new_one_is_approved",
                    "tests/linux/test_upgrade.py::test_an_upgrade_shows_the_new_parts_of_a_servers_request",
                    "tests/linux/test_upgrade.py::test_a_dependency_cannot_be_replaced_under_its_name",
                    "tests/unit/servers/test_interrupted_upgrade.py::test_an_upgrade_that_fails_keeps_the_old_version",
                ),
            ),
            (
                "upgrade-back",
                "corral keeps the previous version, so you can go back without asking a registry.",
                LINUX,
                ("tests/linux/test_upgrade.py::test_going_back_to_the_previous_version_does_not_ask_the_registry",),
            ),
            (
                "package-silent",
                "npm, uv and pip wait 30 seconds for an answer, try once more, and then give up.",
                LINUX,
                (
                    f"{REGISTRIES}::test_a_registry_that_never_answers_is_reported_before_the_installer_gives_up",
                    "tests/unit/servers/test_package_settings.py::test_a_silent_registry_is_reported_once",
                ),
            ),
            (
                "npm-other-node",
                "If no version fits, or if you name a version that does not fit, corral starts the package anyway, as npx does, and says in one line which node it needs.",
                LINUX,
                (f"{REGISTRIES}::test_a_package_that_needs_another_version_of_node_is_reported",),
            ),
            (
                "install-certificates",
                "npm uses its setting `cafile`, uv SSL_CERT_FILE, and pip PIP_CERT.",
                LINUX,
                (
                    f"{REGISTRIES}::test_npms_cafile_is_read_as_npm_reads_it",
                    f"{REGISTRIES}::test_a_registry_with_its_own_certificate_authority_works_if_a_variable_names_it",
                ),
            ),
            (
                "package-profile",
                "If corral has a [profile](profiles.md) for a package but you do not use it, the run says so.",
                LINUX,
                (f"{PACKAGES}::test_a_package_with_a_profile_names_the_profile",),
            ),
            (
                "package-runtime",
                "`--node 22` and `--python 3.12` choose a different installed version (the system's, pyenv's, uv's, nvm's, fnm's, Volta's, asdf's, mise's, Homebrew's). Both flags also take a path.",
                LINUX,
                (
                    f"{PACKAGES}::test_the_chosen_node_installs_and_starts_a_package",
                    f"{PACKAGES}::test_the_chosen_python_installs_and_starts_a_package",
                    f"{PACKAGES}::test_pyenvs_python_installs_and_starts_a_package",
                    "tests/unit/programs/test_installed_runtimes.py::test_runtimes_of_version_managers_are_found",
                ),
            ),
            (
                "package-python-named",
                "If a package needs another version of Python and this version is installed, the error message names it.",
                LINUX,
                (
                    f"{PACKAGES}::test_pyenvs_python_installs_and_starts_a_package",
                    "tests/unit/servers/test_install_errors.py::test_a_suitable_installed_python_is_named",
                ),
            ),
            (
                "run-replaces-runners",
                "For `corral run npx -y @scope/name` and `corral run uvx name` (also `npm exec`, `pnpm dlx`, `yarn dlx`, `bunx`, `uv tool run`, `pipx run`), corral runs the package from its cache, without the runner, and says so in one line.",
                LINUX,
                (
                    f"{PACKAGES}::test_a_python_runner_is_replaced_by_its_package",
                    f"{PACKAGES}::test_a_node_runner_is_replaced_by_its_package",
                ),
            ),
            (
                "run-refuses-runners",
                "Such a command needs other programs and usually the network, which the walls deny, and would only hang. So corral refuses it with a hint, unless subprocesses are allowed.",
                LINUX,
                (f"{PACKAGES}::test_a_runner_that_cannot_be_replaced_is_refused",),
            ),
            (
                "package-downloads",
                "Servers cannot change these downloads.",
                LINUX,
                (
                    f"{PACKAGES}::test_downloads_are_kept_until_an_installation_succeeds",
                    f"{PACKAGES}::test_npms_downloads_are_kept_until_an_installation_succeeds",
                    f"{STORE}::test_downloads_are_kept_for_a_day",
                    f"{STORE}::test_downloads_are_kept_if_the_installation_may_go_on",
                ),
            ),
            (
                "explain-starts-nothing",
                "To find out which program a server runs, `explain` and `approve` have to fetch, install and unpack the server, as `run` does, but they do not start it.",
                LINUX,
                (
                    "tests/linux/test_approve.py::test_explain_and_approve_start_nothing",
                    "tests/linux/test_cli.py::test_explain_starts_nothing",
                ),
            ),
            (
                "package-no-project",
                "corral does not read settings in the working directory, because they may come from someone else.",
                ANY,
                ("tests/unit/servers/test_package_settings.py::test_settings_in_the_working_directory_are_ignored",),
            ),
            (
                "package-index-here",
                "corral lets the installer read it.",
                LINUX,
                (f"{PACKAGES}::test_an_index_on_this_machine_can_be_read_but_not_the_files_beside_it",),
            ),
            (
                "package-size",
                "The sandbox cannot limit the size of an installation while the installer runs. So corral measures the finished installation, and refuses it if it has more than 4 GiB or 200 000 files.",
                ANY,
                ("tests/unit/servers/test_package_files.py::test_a_package_with_too_many_bytes_or_files_is_refused",),
            ),
            (
                "bundle-launchers",
                "corral installs the dependencies of a `uv` server like those of a package. It refuses a bundle that starts `npx` or `uvx`; run the package itself instead.",
                LINUX,
                (f"{BUNDLES}::test_a_command_that_leads_out_of_the_bundle_is_refused",),
            ),
            (
                "store-digest",
                "Each installed server is a read-only directory tree, whose name is a digest of its content.",
                ANY,
                (
                    f"{STORE}::test_a_stored_tree_is_private_and_read_only",
                    f"{STORE}::test_every_change_of_a_stored_tree_changes_its_digest",
                    f"{STORE}::test_equal_content_is_stored_once",
                ),
            ),
            (
                "package-origin",
                "**Another registry**: packages with the same name from different registries are different packages in the cache.",
                LINUX,
                (f"{SUPPLY}::test_packages_of_another_registry_are_not_shared",),
            ),
            (
                "package-same-index",
                "If you later remove all indexes but one from your settings, corral still uses the installation if every package in it came from the remaining index.",
                LINUX,
                (
                    f"{SUPPLY}::test_a_setting_that_had_no_effect_on_an_installation_causes_no_new_one",
                    f"{SUPPLY}::test_packages_of_another_index_are_not_shared",
                    "tests/unit/servers/test_package_settings.py::test_the_order_of_indexes_and_the_scope_of_a_registry_change_the_cache_key",
                ),
            ),
            (
                "package-scripts-index",
                "But corral does not use such an installation if it was made with `--allow-install-scripts`, because the code of a package could then have forged the record of where the packages came from.",
                LINUX,
                (f"{SUPPLY}::test_a_script_cannot_claim_to_come_from_another_index",),
            ),
            (
                "package-own-files",
                "corral refuses a package whose `.pth` or `#!` lines lead to your files.",
                LINUX,
                (
                    f"{SUPPLY}::test_a_wheel_cannot_open_the_users_project",
                    f"{SUPPLY}::test_a_package_cannot_start_the_users_program",
                ),
            ),
            (
                "own-files-lead",
                "The files of a server can refer to paths outside of the server's own directory: by a link, a line of a `.pth` file, a `pyvenv.cfg`, a `#!` line, a shell script that starts another program, or an entry of `node_modules`. Because the server's author or an earlier run of the server may have written these files, they must not decide what the server may read. So the server can read such a path only if it is inside the server's root, a runtime or a grant. Otherwise corral refuses the run and names the `--read` flag that allows it.",
                LINUX,
                (
                    f"{PLANTED}::test_a_fresh_checkout_cannot_choose_readable_paths",
                    f"{PLANTED}::test_a_servers_directory_cannot_choose_readable_paths",
                    f"{PLANTED}::test_a_run_cannot_choose_readable_paths_of_the_next_run",
                    f"{SUPPLY}::test_a_script_of_a_bundle_cannot_name_an_interpreter_outside_by_a_relative_path",
                ),
            ),
            (
                "own-files-root",
                "**The root** is the directory that you named, but never your home directory.",
                LINUX,
                (f"{PLANTED}::test_removing_a_projects_marker_file_does_not_make_its_parent_readable",),
            ),
            (
                "own-files-script",
                "A script that you name is readable only if it looks like a program: its name has a suitable suffix (`.py`, `.js`), it is executable, or it begins with `#!`. Other files need `--read`, because a project can bring settings for a client, and these settings could name a private key as the script.",
                LINUX,
                (
                    "tests/inside/test_launcher.py::test_a_key_that_is_named_as_the_script_is_not_readable",
                ),
            ),
            (
                "packages-above-root",
                "- The server cannot read a `node_modules` above its root; a warning names the flag that grants it.",
                LINUX,
                (
                    f"{PLANTED}::test_node_modules_above_the_servers_project_are_not_readable",
                    f"{LAYOUTS}::test_a_server_that_its_workspace_does_not_list_runs_after_the_hint_is_followed",
                ),
            ),
            (
                "own-files-layouts",
                "Tools in editable mode, Poetry's environments and pnpm's global store may need the flags that corral's message shows.",
                LINUX,
                (
                    f"{LAYOUTS}::test_a_server_with_packages_in_the_node_modules_of_its_workspace_runs",
                    f"{LAYOUTS}::test_an_editable_uv_tool_runs_after_the_hint_is_followed",
                    f"{LAYOUTS}::test_a_server_in_a_poetry_environment_in_the_cache_runs_after_the_hint_is_followed",
                    f"{LAYOUTS}::test_a_server_with_packages_in_pnpms_global_store_runs_after_the_hint_is_followed",
                    f"{LAYOUTS}::test_a_server_in_a_git_submodule_runs",
                ),
            ),
            (
                "wrap-asks-reads",
                "Without a terminal it does not change the server's entry.",
                LINUX,
                ("tests/unit/clients/test_clients_wrapping.py::test_paths_in_a_servers_files_need_a_grant",),
            ),
            (
                "bundle-kept",
                "- corral finds the values in `bundles.toml` by the bundle's name, but any bundle can have the same name. So corral passes these values to a bundle only after you have approved exactly that file.",
                LINUX,
                (
                    f"{SUPPLY}::test_a_bundle_does_not_get_another_bundles_values",
                    f"{BUNDLES}::test_a_bundle_does_not_start_if_the_user_refuses_it_the_kept_values",
                    f"{BUNDLES}::test_an_inspected_bundle_gets_the_kept_values_only_after_approval",
                ),
            ),
            (
                "store-closed",
                "corral refuses the run and says so.",
                LINUX,
                (f"{SUPPLY}::test_root_without_namespaces_is_refused_with_the_reason",),
            ),
            (
                "package-walls",
                "The installer is your own `npm`, `uv` or `pip`. It does not see your files, and reaches only the registry.",
                LINUX,
                (
                    f"{PACKAGES}::test_install_scripts_run_only_when_asked_and_then_inside_walls",
                    "tests/unit/servers/test_package_settings.py::test_only_the_registrys_hosts_and_ports_are_allowed",
                ),
            ),
            (
                "package-credentials",
                "Files in the cache and messages do not contain credentials.",
                LINUX,
                (
                    f"{PACKAGES}::test_credentials_reach_only_the_registry",
                    "tests/unit/servers/test_package_settings.py::test_npm_reads_the_users_file_and_the_environment",
                ),
            ),
            (
                "package-scripts",
                "**Install scripts** do not run, and corral does not build source archives. So a package's code does not run before the server itself.",
                LINUX,
                (
                    f"{PACKAGES}::test_install_scripts_run_only_when_asked_and_then_inside_walls",
                    f"{PACKAGES}::test_a_source_archive_is_not_built",
                ),
            ),
            (
                "package-integrity",
                "corral refuses an archive if its checksum differs from the checksum in the registry.",
                LINUX,
                (
                    f"{PACKAGES}::test_an_archive_with_another_digest_is_refused",
                    f"{PACKAGES}::test_a_wheel_with_another_digest_is_refused",
                ),
            ),
            (
                "package-pinned",
                "If you do not name a version, corral looks up the newest version once, and keeps it until you upgrade or remove it.",
                LINUX,
                (f"{PACKAGES}::test_without_a_version_the_newest_is_taken_once",),
            ),
            (
                "npm-engines",
                "**npm**: like npx, corral takes the newest version whose `engines` fit your Node.js.",
                LINUX,
                (f"{PACKAGES}::test_without_a_version_npm_takes_the_newest_that_fits_node",),
            ),
            (
                "pypi-no-walk-back",
                "corral never falls back to an old version.",
                LINUX,
                (
                    f"{PACKAGES}::test_a_dependency_without_a_wheel_is_named_and_no_older_version_is_used",
                    f"{PACKAGES}::test_a_newest_version_without_a_wheel_is_reported",
                ),
            ),
            (
                "install-causes",
                "there is no wheel; the package needs another Python or node; a certificate is not trusted, is expired or belongs to another host; the disk is full; the name or the version is unknown; a dependency's version does not exist; the registry cannot be reached or does not answer.",
                ANY,
                (
                    "tests/unit/servers/test_install_errors.py::test_the_cause_of_a_known_installer_error_is_named_with_a_hint",
                    "tests/unit/servers/test_install_errors.py::test_a_missing_version_of_a_dependency_has_its_own_hint",
                    f"{REGISTRIES}::test_a_missing_version_of_a_dependency_is_named_with_its_own_hint",
                    f"{REGISTRIES}::test_a_certificate_for_another_host_is_named",
                ),
            ),
            (
                "package-whole",
                "If two starts need the same package at the same time, it is installed only once.",
                LINUX,
                (
                    f"{PACKAGES}::test_an_interrupted_installation_leaves_nothing_unfinished",
                    f"{PACKAGES}::test_two_starts_at_once_install_once",
                ),
            ),
            (
                "package-outlives-client",
                "The installer then continues in its sandbox for at most ten minutes, but the server is not started. corral runs at most one installer for each package.",
                LINUX,
                (
                    f"{INSTALLER}::test_an_installer_continues_after_its_client_has_ended",
                    f"{INSTALLER}::test_a_second_start_waits_for_the_same_installer",
                    f"{INSTALLER}::test_an_ended_input_does_not_count_as_an_ended_client",
                    f"{INSTALLER}::test_an_installer_without_a_client_has_a_time_limit",
                ),
            ),
            (
                "package-outlives-listed",
                "`corral ps` lists the installer, and `corral clean` ends it.",
                LINUX,
                (
                    f"{INSTALLER}::test_an_installer_continues_after_its_client_has_ended",
                    f"{INSTALLER}::test_clean_ends_an_installer_without_a_client",
                ),
            ),
            (
                "package-outlives-not-kill",
                "Ctrl-C and `kill -9` of corral end an installation at once.",
                LINUX,
                (
                    f"{INSTALLER}::test_kill_9_of_corral_ends_the_installer",
                    f"{PACKAGES}::test_an_interrupted_installation_leaves_nothing_unfinished",
                ),
            ),
            (
                "package-bare",
                "corral can install packages of npm and PyPI on hosts without namespaces, too.",
                LINUX,
                (
                    f"{PACKAGES}::test_without_namespaces_a_package_is_installed",
                    f"{PACKAGES}::test_without_namespaces_a_python_package_is_installed",
                ),
            ),
            (
                "bundle-malice",
                "A bundle must not have more than 2 GiB or 50 000 entries.",
                ANY,
                (
                    f"{ARCHIVE}::test_names_that_lead_out_of_the_archive_are_refused",
                    f"{ARCHIVE}::test_entries_other_than_files_and_directories_are_refused",
                    f"{ARCHIVE}::test_two_names_for_one_file_are_refused",
                    f"{ARCHIVE}::test_encrypted_entries_are_refused",
                    f"{ARCHIVE}::test_overlapping_entries_are_refused",
                    f"{ARCHIVE}::test_data_before_the_archive_is_refused",
                    f"{ARCHIVE}::test_data_after_the_archive_is_refused",
                    f"{ARCHIVE}::test_a_stated_size_of_four_gigabytes_is_refused",
                    f"{ARCHIVE}::test_too_many_entries_are_refused",
                    f"{BUNDLES}::test_a_malicious_bundle_leaves_nothing_in_the_store",
                ),
            ),
            (
                "reference-first",
                "corral recognizes these forms by their spelling, and not by the files in the working directory: a directory is written with a slash, and the name of a package never means a directory.",
                LINUX,
                (
                    "tests/linux/test_supply_chain.py::test_a_directory_named_like_a_command_starts_only_by_its_path",
                    "tests/linux/test_supply_chain.py::test_a_directory_named_like_a_package_is_not_started",
                    "tests/unit/servers/test_reference.py::test_a_name_that_is_also_a_file_is_refused",
                ),
            ),
            (
                "bundle-signature",
                "`corral explain` says so and shows the bundle's SHA-256.",
                LINUX,
                (f"{BUNDLES}::test_a_signature_is_not_verified_and_explain_says_so",),
            ),
            (
                "bundle-values",
                "Values that the bundle marks as sensitive are secrets.",
                LINUX,
                (f"{BUNDLES}::test_settings_that_the_user_enters_become_grants_and_secrets_of_the_bundle",),
            ),
            (
                "bundle-request",
                'A bundle can request grants in two ways: with the keys of a policy in the table `_meta."io.corral"` of its manifest, or with settings whose default value is a path. This request has no effect until you approve exactly this bundle file.',
                LINUX,
                (
                    f"{BUNDLES}::test_a_bundles_request_counts_once_it_is_approved",
                    f"{BUNDLES}::test_a_bundles_default_path_needs_the_users_approval",
                ),
            ),
            (
                "bundle-arguments",
                "If a registry's entry for a server adds arguments to a bundle, the entry needs an approval of its own.",
                LINUX,
                (f"{BUNDLES}::test_a_publisher_cannot_add_arguments_to_an_approved_bundle",),
            ),
            (
                "bundle-upgrade",
                "If a newer version requests more, corral shows what is new.",
                LINUX,
                (f"{BUNDLES}::test_approve_marks_what_a_new_version_of_a_bundle_asks_for_in_addition",),
            ),
            (
                "registry-verified",
                "corral fetches a bundle (mcpb) over HTTPS with limits on size, time and redirects, and refuses the bundle if its SHA-256 differs from server.json.",
                LINUX,
                (
                    f"{BUNDLES}::test_a_registrys_server_is_fetched_once_and_verified",
                    f"{BUNDLES}::test_a_download_with_another_digest_is_refused",
                    f"{DOWNLOAD}::test_a_too_large_answer_is_refused_whatever_its_length_field",
                    f"{DOWNLOAD}::test_redirects_are_followed_a_few_times",
                    f"{DOWNLOAD}::test_an_answer_without_end_is_refused",
                ),
            ),
            (
                "registry-https",
                "corral accepts plain HTTP only from loopback.",
                ANY,
                (
                    f"{DOWNLOAD}::test_only_loopback_is_accepted_without_tls",
                    f"{DOWNLOAD}::test_a_redirect_may_not_leave_tls",
                ),
            ),
            (
                "registry-request",
                "If a required variable is set only in your environment, corral passes it to the server only after you approve this.",
                LINUX,
                (f"{BUNDLES}::test_variables_and_arguments_of_server_json_are_used",),
            ),
            (
                "store-private",
                "Only you can access the cache (0700), and a policy cannot grant it.",
                ANY,
                (
                    f"{STORE}::test_a_stored_tree_is_private_and_read_only",
                    f"{STORE}::test_a_stored_tree_can_never_be_granted",
                ),
            ),
            (
                "store-verified",
                "corral hashes a tree again when it is first used after a boot, and refuses the tree if it changed.",
                ANY,
                (f"{STORE}::test_a_changed_tree_is_refused_at_the_first_use_after_a_boot",),
            ),
        )
    ),
    Claim(
        id="home-unused",
        sentence="`corral status` says if a package has homes that no configured server uses.",
        tests=("tests/linux/test_grant.py::test_status_counts_homes_of_a_package_that_no_configured_server_uses",),
        source=SERVERS_PAGE,
        where=LINUX,
    ),
    Claim(
        id="home-directory",
        sentence="If the server can see the directory in which it starts, such a command has a home for each of these directories, so that one project cannot read or change the home of another project's server.",
        tests=(
            f"{HOMES}::test_projects_with_the_same_command_do_not_share_a_home",
            f"{HOMES}::test_projects_that_preload_a_module_into_node_do_not_share_a_home",
            f"{HOMES}::test_a_project_with_a_module_of_an_installed_servers_name_has_its_own_home",
        ),
        source=SERVERS_PAGE,
        where=LINUX,
    ),
    Claim(
        id="home-environment",
        sentence="`python -m server` in two virtual environments means two servers, which have two homes.",
        tests=(f"{HOMES}::test_virtual_environments_of_one_python_do_not_share_a_home",),
        source=SERVERS_PAGE,
        where=LINUX,
    ),
    Claim(
        id="home-anywhere",
        sentence="All other commands have the same home wherever they start: packages, bundles, installed programs, and scripts, because corral makes a script's path absolute.",
        tests=(
            f"{HOMES}::test_an_installed_program_keeps_its_home_in_every_directory",
            f"{HOMES}::test_a_server_with_an_absolute_script_keeps_its_home_in_every_workspace",
            f"{HOMES}::test_a_server_that_cannot_see_its_start_directory_keeps_its_home",
            "tests/unit/programs/test_identity.py::test_the_home_of_a_package_does_not_depend_on_the_start_directory",
        ),
        source=SERVERS_PAGE,
        where=LINUX,
    ),
    Claim(
        id="package-windows",
        sentence="npm and pip run in a separate AppContainer, which can reach only their registry.",
        tests=(
            "tests/windows/test_packages.py::test_the_plan_for_pip_runs_it_in_a_container",
            "tests/windows/test_packages.py::test_the_plan_for_npm_runs_its_script_in_a_container_without_the_batch_file",
            "tests/windows/test_packages.py::test_a_package_is_installed_and_starts",
        ),
        source=SERVERS_PAGE,
        where="the code for Windows, under Wine",
    ),
    Claim(
        id="wrap-windows-packages",
        sentence="On Windows `corral wrap` does not change npx entries until `corral run` has installed a package of npm, and uvx entries until it has installed a package of PyPI. `wrap` says so.",
        tests=("tests/unit/clients/test_clients_wrapping.py::test_on_windows_an_entry_is_not_wrapped_if_no_such_package_was_ever_started",),
        source=SERVERS_PAGE,
        where=ANY,
    ),
)  # fmt: skip
