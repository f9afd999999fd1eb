"""List the promises in docs/guard.md."""

from __future__ import annotations

from ledger.claim import Claim

HOSTILE = "tests/mcp/test_hostile.py"
SDKS = "tests/mcp/test_sdks.py"
GUARD = "tests/unit/messages/test_message_guard.py"
FRAMES = "tests/unit/messages/test_frames.py"
MARKS = "tests/unit/messages/test_marks.py"
PINS = "tests/unit/policy/test_pins.py"
MERGE = "tests/unit/policy/test_mcp.py"

CLAIMS: tuple[Claim, ...] = tuple(
    Claim(id=name, sentence=sentence, tests=tests, source="docs/guard.md")
    for name, sentence, tests in (
        ("guard-off", "Without the guard the server uses the client's own streams, so messages take no extra time.", (f"{HOSTILE}::test_without_a_guard_the_target_has_the_clients_streams", f"{HOSTILE}::test_without_a_guard_its_modules_are_not_imported")),
        ("guard-api", 'In Python you write them in the policy, too: `corral.launch(argv, {"mcp": {"tools": {"allow": ["add"]}}}, ...)`.', (f"{HOSTILE}::test_the_python_api_accepts_the_guards_keys",)),
        ("guard-trust", "Your own keys replace them.", (f"{MERGE}::test_a_request_needs_approval_and_never_overrides_the_user",)),
        ("guard-tools", "If it uses another name, it gets an error that names the rule.", (f"{HOSTILE}::test_tools_are_hidden_and_refused", f"{GUARD}::test_a_list_contains_only_allowed_items", f"{GUARD}::test_prompts_and_resources_are_filtered_too")),
        ("guard-calls", "This applies to requests, notifications and batches, and to completions and subscriptions of prompts and resources.", (f"{GUARD}::test_the_refusal_of_a_denied_name_names_the_rule", f"{GUARD}::test_each_message_of_a_batch_is_judged")),
        ("guard-uris", "The guard compares each URI with the patterns twice: as the URI is written, and with percent-encoding and dot segments resolved.", (f"{GUARD}::test_another_spelling_of_a_uri_counts_as_the_same_uri",)),
        ("guard-uri-names", "with more slashes, with a query, or with `localhost` as the host of a file.", (f"{GUARD}::test_a_denied_uri_is_also_denied_under_other_names",)),
        ("guard-pins", 'With `"warn"`, a run only prints the differences.', (f"{HOSTILE}::test_a_tool_that_changed_after_it_was_pinned_is_refused", f"{HOSTILE}::test_with_warn_a_tool_that_changed_after_pinning_passes_and_is_reported", f"{GUARD}::test_a_changed_tool_is_left_out_and_refused_when_called", f"{GUARD}::test_changed_instructions_are_left_out", f"{GUARD}::test_every_small_change_of_a_definition_is_found")),
        ("guard-unpinned", 'If nothing is pinned for a server, a run with `"refuse"` does not start.', (f"{HOSTILE}::test_a_run_that_requires_pins_is_refused_if_nothing_is_pinned",)),
        ("guard-requests", "Otherwise the server gets an error. The guard also hides from the server that the client can answer such requests.", (f"{HOSTILE}::test_requests_of_a_server_are_refused_unless_allowed", f"{GUARD}::test_the_server_does_not_see_refused_capabilities")),
        ("guard-embedded", "In protocol version 2026-07-28 a server puts such requests into its answers, and the guard refuses them there, too.", (f"{HOSTILE}::test_a_request_inside_an_answer_is_refused", f"{SDKS}::test_messages_of_the_older_and_the_newer_mcp_protocol_pass_the_guard")),
        ("guard-size", "If the guard can read the message's id, the sender of the request gets an error.", (f"{HOSTILE}::test_a_huge_frame_is_dropped_and_the_request_answered", f"{FRAMES}::test_the_id_of_a_long_answer_is_found")),
        ("guard-ids", '`1`, `"1"` and `1.0` are different ids.', (f"{HOSTILE}::test_answers_without_a_request_are_dropped", f"{GUARD}::test_an_answer_without_a_request_is_dropped")),
        ("guard-strays", "**What the server prints on stdout besides messages** goes to stderr, and the report counts it.", (f"{HOSTILE}::test_output_that_is_not_a_clear_message_goes_to_stderr_and_is_counted",)),
        ("guard-clear", "**Text that two JSON parsers could read differently** is not accepted as a message: names that occur twice, names that differ from known names only in upper and lower case, NaN, bytes that are not UTF-8, a carriage return inside a line.", (f"{FRAMES}::test_ambiguous_text_is_not_a_message", f"{FRAMES}::test_a_message_that_could_be_of_two_kinds_has_no_kind", f"{FRAMES}::test_node_reads_accepted_text_as_corral_does")),
        ("guard-bytes", "**All other messages pass byte for byte**, even those with unknown methods.", (f"{HOSTILE}::test_ordinary_messages_pass_byte_for_byte_however_they_arrive", f"{GUARD}::test_messages_without_a_rule_pass_byte_for_byte")),
        ("guard-sdks", "With the official SDKs for Python and TypeScript, both versions of the protocol (`initialize` up to 2025-11-25, and 2026-07-28 with `server/discover`), batches, cancellation and progress work as they do without a guard.", (f"{SDKS}::test_published_servers_answer_the_same_with_a_guard", f"{SDKS}::test_messages_of_the_older_and_the_newer_mcp_protocol_pass_the_guard", f"{SDKS}::test_sampling_elicitation_and_cancellation_pass_the_guard", f"{GUARD}::test_cancelling_frees_a_place_and_drops_the_late_answer")),
        ("guard-memory", "The guard's memory is bounded, whatever client and server send. It keeps at most one message from each side and `max_pending` requests, and while it reads a message it uses up to ten times `max_message`.", (f"{HOSTILE}::test_the_supervisor_stays_small_whatever_a_server_sends", f"{FRAMES}::test_a_line_without_end_uses_bounded_memory", f"{FRAMES}::test_reading_a_message_uses_bounded_memory", f"{GUARD}::test_waiting_requests_of_the_server_are_bounded")),
        ("guard-stall", "Even if a server does not read its input, its messages reach the client without delay.", (f"{HOSTILE}::test_a_server_that_does_not_read_refusals_cannot_block_its_client",)),
        ("guard-audit", "In these the guard masks the policy's secrets, and every argument whose name looks like that of a secret.", (f"{HOSTILE}::test_calls_are_recorded_in_the_audit",)),
        ("inspect-walls", "It prints them and the server's denials, and marks suspicious text:", (f"{HOSTILE}::test_inspect_uses_only_flags_that_the_user_typed",)),
        ("inspect-marks", "a tool named like a tool of another pinned or configured server, or a text that mentions such a tool", (f"{HOSTILE}::test_inspect_marks_a_tool_that_shadows_a_tool_of_another_server", f"{HOSTILE}::test_poisoned_descriptions_are_marked_by_inspect", f"{MARKS}::test_suspicious_texts_are_marked", f"{MARKS}::test_ordinary_text_has_no_mark")),
        ("inspect-not-compared", "If a server has neither, corral lists it as not compared.", (f"{HOSTILE}::test_inspect_marks_a_tool_that_shadows_a_tool_of_another_server", f"{HOSTILE}::test_inspect_compares_tools_only_with_servers_in_a_clients_configuration")),
        ("inspect-scanner", "Scanners can read this output without starting the server:", (f"{SDKS}::test_a_scanner_accepts_the_output_of_inspect",)),
        ("pins-private", "corral keeps pins as files in its configuration directory (`pins/`), and ignores a file that another user could have written.", (f"{PINS}::test_pins_that_other_users_could_have_written_are_ignored", f"{PINS}::test_damaged_pins_are_ignored")),
        ("approve-pins", '**approve**: if the server\'s manifest sets `mcp.pins` to `"refuse"` or `"warn"`, `corral approve` pins the tools even without `--pin-tools`.', ("tests/linux/test_approve.py::test_approve_pins_tools_if_the_manifest_or_the_user_asks", "tests/linux/test_approve.py::test_approve_pins_nothing_without_being_asked")),
        ("pins-replaced", "If another server has the same words, `wrap` and `inspect` ask before they replace its pins, or refuse without a terminal.", ("tests/linux/test_wrap.py::test_wrap_does_not_replace_the_pins_of_another_server_with_the_same_command",)),
        ("wrap-pin-tools", "`wrap` runs each server once behind its walls, with its grants and variables, pins the definitions, and adds `--pins refuse` to the settings.", (f"{HOSTILE}::test_wrap_pins_tools_as_the_client_would_see_them",)),
        ("upgrade-pins", "If you agree to the upgrade, it pins the new tools.", ("tests/linux/test_upgrade.py::test_an_upgrade_compares_pinned_tools", "tests/linux/test_upgrade.py::test_an_upgrade_compares_the_tools_of_the_new_dependencies", "tests/linux/test_upgrade.py::test_a_second_definition_of_a_pinned_tool_is_shown_before_an_upgrade_pins_it")),
        ("guard-not-text", "The guard does not understand text. It passes on injected instructions in a result, a resource or an allowed description.", (f"{HOSTILE}::test_1_injected_text_in_a_resource_passes_unless_the_resource_is_denied", f"{HOSTILE}::test_6_injected_text_in_a_result_passes")),
    )
)  # fmt: skip
