"""The promises of docs/policy.md."""

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
            "`corral check FILE` reads a policy and tells every mistake at once, with its line.",
            (f"{CLI}::test_check_says_everything_that_is_wrong_at_once_with_its_line", "tests/unit/policy/test_manifest.py::test_every_mistake_at_once_with_its_line"),
        ),
        ("units-size", "`MB` is refused: it could mean two sizes", (f"{UNITS}::test_an_ambiguous_unit_is_named_with_its_remedy",)),
        ("units-duration", "a bare number is refused", (f"{UNITS}::test_a_bare_duration_is_told_its_unit",)),
        (
            "grant-once",
            "what is found there is compared again, by device and inode, before it is mounted.",
            (
                f"{POLICY}::test_a_missing_path_names_its_key_and_place",
                f"{POLICY}::test_a_grant_is_what_the_path_leads_to",
                f"{FILES}::test_a_grant_swapped_before_the_start",
            ),
        ),
        (
            "grant-memory",
            "otherwise refuses with the `corral approve --path` that allows it.",
            (
                "tests/unit/policy/test_granted_paths.py::test_a_path_that_leads_elsewhere_is_refused",
                f"{APPROVE}::test_a_link_of_one_server_grants_nothing_to_another",
                f"{APPROVE}::test_a_changed_link_is_asked_about_on_a_terminal",
            ),
        ),
        (
            "grant-mounts",
            "those appear empty, and the report names them.",
            (f"{MOUNTS}::test_mounts_of_the_system_are_covered", f"{MOUNTS}::test_an_ordinary_mount_below_a_grant_is_shown"),
        ),
        (
            "grant-network",
            "A network file system below a grant refuses the run unless it is granted by its own path.",
            (f"{MOUNTS}::test_a_network_below_a_grant_is_named_or_refused", f"{MOUNTS}::test_file_systems_are_told_apart"),
        ),
        (
            "never-system",
            "devices and fifos",
            (
                f"{POLICY}::test_system_places_are_never_granted",
                f"{POLICY}::test_run_is_not_granted_but_its_neighbours_are",
                f"{POLICY}::test_a_fifo_is_no_file",
                f"{POLICY}::test_sockets_are_named_as_such",
            ),
        ),
        (
            "never-own",
            "corral's own configuration, state and cache directories",
            (f"{POLICY}::test_corrals_own_directories_are_never_granted", f"{LAUNCHER}::test_grants_of_corrals_own_directories_are_refused"),
        ),
        (
            "never-home",
            "Both `$HOME` and the home in the user database count, and no flag or approval changes it",
            (
                f"{HOMES}::test_a_home_and_what_contains_it_are_refused_with_flags_that_work",
                f"{HOMES}::test_the_home_in_the_user_database_counts_whatever_home_says",
                f"{HOMES}::test_the_directory_of_all_homes_is_refused_to_root_as_well",
                f"{FILES}::test_a_home_is_not_granted_and_the_flags_for_its_parts_work",
                f"{FILES}::test_the_home_in_the_user_database_is_not_granted_either",
                f"{BUNDLE}::test_a_home_is_no_value_of_a_bundle",
                "tests/linux/test_wrap.py::test_a_home_in_the_arguments_is_refused_in_the_same_words",
            ),
        ),
        (
            "never-etc",
            "such as `/etc/shadow`, `/etc/ssh` and `/etc/ssl/private`",
            (
                f"{HOMES}::test_etc_is_refused",
                f"{HOMES}::test_secrets_below_etc_are_refused_and_certificates_are_not",
                f"{FILES}::test_etc_is_not_granted_and_certificates_are",
            ),
        ),
        (
            "never-write",
            "or the report and audit files of the run",
            (
                f"{POLICY}::test_code_and_interpreter_cannot_be_written",
                f"{POLICY}::test_policy_report_and_audit_files_cannot_be_written",
                f"{POLICY}::test_what_holds_corrals_directories_can_be_read_but_not_written",
                f"{LAUNCHER}::test_grants_that_would_rewrite_corral_are_refused",
                f"{OWN}::test_the_program_and_every_link_to_it",
                f"{OWN}::test_where_modules_are_loaded_from",
                f"{OWN}::test_another_name_of_a_module",
                f"{OWN_CODE}::test_what_the_next_corral_starts_from_is_not_writable",
                f"{OWN_CODE}::test_a_hard_link_to_corrals_code_is_not_writable",
                f"{LAUNCHER}::test_a_write_grant_that_holds_the_report_or_the_policy_is_refused",
            ),
        ),
        (
            "never-link",
            "a link, inside a directory that the server can write, that leads out of it",
            (f"{POLICY}::test_a_planted_link_out_of_a_writable_directory_is_refused", f"{LAUNCHER}::test_a_link_planted_in_a_write_grant_grants_nothing"),
        ),
        (
            "merge-order",
            "takes back what the sources before it granted.",
            (f"{POLICY}::test_the_last_word_of_the_user_counts", f"{POLICY}::test_lists_of_the_user_add_up_and_an_empty_one_takes_back"),
        ),
        (
            "no-policy-here",
            "No policy is picked up from the working directory by itself.",
            (f"{LAUNCHER}::test_no_policy_is_picked_up_from_the_working_directory",),
        ),
        (
            "asks-loaders",
            "(`LD_PRELOAD`, `NODE_OPTIONS`, `PYTHONPATH`, `GIT_SSH`, proxies, ...).",
            (f"{POLICY}::test_loader_variables_need_approval", f"{POLICY}::test_everything_asked_is_told_at_once_with_the_remedy"),
        ),
        (
            "asks-told",
            "a run refuses and lists what was asked, unless you granted all of it yourself.",
            (
                f"{POLICY}::test_everything_asked_is_told_at_once_with_the_remedy",
                f"{POLICY}::test_what_the_user_granted_anyway_needs_no_approval",
                f"{APPROVE}::test_a_request_counts_only_while_exactly_it_is_approved",
            ),
        ),
        (
            "asks-again",
            "after any change it is asked again.",
            (
                f"{TRUST}::test_any_change_is_a_new_request",
                f"{TRUST}::test_a_link_swapped_after_the_digest_was_taken_is_noticed",
                f"{APPROVE}::test_a_request_counts_only_while_exactly_it_is_approved",
            ),
        ),
        (
            "ceilings",
            "A limit with a ceiling is always required.",
            (
                f"{POLICY}::test_a_stated_value_above_its_ceiling_names_both_places",
                f"{POLICY}::test_defaults_are_lowered_to_their_ceilings_and_required",
                f"{POLICY}::test_an_approved_request_stays_under_the_ceiling",
            ),
        ),
        (
            "config-owner",
            "otherwise the run refuses.",
            (f"{TRUST}::test_ceilings_that_others_could_write_are_refused", f"{TRUST}::test_ceilings_of_somebody_else_are_refused"),
        ),
        (
            "admit-config",
            "No policy has this key, neither a server's nor one of yours: it says something about the host.",
            (f"{ALLOWLIST}::test_no_policy_admits_ranges", "tests/unit/network/test_guard_exceptions.py::test_a_file_that_others_can_write_admits_nothing"),
        ),
    )
)  # fmt: skip
