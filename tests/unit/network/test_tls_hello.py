"""Test how the host name is found in a ClientHello, using ClientHellos from the ssl module."""

import ssl
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.tls_hello import MAX_HELLO_BYTES, Hello, HelloReader

NAMES = (
    st.lists(st.text(string.ascii_lowercase, min_size=1, max_size=20), min_size=2, max_size=4).map(".".join)
)  # fmt: skip


def hello(
    name: str | None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    protocols: tuple[str, ...] = (),
) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def read(data: bytes) -> Hello:
    return HelloReader().feed(data)


def in_records(data: bytes, size: int) -> bytes:
    """Split a ClientHello into TLS records of `size` bytes."""
    message = data[5:]
    return b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (message[at : at + size] for at in range(0, len(message), size))
    )


def build(
    extensions: bytes | None,
    *,
    kind=1,
    version=b"\x03\x03",
    session=b"",
    suites=b"\x13\x01",
    methods=b"\0",
) -> bytes:
    body = (
        version
        + bytes(32)
        + bytes((len(session),))
        + session
        + len(suites).to_bytes(2, "big")
        + suites
    )
    body += bytes((len(methods),)) + methods
    if extensions is not None:
        body += len(extensions).to_bytes(2, "big") + extensions
    return record(bytes((kind,)) + len(body).to_bytes(3, "big") + body)


def record(content: bytes) -> bytes:
    return b"\x16\x03\x01" + len(content).to_bytes(2, "big") + content


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def sni(*names: bytes, kind: int = 0, tail: bytes = b"") -> bytes:
    entries = b"".join(bytes((kind,)) + len(name).to_bytes(2, "big") + name for name in names)
    return extension(0, len(entries).to_bytes(2, "big") + entries + tail)


@given(NAMES, st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]))
def test_the_name_that_ssl_sends_is_found(name, version):
    assert read(hello(name, version, ("h2", "http/1.1"))) == Hello(state="name", name=name)


def test_a_hello_without_a_name_is_accepted():
    assert read(hello(None)) == Hello(state="no name")
    assert read(build(None)) == Hello(state="no name")
    assert read(build(b"")) == Hello(state="no name")


@given(NAMES, st.integers(1, 600))
def test_a_truncated_hello_is_incomplete(name, at):
    data = hello(name)
    reader = HelloReader()
    assert reader.feed(data[: min(at, len(data) - 1)]).state == "incomplete"
    assert reader.feed(data[min(at, len(data) - 1) :]) == Hello(state="name", name=name)
    assert bytes(reader.data) == data


@given(NAMES, st.integers(1, 64))
def test_a_hello_in_many_records_is_read_byte_by_byte(name, size):
    data = in_records(hello(name), size)
    reader = HelloReader()
    verdicts = [reader.feed(data[at : at + 1]) for at in range(len(data))]
    assert {item.state for item in verdicts[:-1]} == {"incomplete"}
    assert verdicts[-1] == Hello(state="name", name=name)


def test_bytes_after_the_hello_do_not_matter():
    assert read(hello("a.example") + b"anything").name == "a.example"


def test_the_name_is_read_in_lower_case():
    assert read(build(sni(b"API.Example"))).name == "api.example"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\0", b"\x05\x01\x00", b"\x80\x00\x05"]
)
def test_other_protocols_are_not_tls(data):
    assert read(data).state == "not TLS"


def test_empty_input_is_incomplete():
    assert read(b"").state == "incomplete"


GOOD = sni(b"a.example")
BAD = {
    "another handshake message": build(GOOD, kind=2),
    "an alert first": b"\x15\x03\x01\x00\x02\x01\x00" + build(GOOD),
    "a change of cipher first": b"\x14\x03\x01\x00\x01\x01" + build(GOOD),
    "data first": b"\x17\x03\x01\x00\x01\x01" + build(GOOD),
    "another major version": b"\x16\x02" + build(GOOD)[2:],
    "another major version inside": build(GOOD, version=b"\x02\x03"),
    "an empty record": b"\x16\x03\x01\x00\x00" + build(GOOD),
    "a record that is too long": b"\x16\x03\x01\x40\x01" + bytes(10),
    "a hello that is too long": record(
        b"\x01" + (MAX_HELLO_BYTES + 1).to_bytes(3, "big") + bytes(10)
    ),
    "a long session": build(GOOD, session=bytes(33)),
    "odd suites": build(GOOD, suites=b"\x13\x01\x00"),
    "no suites": build(GOOD, suites=b""),
    "no compression methods": build(GOOD, methods=b""),
    "two extensions with names": build(GOOD + GOOD),
    "two of another extension": build(GOOD + extension(5, b"") * 2),
    "two names": build(sni(b"a.example", b"b.example")),
    "a name of another kind": build(sni(b"a.example", kind=1)),
    "no name in the extension": build(sni()),
    "an empty name": build(sni(b"")),
    "an empty extension": build(extension(0, b"")),
    "bytes after the names": build(sni(b"a.example", tail=b"x")),
    "a long name": build(sni(b"a" * 256)),
    "a name with NUL": build(sni(b"a.example\0.evil")),
    "a name that is not ASCII": build(sni("ä.example".encode())),
    "a truncated extension": build(GOOD[:-1]),
    "an SSL 2 hello": b"\x80\x2e\x01\x03\x01",
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_hellos_are_refused(what):
    assert read(BAD[what]).state == "malformed"


def test_the_unchanged_hello_is_valid():
    """Read the valid hello from which the malformed hellos are made. A malformed hello differs from
    this one in only one respect, so this difference must be the reason for its refusal.
    """
    assert read(build(GOOD)) == Hello(state="name", name="a.example")
    assert read(build(GOOD + extension(5, b""), session=bytes(32))).state == "name"
    assert read(build(sni(b"a" * 255))).state == "name"


def test_bytes_after_the_extensions_are_refused():
    content = build(GOOD)[9:] + b"x"
    assert read(record(b"\x01" + len(content).to_bytes(3, "big") + content)).state == "malformed"


def test_endless_records_are_refused():
    reader = HelloReader()
    reader.feed(record(b"\x01" + MAX_HELLO_BYTES.to_bytes(3, "big")))
    states = {reader.feed(record(b"\0") * 1000).state for _ in range(12)}
    assert "malformed" in states


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: build(GOOD)[:20] + tail))
def test_random_bytes_do_not_crash_the_reader(data):
    whole = read(data)
    reader = HelloReader()
    for at in range(len(data)):
        piece = reader.feed(data[at : at + 1])
        if piece.state != "incomplete":
            break
    else:
        piece = reader.feed(b"")
    # Feeding the bytes one at a time gives the same result.
    assert piece == whole
