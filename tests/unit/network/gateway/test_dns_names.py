"""Test the answers to the target's DNS queries."""

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_dns_messages import NAME, OPT, query, wire

from corral.denials.records import MAX_DENIALS, Denials
from corral.network.destinations import Destination, DestinationCheck
from corral.network.gateway import dns_messages
from corral.network.gateway.dns_names import Names
from corral.network.rules import parse_rules


def names(*allow: str, **options) -> Names:
    return Names(DestinationCheck(parse_rules(allow), Denials()), **options)


def ask(told: Names, name: str, kind: int = dns_messages.A) -> tuple[int, bytes | None]:
    """Ask for a name. Return the response code and the data of the answer, or None if there is no
    answer.
    """
    reply = told.respond(query(dns_messages.build_name(name), kind))
    number, flags, questions, answers, *_ = struct.unpack_from("!HHHHHH", reply)
    assert (number, questions) == (0x1234, 1)
    assert answers in {0, 1}
    start = 12 + len(dns_messages.build_name(name)) + 4 + 12
    return flags & 15, reply[start:] if answers else None


def denied(told: Names) -> list[tuple[str, str]]:
    return [(row.kind, row.destination) for row in told.check.denials.rows()]


def test_an_allowed_name_has_one_address_for_the_whole_run():
    told = names("api.example.com", "*.example.org:8443")
    first = ask(told, "api.example.com")
    second = ask(told, "a.b.example.org")
    assert first == (dns_messages.NOERROR, socket.inet_aton("192.31.196.1"))
    assert second == (dns_messages.NOERROR, socket.inet_aton("192.31.196.2"))
    assert ask(told, "API.example.com") == first
    assert told.destination(first[1], 443) == Destination(host="api.example.com", port=443)
    assert told.destination(second[1], 8443) == Destination(host="a.b.example.org", port=8443)
    other = socket.inet_aton("192.31.196.3")
    assert told.destination(other, 1) == Destination(host="192.31.196.3", port=1, address=other)
    assert denied(told) == []


@pytest.mark.parametrize(
    "kind", [dns_messages.AAAA, dns_messages.HTTPS, dns_messages.SVCB, 15, 16, 33, 255 + 2]
)
def test_an_allowed_name_has_no_other_records(kind):
    told = names("api.example.com")
    assert ask(told, "api.example.com", kind) == (dns_messages.NOERROR, None)
    assert denied(told) == []


@pytest.mark.parametrize(
    "kind", [dns_messages.A, dns_messages.AAAA, dns_messages.HTTPS, 16, dns_messages.PTR]
)
@pytest.mark.parametrize("name", ["evilexample.com", "example.com", "secret.attacker.net", "com"])
def test_names_outside_of_the_allowlist_do_not_exist(name, kind):
    told = names("*.example.com")
    assert ask(told, name, kind) == (dns_messages.NXDOMAIN, None)
    assert denied(told) == [("name", name)]


def test_with_an_empty_allowlist_no_name_exists():
    assert ask(names(), "example.com") == (dns_messages.NXDOMAIN, None)


@pytest.mark.parametrize(
    "labels",
    [
        [b"a\0", b"example", b"com"],
        [b"a.b", b"example", b"com"],
        [b"\xff", b"example", b"com"],
        [b"", b""],
    ],
)
def test_invalid_names_do_not_exist(labels):
    told = names("*.example.com")
    reply = told.respond(query(wire(labels) if labels[0] else b"\0"))
    assert reply[3] & 15 == dns_messages.NXDOMAIN


def test_reverse_lookups_find_synthetic_addresses_only():
    told = names("api.example.com")
    assert ask(told, "1.196.31.192.in-addr.arpa", dns_messages.PTR) == (dns_messages.NXDOMAIN, None)
    ask(told, "api.example.com")
    assert ask(told, "1.196.31.192.in-addr.arpa", dns_messages.PTR) == (
        dns_messages.NOERROR,
        dns_messages.build_name("api.example.com"),
    )
    assert ask(told, "8.8.8.8.in-addr.arpa", dns_messages.PTR) == (dns_messages.NXDOMAIN, None)


def test_localhost_is_the_targets_loopback():
    told = names()
    assert ask(told, "localhost") == (dns_messages.NOERROR, socket.inet_aton("127.0.0.1"))
    assert ask(told, "x.localhost", dns_messages.AAAA) == (
        dns_messages.NOERROR,
        socket.inet_pton(socket.AF_INET6, "::1"),
    )
    assert ask(told, "evillocalhost") == (dns_messages.NXDOMAIN, None)


def test_the_number_of_names_is_limited():
    told = names("*.example.com")
    for number in range(4096):
        assert ask(told, f"n{number}.example.com")[0] == dns_messages.NOERROR
    assert ask(told, "more.example.com") == (dns_messages.SERVFAIL, None)
    assert ask(told, "n7.example.com") == (dns_messages.NOERROR, socket.inet_aton("192.31.196.8"))
    assert denied(told) == [("limit", "more than 4096 names")]


def test_servers_that_connect_only_to_public_addresses_accept_the_names():
    """Look up 509 names, for each of which corral invents an address. Python must count the first
    508 addresses as public, because some servers connect only to public addresses. Further
    addresses are from a range that is reserved for benchmarking.
    """
    told = names("*.example.com")
    found = [ask(told, f"n{number}.example.com")[1] for number in range(509)]
    assert len(set(found)) == 509
    public = [ipaddress.ip_address(address).is_global for address in found]
    assert public == [True] * 508 + [False]
    assert socket.inet_ntoa(found[-1]) == "198.18.0.1"


@pytest.mark.parametrize("name", ["_dmarc.example.com", "a_b.test", "2130706433", ""])
def test_no_flag_is_suggested_for_an_invalid_name(name):
    told = names("api.example.com")
    assert ask(told, name)[0] == dns_messages.NXDOMAIN
    assert [row.allow for row in told.check.denials.rows()] == [""]
    ask(told, "other.test")  # Sanity check: a flag is suggested for a valid name
    assert told.check.denials.rows()[1].allow == "--allow-net other.test"


def test_many_denied_names_are_counted_and_not_kept():
    told = names()
    for number in range(5000):
        ask(told, f"n{number}.example.com")
    assert len(told.check.denials.rows()) == MAX_DENIALS
    assert told.check.denials.lost == 5000 - MAX_DENIALS


def test_unknown_edns_versions_get_an_error():
    told = names("api.example.com")
    future = OPT[:5] + struct.pack("!IH", 1 << 16, 0)
    reply = told.respond(query(NAME, counts=(1, 0, 0, 1), tail=future))
    assert struct.unpack_from("!HHHHHH", reply)[3] == 0
    assert reply.endswith(
        struct.pack("!BHHIH", 0, dns_messages.OPT, dns_messages.PAYLOAD, 1 << 24, 0)
    )


def test_responses_are_not_answered():
    """Send a response instead of a query. If corral answered responses, two servers could answer
    each other endlessly.
    """
    assert names("api.example.com").respond(query(NAME, flags=0x8180)) is None


@given(st.binary(max_size=100))
def test_random_bytes_do_not_crash_the_resolver(data):
    reply = names("api.example.com").respond(data)
    assert reply is None or (reply[:2] == data[:2] and reply[2] & 0x80)
