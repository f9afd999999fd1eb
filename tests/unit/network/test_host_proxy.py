"""Test how corral uses the proxy that is set in the user's environment."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.network.host_proxy import (
    Proxy,
    build_connect_request,
    parse_connect_reply,
    proxy_from_environment,
)


def proxy(text: str, **more: str) -> Proxy:
    return proxy_from_environment({"HTTPS_PROXY": text, **more})


def test_without_variables_there_is_no_proxy():
    assert proxy_from_environment({}) is None
    assert proxy_from_environment({"https_proxy": "", "http_proxy": "http://a:1"}) is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("http://proxy.example:3128", "proxy.example", 3128),
        ("http://proxy.example:3128/", "proxy.example", 3128),
        ("proxy.example:3128", "proxy.example", 3128),
        ("HTTP://Proxy.example", "proxy.example", 80),
        ("http://[2001:db8::1]:8080", "2001:db8::1", 8080),
        ("http://me:secret@10.0.0.1:8080", "10.0.0.1", 8080),
    ],
)
def test_the_variable_names_the_proxy(text, host, port):
    found = proxy(text)
    assert (found.host, found.port) == (host, port)


def test_lower_case_variables_win():
    assert proxy("http://upper:1", https_proxy="http://lower:1").host == "lower"


@pytest.mark.parametrize(
    "text",
    ["https://proxy.example", "socks5://proxy.example", "http://", "http://:1", "http://a:x", "http://a:0", "http://a:65536",
     "http://a b:1", "http://a\r\nX: y:1", "http://ä:1", "http://u%zz@a:1"],
)  # fmt: skip
def test_proxies_of_other_kinds_are_refused(text):
    with pytest.raises(ValueError):
        proxy(text)


def test_hosts_in_no_proxy_bypass_the_proxy():
    found = proxy(
        "http://p:1",
        NO_PROXY="intern.example, .dot.example,*.star.example,10.0.0.0/8,host.example:8080",
    )
    direct = [
        "intern.example", "a.intern.example", "dot.example", "a.dot.example", "a.star.example", "10.1.2.3", "host.example",
        "localhost", "127.0.0.1",
    ]  # fmt: skip
    assert [host for host in direct if found.is_used_for(host)] == []
    through = ["example", "evilintern.example", "11.0.0.1", "2001:db8::1", "intern.example.org"]
    assert [host for host in through if not found.is_used_for(host)] == []


def test_an_asterisk_in_no_proxy_turns_the_proxy_off():
    assert not proxy("http://p:1", no_proxy="*").is_used_for("a.example")


@given(
    st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="@/%:"), min_size=1
    ),
    st.text(min_size=1),
)
def test_the_request_has_the_proxys_password(user, password):
    quoted = "".join(f"%{byte:02X}" for byte in password.encode("utf-8", "surrogatepass"))
    kind, encoded = proxy(f"http://{user}:{quoted}@p:1").authorization.split(" ")
    assert kind == "Basic"
    assert base64.b64decode(encoded) == f"{user}:".encode() + password.encode(
        "utf-8", "surrogatepass"
    )


def test_the_request_names_the_destination():
    assert build_connect_request(Proxy(host="p", port=1), "a.example", 443) == (
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
    )
    assert build_connect_request(Proxy(host="p", port=1), "2001:db8::1", 443).startswith(
        b"CONNECT [2001:db8::1]:443 "
    )


@given(st.integers(0, 60))
def test_an_answer_may_arrive_in_pieces(cut):
    answer = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 p\r\n\r\nfirst words"
    end = answer.index(b"\r\n\r\n") + 4
    found = parse_connect_reply(answer[:cut])
    assert found == (None if cut < end else answer[end:cut])
    assert parse_connect_reply(answer) == b"first words"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0",
        b"HTTP/2",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1." + b"x" * 20000,
    ],
)
def test_invalid_answers_of_a_proxy_are_errors(data):
    with pytest.raises(ValueError):
        parse_connect_reply(data)


def test_a_connection_that_the_proxy_refuses_is_an_error():
    with pytest.raises(ValueError, match=r"refused the connection \(status 407\)"):
        parse_connect_reply(b"HTTP/1.0 407 Proxy Authentication Required\r\n\r\n")
