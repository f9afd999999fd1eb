"""List the promises in docs/policy.md."""

from __future__ import annotations

from ledger.claim import Claim

ALLOWLIST = "tests/inside/test_allowlist.py"
APPROVE = "tests/linux/test_approve.py"
BUNDLE = "tests/unit/servers/test_bundle.py"
CLI = "tests/linux/test_cli.py"
FILES = "tests/inside/test_filesystem.py"
HOMES = "tests/unit/policy/test_home_grants.py"
LAUNCHER = "tests/inside/test_launcher.py"
MOUNTS = "tests/linux/test_nested_mounts.py"
OWN = "tests/unit/policy/test_own_files.py"
OWN_CODE = "tests/linux/test_own_code.py"
POLICY = "tests/unit/policy/test_policy.py"
TRUST = "tests/unit/policy/test_approvals.py"
UNITS = "tests/unit/test_units.py"

CLAIMS: tuple[Claim, ...] = tuple(
    Claim(id=name, sentence=sentence, tests=tests, source="docs/policy.md")
    for name, sentence, tests in (
        (
            "check-all",
            "`corral check FILE` reads a policy and lists every mistake at once, with its line.",
            (f"{CLI}::test_check_lists_every_mistake_with_its_line", "tests/unit/policy/test_manifest.py::test_all_mistakes_are_reported_with_their_lines"),
        ),
        ("units-size", "`MB` is refused: it could mean two sizes", (f"{UNITS}::test_the_error_for_an_ambiguous_unit_names_the_right_one",)),
        ("units-duration", "a bare number is refused", (f"{UNITS}::test_an_error_for_a_bare_duration_names_the_units",)),
        (
            "grant-once",
            "Before corral mounts this file or directory, it checks by device and inode that it was not replaced.",
            (
                f"{POLICY}::test_a_missing_path_is_reported_with_key_and_position",
                f"{POLICY}::test_a_grant_is_for_the_file_at_the_end_of_the_path",
                f"{FILES}::test_a_grant_that_was_replaced_before_the_start_is_refused",
            ),
        ),
        (
            "grant-memory",
            "Without a terminal corral refuses the run, and prints the `corral approve --path` command that allows it.",
            (
                "tests/unit/policy/test_granted_paths.py::test_a_granted_path_that_leads_to_another_file_is_refused",
                f"{APPROVE}::test_a_link_of_one_server_grants_nothing_to_another",
                f"{APPROVE}::test_a_changed_link_is_asked_about_on_a_terminal",
            ),
        ),
        (
            "grant-mounts",
            "A grant includes the mounts below it. But procfs, sysfs and similar file systems, and also `/dev` and `/run`, appear empty to the server. The report names them.",
            (f"{MOUNTS}::test_system_mounts_inside_a_grant_are_hidden_or_refused", f"{MOUNTS}::test_an_ordinary_mount_below_a_grant_is_shown"),
        ),
        (
            "grant-network",
            "If there is a network file system below a grant, corral refuses the run unless you grant that file system by its own path, too.",
            (f"{MOUNTS}::test_a_network_mount_below_a_grant_is_named_or_refused", f"{MOUNTS}::test_network_and_system_file_systems_are_recognized"),
        ),
        (
            "never-system",
            "**Files of the system**: the root directory, anything in `/proc`, `/sys`, `/dev` or `/run`, devices and fifos. But you can name sockets in `/run` in `filesystem.unix_sockets`.",
            (
                f"{POLICY}::test_system_directories_are_never_granted",
                f"{POLICY}::test_the_directory_run_is_never_granted",
                f"{POLICY}::test_a_fifo_is_refused",
                f"{POLICY}::test_a_unix_socket_can_be_granted_only_by_its_own_key",
            ),
        ),
        (
            "never-own",
            "**corral's files**: its configuration, state and cache directories.",
            (f"{POLICY}::test_corrals_own_directories_are_never_granted", f"{LAUNCHER}::test_grants_of_corrals_own_directories_are_refused"),
        ),
        (
            "never-home",
            "No flag or approval permits such a grant.",
            (
                f"{HOMES}::test_a_home_and_directories_above_it_are_refused_with_working_flags",
                f"{HOMES}::test_the_home_in_the_user_database_is_refused_too",
                f"{HOMES}::test_the_directory_of_all_homes_is_refused_to_root_too",
                f"{FILES}::test_granting_the_home_is_refused_with_flags_for_its_parts",
                f"{FILES}::test_granting_the_home_of_the_user_database_is_refused",
                f"{BUNDLE}::test_a_home_directory_is_refused_as_a_value",
                "tests/linux/test_wrap.py::test_wrap_and_run_refuse_a_home_in_the_same_words",
            ),
        ),
        (
            "never-etc",
            "such as `/etc/shadow`, `/etc/ssh` and `/etc/ssl/private`.",
            (
                f"{HOMES}::test_etc_is_refused",
                f"{HOMES}::test_secrets_below_etc_are_refused_and_certificates_are_accepted",
                f"{FILES}::test_granting_etc_is_refused_and_certificates_can_be_granted",
            ),
        ),
        (
            "never-tmp",
            "**`/tmp`** as a whole, on Linux and macOS, because runs may have their private directories there.",
            (
                f"{OWN}::test_the_parent_of_private_directories_of_runs_cannot_be_written",
                f"{LAUNCHER}::test_a_write_grant_around_private_directories_of_runs_is_refused",
            ),
        ),
        (
            "never-write",
            "**corral's programs and the files of the run**: any path that contains, or is inside, one of these:",
            (
                f"{POLICY}::test_code_and_interpreter_cannot_be_written",
                f"{POLICY}::test_policy_report_and_audit_files_cannot_be_written",
                f"{POLICY}::test_directories_above_corrals_can_be_read_but_not_written",
                f"{LAUNCHER}::test_write_grants_of_corrals_own_files_are_refused",
                f"{OWN}::test_the_program_and_links_to_it_cannot_be_written",
                f"{OWN}::test_directories_of_modules_cannot_be_written",
                f"{OWN}::test_a_module_cannot_be_written_under_another_name",
                f"{OWN_CODE}::test_files_that_the_next_corral_starts_from_are_not_writable",
                f"{OWN_CODE}::test_a_hard_link_to_corrals_code_is_not_writable",
                f"{LAUNCHER}::test_a_write_grant_that_contains_the_report_or_the_policy_is_refused",
            ),
        ),
        (
            "never-link",
            "**Planted links**: a link in a directory that the server can write, if the link leads out of that directory.",
            (f"{POLICY}::test_a_link_planted_in_a_writable_directory_is_refused", f"{LAUNCHER}::test_a_link_planted_in_a_write_grant_grants_nothing"),
        ),
        (
            "merge-order",
            "Lists are joined, but an empty list (`read = []`) removes the entries of earlier sources.",
            (f"{POLICY}::test_the_users_last_value_counts", f"{POLICY}::test_the_users_lists_are_added_up_and_an_empty_list_resets_them"),
        ),
        (
            "no-policy-here",
            "corral does not use a policy in the working directory unless you name it.",
            (f"{LAUNCHER}::test_no_policy_is_picked_up_from_the_working_directory",),
        ),
        (
            "asks-loaders",
            "Variables that change what a program loads or trusts (`LD_PRELOAD`, `NODE_OPTIONS`, `PYTHONPATH`, `GIT_SSH`, proxies, ...) need your approval, too.",
            (f"{POLICY}::test_loader_variables_need_approval", f"{POLICY}::test_all_requests_are_listed_at_once_with_the_remedy"),
        ),
        (
            "asks-told",
            "Until you type `corral approve`, corral refuses the run and lists what the server requests. It does not refuse the run if you have granted all of this yourself.",
            (
                f"{POLICY}::test_all_requests_are_listed_at_once_with_the_remedy",
                f"{POLICY}::test_requests_that_the_user_granted_need_no_approval",
                f"{APPROVE}::test_a_request_counts_only_if_its_exact_content_is_approved",
            ),
        ),
        (
            "approvals-revoked",
            "`corral approve --list` lists the approvals, and `corral approve --revoke SERVER` removes those of a server.",
            (f"{APPROVE}::test_approvals_are_listed_and_revoked",),
        ),
        (
            "asks-again",
            "If any of these changes, corral asks again.",
            (
                f"{TRUST}::test_any_change_needs_a_new_approval",
                f"{TRUST}::test_a_link_swapped_after_the_digest_was_taken_is_noticed",
                f"{APPROVE}::test_a_request_counts_only_if_its_exact_content_is_approved",
            ),
        ),
        (
            "ceilings",
            "A limit that has a ceiling is always required.",
            (
                f"{POLICY}::test_a_stated_value_above_its_ceiling_names_both_places",
                f"{POLICY}::test_a_default_is_lowered_to_its_ceiling_and_limits_with_ceilings_are_required",
                f"{POLICY}::test_an_approved_request_stays_under_the_ceiling",
            ),
        ),
        (
            "config-owner",
            "corral refuses the run if `config.toml` does not belong to you or root, or if another user can write to it.",
            (f"{TRUST}::test_ceilings_that_other_users_could_write_are_refused", f"{TRUST}::test_ceilings_of_another_user_are_refused"),
        ),
        (
            "admit-config",
            "A policy cannot have the key `network.admit`, because the key describes your network and not what a server needs.",
            (f"{ALLOWLIST}::test_a_policy_cannot_admit_ranges", "tests/unit/network/test_guard_exceptions.py::test_a_config_file_that_others_can_write_admits_nothing"),
        ),
    )
)  # fmt: skip
