"""Test that an allowlist allows exactly its entries."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network import rules
from corral.network.addresses import parse_address
from corral.network.rules import (
    SYNTHETIC,
    describe_entry,
    is_host_name,
    parse_entry,
    parse_rules,
)

LABELS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
NAMES = st.lists(LABELS, min_size=2, max_size=5).map(".".join).filter(is_host_name)
PORTS = st.integers(1, 65535)


def test_an_empty_list_allows_nothing():
    none = parse_rules([])
    assert none.allows_name("example.com", 443) is None
    assert none.allows_address(parse_address("8.8.8.8"), 443) is None
    assert none.ports == frozenset()


def test_a_name_without_a_port_allows_80_and_443():
    found = parse_rules(["example.com"])
    assert str(found.allows_name("example.com", 443)) == "example.com"
    assert found.allows_name("example.com", 80)
    assert found.allows_name("example.com", 8080) is None
    assert found.ports == {80, 443}


def test_a_description_names_the_ports():
    texts = ("example.com", "*.example.com", "example.com:443", "10.0.0.0/8", "[fd00::1]:1-9")
    assert [describe_entry(text) for text in texts] == [
        "example.com on ports 80 and 443",
        "*.example.com on ports 80 and 443",
        "example.com:443",
        "10.0.0.0/8 on ports 80 and 443",
        "[fd00::1]:1-9",
    ]


def test_names_ignore_case():
    assert parse_rules(["API.Example.com"]).allows_name("api.EXAMPLE.com", 443)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a.example.com", True),
        ("a.b.c.example.com", True),
        ("example.com", False),
        ("evilexample.com", False),
        ("xexample.com", False),
        ("example.com.evil.org", False),
        ("a.example.com.", False),
        (".example.com", False),
        ("..example.com", False),
        ("*.example.com", False),
        ("a\0.example.com", False),
        ("a .example.com", False),
        ("a\\.example.com", False),
        ("ä.example.com", False),
        ("a\N{FULLWIDTH FULL STOP}example.com", False),
        ("a.example\N{KELVIN SIGN}.com", False),
        ("xn--bcher-kva.example.com", True),
        (".".join(["a"] * 256) + ".example.com", False),
        ("a" * 64 + ".example.com", False),
        ("", False),
    ],
)
def test_a_wildcard_matches_names_below_it(name, allowed):
    assert (parse_rules(["*.example.com"]).allows_name(name, 443) is not None) is allowed


def test_a_kelvin_sign_is_not_a_k():
    """Check that a name with a Kelvin sign is refused. `str.lower` would turn the sign into a k, so
    corral must not call it before the check.
    """
    assert parse_rules(["k.example"]).allows_name("\N{KELVIN SIGN}.example", 443) is None


@given(NAMES, NAMES, PORTS)
def test_a_name_does_not_match_other_names(allowed, asked, port):
    found = parse_rules([f"{allowed}:{port}"]).allows_name(asked, port)
    assert (found is not None) == (asked == allowed)


@given(NAMES, NAMES)
def test_a_wildcard_matches_whole_labels(base, asked):
    found = parse_rules([f"*.{base}"]).allows_name(asked, 443)
    assert (found is not None) == asked.endswith(f".{base}")
    assert (
        parse_rules([f"*.{base}"]).allows_name(f"{asked}.{base}", 443) is not None
        or len(asked + base) > 252
    )


@given(st.text(max_size=40))
def test_only_valid_names_match(text):
    found = parse_rules(["*.example.com"]).allows_name(text + ".example.com", 443)
    labels = text.split(".")
    plain = all(
        label
        and set(label) <= set(string.ascii_letters + string.digits + "-")
        and not label.startswith("-")
        and not label.endswith("-")
        for label in labels
    )
    assert (found is not None) == plain


def test_port_ranges_and_several_entries_for_a_name_are_combined():
    found = parse_rules(["a.example:1000-1002", "a.example:22", "*.a.example:7"])
    allowed = [port for port in range(1, 2000) if found.allows_name("a.example", port)]
    assert allowed == [22, 1000, 1001, 1002]
    assert parse_rules(["a.b.example:22", "*.b.example:7"]).allows_name("a.b.example", 7)


def test_addresses_and_networks_match():
    found = parse_rules(["10.0.0.5:5432", "192.0.2.0/24", "[2001:db8::/32]:443", "::ffff:10.9.0.1"])
    assert str(found.allows_address(parse_address("10.0.0.5"), 5432)) == "10.0.0.5:5432"
    assert found.allows_address(parse_address("10.0.0.5"), 443) is None
    assert found.allows_address(parse_address("10.0.0.6"), 5432) is None
    assert found.allows_address(parse_address("192.0.2.255"), 80)
    assert found.allows_address(parse_address("192.0.3.0"), 80) is None
    assert found.allows_address(parse_address("2001:db8::1"), 443)
    assert found.allows_address(parse_address("2001:db9::1"), 443) is None
    # A mapped IPv6 address matches like its IPv4 address. A rule for an address does not match a
    # name with the same text.
    assert found.allows_address(parse_address("::ffff:10.0.0.5"), 5432)
    assert found.allows_address(parse_address("10.9.0.1"), 443)
    assert found.allows_name("10.0.0.5", 5432) is None


@given(st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**32 - 1))
def test_networks_agree_with_the_standard_library(number, bits, asked):
    import ipaddress

    network = ipaddress.ip_network((number, bits), strict=False)
    address = ipaddress.ip_address(asked)
    kept = map(ipaddress.ip_network, map(str, SYNTHETIC))
    inside = address in network and not any(address in one for one in kept)
    found = parse_rules([f"{network}:1"]).allows_address(address.packed, 1)
    assert (found is not None) == inside


@pytest.mark.parametrize("text", ["192.31.196.7", "192.175.48.7", "198.18.0.7"])
def test_a_synthetic_address_is_never_allowed(text):
    found = parse_rules(["0.0.0.0/0", text])
    assert found.allows_address(parse_address(text), 443) is None
    assert found.allows_address(parse_address("8.8.8.8"), 443)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a b", "a\0.example", "example.com.", ".example.com", "a..b", "*", "*.com", "a.*.com", "*a.example.com",
        "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "127.0.0.01", "127.0.0.0x1", "1.2.3.4.5", "256.0.0.1",
        "bücher.example", "http://example.com", "user@example.com", "example.com/path", "example.com:", "example.com:0",
        "example.com:65536", "example.com:080", "example.com:9-1", "-a.example", "a-.example", "a_b.example",
        "[::1", "::1]:80", "[127.0.0.1]:80", "fe80::1%eth0", "10.0.0.1/8", "10.0.0.0/33", "2001:db8::/129", "1:2:3",
        ".".join(["a"] * 256), "a" * 64 + ".example", "a.example:\N{ARABIC-INDIC DIGIT EIGHT}",
    ],
)  # fmt: skip
def test_invalid_destinations_are_refused(text):
    with pytest.raises(ValueError):
        parse_rules([text])


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("EXAMPLE.com", "example.com"),
        ("example.com:443", "example.com:443"),
        ("[2001:DB8:0::1]:443", "[2001:db8::1]:443"),
        ("2001:db8:0:0::/64", "[2001:db8::/64]"),
        ("10.0.0.0/8:80-90", "10.0.0.0/8:80-90"),
        ("localhost:1", "localhost:1"),
    ],
)
def test_entries_are_written_in_one_spelling(text, normal):
    assert str(parse_entry(text)) == normal
    assert str(parse_entry(normal)) == normal


@given(st.text(max_size=30) | NAMES | st.from_regex(r"[a-z0-9.:/*\[\]-]{1,30}", fullmatch=True))
def test_parsing_any_text_is_stable_or_raises_valueerror(text):
    try:
        item = parse_entry(text)
    except ValueError:
        return
    assert parse_entry(str(item)) == item


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://api.github.com/v1", "api.github.com"),
        ("http://Localhost:3000", "localhost:3000"),
        ("api.github.com/v1", "api.github.com"),
        ("me@api.github.com", "api.github.com"),
    ],
)
def test_the_error_for_a_url_names_its_host(text, host):
    with pytest.raises(ValueError, match=f"is not a host: write {host}$"):
        parse_entry(text)
    assert str(parse_entry(host)) == host


@pytest.mark.parametrize("text", ["10.0.0.0/8", "fd00::/8", "abc::/16"])
def test_a_network_is_not_taken_for_a_url(text):
    assert parse_entry(text).host == text


@pytest.mark.parametrize("text", ["https://", "//", "@", "http://[::1]:80/x", "10.0.0.1/x"])
def test_the_error_for_a_url_without_a_host_name_proposes_none(text):
    with pytest.raises(ValueError) as error:
        parse_entry(text)
    assert "write" not in str(error.value)


def test_more_than_64_ports_are_refused():
    assert len(parse_rules(["a.example:1-64"]).ports) == rules.MAX_PORTS
    with pytest.raises(ValueError, match="more than 64"):
        parse_rules(["a.example:1-64", "b.example:65"])
    with pytest.raises(ValueError, match="more than 64"):
        parse_rules(["a.example:1-65535"])


def test_a_rule_for_a_network_counts_only_for_the_ports_that_it_names():
    found = parse_rules(["10.0.0.5:5432", "10.1.0.0/16:1-9"])
    assert [str(network) for network in found.named_networks(5432)] == ["10.0.0.5"]
    assert [str(network) for network in found.named_networks(5)] == ["10.1.0.0/16"]
    assert found.named_networks(443) == ()
