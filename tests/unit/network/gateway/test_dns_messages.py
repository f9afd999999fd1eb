"""Test that the DNS parser accepts only valid queries, and that it rejects all other bytes without
raising an error.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.gateway import dns_messages

LABELS = st.binary(min_size=1, max_size=63)


def wire(labels) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def query(
    name: bytes,
    kind: int = dns_messages.A,
    *,
    flags=0x0100,
    counts=(1, 0, 0, 0),
    space=dns_messages.IN,
    tail=b"",
) -> bytes:
    return (
        struct.pack("!HHHHHH", 0x1234, flags, *counts)
        + name
        + struct.pack("!HH", kind, space)
        + tail
    )


OPT = struct.pack("!BHHIH", 0, dns_messages.OPT, 1232, 0, 0)
NAME = wire([b"Api", b"example", b"com"])


def test_name_id_and_kind_of_a_query_are_read():
    found = dns_messages.parse_query(query(NAME))
    assert (found.id, found.name, found.kind, found.edns) == (
        0x1234,
        "api.example.com",
        dns_messages.A,
        None,
    )


def test_edns_options_are_read():
    cookie = struct.pack("!HH8s", 10, 8, b"c" * 8)
    opt = struct.pack("!BHHIH", 0, dns_messages.OPT, 4096, 1 << 16, len(cookie)) + cookie
    assert dns_messages.parse_query(query(NAME, counts=(1, 0, 0, 1), tail=OPT)).edns == 0
    assert dns_messages.parse_query(query(NAME, counts=(1, 0, 0, 1), tail=opt)).edns == 1


@given(st.lists(LABELS, max_size=4))
def test_different_labels_have_different_text(labels):
    found = dns_messages.parse_query(query(wire(labels))).name
    assert found.isascii()
    assert found.isprintable()
    plain = set(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
    expected = [
        "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in label.lower())
        for label in labels
    ]
    assert found == ".".join(expected)


def test_a_dot_inside_a_label_is_escaped():
    assert dns_messages.parse_query(query(wire([b"a.example", b"com"]))).name == "a\\046example.com"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", dns_messages.FORMERR),
        (b"\0" * 11, dns_messages.FORMERR),
        (query(NAME)[:-1], dns_messages.FORMERR),
        (query(NAME) + b"x", dns_messages.FORMERR),
        (query(NAME, counts=(0, 0, 0, 0)), dns_messages.FORMERR),
        (query(NAME, counts=(2, 0, 0, 0)), dns_messages.FORMERR),
        (query(NAME, counts=(1, 1, 0, 0)), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 1, 0)), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 0, 2), tail=OPT + OPT), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 0, 1)), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 0, 1), tail=OPT[:-1]), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 0, 1), tail=OPT[:9] + b"\xff\xff"), dns_messages.FORMERR),
        (query(NAME, counts=(1, 0, 0, 1), tail=b"\0\0\x10" + OPT[3:]), dns_messages.FORMERR),
        (query(b"\xc0\x0c"), dns_messages.FORMERR),  # a pointer to itself
        (query(b"\x01a\xc0\x0c"), dns_messages.FORMERR),  # a pointer to the name's own start
        (query(b"\x80abc"), dns_messages.FORMERR),
        (query(wire([b"a" * 63] * 4)), dns_messages.FORMERR),
        (query(wire([b"a"] * 256)), dns_messages.FORMERR),
        (query(b"\x3f" + b"a" * 20), dns_messages.FORMERR),
        (query(NAME, space=3), dns_messages.NOTIMP),
        (query(NAME, flags=0x2800), dns_messages.NOTIMP),
        (query(NAME) + bytes(5000), dns_messages.FORMERR),
    ],
)
def test_invalid_queries_are_refused(data, code):
    with pytest.raises(dns_messages.MalformedError) as caught:
        dns_messages.parse_query(data)
    assert caught.value.code == code


def test_the_longest_name_is_accepted():
    longest = [b"a" * 63, b"a" * 63, b"a" * 63, b"a" * 61]
    assert len(wire(longest)) == 255
    assert len(dns_messages.parse_query(query(wire(longest))).name) == 253
    with pytest.raises(dns_messages.MalformedError):
        dns_messages.parse_query(query(wire([*longest[:3], b"a" * 62])))


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda tail: query(NAME)[:20] + tail))
def test_random_bytes_do_not_crash_the_parser(data):
    try:
        found = dns_messages.parse_query(data)
    except dns_messages.MalformedError as error:
        reply = dns_messages.build_error(data, error.code)
        assert reply is None or (reply[:2] == data[:2] and len(reply) == 12)
    else:
        assert len(found.question) <= 259


def test_an_answer_repeats_the_question_in_its_own_case():
    """Check that the answer keeps the case of the name. Some resolvers send names in mixed case
    (0x20) and compare the case of the answer.
    """
    found = dns_messages.parse_query(query(NAME))
    reply = dns_messages.build_answer(
        found, dns_messages.NOERROR, [dns_messages.Answer(kind=dns_messages.A, data=b"\1\2\3\4")]
    )
    assert struct.unpack_from("!HHHHHH", reply) == (0x1234, 0x8180, 1, 1, 0, 0)
    assert reply[12 : 12 + len(NAME)] == NAME
    assert (
        reply[12 + len(NAME) + 4 :]
        == b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, dns_messages.TTL, 4) + b"\1\2\3\4"
    )


def test_the_answer_to_a_query_with_edns_has_an_edns_record():
    found = dns_messages.parse_query(query(NAME, counts=(1, 0, 0, 1), tail=OPT))
    assert dns_messages.build_answer(found, dns_messages.NXDOMAIN).endswith(
        struct.pack("!BHHIH", 0, dns_messages.OPT, dns_messages.PAYLOAD, 0, 0)
    )
    bad = dns_messages.build_answer(found, dns_messages.BADVERS)
    assert bad[3] & 15 == 0
    assert bad.endswith(
        struct.pack("!BHHIH", 0, dns_messages.OPT, dns_messages.PAYLOAD, 1 << 24, 0)
    )


def test_a_message_that_is_itself_a_response_is_not_answered():
    assert dns_messages.build_error(query(NAME, flags=0x8000), dns_messages.FORMERR) is None
    assert (
        dns_messages.build_error(query(NAME), dns_messages.FORMERR)[3] & 15 == dns_messages.FORMERR
    )


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_messages_on_a_stream_are_split(messages, cuts):
    stream = b"".join(map(dns_messages.frame_message, messages))
    framing, found, at = dns_messages.Framing(), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        found += framing.feed(stream[at : at + size])
        at += size
    assert found == messages
    assert framing.buffer == b""


def test_a_long_length_on_a_stream_is_refused():
    with pytest.raises(dns_messages.MalformedError):
        dns_messages.Framing().feed(b"\xff\xff")
