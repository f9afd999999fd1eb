"""Test `--own-unix-sockets`. With it a server's processes can use unix sockets among themselves,
but not the host's.
"""

from __future__ import annotations

import json
import os
import socket

import pytest
from attempts import PRELUDE, give, give_directory, has_landlock, has_unix_scope
from test_ipc import CONNECT, host

__all__ = ["host"]

FLAG = ("--own-unix-sockets",)
SYSTEM_PYTHON = "/usr/bin/python3"
REFUSED = 125
OWN = """
import array, socket
def own(kind, address):
    with socket.socket(socket.AF_UNIX, kind) as server, socket.socket(socket.AF_UNIX, kind) as client:
        server.bind(address)
        if kind != socket.SOCK_DGRAM:
            server.listen()
        client.connect(address)
        client.send(b"in")
def passed():
    # Sends a descriptor through a pair of sockets, and uses the descriptor that arrives.
    left, right = socket.socketpair()
    reading, writing = os.pipe()
    socket.send_fds(left, [b"x"], [writing])
    [received] = socket.recv_fds(right, 1, 1)[1]
    os.write(received, b"y")
    assert os.read(reading, 1) == b"y"
"""
EACH = """
answer = {
    "stream": tried(own, socket.SOCK_STREAM, "/tmp/stream"),
    "datagram": tried(own, socket.SOCK_DGRAM, "/tmp/datagram"),
    "packets": tried(own, socket.SOCK_SEQPACKET, os.path.expanduser("~/packets")),
    "abstract": tried(own, socket.SOCK_STREAM, "\\0own"),
    "descriptor": tried(passed),
}
"""


def inside(user, code: str, *flags: str):
    """Run the system's Python, because the directory of another Python may contain sockets."""
    script = f"import json, os, sys\nanswer = None\n{PRELUDE}{code}\nprint(json.dumps(answer))"
    done = user.run(SYSTEM_PYTHON, "-c", script, flags=flags)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_servers_processes_reach_each_other(user):
    assert inside(user, OWN + EACH, *FLAG) == dict.fromkeys(
        ("stream", "datagram", "packets", "abstract", "descriptor"), "done"
    )
    # Sanity check: without the flag, the sockets work only if Landlock can deny sockets of the
    # host.
    without = inside(user, OWN + EACH)
    answer = "done" if has_unix_scope(user) else "EPERM"
    assert {without[name] for name in ("stream", "datagram", "packets", "abstract")} == {answer}


def test_a_manager_of_pythons_multiprocessing_works(user):
    code = "import multiprocessing\nwith multiprocessing.Manager() as one:\n    shared = one.dict()\n    shared['a'] = 1\n    answer = dict(shared)"
    assert inside(user, code, *FLAG, "--allow-subprocess") == {"a": 1}
    done = user.run(SYSTEM_PYTHON, "-c", code, flags=("--allow-subprocess",))
    assert (done.returncode == 0) == has_unix_scope(user)


def test_sockets_of_the_host_stay_out_of_reach(user, host, scratch):
    """Try to reach sockets of the host with stream and datagram sockets: at abstract names, in /tmp
    and in the user's directory.
    """
    name = f"corral-own-{os.getpid()}-{user.name}"
    place = give_directory(user, scratch / "place")
    addresses = {
        "abstract": [1, f"\0{name}"],
        "abstract datagram": [2, f"\0{name}-datagram"],
        "tmp": [1, f"/tmp/{name}"],
        "home": [1, f"{place}/bus"],
        "home datagram": [2, f"{place}/log"],
    }
    for kind, address in addresses.values():
        host.add(socket.AF_UNIX, socket.SocketKind(kind), address)
    code = f"{PRELUDE}{CONNECT}answer = {{name: tried(connect, *where) for name, where in {addresses!r}.items()}}"
    try:
        assert user.outside(code) == dict.fromkeys(addresses, "done")
        assert host.arrived() == len(addresses)
        answer = inside(user, code, *FLAG)
        refused = {"abstract": "ECONNREFUSED", "abstract datagram": "ECONNREFUSED"}
        assert answer == {name: refused.get(name, "ENOENT") for name in addresses}
        assert host.arrived() == 0
    finally:
        os.unlink(f"/tmp/{name}")


