"""List the statements about macOS and Windows that corral's code relies on, each with its test.

These tests do not run for every change. `corral.platforms.evidence` records which of them have
passed, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corral.platforms.evidence import MACHINES, SEEN, WINE, format_basis

if TYPE_CHECKING:
    from corral.plan.host import System


@dataclass(frozen=True, kw_only=True)
class Row:
    capability: str  # the name of a finding, or a name that only this row uses
    what: str  # the statement
    test: str


MACOS = (
    Row(capability="seatbelt", what="Seatbelt denies access to files, processes and signals",
        test="test_walls.py"),
    Row(capability="starts python", what="python starts under the profile",
        test="test_runs.py::test_python_starts_with_its_libraries"),
    Row(capability="starts node", what="node starts under the profile",
        test="test_runs.py::test_node_starts"),
    Row(capability="mcp", what="a real MCP server answers",
        test="test_servers.py::test_a_fastmcp_server_answers"),
    Row(capability="clone", what="a copied directory contains no hidden file",
        test="test_walls.py::test_a_clone_copies_no_hidden_file"),
    Row(capability="disclaim", what="the target does not use the client's consents",
        test="test_runs.py::test_every_probe_succeeds_on_this_mac"),
    Row(capability="loopback_proxy", what="one loopback port is open for the proxy",
        test="test_loopback_port.py"),
    Row(capability="rlimits", what="descriptors and file sizes are limited",
        test="test_runs.py::test_every_probe_succeeds_on_this_mac"),
    Row(capability="nproc", what="a second process is denied, or the number of processes is limited",
        test="test_walls.py::test_a_target_starts_no_process_and_no_other_program"),
    Row(capability="watcher", what="the tree ends when its target or corral ends",
        test="test_runs.py::test_kill_9_of_corral_ends_the_tree"),
    Row(capability="marker", what="a daemon that left its session is found by its profile",
        test="test_runs.py::test_a_daemon_ends_with_its_target"),
    Row(capability="sampling", what="memory and CPU time of the tree are sampled",
        test="test_runs.py::test_a_stated_memory_limit_ends_the_run"),
    Row(capability="jetsam", what="the kernel kills the first program at its memory limit",
        test="test_runs.py::test_every_probe_succeeds_on_this_mac"),
    Row(capability="tools", what="sh and the tools of Xcode start",
        test="test_runs.py::test_programs_that_start_others_work"),
    Row(capability="flags", what="copies keep flags, and files with flags are removed",
        test="test_runs.py::test_files_that_the_target_marks_immutable_are_still_removed_after_the_run"),
)  # fmt: skip
WINDOWS = (
    Row(capability="job_read_back", what="every limit that is set on a job can be read back",
        test="test_doctor.py::test_every_probe_succeeds_on_real_windows"),
    Row(capability="job_kill_on_close", what="the tree ends when corral ends",
        test="test_job.py::test_the_whole_tree_ends_with_its_job"),
    Row(capability="job_memory", what="memory beyond the limit is denied",
        test="test_job.py::test_memory_beyond_the_limit_is_denied"),
    Row(capability="job_processes", what="a process beyond the limit does not start",
        test="test_job.py::test_a_second_process_does_not_start"),
    Row(capability="job_cpu_rate", what="a limited CPU share is not exceeded",
        test="test_doctor.py::test_every_probe_succeeds_on_real_windows"),
    Row(capability="job_accounting", what="a job reports the CPU time of its processes",
        test="test_limits.py::test_cpu_time_beyond_the_limit_ends_the_run"),
    Row(capability="job_ui", what="UI limits deny new desktops and the clipboard",
        test="test_doctor.py::test_the_clipboard_is_closed_by_job_or_desktop"),
    Row(capability="job_priority", what="a process cannot raise its priority",
        test="test_doctor.py::test_every_probe_succeeds_on_real_windows"),
    Row(capability="child_process_policy", what="a process cannot start another one if the policy forbids it",
        test="test_mitigations.py::test_child_processes_start_only_if_allowed"),
    Row(capability="session", what="corral knows its own session",
        test="test_doctor.py::test_doctor_reports_the_windows_session_of_its_process"),
    Row(capability="app_container_profile", what="AppContainer profiles are created and deleted",
        test="test_app_container.py::test_a_profile_is_created_and_deleted"),
    Row(capability="app_container", what="an AppContainer denies access to files, the network and processes",
        test="test_walls.py"),
    Row(capability="nul", what="a program in an AppContainer can open the device NUL",
        test="test_doctor.py::test_a_target_can_open_nul_exactly_if_doctor_says_so"),
    Row(capability="desktop", what="the target has its own desktop without a clipboard",
        test="test_doctor.py::test_every_probe_succeeds_on_real_windows"),
    Row(capability="relay", what="only allowed hosts are reached through the relay",
        test="test_network.py::test_a_named_host_is_reached_by_the_relay_only"),
    Row(capability="restricted token", what="a process with a restricted token of Low integrity cannot write",
        test="test_tokens.py::test_the_probe_proves_that_a_restricted_token_restricts_its_process"),
    Row(capability="mitigations", what="a runtime starts with mitigations that can be read back",
        test="test_mitigations.py::test_a_requested_mitigation_is_on_in_the_started_process"),
    Row(capability="strict_handles", what="a runtime starts with strict handle checks",
        test="test_mitigations.py::test_a_requested_mitigation_is_on_in_the_started_process"),
    Row(capability="minifilter driver", what="the driver gets paths in the form that it needs",
        test="test_minifilter.py::test_grants_become_device_paths"),
    Row(capability="preloads", what="python and node work in an AppContainer with their preloads",
        test="test_preloads.py::test_node_works_in_a_container"),
    Row(capability="grants", what="granted paths can be opened, and other paths cannot",
        test="test_grants.py::test_a_target_reads_only_its_grants"),
    Row(capability="packages", what="packages are installed in an AppContainer",
        test="test_packages.py::test_a_package_is_installed_in_a_container"),
)  # fmt: skip
TABLES: dict[System, tuple[Row, ...]] = {"darwin": MACOS, "windows": WINDOWS}


def format_table(system: System) -> str:
    """Return a system's table for SECURITY.md, in Markdown."""
    machine = MACHINES[system]
    lines = [f"| statement | known from | the test that must pass on {machine} |", "|---|---|---|"]
    lines += [f"| {row.what} | {_source(system, row)} | `{row.test}` |" for row in TABLES[system]]
    return "\n".join(lines) + "\n"


def _source(system: System, row: Row) -> str:
    """Return how the project knows that the statement is true: it was read in a source, or seen
    under Wine, or seen on the real system. For the real system, add the runner and the day of the
    test.
    """
    seen = SEEN[system].get(row.capability)
    basis = format_basis(system, row.capability)
    return basis if seen in {None, WINE} else f"{basis} ({seen})"
