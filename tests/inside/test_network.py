"""Attack the network of a target without network grants: whatever the kind of socket, the target
must reach nothing but the sandbox's own loopback.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket

import pytest
from attempts import BOTH_TIERS, by_tier, everywhere, has_unix_scope, inside, outside

HAS_IPV6 = pathlib.Path("/proc/net/if_inet6").exists()


@pytest.fixture
def listeners():
    """Listen on the host's loopback with TCP and UDP, over IPv4 and, if the kernel has it, over
    IPv6.
    """
    ends = []
    families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    for family, address in families if HAS_IPV6 else families[:1]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            end = socket.socket(family, kind)
            end.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                end.listen(8)
            end.setblocking(False)
            ends.append(end)
    yield ends
    for end in ends:
        end.close()


def arrived(end):
    try:
        if end.type == socket.SOCK_STREAM:
            end.accept()[0].close()
        else:
            end.recv(64)
    except BlockingIOError:
        return False
    return True


@BOTH_TIERS
def test_listeners_of_the_host_are_not_reached(user, listeners):
    ports = [end.getsockname()[1] for end in listeners]
    code = """
import socket
tcp4, udp4, *six = map(int, sys.argv[1:])
def connect(family, address, port):
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.connect((address, port))
def send(family, address, port):
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.connect((address, port))
        end.send(b"out")
        end.settimeout(0.2)
        if "--answers" not in sys.argv:
            try:
                end.recv(1)  # fails with ECONNREFUSED if no process received the datagram
            except TimeoutError:
                pass
def fast_open(port):
    with socket.socket() as end:
        end.sendto(b"out", 0x20000000, ("127.0.0.1", port))
answer = {
    "tcp4": tried(connect, 2, "127.0.0.1", tcp4), "udp4": tried(send, 2, "127.0.0.1", udp4),
    "fast open": tried(fast_open, tcp4),
}
if six:
    answer["tcp6"], answer["udp6"] = tried(connect, 10, "::1", six[0]), tried(send, 10, "::1", six[1])
    answer["mapped"] = tried(connect, 10, "::ffff:127.0.0.1", tcp4)
"""
    words = tuple(map(str, ports))
    free = outside(user, code, *words)
    assert free == dict.fromkeys(free, "done")
    assert all(map(arrived, listeners))
    while any(map(arrived, listeners)):
        pass
    for held in everywhere(user, code, *words):
        assert held == dict.fromkeys(free, by_tier(user, "ECONNREFUSED", "EPERM"))
    assert not any(map(arrived, listeners))


@BOTH_TIERS
def test_no_address_has_a_route(user):
    """Connect datagram sockets to public and private addresses, such as a resolver and a cloud's
    metadata service. The kernel then looks up a route, but sends nothing. It must find no route.
    """
    code = """