@pytest.mark.parametrize("grant", ["--read", "--write"])
def test_a_grant_that_may_contain_a_socket_is_refused(user, host, scratch, grant):
    """Grant a directory together with `--own-unix-sockets`. The directory may contain a socket of
    another program. If the kernel cannot deny this socket, corral must refuse the grant. If
    Landlock can deny it, the grant is permitted, and the socket must stay out of reach.
    """
    place = give_directory(user, scratch / "place")
    if has_unix_scope(user):
        host.add(socket.AF_UNIX, socket.SOCK_STREAM, f"{place}/agent")
        code = f"{CONNECT}answer = [tried(connect, 1, {place + '/agent'!r}), os.listdir({place!r})]"
        assert inside(user, code, *FLAG, grant, place) == ["EACCES", ["agent"]]
        assert host.arrived() == 0
        assert user.outside(PRELUDE + code)[0] == "done"
        return
    refused = user.run(SYSTEM_PYTHON, "-c", "pass", flags=(*FLAG, grant, place))
    assert refused.returncode == REFUSED
    assert f"could have a socket in {place}".encode() in refused.stderr
    assert b"hint: remove that grant" in refused.stderr
    file = scratch / "file"
    file.write_text("text")
    os.chown(file, user.owner, user.owner)
    flags = (*FLAG, grant, str(file))
    # Sanity check: a regular file cannot contain a socket, so it can be granted.
    assert inside(user, f"answer = got({str(file)!r})", *flags) == "text"


def test_a_servers_own_directory_that_may_contain_a_socket_is_refused(user, host, scratch):
    """Start a server with `--own-unix-sockets`. Its own directory, which it may read, may contain a
    socket of another program. If the kernel cannot deny this socket, corral must refuse the server.
    If Landlock can deny it, the server runs, and the socket must stay out of reach.
    """
    script = scratch / "server.py"
    address = str(scratch / "agent")
    code = f"import os\n{PRELUDE}{CONNECT}print(tried(connect, 1, {address!r}))"
    give(user, script, code)
    if has_unix_scope(user):
        host.add(socket.AF_UNIX, socket.SOCK_STREAM, address)
        assert user.run(SYSTEM_PYTHON, str(script), flags=FLAG).stdout == b"EACCES\n"
        assert host.arrived() == 0
        free = f"{PRELUDE}{CONNECT}answer = tried(connect, 1, {address!r})"
        assert user.outside(free) == "done"
        return
    refused = user.run(SYSTEM_PYTHON, str(script), flags=FLAG)
    assert refused.returncode == REFUSED
    assert f"could have a socket in {scratch}".encode() in refused.stderr
    # Sanity check: without the flag, the server runs.
    assert user.run(SYSTEM_PYTHON, str(script)).returncode == 0


def test_without_the_refusal_a_socket_in_a_grant_would_answer(user, host, scratch):
    """Grant one of two sockets in a directory. If the kernel cannot deny single sockets, the target
    also reaches the other one. Therefore `--own-unix-sockets` refuses such grants.
    """
    place = give_directory(user, scratch / "place")
    host.add(socket.AF_UNIX, socket.SOCK_STREAM, f"{place}/granted")
    host.add(socket.AF_UNIX, socket.SOCK_STREAM, f"{place}/other")
    policy = json.dumps({"version": 1, "filesystem": {"unix_sockets": [f"{place}/granted"]}})
    code = f"{CONNECT}answer = tried(connect, 1, {place + '/other'!r})"
    found = json.loads(user.corral("doctor", "--json").stdout)["findings"]
    scoped = any(
        one["capability"] == "landlock_unix" and one["status"] == "proven" for one in found
    )
    answer = inside(user, code, "--policy", policy, "--read", place)
    assert answer == ("EACCES" if scoped else "done")


def test_no_socket_is_made_in_a_write_grant(user, host, scratch):
    """Try to make a socket in a write grant, where a program on the host could mistake it for
    another program's socket. In its private home the target may make sockets.
    """
    place = give_directory(user, scratch / "place")
    (scratch / "sockets").mkdir()
    os.chown(scratch / "sockets", user.owner, user.owner)
    granted = str(scratch / "sockets" / "granted")
    host.add(socket.AF_UNIX, socket.SOCK_STREAM, granted)
    policy = json.dumps({"version": 1, "filesystem": {"unix_sockets": [granted]}})
    code = f"""
def bound(address):
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(address)
answer = {{
    "grant": tried(bound, {place + "/agent"!r}),
    "home": tried(bound, os.path.expanduser("~/agent")),
    "file": tried(put, {place + "/file"!r}),
}}
"""
    answer = inside(user, CONNECT + code, "--policy", policy, "--write", place)
    denied = "EACCES" if has_landlock() else "done"
    assert answer == {"grant": denied, "home": "done", "file": "done"}


def test_sockets_in_the_kept_home_are_the_servers_own(user):
    code = "answer = tried(own, socket.SOCK_STREAM, os.path.expanduser('~/daemon.sock'))\nos.unlink(os.path.expanduser('~/daemon.sock'))"
    assert inside(user, OWN + code, *FLAG, "--state") == "done"


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_own_unix_sockets_are_refused_without_namespaces(user):
    refused = user.run(SYSTEM_PYTHON, "-c", "pass", flags=FLAG)
    assert refused.returncode == REFUSED
    assert b"own_unix_sockets needs a private root" in refused.stderr
    # Sanity check: without the flag, the target runs.
    assert user.run(SYSTEM_PYTHON, "-c", "pass").returncode == 0
