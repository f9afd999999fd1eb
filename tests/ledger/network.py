"""The promises of docs/network.md."""

from __future__ import annotations

from ledger.claim import ANY, GATEWAY, Claim

ALLOWLIST = "tests/inside/test_allowlist.py"
AUDIT = "tests/linux/test_audit.py"
CLIENTS = "tests/linux/test_network_clients.py"
DOOR = "tests/unit/network/http_proxy/test_http_proxy.py"
LISTEN = "tests/linux/test_listen.py"
MACOS_DOOR = "tests/linux/test_macos_door.py"
MACOS_PLAN = "tests/linux/test_macos_plan.py"
PLAYED = "on Linux, which plays a Mac"
RELAY = "tests/unit/platforms/windows/test_win_relay_live.py"
RESTRICTIONS = "tests/unit/platforms/windows/test_win_restrictions.py"
SEATBELT = "tests/unit/platforms/macos/test_seatbelt.py"

CLAIMS: tuple[Claim, ...] = (
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
        id="allow-64",
        sentence="All rules together may name 64 ports.",
        tests=("tests/unit/network/test_rules.py::test_at_most_64_ports", "tests/unit/policy/test_policy.py::test_ports_are_counted_over_all_sources"),
        source=GATEWAY,
        where=ANY,
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
        id="admit-ranges",
        sentence="It allows nothing by itself, and admits only addresses of networks that it names.",
        tests=(
            f"{ALLOWLIST}::test_ranges_that_the_users_config_admits",
            f"{CLIENTS}::test_the_python_api_reads_the_users_config",
            "tests/unit/network/test_guard_exceptions.py::test_an_entry_admits_what_it_says_and_no_more",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="admit-singly",
        sentence="Loopback, link-local and the host's own addresses are admitted one by one, the first two with a warning at each run, and a cloud's metadata service not at all: name that in `network.allow` of the one policy that needs it.",
        tests=(
            f"{ALLOWLIST}::test_this_host_is_admitted_by_its_very_address_and_aloud",
            "tests/unit/network/test_guard_exceptions.py::test_entries_that_are_not_taken",
            "tests/unit/network/test_guard_exceptions.py::test_no_range_ever_admits_this_host_or_credentials",
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
    Claim(
        id="macos-allow",
        sentence="and so does a list where Seatbelt was not proven or is off.",
        tests=(
            f"{MACOS_PLAN}::test_a_list_of_hosts_is_refused_and_never_widened",
            f"{MACOS_DOOR}::test_without_seatbelt_a_list_of_hosts_is_refused",
            f"{MACOS_DOOR}::test_ports_to_listen_on_are_refused_behind_the_best_wall",
            "tests/unit/platforms/macos/test_macos.py::test_what_nothing_holds_is_refused_and_opens_no_door",
            "tests/unit/platforms/macos/test_macos.py::test_without_seatbelt_there_is_no_door_either",
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
            "tests/unit/platforms/macos/test_macos.py::test_the_profile_gets_the_port_of_its_own_door",
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
        sentence="Neither `explain`, the report, the audit file, `corral ps` nor the arguments of a process have it.",
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
)  # fmt: skip