import socket
def routed(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.connect((address, 53))
answer = {address: tried(routed, 10 if ":" in address else 2, address) for address in
          ("192.0.2.1", "8.8.8.8", "10.0.0.1", "169.254.169.254", "255.255.255.255", "2001:db8::1", "fe80::1")}
answer["loopback"] = tried(routed, 2, "127.0.0.1")
"""
    for held in everywhere(user, code):
        if user.tier == "bare":  # the target cannot make a socket
            assert held == dict.fromkeys(held, "EPERM")
            continue
        assert held.pop("loopback") == "done"
        # A connect to a link-local address also needs the name of an interface, which this code
        # does not give. The error may therefore be EINVAL.
        link_local, global_ = held.pop("fe80::1"), held.pop("2001:db8::1")
        if HAS_IPV6:
            assert link_local in {"EINVAL", "ENETUNREACH"}
            assert global_ == "ENETUNREACH"
        else:
            assert link_local == global_ == "EAFNOSUPPORT"
        # A connect to a broadcast address also needs a socket option (SO_BROADCAST), which this
        # code does not set. The error may therefore be EACCES.
        assert held.pop("255.255.255.255") in {"EACCES", "ENETUNREACH"}
        assert set(held.values()) == {"ENETUNREACH"}


def test_only_loopback_exists(user):
    code = "import socket\nanswer = [name for _, name in socket.if_nameindex()]"
    assert inside(user, code) == ["lo"]
    names = "answer = sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:])"
    assert inside(user, names) == ["lo"]


FAMILIES = """
import socket
def opened(*what):
    socket.socket(*what).close()
answer = {
    "unix": tried(opened, 1, 1, 0),
    "audit": tried(opened, 16, 3, 9),
    "uevent": tried(opened, 16, 3, 15),
    "connector": tried(opened, 16, 3, 11),
    "netfilter": tried(opened, 16, 3, 12),
    "generic": tried(opened, 16, 3, 16),
    "packet": tried(opened, 17, 3, 0),
    "sock_packet": tried(opened, 2, 10, 768),
    "alg": tried(opened, 38, 5, 0),
    "vsock": tried(opened, 40, 1, 0),
    "xdp": tried(opened, 44, 3, 0),
    "bluetooth": tried(opened, 31, 3, 1),
    "can": tried(opened, 29, 3, 1),
    "raw icmp": tried(opened, 2, 3, 1),
    "raw tcp": tried(opened, 2, 3, 6),
    "ping": tried(opened, 2, 2, 1),
    "mptcp": tried(opened, 2, 1, 262),
    "sctp": tried(opened, 2, 1, 132),
    "udplite": tried(opened, 2, 2, 136),
    "raw v6": tried(opened, 10, 3, 58),
    "domain with junk": tried(lambda: os.close(call("socket", 17 | 5 << 32, 3, 0))),
    "route": tried(opened, 16, 3, 0),
    "tcp": tried(opened, 2, 1, 0),
    "udp": tried(opened, 2, 2, 17),
    "tcp6": tried(opened, 10, 1, 6),
}
"""
INTERNET = {"tcp", "udp", "tcp6", "sock_packet", "raw icmp", "raw tcp", "ping", "mptcp", "sctp"}
INTERNET |= {"udplite", "raw v6"}
ALLOWED = {"route", "tcp", "udp", *(["tcp6"] if HAS_IPV6 else [])}
NETLINK = {"audit", "uevent", "connector", "netfilter", "generic"}
FOREIGN = {
    "packet",
    "alg",
    "vsock",
    "xdp",
    "bluetooth",
    "can",
    "domain with junk",
    "tcp6",
} - ALLOWED


@BOTH_TIERS
def test_only_harmless_socket_families_open(user):
    """Check that only harmless socket families can be opened. Where the kernel has Landlock's unix
    socket scope, unix sockets are harmless too, because they cannot reach sockets of the host.
    """
    expected = {}
    free = outside(user, FAMILIES)
    unix = "done" if has_unix_scope(user) else "EPERM"
    for name in free:
        if user.tier == "bare" and name in INTERNET:
            expected[name] = "EPERM"
        elif name in ALLOWED:
            expected[name] = "done"
        elif name in FOREIGN:
            expected[name] = "EAFNOSUPPORT"
        else:
            expected[name] = unix if name == "unix" else "EPROTONOSUPPORT"
    assert everywhere(user, FAMILIES) == (expected, expected)
    # Sanity check: outside, the user may open these families. Root may also open packet and raw
    # sockets.
    assert {name for name, said in free.items() if said == "done"} >= {*ALLOWED, "unix", "uevent"}
    if user.uid == 0:
        assert {free[name] for name in ("packet", "raw icmp", "raw tcp")} == {"done"}
        assert free["sock_packet"] != "EPROTONOSUPPORT"


@BOTH_TIERS
def test_names_do_not_resolve(user):
    """Check that names do not resolve. With namespaces, the resolver's address in the sandbox is
    the sandbox's own loopback, where nothing answers. Without namespaces, the target cannot make a
    socket to ask a resolver.
    """
    code = """
import socket
def resolved(name):
    try:
        return [entry[4][0] for entry in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)]
    except socket.gaierror as error:
        return error.errno
