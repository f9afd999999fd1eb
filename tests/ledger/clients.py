"""List the promises in docs/clients/README.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

APPROVE = "tests/linux/test_approve.py"
CHECK = "tests/linux/test_wrap_check.py"
CLIENT_FILES = "tests/unit/clients/test_clients_files.py"
CLIENT_PAGE = "docs/clients/README.md"
GRANT = "tests/linux/test_grant.py"
SUPPLY = "tests/linux/test_supply_chain.py"
WRAP = "tests/linux/test_wrap.py"
WRAPPING = "tests/unit/clients/test_clients_wrapping.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="clients-tried",
        sentence="They check that every wrapped server connects, that its tools can be called (in the clients that need no account for this), and that forbidden acts of the server fail.",
        tests=tuple(
            f"tests/servers/test_clients.py::test_{name}"
            for name in (
                *(f"{client}_starts_wrapped_servers" for client in ("claude_code", "codex", "gemini", "opencode", "the_inspector")),
                "without_walls_the_script_does_every_forbidden_act",
            )
        ),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-dry-run",
        sentence="`--dry-run` prints the difference, with secrets masked, and changes nothing.",
        tests=(f"{WRAP}::test_a_dry_run_shows_the_difference_and_changes_nothing", f"{CLIENT_FILES}::test_a_dry_run_writes_nothing_and_shows_no_secret", f"{CLIENT_FILES}::test_secrets_elsewhere_in_the_file_are_masked_too"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="argument-secrets",
        sentence="So `--dry-run`, `status`, `explain`, `ps` and reports mask every argument that looks like a secret (`--api-key ...`, `postgres://me:...@host`).",
        tests=("tests/unit/policy/test_variables.py::test_arguments_that_look_like_secrets_are_masked", "tests/unit/policy/test_variables.py::test_reports_and_plans_do_not_show_secrets"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    *(
        Claim(id=name, sentence=sentence, tests=tests, source=CLIENT_PAGE, where=ANY)
        for name, sentence, tests in (
            (
                "wrap-env",
                "So for each variable in the server's `env`, `wrap` adds the flag `--env NAME`, or `--secret NAME` if the variable looks like a secret.",
                (f"{WRAPPING}::test_any_configuration_is_wrapped_correctly_and_restored_byte_for_byte", f"{WRAPPING}::test_variables_that_a_client_forwards_by_name_are_passed_and_null_values_are_not"),
            ),
            (
                "wrap-flags",
                "`corral wrap cursor notes --read ~/notes --allow-net api.example.com`.",
                (f"{WRAPPING}::test_the_users_flags_apply_to_every_server_and_override_others", f"{WRAP}::test_wraps_flags_become_the_servers_grants"),
            ),
            (
                "wrap-connection-strings",
                "A connection string with a password in it is always a secret.",
                ("tests/unit/policy/test_variables.py::test_a_value_that_looks_like_a_secret_makes_its_variable_a_secret", f"{WRAP}::test_a_connection_string_is_a_secret_by_its_form"),
            ),
            (
                "wrap-not-understood",
                "`wrap` and `status` report each of them as an error, and do not exit with 0.",
                (f"{WRAPPING}::test_entries_that_are_not_understood_are_refused", f"{WRAPPING}::test_a_server_at_an_unknown_place_is_refused", f"{WRAP}::test_wrap_refuses_a_file_in_which_it_does_not_recognize_the_servers"),
            ),
            (
                "status-mends",
                "If a wrapped server would no longer start, `corral status` shows the command that fixes it.",
                (f"{WRAP}::test_an_entry_that_no_longer_starts_is_listed_with_its_remedy",),
            ),
            ("status-unwrapped", "In any directory, `corral status` lists the servers in such files that you wrapped and that are no longer wrapped.", (f"{GRANT}::test_status_shows_a_server_that_its_project_has_unwrapped",)),
            ("check-unknown", "So the check fails for each key in a server's entry, and for each form of its value, that corral does not know to be harmless, and names the key.", (f"{CHECK}::test_the_check_reports_an_entry_that_could_start_something_else", f"{CHECK}::test_the_check_accepts_the_entries_that_clients_write", f"{CHECK}::test_the_check_reports_the_parts_of_a_file_that_it_does_not_know")),
            ("status-inventory", "every server of every client on this machine, wrapped or not.", (f"{WRAP}::test_status_lists_all_clients_and_the_project",)),
            ("wrap-state", "so that its memory and settings are not lost.", (f"{GRANT}::test_the_home_directory_of_a_wrapped_server_survives",)),
            ("kept-denials", "For each server corral keeps at most 600 lines, with secrets masked, from the 30 days before the server's last run.", (f"{GRANT}::test_stored_denials_are_ignored_in_a_link_or_in_a_file_that_others_can_read", "tests/unit/denials/test_kept.py::test_the_oldest_runs_are_removed_first", "tests/unit/denials/test_kept.py::test_old_denials_are_removed", "tests/unit/denials/test_kept.py::test_secrets_in_the_command_are_masked", "tests/linux/test_denial_secrets.py::test_reports_of_denials_do_not_contain_the_value_of_a_secret")),
            ("why-failure", "If the last run failed, corral records how.", (f"{GRANT}::test_why_says_how_a_run_without_denials_failed", "tests/unit/denials/test_kept.py::test_a_failed_run_is_stored_without_denials")),
            (
                "grant-own-file",
                "A grant inside your own home appears under the same name in the server's home. If the server has already made a file of this name there, corral renames the server's file to `NAME.before-grant`.",
                (
                    "tests/linux/test_home.py::test_a_grant_of_a_path_replaces_the_servers_own_file_in_its_kept_home",
                    "tests/unit/platforms/test_run_directories.py::test_a_servers_own_file_does_not_hide_a_grant",
                ),
            ),
            ("grant-exact", "`grant` changes the flags of the server in every client in which it is wrapped, prints the difference, and changes nothing else in these files.", (f"{GRANT}::test_why_shows_a_denied_host_name_of_an_earlier_run_and_grant_allows_it", f"{GRANT}::test_unwrap_restores_every_byte_after_grants")),
            ("grant-two", "If the server has different flags in two clients, `grant` shows both, and each client keeps its own flags.", (f"{GRANT}::test_grant_changes_a_server_in_both_clients",)),
            ("wrap-regrant", "If `notes` is already wrapped, `corral wrap --read ~/notes cursor notes` adds the flag, and keeps the server's other flags.", (f"{GRANT}::test_wrap_does_not_change_a_wrapped_servers_grants",)),
            ("wrap-moved", "If corral itself was moved, `corral wrap cursor` writes corral's new path and keeps all flags, unless you edited the wrapped entries.", (f"{WRAP}::test_a_moved_corral_keeps_the_grants_of_the_servers", f"{WRAP}::test_a_moved_corral_does_not_keep_flags_that_it_did_not_write")),
            ("wrap-later-link", "If the project later makes a link that leads out of the project, corral refuses to start the server.", (f"{WRAP}::test_a_link_that_a_project_makes_after_wrap_opens_no_other_project",)),
            ("grant-mistakes", "`grant` reports an error and changes nothing if it does not find the server, if a run would refuse the new flag, or if the flag to remove is not there.", (f"{GRANT}::test_a_mistaken_grant_changes_nothing",)),
            ("wrap-pin", "`--pin` also writes this version into the settings.", (f"{WRAPPING}::test_a_package_is_pinned_on_request", f"{SUPPLY}::test_wrap_with_pin_installs_a_package_once")),
            (
                "wrap-installs",
                "If a package cannot be installed, its server stays unwrapped, the other servers are wrapped, and the exit code is 1.",
                (f"{SUPPLY}::test_wrapping_installs_packages",),
            ),
            ("wrap-profile", "If corral has a [profile](../profiles.md) for a package (a policy that is made for this package), `wrap` adds it, unless you type `--no-profile`.", (f"{WRAPPING}::test_a_package_gets_its_profile_unless_turned_off",)),
            (
                "wrap-left",
                "A server that is switched off is wrapped if you name it in the command.",
                (f"{WRAPPING}::test_entries_that_corral_cannot_run_are_left_with_a_reason", f"{WRAPPING}::test_a_disabled_server_is_wrapped_if_it_is_named"),
            ),
            (
                "wrap-one-step",
                "The new file replaces the old file in one step, and keeps its mode and owner.",
                (
                    f"{CLIENT_FILES}::test_wrap_and_unwrap_restore_the_bytes_and_the_mode",
                    f"{CLIENT_FILES}::test_wrap_keeps_the_owner_of_a_file",
                    f"{CLIENT_FILES}::test_a_crash_at_any_step_loses_nothing",
                ),
            ),
            (
                "wrap-interrupted",
                "After Ctrl-C, `wrap`, `unwrap` and `grant` exit with code 130 and name the files that were already changed.",
                ("tests/unit/cli/test_interrupts.py::test_an_interrupted_edit_names_the_files_that_it_changed", f"{APPROVE}::test_ctrl_c_at_a_question_is_reported_and_approves_nothing"),
            ),
            ("wrap-links", "corral follows a symbolic link and changes the real file.", (f"{CLIENT_FILES}::test_a_link_to_a_configuration_stays_and_its_file_is_changed",)),
            (
                "wrap-originals",
                "Only you can read this directory, because these files can contain secrets.",
                (f"{CLIENT_FILES}::test_wraps_records_are_readable_only_by_the_user", f"{CLIENT_FILES}::test_only_the_last_backups_are_kept"),
            ),
        )
    ),
    Claim(
        id="wrap-no-grants",
        sentence="If a server's arguments or variables (`env`) name paths, `wrap` only suggests granting them. `--grant-arguments` grants them.",
        tests=(f"{WRAPPING}::test_paths_in_arguments_are_suggested_and_granted_only_on_request", f"{WRAPPING}::test_paths_in_variables_are_suggested_and_granted_like_those_in_arguments", f"{WRAP}::test_wrap_names_the_path_in_a_variable_that_the_server_would_not_find", f"{WRAPPING}::test_a_profile_that_grants_arguments_needs_the_users_consent", f"{WRAP}::test_wrap_prints_each_servers_result", f"{WRAP}::test_wraps_flags_become_the_servers_grants"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-formatting",
        sentence="comments, order, indentation, line endings and a byte order mark stay.",
        tests=(f"{WRAPPING}::test_comments_stay_in_a_wrapped_file", f"{WRAPPING}::test_any_configuration_is_wrapped_correctly_and_restored_byte_for_byte"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-refuses",
        sentence="`wrap` refuses each of them with a hint, and goes on with the other servers.",
        tests=(f"{WRAPPING}::test_servers_that_would_not_work_are_refused_and_the_others_are_wrapped", f"{WRAP}::test_a_profile_that_the_host_cannot_enforce_is_reported_before_it_is_written", f"{WRAP}::test_one_server_that_cannot_be_wrapped_does_not_stop_the_others"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-refuses-code",
        sentence="The exit code is then 1, even with `--dry-run`.",
        tests=(f"{WRAP}::test_one_server_that_cannot_be_wrapped_does_not_stop_the_others",),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-steering",
        sentence="Variables that would change corral itself, such as `PYTHONPATH`, `LD_PRELOAD`, `HOME`, `HTTPS_PROXY` or `NODE_EXTRA_CA_CERTS`.",
        tests=(f"{SUPPLY}::test_a_projects_configuration_cannot_set_corrals_variables", f"{WRAPPING}::test_a_file_cannot_choose_corrals_proxy_or_certificates"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-steering-links",
        sentence="A variable that names a version manager's directory, or a `PATH` with a directory that is neither on your own `PATH` nor a version manager's. corral lets a server read the files to which its program leads, and links in such directories may lead to any file.",
        tests=(f"{SUPPLY}::test_a_projects_configuration_cannot_open_files_behind_its_links", f"{WRAPPING}::test_a_file_cannot_choose_corrals_proxy_or_certificates", f"{WRAPPING}::test_a_version_manager_may_be_on_the_path_of_a_command"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-elsewhere",
        sentence="So a server in such a file needs your `--read` if its program, script or directory is outside of the project. `status` names such a server, too.",
        tests=(f"{SUPPLY}::test_a_projects_configuration_cannot_start_another_project",),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-installer",
        sentence="Otherwise a file that came with a project could make corral install a different package under a known name.",
        tests=(f"{WRAPPING}::test_a_project_cannot_choose_the_installer", f"{WRAPPING}::test_a_project_cannot_choose_the_registry"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-company",
        sentence="Type `--profile NAME` if you trust the combination, and otherwise `--no-profile`.",
        tests=(f"{WRAPPING}::test_a_profile_applies_only_to_an_unmodified_package",),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-another",
        sentence="**Other programs that are named corral**: `wrap` refuses an entry that starts such a program.",
        tests=(f"{WRAPPING}::test_a_wrapped_entry_is_shown_with_its_flags", f"{WRAP}::test_wrap_shows_the_grants_of_entries_that_already_started_through_corral"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-idempotent",
        sentence="is not wrapped again.",
        tests=(f"{CLIENT_FILES}::test_wrapping_again_writes_nothing",),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="unwrap-every",
        sentence="So before you uninstall corral, unwrap the servers of all clients and files:",
        tests=(f"{WRAP}::test_unwrap_all_restores_every_client_and_file",),
        source="docs/quick-start.md",
    ),
    Claim(
        id="uninstall-cache",
        sentence="This command removes them, and unfinished installations:",
        tests=(f"{WRAP}::test_the_quick_starts_command_removes_installed_servers",),
        source="docs/quick-start.md",
    ),
    Claim(
        id="wrap-round-trip",
        sentence="After `wrap` and `unwrap` a file is byte for byte the same as before.",
        tests=(f"{WRAP}::test_a_wrapped_configuration_works_and_is_restored", f"{WRAP}::test_roots_clients_are_found"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="unwrap-edits",
        sentence="With `--force`, `unwrap` restores the recorded lines instead.",
        tests=(f"{WRAPPING}::test_unwrap_keeps_edits_that_were_made_after_wrap", f"{WRAPPING}::test_an_edited_server_is_unwrapped_from_its_arguments"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-atomic",
        sentence="If another program changed the file in the meantime, corral writes nothing.",
        tests=(f"{CLIENT_FILES}::test_a_file_that_another_program_changed_is_not_replaced", f"{CLIENT_FILES}::test_a_crash_at_any_step_loses_nothing", f"{WRAP}::test_two_wraps_at_once_keep_both_changes"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="why-directory",
        sentence="But if a command may start another server in another directory, as `python -m server` may, `why` shows only the runs in the directory of this entry.",
        tests=(f"{GRANT}::test_a_projects_server_has_no_denials_of_another_projects_server", f"{GRANT}::test_why_says_that_the_file_does_not_name_the_directory_of_a_run"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-broken",
        sentence="If a file is broken, empty, half-written, read-only or larger than 32 MiB, corral reports an error that says where the problem is.",
        tests=(f"{CLIENT_FILES}::test_a_broken_file_is_reported_and_not_changed", f"{CLIENT_FILES}::test_a_half_written_file_is_an_error_or_is_complete", f"{CLIENT_FILES}::test_a_read_only_file_is_refused_for_every_user", f"{CLIENT_FILES}::test_a_huge_file_is_refused_without_reading_it"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
)  # fmt: skip
