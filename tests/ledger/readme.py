"""List the promises in README.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, MACHINE, README, Claim

API = "tests/linux/test_api.py"
APPROVE = "tests/linux/test_approve.py"
CGROUP = "tests/vm/test_cgroup.py"
CLI = "tests/linux/test_cli.py"
CLIENTS = "tests/linux/test_clients.py"
CHECK = "tests/linux/test_wrap_check.py"
JSON = "tests/linux/test_json.py"
JSON_PAGE = "docs/json.md"
DOCTOR = "tests/linux/test_doctor.py"
FAILURES = "tests/linux/test_failures.py"
BLINDNESS = "tests/linux/test_blindness.py"
PAGES = "tests/unit/test_claims.py"
LIFECYCLE = "tests/linux/test_lifecycle.py"
PLAN = "tests/unit/plan/test_plan.py"
POLICY = "tests/unit/policy/test_policy.py"
RUN = "tests/linux/test_run.py"
TRUST = "tests/unit/policy/test_approvals.py"
WRAP = "tests/linux/test_wrap.py"
WRAPPING = "tests/unit/clients/test_clients_wrapping.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="report-page",
        sentence="If FILE ends in `.html`, the report is a web page without scripts.",
        tests=("tests/linux/test_report_page.py::test_a_run_writes_a_page_that_a_browser_shows", "tests/linux/test_report_page.py::test_every_text_of_the_page_is_escaped"),
        source=README,
        where=LINUX,
    ),
    Claim(
        id="never-pretends",
        sentence="corral never reports that a wall works if it does not.",
        tests=(
            f"{DOCTOR}::test_run_refuses_on_a_host_without_namespaces_and_landlock",
            f"{DOCTOR}::test_best_effort_drops_one_wall_with_a_warning",
            f"{FAILURES}::test_a_step_that_silently_has_no_effect_prevents_the_start",
        ),
    ),
    Claim(
        id="stdio",
        sentence="The server inherits the pipes that its client made for it; corral reads messages only if you turn on [the guard](docs/guard.md).",
        tests=(
            f"{RUN}::test_the_target_has_the_callers_own_pipes",
            f"{RUN}::test_the_target_reads_stdin_and_writes_stdout",
            f"{CLIENTS}::test_all_bytes_pass_unchanged",
        ),
    ),
    Claim(
        id="stderr-only",
        sentence="corral's own messages go to stderr only.",
        tests=(f"{CLIENTS}::test_corral_writes_nothing_to_stdout",),
    ),
    Claim(
        id="explain-is-run",
        sentence="`explain` prints exactly the plan that `run` executes.",
        tests=(f"{CLI}::test_run_executes_exactly_the_steps_that_explain_prints",),
    ),
    Claim(
        id="doctor-by-effect",
        sentence="A mechanism counts as working only if `doctor` saw it deny an act, and saw the same act succeed where it is allowed.",
        tests=(
            f"{DOCTOR}::test_an_act_that_fails_outside_the_sandbox_too_proves_no_wall",
            f"{DOCTOR}::test_doctor_is_right_where_namespaces_are_filtered",
            f"{DOCTOR}::test_doctor_is_right_where_landlock_is_missing",
            f"{CGROUP}::test_limits_are_enforced_by_cgroups",
            f"{CGROUP}::test_limits_of_a_user_without_a_delegated_cgroup",
            f"{CGROUP}::test_runs_on_a_machine_without_user_namespaces_and_landlock",
        ),
        where=MACHINE,
    ),
    Claim(
        id="json",
        sentence="Every command except `run`, `schema` and `completion` takes `--json`.",
        tests=(
            f"{PAGES}::test_every_command_that_prints_a_result_has_the_flag_json",
            f"{CLI}::test_run_executes_exactly_the_steps_that_explain_prints",
            f"{CLI}::test_check_lists_every_mistake_with_its_line",
            f"{DOCTOR}::test_json_has_the_promised_shape",
        ),
    ),
    Claim(
        id="report",
        sentence="`run --report FILE` writes a report: the controls (walls and limits) that were requested, how each was enforced, and the resource usage.",
        tests=(
            f"{CLI}::test_the_report_has_the_documented_fields",
            f"{CLI}::test_the_report_names_the_outcome",
            f"{FAILURES}::test_the_report_names_a_failed_set_up",
            f"{LIFECYCLE}::test_a_timeout_exits_with_124_and_is_in_the_report",
        ),
    ),
    Claim(
        id="wrap-check",
        sentence="`wrap --check` fails if a server in a project's MCP configuration does not start through corral.",
        tests=(
            f"{CHECK}::test_the_check_fails_for_a_server_that_is_not_wrapped",
            f"{CHECK}::test_the_check_fails_for_a_server_that_wrap_refuses",
            f"{CHECK}::test_the_check_finds_servers_whose_keys_have_another_case",
            f"{CHECK}::test_the_check_accepts_wrapped_and_remote_servers",
        ),
    ),
    Claim(
        id="wrap-check-own",
        sentence="It also fails if a server starts through a program named corral that is in the project itself.",
        tests=(
            f"{CHECK}::test_the_check_refuses_a_program_named_corral_in_the_project",
            f"{CHECK}::test_the_check_refuses_a_project_with_a_program_that_windows_would_start",
            f"{CHECK}::test_the_check_accepts_a_corral_outside_of_the_project",
        ),
    ),
    Claim(
        id="json-schemas",
        sentence="Each of them is an object with the key `version`, and has a JSON Schema, which `corral schema NAME` prints (in corral's package it is `corral/schemas/NAME.json`).",
        tests=tuple(
            f"{JSON}::{name}"
            for name in ("test_every_schema_is_printed", "test_doctor_matches_its_schema", "test_explain_matches_its_schema", "test_reports_match_their_schema", "test_the_demo_matches_its_schema")
        ),
        source=JSON_PAGE,
    ),
    Claim(
        id="demo-anonymous",
        sentence="It does not contain the names of the user and the machine, or the paths of the home and of temporary files.",
        tests=(f"{JSON}::test_the_demos_file_contains_nothing_about_the_user",),
        source=JSON_PAGE,
    ),
    Claim(
        id="stated-refuses",
        sentence="A limit that you state is required: if the host cannot enforce it, corral refuses the run.",
        tests=(
            f"{PLAN}::test_a_stated_limit_is_required",
            f"{CLI}::test_a_refusal_names_the_requested_limit_that_the_host_cannot_enforce",
        ),
    ),
    Claim(
        id="default-warns",
        sentence="A default limit is dropped if the host cannot enforce it. The first run after a boot, the report and `doctor` warn about it.",
        tests=(
            f"{PLAN}::test_a_default_limit_degrades_with_a_warning",
            f"{CLI}::test_a_default_limit_that_cannot_be_enforced_is_a_warning",
        ),
    ),
    Claim(
        id="walls-required",
        sentence="Walls are required, whether the policy states them or not.",
        tests=(
            f"{PLAN}::test_walls_are_required_whether_stated_or_not",
            f"{DOCTOR}::test_run_refuses_on_a_host_without_namespaces_and_landlock",
        ),
    ),
    Claim(
        id="strict",
        sentence="With `--strict`, the default limits are required too.",
        tests=(
            f"{PLAN}::test_strict_requires_default_limits",
            f"{CLI}::test_strict_turns_a_warning_into_a_refusal",
        ),
    ),
    Claim(
        id="best-effort",
        sentence="With `--best-effort`, corral drops every control that the host cannot enforce, **even walls**, and warns in each run.",
        tests=(
            f"{PLAN}::test_the_user_may_drop_any_control",
            f"{DOCTOR}::test_best_effort_drops_one_wall_with_a_warning",
            f"{CLI}::test_best_effort_drops_a_missing_control_with_a_warning",
        ),
    ),
    Claim(
        id="request-approval",
        sentence="What it requests beyond the defaults has no effect until you approve it with `corral approve`.",
        tests=(
            f"{POLICY}::test_an_unapproved_request_never_allows_more",
            f"{POLICY}::test_all_requests_are_listed_at_once_with_the_remedy",
            f"{TRUST}::test_a_request_counts_after_its_approval",
            f"{APPROVE}::test_a_request_counts_only_if_its_exact_content_is_approved",
            f"{APPROVE}::test_a_request_that_only_tightens_needs_no_approval",
            f"{TRUST}::test_any_change_needs_a_new_approval",
        ),
        where=ANY,
    ),
    Claim(
        id="api-stops",
        sentence="Leaving the `with` block stops the server and everything that it started.",
        tests=(
            f"{API}::test_leaving_the_context_stops_the_target",
            f"{API}::test_leaving_the_context_stops_the_targets_children",
        ),
    ),
    Claim(
        id="exit-own",
        sentence="the target ran and ended by itself",
        tests=(f"{RUN}::test_the_exit_code_is_the_targets_own",),
    ),
    Claim(
        id="exit-usage",
        sentence="the command line or the value of a flag is wrong",
        tests=(
            f"{CLI}::test_a_usage_error_exits_with_2_and_the_nearest_hint",
            f"{CLI}::test_a_wrongly_used_flag_exits_with_2",
        ),
    ),
    Claim(
        id="exit-others",
        sentence="For other commands, the codes 2 and 125 mean the same, and code 1 means that the command found a mistake or refused a part of its work (`check`, `wrap`, `audit verify`).",
        tests=(
            f"{CLI}::test_check_lists_every_mistake_with_its_line",
            f"{CHECK}::test_the_check_fails_for_a_server_that_is_not_wrapped",
            f"{WRAP}::test_one_server_that_cannot_be_wrapped_does_not_stop_the_others",
            "tests/linux/test_audit.py::test_a_changed_audit_is_detected",
        ),
    ),
    Claim(
        id="hints",
        sentence="The text after `hint:` says what you can do.",
        tests=(
            f"{CLI}::test_bad_input_is_reported_in_two_lines_without_a_stack_trace",
            f"{CLI}::test_a_broken_request_is_reported_with_its_place_and_a_hint",
            f"{CLI}::test_an_error_of_the_system_is_reported_with_a_hint",
        ),
    ),
    Claim(id="exit-timeout", sentence="corral stopped the target at its timeout", tests=(
            f"{LIFECYCLE}::test_a_timeout_exits_with_124_and_is_in_the_report",
            f"{LIFECYCLE}::test_a_target_that_ends_in_time_is_not_reported_as_timeout",
        )),
    Claim(
        id="exit-refused",
        sentence="corral refused the run or could not set up a wall, so the target never ran",
        tests=(
            f"{FAILURES}::test_no_target_runs_if_a_step_fails",
            f"{FAILURES}::test_the_target_runs_without_an_injected_failure",
        ),
    ),
    Claim(
        id="exit-blind",
        sentence="corral ended the target because it could no longer watch a limit",
        tests=(f"{BLINDNESS}::test_a_supervisor_that_cannot_read_proc_ends_the_run",),
    ),
    Claim(
        id="exit-exec",
        sentence="the program cannot be executed, or does not exist",
        tests=(
            f"{FAILURES}::test_a_file_that_is_not_a_program_exits_with_126",
            f"{FAILURES}::test_a_missing_command_exits_with_127",
        ),
    ),
    Claim(
        id="exit-signal",
        sentence="signal n ended the target",
        tests=(f"{RUN}::test_a_signal_becomes_128_plus_its_number",),
    ),
    Claim(
        id="wrap-all",
        sentence="`unwrap` restores a configuration byte for byte.",
        tests=(f"{WRAP}::test_a_wrapped_configuration_works_and_is_restored", f"{WRAPPING}::test_any_configuration_is_wrapped_correctly_and_restored_byte_for_byte"),
        source=README,
        where=LINUX,
    ),
)  # fmt: skip
