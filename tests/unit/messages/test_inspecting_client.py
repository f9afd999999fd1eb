"""Test the client of `corral inspect` with servers that do not read their input or that send
invalid ids.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import pytest

from corral.messages import client as messages
from corral.messages.client import Client, ConversationError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot poll pipes")


def line(**message: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def ask(sent: bytes) -> str:
    """Send `initialize` to a server that only writes the bytes `sent`. Return the error's message."""
    from_server, to_client = os.pipe()
    from_client, to_server = os.pipe()

    def send() -> None:
        with open(to_client, "wb", buffering=0, closefd=False) as stream:
            stream.write(sent)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    # If corral waits too long, end the wait, so that the test fails instead of hanging.
    end = threading.Timer(60, os.close, (from_client,))
    end.start()
    with open(from_server, "rb") as reader, open(to_server, "wb") as writer:
        try:
            with pytest.raises(ConversationError) as caught:
                Client(reader, writer).initialize()
        finally:
            in_time = end.is_alive()
            end.cancel()
            thread.join(5)
            os.close(to_client)
            if in_time:
                os.close(from_client)
    return caught.value.message


@pytest.mark.parametrize("asked", [0, 500])
def test_a_server_that_does_not_read_cannot_make_the_client_wait_forever(asked, monkeypatch):
    """Send many requests from a server that never reads. The client refuses each of them, and its
    answers fill the pipe to the server. The error must be the same as without requests.
    """
    monkeypatch.setattr(messages, "ANSWER_SECONDS", 1.0)
    text = ask(line(id="x" * 900, method="roots/list") * asked)
    assert "did not answer" in text


def test_a_request_with_an_invalid_id_gets_no_answer(monkeypatch):
    monkeypatch.setattr(messages, "ANSWER_SECONDS", 1.0)
    text = ask(b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}\n')
    assert "did not answer" in text
