"""Test Landlock's right for unix sockets: a target reaches its own sockets, but not the host's."""

from __future__ import annotations

import json
import os
import socket
import tempfile

import pytest

KINDS = {
    "stream": socket.SOCK_STREAM,
    "datagram": socket.SOCK_DGRAM,
    "packets": socket.SOCK_SEQPACKET,
}
CODE = """
import errno, json, os, socket, sys
def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def reach(kind, address, end=None):
    with end or socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(address)
        client.send(b"out")
def own(kind, address):
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(address)
        if kind != socket.SOCK_DGRAM:
            server.listen()
        reach(kind, address)
def renamed(address):
    os.rename(address, address + ".new")
    try:
        reach(1, address + ".new")
    finally:
        os.rename(address + ".new", address)
def linked(address):
    os.symlink(address, "/tmp/link")
    reach(1, "/tmp/link")
def through_directory(address):
    directory = os.open(os.path.dirname(address), os.O_PATH)
    reach(1, f"/proc/self/fd/{directory}/{os.path.basename(address)}")
def received(address):
    left, right = socket.socketpair()
    made = socket.socket(socket.AF_UNIX)
    socket.send_fds(left, [b"x"], [made.fileno()])
    [number] = socket.recv_fds(right, 1, 1)[1]
    reach(1, address, socket.socket(fileno=number))
def paired(address):
    with socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0] as end:
        end.sendto(b"out", address)
"""


@pytest.fixture(scope="module")
def place(module_person):
    """Yield a granted directory with unix sockets on which the host listens."""
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        ends = []
        for name, kind in KINDS.items():
            end = socket.socket(socket.AF_UNIX, kind)
            end.bind(f"{directory}/{name}")
            if kind != socket.SOCK_DGRAM:
                end.listen()
            ends.append(end)
        yield directory
        for end in ends:
            end.close()


def inside(person, code, *flags):
    script = f"{CODE}{code}\nprint(json.dumps(answer))"
    done = person.run("/usr/bin/python3", "-ISc", script, flags=flags, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_doctor_proves_landlocks_right_for_unix_sockets(module_person):
    found = json.loads(module_person.corral("doctor", "--json", timeout=200).stdout)["findings"]
    (finding,) = [one for one in found if one["capability"] == "landlock_unix"]
    assert finding["status"] == "proven", finding


def test_own_sockets_work_without_a_flag(module_person, place):
    code = """
answer = [tried(own, kind, f"/tmp/{kind}") for kind in (1, 2, 5)]
answer.append(tried(own, 1, "\\0own"))
"""
    for flags in ((), ("--read", place), ("--own-unix-sockets", "--read", place)):
        assert inside(module_person, code, *flags) == ["done"] * 4


def test_sockets_of_the_host_in_a_grant_are_denied(module_person, place):
    reached = {name: [int(kind), f"{place}/{name}"] for name, kind in KINDS.items()}
    code = f"answer = {{name: tried(reach, *where) for name, where in {reached!r}.items()}}"
    for grant in ("--read", "--write"):
        assert inside(module_person, code, grant, place) == dict.fromkeys(KINDS, "EACCES")
    # Sanity check: without corral, the same code reaches these sockets.
    outside = module_person.outside(f"{CODE}{code}")
    assert outside == dict.fromkeys(KINDS, "done")


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("renamed", "stream"), ("linked", "stream"), ("through_directory", "stream"),
        ("received", "stream"), ("paired", "datagram"),
    ],
)  # fmt: skip
def test_sockets_of_the_host_are_not_reached_by_other_means(module_person, place, way, name):
    code = f"answer = tried({way}, {place + '/' + name!r})"
    assert inside(module_person, code, "--write", place) == "EACCES"
    # Sanity check: without corral, the same code reaches the socket.
    assert module_person.outside(f"{CODE}{code}") == "done"
    if os.path.lexists("/tmp/link"):
        os.unlink("/tmp/link")


def test_abstract_sockets_of_the_host_are_not_reached(module_person):
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("\0corral-guest")
        end.listen()
        code = "answer = tried(reach, 1, '\\0corral-guest')"
        assert inside(module_person, code) == "ECONNREFUSED"
        assert module_person.outside(f"{CODE}{code}") == "done"


def test_a_socket_grant_is_for_that_socket_alone(module_person, place):
    policy = {"version": 1, "filesystem": {"unix_sockets": [f"{place}/stream"], "read": [place]}}
    code = f"answer = [tried(reach, 1, {place + '/stream'!r}), tried(reach, 5, {place + '/packets'!r})]"
    assert inside(module_person, code, "--policy", json.dumps(policy)) == ["done", "EACCES"]


def test_no_socket_is_made_in_a_write_grant(module_person, place):
    code = f"answer = [tried(own, 1, {place + '/agent'!r}), tried(own, 1, '/tmp/agent')]"
    assert inside(module_person, code, "--write", place) == ["EACCES", "done"]
