"""Test how destinations are checked: each decision, and the denial that is recorded for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.denials.records import Denials
from corral.network.addresses import MAPPED, format_address, parse_address, parse_network
from corral.network.destinations import (
    Destination,
    DestinationCheck,
    address_destination,
    check_from_policy,
)
from corral.network.host_proxy import proxy_from_environment
from corral.network.rules import parse_rules
from corral.network.tls_hello import Hello
from flags import entry

ADDRESS = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
POLICY = ("api.example", "*.wild.example:8443", "10.0.0.0/8:22", "0.0.0.0/0:80", "[fd00::/8]:1-9")


def check(*allow, **options):
    options = {"host_addresses": (), **options}
    return DestinationCheck(parse_rules(allow or POLICY), Denials(), **options)


def to(host, port):
    """Return the destination for a host, as the gateway or a proxy would make it. The host is an
    address or a name.
    """
    try:
        return address_destination(parse_address(host), port)
    except ValueError:
        return Destination(host=host, port=port)


def rows(checked):
    return [
        (row.kind, row.destination, entry(row.allow), row.why) for row in checked.denials.rows()
    ]


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example", 443), ("api.example", 80), ("a.wild.example", 8443), ("10.1.2.3", 22), ("8.8.8.8", 80),
        ("::ffff:10.1.2.3", 22), ("fd00::1", 9),
    ],
)  # fmt: skip
def test_an_allowed_destination_records_nothing(host, port):
    checked = check()
    assert checked.allows(to(host, port))
    assert rows(checked) == []


@pytest.mark.parametrize(
    ("host", "port", "kind", "destination", "allow", "why"),
    [
        ("evil.example", 443, "name", "evil.example:443", "evil.example:443", ""),
        ("wild.example", 8443, "name", "wild.example:8443", "wild.example:8443", ""),
        ("api.example", 22, "port", "api.example:22", "api.example:22", ""),
        ("a.wild.example", 443, "port", "a.wild.example:443", "a.wild.example:443", ""),
        ("11.0.0.1", 22, "address", "11.0.0.1:22", "11.0.0.1:22", ""),
        ("10.0.0.1", 23, "address", "10.0.0.1:23", "10.0.0.1:23", ""),
        ("::1", 80, "address", "[::1]:80", "[::1]:80", ""),
        ("::ffff:11.0.0.1", 22, "address", "11.0.0.1:22", "11.0.0.1:22", ""),
        ("224.0.0.1", 22, "address", "224.0.0.1:22", "", ""),  # no flag allows multicast
        ("::ffff:224.0.0.1", 22, "address", "224.0.0.1:22", "", ""),
        ("198.18.0.7", 80, "address", "198.18.0.7:80", "", "no name has this address"),
        ("::ffff:198.18.0.7", 80, "address", "198.18.0.7:80", "", "no name has this address"),
    ],
)
def test_a_denial_names_the_flag_that_allows_it(host, port, kind, destination, allow, why):
    checked = check()
    assert not checked.allows(to(host, port))
    assert rows(checked) == [(kind, destination, allow, why)]
    if allow:
        assert check(*POLICY, allow).allows(to(host, port))


@given(ADDRESS, st.integers(1, 65535))
def test_all_spellings_of_an_address_are_one_destination(address, port):
    made = address_destination(address, port)
    assert parse_address(made.host) == made.address
    if len(address) == 4:
        assert address_destination(MAPPED + address, port) == made


HELLO = [
    (Hello(state="incomplete"), None, []),
    (Hello(state="not TLS"), True, []),
    (Hello(state="no name"), True, []),
    (Hello(state="name", name="api.example"), True, []),
    (Hello(state="name", name="evil.example"), False, [("evil.example", "evil.example:443")]),
    (Hello(state="name", name="a.wild.example"), False, [("a.wild.example", "a.wild.example:443")]),
    (Hello(state="name", name="not_a_name"), False, [("not_a_name", "")]),
    (Hello(state="name", name="10.0.0.1"), False, [("10.0.0.1", "")]),
    (Hello(state="malformed"), False, [("something that cannot be read", "")]),
]


@pytest.mark.parametrize(("hello", "allowed", "denied"), HELLO)
def test_a_hello_must_name_an_allowed_server(hello, allowed, denied):
    checked = check()
    assert checked.allows_hello(hello, to("api.example", 443)) is allowed
    assert rows(checked) == [
        ("sni", wanted, allow, "connected to api.example") for wanted, allow in denied
    ]


def test_a_hello_is_needed_on_tls_ports():
    assert check().needs_hello(to("api.example", 443))
    assert not check().needs_hello(to("api.example", 80))
    assert check(tls_ports=frozenset({8443})).needs_hello(to("a.wild.example", 8443))


@pytest.mark.parametrize(
    ("host", "port", "found", "good", "denied"),
    [
        ("api.example", 443, ["8.8.8.8", "2606:4700::1"], ["8.8.8.8", "2606:4700::1"], []),
        ("api.example", 443, ["10.0.0.1", "8.8.8.8"], ["8.8.8.8"],
         [("api.example (10.0.0.1:443)", "10.0.0.1:443", "private")]),
        ("api.example", 443, ["::ffff:10.0.0.1"], [],
         [("api.example (10.0.0.1:443)", "10.0.0.1:443", "private")]),
        ("api.example", 443, ["64:ff9b::127.0.0.1"], [],
         [("api.example ([64:ff9b::7f00:1]:443)", "127.0.0.1:443", "it contains an IPv4 address: loopback")]),
        ("api.example", 443, ["0.0.0.0"], [], [("api.example (0.0.0.0:443)", "", "unspecified")]),
        ("api.example", 443, ["169.254.169.254"], [],
         [("api.example (169.254.169.254:443)", "169.254.169.254:443", "metadata")]),
        ("api.example", 443, ["9.9.9.9"], [], [("api.example (9.9.9.9:443)", "9.9.9.9:443", "the host's own address")]),
        ("api.example", 443, ["172.16.0.9"], ["172.16.0.9"], []),  # the user's config admits it
        ("api.example", 22, ["10.9.9.9"], ["10.9.9.9"], []),  # the policy allows it at this port
        ("10.1.2.3", 22, ["10.1.2.3"], ["10.1.2.3"], []),
        ("127.0.0.1", 80, ["127.0.0.1"], [], [("127.0.0.1:80", "127.0.0.1:80", "loopback")]),  # the policy's 0.0.0.0/0 means only the internet
    ],
)  # fmt: skip
def test_the_guard_checks_every_address(host, port, found, good, denied):
    checked = check(
        admitted=[parse_network("172.16.0.0/12")], host_addresses={parse_address("9.9.9.9")}
    )
    dialled = checked.filter_addresses(to(host, port), [parse_address(text) for text in found])
    assert [format_address(address) for address in dialled] == good
    assert rows(checked) == [("guard", *row) for row in denied]


@given(st.lists(ADDRESS, max_size=8), st.sampled_from(["api.example", "8.8.8.8"]))
def test_only_addresses_from_the_lookup_are_connected_and_refused_ones_are_recorded(found, host):
    checked = check()
    dialled = checked.filter_addresses(to(host, 443), found)
    assert set(dialled) <= {address_destination(address, 443).address for address in found}
    kinds = {row.kind for row in checked.denials.rows()}
    assert kinds <= ({"guard"} if found else {"unreachable"})
    assert bool(kinds) == (len(dialled) < len(found) or not found)


def test_the_hosts_own_addresses_are_looked_up_by_default():
    checked = DestinationCheck(
        parse_rules(["api.example"]), Denials(), admitted=[parse_network("127.0.0.0/31")]
    )
    assert checked.filter_addresses(to("api.example", 443), [parse_address("127.0.0.1")])
    assert not checked.filter_addresses(to("api.example", 443), [parse_address("127.0.0.2")])


def test_the_hosts_proxy_is_used_as_programs_of_the_host_use_it():
    environment = {
        "https_proxy": "http://proxy.example:3128",
        "no_proxy": "wild.example,10.0.0.0/8",
    }
    checked = check(proxy=proxy_from_environment(environment))
    for host, used in {
        "api.example": True,
        "a.wild.example": False,
        "10.1.2.3": False,
        "::ffff:10.1.2.3": False,
        "127.0.0.1": False,
        "8.8.8.8": True,
    }.items():
        assert (checked.proxy_for(to(host, 443)) is not None) is used, host
    assert check().proxy_for(to("api.example", 443)) is None


def test_a_destination_check_applies_the_exceptions_and_the_proxy_of_the_host():
    denials = Denials()
    made = check_from_policy(
        ["api.example"], ["10.0.0.0/8"], {"HTTPS_PROXY": "http://proxy.example"}, denials
    )
    assert made.denials is denials
    assert made.allows(to("api.example", 443))
    assert made.filter_addresses(to("api.example", 443), [parse_address("10.1.2.3")])
    assert made.proxy_for(to("api.example", 443)).host == "proxy.example"
    assert check_from_policy([], [], {}, None).proxy_for(to("api.example", 443)) is None
    with pytest.raises(ValueError):
        check_from_policy(["no destination"], [], {}, None)
