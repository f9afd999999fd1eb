"""Test an allowlist on a kernel without IPv6, as with `ipv6.disable=1`."""

from __future__ import annotations

import json
import socket

import pytest

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as reached:
        print(reached.recv(9).decode() or "closed")
except OSError as error:
    print("denied")
"""


def test_this_machine_has_no_ipv6():
    socket.socket(socket.AF_INET).close()
    with pytest.raises(OSError, match="not supported"):
        socket.socket(socket.AF_INET6)


def test_an_allowlist_is_enforced(person):
    found = json.loads(person.corral("doctor", "--json").stdout)["findings"]
    assert {"proven"} == {f["status"] for f in found if f["capability"] == "gateway"}
    seen = []
    local = ("127.0.0.1", 0)
    with socket.create_server(local) as allowed, socket.create_server(local) as other:
        ports = [str(one.getsockname()[1]) for one in (allowed, other)]
        for port in ports:
            argv = person.corral_argv(
                "run", "--allow-net", f"127.0.0.1:{ports[0]}", "--",
                person.python, "-ISc", CONNECT, "127.0.0.1", port,
            )  # fmt: skip
            running = person.popen(argv, stdout=-1, stderr=-1, text=True)
            if port == ports[0]:
                with allowed.accept()[0] as reached:
                    reached.send(b"served")
            out, err = running.communicate(timeout=200)
            seen.append(out.strip())
        assert (seen[0], seen[1] in ("denied", "closed")) == ("served", True), (seen, err)
        assert f"127.0.0.1:{ports[1]}" in err
