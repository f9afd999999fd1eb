"""List the promises in docs/network.md."""

from __future__ import annotations

from ledger.claim import ANY, GATEWAY, MODEL, Claim

ALLOWLIST = "tests/inside/test_allowlist.py"
BROKER = "tests/inside/test_socket_broker.py"
NOTIFIED = "tests/unit/platforms/linux/test_notified_calls.py"
FLAGS = "tests/linux/test_denial_flags.py"
AUDIT = "tests/linux/test_audit.py"
CLIENTS = "tests/linux/test_network_clients.py"
DOOR = "tests/unit/network/http_proxy/test_http_proxy.py"
LISTEN = "tests/linux/test_listen.py"
MACOS_PROXY = "tests/linux/test_macos_proxy.py"
MACOS_PLAN = "tests/linux/test_macos_plan.py"
PLAYED = "in a model of a Mac on Linux"
RELAY = "tests/unit/platforms/windows/test_win_relay_live.py"
RESTRICTIONS = "tests/unit/platforms/windows/test_win_restrictions.py"
SEATBELT = "tests/unit/platforms/macos/test_seatbelt.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="allow-clients",
        sentence="Programs in the sandbox connect as usual.",
        tests=(
            f"{CLIENTS}::test_curl_reaches_only_the_allowed_host",
            f"{CLIENTS}::test_node_verifies_tls_end_to_end",
            f"{CLIENTS}::test_git_clones_over_https",
            f"{CLIENTS}::test_musls_resolver_works",
            f"{CLIENTS}::test_gos_resolver_works",
            f"{CLIENTS}::test_http2_works",
            f"{CLIENTS}::test_several_requests_share_one_connection",
            f"{CLIENTS}::test_python_verifies_tls_end_to_end",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-empty",
        sentence="An empty list does not allow any host.",
        tests=(
            f"{ALLOWLIST}::test_an_empty_list_allows_nothing",
            f"{ALLOWLIST}::test_only_allowed_names_are_reached",
            f"{ALLOWLIST}::test_an_allowlist_in_a_policy_file_works_like_the_flags",
            f"{ALLOWLIST}::test_child_processes_have_the_same_allowlist",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-labels",
        sentence="Names are compared label by label, so `*.example.com` does not match `evilexample.com`.",
        tests=(
            f"{ALLOWLIST}::test_only_spellings_of_an_allowed_name_resolve",
            f"{ALLOWLIST}::test_hand_made_queries_do_not_pass_for_an_allowed_name",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-ports",
        sentence="A name is allowed only on the ports of its own rules.",
        tests=(
            f"{ALLOWLIST}::test_an_allowed_name_is_denied_on_another_port",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-grammar",
        sentence="corral refuses a rule that programs could read in two ways, or that would allow too much: an address in decimal, octal, hexadecimal or short form, a dot at the end, letters of other scripts, a `*` anywhere but as the first label, or a wildcard for a whole top-level domain.",
        tests=(
            f"{ALLOWLIST}::test_ambiguous_entries_are_refused",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-64",
        sentence="All rules together may name at most 64 ports.",
        tests=("tests/unit/network/test_rules.py::test_more_than_64_ports_are_refused", "tests/unit/policy/test_policy.py::test_ports_are_counted_over_all_sources"),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="allow-dns",
        sentence="For all other names corral answers that they do not exist. The target's queries do not leave the host.",
        tests=(
            f"{ALLOWLIST}::test_hand_made_queries_do_not_pass_for_an_allowed_name",
            f"{ALLOWLIST}::test_no_datagram_reaches_a_host_even_if_its_name_and_port_are_allowed",
            f"{ALLOWLIST}::test_addresses_that_no_lookup_returned_are_denied",
            f"{ALLOWLIST}::test_a_flood_of_lookups_does_not_stop_allowed_names",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-public",
        sentence="The first 508 names get addresses from 192.31.196.0/24 and 192.175.48.0/24, which Python counts as public.",
        tests=(
            "tests/unit/network/gateway/test_dns_names.py::test_servers_that_connect_only_to_public_addresses_accept_the_names",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-rebinding",
        sentence="It does this for each connection, so if the name has another address the next time, this address is checked, too.",
        tests=(
            f"{ALLOWLIST}::test_a_name_is_checked_again_for_each_connection",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-relay",
        sentence="The kernel passes bytes on in both directions. Half-closed connections and back-pressure work as usual.",
        tests=(
            f"{CLIENTS}::test_one_direction_stays_open_after_the_other_has_ended",
            f"{CLIENTS}::test_a_server_that_ends_first_still_gets_data",
            f"{CLIENTS}::test_a_slow_reader_does_not_delay_others",
            f"{CLIENTS}::test_many_connections_work_at_once",
            f"{CLIENTS}::test_a_large_download_arrives_through_the_gateway",
            f"{CLIENTS}::test_an_upload_arrives",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-last-data",
        sentence="When the run ends, corral first passes on what the target has already sent, as far as the destination accepts it.",
        tests=("tests/linux/test_gateway.py::test_what_a_target_sent_before_its_end_still_arrives",),
        source=GATEWAY,
    ),
    Claim(
        id="allow-tls-end",
        sentence="the target itself checks the certificates.",
        tests=(
            f"{CLIENTS}::test_python_verifies_tls_end_to_end",
            f"{CLIENTS}::test_curl_verifies_tls_end_to_end",
            f"{CLIENTS}::test_node_verifies_tls_end_to_end",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-udp",
        sentence="The target cannot send datagrams to other hosts, even to those with an allowed name. So it cannot use QUIC or other DNS servers.",
        tests=(
            f"{ALLOWLIST}::test_no_datagram_reaches_a_host_even_if_its_name_and_port_are_allowed",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-sockets",
        sentence="The target cannot bind the ports on which corral listens, and cannot talk to the supervisor.",
        tests=(
            f"{ALLOWLIST}::test_an_allowlist_enables_no_other_socket_family",
            f"{ALLOWLIST}::test_the_target_cannot_bind_the_gateways_ports",
            f"{ALLOWLIST}::test_the_target_cannot_reach_the_supervisor",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-guard",
        sentence="An IPv6 address that contains a guarded address (mapped, NAT64, 6to4) is guarded, too.",
        tests=(
            f"{ALLOWLIST}::test_an_allowed_name_does_not_open_guarded_addresses",
            f"{ALLOWLIST}::test_the_unspecified_address_is_never_dialled",
            f"{ALLOWLIST}::test_other_spellings_of_an_address_are_denied_as_addresses",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-guard-admits",
        sentence="But `0.0.0.0/0` means the internet, and does not permit guarded addresses.",
        tests=(
            f"{ALLOWLIST}::test_an_allowed_network_does_not_open_guarded_addresses",
            f"{ALLOWLIST}::test_ipv6_addresses_are_matched_like_others",
            f"{CLIENTS}::test_an_allowed_loopback_address_is_reached_on_its_port_only",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="admit-ranges",
        sentence="Every allowed name may then resolve to addresses in these networks. This key does not allow any host by itself, and permits only addresses of the listed networks.",
        tests=(
            f"{ALLOWLIST}::test_ranges_that_the_users_config_admits_are_reached",
            f"{CLIENTS}::test_the_python_api_reads_the_users_config",
            "tests/unit/network/test_guard_exceptions.py::test_an_exception_admits_only_the_addresses_of_its_network",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="admit-singly",
        sentence="If a server needs it, put it into `network.allow` of this server's policy.",
        tests=(
            f"{ALLOWLIST}::test_this_host_is_admitted_only_by_its_exact_address_and_with_a_warning",
            "tests/unit/network/test_guard_exceptions.py::test_invalid_entries_are_refused",
            "tests/unit/network/test_guard_exceptions.py::test_no_range_admits_the_host_or_metadata",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-sni",
        sentence="If no rule allows this name, corral ends the connection on port 443.",
        tests=(
            f"{ALLOWLIST}::test_tls_to_another_name_is_ended",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-certificates",
        sentence="These variables of the host's environment name certificates: `SSL_CERT_FILE`, `SSL_CERT_DIR`, `NODE_EXTRA_CA_CERTS`, `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `GIT_SSL_CAINFO`, `PIP_CERT` and `AWS_CA_BUNDLE`. In a run with an allowlist the target gets those that are set, and can read the files that they name.",
        tests=(
            f"{CLIENTS}::test_python_verifies_tls_end_to_end",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-proxy",
        sentence="The target cannot see the variable or the password in it.",
        tests=(f"{CLIENTS}::test_connections_use_the_hosts_proxy",),
        source=GATEWAY,
    ),
    Claim(
        id="denial-announced",
        sentence="corral prints each denial on stderr when it first happens, but at most twenty denials in a run.",
        tests=(
            f"{FLAGS}::test_a_denied_start_names_the_program_and_its_flag",
            "tests/unit/denials/test_denials.py::test_each_denial_is_announced_once_up_to_twenty",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="denial-names",
        sentence="On Linux with namespaces, corral also reports the names that a target looks up in a run without an allowlist.",
        tests=(f"{FLAGS}::test_a_name_is_reported_without_an_allowlist",),
        source=GATEWAY,
    ),
    Claim(
        id="allow-report",
        sentence="The report of `--report FILE` lists every denial, how often it happened, and the flag that would have allowed it.",
        tests=(
            f"{ALLOWLIST}::test_denials_are_shown_with_the_rule_that_would_allow_them",
            f"{ALLOWLIST}::test_only_allowed_names_are_reached",
            f"{ALLOWLIST}::test_explain_names_the_limits_of_an_allowlist",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-bounded",
        sentence="The report also lists bytes and connections by destination. It contains at most 256 different denials and only counts the rest, so that a target cannot fill the disk with denials.",
        tests=(
            f"{ALLOWLIST}::test_a_flood_of_lookups_does_not_stop_allowed_names",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="allow-paced",
        sentence="To keep a target from wasting this time, corral limits the rate of the target's requests after 256 failed connections, 256 DNS queries or 128 stray packets at once.",
        tests=(
            "tests/linux/test_pacing.py::test_refused_connections_are_read_at_a_limited_rate",
            "tests/inside/test_network.py::test_a_flood_of_refused_connections_is_read_at_a_limited_rate",
            "tests/linux/test_pacing.py::test_a_connection_with_data_does_not_count_as_a_flood",
            "tests/linux/test_pacing.py::test_dns_questions_are_answered_at_a_limited_rate",
            "tests/linux/test_pacing.py::test_raw_packets_are_read_at_a_limited_rate",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="audit-chain",
        sentence="`corral audit verify FILE` finds the first line that was changed, removed or inserted.",
        tests=(
            f"{AUDIT}::test_a_changed_audit_is_detected",
            f"{AUDIT}::test_each_run_continues_the_chain_of_audit_records",
            f"{AUDIT}::test_verify_reports_an_audit_whose_last_line_was_cut_off",
            f"{AUDIT}::test_a_killed_run_leaves_whole_lines",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="audit-refused",
        sentence="corral refuses the run if the file is in a write grant, is a link, or is not an audit file.",
        tests=(
            f"{AUDIT}::test_an_audit_file_that_cannot_be_written_is_refused",
            f"{AUDIT}::test_the_target_cannot_write_its_audit",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="listen-loopback",
        sentence="With `--listen PORT` (`network.listen`) programs on the host can reach this port of the target by loopback, but no other port.",
        tests=(
            f"{LISTEN}::test_only_a_published_port_is_reached",
            f"{LISTEN}::test_no_port_is_reached_without_the_flag",
            f"{LISTEN}::test_a_published_port_listens_on_loopback_only",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="listen-taken",
        sentence="If another program uses the port already, corral refuses the run.",
        tests=(f"{LISTEN}::test_a_run_is_refused_if_the_port_that_it_publishes_is_taken",),
        source=GATEWAY,
    ),
    Claim(
        id="listen-no-way-out",
        sentence="The flag does not let the target connect anywhere.",
        tests=(f"{LISTEN}::test_a_published_port_opens_no_connection_to_the_host",),
        source=GATEWAY,
    ),
    Claim(
        id="allow-bare",
        sentence="If corral's probes do not show all three, corral refuses a run with an allowlist, exits with code 125, and names the cause. Without an allowlist the network stays closed.",
        tests=(f"{BROKER}::test_an_allowlist_is_refused_if_a_container_engine_has_the_only_seccomp_listener",),
        source=GATEWAY,
    ),
    Claim(
        id="broker-list",
        sentence="Where user namespaces are forbidden (in most containers, on a default Ubuntu 24.04), corral enforces the allowlist by a socket broker: a part of the supervisor that gets the target's socket calls through a seccomp listener, and decides them.",
        tests=(
            f"{ALLOWLIST}::test_only_allowed_names_are_reached",
            f"{BROKER}::test_a_host_is_reached_only_by_the_address_of_its_lookup",
            f"{BROKER}::test_a_connected_socket_cannot_be_led_elsewhere",
            f"{BROKER}::test_the_supervisor_survives_invalid_arguments",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="broker-race",
        sentence="corral never lets the kernel continue a call whose arguments are in the target's memory, so the target gains nothing if it changes the address after the check.",
        tests=(
            f"{BROKER}::test_an_address_that_changes_during_its_check_opens_nothing",
            f"{BROKER}::test_a_descriptor_that_changes_during_its_check_opens_nothing",
            f"{NOTIFIED}::test_the_supervisor_lets_only_calls_continue_that_the_table_permits",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="broker-second-lock",
        sentence="If the kernel's Landlock can restrict TCP, it also denies the target all TCP connects and binds, as a second wall.",
        tests=(f"{BROKER}::test_landlock_refuses_connects_that_the_broker_let_pass",),
        source=GATEWAY,
    ),
    Claim(
        id="broker-replaced",
        sentence="`corral explain` says which of the two applies.",
        tests=(
            f"{BROKER}::test_copies_of_a_connected_socket_are_connected_too_where_pidfd_getfd_works",
            f"{BROKER}::test_ordinary_uses_of_sockets_work",
        ),
        source=GATEWAY,
    ),
    Claim(
        id="broker-listen",
        sentence="If a server binds all addresses, it also gets only the host's 127.0.0.1.",
        tests=(f"{LISTEN}::test_a_server_that_binds_all_addresses_is_reached",),
        source=GATEWAY,
    ),
    Claim(
        id="broker-hidden",
        sentence="**Undumpable processes** (`PR_SET_DUMPABLE`) cannot use the network if an ordinary user starts the run, because the supervisor cannot read their memory. The report says so.",
        tests=(f"{BROKER}::test_a_target_that_hides_its_memory_gets_no_connections_unless_root_runs_corral",),
        source=GATEWAY,
    ),
    Claim(
        id="win-never-widened",
        sentence="corral refuses a policy that has both an allowlist and a `windows.network` level above `none`.",
        tests=(f"{RESTRICTIONS}::test_host_names_are_never_widened_to_a_network_level",),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-listen",
        sentence="On Windows corral refuses `network.listen`.",
        tests=(f"{RESTRICTIONS}::test_listening_is_refused_at_every_level",),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-relay",
        sentence="Outside, corral checks name, port, addresses and the name in a TLS hello as on Linux, and then connects to exactly the address that it checked.",
        tests=(
            f"{RELAY}::test_the_relay_reaches_an_allowed_name_and_denies_another",
            f"{RELAY}::test_other_ports_and_addresses_are_denied",
            f"{RELAY}::test_an_allowed_name_that_leads_to_the_host_is_denied",
            f"{RELAY}::test_a_name_is_looked_up_once",
            f"{RELAY}::test_a_hello_with_another_name_is_denied",
        ),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="win-relay-hostile",
        sentence="corral checks all frames that come through the pipe in the same way, even those that the target writes itself.",
        tests=(
            f"{RELAY}::test_frames_written_by_the_target_are_checked",
            f"{RELAY}::test_an_invalid_frame_ends_the_relay",
        ),
        source=GATEWAY,
        where=ANY,
    ),
    Claim(
        id="macos-allow",
        sentence="If Seatbelt is off, or if the probes do not show this, corral refuses a run with an allowlist. It always refuses a run with `network.listen`.",
        tests=(
            f"{MACOS_PLAN}::test_an_allowlist_is_refused_and_never_widened",
            f"{MACOS_PROXY}::test_an_allowlist_is_refused_without_seatbelt",
            f"{MACOS_PROXY}::test_published_ports_are_refused_under_seatbelt",
            "tests/unit/platforms/macos/test_macos.py::test_an_unenforceable_network_is_refused_and_opens_no_port",
            "tests/unit/platforms/macos/test_macos.py::test_without_seatbelt_there_is_no_proxy",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-port",
        sentence="Seatbelt opens one loopback port for the target, and denies other ports, UDP, name lookups and listening.",
        tests=(
            f"{SEATBELT}::test_the_proxy_opens_only_one_port",
            f"{SEATBELT}::test_an_invalid_port_never_becomes_a_rule",
            "tests/unit/platforms/macos/test_macos.py::test_the_profile_gets_the_port_of_its_own_proxy",
            f"{MACOS_PROXY}::test_the_probe_finds_that_an_imitated_seatbelt_denies_nothing",
        ),
        source=GATEWAY,
        where=MODEL,
    ),
    Claim(
        id="macos-door",
        sentence="It then connects to exactly the address that it checked, through the host's own HTTPS proxy if there is one.",
        tests=(
            f"{DOOR}::test_an_allowed_name_is_reached_and_another_is_denied",
            f"{DOOR}::test_a_name_that_resolves_to_the_host_is_denied_even_if_it_did_not_before",
            f"{DOOR}::test_a_hello_with_another_name_ends_the_connection",
            f"{DOOR}::test_requests_go_through_the_hosts_own_proxy",
            f"{MACOS_PROXY}::test_only_allowed_hosts_are_reached_through_the_proxy",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-clients",
        sentence="such as curl, Python's urllib and node's fetch from version 24 on.",
        tests=(
            f"{DOOR}::test_curl_uses_the_proxy_variables",
            f"{DOOR}::test_python_uses_the_proxy_variables",
            f"{DOOR}::test_node_uses_the_proxy_variables",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-password",
        sentence="Without the password a process does not get a connection, and cannot find out what is allowed.",
        tests=(
            f"{DOOR}::test_without_the_password_a_client_learns_nothing",
            f"{DOOR}::test_a_password_is_valid_for_one_proxy",
            f"{MACOS_PROXY}::test_other_processes_get_no_connection_and_do_not_see_the_password",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-secret",
        sentence="The password is not in `explain`, the report, the audit file, `corral ps` or the arguments of a process.",
        tests=(
            f"{MACOS_PROXY}::test_only_allowed_hosts_are_reached_through_the_proxy",
            f"{MACOS_PROXY}::test_other_processes_get_no_connection_and_do_not_see_the_password",
            f"{MACOS_PROXY}::test_explain_shows_neither_the_port_nor_the_password",
        ),
        source=GATEWAY,
        where=PLAYED,
    ),
    Claim(
        id="macos-door-beside",
        sentence="The proxy listens on 127.0.0.1, and corral also binds the same port on `::1`, so that no other program can listen there.",
        tests=(f"{DOOR}::test_the_same_port_of_ipv6_loopback_is_reserved",),
        source=GATEWAY,
        where=PLAYED,
    ),
)  # fmt: skip
