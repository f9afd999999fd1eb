"""List the promises about macOS in docs/SECURITY.md."""

from __future__ import annotations

from ledger.claim import ANY, MODEL, SECURITY, Claim

MACOS = "tests/unit/platforms/macos/test_macos.py"
MACOS_PLAN = "tests/linux/test_macos_plan.py"
PLAYED = "in a model of a Mac on Linux"
SEATBELT = "tests/unit/platforms/macos/test_seatbelt.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="macos-headers",
        sentence="A test compares every constant, structure and prototype of the bindings with Apple's headers for arm64 and x86_64, and links every function.",
        tests=(
            "tests/abi/test_darwin.py::test_values_agree_with_the_headers",
            "tests/abi/test_darwin.py::test_every_function_exists",
            "tests/abi/test_darwin.py::test_a_wrong_constant_size_offset_or_signature_is_found",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-paths",
        sentence="Paths are parameters of the profile and are never in its text, so no path can change a rule.",
        tests=(
            f"{SEATBELT}::test_the_text_of_a_profile_is_the_same_for_every_path",
            f"{SEATBELT}::test_a_path_with_quotes_cannot_add_rules_to_the_profile",
            f"{SEATBELT}::test_a_path_written_into_the_profiles_text_could_add_rules",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-profile",
        sentence="signals, Apple events and LaunchServices are closed.",
        tests=(f"{SEATBELT}::test_the_profile_allows_each_listed_act", f"{SEATBELT}::test_the_profile_denies_each_listed_act", f"{SEATBELT}::test_profiles_equal_the_stored_texts"),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-services",
        sentence="Every program can read the libraries of Homebrew and MacPorts, but not the data and settings of their services (`var`, `etc`). TLS roots stay readable.",
        tests=(f"{SEATBELT}::test_data_of_installed_services_is_hidden",),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-held",
        sentence="are read-only in write grants even if they do not exist yet.",
        tests=(
            f"{SEATBELT}::test_secrets_in_grants_are_hidden_and_hooks_are_read_only",
            f"{SEATBELT}::test_a_target_cannot_make_a_repository",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-refuses",
        sentence="corral then refuses the run and names what is missing.",
        tests=(
            f"{MACOS_PLAN}::test_a_run_without_seatbelt_is_refused_and_the_error_names_the_missing_walls",
            "tests/unit/platforms/macos/test_macos.py::test_without_seatbelt_a_run_is_refused_and_best_effort_is_cooperative",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-best-effort",
        sentence="The limits of such a run are `cooperative`: a target can evade them.",
        tests=(
            f"{MACOS_PLAN}::test_best_effort_runs_and_warns_of_every_wall",
            f"{MACOS_PLAN}::test_the_report_names_each_control_and_its_status",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-tree",
        sentence="**The tree.** When the target ends, or when corral is killed with `kill -9`, a watcher process kills everything that the target started, even daemons that left their session, process group and parent.",
        tests=(
            f"{MACOS_PLAN}::test_a_daemon_ends_with_the_target",
            f"{MACOS_PLAN}::test_a_daemon_outlives_its_program_without_corral",
            f"{MACOS_PLAN}::test_kill_9_of_corral_ends_the_tree_and_leaves_no_directory",
            f"{MACOS_PLAN}::test_kill_9_during_the_start_leaves_no_process",
            f"{MACOS_PLAN}::test_a_target_that_forks_without_end_is_ended",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-watcher",
        sentence="If another program kills the watcher, corral itself kills the tree.",
        tests=(f"{MACOS_PLAN}::test_when_the_watcher_is_killed_the_supervisor_ends_the_tree",),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-model",
        sentence="The tests interpret the Seatbelt profile in a model, which knows the operations of macOS 10.15 and 14.4.1.",
        tests=(
            f"{SEATBELT}::test_every_operation_is_known_to_every_release",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-runtimes",
        sentence="If one of them does not start, only the runs that need it print a warning.",
        tests=(
            f"{MACOS}::test_a_runtime_that_does_not_start_disables_no_wall",
            f"{MACOS}::test_a_runtime_that_did_not_start_is_reported_in_its_runs",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-left-open",
        sentence="corral's profile denies each of them, except for a few that a test lists, each with the reason.",
        tests=(
            f"{SEATBELT}::test_operations_that_deny_default_leaves_open_are_denied_or_have_a_reason",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-marker",
        sentence="the watcher recognizes the daemon by its Seatbelt profile, which no process can leave.",
        tests=(
            f"{MACOS_PLAN}::test_a_daemon_whose_parent_is_unknown_is_found_by_its_seatbelt_label",
            f"{MACOS}::test_an_orphan_is_recognized_by_profile_or_responsible_process",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-pids",
        sentence="corral sets RLIMIT_NPROC to the sum of `pids` and the number of your processes at the start.",
        tests=(
            f"{MACOS_PLAN}::test_rlimit_nproc_bounds_the_number_of_processes_without_sampling",
            f"{MACOS}::test_rlimits_match_those_that_macos_enforces",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-address-space",
        sentence="corral tries the value before the run. If macOS refuses it, corral refuses the run, or drops the limit if it may be dropped.",
        tests=(
            f"{MACOS}::test_an_address_space_that_macos_does_not_accept_is_refused_or_degraded",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-environment-files",
        sentence="corral hides files with known names at known places, and `.env` files at any depth.",
        tests=(
            f"{SEATBELT}::test_the_profile_allows_each_listed_act",
            f"{SEATBELT}::test_the_profile_denies_each_listed_act",
            f"{SEATBELT}::test_a_granted_path_is_usable_even_if_its_name_is_hidden_or_protected",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-environment-start",
        sentence="So corral starts a Python server in its private home instead, and prints a warning.",
        tests=(
            "tests/unit/platforms/macos/test_macos.py::test_a_python_server_does_not_start_beside_a_hidden_environment_file",
            "tests/unit/platforms/macos/test_macos.py::test_the_plan_starts_no_server_beside_a_hidden_environment_file",
            f"{SEATBELT}::test_a_hidden_environment_file_is_known_at_planning",
            "tests/macos/test_servers.py::test_a_fastmcp_server_answers",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-repositories",
        sentence="A target cannot change or make a repository at any depth of a grant, in any spelling, unless a grant names its `.git`.",
        tests=(
            f"{SEATBELT}::test_the_profile_denies_each_listed_act",
            f"{SEATBELT}::test_a_granted_path_is_usable_even_if_its_name_is_hidden_or_protected",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-consent",
        sentence="corral says so before the run.",
        tests=(
            f"{MACOS}::test_a_grant_that_needs_consent_is_reported_in_the_plan",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-trustd",
        sentence="fail without `trustd = true` below `[macos]`.",
        tests=(
            f"{MACOS}::test_the_target_may_use_the_systems_certificate_service_only_if_the_user_allows_it",
        ),
        source=SECURITY,
        where=MODEL,
    ),
    Claim(
        id="macos-looks",
        sentence="corral enforces limits of memory (physical footprint), CPU share, CPU time and tasks by sampling, but only if they are stated.",
        tests=(
            f"{MACOS_PLAN}::test_processes_are_sampled_only_under_a_limit",
            f"{MACOS_PLAN}::test_memory_beyond_the_limit_ends_the_run",
            f"{MACOS_PLAN}::test_memory_of_many_processes_is_added_up",
            f"{MACOS_PLAN}::test_a_share_of_the_cpu_is_enforced",
            f"{MACOS_PLAN}::test_cpu_time_beyond_the_limit_ends_the_run",
            f"{MACOS_PLAN}::test_too_many_processes_end_the_run",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
)  # fmt: skip
