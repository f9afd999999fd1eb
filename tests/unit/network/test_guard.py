"""Test that addresses are parsed, formatted and refused correctly. The results are compared with
those of the standard library, except where the standard library is wrong.
"""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.addresses import format_address, parse_address, parse_network, unmap
from corral.network.guard import (
    embedded_v4,
    find_refusal,
    guarded_networks,
    is_admissible,
    is_metadata_service,
)

V4 = st.binary(min_size=4, max_size=4)
V6 = st.binary(min_size=16, max_size=16) | st.lists(
    st.sampled_from([b"\0\0", b"\0\1", b"\xff\xff", b"\x20\x01"]), min_size=8, max_size=8
).map(b"".join)


# The tests below parse and format addresses.


@given(V4 | V6)
def test_addresses_are_formatted_as_the_standard_library_does(address):
    text = format_address(address)
    assert parse_address(text) == address
    assert ipaddress.ip_address(text).packed == address
    # For mapped IPv6 addresses, Python's result depends on its version.
    if not address.startswith(bytes(10) + b"\xff\xff"):
        assert text == str(ipaddress.ip_address(address))


@given(
    st.from_regex(r"[0-9a-fA-F:.]{0,40}", fullmatch=True)
    | st.from_regex(r"([0-9a-f]{0,4}:){1,8}[0-9a-f]{0,4}", fullmatch=True)
    | st.from_regex(r"([0-9]{1,3}\.){3}[0-9]{1,3}", fullmatch=True)
    | st.from_regex(r"([0-9a-f]{0,4}:){1,7}([0-9]{1,3}\.){3}[0-9]{1,3}", fullmatch=True)
    | st.text(max_size=20)
)
def test_addresses_are_parsed_as_the_standard_library_does(text):
    try:
        expected = ipaddress.ip_address(text if "%" not in text else "").packed
    except ValueError:
        expected = None
    try:
        found = parse_address(text)
    except ValueError:
        found = None
    assert found == expected


@given(V6)
def test_addresses_from_the_c_library_are_parsed(address):
    assert parse_address(socket.inet_ntop(socket.AF_INET6, address)) == address


@given(V4, st.integers(0, 32), V4)
def test_networks_are_parsed(base, bits, asked):
    expected = ipaddress.ip_network((base, bits), strict=False)
    found = parse_network(str(expected))
    assert (asked in found) == (ipaddress.ip_address(asked) in expected)
    assert parse_network(str(found)) == found


# The tests below check which addresses are refused.


def why_refused(address, **options):
    found = find_refusal(address, **options)
    return None if found is None else found.why


