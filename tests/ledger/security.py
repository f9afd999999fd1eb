"""List the promises in docs/SECURITY.md, except for those about macOS and Windows."""

from __future__ import annotations

from ledger.claim import ANY, MACHINE, SECURITY, UNCHECKED, Claim, row

ALLOWLIST = "tests/inside/test_allowlist.py"
BARE = "tests/linux/test_bare.py"
BARE_INSIDE = "tests/inside/test_without_namespaces.py"
BROKER = "tests/inside/test_socket_broker.py"
CGROUP = "tests/vm/test_cgroup.py"
CHANGES = "tests/inside/test_modes_and_times.py"
DEADLINES = "tests/unit/platforms/test_deadlines.py"
EFFECTS = "tests/linux/test_filter_effects.py"
EXEC = "tests/inside/test_exec.py"
EXHAUSTION = "tests/linux/test_exhaustion.py"
FAILURES = "tests/linux/test_failures.py"
FAULTS = "tests/linux/test_faults.py"
FILES = "tests/inside/test_filesystem.py"
FILTERS = "tests/unit/platforms/linux/test_seccomp_rules.py"
FOREIGN = "tests/linux/test_foreign_files.py"
IPC = "tests/inside/test_ipc.py"
KERNEL = "tests/inside/test_kernel.py"
LEARNING = "tests/linux/test_attacks_on_learning.py"
LAUNCHER = "tests/inside/test_launcher.py"
LEFTOVERS = "tests/linux/test_leftovers.py"
LIFECYCLE = "tests/linux/test_lifecycle.py"
LIMITS = "tests/linux/test_limits.py"
USAGE = "tests/unit/platforms/linux/test_usage.py"
MASKS = "tests/linux/test_masks.py"
SEARCHED = "tests/unit/platforms/linux/test_searched_directories.py"
REPOSITORIES = "tests/inside/test_repositories.py"
NETWORK = "tests/inside/test_network.py"
PENDING = "tests/linux/test_pending_starts.py"
POWER_CUT = "tests/linux/test_power_cut.py"
POLICY = "tests/unit/policy/test_policy.py"
PROCESSES = "tests/inside/test_processes.py"
EMULATED = "tests/vm/test_file_systems_emulated.py::test_corral_works_or_refuses_on_every_emulated_file_system"
QUOTAS = "tests/inside/test_quotas.py"
OWN_SOCKETS = "tests/inside/test_own_unix_sockets.py"
REPLACED_PACKAGE = "tests/linux/test_replaced_package.py"
RESOURCES = "tests/inside/test_resources.py"
TWO_USERS = "tests/linux/test_two_users.py"
UNIX_SCOPE = (
    "tests/vm/test_unix_scope.py::test_unix_sockets_on_a_kernel_whose_landlock_controls_them"
)
RUN = "tests/linux/test_run.py"
STREAMS = "tests/linux/test_streams.py"
TERMINAL = "tests/linux/test_terminal_output.py"
UNBLOCKED = "tests/unit/platforms/test_unblocked_write.py"

FAULT_CLAIMS = {
    "faults-denied": (
        "While it cannot answer, these calls are denied.",
        f"{FAULTS}::test_a_supervisor_without_descriptors_continues_or_names_a_reason",
        f"{FAULTS}::test_a_supervisor_without_memory_continues_or_names_a_reason",
        f"{FAULTS}::test_a_target_may_fork_if_subprocesses_are_allowed_and_nothing_fails",
    ),
    "faults-ended": (
        "Otherwise corral ends the run and its whole tree, prints the reason and a hint, and exits with code 125.",
        f"{FAULTS}::test_a_supervisor_without_descriptors_continues_or_names_a_reason",
        f"{FAULTS}::test_a_supervisor_without_memory_continues_or_names_a_reason",
        f"{REPLACED_PACKAGE}::test_a_run_ends_as_usual_after_its_package_was_removed",
    ),
    "faults-stopped": (
        "the calls that it answers have to wait; if the timeout passes meanwhile, the run ends when the supervisor continues",
        f"{FAULTS}::test_a_timeout_during_a_pause_of_the_supervisor_ends_the_run_afterwards",
        f"{FAULTS}::test_nothing_is_allowed_while_the_supervisor_is_paused",
        f"{PENDING}::test_a_process_start_is_denied_if_the_supervisor_was_paused_meanwhile",
    ),
    "faults-used-up": (
        "the target does not start, and the hint names the sysctl or `ulimit`",
        f"{EXHAUSTION}::test_a_run_without_free_namespaces_is_refused",
        f"{EXHAUSTION}::test_a_run_without_free_processes_is_refused",
    ),
    "faults-inotify": (
        "corral warns that it will not notice replaced masks; with `--strict` the run ends",
        f"{EXHAUSTION}::test_a_run_without_free_inotify_instances_prints_a_warning",
        "tests/linux/test_replaced_files.py::test_a_host_without_watches_left_is_reported",
    ),
    "faults-directories": (
        "the run goes on, and does not change files of another user",
        f"{FAULTS}::test_a_run_survives_changes_of_corrals_directories",
    ),
    "faults-package": (
        "a run that is older than half a second goes on, because its supervisor has imported every module that it may need; a younger run ends",
        f"{REPLACED_PACKAGE}::test_a_run_ends_as_usual_after_its_package_was_removed",
        f"{REPLACED_PACKAGE}::test_a_run_ends_as_usual_after_an_upgrade",
        f"{REPLACED_PACKAGE}::test_an_upgrade_right_after_the_start_is_reported",
    ),
    "faults-server": (
        "the run keeps its files until it ends; `corral cache gc` removes them then",
        f"{FAULTS}::test_a_removed_server_keeps_its_files_until_its_run_ends",
    ),
    "faults-sleep": (
        "A timeout counts real time, including the time in which the machine sleeps, and ignores changes of the clock.",
        f"{DEADLINES}::test_a_timeout_counts_time_in_which_the_machine_sleeps",
        "tests/vm/test_suspend.py::test_a_run_whose_timeout_passed_during_sleep_is_asked_to_stop",
    ),
    "faults-grace": (
        "The five seconds between SIGTERM and SIGKILL count only while the machine is awake.",
        f"{DEADLINES}::test_the_grace_does_not_count_time_in_which_the_machine_sleeps",
    ),
    "faults-power": (
        "A test stopped each command at every call that changes a file, and also simulated a disk that loses unsynced data.",
        f"{POWER_CUT}::test_an_interrupted_wrap_leaves_the_old_or_the_new_file",
        f"{POWER_CUT}::test_an_interrupted_grant_leaves_the_old_or_the_new_file",
        f"{POWER_CUT}::test_an_interrupted_unwrap_leaves_the_old_or_the_new_file",
        f"{POWER_CUT}::test_an_interrupted_inspect_leaves_the_old_or_the_new_pins",
        f"{POWER_CUT}::test_an_interrupted_approve_leaves_the_old_or_the_new_state",
        f"{POWER_CUT}::test_an_interrupted_upgrade_leaves_one_working_version",
    ),
    "faults-store": (
        "refuses the run, and names the `corral cache rm` command that repairs it.",
        f"{POWER_CUT}::test_an_interrupted_installation_leaves_a_usable_store",
    ),
    "faults-journal": (
        "If the last line of an audit file is incomplete, corral does not continue this file.",
        f"{POWER_CUT}::test_an_interrupted_run_leaves_usable_files",
        "tests/unit/policy/test_granted_paths.py::test_a_record_with_a_damaged_end_is_repaired",
    ),
}

CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(id=name, sentence=sentence, tests=tuple(tests), source=SECURITY)
        for name, (sentence, *tests) in FAULT_CLAIMS.items()
    ),
    Claim(
        id="sampling-blind",
        sentence="If corral enforces a memory limit by sampling, the report names these gaps:",
        tests=(
            f"{LIMITS}::test_memory_that_a_target_hides_from_the_supervisor_counts",
            f"{LIMITS}::test_explain_names_the_kinds_of_memory_that_sampling_does_not_count",
        ),
        source=SECURITY,
    ),
    Claim(
        id="sampling-interrupted",
        sentence="Timeouts, signals and kills interrupt a measurement, even if corral still has much to read.",
        tests=(
            f"{DEADLINES}::test_a_timeout_interrupts_a_sample",
            f"{DEADLINES}::test_a_signal_interrupts_a_sample",
            f"{DEADLINES}::test_the_kill_after_the_grace_interrupts_a_sample_and_measures_no_memory",
            f"{LIMITS}::test_processes_with_very_many_memory_mappings_do_not_delay_the_timeout",
            f"{LIMITS}::test_one_sample_reads_only_a_limited_number_of_memory_mappings",
            f"{LIMITS}::test_an_interrupted_sample_does_not_read_further_processes",
            f"{USAGE}::test_the_search_reads_each_list_of_threads_once_however_fast_threads_start_and_end",
            f"{USAGE}::test_no_list_of_descriptors_is_read_beyond_the_budget",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="printed-as-text",
        sentence="**corral's messages** escape control, line-end and direction characters in names that other programs or users chose.",
        tests=(
            f"{TERMINAL}::test_hostile_arguments_are_printed_as_text",
            f"{TERMINAL}::test_files_that_a_run_created_are_printed_as_text",
            f"{TERMINAL}::test_installed_names_are_printed_as_text",
            f"{TERMINAL}::test_download_progress_is_printed_as_text",
            f"{TERMINAL}::test_a_registrys_addresses_are_printed_as_text",
            f"{TERMINAL}::test_on_a_terminal_only_corrals_own_colours_are_escapes",
        ),
        source=SECURITY,
    ),
    Claim(
        id="stderr-full",
        sentence="If stderr is full, corral drops a message, because a target could fill stderr to make the run wait.",
        tests=(
            f"{UNBLOCKED}::test_a_write_to_a_full_stream_does_not_wait",
            f"{UNBLOCKED}::test_an_open_stream_gets_the_message",
            f"{RESOURCES}::test_a_full_stderr_without_a_reader_does_not_block_corral",
            f"{REPOSITORIES}::test_a_full_stderr_does_not_stop_the_supervisor",
        ),
        source=SECURITY,
    ),
    Claim(
        id="learn-never",
        sentence="corral never proposes a known secret, a repository, a socket or a file that other programs run, not even through a link.",
        tests=tuple(
            f"tests/unit/learn/test_proposals.py::test_{name}"
            for name in (
                "a_secret_is_not_proposed_under_another_name",
                "sensitive_paths_are_listed_and_not_proposed",
                "a_socket_is_listed_with_its_flag_and_not_proposed",
                "a_forbidden_file_is_not_proposed_directly_or_through_a_link",
            )
        ),
        source=SECURITY,
    ),
    Claim(
        id="learn-typed",
        sentence="When `corral learn` asks a question, it accepts only text that is typed after the question.",
        tests=(f"{LEARNING}::test_only_what_is_typed_after_a_question_answers_it",),
        source=SECURITY,
    ),
    Claim(
        id="bare-names",
        sentence="A run reports once that the target wanted the network, and suggests `corral learn`, which lists the names.",
        tests=(
            "tests/linux/test_denial_flags.py::test_without_namespaces_run_reports_an_unknown_address_and_learn_shows_it",
            "tests/linux/test_denial_rows.py::test_an_ungranted_name_without_an_allowlist_is_reported",
        ),
        source=SECURITY,
    ),
    Claim(
        id="denial-secrets",
        sentence="variables and arguments that look like secrets, are masked on stderr, in the report, the audit and the stored denials.",
        tests=(
            "tests/linux/test_denial_secrets.py::test_reports_of_denials_do_not_contain_the_value_of_a_secret",
            "tests/linux/test_denial_secrets.py::test_the_python_api_does_not_report_the_value_of_a_secret",
            "tests/unit/supervisor/test_secret_values.py::test_values_that_look_like_secrets_are_found",
            "tests/unit/supervisor/test_secret_values.py::test_a_denial_with_a_masked_destination_suggests_no_flag",
            "tests/unit/supervisor/test_secret_values.py::test_parts_of_a_secret_address_are_masked",
            "tests/mcp/test_hostile.py::test_the_stderr_of_an_inspected_server_is_masked",
        ),
        source=SECURITY,
    ),
    Claim(
        id="denial-shown",
        sentence="corral does not mask values that the server's own policy sets, or names that only look like a key. Otherwise a server could hide its denials.",
        tests=(
            "tests/linux/test_denial_secrets.py::test_denied_host_names_that_look_like_keys_are_reported_unmasked",
            "tests/linux/test_denial_secrets.py::test_a_value_is_masked_if_the_user_sets_it_but_not_if_a_manifest_does",
            "tests/unit/supervisor/test_secret_values.py::test_values_that_the_server_chose_are_not_secrets",
            "tests/unit/servers/test_bundle.py::test_only_the_users_values_are_masked",
            "tests/mcp/test_hostile.py::test_a_tool_name_that_looks_like_a_token_is_not_masked_in_the_audit",
        ),
        source=SECURITY,
    ),
    Claim(
        id="masking-time",
        sentence="The time for masking grows only linearly with the text, so it does not delay a deadline.",
        tests=(
            "tests/linux/test_denial_secrets.py::test_masking_many_values_of_a_manifest_does_not_delay_the_timeout",
            "tests/unit/supervisor/test_secret_values.py::test_overlapping_values_take_linear_time",
            "tests/unit/supervisor/test_secret_values.py::test_a_long_variable_takes_linear_time",
            "tests/unit/supervisor/test_secret_values.py::test_only_the_start_of_a_text_is_searched",
            "tests/unit/supervisor/test_secret_values.py::test_long_arguments_are_masked_only_up_to_their_limit",
            "tests/unit/policy/test_variables.py::test_masking_takes_linear_time",
        ),
        source=SECURITY,
    ),
    Claim(
        id="learn-remote",
        sentence="If a path is on a network or FUSE file system that the run does not use, corral lists the path, but does not look it up.",
        tests=(f"{LEARNING}::test_a_file_system_that_never_answers_does_not_block_learn",),
        source=SECURITY,
    ),
    Claim(
        id="learn-flood",
        sentence="Even if a target looks for very many paths or names, corral still shows that it looked for secrets.",
        tests=(
            f"{LEARNING}::test_a_flood_of_paths_hides_neither_secrets_nor_questions",
            f"{LEARNING}::test_a_flood_of_names_does_not_hide_secrets_from_why",
        ),
        source=SECURITY,
    ),
    Claim(
        id="starts-unanswered",
        sentence="If the supervisor reads a name from such memory, the supervisor has to wait, and cannot act on its deadlines meanwhile.",
        source=SECURITY,
        where=f"{UNCHECKED}no file system here leaves a read without an answer",
    ),
    Claim(
        id="slow-calls",
        sentence="The supervisor looks at its deadlines after each such wait.",
        tests=("tests/linux/test_notifications.py::test_the_supervisor_checks_its_deadlines_between_slow_calls_of_the_target",),
        source=SECURITY,
    ),
    Claim(
        id="core-handler",
        sentence="If a target crashes, the kernel does not start this program, because corral sets RLIMIT_CORE to 1 and the target cannot change it.",
        tests=(
            "tests/inside/test_resources.py::test_a_target_cannot_lower_its_limit_on_core_files_to_zero",
            "tests/inside/test_resources.py::test_no_core_is_dumped",
        ),
        source=SECURITY,
    ),
    Claim(
        id="creations-watched",
        sentence="The supervisor reads the path, reports it if the walls will deny the call, and lets every such call go on.",
        tests=(
            "tests/linux/test_denial_flags.py::test_files_that_the_target_may_create_are_not_reported",
            "tests/linux/test_denial_flags.py::test_a_write_to_the_servers_own_directory_names_a_flag_that_allows_it",
            "tests/unit/platforms/linux/test_seccomp_rules.py::test_only_opens_that_create_a_file_are_notified",
        ),
        source=SECURITY,
    ),
    Claim(
        id="fails-closed",
        sentence="If a wall or a step fails, the target never runs.",
        tests=(
            f"{FAILURES}::test_no_target_runs_if_a_step_fails",
            f"{FAILURES}::test_no_target_runs_if_a_verification_fails",
            f"{FAILURES}::test_a_step_that_silently_has_no_effect_prevents_the_start",
            f"{FAILURES}::test_no_target_runs_if_code_between_the_steps_fails",
            f"{FAILURES}::test_the_target_runs_without_an_injected_failure",
        ),
        source=SECURITY,
    ),
    row(
        "stopped", "fs-ungranted", "see or read a file that was not granted",
        "private root: mount namespace, pivot_root; Landlock on top",
        f"{FILES}::test_the_users_secrets_are_not_visible",
        f"{FILES}::test_the_systems_secrets_are_not_visible",
        f"{FILES}::test_the_root_directory_shows_only_the_system_the_home_and_the_interpreter",
        f"{FILES}::test_links_do_not_lead_out_of_a_grant",
        f"{FILES}::test_ungranted_files_cannot_be_hard_linked",
    ),
    row(
        "stopped", "fs-read-only", "change files that were granted for reading, the system's files or the kernel's settings",
        "every mount below the grant is read-only, nosuid and nodev; Landlock",
        f"{FILES}::test_a_read_grant_is_read_only",
        f"{FILES}::test_a_read_grant_in_a_write_grant_stays_read_only",
        f"{FILES}::test_the_system_cannot_be_written",
        f"{FILES}::test_kernel_settings_cannot_be_written",
        f"{FILES}::test_a_write_grant_belongs_to_the_user",
    ),
    row(
        "stopped", "fs-swapped", "swap a granted path for another before it is mounted",
        "corral opens the path with RESOLVE_NO_SYMLINKS, and compares device and inode",
        f"{FILES}::test_a_grant_that_was_replaced_before_the_start_is_refused",
        f"{FILES}::test_program_files_that_were_replaced_before_the_start_are_refused",
    ),
    row(
        "stopped", "fs-repositories", "change programs that git, hg or jj run for you, in a write grant that contains a repository",
        "the whole `.git`, `.hg`, `.jj` and the paths in its settings are read-only, unless a grant names them",
        f"{REPOSITORIES}::test_programs_for_git_cannot_be_planted",
        f"{REPOSITORIES}::test_hooks_of_the_users_own_configuration_are_protected",
        f"{REPOSITORIES}::test_settings_are_protected_behind_links_and_comments",
        f"{REPOSITORIES}::test_a_repository_pointer_through_a_link_cannot_be_changed",
        f"{REPOSITORIES}::test_hooks_of_all_repositories_are_protected_in_a_grant_without_one",
        f"{REPOSITORIES}::test_repositories_and_submodules_are_protected_at_any_depth",
        f"{MASKS}::test_paths_in_a_repositorys_settings_are_protected",
        f"{MASKS}::test_links_in_a_hooks_directory_are_followed",
    ),
    row(
        "stopped", "fs-masked", "read secrets or change start-up files inside a granted directory, as long as you do not replace these files",
        "empty or read-only mounts cover these files, and the directories above them cannot be renamed",
        f"{MASKS}::test_a_secret_in_a_granted_part_of_home_is_hidden",
        f"{MASKS}::test_self_starting_files_of_a_write_grant_cannot_be_changed",
        f"{MASKS}::test_a_hidden_secret_stays_hidden_in_a_write_grant",
        f"{MASKS}::test_attacks_on_protected_files_succeed_without_walls",
        f"{FILES}::test_secrets_in_a_readable_part_of_the_home_are_hidden",
        f"{FILES}::test_masks_are_enforced_in_write_grants_inside_home",
        f"{LAUNCHER}::test_a_secret_of_the_home_is_hidden_in_another_mount_too",
        f"{REPOSITORIES}::test_thousands_of_planted_files_do_not_keep_corral_from_finding_secrets",
    ),
    row(
        "stopped", "fs-private", "leave anything for the next run, or see another run's private files",
        "HOME, `/tmp`, `/var/tmp` and `/dev/shm` are a tmpfs that only this run has",
        f"{FILES}::test_home_and_tmp_are_private",
        f"{FILES}::test_private_files_of_a_run_are_gone_in_the_next",
        f"{FILES}::test_parallel_runs_do_not_see_each_others_private_files",
    ),
    row(
        "stopped", "fs-own", "get write access to corral's own code, interpreter, policy or directories by a grant",
        "corral compares names, inodes and mounts when it makes the policy, and refuses such a grant",
        f"{POLICY}::test_corrals_own_directories_are_never_granted",
        f"{POLICY}::test_packages_that_are_being_installed_are_not_granted",
        f"{POLICY}::test_code_and_interpreter_cannot_be_written",
        f"{POLICY}::test_policy_report_and_audit_files_cannot_be_written",
        f"{POLICY}::test_a_protected_path_is_recognized_by_its_inode",
        f"{LAUNCHER}::test_another_mount_of_corrals_own_files_is_refused",
        f"{LAUNCHER}::test_write_grants_of_corrals_own_files_are_refused",
    ),
    row(
        "stopped", "net-none", "reach any address outside, by TCP, UDP or DNS",
        "network namespace with loopback only",
        f"{NETWORK}::test_no_address_has_a_route",
        f"{NETWORK}::test_names_do_not_resolve",
        f"{NETWORK}::test_only_loopback_exists",
    ),
    row(
        "stopped", "net-loopback", "reach a listener on the host's loopback, or be reached from there",
        "network namespace",
        f"{NETWORK}::test_listeners_of_the_host_are_not_reached",
        f"{NETWORK}::test_a_listener_inside_is_not_reachable_from_outside",
        f"{NETWORK}::test_the_loopback_inside_is_private",
    ),
    row(
        "stopped", "net-families", "open sockets other than TCP, UDP and route netlink",
        "seccomp",
        f"{NETWORK}::test_only_harmless_socket_families_open",
        f"{EFFECTS}::test_denied_sockets_get_their_errno",
        f"{EFFECTS}::test_mptcp_and_sock_packet_are_denied",
    ),
    row(
        "stopped", "unix-sockets", "connect to unix sockets of the host, by path or abstract name, or take such a name",
        "seccomp denies AF_UNIX; network namespace; Landlock scopes where the kernel has them; a socket on a standard stream already has a name, and cannot get another",
        f"{IPC}::test_unix_sockets_of_the_host_are_not_reached",
        f"{IPC}::test_a_socketpair_cannot_be_connected_elsewhere",
        f"{IPC}::test_data_passes_through_a_socketpair_of_streams",
        f"{IPC}::test_a_socketpair_takes_no_abstract_name_of_the_host",
        f"{STREAMS}::test_a_socket_on_stdin_cannot_take_an_abstract_name_of_the_host",
    ),
    row(
        "stopped", "ipc", "reach System V and POSIX IPC of the host",
        "ipc namespace, own `/dev/shm`",
        f"{IPC}::test_ipc_objects_of_the_host_are_not_visible",
    ),
    row(
        "stopped", "descriptors", "use descriptors of the caller",
        "all descriptors except 0 to 2 are closed on exec",
        f"{IPC}::test_the_target_does_not_inherit_descriptors_of_corrals_caller",
        f"{IPC}::test_a_closed_stream_is_not_replaced_by_corrals_descriptor",
    ),
    row(
        "stopped", "terminal", "type into an inherited terminal, or change its size",
        "seccomp denies TIOCSTI, TIOCLINUX, TIOCSETD and TIOCSWINSZ; own session",
        f"{IPC}::test_a_target_cannot_type_into_an_inherited_terminal",
        f"{IPC}::test_a_terminal_cannot_be_opened_again",
        f"{EFFECTS}::test_tty_commands_are_denied_with_junk_in_the_high_word",
    ),
    row(
        "stopped", "processes", "start a process with `subprocess.allow = false`",
        "seccomp allows clone only for threads, and execve only with a secret number (cookie), which is lost with the first exec",
        f"{EXEC}::test_a_target_cannot_execute_a_second_program",
        f"{EXEC}::test_a_target_cannot_start_a_second_process",
        f"{PENDING}::test_a_process_start_is_denied_if_the_supervisor_was_paused_meanwhile",
        f"{PENDING}::test_no_process_starts_if_the_supervisor_is_killed_meanwhile",
        f"{PENDING}::test_a_process_start_is_denied_if_the_supervisor_has_no_free_descriptors",
        f"{PENDING}::test_a_target_that_hides_its_memory_cannot_start_a_process",
        f"{EXEC}::test_a_target_can_start_threads",
        f"{EFFECTS}::test_exec_is_allowed_only_with_the_secret_numbers_in_its_arguments",
        f"{EFFECTS}::test_an_executed_program_cannot_execute_another",
    ),
    row(
        "stopped", "host-processes", "see, signal, trace or read processes of the host",
        "PID namespace, `hidepid`, seccomp",
        f"{PROCESSES}::test_processes_of_the_host_are_not_visible",
        f"{PROCESSES}::test_signals_do_not_reach_the_host",
        f"{PROCESSES}::test_a_process_of_the_host_cannot_be_made_the_owner_of_a_descriptor",
        f"{PROCESSES}::test_the_target_shares_no_namespace_with_the_host",
    ),
    row(
        "stopped", "init", "read, stop or adjust PID 1 of its sandbox",
        "PID 1 is not dumpable; `hidepid`; a filter that allows PID 1 little more than waiting",
        f"{PROCESSES}::test_init_cannot_be_read",
        f"{PROCESSES}::test_init_cannot_be_traced_or_ended",
        f"{QUOTAS}::test_the_target_cannot_adjust_pid_1",
        f"{EFFECTS}::test_init_may_wait_and_is_killed_for_any_other_call",
    ),
    row(
        "stopped", "syscalls", "use io_uring, ptrace, bpf, perf, keyctl, userfaultfd, mounts, kernel modules or file handles",
        "seccomp",
        f"{KERNEL}::test_calls_that_could_bypass_the_walls_are_denied",
        f"{EFFECTS}::test_unshare_io_uring_and_bpf_are_always_denied",
        f"{FILTERS}::test_the_target_filter_equals_libseccomps",
    ),
    row(
        "stopped", "encryption-keys", "take away the keys of your encrypted directories, or add keys",
        "seccomp denies these commands of fscrypt",
        f"{KERNEL}::test_keys_of_encrypted_directories_cannot_be_changed",
    ),
    row(
        "stopped", "abis", "get around the filter by x32 or 32-bit system calls",
        "seccomp kills the process",
        f"{KERNEL}::test_a_process_that_makes_x32_or_32_bit_system_calls_is_killed",
        f"{KERNEL}::test_machine_code_with_ordinary_calls_runs",
        f"{EFFECTS}::test_a_process_that_uses_another_system_call_abi_is_killed",
        where="x86_64",
    ),
    row(
        "stopped", "nesting", "make namespaces of its own",
        "seccomp; `user.max_user_namespaces = 0` inside",
        f"{KERNEL}::test_no_user_namespace_can_be_made_for_mounts",
        f"{KERNEL}::test_pivot_root_is_denied",
        f"{KERNEL}::test_mounts_cannot_be_changed_or_removed",
    ),
    row(
        "stopped", "privileges", "gain privileges by capabilities or set-user-ID programs",
        "no capabilities, empty bounding set, locked securebits, no_new_privs, nosuid",
        f"{KERNEL}::test_a_target_has_no_capability_and_cannot_gain_one",
        f"{KERNEL}::test_a_setuid_program_gains_nothing",
    ),
    row(
        "stopped", "environment", "see the caller's environment",
        "corral makes a new environment with the variables of the policy",
        f"{LAUNCHER}::test_the_callers_environment_is_not_passed_on",
        f"{LAUNCHER}::test_secrets_are_passed_and_not_shown",
    ),
    row(
        "stopped", "tree", "outlive corral, even after `kill -9`",
        "PID namespace: PID 1 ends with the supervisor, and the kernel kills the rest",
        f"{LIFECYCLE}::test_corral_and_all_processes_end_with_the_target",
        f"{LIFECYCLE}::test_kill_9_of_corral_at_any_moment_leaves_no_process_or_file",
        f"{LIFECYCLE}::test_kill_9_of_corral_leaves_nothing_of_a_target_with_child_processes",
    ),
    row(
        "limits", "limit-pids", "`pids`",
        "cgroup `pids.max`; otherwise RLIMIT_NPROC, which the kernel counts in the sandbox's own user namespace; otherwise corral counts, and answers every clone, fork and vfork (seccomp notification, see below)",
        f"{RESOURCES}::test_a_fork_bomb_reaches_the_limit",
        f"{RESOURCES}::test_threads_count_as_processes",
        f"{CGROUP}::test_limits_are_enforced_by_cgroups",
        "tests/inside/test_task_limit.py::test_a_fork_bomb_stays_within_the_limit",
        "tests/inside/test_task_limit.py::test_orphans_stay_within_the_limit",
        "tests/inside/test_task_limit.py::test_threads_start_during_a_flood_of_signals",
    ),
    row("limits", "limit-fds", "`fds`", "RLIMIT_NOFILE of each process", f"{RESOURCES}::test_open_files_are_limited"),
    row(
        "limits", "limit-disk", "`disk`",
        "one tmpfs of this size for all private directories, and RLIMIT_FSIZE for each file",
        f"{RESOURCES}::test_private_directories_share_one_limit",
        f"{RESOURCES}::test_empty_files_are_counted",
        f"{RESOURCES}::test_a_file_in_a_write_grant_is_bounded",
    ),
    row(
        "limits", "limit-memory", "`memory`",
        "`memory.max` without swap, in a cgroup that is delegated or that systemd lends; else sampling, if the limit is stated",
        f"{CGROUP}::test_limits_are_enforced_by_cgroups",
        f"{CGROUP}::test_limits_of_a_user_without_a_delegated_cgroup",
        f"{LIMITS}::test_every_kind_of_memory_counts_towards_the_limit",
        "tests/vm/test_systemd.py::test_limits_in_a_login_session",
        where=MACHINE,
    ),
    row("limits", "limit-cpu", "`cpu`", "cgroup `cpu.max`; otherwise the supervisor stops and continues the target in turn", f"{CGROUP}::test_limits_are_enforced_by_cgroups", f"{LIMITS}::test_a_share_of_the_processors_is_enforced", where=MACHINE),
    row("limits", "limit-cpu-time", "`cpu_time`", "RLIMIT_CPU; also sampling if subprocesses are allowed", f"{RESOURCES}::test_cpu_time_is_limited", f"{LIMITS}::test_cpu_time_of_all_processes_is_added_up", f"{LIMITS}::test_cpu_time_of_ended_processes_counts"),
    row("limits", "limit-io", "`io`", "cgroup `io.max` of the disks behind the target's files", f"{CGROUP}::test_limits_are_enforced_by_cgroups", where=MACHINE),
    row(
        "limits", "limit-timeout", "`timeout`",
        "the supervisor sends SIGTERM, waits 5 s, and kills PID 1",
        f"{LIFECYCLE}::test_a_timeout_exits_with_124_and_is_in_the_report",
        f"{LIFECYCLE}::test_a_target_that_ends_in_time_is_not_reported_as_timeout",
        f"{LIFECYCLE}::test_a_target_that_ignores_sigterm_is_killed_after_the_grace",
    ),
    row("limits", "limit-address-space", "`address_space`", "RLIMIT_AS of each process", f"{RUN}::test_an_address_space_limit_is_enforced"),
    row(
        "refused", "refuse-io", "an `io` rate without a delegated cgroup",
        "corral refuses the run, because nothing else enforces it",
        f"{RUN}::test_an_io_rate_is_enforced_by_a_cgroup_or_refused",
    ),
    row(
        "refused", "refuse-network",
        "`network.allow` without user namespaces, in a container engine that uses a seccomp listener",
        "corral refuses the run and names the listener, because nothing there enforces an allowlist",
        f"{BROKER}::test_an_allowlist_is_refused_if_a_container_engine_has_the_only_seccomp_listener",
    ),
    row(
        "refused", "refuse-no-walls", "a run on a host where user namespaces and Landlock both fail",
        "corral refuses the run, and names what is missing",
        f"{CGROUP}::test_runs_on_a_machine_without_user_namespaces_and_landlock",
        where=MACHINE,
    ),
    *(
        Claim(id=name, sentence=sentence, tests=(UNIX_SCOPE,), source=SECURITY, where=MACHINE)
        for name, sentence in (
            ("socket-grant-alone", "From Linux 7.1 on, Landlock controls this, and the target can connect only to the granted socket."),
            ("unix-scope", "If `doctor` shows that Landlock's unix socket scope works, the target's processes can always reach each other by unix sockets, but cannot reach other processes in this way."),
        )
    ),
    *(
        Claim(id=name, sentence=sentence, tests=tuple(tests), source=SECURITY)
        for name, sentence, tests in (
            (
                "own-unix-sockets",
                "corral then refuses a policy with which the target can see a directory in which another program could have a socket: a granted directory, the server's own directory, or a runtime outside of the system's directories. The error names the directory.",
                (
                    f"{OWN_SOCKETS}::test_a_servers_processes_reach_each_other",
                    f"{OWN_SOCKETS}::test_sockets_of_the_host_stay_out_of_reach",
                    f"{OWN_SOCKETS}::test_a_grant_that_may_contain_a_socket_is_refused",
                    f"{OWN_SOCKETS}::test_a_servers_own_directory_that_may_contain_a_socket_is_refused",
                    f"{OWN_SOCKETS}::test_without_the_refusal_a_socket_in_a_grant_would_answer",
                    f"{OWN_SOCKETS}::test_own_unix_sockets_are_refused_without_namespaces",
                ),
            ),
            (
                "no-socket-in-grant",
                "The target cannot make a socket in a write grant.",
                (f"{OWN_SOCKETS}::test_no_socket_is_made_in_a_write_grant",),
            ),
            (
                "bare-files",
                "the target can read and change only what was granted.",
                (
                    f"{FILES}::test_the_users_secrets_are_not_visible",
                    f"{FILES}::test_a_read_grant_is_read_only",
                    f"{BARE_INSIDE}::test_ungranted_and_read_only_files_cannot_be_changed",
                    f"{BARE_INSIDE}::test_files_move_only_between_write_grants",
                ),
            ),
            (
                "bare-sockets",
                "The filter denies every internet and unix socket, unless the policy names hosts, ports or sockets.",
                (f"{NETWORK}::test_only_harmless_socket_families_open", f"{NETWORK}::test_listeners_of_the_host_are_not_reached", f"{IPC}::test_unix_sockets_of_the_host_are_not_reached"),
            ),
            (
                "bare-signals",
                "Signals to processes outside the target are denied by Landlock, or by the filter if Landlock cannot do this.",
                (
                    f"{BARE_INSIDE}::test_processes_with_the_same_id_are_out_of_reach",
                    f"{BARE_INSIDE}::test_signals_to_all_processes_stay_with_the_target",
                ),
            ),
            ("bare-ipc", "The filter denies System V IPC.", (f"{IPC}::test_ipc_objects_of_the_host_are_not_visible",)),
            (
                "bare-modes",
                "The filter denies changes of a file's owner and attributes. It also denies changes of modes and times outside of the directories that the target may write.",
                (
                    f"{BARE_INSIDE}::test_ungranted_and_read_only_files_cannot_be_changed",
                    f"{EFFECTS}::test_without_namespaces_a_read_only_descriptor_changes_nothing",
                    f"{CHANGES}::test_modes_and_times_outside_cannot_be_changed",
                    f"{CHANGES}::test_learning_changes_no_modes_outside_of_write_grants",
                ),
            ),
            (
                "bare-changes",
                "It looks up the file beneath a write grant or a private directory, and the kernel refuses a path that leads out of it.",
                (
                    f"{CHANGES}::test_modes_and_times_can_be_changed_in_writable_places",
                    f"{CHANGES}::test_a_race_never_changes_a_file_outside",
                    f"{CHANGES}::test_files_of_a_directory_that_replaced_a_granted_one_are_not_changed",
                    f"{CHANGES}::test_git_clones_into_a_write_grant",
                    "tests/unit/platforms/linux/test_file_changes.py::test_every_file_that_a_lookup_finds_is_in_a_writable_directory",
                ),
            ),
            (
                "bare-changes-wait",
                "A separate thread of the supervisor does this, with the target's ids and without capabilities. Even if it has to wait for a file system, timeouts are not delayed.",
                (
                    f"{CHANGES}::test_a_change_that_has_to_wait_does_not_delay_the_timeout",
                    f"{CHANGES}::test_only_the_owner_may_change_a_file",
                ),
            ),
            (
                "bare-changes-denied",
                "If a target makes very many such changes, the supervisor slows it down. If a container engine already uses the seccomp listener, all changes of modes and times are denied.",
                (
                    f"{CHANGES}::test_a_flood_of_changes_is_slowed_down",
                    f"{CHANGES}::test_without_a_listener_all_changes_are_denied",
                ),
            ),
            (
                "bare-tree",
                "A guardian process ends the tree, so the processes of the tree do not outlive the target or corral.",
                (
                    f"{BARE}::test_descendants_do_not_survive_the_target",
                    f"{BARE}::test_descendants_do_not_survive_corral",
                    f"{BARE}::test_descendants_survive_their_parent_without_corral",
                    f"{BARE}::test_the_target_dies_with_its_guardian",
                ),
            ),
            (
                "bare-at-once",
                "The guardian kills the whole tree by one signal, even if the tree starts processes meanwhile.",
                (
                    f"{BARE_INSIDE}::test_the_tree_is_killed_without_listing_its_processes",
                    f"{USAGE}::test_the_search_for_processes_ends_however_fast_they_start_and_end",
                ),
            ),
            (
                "bare-refuses",
                "corral refuses a grant that contains a secret, because Landlock cannot mask files.",
                (
                    f"{FILES}::test_secrets_in_a_readable_part_of_the_home_are_hidden",
                    f"{BARE}::test_an_unenforceable_limit_is_refused_by_name",
                    f"{BARE}::test_policies_run_without_the_part_that_is_refused",
                ),
            ),
            *(
                (f"container-{name}", sentence, tuple(f"tests/linux/test_containers.py::{test}" for test in tests))
                for name, sentence, tests in (
                    (
                        "works",
                        "It was tried under podman's seccomp profile, and under a profile that denies what Docker's profile denies.",
                        ("test_the_demo_runs_in_a_container", "test_a_limit_on_processes_is_enforced_in_a_container", "test_the_target_has_the_users_own_id", "test_a_kept_home_survives_runs_in_a_container"),
                    ),
                    (
                        "network",
                        "A published server reaches only the hosts that its policy names.",
                        ("test_a_published_server_works_with_its_network_profile",),
                    ),
                    ("tmp", "If `/tmp` is not writable, an error says so.", ("test_a_missing_writable_tmp_is_named_with_its_remedy",)),
                    (
                        "disk",
                        "Limit the size of the container's `/tmp` instead, which the container engine enforces.",
                        ("test_a_disk_limit_is_refused_with_the_engines_flag_as_hint", "test_the_engines_own_limit_applies_to_the_private_space"),
                    ),
                    (
                        "doctor",
                        "`corral doctor` says in one line what the engine forbids and which controls are therefore missing.",
                        (
                            "test_doctor_names_the_engines_denials_and_their_effect_in_one_line",
                            "test_doctor_names_the_controls_that_are_not_enforced",
                        ),
                    ),
                )
            ),
            (
                "broker-listener",
                "It does not let the target install a seccomp listener of its own, because the kernel would then ask only that listener.",
                (f"{FILTERS}::test_the_target_cannot_install_a_listener_with_a_broker", f"{BROKER}::test_a_target_cannot_install_a_seccomp_listener"),
            ),
            (
                "broker-alone",
                "If it has ended, every such call fails.",
                (f"{BROKER}::test_a_target_waits_for_a_stopped_supervisor", f"{BROKER}::test_a_target_ends_with_a_killed_supervisor"),
            ),
            (
                "broker-root",
                "If root lacks CAP_SYS_PTRACE, the supervisor takes the target's user id while it inspects the target.",
                (f"{BROKER}::test_root_with_fewer_capabilities_has_the_same_network",),
            ),
            (
                "broker-unix",
                "The other end sees the target's user id and corral's process id.",
                (f"{BROKER}::test_a_granted_unix_socket_is_reached_and_no_other", f"{BROKER}::test_a_replaced_unix_socket_is_not_reached"),
            ),
            (
                "bare-attributes",
                "The target can see names and metadata of the host's files, but not their extended attributes.",
                (f"{BARE_INSIDE}::test_names_and_metadata_of_ungranted_files_stay_visible", f"{BARE_INSIDE}::test_attributes_of_ungranted_files_cannot_be_read"),
            ),
            (
                "bare-keys",
                "If subprocesses are allowed, the target can see the list of processes. It also sees the names of its user's kernel keys in `/proc/keys`, but the filter denies every call that could use a key.",
                (f"{KERNEL}::test_the_users_keyring_is_not_visible", f"{KERNEL}::test_calls_that_could_bypass_the_walls_are_denied"),
            ),
            (
                "bare-capless",
                "Like corral, the target then has uid 0 and owns root's files, but it can open only what was granted.",
                (
                    f"{BARE}::test_root_without_capabilities_is_an_ordinary_user",
                    f"{BARE}::test_root_without_capabilities_is_confined_by_landlock",
                ),
            ),
            (
                "bare-state",
                "All targets that root starts have the same user id, so only Landlock keeps one server out of another server's home.",
                (
                    f"{BARE}::test_a_kept_home_belongs_to_one_server",
                    f"{BARE}::test_a_kept_home_is_closed_to_other_users_and_can_be_removed",
                    f"{BARE}::test_other_users_cannot_plant_the_homes_of_roots_targets",
                    f"{BARE}::test_a_server_cannot_open_its_kept_home_to_other_users",
                ),
            ),
            (
                "masks-replaced",
                "If one of these files is replaced, corral says so at once on stderr, and also in the report.",
                (f"{REPOSITORIES}::test_a_replaced_secret_is_reported_at_once",),
            ),
            (
                "masks-strict",
                "With `--strict` it ends the run.",
                (f"{REPOSITORIES}::test_a_strict_run_ends_when_a_covered_name_is_replaced",),
            ),
            (
                "masks-repository",
                "If a version-control directory itself is replaced, corral always ends the run.",
                (f"{REPOSITORIES}::test_a_replaced_repository_ends_the_run",),
            ),
            (
                "masks-nested",
                "corral watches read grants and program files inside a write grant in the same way.",
                (
                    f"{REPOSITORIES}::test_a_replaced_read_grant_in_a_write_grant_is_reported",
                    f"{REPOSITORIES}::test_a_replaced_program_in_a_write_grant_is_reported",
                ),
            ),
            (
                "masks-searched",
                "If the search finds nothing in a directory of a write grant, later starts skip this directory as long as its change time (ctime) stays the same. Programs cannot set the change time.",
                (
                    f"{SEARCHED}::test_a_second_search_lists_no_unchanged_directory",
                    f"{SEARCHED}::test_a_change_is_found_and_few_directories_are_listed_again",
                ),
            ),
            (
                "masks-bounded",
                "With `--strict` corral refuses the run instead.",
                (
                    f"{MASKS}::test_a_search_that_reaches_its_bound_is_reported",
                    f"{MASKS}::test_a_strict_run_refuses_unsearched_directories",
                ),
            ),
            (
                "masks-many",
                "corral refuses a run in which it would have to mask more than 1000 names.",
                (f"{REPOSITORIES}::test_planted_repositories_are_refused_at_once",),
            ),
            (
                "git-named",
                "Existing hooks, configuration and `info` in it stay read-only.",
                (f"{REPOSITORIES}::test_hooks_and_configuration_stay_read_only_in_a_named_repository",),
            ),
            (
                "git-said",
                "`explain`, `approve`, `wrap` and the run say so.",
                (
                    f"{REPOSITORIES}::test_hooks_and_configuration_stay_read_only_in_a_named_repository",
                    f"{REPOSITORIES}::test_git_status_works_and_git_add_needs_the_repository_named",
                    "tests/unit/policy/test_profiles.py::test_the_git_profile_grants_the_git_directory",
                ),
            ),
            (
                "git-status",
                "**If `.git` is not granted**, `git status` works and `git add` fails.",
                (f"{REPOSITORIES}::test_git_status_works_and_git_add_needs_the_repository_named",),
            ),
            (
                "casefold-masks",
                "Masks cover every spelling of a name, even if the name is in capitals on the disk.",
                (EMULATED,),
            ),
            (
                "casefold-grants",
                "corral refuses a grant whose path is spelled differently on the disk.",
                (
                    EMULATED,
                    "tests/unit/paths/test_spelling.py::test_a_name_in_another_case_is_replaced_by_the_name_that_its_directory_lists",
                ),
            ),
            (
                "quotas",
                "A target can use at most a quarter of the user's inotify instances and watches, and cannot use asynchronous I/O contexts or leases.",
                (
                    f"{QUOTAS}::test_calls_that_use_up_quotas_shared_with_the_host_are_denied",
                    f"{QUOTAS}::test_a_target_can_take_at_most_a_quarter_of_the_users_inotify_instances",
                    f"{QUOTAS}::test_root_lowers_system_v_maxima_in_the_sandbox",
                ),
            ),
            (
                "streams-refused",
                "corral refuses a run if a standard stream is a directory, an internet socket or a datagram socket.",
                (
                    f"{STREAMS}::test_an_internet_socket_as_a_stream_is_refused",
                    f"{STREAMS}::test_only_connected_unix_sockets_pass_as_streams",
                ),
            ),
            (
                "streams-restored",
                "At the end corral restores and reports the mode, owner and access list of each stream, and a terminal's exclusive mode (TIOCEXCL). If corral is in the terminal's foreground, it restores and reports the terminal's settings, too.",
                (
                    f"{STREAMS}::test_echo_and_output_of_a_terminal_are_restored_after_a_run",
                    f"{STREAMS}::test_mode_and_attributes_of_a_file_on_stdin_are_restored_after_the_run",
                    f"{STREAMS}::test_the_mode_of_a_named_pipe_on_stdin_is_restored_after_the_run",
                    f"{STREAMS}::test_mode_and_state_of_a_terminal_are_restored_after_the_run",
                ),
            ),
            (
                "streams-locks",
                "corral releases locks that the target left on a file.",
                (f"{STREAMS}::test_locks_of_a_shared_log_are_released",),
            ),
            (
                "streams-shared",
                "So if other programs have the same pipe or socket, the target gets a pipe of its own, and corral copies the data.",
                (
                    f"{STREAMS}::test_a_target_cannot_write_to_another_programs_stdin",
                    f"{STREAMS}::test_a_target_cannot_read_another_programs_stderr",
                    f"{STREAMS}::test_a_target_cannot_change_the_mode_of_a_shared_pipe",
                    f"{STREAMS}::test_a_target_cannot_shut_down_a_socket_that_others_share",
                    f"{STREAMS}::test_flags_of_pipes_that_others_share_are_not_changed",
                    f"{STREAMS}::test_a_spare_sandbox_gets_no_shared_pipe",
                    f"{STREAMS}::test_the_client_sees_that_the_target_closed_its_stdout_pipe",
                ),
            ),
            (
                "streams-memfd",
                "It does the same for a file in memory (memfd).",
                (f"{STREAMS}::test_a_target_cannot_write_to_a_memory_file_on_its_stdin",),
            ),
            (
                "streams-taken",
                "The rest of a shared stdin stays there for other programs, because corral takes only what the target reads.",
                (f"{STREAMS}::test_a_target_takes_only_what_it_reads_from_a_shared_stdin",),
            ),
            (
                "bare-binds",
                "The target can bind only route netlink sockets, and the supervisor does this for it.",
                (
                    f"{BARE_INSIDE}::test_the_hosts_routes_stay_visible",
                    f"{BARE_INSIDE}::test_only_netlink_sockets_can_be_bound",
                    f"{IPC}::test_a_socketpair_takes_no_abstract_name_of_the_host",
                ),
            ),
            (
                "policies-protected",
                "Only a file called `corral.toml` or `corral.json` at the top of the grant is read-only.",
                (f"{MASKS}::test_policies_of_other_servers_cannot_be_changed",),
            ),
            (
                "read-pipes",
                "In such a grant the target can write to a pipe that you read.",
                (f"{FILES}::test_landlock_protects_named_pipes_in_a_read_grant",),
            ),
            (
                "streams-killed",
                "If corral itself is killed, the attributes are not restored, because no other process of a run may change your files.",
                (f"{STREAMS}::test_a_killed_corral_does_not_restore_the_mode_of_a_file_on_stdin",),
            ),
            (
                "socket-buffers",
                "Without a cgroup, this memory does not count towards any limit, because sampling cannot see it.",
                (f"{LIMITS}::test_memory_in_socket_buffers_is_not_counted_by_sampling",),
            ),
            (
                "cpu-unwaited",
                "So without a cgroup, the short-lived children of a parent that ignores SIGCHLD do not count towards `cpu_time`.",
                (f"{LIMITS}::test_cpu_time_of_children_that_no_process_waits_for_is_not_counted",),
            ),
            (
                "hg-subrepositories",
                "The target can also create the subrepositories that a `.hgsub` names.",
                (f"{MASKS}::test_mercurial_subrepositories_are_not_searched",),
            ),
            (
                "streams-tightened",
                "If a stream has fewer permissions at the end than at the start, corral does not add them again, because you may have removed them yourself.",
                (f"{STREAMS}::test_a_mode_that_the_user_tightened_is_not_widened",),
            ),
            (
                "sysv-many",
                "corral stops a target that has more than about a thousand System V objects of one kind.",
                ("tests/inside/test_quotas.py::test_system_v_objects_are_bounded_under_a_memory_limit",),
            ),
            (
                "git-shell",
                "corral protects the files that git's settings name, even if a setting is a shell command in which the name follows `cd DIRECTORY`, or begins with `$VARIABLE/` or `$(COMMAND)/`.",
                (f"{REPOSITORIES}::test_programs_for_git_cannot_be_planted",),
            ),
            (
                "git-submodules",
                "Submodules that were not initialised are read-only.",
                (f"{REPOSITORIES}::test_an_uninitialised_submodule_cannot_be_filled",),
            ),
            (
                "reads-editables",
                "If your command names a Python, or if a Python is on PATH, the target can read the projects that are installed in this Python in editable mode. If only the server's own files name this Python, the target cannot read them.",
                ("tests/inside/test_planted_files.py::test_a_fresh_checkout_cannot_choose_readable_paths",),
            ),
            (
                "bare-moves",
                "A target cannot move a directory from a write grant into the private space.",
                (f"{LEFTOVERS}::test_directories_are_not_moved_out_of_a_grant_to_be_removed",),
            ),
            (
                "links-temporary",
                "But if the link is directly in a directory to which every user may write, such as `/tmp`, corral refuses the run until you approve the path.",
                ("tests/unit/policy/test_granted_paths.py::test_a_link_directly_in_a_sticky_directory_needs_approval",),
            ),
            (
                "findings-foreign",
                "So `ps` does not list such runs, corral refuses `state`, leftovers of a killed run stay, and each start tries every mechanism and compiles its filters again.",
                (
                    "tests/linux/test_findings.py::test_a_directory_of_another_user_is_neither_read_nor_written",
                    f"{FOREIGN}::test_a_filter_that_another_user_wrote_is_not_loaded",
                ),
            ),
            (
                "users-live",
                "This is also true if root starts the run, because the target then has a user id that no account uses.",
                (f"{TWO_USERS}::test_a_live_run_is_closed_to_other_users",),
            ),
            (
                "users-names",
                "Without namespaces it has one directory in `/tmp`, which is closed to other users. Each run gives this directory a new name with 32 random bits.",
                (
                    f"{TWO_USERS}::test_a_live_run_is_closed_to_other_users",
                    f"{TWO_USERS}::test_named_sockets_of_a_process_are_found",
                ),
            ),
            (
                "users-planted",
                "`--report` and `--audit` refuse a link, a pipe, a file of another user and an existing hard link, whatever the `fs.protected_*` settings are.",
                (
                    f"{TWO_USERS}::test_a_file_that_another_user_put_in_the_way_is_not_written",
                    f"{TWO_USERS}::test_an_own_file_in_a_shared_directory_is_written",
                ),
            ),
            (
                "users-kept",
                "If such a directory belongs to another user, corral does not read it.",
                (
                    f"{TWO_USERS}::test_files_that_another_user_planted_are_ignored",
                    f"{FOREIGN}::test_another_user_can_neither_read_nor_change_kept_files",
                    "tests/linux/test_findings.py::test_a_directory_of_another_user_is_neither_read_nor_written",
                    "tests/linux/test_runs.py::test_another_users_record_is_ignored",
                ),
            ),
            (
                "users-root",
                "If root runs corral with the HOME of another user, corral does not make its own files there, and does not follow a link from there to make a file elsewhere.",
                (
                    f"{TWO_USERS}::test_root_creates_nothing_in_a_users_home",
                    f"{TWO_USERS}::test_root_does_not_follow_its_own_link_to_a_user",
                    f"{TWO_USERS}::test_root_keeps_its_files_in_its_own_home",
                ),
            ),
            (
                "users-demo",
                "`corral demo` also tries its acts without walls, but other users cannot open its files.",
                (f"{TWO_USERS}::test_another_user_cannot_plant_links_in_the_directory_of_roots_demo",),
            ),
            (
                "users-keys",
                "If no more keys are left, a run keeps the keyring of your login session, but the target cannot use this keyring.",
                (
                    "tests/linux/test_many.py::test_a_user_without_free_kernel_keys_can_start_servers",
                    f"{KERNEL}::test_the_users_keyring_is_not_visible",
                ),
            ),
            (
                "foreign-denials",
                "In such a HOME corral also does not read the stored denials, and does not change a client's file.",
                (
                    f"{FOREIGN}::test_denials_that_another_user_wrote_are_not_granted",
                    f"{FOREIGN}::test_root_does_not_change_a_users_files",
                    f"{FOREIGN}::test_another_user_can_neither_read_nor_change_kept_files",
                ),
            ),
            (
                "streams-relayed",
                "So if a standard stream is a file, corral copies its data through a pipe.",
                (
                    f"{STREAMS}::test_file_streams_cannot_be_opened_again",
                    f"{STREAMS}::test_both_outputs_in_one_file_keep_their_order",
                ),
            ),
            (
                "bare-leftovers",
                "Files that a target left in this space cannot make a later run wait, or make it write or remove files elsewhere.",
                (
                    f"{LEFTOVERS}::test_a_target_cannot_write_to_the_top_of_its_private_directory",
                    f"{LEFTOVERS}::test_a_leftover_that_looks_like_a_cgroup_is_only_removed",
                    f"{LEFTOVERS}::test_a_huge_leftover_does_not_delay_a_start",
                    f"{LEFTOVERS}::test_a_leftover_that_became_a_link_is_not_followed",
                    f"{LEFTOVERS}::test_a_leftover_of_another_user_is_not_touched",
                    f"{LEFTOVERS}::test_a_mount_in_a_leftover_is_not_removed",
                    f"{LEFTOVERS}::test_a_directory_of_root_that_a_target_moved_into_its_home_is_not_emptied",
                    f"{LEFTOVERS}::test_only_corrals_own_cgroups_are_removed",
                ),
            ),
            (
                "bare-residue",
                "If corral was killed, the next start removes it.",
                (
                    f"{BARE}::test_the_private_directory_is_removed_whatever_is_in_it",
                    f"{BARE}::test_the_next_run_removes_a_killed_runs_private_directory",
                    "tests/linux/test_residue.py::test_clean_or_the_next_run_removes_all_leftovers_of_a_run_killed_at_any_moment",
                    "tests/linux/test_residue.py::test_the_search_for_leftovers_finds_those_of_a_killed_run",
                ),
            ),
            (
                "degraded-told",
                "For example, corral drops the default memory limit if no cgroup is delegated.",
                ("tests/linux/test_cli.py::test_a_default_limit_that_cannot_be_enforced_is_a_warning", f"{BARE}::test_the_report_names_what_the_target_can_see_of_the_host"),
            ),
            (
                "pids-signals",
                "For this reason corral does not count processes for a default limit if subprocesses are allowed.",
                (
                    "tests/inside/test_task_limit.py::test_the_default_limit_counts_threads_without_a_warning",
                    "tests/inside/test_task_limit.py::test_a_shell_under_the_default_limit_is_never_interrupted",
                ),
            ),
            (
                "sampling-stated",
                "corral does this only for limits that you state.",
                (
                    f"{LIMITS}::test_idle_processes_do_not_wake_up",
                    f"{LIMITS}::test_a_sampled_limit_wakes_only_the_supervisor",
                ),
            ),
            (
                "best-effort-walls",
                "If namespaces and Landlock both fail, the target can read and change all your files.",
                ("tests/linux/test_doctor.py::test_best_effort_drops_one_wall_with_a_warning",),
            ),
            (
                "best-effort-list",
                "If an allowlist cannot be enforced, corral drops it, and the network stays fully closed.",
                (f"{BROKER}::test_an_allowlist_is_refused_if_a_container_engine_has_the_only_seccomp_listener",),
            ),
        )
    ),
    row(
        "stopped", "net-allow", "with `network.allow`, reach anything that no rule names",
        "every address leads to the gateway, which connects only to hosts that a rule allows: [network.md](network.md)",
        f"{ALLOWLIST}::test_only_allowed_names_are_reached",
        f"{ALLOWLIST}::test_an_allowed_name_does_not_open_guarded_addresses",
        f"{ALLOWLIST}::test_no_datagram_reaches_a_host_even_if_its_name_and_port_are_allowed",
        f"{ALLOWLIST}::test_addresses_that_no_lookup_returned_are_denied",
    ),
)  # fmt: skip
