"""The promises of README.md."""

from __future__ import annotations

from ledger.claim import ANY, LINUX, MACHINE, README, Claim

API = "tests/linux/test_api.py"
APPROVE = "tests/linux/test_approve.py"
CGROUP = "tests/vm/test_cgroup.py"
CLI = "tests/linux/test_cli.py"
CLIENTS = "tests/linux/test_clients.py"
DOCTOR = "tests/linux/test_doctor.py"
FAILURES = "tests/linux/test_failures.py"
BLINDNESS = "tests/linux/test_blindness.py"
LIFECYCLE = "tests/linux/test_lifecycle.py"
PLAN = "tests/unit/plan/test_plan.py"
POLICY = "tests/unit/policy/test_policy.py"
RUN = "tests/linux/test_run.py"
TRUST = "tests/unit/policy/test_approvals.py"
WRAP = "tests/linux/test_wrap.py"
WRAPPING = "tests/unit/clients/test_clients_wrapping.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="never-pretends",
        sentence="A wall that cannot be put up is never reported as up: the run refuses, unless you let it go yourself.",
        tests=(
            f"{DOCTOR}::test_with_neither_there_is_no_filesystem_wall_and_nothing_runs",
            f"{DOCTOR}::test_best_effort_does_not_pretend",
            f"{FAILURES}::test_a_wall_that_is_missing_is_noticed",
        ),
    ),
    Claim(
        id="stdio",
        sentence="the target inherits them and corral never touches a message.",
        tests=(
            f"{RUN}::test_stdin_and_stdout_are_the_callers_own",
            f"{RUN}::test_stdin_and_stdout_are_the_targets",
            f"{CLIENTS}::test_messages_are_not_touched",
        ),
    ),
    Claim(
        id="stderr-only",
        sentence="corral speaks on stderr only.",
        tests=(f"{CLIENTS}::test_stdout_carries_nothing_of_corrals",),
    ),
    Claim(
        id="explain-is-run",
        sentence="`explain` prints the very plan that `run` executes.",
        tests=(f"{CLI}::test_run_executes_exactly_the_steps_that_explain_prints",),
    ),
    Claim(
        id="doctor-by-effect",
        sentence="a capability counts only if the denial was seen and its control succeeded.",
        tests=(
            f"{DOCTOR}::test_a_denial_without_its_control_proves_nothing",
            f"{DOCTOR}::test_where_namespaces_are_filtered",
            f"{DOCTOR}::test_where_landlock_is_missing",
            f"{CGROUP}::test_limits",
            f"{CGROUP}::test_without_a_cgroup_of_ones_own",
            f"{CGROUP}::test_without_user_namespaces",
        ),
        where=MACHINE,
    ),
    Claim(
        id="json",
        sentence="`explain`, `check` and `doctor` take `--json`;",
        tests=(
            f"{CLI}::test_run_executes_exactly_the_steps_that_explain_prints",
            f"{CLI}::test_check_says_everything_that_is_wrong_at_once_with_its_line",
            f"{DOCTOR}::test_json_has_the_promised_shape",
        ),
    ),
    Claim(
        id="report",
        sentence="`run --report FILE` writes what was asked, enforced and used.",
        tests=(
            f"{CLI}::test_the_report_has_the_promised_shape",
            f"{CLI}::test_the_report_says_how_it_ended",
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
        tests=(
            f"{PLAN}::test_a_default_limit_degrades_with_a_warning",
            f"{CLI}::test_a_default_limit_that_cannot_be_held_is_a_warning",
        ),
    ),
    Claim(
        id="walls-required",
        sentence="Walls are required, stated or not.",
        tests=(
            f"{PLAN}::test_walls_are_required_stated_or_not",
            f"{DOCTOR}::test_with_neither_there_is_no_filesystem_wall_and_nothing_runs",
        ),
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
        sentence="`--best-effort` lets go whatever cannot be held, **walls too**, with a warning each run.",
        tests=(
            f"{PLAN}::test_the_users_word_lets_any_control_go",
            f"{DOCTOR}::test_best_effort_does_not_pretend",
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
        tests=(
            f"{API}::test_leaving_the_context_stops_the_target",
            f"{API}::test_leaving_the_context_stops_all_that_the_target_started",
        ),
    ),
    Claim(
        id="exit-own",
        sentence="it ran and ended by itself",
        tests=(f"{RUN}::test_the_exit_code_is_the_targets_own",),
    ),
    Claim(
        id="exit-usage",
        sentence="the command line is wrong",
        tests=(
            f"{CLI}::test_a_usage_error_is_2_with_the_nearest_hint",
            f"{CLI}::test_a_flag_that_is_used_wrongly_is_2",
        ),
    ),
    Claim(
        id="hints",
        sentence="what is wrong and where, and behind `hint:` what you can do about it.",
        tests=(
            f"{CLI}::test_bad_input_is_told_in_two_lines_without_a_stack_trace",
            f"{CLI}::test_a_broken_request_is_told_with_its_place_and_a_hint",
            f"{CLI}::test_an_error_of_the_system_is_told_with_a_hint",
        ),
    ),
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
        id="exit-blind",
        sentence="corral had to end it, because it could no longer watch a limit",
        tests=(f"{BLINDNESS}::test_a_supervisor_that_has_gone_blind_lets_nothing_run_on",),
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
        id="wrap-all",
        sentence="A wrapped configuration comes back byte for byte.",
        tests=(f"{WRAP}::test_a_configuration_is_wrapped_works_and_comes_back", f"{WRAPPING}::test_any_configuration_is_wrapped_as_meant_and_comes_back_byte_for_byte"),
        source=README,
        where=LINUX,
    ),
)  # fmt: skip
