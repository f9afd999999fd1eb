"""The ledger: every promise in README and docs, where it is written, and the tests that hold it.

In the docs a promise is a sentence with an anchor behind it: `<!-- claim: id -->`. `unit/test_claims.py` holds both to
each other and every name of a test to a real one. A promise that no test tries says so in `where`.
The tables in docs/SECURITY.md are made from here: `python3 tests/claims.py` writes them.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINUX = "Linux, as root and as an ordinary user"
ANY = "any host"
UNCHECKED = "not checked here: "
PLAYED = "on Linux, which plays a Mac"
WINDOWS, WINE = "tests/windows", "Windows' calls under Wine"
MACOS_PLAN, SEATBELT = "tests/linux/test_macos_plan.py", "tests/unit/test_seatbelt.py"
MACOS_DOOR, DOOR = "tests/linux/test_macos_door.py", "tests/unit/test_http_door.py"
README, SECURITY, GATEWAY = "README.md", "docs/SECURITY.md", "docs/network.md"
ANCHOR = re.compile(r"<!-- claim: ([a-z0-9-]+) -->")
TABLE = re.compile(r"(<!-- table: (?P<name>[a-z]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
HEADS = {
    "stopped": "| a target cannot | because | tried by |",
    "limits": "| limit | held by | tried by |",
    "refused": "| asked for | what happens | tried by |",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`sentence` stands in `source` right before its anchor. A claim with a `table` is a row of it."""

    id: str
    sentence: str
    tests: tuple[str, ...] = ()
    source: str = README
    where: str = LINUX
    table: str = ""
    how: str = ""


def row(table: str, name: str, sentence: str, how: str, *tests: str, where: str = LINUX) -> Claim:
    return Claim(
        id=name, sentence=sentence, tests=tests, source=SECURITY, where=where, table=table, how=how
    )


def render(table: str) -> str:
    """The rows of one table in docs/SECURITY.md."""
    lines = [HEADS[table], "|---|---|---|"]
    lines += [
        f"| {claim.sentence} <!-- claim: {claim.id} --> | {claim.how} | {_tried(claim)} |"
        for claim in CLAIMS
        if claim.table == table
    ]
    return "\n".join(lines) + "\n"


def _tried(claim: Claim) -> str:
    names = [f"`{test.rpartition('::')[2]}`" for test in claim.tests]
    said = [claim.where] if claim.where not in {LINUX, ANY} else []
    return "<br>".join([*names, *said])


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + render(found["name"]) + found[3], text)


def main() -> None:
    file = ROOT / SECURITY
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")


SERVERS_PAGE = "docs/servers.md"
PACKAGES, BUNDLES = "tests/linux/test_packages.py", "tests/linux/test_bundles.py"
SUPPLY = "tests/linux/test_supply_chain.py"
ARCHIVE, STORE, DOWNLOAD = (
    f"tests/unit/test_{name}.py" for name in ("archive", "store", "download")
)
EXEC, FILES, IPC, KERNEL, LAUNCHER, NETWORK, PROCESSES, RESOURCES = (
    f"tests/inside/test_{name}.py"
    for name in (
        "exec", "filesystem", "ipc", "kernel", "launcher", "network", "processes", "resources",
    )
)  # fmt: skip
API, APPROVE, DEMO, EFFECTS, FAILURES, LIFECYCLE, MASKS, RUN = (
    f"tests/linux/test_{name}.py"
    for name in (
        "api",
        "approve",
        "demo",
        "filter_effects",
        "failures",
        "lifecycle",
        "masks",
        "run",
    )
)
FILTERS, POLICY, TRUST, COMMAND = (
    f"tests/unit/test_{name}.py" for name in ("filters", "policy", "trust", "command")
)
ALLOWLIST, CLIENTS, AUDIT = (
    "tests/inside/test_allowlist.py",
    "tests/linux/test_network_clients.py",
    "tests/linux/test_audit.py",
)
PLAN = "tests/unit/test_plan.py"
CLI = "tests/linux/test_cli.py"
LISTEN = "tests/linux/test_listen.py"
RELAY, RESTRICTIONS = (
    "tests/unit/test_win_relay_live.py",
    "tests/unit/test_win_restrictions.py",
)
CGROUP = "tests/vm/test_cgroup.py"
MACHINE = "in user-mode Linux"

