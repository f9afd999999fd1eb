"""The promises of docs/clients/README.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, Claim

CLIENT_FILES = "tests/unit/clients/test_clients_files.py"
CLIENT_PAGE = "docs/clients/README.md"
SUPPLY = "tests/linux/test_supply_chain.py"
WRAP = "tests/linux/test_wrap.py"
WRAPPING = "tests/unit/clients/test_clients_wrapping.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="wrap-dry-run",
        sentence="`--dry-run` prints the difference and changes nothing; secrets in it are masked.",
        tests=(f"{WRAP}::test_a_dry_run_shows_the_difference_and_changes_nothing", f"{CLIENT_FILES}::test_a_dry_run_writes_nothing_and_shows_no_secret", f"{CLIENT_FILES}::test_secrets_elsewhere_in_the_file_are_masked_too"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="argument-secrets",
        sentence="is masked here and in `status`, `explain`, `ps` and reports.",
        tests=("tests/unit/policy/test_variables.py::test_what_looks_like_a_secret_is_masked", "tests/unit/policy/test_variables.py::test_reports_and_plans_do_not_show_them"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    *(
        Claim(id=name, sentence=sentence, tests=tests, source=CLIENT_PAGE, where=ANY)
        for name, sentence, tests in (
            (
                "wrap-env",
                "Each name in it becomes `--env NAME`, or `--secret NAME` if it looks like one.",
                (f"{WRAPPING}::test_any_configuration_is_wrapped_as_meant_and_comes_back_byte_for_byte", f"{WRAPPING}::test_forwarded_names_and_nulls"),
            ),
            (
                "wrap-flags",
                "`corral wrap cursor notes --read ~/notes --allow-net api.example.com`.",
                (f"{WRAPPING}::test_the_users_flags_go_to_every_server_and_win_over_ours", f"{WRAP}::test_grants_given_to_wrap_are_the_servers"),
            ),
            ("wrap-pin", "`--pin` installs now and writes the version down.", (f"{WRAPPING}::test_a_package_is_pinned_where_that_is_wanted", f"{SUPPLY}::test_pinning_installs_once")),
            ("wrap-profile", "`--no-profile` leaves that out.", (f"{WRAPPING}::test_a_package_gets_its_profile_unless_told_otherwise",)),
            (
                "wrap-left",
                "Each is named with the reason. Name a server to wrap it although it is off.",
                (f"{WRAPPING}::test_what_is_not_corrals_is_left_alone_and_said", f"{WRAPPING}::test_a_server_that_is_off_is_wrapped_when_it_is_named"),
            ),
            (
                "wrap-one-step",
                "The new file takes the old one's place in one step, with its mode and owner.",
                (
                    f"{CLIENT_FILES}::test_wrap_and_unwrap_give_the_same_bytes_and_keep_the_mode",
                    f"{CLIENT_FILES}::test_the_owner_stays",
                    f"{CLIENT_FILES}::test_a_crash_at_any_step_loses_nothing",
                ),
            ),
            ("wrap-links", "A symbolic link is followed to the real file, which is changed.", (f"{CLIENT_FILES}::test_a_linked_configuration_is_changed_at_the_end_of_its_links",)),
            (
                "wrap-originals",
                "which only you can read: they hold what the configuration held.",
                (f"{CLIENT_FILES}::test_what_is_recorded_is_nobody_elses", f"{CLIENT_FILES}::test_backups_do_not_pile_up"),
            ),
        )
    ),
    Claim(
        id="wrap-no-grants",
        sentence="Directories in a server's arguments are suggested, never granted, unless you say `--grant-arguments`.",
        tests=(f"{WRAPPING}::test_places_in_the_arguments_are_suggested_and_granted_only_when_told", f"{WRAPPING}::test_a_profile_that_grants_arguments_waits_for_the_users_word", f"{WRAP}::test_what_wrap_says", f"{WRAP}::test_grants_given_to_wrap_are_the_servers"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-formatting",
        sentence="comments, order, indentation, line endings and a byte order mark stay.",
        tests=(f"{WRAPPING}::test_comments_stay_while_it_is_wrapped", f"{WRAPPING}::test_any_configuration_is_wrapped_as_meant_and_comes_back_byte_for_byte"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-refuses",
        sentence="A server that would not work behind walls as it is configured, or that this host would not run, is refused with a hint, and the others go on.",
        tests=(f"{WRAPPING}::test_what_would_not_work_is_refused_and_the_others_go_on", f"{WRAP}::test_a_host_that_cannot_hold_a_profile_is_told_before_it_is_written", f"{WRAP}::test_one_server_that_cannot_be_wrapped_does_not_hold_the_others"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-steering",
        sentence="A server whose `env` would change corral itself, such as `PYTHONPATH`, `LD_PRELOAD`, `HOME`, `HTTPS_PROXY` or `NODE_EXTRA_CA_CERTS`, is refused.",
        tests=(f"{SUPPLY}::test_a_projects_configuration_reaches_for_corral_itself", f"{WRAPPING}::test_a_file_does_not_choose_what_corral_opens_or_goes_out_by"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-installer",
        sentence="is refused: a file that came with a project could put another package under a known name.",
        tests=(f"{WRAPPING}::test_a_project_does_not_choose_who_installs", f"{WRAPPING}::test_a_project_does_not_choose_where_packages_come_from"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-company",
        sentence="Say `--profile NAME` if you trust it with that, or `--no-profile`.",
        tests=(f"{WRAPPING}::test_a_profile_is_for_the_package_alone",),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-another",
        sentence="What it may do is shown again, and a program that is only called corral is refused.",
        tests=(f"{WRAPPING}::test_what_only_calls_itself_corral_is_told", f"{WRAP}::test_what_came_with_corrals_name_on_it_is_shown"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-idempotent",
        sentence="A server that starts through corral already.",
        tests=(f"{CLIENT_FILES}::test_nothing_is_written_when_there_is_nothing_to_do",),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-round-trip",
        sentence="Wrapped and unwrapped, a file is the same byte for byte.",
        tests=(f"{WRAP}::test_a_configuration_is_wrapped_works_and_comes_back", f"{WRAP}::test_root_has_clients_too"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="unwrap-edits",
        sentence="If you edited a wrapped server itself, `unwrap` makes it from what stands behind `--` and says so; `--force` puts the recorded lines back instead.",
        tests=(f"{WRAPPING}::test_other_edits_stay_when_it_is_unwrapped", f"{WRAPPING}::test_an_edited_server_is_derived_and_keeps_what_is_its_own"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-atomic",
        sentence="If another program changed the file in the meantime, nothing is written.",
        tests=(f"{CLIENT_FILES}::test_a_file_that_changes_meanwhile_is_left_as_it_became", f"{CLIENT_FILES}::test_a_crash_at_any_step_loses_nothing", f"{WRAP}::test_two_at_once_forget_nothing"),
        source=CLIENT_PAGE,
        where=LINUX,
    ),
    Claim(
        id="wrap-broken",
        sentence="Broken, empty, half-written, read-only and huge files are errors that name the place.",
        tests=(f"{CLIENT_FILES}::test_broken_files_are_told_and_stay", f"{CLIENT_FILES}::test_every_half_written_file_is_an_error_or_a_whole", f"{CLIENT_FILES}::test_a_read_only_file_is_refused_for_everybody", f"{CLIENT_FILES}::test_a_huge_file_is_refused_unread"),
        source=CLIENT_PAGE,
        where=ANY,
    ),
)  # fmt: skip
