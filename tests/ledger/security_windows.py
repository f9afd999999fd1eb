"""List the promises about Windows in docs/SECURITY.md."""

from __future__ import annotations

from ledger.claim import ANY, SECURITY, Claim

WINDOWS = "tests/windows"
WINE = "the code for Windows, under Wine"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="windows-headers",
        sentence="against the headers of mingw-w64 and of zig, for x86_64 and aarch64",
        tests=(
            "tests/abi/test_win32.py::test_constants_agree_with_the_headers",
            "tests/abi/test_win32.py::test_types_and_structures_agree_with_the_headers",
            "tests/abi/test_win32.py::test_prototypes_agree_with_the_headers",
            "tests/abi/test_win32.py::test_the_import_libraries_export_every_function",
            "tests/abi/test_win32.py::test_wrong_values_are_found",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-read-back",
        sentence="If the two values differ, corral refuses the run, and the error shows both values.",
        tests=(
            f"{WINDOWS}/test_run.py::test_a_memory_limit_that_windows_does_not_keep_is_refused",
            f"{WINDOWS}/test_job.py::test_a_job_limit_that_windows_accepts_but_does_not_keep_is_an_error",
            f"{WINDOWS}/test_job.py::test_a_cpu_rate_that_windows_accepts_but_does_not_keep_is_an_error",
            f"{WINDOWS}/test_job.py::test_ui_limits_that_windows_accepts_but_does_not_keep_are_an_error",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-doctor",
        sentence="If a limit is not kept, `doctor` reports it as absent.",
        tests=(
            f"{WINDOWS}/test_doctor.py::test_a_limit_that_windows_does_not_keep_is_reported_as_absent",
            f"{WINDOWS}/test_doctor.py::test_a_limit_that_reads_back_differently_is_reported_with_both_values",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-best-effort",
        sentence="With `--best-effort` the run starts, with a warning for each limit that is not kept.",
        tests=(f"{WINDOWS}/test_run.py::test_best_effort_runs_and_warns",),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-handles",
        sentence="corral creates the process suspended, in its job, with three streams and no other handle.",
        tests=(
            f"{WINDOWS}/test_job.py::test_the_target_is_created_in_its_job",
            f"{WINDOWS}/test_job.py::test_only_the_streams_are_inherited",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-fallback",
        sentence="If the token does not work either, the target runs without a wall: it can read what you can read and reach what you can reach, and each run prints a warning.",
        tests=(
            f"{WINDOWS}/test_run.py::test_the_fallback_switch_makes_no_other_control_optional",
            "tests/unit/platforms/windows/test_win_plan.py::test_the_fallback_needs_permission_and_does_not_restrict_reads_or_network",
            "tests/unit/platforms/windows/test_win_plan.py::test_the_steps_with_a_restricted_token_are_in_order",
            "tests/unit/platforms/windows/test_win_plan.py::test_no_token_is_restricted_in_an_app_container",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-tree",
        sentence="When corral ends for any reason, all processes of the target end.",
        tests=(
            f"{WINDOWS}/test_lifecycle.py::test_the_tree_ends_with_corral",
            f"{WINDOWS}/test_lifecycle.py::test_trees_end_with_their_caller",
            f"{WINDOWS}/test_job.py::test_the_whole_tree_ends_with_its_job",
            f"{WINDOWS}/test_job.py::test_a_job_is_not_inheritable_and_has_no_name",
            f"{WINDOWS}/test_job.py::test_a_target_cannot_break_away",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-root",
        sentence="When the target's first process ends, all others end.",
        tests=(
            f"{WINDOWS}/test_job.py::test_all_processes_end_with_the_first",
            f"{WINDOWS}/test_lifecycle.py::test_the_run_ends_with_its_first_process",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-residue",
        sentence="corral writes a record of each before it makes it, so that the next start or `corral clean` can remove it.",
        tests=(
            f"{WINDOWS}/test_lifecycle.py::test_the_tree_ends_with_corral",
            f"{WINDOWS}/test_lifecycle.py::test_clean_removes_leftovers_of_dead_runs_only",
            f"{WINDOWS}/test_process.py::test_home_and_temp_are_private_and_gone_afterwards",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-removal",
        sentence="corral removes the files that a target left, whatever their names, attributes and depth.",
        tests=(
            f"{WINDOWS}/test_process.py::test_a_private_directory_is_removed_whatever_its_names_and_depth",
            "tests/unit/platforms/windows/test_win_removal.py::test_a_very_deep_tree_is_removed",
            "tests/unit/platforms/windows/test_win_residue.py::test_files_that_windows_leaves_in_a_profile_are_removed",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-foreign",
        sentence="corral does not change the bytes or the order of entries that it did not make.",
        tests=(
            "tests/unit/platforms/windows/test_win_access_list.py::test_an_entry_is_added_and_removed",
            "tests/unit/platforms/windows/test_win_access_list.py::test_entries_of_another_run_stay",
            "tests/unit/platforms/windows/test_win_residue.py::test_of_two_runs_that_end_at_once_the_second_removes_the_entries",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-grants",
        sentence="It also refuses grants of directory trees that contain links, or in which it would have to set more than 20 000 entries.",
        tests=(
            "tests/unit/paths/test_win_paths.py::test_roots_that_corral_must_not_change_are_refused",
            "tests/unit/platforms/windows/test_win_grants.py::test_trees_with_links_are_refused",
            "tests/unit/platforms/windows/test_win_grants.py::test_a_tree_with_too_many_entries_is_refused",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-exceptions",
        sentence="No directory above them can be renamed or deleted.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_a_git_checkout_with_an_environment_and_packages_is_granted",
            "tests/unit/platforms/windows/test_win_grants.py::test_secrets_in_a_grant_get_no_access_entry",
            "tests/unit/platforms/windows/test_win_grants.py::test_self_starting_files_are_read_only",
            "tests/unit/platforms/windows/test_win_grants.py::test_a_file_with_several_names_can_only_be_read",
            f"{WINDOWS}/test_grants.py::test_the_walk_finds_a_second_hard_link",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-preloads",
        sentence="With it, `realpath`, piped children, `mkdtemp` and `DEVNULL` work, and Python sees a hidden `.env` as an empty file.",
        tests=(
            "tests/unit/platforms/windows/test_win_node_preload.py::test_realpath_of_a_granted_file_works_with_the_preload",
            "tests/unit/platforms/windows/test_win_node_preload.py::test_children_with_pipes_work",
            "tests/unit/platforms/windows/test_win_python_preload.py::test_a_temporary_directory_is_open_to_its_maker",
            "tests/unit/platforms/windows/test_win_python_preload.py::test_a_nul_device_that_cannot_be_opened_is_replaced_by_an_empty_file",
            "tests/unit/platforms/windows/test_win_python_preload.py::test_a_hidden_environment_file_reads_as_empty",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-open-secrets",
        sentence="If a secret's own access list opens it to every AppContainer, as in directories of the system, corral ends the run instead.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_a_secret_that_every_container_can_read_ends_the_run",
            "tests/unit/platforms/windows/test_win_access_list.py::test_access_lists_are_evaluated_as_windows_documents_it",
            f"{WINDOWS}/test_access_check.py::test_random_lists_are_read_as_the_system_reads_them",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-watched",
        sentence="The report names such files.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_missing_self_starting_files_are_watched",
            "tests/unit/platforms/windows/test_win_plan.py::test_the_store_and_the_watcher_get_the_granted_paths",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-administrators-only",
        sentence="A warning also names a granted directory that only administrators can open, because the target does not have administrators' rights.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_a_directory_of_administrators_causes_a_warning",
            "tests/unit/platforms/windows/test_win_answers.py::test_only_an_elevated_callers_targets_get_other_sids_than_the_caller",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-strict-grants",
        sentence="With `windows.strict_grants = true` corral refuses a run whose grant contains such files.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_strict_grants_refuse_instead_of_giving_less_access",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-copied-links",
        sentence="It must not contain links to directories, or links that lead out of it.",
        tests=(
            "tests/unit/platforms/windows/test_win_runtimes.py::test_links_to_directories_or_out_of_a_tree_are_refused",
            "tests/unit/platforms/windows/test_win_runtimes.py::test_a_link_to_a_file_of_the_tree_is_copied_as_a_file",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-launchers",
        sentence="corral does not run these, but finds and runs the program that they would start.",
        tests=(
            "tests/unit/programs/test_windows_resolve.py::test_the_python_of_a_virtual_environment_is_followed",
            "tests/unit/programs/test_windows_resolve.py::test_a_script_of_an_environment_is_followed",
            "tests/unit/programs/test_windows_resolve.py::test_npms_batch_file_is_followed",
            "tests/unit/programs/test_windows_shims.py::test_pips_launcher_is_read",
            "tests/unit/programs/test_windows_uv.py::test_trampolines_of_the_real_uv_are_read",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-desktop",
        sentence="Otherwise it is on your desktop, and a warning says so.",
        tests=(
            "tests/unit/platforms/windows/test_win_plan.py::test_a_target_on_the_users_desktop_is_reported",
            "tests/unit/platforms/windows/test_win_answers.py::test_an_existing_window_station_of_this_logon_is_used",
        ),
        source=SECURITY,
    ),
    Claim(
        id="windows-checked",
        sentence="`corral doctor` prints the same table.",
        tests=(
            "tests/unit/platforms/windows/test_win_answers.py::test_docs_and_doctor_agree_on_how_each_mechanism_was_checked",
        ),
        source=SECURITY,
    ),
    Claim(
        id="windows-wsl",
        sentence="If AppContainers do not work, `doctor` and corral's error message show the `wsl.exe` command for this.",
        tests=(
            "tests/unit/programs/test_windows_wsl.py::test_the_hint_has_the_complete_command",
            "tests/unit/platforms/windows/test_win_answers.py::test_errors_of_creating_a_profile_have_a_hint",
        ),
        source=SECURITY,
    ),
    Claim(
        id="windows-powers",
        sentence="corral removes an administrator's rights and privileges from the target's token.",
        tests=(
            f"{WINDOWS}/test_app_container.py::test_a_process_with_dangerous_privileges_fails_verification",
            "tests/unit/platforms/windows/test_win_answers.py::test_an_administrator_gets_a_filtered_token_without_restricting_sids",
            "tests/unit/platforms/windows/test_win_answers.py::test_privileges_left_in_the_token_of_a_container_are_refused",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-shares",
        sentence="corral does not open a file on a network share, even if a launcher names it, because Windows shows your credentials to every server that it asks for a file.",
        tests=(
            f"{WINDOWS}/test_runtimes.py::test_network_paths_in_untrusted_files_are_not_opened",
            "tests/unit/programs/test_windows_resolve.py::test_a_share_is_never_opened",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-refused",
        sentence="corral refuses a run that states such a limit.",
        tests=(
            f"{WINDOWS}/test_run.py::test_a_stated_limit_that_windows_cannot_enforce_is_refused",
            f"{WINDOWS}/test_run.py::test_a_stated_io_limit_is_refused",
            "tests/unit/platforms/windows/test_win_plan.py::test_a_limit_that_windows_lacks_is_refused_only_if_stated",
        ),
        source=SECURITY,
        where=WINE,
    ),
)  # fmt: skip
