"""Replay the fuzzers' corpus, and compare corral's parsers with independent parsers."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import dnslib
import h11
import pytest
import tomlkit
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.formats import toml
from corral.formats.positions import BrokenFileError
from corral.network.gateway import dns_messages
from corral.network.http_proxy import request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_fuzzers():
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "bench" / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


FUZZ = load_fuzzers()
SEEDS = [(name, path) for name in FUZZ.TARGETS for path in sorted((FUZZ.CORPUS / name).iterdir())]


@pytest.mark.parametrize(
    ("name", "path"), SEEDS, ids=[f"{name}/{path.name}" for name, path in SEEDS]
)
def test_parsers_accept_or_refuse_every_seed(name, path):
    FUZZ.TARGETS[name](path.read_bytes())


def test_every_parser_has_a_corpus():
    assert {path.name for path in FUZZ.CORPUS.iterdir()} == set(FUZZ.TARGETS)


# dnslib refuses labels that are not UTF-8, and random bytes seldom are. ASCII always is.
LABEL = st.binary(min_size=1, max_size=20).filter(bytes.isascii)


@settings(deadline=None)
@given(st.lists(LABEL, max_size=6), st.integers(0, 65535), st.integers(0, 65535))
def test_dnslib_reads_the_same_dns_question(labels, number, kind):
    header = dnslib.DNSHeader(id=number, q=1, rd=1)
    asked = dnslib.DNSQuestion(dnslib.DNSLabel(labels), kind)
    packed = dnslib.DNSRecord(header, questions=[asked]).pack()
    query = dns_messages.parse_query(packed)
    assert (query.id, query.kind) == (number, kind)
    assert (
        query.name.split(".") == [dns_messages.escape_label(label) for label in labels]
        or not labels
    )
    answer = dnslib.DNSRecord.parse(
        dns_messages.build_answer(query, 0, [dns_messages.Answer(kind=1, data=bytes(4))])
    )
    assert answer.header.id == number
    assert answer.q.qname.label == tuple(labels)
    assert str(answer.rr[0].rdata) == "0.0.0.0"


TOKENS = st.text("abcXYZ-_!", min_size=1, max_size=8)
VALUES = st.text("abc XYZ:/;=\t", max_size=20)


@settings(deadline=None)
@given(st.sampled_from(["GET", "POST"]), st.lists(st.tuples(TOKENS, VALUES), max_size=5))
@example("GET", [("Host", "other.example"), ("Connection", "X-Secret")])
def test_h11_reads_the_forwarded_request(method, headers):
    """Check that a request has exactly one Host header when corral's proxy forwards it, whatever
    headers the target has sent.
    """
    lines = [
        f"{method} http://a.example/x HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    found = request.parse_request("\r\n".join([*lines, "", ""]).encode())
    server = h11.Connection(h11.SERVER)
    server.receive_data(found.head)
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (method.encode(), b"/x")
    assert [value for name, value in event.headers if name == b"host"] == [b"a.example"]
    assert [value for name, value in event.headers if name == b"connection"] == [b"close"]
    assert server.trailing_data[0] == b""


KEYS = st.text("abcdef", min_size=1, max_size=5)
SCALARS = st.integers(-99, 99) | st.booleans() | st.text("ab\"\\é\n'#[]", max_size=6)
TABLES = st.recursive(
    st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | SCALARS, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(TABLES)
def test_tomlkit_reads_the_text_of_each_value_as_the_same_value(data):
    """Cut the text of each value out of a document that tomlkit wrote. tomlkit must parse this text
    as the same value.
    """
    text = tomlkit.dumps(data)
    try:
        root = toml.read(text)
    except BrokenFileError:
        pytest.fail(text)
    assert root.data == tomlkit.parse(text).unwrap() == data
    check_spans(text, root)


def check_spans(text, value):
    for below in [*(value.members or {}).values(), *(value.items or ())]:
        if below.start >= 0 and below.members is None and below.end > below.start:
            alone = tomlkit.parse(f"x = {text[below.start : below.end]}\n").unwrap()
            assert alone == {"x": below.data}
        check_spans(text, below)
