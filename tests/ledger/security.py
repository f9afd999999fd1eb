"""The promises of docs/SECURITY.md."""

from __future__ import annotations

from ledger.claim import ANY, MACHINE, SECURITY, Claim, row

ALLOWLIST = "tests/inside/test_allowlist.py"
BARE = "tests/linux/test_bare.py"
BARE_INSIDE = "tests/inside/test_without_namespaces.py"
CGROUP = "tests/vm/test_cgroup.py"
DEADLINES = "tests/unit/platforms/test_deadlines.py"
EFFECTS = "tests/linux/test_filter_effects.py"
EXEC = "tests/inside/test_exec.py"
FAILURES = "tests/linux/test_failures.py"
FILES = "tests/inside/test_filesystem.py"
FILTERS = "tests/unit/platforms/linux/test_seccomp_rules.py"
IPC = "tests/inside/test_ipc.py"
KERNEL = "tests/inside/test_kernel.py"
LAUNCHER = "tests/inside/test_launcher.py"
LEFTOVERS = "tests/linux/test_leftovers.py"
LIFECYCLE = "tests/linux/test_lifecycle.py"
LIMITS = "tests/linux/test_limits.py"
MACOS_PLAN = "tests/linux/test_macos_plan.py"
MASKS = "tests/linux/test_masks.py"
REPOSITORIES = "tests/inside/test_repositories.py"
NETWORK = "tests/inside/test_network.py"
PLAYED = "on Linux, which plays a Mac"
POLICY = "tests/unit/policy/test_policy.py"
PROCESSES = "tests/inside/test_processes.py"
QUOTAS = "tests/inside/test_quotas.py"
RESOURCES = "tests/inside/test_resources.py"
RUN = "tests/linux/test_run.py"
SEATBELT = "tests/unit/platforms/macos/test_seatbelt.py"
STREAMS = "tests/linux/test_streams.py"
TERMINAL = "tests/linux/test_terminal_output.py"
WINDOWS = "tests/windows"
WINE = "Windows' calls under Wine"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="sampling-blind",
        sentence="The report says so in the reason of the control.",
        tests=(
            f"{LIMITS}::test_hidden_memory_counts",
            f"{LIMITS}::test_the_reason_names_what_is_not_counted",
        ),
        source=SECURITY,
    ),
    Claim(
        id="sampling-interrupted",
        sentence="interrupt a look, however much a target gives it to read.",
        tests=(
            f"{DEADLINES}::test_a_timeout_interrupts_a_sample",
            f"{DEADLINES}::test_a_signal_interrupts_a_sample",
            f"{DEADLINES}::test_the_kill_after_the_grace_interrupts_a_sample_and_measures_no_memory",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="printed-as-text",
        sentence="names that others chose with control, line-end and direction characters escaped.",
        tests=(
            f"{TERMINAL}::test_words_are_printed_as_text",
            f"{TERMINAL}::test_what_a_run_created",
            f"{TERMINAL}::test_on_a_terminal_only_corrals_own_colours_are_escapes",
        ),
        source=SECURITY,
    ),
    Claim(
        id="fails-closed",
        sentence="if one does not hold, or a step fails, the target never runs.",
        tests=(
            f"{FAILURES}::test_every_step_may_fail_to_apply",
            f"{FAILURES}::test_every_wall_may_fail_its_verification",
            f"{FAILURES}::test_a_wall_that_is_missing_is_noticed",
            f"{FAILURES}::test_what_stands_between_the_steps_may_fail",
            f"{FAILURES}::test_control_without_an_injected_failure_the_target_runs",
        ),
        source=SECURITY,
    ),
    row(
        "stopped", "fs-ungranted", "see or read a file that nobody granted",
        "private root: mount namespace, pivot_root; Landlock on top",
        f"{FILES}::test_secrets_of_the_user_are_not_there",
        f"{FILES}::test_secrets_of_the_system_are_not_there",
        f"{FILES}::test_the_root_directory_shows_nothing_else",
        f"{FILES}::test_links_that_lead_out",
        f"{FILES}::test_hard_links_to_what_was_not_granted",
    ),
    row(
        "stopped", "fs-read-only", "change what was granted for reading, the system's files or the kernel's settings",
        "read-only, nosuid, nodev on every mount below the grant; Landlock",
        f"{FILES}::test_a_read_grant_is_read_only",
        f"{FILES}::test_a_read_grant_in_a_write_grant_stays",
        f"{FILES}::test_the_system_cannot_be_written",
        f"{FILES}::test_settings_of_the_kernel_cannot_be_written",
        f"{FILES}::test_a_write_grant_belongs_to_the_user",
    ),
    row(
        "stopped", "fs-swapped", "have a granted path swapped for another before it is mounted",
        "opened with RESOLVE_NO_SYMLINKS, compared by device and inode",
        f"{FILES}::test_a_grant_swapped_before_the_start",
        f"{FILES}::test_a_programs_files_swapped_before_the_start",
    ),
    row(
        "stopped", "fs-repositories", "change what git, hg or jj run for you, in a write grant around a repository",
        "the whole `.git`, `.hg`, `.jj` and where its settings lead is read-only, unless a grant names it",
        f"{REPOSITORIES}::test_what_git_runs_cannot_be_planted",
        f"{REPOSITORIES}::test_the_users_own_configuration_counts_too",
        f"{REPOSITORIES}::test_repositories_at_any_depth_and_submodules_of_submodules",
        f"{MASKS}::test_what_the_settings_of_a_repository_name",
        f"{MASKS}::test_hooks_that_are_links_are_followed",
    ),
    row(
        "stopped", "fs-masked", "read secrets, or change start-up files, inside a granted directory, while you do not replace them",
        "masked by empty or read-only mounts whose parents cannot be renamed away",
        f"{MASKS}::test_a_secret_in_a_granted_part_of_home_is_hidden",
        f"{MASKS}::test_what_starts_by_itself_cannot_be_changed_in_a_write_grant",
        f"{MASKS}::test_a_hidden_secret_stays_hidden_in_a_write_grant",
        f"{MASKS}::test_the_same_acts_succeed_without_walls",
        f"{FILES}::test_a_part_of_home_that_may_be_read_hides_its_secrets",
        f"{FILES}::test_masks_hold_in_write_grants_inside_home",
        f"{LAUNCHER}::test_a_secret_in_a_part_of_home_is_hidden_in_another_mount_of_it",
        f"{REPOSITORIES}::test_planted_files_do_not_uncover_what_is_masked",
    ),
    row(
        "stopped", "fs-private", "leave anything for the next run, or see another run's private files",
        "HOME, `/tmp`, `/var/tmp` and `/dev/shm` are a tmpfs of the run's own",
        f"{FILES}::test_home_and_tmp_are_private",
        f"{FILES}::test_nothing_of_one_run_is_seen_by_the_next",
        f"{FILES}::test_nothing_of_one_run_is_seen_by_another",
    ),
    row(
        "stopped", "fs-own", "be granted corral's own code, interpreter, policy or directories for writing",
        "refused when the policy is made, by name, inode and mount",
        f"{POLICY}::test_corrals_own_directories_are_never_granted",
        f"{POLICY}::test_code_and_interpreter_cannot_be_written",
        f"{POLICY}::test_policy_report_and_audit_files_cannot_be_written",
        f"{POLICY}::test_another_name_for_a_protected_place_is_known_by_its_inode",
        f"{LAUNCHER}::test_another_mount_of_what_is_corrals_is_refused",
        f"{LAUNCHER}::test_grants_that_would_rewrite_corral_are_refused",
    ),
    row(
        "stopped", "net-none", "reach any address outside, by TCP, UDP or DNS",
        "network namespace with loopback only",
        f"{NETWORK}::test_no_route_anywhere",
        f"{NETWORK}::test_names_do_not_resolve",
        f"{NETWORK}::test_only_loopback_exists",
    ),
    row(
        "stopped", "net-loopback", "reach a listener on the host's loopback, or be reached from there",
        "network namespace",
        f"{NETWORK}::test_listeners_of_the_host",
        f"{NETWORK}::test_a_listener_inside_is_not_reachable_from_outside",
        f"{NETWORK}::test_loopback_inside_is_its_own",
    ),
    row(
        "stopped", "net-families", "open sockets other than TCP, UDP and route netlink",
        "seccomp",
        f"{NETWORK}::test_socket_families",
        f"{EFFECTS}::test_sockets",
        f"{EFFECTS}::test_tcp_by_its_other_names",
    ),
    row(
        "stopped", "unix-sockets", "connect to unix sockets of the host, by path or abstract name",
        "seccomp denies AF_UNIX; network namespace; Landlock scopes where the kernel has them",
        f"{IPC}::test_unix_sockets_of_the_host",
        f"{IPC}::test_socketpairs_lead_nowhere_else",
        f"{IPC}::test_a_stream_pair_works",
    ),
    row(
        "stopped", "ipc", "reach System V and POSIX IPC of the host",
        "ipc namespace, own `/dev/shm`",
        f"{IPC}::test_system_v_and_posix_ipc_of_the_host",
    ),
    row(
        "stopped", "descriptors", "use descriptors of the caller",
        "all but 0 to 2 are closed on exec",
        f"{IPC}::test_descriptors_of_the_caller_stay_outside",
        f"{IPC}::test_closed_streams_are_not_filled_with_corrals_own",
    ),
    row(
        "stopped", "terminal", "type into an inherited terminal",
        "seccomp denies TIOCSTI, TIOCLINUX and TIOCSETD; own session",
        f"{IPC}::test_typing_into_an_inherited_terminal",
        f"{IPC}::test_a_terminal_is_not_reopened",
        f"{EFFECTS}::test_tty_commands_with_junk_in_the_high_word",
    ),
    row(
        "stopped", "processes", "start a process with `subprocess.allow = false`",
        "seccomp: clone only for threads, execve only with a cookie that the launcher alone knew",
        f"{EXEC}::test_no_second_exec",
        f"{EXEC}::test_no_second_process",
        f"{EXEC}::test_threads",
        f"{EFFECTS}::test_exec_passes_with_the_cookie_and_with_nothing_else",
        f"{EFFECTS}::test_what_was_executed_cannot_execute_in_turn",
    ),
    row(
        "stopped", "host-processes", "see, signal, trace or read processes of the host",
        "PID namespace, `hidepid`, seccomp",
        f"{PROCESSES}::test_other_processes_do_not_exist",
        f"{PROCESSES}::test_signals_do_not_leave",
        f"{PROCESSES}::test_owners_of_descriptors_are_not_signalled",
        f"{PROCESSES}::test_namespaces_are_all_new",
    ),
    row(
        "stopped", "init", "read, stop or adjust PID 1 of its sandbox",
        "not dumpable, `hidepid`, a filter that leaves it hardly more than waiting",
        f"{PROCESSES}::test_init_is_hidden",
        f"{PROCESSES}::test_init_is_out_of_reach",
        f"{QUOTAS}::test_pid_1_is_not_adjusted",
        f"{EFFECTS}::test_init_waits_reaps_and_dies_of_anything_else",
    ),
    row(
        "stopped", "syscalls", "use io_uring, ptrace, bpf, perf, keyctl, userfaultfd, mounts, modules or handles",
        "seccomp",
        f"{KERNEL}::test_denied_calls",
        f"{EFFECTS}::test_always_denied",
        f"{FILTERS}::test_the_target_filter_is_what_libseccomp_makes_of_the_rules",
    ),
    row(
        "stopped", "abis", "get around the filter by x32 numbers or 32-bit calls",
        "seccomp kills the process",
        f"{KERNEL}::test_other_calling_conventions_are_killed",
        f"{KERNEL}::test_machine_code_runs_where_it_calls_the_proper_way",
        f"{EFFECTS}::test_other_abis_are_killed",
        where="x86_64",
    ),
    row(
        "stopped", "nesting", "make namespaces of its own",
        "seccomp; `user.max_user_namespaces = 0` inside",
        f"{KERNEL}::test_nested_user_namespace_and_the_mounts_it_would_allow",
        f"{KERNEL}::test_pivot_root",
        f"{KERNEL}::test_remounting_and_unmounting_what_is_there",
    ),
    row(
        "stopped", "privileges", "gain privileges by capabilities or set-user-ID programs",
        "no capabilities, empty bounding set, locked securebits, no_new_privs, nosuid",
        f"{KERNEL}::test_no_capabilities_and_none_to_come",
        f"{KERNEL}::test_a_setuid_program_gains_nothing",
    ),
    row(
        "stopped", "environment", "see the caller's environment",
        "built anew from what the policy passes",
        f"{LAUNCHER}::test_the_callers_environment_stays_outside",
        f"{LAUNCHER}::test_secrets_are_passed_and_not_told",
    ),
    row(
        "stopped", "tree", "outlive corral, or `kill -9` of it",
        "PID namespace: PID 1 follows the supervisor, the kernel kills the rest",
        f"{LIFECYCLE}::test_corral_and_all_processes_are_gone_once_the_target_is",
        f"{LIFECYCLE}::test_kill_9_at_any_moment_leaves_nothing",
        f"{LIFECYCLE}::test_kill_9_while_the_target_has_a_tree_leaves_nothing",
    ),
    row(
        "limits", "limit-pids", "`pids`",
        "cgroup `pids.max`; else RLIMIT_NPROC, counted in the sandbox's own user namespace",
        f"{RESOURCES}::test_a_fork_bomb",
        f"{RESOURCES}::test_threads_count",
        f"{CGROUP}::test_limits",
    ),
    row("limits", "limit-fds", "`fds`", "RLIMIT_NOFILE of each process", f"{RESOURCES}::test_descriptors"),
    row(
        "limits", "limit-disk", "`disk`",
        "one sized tmpfs for all private places, RLIMIT_FSIZE for any file",
        f"{RESOURCES}::test_private_space_is_one_space",
        f"{RESOURCES}::test_empty_files_are_counted",
        f"{RESOURCES}::test_a_file_in_a_write_grant_is_bounded",
    ),
    row(
        "limits", "limit-memory", "`memory`",
        "cgroup `memory.max`, no swap, delegated or lent by systemd; else, if stated, sampling",
        f"{CGROUP}::test_limits",
        f"{CGROUP}::test_without_a_cgroup_of_ones_own",
        f"{LIMITS}::test_memory_counts_wherever_it_is_taken",
        "tests/vm/test_systemd.py::test_login",
        where=MACHINE,
    ),
    row("limits", "limit-cpu", "`cpu`", "cgroup `cpu.max`; else a duty cycle of the supervisor's", f"{CGROUP}::test_limits", f"{LIMITS}::test_a_share_of_the_processors_is_held", where=MACHINE),
    row("limits", "limit-cpu-time", "`cpu_time`", "RLIMIT_CPU; with subprocesses sampling", f"{RESOURCES}::test_cpu_time", f"{LIMITS}::test_cpu_time_is_the_trees", f"{LIMITS}::test_cpu_time_of_ended_processes_counts"),
    row("limits", "limit-io", "`io`", "cgroup `io.max` of the disks behind the target's files", f"{CGROUP}::test_limits", where=MACHINE),
    row(
        "limits", "limit-timeout", "`timeout`",
        "the supervisor: SIGTERM, 5 s, SIGKILL of PID 1",
        f"{LIFECYCLE}::test_a_timeout_is_124_and_the_report_says_timeout",
        f"{LIFECYCLE}::test_a_target_that_ends_in_time_is_no_timeout",
        f"{LIFECYCLE}::test_a_target_that_ignores_sigterm_is_killed_after_the_grace",
    ),
    row("limits", "limit-address-space", "`address_space`", "RLIMIT_AS of each process", f"{RUN}::test_an_address_space_that_is_asked_for_holds"),
    row(
        "refused", "refuse-io", "an `io` rate without a delegated cgroup",
        "refuses: nothing else holds it",
        f"{RUN}::test_an_io_rate_is_held_by_a_cgroup_or_refused",
    ),
    row(
        "refused", "refuse-network", "`network.allow` without user namespaces",
        "refuses: nothing there holds a list",
        f"{ALLOWLIST}::test_without_namespaces_a_list_is_refused",
    ),
    row(
        "refused", "refuse-no-walls", "a run where neither user namespaces nor Landlock hold",
        "refuses, and names what is missing",
        f"{CGROUP}::test_without_user_namespaces",
        where=MACHINE,
    ),
    *(
        Claim(id=name, sentence=sentence, tests=tests, source=SECURITY)
        for name, sentence, tests in (
            (
                "bare-files",
                "what was not granted can be neither read nor changed.",
                (
                    f"{FILES}::test_secrets_of_the_user_are_not_there",
                    f"{FILES}::test_a_read_grant_is_read_only",
                    f"{BARE_INSIDE}::test_files_that_may_not_be_changed",
                    f"{BARE_INSIDE}::test_moving_between_grants",
                ),
            ),
            (
                "bare-sockets",
                "seccomp denies every internet and unix socket,",
                (f"{NETWORK}::test_socket_families", f"{NETWORK}::test_listeners_of_the_host", f"{IPC}::test_unix_sockets_of_the_host"),
            ),
            (
                "bare-signals",
                "signals to processes that are not the target's,",
                (
                    f"{BARE_INSIDE}::test_processes_with_the_same_id_are_out_of_reach",
                    f"{BARE_INSIDE}::test_signals_to_everybody_stay_with_the_target",
                ),
            ),
            ("bare-ipc", "System V IPC,", (f"{IPC}::test_system_v_and_posix_ipc_of_the_host",)),
            (
                "bare-modes",
                "and changes of mode, owner and times.",
                (f"{BARE_INSIDE}::test_files_that_may_not_be_changed", f"{EFFECTS}::test_without_namespaces_a_descriptor_for_reading_changes_nothing"),
            ),
            (
                "bare-tree",
                "nothing of it outlives the target or corral.",
                (
                    f"{BARE}::test_descendants_do_not_survive_the_target",
                    f"{BARE}::test_descendants_do_not_survive_corral",
                    f"{BARE}::test_outside_they_survive",
                    f"{BARE}::test_the_target_dies_with_its_guardian",
                ),
            ),
            (
                "bare-refuses",
                "A grant that contains a secret is refused, since Landlock cannot mask; so are socket grants and `state`.",
                (
                    f"{FILES}::test_a_part_of_home_that_may_be_read_hides_its_secrets",
                    f"{BARE}::test_what_cannot_be_held_is_refused_by_name",
                    f"{BARE}::test_the_same_policies_without_what_cannot_be_held",
                ),
            ),
            (
                "masks-replaced",
                "a replaced one is reported at once, on stderr and in the report;",
                (f"{REPOSITORIES}::test_a_replaced_secret_is_reported_at_once",),
            ),
            (
                "masks-strict",
                "with `--strict` the run ends,",
                (f"{REPOSITORIES}::test_a_strict_run_ends_when_a_covered_name_is_replaced",),
            ),
            (
                "masks-repository",
                "it always ends when a version-control directory itself is replaced.",
                (f"{REPOSITORIES}::test_a_replaced_repository_ends_the_run",),
            ),
            (
                "masks-nested",
                "Read grants and program files inside a write grant are watched in the same way.",
                (
                    f"{REPOSITORIES}::test_a_replaced_read_grant_in_a_write_grant_is_reported",
                    f"{REPOSITORIES}::test_a_replaced_program_in_a_write_grant_is_reported",
                ),
            ),
            (
                "masks-bounded",
                "the run then says what was not searched; with `--strict` it refuses.",
                (
                    f"{MASKS}::test_the_search_is_bounded_and_says_so",
                    f"{MASKS}::test_a_strict_run_refuses_what_was_not_searched",
                ),
            ),
            (
                "masks-many",
                "More than 1000 names to cover refuse the run.",
                (f"{REPOSITORIES}::test_planted_repositories_are_refused_at_once",),
            ),
            (
                "git-named",
                "Hooks, configuration and `info` in it stay read-only while they exist,",
                (f"{REPOSITORIES}::test_hooks_and_configuration_stay_read_only_in_a_named_repository",),
            ),
            (
                "git-said",
                "`explain`, `approve`, `wrap` and the run say so.",
                (
                    f"{REPOSITORIES}::test_hooks_and_configuration_stay_read_only_in_a_named_repository",
                    f"{REPOSITORIES}::test_git_status_works_and_git_add_needs_the_repository_named",
                    "tests/unit/policy/test_profiles.py::test_git_asks_for_the_repositorys_own_directory",
                ),
            ),
            (
                "git-status",
                "Without it `git status` works and `git add` fails.",
                (f"{REPOSITORIES}::test_git_status_works_and_git_add_needs_the_repository_named",),
            ),
            (
                "quotas",
                "A target takes at most a quarter of the user's inotify instances and watches, and no asynchronous I/O contexts or leases.",
                (
                    f"{QUOTAS}::test_shared_quotas_and_leases",
                    f"{QUOTAS}::test_inotify_instances_are_left_for_the_user",
                    f"{QUOTAS}::test_system_v_maxima",
                ),
            ),
            (
                "streams-refused",
                "A directory or an internet or datagram socket on them refuses.",
                (
                    f"{STREAMS}::test_an_internet_socket_is_not_a_way_out",
                    f"{STREAMS}::test_unix_sockets_on_standard_streams",
                ),
            ),
            (
                "streams-restored",
                "Mode, owner, flags, access list and a terminal's exclusive mark are put back at the end and reported,",
                (
                    f"{STREAMS}::test_a_file_on_stdin_is_as_before",
                    f"{STREAMS}::test_a_terminal_is_as_before",
                ),
            ),
            (
                "streams-relayed",
                "Without Landlock a file is copied through a pipe, because the target could open it again with other rights.",
                (
                    f"{STREAMS}::test_streams_that_are_files_are_not_reopened",
                    f"{STREAMS}::test_both_outputs_in_one_file_keep_their_order",
                ),
            ),
            (
                "bare-leftovers",
                "and nothing that it leaves there makes a later corral write, wait or remove elsewhere.",
                (
                    f"{LEFTOVERS}::test_a_target_writes_only_below_the_top_of_its_directory",
                    f"{LEFTOVERS}::test_a_leftover_that_looks_like_a_cgroup_is_only_removed",
                    f"{LEFTOVERS}::test_a_huge_leftover_does_not_hold_up_a_start",
                    f"{LEFTOVERS}::test_a_leftover_that_became_a_link_is_not_followed",
                    f"{LEFTOVERS}::test_a_leftover_of_another_user_is_not_touched",
                    f"{LEFTOVERS}::test_only_a_leaf_of_corrals_is_removed_from_the_cgroups",
                ),
            ),
            (
                "bare-residue",
                "removed at the end, or by the next start if corral was killed.",
                (
                    f"{BARE}::test_the_private_directory_goes_whatever_is_in_it",
                    f"{BARE}::test_the_private_directory_of_a_killed_run_goes_with_the_next",
                    "tests/linux/test_residue.py::test_a_kill_at_any_moment_leaves_nothing",
                    "tests/linux/test_residue.py::test_what_a_killed_run_left_is_found",
                ),
            ),
            (
                "degraded-told",
                "memory, where no cgroup is delegated.",
                ("tests/linux/test_cli.py::test_a_default_limit_that_cannot_be_held_is_a_warning", f"{BARE}::test_the_report_says_what_can_be_seen"),
            ),
            (
                "sampling-stated",
                "Sampling looks ten times a second and is only used for limits that were stated;",
                (
                    f"{LIMITS}::test_nothing_wakes_up_without_a_reason",
                    f"{LIMITS}::test_a_limit_that_is_held_by_looking_wakes_the_supervisor_alone",
                ),
            ),
            (
                "best-effort-walls",
                "where neither namespaces nor Landlock hold, the target then runs with your files open to it.",
                ("tests/linux/test_doctor.py::test_best_effort_does_not_pretend",),
            ),
            (
                "best-effort-list",
                "An allow list that is let go comes to nothing: the network stays closed.",
                (f"{ALLOWLIST}::test_without_namespaces_a_list_is_refused",),
            ),
        )
    ),
    row(
        "stopped", "net-allow", "with `network.allow`, reach anything that no rule names",
        "every address leads to the gateway, which dials only what a rule allows: [network.md](network.md)",
        f"{ALLOWLIST}::test_only_what_is_named",
        f"{ALLOWLIST}::test_names_that_lead_to_guarded_addresses",
        f"{ALLOWLIST}::test_datagrams",
        f"{ALLOWLIST}::test_addresses_never_given_out",
    ),
    Claim(
        id="macos-headers",
        sentence="every constant, structure and prototype of the bindings is compared with Apple's headers for both machines, and every function is linked;",
        tests=(
            "tests/abi/test_darwin.py::test_what_the_headers_say",
            "tests/abi/test_darwin.py::test_every_function_exists",
            "tests/abi/test_darwin.py::test_the_control_wrong_values_are_refused",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-paths",
        sentence="no path, however strange, can change a rule.",
        tests=(
            f"{SEATBELT}::test_no_path_changes_the_text",
            f"{SEATBELT}::test_no_path_ends_its_string",
            f"{SEATBELT}::test_the_control_a_spliced_path_would_end_its_string",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="macos-profile",
        sentence="signals, Apple events and LaunchServices are closed.",
        tests=(f"{SEATBELT}::test_it_may", f"{SEATBELT}::test_it_may_not", f"{SEATBELT}::test_golden"),
        source=SECURITY,
        where="read by an evaluator, not by a Mac",
    ),
    Claim(
        id="macos-services",
        sentence="but for the data and settings of services in it (`var`, `etc`; TLS roots are left).",
        tests=(f"{SEATBELT}::test_what_services_of_a_package_manager_keep_is_not_the_programs",),
        source=SECURITY,
        where="read by an evaluator, not by a Mac",
    ),
    Claim(
        id="macos-held",
        sentence="are held in write grants even where they do not exist yet;",
        tests=(
            f"{SEATBELT}::test_secrets_in_grants_are_hidden_and_hooks_are_held",
            f"{SEATBELT}::test_a_repository_cannot_be_put_where_there_is_none",
        ),
        source=SECURITY,
        where="read by an evaluator, not by a Mac",
    ),
    Claim(
        id="macos-refuses",
        sentence="a run refuses and names what is missing.",
        tests=(
            f"{MACOS_PLAN}::test_without_seatbelt_a_run_refuses_and_names_the_walls",
            "tests/unit/platforms/macos/test_macos.py::test_without_seatbelt_the_run_refuses_and_best_effort_is_cooperative",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-best-effort",
        sentence="they hold while the target does not fight them.",
        tests=(
            f"{MACOS_PLAN}::test_best_effort_runs_and_warns_of_every_wall",
            f"{MACOS_PLAN}::test_the_report_says_what_holds_and_how_well",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-tree",
        sentence="when the target ends and when corral is killed with `kill -9`.",
        tests=(
            f"{MACOS_PLAN}::test_a_daemon_ends_with_the_target",
            f"{MACOS_PLAN}::test_the_control_a_daemon_outlives_its_program",
            f"{MACOS_PLAN}::test_kill_9_of_corral_ends_the_tree_and_leaves_no_directory",
            f"{MACOS_PLAN}::test_kill_9_while_corral_starts",
            f"{MACOS_PLAN}::test_a_target_that_forks_without_end_is_ended",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-watcher",
        sentence="If somebody kills the watcher, corral ends the tree.",
        tests=(f"{MACOS_PLAN}::test_when_the_watcher_is_killed_the_supervisor_ends_the_tree",),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="macos-looks",
        sentence="nothing is looked at unless such a limit is.",
        tests=(
            f"{MACOS_PLAN}::test_nothing_is_looked_at_unless_a_limit_asks_for_it",
            f"{MACOS_PLAN}::test_a_memory_hog",
            f"{MACOS_PLAN}::test_memory_of_many_processes_is_added_up",
            f"{MACOS_PLAN}::test_a_share_of_the_cpu",
            f"{MACOS_PLAN}::test_cpu_time",
            f"{MACOS_PLAN}::test_too_many_tasks",
        ),
        source=SECURITY,
        where=PLAYED,
    ),
    Claim(
        id="windows-headers",
        sentence="against the headers of mingw-w64 and of zig, for x86_64 and aarch64",
        tests=(
            "tests/abi/test_win32.py::test_constants",
            "tests/abi/test_win32.py::test_types_and_structures",
            "tests/abi/test_win32.py::test_prototypes",
            "tests/abi/test_win32.py::test_exports",
            "tests/abi/test_win32.py::test_what_is_wrong_is_found",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-read-back",
        sentence="set it: the run refuses and names the numbers.",
        tests=(
            f"{WINDOWS}/test_run.py::test_a_memory_limit_that_is_not_kept_refuses",
            f"{WINDOWS}/test_job.py::test_limits_are_kept_or_refused",
            f"{WINDOWS}/test_job.py::test_a_cpu_rate_is_kept_or_refused",
            f"{WINDOWS}/test_job.py::test_ui_limits_are_kept_or_refused",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-doctor",
        sentence="`doctor` reports what was not kept as absent,",
        tests=(
            f"{WINDOWS}/test_doctor.py::test_a_limit_that_is_not_kept_is_absent",
            f"{WINDOWS}/test_doctor.py::test_what_was_not_kept_is_named_with_its_numbers",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-best-effort",
        sentence="and `--best-effort` runs with a warning for each.",
        tests=(f"{WINDOWS}/test_run.py::test_best_effort_runs_and_warns",),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-handles",
        sentence="with three streams and no other handle;",
        tests=(
            f"{WINDOWS}/test_job.py::test_the_target_is_born_in_its_job",
            f"{WINDOWS}/test_job.py::test_only_the_streams_are_inherited",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-fallback",
        sentence="without a further word the run refuses.",
        tests=(
            f"{WINDOWS}/test_run.py::test_the_fallback_must_be_the_users_word",
            "tests/unit/platforms/windows/test_win_plan.py::test_the_fallback_needs_the_users_word_and_is_no_wall_for_reads_or_network",
            "tests/unit/platforms/windows/test_win_plan.py::test_layering_b_in_its_order",
            "tests/unit/platforms/windows/test_win_plan.py::test_no_token_is_restricted_in_an_app_container",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-tree",
        sentence="when corral ends, however it ends, all processes of the target end.",
        tests=(
            f"{WINDOWS}/test_lifecycle.py::test_the_death_of_corral_is_the_death_of_the_tree",
            f"{WINDOWS}/test_lifecycle.py::test_the_death_of_a_caller_is_the_death_of_its_trees",
            f"{WINDOWS}/test_job.py::test_the_whole_tree_ends_with_its_job",
            f"{WINDOWS}/test_job.py::test_nobody_inherits_or_opens_a_job",
            f"{WINDOWS}/test_job.py::test_a_target_cannot_break_away",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-root",
        sentence="The end of the first process is the end of all.",
        tests=(
            f"{WINDOWS}/test_job.py::test_the_end_of_the_first_process_is_the_end_of_all",
            f"{WINDOWS}/test_lifecycle.py::test_the_end_of_the_first_process_is_the_end_of_the_run",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-residue",
        sentence="and removed by the next start or `corral sweep`.",
        tests=(
            f"{WINDOWS}/test_lifecycle.py::test_the_death_of_corral_is_the_death_of_the_tree",
            f"{WINDOWS}/test_lifecycle.py::test_sweep_removes_what_a_killed_run_left_and_nothing_of_a_living_one",
            f"{WINDOWS}/test_process.py::test_home_and_temp_are_private_and_gone_afterwards",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-removal",
        sentence="its files keeps them from being removed.",
        tests=(
            f"{WINDOWS}/test_process.py::test_no_name_and_no_depth_keeps_a_private_directory",
            "tests/unit/platforms/windows/test_win_removal.py::test_a_tree_without_end",
            "tests/unit/platforms/windows/test_win_residue.py::test_files_that_windows_leaves_in_a_profile",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-foreign",
        sentence="Entries that are not corral's keep their bytes and their order.",
        tests=(
            "tests/unit/platforms/windows/test_win_access_list.py::test_put_in_and_taken_out",
            "tests/unit/platforms/windows/test_win_access_list.py::test_another_runs_entries_stay",
            "tests/unit/platforms/windows/test_win_residue.py::test_two_that_end_at_once",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-grants",
        sentence="several names, with secrets, or with more than 20 000 entries.",
        tests=(
            "tests/unit/paths/test_win_paths.py::test_roots_that_are_not_ours_to_change",
            "tests/unit/platforms/windows/test_win_grants.py::test_links_and_second_names",
            "tests/unit/platforms/windows/test_win_grants.py::test_secrets_are_not_granted_along",
            "tests/unit/platforms/windows/test_win_grants.py::test_secrets_of_the_profile_are_not_granted_along",
            "tests/unit/platforms/windows/test_win_grants.py::test_too_many_entries",
            f"{WINDOWS}/test_grants.py::test_a_second_name_stops_the_walk",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-watched",
        sentence="grant; that they were is in the report.",
        tests=(
            "tests/unit/platforms/windows/test_win_grants.py::test_what_would_start_by_itself_is_watched",
            "tests/unit/platforms/windows/test_win_plan.py::test_what_is_granted_is_known_to_the_store_and_watched",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-launchers",
        sentence="redirectors of virtual environments, `Scripts\\*.exe`, uv's trampolines, npm's `.cmd` files.",
        tests=(
            "tests/unit/programs/test_windows_resolve.py::test_a_virtual_environments_python",
            "tests/unit/programs/test_windows_resolve.py::test_a_script_of_an_environment",
            "tests/unit/programs/test_windows_resolve.py::test_npms_batch_file",
            "tests/unit/programs/test_windows_shims.py::test_pips_launcher",
            "tests/unit/programs/test_windows_uv.py::test_what_uv_writes",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-powers",
        sentence="A container whose token kept a privilege of an administrator's that walks past access lists is refused.",
        tests=(f"{WINDOWS}/test_app_container.py::test_powers_that_walk_past_access_lists",),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-shares",
        sentence="they name on a share is not even looked at:",
        tests=(
            f"{WINDOWS}/test_runtimes.py::test_what_a_strangers_file_names_elsewhere_is_not_even_looked_at",
            "tests/unit/programs/test_windows_resolve.py::test_a_share_is_not_looked_at",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-refused",
        sentence="There is nothing for I/O rate, descriptors or disk space: stated, they refuse.",
        tests=(
            f"{WINDOWS}/test_run.py::test_what_windows_cannot_hold_refuses_when_it_is_stated",
            f"{WINDOWS}/test_run.py::test_io_refuses_when_it_is_stated",
            "tests/unit/platforms/windows/test_win_plan.py::test_what_windows_has_no_limit_for_refuses_only_when_stated",
        ),
        source=SECURITY,
        where=WINE,
    ),
)  # fmt: skip
