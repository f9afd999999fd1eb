"""Test how corral's proxy parses requests, including unusual and ambiguous ones."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from corral.network.http_proxy.request import MAX_HEAD_BYTES, RefusedError, parse_request
from corral.network.rules import is_host_name

LABEL = some.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12)
NAME = some.lists(LABEL, min_size=1, max_size=4).map(".".join).filter(is_host_name)
PORT = some.integers(1, 65535)
TOKEN = some.text("abcdefghijklmnopqrstuvwxyzABCDEFXYZ-0123456789", min_size=1, max_size=12)
VALUE = some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=40)
FIELDS = some.lists(some.tuples(TOKEN, VALUE), max_size=5)
OURS = {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "host", "te"}


def head(first, fields):
    lines = [first, *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join((*lines, "", "")).encode()


@given(NAME, PORT, some.binary(max_size=50))
def test_connect_names_the_destination_of_a_tunnel(host, port, rest):
    request = parse_request(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode() + rest)
    assert (request.destination.host, request.destination.port, request.tunnel) == (
        host,
        port,
        True,
    )
    assert (request.destination.address, request.head, request.rest) == (None, b"", rest)


@given(NAME, PORT, FIELDS, some.binary(max_size=50))
def test_the_destination_of_a_request_is_the_host_of_its_url(host, port, fields, rest):
    fields = [item for item in fields if item[0].lower() != "proxy-authorization"]
    fields += [("Host", "evil.test"), ("Proxy-Authorization", "Basic c2VjcmV0")]
    request = parse_request(head(f"GET http://{host}:{port}/a?b HTTP/1.1", fields) + rest)
    assert (request.destination.host, request.destination.port, request.tunnel, request.rest) == (
        host,
        port,
        False,
        rest,
    )
    first, *others = request.head.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert first == "GET /a?b HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in others]
    assert names.count("host") == 1
    assert f"Host: {host}:{port}" in others
    assert others[-1] == "Connection: close"
    kept = [f"{name}: {value}" for name, value in fields if name.lower() not in OURS]
    assert others[1:-1] == kept
    # The password is for the proxy only, so it must not be sent on to the server.
    assert b"c2VjcmV0" not in request.head
    assert request.password == b"Basic c2VjcmV0"


@given(some.binary(max_size=300))
@example(b"GET http://a.test/ HTTP/1.1\r\nProxy-Authorization: a\r\nproxy-authorization: b\r\n\r\n")
@example(b"CONNECT a.test:1 HTTP/1.1\r\n Proxy-Authorization: a\r\n\r\n")
@example(b"CONNECT [::1 HTTP/1.1\r\n\r\n")
def test_random_bytes_are_a_request_or_refused_or_incomplete(data):
    try:
        request = parse_request(data)
    except RefusedError:
        return
    if request is None:
        assert b"\r\n\r\n" not in data
        return
    assert request.destination.address is not None or is_host_name(request.destination.host)
    assert 0 < request.destination.port <= 65535


@given(NAME, PORT, FIELDS, some.data())
def test_a_request_may_arrive_in_pieces(host, port, fields, data):
    fields = [item for item in fields if item[0].lower() != "proxy-authorization"]
    whole = head(f"CONNECT {host}:{port} HTTP/1.1", fields)
    cut = data.draw(some.integers(0, len(whole) - 1))
    assert parse_request(whole[:cut]) is None
    assert parse_request(whole) is not None


@pytest.mark.parametrize(
    "said",
    [
        b"CONNECT a.test:443 HTTP/1.1\r\nProxy-Authorization: Basic a\r\nProxy-Authorization: Basic b\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nProxy-Authorization : Basic a\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nX: 1\r\n Proxy-Authorization: Basic a\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\nProxy-Authorization: Basic a\r\n\r\n",
        b"CONNECT user@a.test:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a.test HTTP/1.1\r\n\r\n",
        b"CONNECT a.test.:443 HTTP/1.1\r\n\r\n",
        b"CONNECT 0177.0.0.1:443 HTTP/1.1\r\n\r\n",
        b"CONNECT 2130706433:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a.test\0b.test:443 HTTP/1.1\r\n\r\n",
        b"GET https://a.test/ HTTP/1.1\r\n\r\n",
        b"GET ftp://a.test/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://user:word@a.test/ HTTP/1.1\r\n\r\n",
        b"GET http://a.test/ HTTP/2\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\n" + b"A" * MAX_HEAD_BYTES,
    ],
)
def test_ambiguous_requests_are_refused(said):
    with pytest.raises(RefusedError):
        parse_request(said)


@pytest.mark.parametrize("value", [b"Basic abc", b"\tBasic abc ", b"Basic abc\t"])
def test_spaces_around_a_password_are_removed(value):
    request = parse_request(
        b"CONNECT a.test:443 HTTP/1.1\r\nPROXY-authorization:" + value + b"\r\n\r\n"
    )
    assert request.password == b"Basic abc"
    assert parse_request(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n").password == b""