REFUSED = {
    "127.0.0.1": "loopback", "127.255.255.254": "loopback", "0.0.0.0": "unspecified", "0.1.2.3": "unspecified",
    "10.0.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.0.1": "private",
    "100.64.0.1": "CGNAT", "100.127.255.255": "CGNAT", "169.254.0.1": "link-local", "169.254.169.254": "metadata",
    "168.63.129.16": "metadata", "100.100.100.200": "metadata", "192.0.0.192": "metadata", "192.0.0.1": "reserved",
    "192.0.2.1": "documentation", "198.51.100.1": "documentation", "203.0.113.1": "documentation",
    "198.18.0.1": "benchmarking", "198.19.255.255": "benchmarking", "224.0.0.1": "multicast",
    "239.255.255.255": "multicast", "240.0.0.1": "reserved", "255.255.255.255": "broadcast", "192.88.99.1": "6to4",
    "::": "unspecified", "::1": "loopback", "fe80::1": "link-local", "fec0::1": "private", "fc00::1": "private",
    "fd12::1": "private", "fd00:ec2::254": "metadata", "fd20:ce::254": "metadata", "ff02::1": "multicast",
    "2001:db8::1": "documentation", "3fff::1": "documentation", "2001:2::1": "benchmarking", "100::1": "discarded",
    "4000::1": "reserved", "1::1": "reserved", "8000::1": "reserved", "2001:10::1": "reserved", "f000::1": "reserved",
    "::127.0.0.1": "compatible", "::8.8.8.8": "compatible", "64:ff9b:1::a00:1": "NAT64",
    "::ffff:127.0.0.1": "contains an IPv4 address: loopback", "::ffff:169.254.169.254": "metadata",
    "64:ff9b::127.0.0.1": "loopback", "64:ff9b::10.0.0.1": "private", "2002:7f00:1::": "loopback",
    "2002:a00:1::1": "private", "2001:0:7f00:1::": "loopback", "2001:0:808:808::80ff:fffe": "loopback",
    "2a00::5efe:10.0.0.1": "private", "2a00::200:5efe:192.168.0.1": "private",
}  # fmt: skip
PUBLIC = [
    "8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "11.0.0.0", "9.255.255.255",
    "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "192.0.1.0", "198.17.255.255", "198.20.0.0",
    "223.255.255.255", "168.63.129.17", "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
    "2002:808:808::1", "2001:0:808:808::f7f7:f7f7", "2001:200::1", "3ffe::1", "2a00::5efe:8.8.8.8",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_guarded_addresses_are_refused(text):
    why = why_refused(parse_address(text))
    assert why is not None
    assert REFUSED[text] in why


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_accepted(text):
    assert why_refused(parse_address(text)) is None


def test_addresses_that_the_standard_library_calls_global_are_refused():
    """Check that at least one refused address, 64:ff9b::127.0.0.1, is global according to the
    standard library. So the guard cannot rely on the standard library.
    """
    taken = [text for text in REFUSED if ipaddress.ip_address(text).is_global]
    assert "64:ff9b::127.0.0.1" in taken


@given(V4)
def test_addresses_that_the_standard_library_calls_private_are_refused(address):
    if not ipaddress.ip_address(address).is_global or ipaddress.ip_address(address).is_multicast:
        assert why_refused(address) is not None


@given(V4)
def test_an_address_embedded_in_ipv6_is_judged_like_the_address(address):
    inverted = bytes(byte ^ 255 for byte in address)
    wrapped = [
        bytes(10) + b"\xff\xff" + address,
        bytes.fromhex("0064ff9b") + bytes(8) + address,
        b"\x20\x02" + address + bytes(10),
        bytes.fromhex("20010000") + b"\x08\x08\x08\x08" + bytes(4) + inverted,
        bytes.fromhex("20010000") + address + bytes(4) + b"\xf7\xf7\xf7\xf7",
        bytes.fromhex("2a00000000000000") + b"\0\0\x5e\xfe" + address,
    ]
    for form in wrapped:
        assert address in list(embedded_v4(form))
        assert (why_refused(form) is None) == (why_refused(address) is None)


def test_a_network_admits_addresses_of_its_guarded_network():
    private = parse_address("10.1.2.3")
    for text in ("10.1.2.3", "10.1.0.0/16", "10.0.0.0/8"):
        assert why_refused(private, admitted=[parse_network(text)]) is None
    for text in ("0.0.0.0/0", "8.0.0.0/6", "10.1.2.4", "10.2.0.0/16", "::/0"):
        assert why_refused(private, admitted=[parse_network(text)]) == "private"


def test_metadata_addresses_are_admitted_only_one_by_one():
    metadata = parse_address("169.254.169.254")
    assert why_refused(metadata, admitted=[parse_network("169.254.0.0/16")]) == "metadata"
    assert (
        why_refused(parse_address("169.254.1.1"), admitted=[parse_network("169.254.0.0/16")])
        is None
    )
    assert why_refused(metadata, admitted=[parse_network("169.254.169.254")]) is None


def test_some_addresses_are_never_admitted():
    for text in ("0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "ff02::1"):
        assert why_refused(parse_address(text), admitted=[parse_network(text)]) is not None
    for text in ("127.0.0.1", "::1", "198.18.0.1", "fd00::1", "64:ff9b:1::10.0.0.1"):
        admitted = [parse_network(text), parse_network("10.0.0.1")]
        assert why_refused(parse_address(text), admitted=admitted) is None


def test_an_embedded_address_is_admitted_like_the_address_itself():
    mapped = parse_address("::ffff:10.0.0.1")
    assert why_refused(mapped, admitted=[parse_network("10.0.0.0/8")]) is None
    # Admitting only the outer address is not enough, because the guard also checks the embedded
    # one.
    assert (
        why_refused(parse_address("64:ff9b::10.0.0.1"), admitted=[parse_network("64:ff9b::/96")])
        is not None
    )


def test_the_hosts_own_addresses_are_refused():
    own = {parse_address("8.8.8.8"), parse_address("10.0.0.1"), parse_address("127.0.0.1")}
    assert why_refused(parse_address("8.8.8.8"), host_addresses=own) == "the host's own address"
    assert (
        why_refused(parse_address("64:ff9b::8.8.8.8"), host_addresses=own)
        == "it contains an IPv4 address: the host's own address"
    )
    assert why_refused(parse_address("8.8.4.4"), host_addresses=own) is None
    assert (
        why_refused(
            parse_address("8.8.8.8"), host_addresses=own, admitted=[parse_network("8.0.0.0/8")]
        )
        == "the host's own address"
    )
    assert (
        why_refused(
            parse_address("8.8.8.8"), host_addresses=own, admitted=[parse_network("8.8.8.8")]
        )
        is None
    )
    assert (
        why_refused(
            parse_address("10.0.0.1"), host_addresses=own, admitted=[parse_network("10.0.0.0/8")]
        )
        == "the host's own address"
    )
    assert (
        why_refused(
            parse_address("127.0.0.1"), host_addresses=own, admitted=[parse_network("127.0.0.0/8")]
        )
        is None
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10.0.0.1", ["10.0.0.1"]),
        ("64:ff9b::10.0.0.1", ["10.0.0.1"]),
        ("64:ff9b:1::10.0.0.1", ["64:ff9b:1::a00:1", "10.0.0.1"]),
        ("::1", ["::1"]),
        ("8.8.8.8", []),
        ("0.0.0.0", None),
        ("2002:e000:1::", None),
    ],
)
def test_an_address_is_accepted_once_all_suggested_remedies_are_admitted(text, named):
    """Try an address. Whenever corral refuses it and suggests an address to admit, admit that
    address and try again.
    """
    admitted = []
    while (
        found := find_refusal(parse_address(text), admitted=admitted)
    ) and found.remedy is not None:
        admitted.append(parse_network(format_address(found.remedy)))
    assert (why_refused(parse_address(text), admitted=admitted) is None) == (named is not None)
    assert [str(item) for item in admitted] == (named or [])


def test_addresses_that_can_be_admitted_are_recognized():
    for text, said in (("8.8.8.8", True), ("10.0.0.1", True), ("224.0.0.1", False), ("::", False)):
        assert is_admissible(parse_address(text)) == said


def test_the_table_of_guarded_networks_is_sorted_without_duplicates():
    lengths = [row.network.bits for row in guarded_networks()]
    assert lengths == sorted(lengths, reverse=True)
    assert len({row.network for row in guarded_networks()}) == len(guarded_networks())


@given(V4)
def test_a_mapped_address_is_connected_as_ipv4(address):
    assert unmap(bytes(10) + b"\xff\xff" + address) == address
    assert unmap(address) == address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("169.254.169.254", True),
        ("fd00:ec2::254", True),
        *((f"{prefix}a9fe:a9fe", True) for prefix in ("::ffff:", "::", "64:ff9b::", "fe80::5efe:")),
        ("2002:a9fe:a9fe::", True),
        ("64:ff9b:1:a9fe:a9:fe00::", True),
        ("169.254.1.1", False),
        ("2001:db8::1", False),
        ("93.184.216.34", False),
    ],
)
def test_a_metadata_service_is_recognized_in_every_form_of_its_address(text, expected):
    assert is_metadata_service(parse_address(text)) == expected