answer = [resolved("exfiltrated.example.com"), sorted(resolved("localhost"))]
"""
    failed, local = inside(user, code)
    assert failed in {socket.EAI_AGAIN, socket.EAI_NONAME}
    assert "127.0.0.1" in local
    assert set(local) <= {"127.0.0.1", "::1"}


def test_the_loopback_inside_is_private(user):
    """Let the target connect to its own listener on loopback."""
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def serve():
    with server.accept()[0] as end:
        end.sendall(end.recv(64)[::-1])
thread = threading.Thread(target=serve)
thread.start()
with socket.create_connection(server.getsockname()) as end:
    end.sendall(b"hello")
    said = end.recv(64).decode()
thread.join()
answer = [said, server.getsockname()[1]]
"""
    assert inside(user, code)[0] == "olleh"


def test_a_listener_inside_is_not_reachable_from_outside(user):
    """Connect from outside to a port on which the target listens. The test itself keeps this port
    bound outside, so that no other process can answer.
    """
    code = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for confined, wanted in ((False, 0), (True, taken.getsockname()[1])):
            argv = [user.python, "-c", code, str(wanted)]
            argv = user.corral_argv("run", "--", *argv) if confined else argv
            process = user.popen(argv, stdin=-1, stdout=-1, stderr=-1)
            try:
                port = int(process.stdout.readline())
                with socket.socket() as end:
                    error = end.connect_ex(("127.0.0.1", port))
                assert os.strerror(error) == ("Connection refused" if confined else "Success")
            finally:
                process.communicate(timeout=60)


def test_low_ports_and_network_settings_are_denied(user):
    """Check that the target cannot bind low ports or change the network's settings, because it has
    no capabilities.
    """
    code = """
import fcntl, socket
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def low():
    with socket.socket() as end:
        end.bind(("127.0.0.1", 53))
def down():
    fcntl.ioctl(control, 0x8914, struct.pack("16sH22x", b"lo", 0))
def routed():
    # RTM_NEWROUTE of 192.0.2.0/24 to lo
    link = socket.socket(16, 3, 0)
    link.bind((0, 0))
    route = struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 255, 3, 254, 2, 0)
    route += struct.pack("=HH4B", 8, 1, 192, 0, 2, 0) + struct.pack("=HHI", 8, 4, 1)
    link.send(struct.pack("=IHHII", 16 + len(route), 24, 0x405, 1, 0) + route)
    code = struct.unpack_from("=i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, "")
answer = [tried(low), tried(down), tried(routed)]
"""
    assert everywhere(user, code) == (["EACCES", "EPERM", "EPERM"],) * 2
    # Sanity check: in a new namespace, where the process has capabilities, the same requests
    # succeed.
    up = "fcntl.ioctl(control, 0x8914, struct.pack('16sH22x', b'lo', 1))"
    own = code.replace("control =", 'call("unshare", 0x50000000)\ncontrol =')
    own = own.replace("tried(down), ", f"tried(down), {up} and ")
    assert outside(user, own)[1:] == ["done", "done"]


FLOOD = """
import errno, socket
counts = {}
for number in range(int(sys.argv[1])):
    with socket.socket() as end:
        found = end.connect_ex(("127.0.0.1", 2000 + number % 60000))
        counts[errno.errorcode[found]] = counts.get(errno.errorcode[found], 0) + 1
answer = counts
"""


@pytest.mark.parametrize("count", [5, 30_000])
def test_a_flood_of_refused_connections_is_read_at_a_limited_rate(user, scratch, count):
    """Let the target make a few or many connections that are refused. The supervisor gets a message
    about each of them. It must report all of a few connections. Of many messages it must read and
    report only some, and drop the others.
    """
    report = scratch / "report.json"
    os.chown(scratch, user.uid, user.uid)
    flags = ("--report", str(report), "--timeout", "50s")
    assert user.inside(FLOOD, str(count), flags=flags) == {"ECONNREFUSED": count}
    data = json.loads(report.read_text())
    seen = sum(row["count"] for row in data["denials"] if row["kind"] == "loopback")
    assert seen == count if count < 10 else seen < count / 2
    assert len(data["denials"]) <= 257