PROFILES, PUBLISHED = "tests/unit/test_profiles.py", "tests/servers/test_published.py"
PROFILE_PAGE, PYTHON_PAGE = "docs/profiles.md", "docs/python.md"
WRAP, CLIENT_PAGE = "tests/linux/test_wrap.py", "docs/clients/README.md"
WRAPPING, CLIENT_FILES = (f"tests/unit/test_clients_{name}.py" for name in ("wrapping", "files"))

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="stdio",
        sentence="the target inherits them and corral never touches a message.",
        tests=(f"{RUN}::test_stdin_and_stdout_are_the_targets",),
    ),
    Claim(
        id="explain-is-run",
        sentence="`explain` prints the very plan that `run` executes.",
        tests=(
            f"{FAILURES}::test_every_step_may_fail_to_apply",
            f"{DEMO}::test_each_wall_is_named_as_the_plan_has_it",
        ),
    ),
    Claim(
        id="doctor-by-effect",
        sentence="a capability counts only if the denial was seen and its control succeeded.",
        tests=(
            f"{CGROUP}::test_limits",
            f"{CGROUP}::test_without_a_cgroup_of_ones_own",
            f"{CGROUP}::test_without_user_namespaces",
        ),
        where=MACHINE,
    ),
    Claim(
        id="report",
        sentence="`run --report FILE` writes what was asked, enforced and used.",
        tests=(
            f"{FAILURES}::test_the_report_of_a_failed_set_up_says_so",
            f"{LIFECYCLE}::test_a_timeout_is_124_and_the_report_says_timeout",
        ),
    ),
    Claim(
        id="stated-refuses",
        sentence="A limit that you state is required: a host that cannot hold it refuses the run.",
        tests=(
            f"{PLAN}::test_a_stated_limit_is_required",
            f"{CLI}::test_what_is_stated_and_missing_refuses_by_name",
        ),
    ),
    Claim(
        id="default-warns",
        sentence="A limit that is only corral's default goes unenforced with one warning line.",
        tests=(f"{PLAN}::test_a_default_limit_degrades_with_a_warning",),
        where=ANY,
    ),
    Claim(
        id="walls-required",
        sentence="Walls are always required.",
        tests=(f"{PLAN}::test_walls_are_required_stated_or_not",),
        where=ANY,
    ),
    Claim(
        id="strict",
        sentence="`--strict` requires the defaults too,",
        tests=(
            f"{PLAN}::test_strict_makes_a_default_limit_required",
            f"{CLI}::test_strict_refuses_what_would_only_be_a_warning",
        ),
    ),
    Claim(
        id="best-effort",
        sentence="`--best-effort` lets go a limit that cannot be held, with a warning each run.",
        tests=(
            f"{PLAN}::test_the_users_word_lets_any_control_go",
            f"{CLI}::test_best_effort_lets_it_go_with_a_warning",
        ),
    ),
    Claim(
        id="request-approval",
        sentence="what it asks for beyond the defaults counts only after `corral approve`.",
        tests=(
            f"{POLICY}::test_an_unapproved_request_never_loosens",
            f"{POLICY}::test_everything_asked_is_told_at_once_with_the_remedy",
            f"{TRUST}::test_a_request_counts_once_it_was_approved",
            f"{APPROVE}::test_a_request_counts_only_while_exactly_it_is_approved",
            f"{APPROVE}::test_a_request_that_only_tightens_runs",
            f"{TRUST}::test_any_change_is_a_new_request",
        ),
        where=ANY,
    ),
    Claim(
        id="api-stops",
        sentence="Leaving the `with` block stops the server and everything it started.",
        tests=(f"{API}::test_leaving_the_context_stops_the_target",),
    ),
    Claim(
        id="exit-own",
        sentence="it ran and ended by itself",
        tests=(f"{RUN}::test_the_exit_code_is_the_targets_own",),
    ),
    Claim(id="exit-usage", sentence="the command line is wrong", tests=(f"{DEMO}::test_it_takes_no_arguments",)),
    Claim(id="exit-timeout", sentence="it was stopped at its timeout", tests=(
            f"{LIFECYCLE}::test_a_timeout_is_124_and_the_report_says_timeout",
            f"{LIFECYCLE}::test_a_target_that_ends_in_time_is_no_timeout",
        )),
    Claim(
        id="exit-refused",
        sentence="corral refused, or a wall could not be put up: the target never ran",
        tests=(
            f"{FAILURES}::test_every_step_may_fail_to_apply",
            f"{FAILURES}::test_control_without_an_injected_failure_the_target_runs",
        ),
    ),
    Claim(
        id="exit-exec",
        sentence="the program cannot be executed, or does not exist",
        tests=(
            f"{FAILURES}::test_a_file_that_is_no_program_is_126",
            f"{FAILURES}::test_a_command_that_does_not_exist_is_127",
        ),
    ),
    Claim(
        id="exit-signal",
        sentence="signal n ended it",
        tests=(f"{RUN}::test_a_signal_becomes_128_plus_its_number",),
    ),
    Claim(
        id="fails-closed",
        sentence="if one does not hold, or a step fails, the target never runs.",
        tests=(
            f"{FAILURES}::test_every_step_may_fail_to_apply",
            f"{FAILURES}::test_every_wall_may_fail_its_verification",
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
        "stopped", "fs-masked", "read secrets, or change hooks and start-up files, inside a granted directory",
        "masked by empty or read-only mounts whose parents cannot be renamed away",
        f"{MASKS}::test_a_secret_in_a_granted_home_is_hidden",
        f"{MASKS}::test_what_starts_by_itself_cannot_be_changed_in_a_write_grant",
        f"{MASKS}::test_a_hidden_secret_stays_hidden_in_a_write_grant",
        f"{MASKS}::test_the_same_acts_succeed_without_walls",
        f"{FILES}::test_a_home_that_may_be_read_hides_its_secrets",
        f"{FILES}::test_masks_hold_in_write_grants_inside_home",
    ),
    row(
        "stopped", "fs-private", "leave anything for the next run, or see another run's private files",
        "HOME, `/tmp`, `/var/tmp` and `/dev/shm` are a tmpfs of the run's own",
        f"{FILES}::test_home_and_tmp_are_private",
        f"{FILES}::test_nothing_of_one_run_is_seen_by_the_next",
    ),
    row(
        "stopped", "fs-own", "be granted corral's own code, interpreter, policy or directories for writing",
        "refused when the policy is made, by name and by inode",
        f"{POLICY}::test_corrals_own_directories_are_never_granted",
        f"{POLICY}::test_code_and_interpreter_cannot_be_written",
        f"{POLICY}::test_policy_report_and_audit_files_cannot_be_written",
        f"{POLICY}::test_another_name_for_a_protected_place_is_known_by_its_inode",
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
        "stopped", "init", "read or stop PID 1 of its sandbox",
        "not dumpable, `hidepid`, a filter that leaves it hardly more than waiting",
        f"{PROCESSES}::test_init_is_hidden",
        f"{PROCESSES}::test_init_is_out_of_reach",
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
        "tests/vm/test_systemd.py::test_login",
        where=MACHINE,
    ),
    row("limits", "limit-cpu", "`cpu`", "cgroup `cpu.max`; else a duty cycle of the supervisor's", f"{CGROUP}::test_limits", where=MACHINE),
    row("limits", "limit-cpu-time", "`cpu_time`", "RLIMIT_CPU; with subprocesses sampling", f"{RESOURCES}::test_cpu_time"),
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
    Claim(
        id="allow-clients",
        sentence="On Linux with user namespaces this needs no root, no proxy variables and no other program: clients connect as they always do.",
        tests=(
            f"{CLIENTS}::test_curl",
            f"{CLIENTS}::test_node",
            f"{CLIENTS}::test_git",
            f"{CLIENTS}::test_musl",
            f"{CLIENTS}::test_go",
            f"{CLIENTS}::test_http2",
            f"{CLIENTS}::test_keep_alive",
            f"{CLIENTS}::test_tls_in_python",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-empty",
        sentence="What is not in the list is not allowed, and an empty list allows nothing.",
        tests=(
            f"{ALLOWLIST}::test_an_empty_list_allows_nothing",
            f"{ALLOWLIST}::test_only_what_is_named",
            f"{ALLOWLIST}::test_a_policy_file_is_the_same_list",
            f"{ALLOWLIST}::test_processes_inside_have_the_same_list",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-labels",
        sentence="Names are compared label by label: `*.example.com` does not match `evilexample.com`.",
        tests=(
            f"{ALLOWLIST}::test_spellings_of_names",
            f"{ALLOWLIST}::test_names_as_no_program_writes_them",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-ports",
        sentence="A name is allowed on the ports of its own rules, whatever others have.",
        tests=(
            f"{ALLOWLIST}::test_an_allowed_name_on_another_port",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-grammar",
        sentence="a wildcard anywhere else or for a whole top-level domain.",
        tests=(
            f"{ALLOWLIST}::test_entries_that_could_mean_something_else",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-dns",
        sentence="no query of the target's leaves the host.",
        tests=(
            f"{ALLOWLIST}::test_names_as_no_program_writes_them",
            f"{ALLOWLIST}::test_datagrams",
            f"{ALLOWLIST}::test_addresses_never_given_out",
            f"{ALLOWLIST}::test_flooding_the_resolver",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-rebinding",
        sentence="a name that leads elsewhere the second time is checked the second time.",
        tests=(
            f"{ALLOWLIST}::test_a_name_that_leads_elsewhere_the_second_time",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-relay",
        sentence="with half-closed connections and back-pressure as they are.",
        tests=(
            f"{CLIENTS}::test_half_close",
            f"{CLIENTS}::test_a_server_that_ends_first",
            f"{CLIENTS}::test_a_slow_reader_holds_up_nobody_else",
            f"{CLIENTS}::test_many_at_once",
            f"{CLIENTS}::test_a_large_download",
            f"{CLIENTS}::test_an_upload",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-tls-end",
        sentence="TLS is not opened: certificates are checked by the client inside.",
        tests=(
            f"{CLIENTS}::test_tls_in_python",
            f"{CLIENTS}::test_tls_in_curl",
            f"{CLIENTS}::test_node",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-udp",
        sentence="No datagram leaves, not even to an allowed name: there is no QUIC, and no DNS to other servers.",
        tests=(
            f"{ALLOWLIST}::test_datagrams",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-sockets",
        sentence="A rule opens no other kind of socket, and the target can neither take the gateway's ports nor talk to the supervisor.",
        tests=(
            f"{ALLOWLIST}::test_sockets_below_the_gateway",
            f"{ALLOWLIST}::test_the_ports_of_the_gateway",
            f"{ALLOWLIST}::test_the_supervisor_cannot_be_talked_to",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-guard",
        sentence="or to one of these inside an IPv6 address (mapped, NAT64, 6to4) is not dialled.",
        tests=(
            f"{ALLOWLIST}::test_names_that_lead_to_guarded_addresses",
            f"{ALLOWLIST}::test_the_unspecified_address_is_never_dialled",
            f"{ALLOWLIST}::test_addresses_in_other_spellings",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-guard-admits",
        sentence="`0.0.0.0/0` means the internet and admits none of them.",
        tests=(
            f"{ALLOWLIST}::test_networks",
            f"{ALLOWLIST}::test_six",
            f"{CLIENTS}::test_a_literal_address_of_loopback",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="admit-config",
        sentence="No policy has this key, neither a server's nor one of yours: it says something about the host.",
        tests=(
            f"{ALLOWLIST}::test_no_policy_admits_ranges",
            "tests/unit/test_admission.py::test_a_file_that_others_can_write_admits_nothing",
        ),
        source="docs/policy.md",
    ),
    Claim(
        id="admit-ranges",
        sentence="It allows nothing by itself, and admits only addresses of networks that it names.",
        tests=(
            f"{ALLOWLIST}::test_ranges_that_the_users_config_admits",
            f"{CLIENTS}::test_the_python_api_reads_the_users_config",
            "tests/unit/test_admission.py::test_an_entry_admits_what_it_says_and_no_more",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="admit-singly",
        sentence="Loopback, link-local and the host's own addresses are admitted one by one, the first two with a warning at each run, and a cloud's metadata service not at all: name that in `network.allow` of the one policy that needs it.",
        tests=(
            f"{ALLOWLIST}::test_this_host_is_admitted_by_its_very_address_and_aloud",
            "tests/unit/test_admission.py::test_entries_that_are_not_taken",
            "tests/unit/test_admission.py::test_no_range_ever_admits_this_host_or_credentials",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-sni",
        sentence="A name there that no rule has ends the connection.",
        tests=(
            f"{ALLOWLIST}::test_tls_to_another_name",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-certificates",
        sentence="the variable is passed with an allowlist and its file can be read inside.",
        tests=(
            f"{CLIENTS}::test_tls_in_python",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-proxy",
        sentence="The target sees neither the variable nor the password in it.",
        tests=(f"{CLIENTS}::test_through_the_proxy_of_the_host",),
        source=GATEWAY,
    ),
    Claim(
        id="allow-report",
        sentence="`--report FILE` ends with every denial, how often it was seen, and the rule that would have allowed it.",
        tests=(
            f"{ALLOWLIST}::test_denials_are_shown_with_the_rule_that_would_allow_them",
            f"{ALLOWLIST}::test_only_what_is_named",
            f"{ALLOWLIST}::test_explain_says_what_stays_possible",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-bounded",
        sentence="It keeps 256 different denials and counts the rest, so that a target cannot fill the disk with them.",
        tests=(
            f"{ALLOWLIST}::test_flooding_the_resolver",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-paced",
        sentence="after 256 connections that nothing came of, 256 questions or 128 stray packets at once, it is heard at a rate.",
        tests=(
            "tests/linux/test_pacing.py::test_refused_connections_are_heard_at_a_rate",
            "tests/linux/test_pacing.py::test_a_connection_that_carries_something_is_no_flood",
            "tests/linux/test_pacing.py::test_questions_are_answered_at_a_rate",
            "tests/linux/test_pacing.py::test_packets_are_looked_at_at_a_rate",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="audit-chain",
        sentence="`corral audit verify FILE` finds the first line that was changed, removed or put in.",
        tests=(
            f"{AUDIT}::test_changes_show",
            f"{AUDIT}::test_runs_continue_one_chain",
            f"{AUDIT}::test_a_missing_end_shows",
            f"{AUDIT}::test_a_killed_run_leaves_whole_lines",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="audit-refused",
        sentence="The file cannot lie in a write grant, be a link, or belong to something else; the run refuses then.",
        tests=(
            f"{AUDIT}::test_an_audit_that_cannot_be_kept_is_refused",
            f"{AUDIT}::test_the_target_cannot_write_its_audit",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="listen-loopback",
        sentence="lets the host's loopback reach that port of the target, and nothing else reach anything.",
        tests=(
            f"{LISTEN}::test_an_opened_port_is_reached_and_no_other",
            f"{LISTEN}::test_without_it_nothing_is_reached",
            f"{LISTEN}::test_only_loopback_listens",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="listen-taken",
        sentence="one that is taken refuses the run.",
        tests=(f"{LISTEN}::test_a_port_that_is_taken_refuses_the_run",),
        source=GATEWAY,
    ),
    Claim(
        id="listen-no-way-out",
        sentence="It gives the target no way out.",
        tests=(f"{LISTEN}::test_a_listening_port_gives_no_way_out",),
        source=GATEWAY,
    ),
    Claim(
        id="allow-bare",
        sentence="a run that states one refuses with exit code 125, and without one the network stays closed.",
        tests=(
            f"{ALLOWLIST}::test_without_namespaces_a_list_is_refused",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="win-never-widened",
        sentence="a list of names together with a level above `none` is refused.",
        tests=(f"{RESTRICTIONS}::test_names_are_never_widened_to_a_level",),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-listen",
        sentence="`network.listen` is refused there.",
        tests=(f"{RESTRICTIONS}::test_listen_is_refused",),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-relay",
        sentence="corral checks name, port, addresses and the name in a TLS hello as on Linux, then dials exactly what it checked.",
        tests=(
            f"{RELAY}::test_an_allowed_name_and_another",
            f"{RELAY}::test_another_port_and_addresses",
            f"{RELAY}::test_an_allowed_name_that_leads_to_the_host_itself",
            f"{RELAY}::test_a_name_that_resolves_differently_the_second_time",
            f"{RELAY}::test_a_hello_for_somebody_else",
        ),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-relay-hostile",
        sentence="frames that the target writes itself are checked like all others.",
        tests=(
            f"{RELAY}::test_frames_of_the_target_s_own_reach_no_further",
            f"{RELAY}::test_what_is_no_frame_ends_the_relay",
        ),
        source=GATEWAY,
        where=ANY,
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
        id="profile-reasons",
        sentence="Every grant in it has its reason,",
        tests=(f"{PROFILES}::test_every_grant_has_its_reason",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-no-paths",
        sentence="no profile grants a path or lets a control go.",
        tests=(f"{PROFILES}::test_no_profile_grants_a_path_or_degrades",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="profile-arguments",
        sentence="Naming one there grants it.",
        tests=(
            f"{PROFILES}::test_paths_in_the_arguments_are_granted_where_the_profile_says_so",
            f"{PUBLISHED}::test_a_published_server_works_inside",
        ),
        source=PROFILE_PAGE,
    ),
    Claim(
        id="profile-secrets",
        sentence="an absent one is left out.",
        tests=(f"{PROFILES}::test_secrets_count_as_far_as_they_are_set",),
        source=PROFILE_PAGE,
        where=ANY,
    ),
    Claim(
        id="wrap-all",
        sentence="A wrapped configuration comes back byte for byte.",
        tests=(f"{WRAP}::test_a_configuration_is_wrapped_works_and_comes_back", f"{WRAPPING}::test_any_configuration_is_wrapped_as_meant_and_comes_back_byte_for_byte"),
        source=README,
        where=LINUX,
    ),
    Claim(
        id="wrap-dry-run",
        sentence="`--dry-run` prints the difference and changes nothing; secrets in it are masked.",
        tests=(f"{WRAP}::test_a_dry_run_shows_the_difference_and_changes_nothing", f"{CLIENT_FILES}::test_a_dry_run_writes_nothing_and_shows_no_secret"),
        source=CLIENT_PAGE,
        where=LINUX,
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
        sentence="A server whose `env` would change corral itself, such as `PYTHONPATH`, `LD_PRELOAD`, `HOME` or `XDG_CONFIG_HOME`, is refused.",
        tests=(f"{SUPPLY}::test_a_projects_configuration_reaches_for_corral_itself",),
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
    Claim(
        id="profiles-tried",
        sentence="and with acts that the server must not be able to do.",
        tests=(
            f"{PUBLISHED}::test_a_published_server_works_inside",
            f"{PUBLISHED}::test_what_it_must_not_do",
        ),
        source=PROFILE_PAGE,
    ),
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
                    "tests/unit/test_package_settings.py::test_exactly_the_registrys_hosts_and_ports_may_be_reached",
                ),
            ),
            (
                "package-credentials",
                "They are in no file of the cache and in no message.",
                LINUX,
                (
                    f"{PACKAGES}::test_credentials_reach_the_registry_and_nobody_else",
                    "tests/unit/test_package_settings.py::test_npm_reads_the_users_file_and_the_environment",
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
        id="sdk-generations",
        sentence="`mcp` 1.x and 2.x",
        tests=(f"{PUBLISHED}::test_both_generations_of_the_sdk",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-fastmcp",
        sentence="with FastMCP's `StdioTransport`.",
        tests=(f"{PUBLISHED}::test_fastmcp",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-environment",
        sentence="Those whose names look like secrets are passed as secrets.",
        tests=(
            f"{PUBLISHED}::test_both_generations_of_the_sdk",
            f"{PROFILES}::test_parameters_for_an_sdk_name_every_variable_once",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-mistakes",
        sentence="A mistake in the policy is raised by `sandboxed` itself, before anything starts.",
        tests=(f"{PROFILES}::test_what_is_wrong_with_a_policy_is_said_before_anything_starts",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-example",
        sentence="is a small agent with two servers from the registries.",
        tests=(f"{PUBLISHED}::test_the_example_agent",),
        source=PYTHON_PAGE,
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
        id="macos-refuses",
        sentence="a run refuses and names what is missing.",
        tests=(
            f"{MACOS_PLAN}::test_without_seatbelt_a_run_refuses_and_names_the_walls",
            "tests/unit/test_macos.py::test_without_seatbelt_the_run_refuses_and_best_effort_is_cooperative",
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
        id="macos-allow",
        sentence="and so does a list where Seatbelt was not proven or is off.",
        tests=(
            f"{MACOS_PLAN}::test_a_list_of_hosts_is_refused_and_never_widened",
            f"{MACOS_DOOR}::test_without_seatbelt_a_list_of_hosts_is_refused",
            f"{MACOS_DOOR}::test_ports_to_listen_on_are_refused_behind_the_best_wall",
            "tests/unit/test_macos.py::test_what_nothing_holds_is_refused_and_opens_no_door",
            "tests/unit/test_macos.py::test_without_seatbelt_there_is_no_door_either",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-port",
        sentence="no other port, no UDP, no name lookups, nothing to listen on.",
        tests=(
            f"{SEATBELT}::test_the_door_is_one_port_and_nothing_else",
            f"{SEATBELT}::test_what_is_no_port_never_becomes_a_rule",
            "tests/unit/test_macos.py::test_the_profile_gets_the_port_of_its_own_door",
            f"{MACOS_DOOR}::test_the_probe_sees_it_when_there_is_no_wall",
        ),
        source=GATEWAY,
        where="read by an evaluator, not by a Mac",
    ),
    Claim(
        id="macos-door",
        sentence="by way of the host's own HTTPS proxy if there is one.",
        tests=(
            f"{DOOR}::test_an_allowed_name_and_another",
            f"{DOOR}::test_a_name_that_leads_to_the_host_itself_or_somewhere_else_the_second_time",
            f"{DOOR}::test_a_hello_for_somebody_else",
            f"{DOOR}::test_through_the_host_s_own_proxy",
            f"{MACOS_DOOR}::test_what_is_allowed_and_what_is_not",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-clients",
        sentence="curl, Python's urllib and node's fetch from version 24 on do.",
        tests=(
            f"{DOOR}::test_curl_by_the_variables_alone",
            f"{DOOR}::test_python_by_the_variables_alone",
            f"{DOOR}::test_node_by_the_variables_alone",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-password",
        sentence="without it nobody is told what is allowed or gets anywhere.",
        tests=(
            f"{DOOR}::test_without_the_word_nobody_is_told_anything",
            f"{DOOR}::test_a_word_for_one_door_opens_no_other",
            f"{MACOS_DOOR}::test_strangers_and_what_others_see_of_a_run",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-secret",
        sentence="Neither `explain`, the report, the audit file nor `ps` has it.",
        tests=(
            f"{MACOS_DOOR}::test_what_is_allowed_and_what_is_not",
            f"{MACOS_DOOR}::test_strangers_and_what_others_see_of_a_run",
            f"{MACOS_DOOR}::test_explain_says_what_run_does_without_a_port_or_a_password",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-beside",
        sentence="The same port of `::1` is kept from others for the run;",
        tests=(f"{DOOR}::test_the_port_is_no_other_s_at_the_other_loopback",),
        source=GATEWAY,
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
            "tests/unit/test_win_plan.py::test_the_fallback_needs_the_users_word_and_is_no_wall_for_reads_or_network",
            "tests/unit/test_win_plan.py::test_layering_b_in_its_order",
            "tests/unit/test_win_plan.py::test_no_token_is_restricted_in_an_app_container",
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
        id="windows-foreign",
        sentence="Entries that are not corral's keep their bytes and their order.",
        tests=(
            "tests/unit/test_win_access_list.py::test_put_in_and_taken_out",
            "tests/unit/test_win_access_list.py::test_another_runs_entries_stay",
            "tests/unit/test_win_residue.py::test_two_that_end_at_once",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-grants",
        sentence="several names, with secrets, or with more than 20 000 entries.",
        tests=(
            "tests/unit/test_win_paths.py::test_roots_that_are_not_ours_to_change",
            "tests/unit/test_win_grants.py::test_links_and_second_names",
            "tests/unit/test_win_grants.py::test_secrets_are_not_granted_along",
            "tests/unit/test_win_grants.py::test_too_many_entries",
            f"{WINDOWS}/test_grants.py::test_a_second_name_stops_the_walk",
        ),
        source=SECURITY,
        where=WINE,
    ),
    Claim(
        id="windows-launchers",
        sentence="redirectors of virtual environments, `Scripts\\*.exe`, uv's trampolines, npm's `.cmd` files.",
        tests=(
            "tests/unit/test_win_launchers.py::test_a_virtual_environments_python",
            "tests/unit/test_win_launchers.py::test_a_script_of_an_environment",
            "tests/unit/test_win_launchers.py::test_npms_batch_file",
            "tests/unit/test_win_shims.py::test_pips_launcher",
            "tests/unit/test_win_uv.py::test_what_uv_writes",
        ),
        source=SECURITY,
        where=ANY,
    ),
    Claim(
        id="windows-refused",
        sentence="There is nothing for I/O rate, descriptors or disk space: stated, they refuse.",
        tests=(
            f"{WINDOWS}/test_run.py::test_what_windows_cannot_hold_refuses_when_it_is_stated",
            f"{WINDOWS}/test_run.py::test_io_refuses_when_it_is_stated",
            "tests/unit/test_win_plan.py::test_what_windows_has_no_limit_for_refuses_only_when_stated",
        ),
        source=SECURITY,
        where=WINE,
    ),
)  # fmt: skip

if __name__ == "__main__":
    main()
