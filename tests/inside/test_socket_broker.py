"""Try to reach forbidden addresses from a target without namespaces. There the supervisor connects
the target's sockets.

In tests/world.py's network, every address that a test tries has a server. As a sanity check, the
same code gets an answer outside the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading

import pytest
from attempts import PRELUDE, inside, outside

from users import make_user
from world import OTHER, PUBLIC, PUBLIC6, Inhabitant, make_world

pytestmark = pytest.mark.parametrize("tier", ["bare", "replaced"], indirect=True)

TALK = """
import socket, threading
def connected(address, port=80, family=socket.AF_INET):
    end = socket.socket(family)
    end.settimeout(20)
    end.connect((address, port))
    return end
def talked(*where):
    with connected(*where) as end:
        end.sendall(b"GET")
        if end.recv(64) != b"welcome":
            raise OSError(errno.ECONNRESET, "")
def resolved(name):
    return socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
"""


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    yield from make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(whole_world):
    whole_world.forget()
    whole_world.name("good.test", PUBLIC)
    for port in (80, 8080):
        whole_world.serve(answer, port=port)
    whole_world.serve(answer, port=80, near=True)
    yield whole_world
    whole_world.stop()


def answer(end):
    if end.recv(4096):
        end.sendall(b"welcome")


@pytest.fixture
def who(user, world):
    return Inhabitant(user, world)


ALLOW = ("--allow-net", "good.test:80")
ADDRESSES = f"""
answer = {{
    "other address": tried(talked, "{OTHER}"),
    "its real address": tried(talked, "{PUBLIC}"),
    "host's loopback": tried(talked, "127.0.0.1"),
    "any address": tried(talked, "0.0.0.0"),
    "mapped": tried(talked, "::ffff:{PUBLIC}", 80, socket.AF_INET6),
    "mapped loopback": tried(talked, "::ffff:127.0.0.1", 80, socket.AF_INET6),
    "loopback 6": tried(talked, "::1", 80, socket.AF_INET6),
    "address 6": tried(talked, "{PUBLIC6}", 80, socket.AF_INET6),
    "other port": tried(talked, resolved("good.test"), 8080),
    "good": tried(talked, resolved("good.test")),
}}
"""


def test_a_host_is_reached_only_by_the_address_of_its_lookup(who, world):
    held = inside(who, TALK + ADDRESSES, flags=ALLOW)
    assert held.pop("good") == "done"
    assert held == dict.fromkeys(held, "ECONNREFUSED")
    assert world.arrived == [(PUBLIC, 80)]
    free = outside(who, TALK + ADDRESSES)
    assert free == dict.fromkeys(free, "done")


AGAIN = """
good = resolved("good.test")
def raw_connect(fd, address, size=16):
    call("connect", fd, address, size)
def inet(address, port):
    return struct.pack("=H", 2) + struct.pack("!H4s8x", port, socket.inet_aton(address))
def unconnected():
    end = connected(good)
    end.setblocking(True)
    try:
        raw_connect(end.fileno(), bytes(16))
    finally:
        raw_connect(end.fileno(), inet(sys.argv[1], 80))
def twice():
    end = connected(good)
    end.connect((sys.argv[1], 80))
def fast(send):
    end = socket.socket()
    send(end)
    if end.recv(64) != b"welcome":
        raise OSError(errno.ECONNRESET, "")
def fast_message(end):
    end.sendmsg([b"GET"], [], 0x20000000, (sys.argv[1], 80))
def fast_with_junk(end):
    call("sendto", end.fileno(), b"GET", 3, 0x20000000 | 5 << 32, inet(sys.argv[1], 80), 16)
answer = {
    "unconnected": tried(unconnected),
    "twice": tried(twice),
    "fast open": tried(fast, lambda end: end.sendto(b"GET", 0x20000000, (sys.argv[1], 80))),
    "fast open by message": tried(fast, fast_message),
    "fast open with junk": tried(fast, fast_with_junk),
    "by name in sendto": tried(fast, lambda end: end.sendto(b"GET", (sys.argv[1], 80))),
    "good": tried(talked, good),
}
"""


def test_a_connected_socket_cannot_be_led_elsewhere(who, world):
    held = inside(who, TALK + AGAIN, OTHER, flags=ALLOW)
    assert held == {
        "unconnected": "ECONNREFUSED",
        "twice": "ECONNREFUSED",
        "fast open": "ENOTSUP",
        "fast open by message": "ENOTSUP",
        "fast open with junk": "ENOTSUP",
        "by name in sendto": "EPIPE",
        "good": "done",
    }
    assert {address for address, _ in world.arrived} == {PUBLIC}
    free = outside(who, TALK + AGAIN, OTHER)
    assert (free["unconnected"], free["fast open"]) == ("done", "done")


SAME_AGAIN = """
good = resolved("good.test")
end = socket.socket()
end.connect((good, 80))
second = tried(end.connect, (good, 80))
end.sendall(b"GET")
answer = [second, end.recv(64).decode()]
"""


def test_a_second_connect_of_a_socket_changes_nothing(who, world):
    """Check that a second connect fails at once, and that the connection stays open."""
    assert inside(who, TALK + SAME_AGAIN, flags=ALLOW) == ["EISCONN", "welcome"]
    assert outside(who, TALK + SAME_AGAIN) == ["EISCONN", "welcome"]


ARGUMENTS = """
good = resolved("good.test")
where = struct.pack("=H", 2) + struct.pack("!H4s8x", 80, socket.inet_aton(good))
def attempt(fd, address=where, size=16):
    call("connect", fd, address, size)
def fresh():
    return os.dup(socket.socket().detach())
pipe, pair = os.pipe(), socket.socketpair()
answer = {
    "bad pointer": tried(attempt, fresh(), 1),
    "no pointer": tried(attempt, fresh(), 0),
    "last page": tried(attempt, fresh(), 2 ** 64 - 8),
    "too long": tried(attempt, fresh(), where, 4096),
    "negative": tried(attempt, fresh(), where, -1),
    "too short": tried(attempt, fresh(), where, 4),
    "empty": tried(attempt, fresh(), where, 0),
    "pipe": tried(attempt, pipe[0]),
    "no descriptor": tried(attempt, -1),
    "closed": tried(attempt, 1000),
    "pair": tried(attempt, pair[0].fileno()),
    "unknown family": tried(attempt, fresh(), struct.pack("=H14x", 99)),
    "netlink": tried(attempt, socket.socket(16, 3, 0).detach()),
    "junk above the descriptor": tried(attempt, fresh() | 7 << 32),
}
"""


def test_the_supervisor_survives_invalid_arguments(who, world):
    """Check that after all the invalid calls the supervisor still connects an allowed socket."""
    held = inside(who, TALK + ARGUMENTS + 'answer["good"] = tried(talked, good)', flags=ALLOW)
    faults = dict.fromkeys(("bad pointer", "no pointer", "last page"), "EFAULT")
    sizes = dict.fromkeys(("too long", "negative", "too short", "empty"), "EINVAL")
    assert held == {
        **faults,
        **sizes,
        "pipe": "ENOTSOCK",
        "no descriptor": "EBADF",
        "closed": "EBADF",
        "pair": "EAFNOSUPPORT",
        "unknown family": "EAFNOSUPPORT",
        "netlink": "EAFNOSUPPORT",
        "junk above the descriptor": "done",
        "good": "done",
    }


RACE = """
import time
good, other = socket.inet_aton(resolved("good.test")), socket.inet_aton(sys.argv[1])
where = ctypes.create_string_buffer(struct.pack("=H", 2) + struct.pack("!H4s8x", 80, good), 16)
stop, counts, lock = time.monotonic() + 4, [0, 0], threading.Lock()
def goes_on():
    return time.monotonic() < stop or counts[0] <= 100
def flip():
    while goes_on():
        for address in (other, good):
            ctypes.memmove(ctypes.addressof(where) + 4, address, 4)
def race():
    while goes_on():
        end = socket.socket()
        try:
            call("connect", end.fileno(), where, 16)
            end.sendall(b"GET")
            reached = end.recv(64) == b"welcome"
        except OSError:
            reached = False
        with lock:
            counts[not reached] += 1
        end.close()
threads = [threading.Thread(target=act) for act in (flip, flip, race, race, race)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
answer = counts
"""


def test_an_address_that_changes_during_its_check_opens_nothing(who, world):
    """Let threads keep changing the address in the target's memory while the supervisor checks it.
    Inside, only the allowed address must be reached. Outside, both addresses are reached.
    """
    assert sum(outside(who, TALK + RACE, OTHER)) > 100
    assert {address for address, _ in world.arrived} == {PUBLIC, OTHER}
    world.arrived.clear()
    reached, refused = inside(who, TALK + RACE, OTHER, flags=ALLOW)
    assert reached > 100
    assert refused > 0
    assert {address for address, _ in world.arrived} == {PUBLIC}


OPTIONS = """
def connected_6():
    end = socket.socket(socket.AF_INET6)
    end.connect(("::ffff:" + good, 80))
    return end
good, on = resolved("good.test"), struct.pack("=i", 1)
pass_all = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0xFFFFFFFF), 8)
group = socket.inet_aton("224.1.1.1") + socket.inet_aton("127.0.0.1")
route = socket.inet_aton(sys.argv[1])
tcp, datagrams, tcp_6 = (2, 1), (2, 2), (10, 1)
OPTIONS = {
    "TCP_REPAIR": (tcp, 6, 19, on), "TCP_FASTOPEN": (tcp, 6, 23, on), "TCP_FASTOPEN_CONNECT": (tcp, 6, 30, on),
    "SO_REUSEPORT": (tcp, 1, 15, on), "SO_BINDTODEVICE": (tcp, 1, 25, b"lo"), "SO_MARK": (tcp, 1, 36, on),
    "SO_ATTACH_FILTER": (tcp, 1, 26, struct.pack("@HP", 1, ctypes.addressof(pass_all))),
    "IP_OPTIONS": (tcp, 0, 4, bytes((131, 7, 4)) + route + bytes(1)), "IP_TRANSPARENT": (tcp, 0, 19, on),
    "IP_FREEBIND": (tcp, 0, 15, on), "IP_RETOPTS": (datagrams, 0, 7, on),
    "IP_ADD_MEMBERSHIP": (datagrams, 0, 35, group), "IPV6_TRANSPARENT": (tcp_6, 41, 75, on),
    "IPV6_RTHDR": (tcp_6, 41, 57, bytes((0, 2, 4, 1)) + bytes(4) + socket.inet_pton(10, "::1")),
    "IPV6_ADDRFORM": (connected_6, 41, 1, struct.pack("=i", 2)), "TCP_ULP": (lambda: connected(good), 6, 31, b"tls"),
}
def set_option(kind, level, name, value, junk):
    end = kind() if callable(kind) else socket.socket(*kind)
    call("setsockopt", end.fileno(), level | junk, name | junk, value, len(value))
answer = {name: [tried(set_option, *rest, junk) for junk in (0, 7 << 32)] for name, rest in OPTIONS.items()}
"""
KNOWN = {
    "TCP_ULP": {"done", "ENOENT"},  # ENOENT: the kernel has no TLS for sockets
    "IPV6_RTHDR": {"EINVAL"},  # the kernel knows the option, but no longer this type of header
}


def test_socket_options_that_could_send_data_elsewhere_fail_as_unknown(who, world):
    """Try socket options that could send data elsewhere. Inside, they fail as if the kernel did not
    have them. Outside, root can set all of them, except for the differences in KNOWN. An ordinary
    user can set some.
    """
    after = 'answer["good"] = tried(talked, good)'
    held = inside(who, TALK + OPTIONS + after, OTHER, flags=ALLOW)
    assert held.pop("good") == "done"
    assert held == dict.fromkeys(held, ["ENOPROTOOPT"] * 2)
    free = outside(who, TALK + OPTIONS, OTHER)
    usual = {"done", "EPERM"} if who.uid else {"done"}
    assert {
        name: found for name, found in free.items() if not set(found) <= KNOWN.get(name, usual)
    } == {}
    assert ["done", "done"] in free.values()


FAST_CONNECT = """
end = socket.socket()
option = tried(end.setsockopt, 6, 30, 1)
end.connect((sys.argv[1], 80))
end.sendall(b"GET")
answer = [option, end.recv(64).decode()]
"""


def test_a_connect_that_the_kernel_delays_until_the_first_write_is_refused(who, world):
    """Use TCP_FASTOPEN_CONNECT, which makes the kernel connect only at the first write. The
    supervisor decides about connects, but would not see this write. Therefore setting the option
    must fail.
    """
    failing = FAST_CONNECT.replace("end.connect(", "connect = tried(end.connect, ").replace(
        'end.sendall(b"GET")\nanswer = [option, end.recv(64).decode()]',
        'answer = [option, connect, tried(end.sendall, b"GET")]',
    )
    assert inside(who, TALK + failing, OTHER, flags=ALLOW) == [
        "ENOPROTOOPT",
        "ECONNREFUSED",
        "EPIPE",
    ]
    assert not world.arrived
    assert outside(who, TALK + FAST_CONNECT, OTHER) == ["done", "welcome"]


SWAP = """
import time
good, stop = resolved("good.test"), time.monotonic() + 3
fd, reached = socket.socket().detach(), [0]
def goes_on():
    return time.monotonic() < stop or not reached[0]
def swap():
    kinds = ((2, 1), (10, 1), (2, 2))
    while goes_on():
        for kind in kinds:
            made = socket.socket(*kind)
            os.dup2(made.fileno(), fd)
            made.close()
        one, two = socket.socketpair()
        os.dup2(one.fileno(), fd)
        one.close()
        two.close()
places = [struct.pack("=H", 2) + struct.pack("!H4s8x", 80, socket.inet_aton(name)) for name in (good, sys.argv[1])]
def connect():
    while goes_on():
        for where in places:
            reached[0] += tried(lambda: call("connect", fd, where, 16)) == "done"
            tried(lambda: call("bind", fd, where, 16))
            tried(lambda: call("listen", fd, 1))
threads = [threading.Thread(target=act) for act in (swap, connect, connect)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
answer = [reached[0] > 0, tried(talked, good)]
"""


def test_a_descriptor_that_changes_during_its_check_opens_nothing(who, world):
    """Let threads replace the descriptor while the supervisor checks it. The supervisor must
    connect only to the allowed address, and must stay responsive. As a sanity check, outside the
    sandbox both addresses are reached.
    """
    assert outside(who, TALK + SWAP, OTHER) == [True, "done"]
    assert {address for address, _ in world.arrived} == {PUBLIC, OTHER}
    world.arrived.clear()
    assert inside(who, TALK + SWAP, OTHER, flags=ALLOW) == [True, "done"]
    assert {address for address, _ in world.arrived} == {PUBLIC}


ORDINARY = """
import select
good = resolved("good.test")
def served(end):
    end.sendall(b"GET")
    return end.recv(64).decode()
def without_waiting():
    end = socket.socket()
    end.setblocking(False)
    code = end.connect_ex((good, 80))
    select.select([], [end], [])
    error, blocking = end.getsockopt(1, 4), end.getblocking()
    end.setblocking(True)
    return [code in (0, errno.EINPROGRESS), error, blocking, served(end)]
def sent():
    one, two = socket.socketpair()
    end = socket.socket()
    socket.send_fds(one, [b"x"], [end.fileno()])
    end.close()
    [fd] = socket.recv_fds(two, 1, 1)[1]
    with socket.socket(fileno=fd) as end:
        end.connect((good, 80))
        return served(end)
def by_child():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, served(connected(good)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(reading, 64).decode()
def cloexec(flag):
    end = socket.socket()
    end.set_inheritable(not flag)
    end.connect((good, 80))
    return end.get_inheritable()
answer = {
    "without waiting": without_waiting(), "sent": sent(), "child": by_child(),
    "inheritable": [cloexec(False), cloexec(True)], "peer": connected(good).getpeername() == (good, 80),
}
"""


def test_ordinary_uses_of_sockets_work(who, world):
    held = inside(who, TALK + ORDINARY, flags=(*ALLOW, "--allow-subprocess"))
    assert held == {
        "without waiting": [True, 0, False, "welcome"],
        "sent": "welcome",
        "child": "welcome",
        "inheritable": [True, False],
        "peer": True,
    }


def test_hosts_are_reached_without_ipv6(who, world):
    """Turn IPv6 off, as some container engines do. An IPv6 socket must still reach allowed hosts
    through mapped IPv4 addresses.
    """
    world.near.ip("address", "del", "::1/128", "dev", "lo")
    try:
        code = 'answer = tried(talked, "::ffff:" + resolved("good.test"), 80, socket.AF_INET6)'
        assert inside(who, TALK + code, flags=ALLOW) == "done"
    finally:
        world.near.ip("address", "add", "::1/128", "dev", "lo")


QUERY = """
def query(name):
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + bytes(1) + struct.pack("!HH", 1, 1)
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.settimeout(20)
end.sendto(query("good.test"), ("127.0.0.1", 53))
first, sender = end.recvfrom(4096)
end.sendto(query("bad.test"), ("127.0.0.1", 53))
peeked = end.recvfrom(4096, socket.MSG_PEEK)[0]
short, _ = end.recvfrom(4)
end.setblocking(False)
answer = [first[-4:].hex()[:4], sender, peeked[3] & 15, len(short), tried(end.recvfrom, 4096)]
answer += [end.getsockname()[0], tried(end.connect, ("8.8.8.8", 53)), tried(end.bind, ("0.0.0.0", 0)),
           tried(end.bind, ("0.0.0.0", 5353))]
"""


def test_a_program_can_resolve_names_by_itself(who):
    """Let the target send DNS queries itself. In place of a datagram socket it gets one end of a
    pair of unix sockets, for which the kernel reports no sender.

    If pidfd_getfd works, the supervisor receives the answer for the target, and adds the sender.
    Otherwise the target's own call receives the answer, and Python sees no sender.
    """
    sender = ["127.0.0.1", 53] if who.tier == "bare" else None
    held = inside(who, TALK + QUERY, flags=ALLOW)
    assert held == ["c01f", sender, 3, 4, "EAGAIN", "127.0.0.1", "done", "done", "EACCES"]


BEFORE = """
import select
good = resolved("good.test")
end = socket.socket()
copy = end.dup()
waiting = select.epoll()
waiting.register(end, select.EPOLLIN)
end.settimeout(20)
end.connect((good, 80))
end.sendall(b"GET")
events = waiting.poll(60)
answer = [bool(events) and events[0][1], tried(copy.getpeername)]
"""


def test_copies_of_a_connected_socket_are_connected_too_where_pidfd_getfd_works(who, world):
    """Connect a socket after the target has copied it and registered it with epoll. With
    pidfd_getfd the supervisor connects the target's own socket, so the copy is connected too.
    Without pidfd_getfd it replaces the socket with another file, so the copy is not connected, and
    `explain` says so.
    """
    held = inside(who, TALK + BEFORE, flags=ALLOW)
    # 1 is EPOLLIN, and 16 is EPOLLHUP.
    assert held == ([1, "done"] if who.tier == "bare" else [16, "ENOTCONN"])
    said = who.corral("explain", *ALLOW, "--", "/bin/true").stdout.decode()
    assert ("epoll registrations" in said) == (who.tier == "replaced")


LINGERING = """
import array, select
end = connected(resolved("good.test"), 81)
end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
lingers = end.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0]
end.setblocking(False)
while select.select([], [end], [], 1)[1]:
    tried(end.send, bytes(65536))
if sys.argv[1:]:
    pair = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    pair.sendmsg([b"xx"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [end.fileno()]))])
    end.close()
    resolved("good.test")
else:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
answer = lingers
"""


def test_a_lingering_socket_does_not_block_the_supervisor(who, world):
    """Let the target set SO_LINGER on a socket whose data never arrives. With this option, the last
    process that closes the socket is blocked. This could be the supervisor, because the target can
    send it the socket. Therefore setting the option must have no effect.
    """
    ended = threading.Event()
    world.serve(lambda _: ended.wait(), port=81)
    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        assert inside(who, TALK + LINGERING, "send", flags=("--allow-net", "good.test:81")) == 0
        assert outside(who, TALK + LINGERING) == 1


def test_a_target_that_hides_its_memory_gets_no_connections_unless_root_runs_corral(
    who, world, scratch
):
    """Let the target make its memory unreadable with PR_SET_DUMPABLE. The supervisor reads the
    address of each connection from this memory. An ordinary user's supervisor must deny the
    connection and report why. Root's supervisor can still read the memory, and connects.
    """
    report = scratch / "report.json"
    code = """
good = resolved("good.test")
first = tried(talked, good)
call("prctl", 4, 0, 0, 0, 0)
answer = [first, tried(talked, good)]
"""
    held = inside(who, TALK + code, flags=(*ALLOW, "--report", str(report)))
    denials = [row["why"] for row in json.loads(report.read_text())["denials"]]
    if who.uid == 0:
        assert (held, denials) == (["done", "done"], [])
    else:
        assert held == ["done", "EACCES"]
        assert denials == ["the process hides its memory: PR_SET_DUMPABLE"]


def test_a_target_that_closes_its_streams_keeps_its_walls(who, world, scratch):
    """Let the target close stdin, stdout and stderr, and write its answers to a granted file
    instead. Its walls and grants must remain.
    """
    place = scratch / "granted"
    place.mkdir()
    os.chown(place, who.owner, who.owner)
    code = f"""
for fd in (0, 1, 2):
    os.close(fd)
said = [tried(talked, resolved("good.test")), tried(connected, "203.0.113.7")]
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
put({str(place / "said")!r}, json.dumps(said))
"""
    source = f"import json, os, sys\n{PRELUDE}{TALK}{code}"
    done = who.run(who.python, "-c", source, flags=(*ALLOW, "--write", str(place)))
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads((place / "said").read_text()) == ["done", "ECONNREFUSED"]


LATER = """
print(resolved("good.test"), flush=True)
sys.stdin.readline()
print(tried(talked, "GOOD"), flush=True)
"""


def started(who):
    source = f"import json, os, sys\n{PRELUDE}{TALK}{LATER}".replace(
        '"GOOD"', 'resolved("good.test")'
    )
    argv = who.corral_argv("run", *ALLOW, "--", who.python, "-c", source)
    pipe = subprocess.PIPE
    process = who.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout.readline().startswith(b"192.31.196.")
    return process


def find_supervisor(process):
    """Return the supervisor's pid. It is the pid of the started process, because the wrappers
    around corral replace themselves with corral.
    """
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        assert b"corral.cli" in file.read()
    return process.pid


def test_a_target_waits_for_a_stopped_supervisor(who, world):
    """Check that the target waits while the supervisor is paused, and continues afterwards."""
    process = started(who)
    os.kill(find_supervisor(process), signal.SIGSTOP)
    process.stdin.write(b"\n")
    process.stdin.flush()
    target_sleeps(process)
    assert not world.arrived
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert out == b"done\n"
    assert world.arrived == [(PUBLIC, 80)]


def target_sleeps(process):
    """Wait until the target is blocked in an unanswered call."""
    [guardian] = children(process.pid)
    [target] = children(guardian)
    while True:
        with open(f"/proc/{target}/wchan", encoding="ascii") as file:
            if "seccomp" in file.read():
                return


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()


def test_a_target_ends_with_a_killed_supervisor(who, world):
    """Kill the supervisor before the target has connected. The target must end too."""
    process = started(who)
    [guardian] = children(find_supervisor(process))
    [target] = children(guardian)
    pidfd = os.pidfd_open(int(target))
    os.kill(process.pid, signal.SIGSTOP)
    process.stdin.write(b"\n")
    process.stdin.flush()
    target_sleeps(process)
    os.kill(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert out == b""
    import select

    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    assert not world.arrived


@pytest.fixture
def engine(package, user):
    """Return the same user in a container engine that has installed a seccomp listener."""
    return make_user(user.name, package, "listened")


def test_an_allowlist_is_refused_if_a_container_engine_has_the_only_seccomp_listener(
    engine, scratch
):
    """Check that the refusal names the cause: the kernel allows only one seccomp listener, and the
    container engine has it. A run without an allowlist works.
    """
    report = scratch / "report.json"
    refused = engine.run("/bin/true", flags=(*ALLOW, "--report", str(report)))
    assert refused.returncode == 125
    said = refused.stderr.decode()
    assert "this host cannot enforce network" in said
    assert (
        "the engine around corral has the seccomp listener, and the kernel allows only one" in said
    )
    hint = said.partition("hint: ")[2]
    assert "start the container with a seccomp profile that has no `listenerPath`" in hint
    assert json.loads(report.read_text())["outcome"]["kind"] == "refused"
    closed = "import socket\nanswer = tried(socket.socket)"
    assert inside(engine, closed) == "EPERM"
    # With `--best-effort` the run starts, but its network is closed.
    assert inside(engine, closed, flags=(*ALLOW, "--best-effort")) == "EPERM"


UNIX = """
import socket
def talked(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as end:
        end.connect(path)
        end.sendall(b"hello")
        return end.recv(64).decode()
def said(*arguments):
    try:
        return talked(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
granted, other, link = sys.argv[1:4]
os.chdir(os.path.dirname(granted))
answer = {
    "granted": said(granted), "relative": said(os.path.basename(granted)), "other": said(other), "link": said(link),
    "dots": said(os.path.dirname(granted) + "/x/../" + os.path.basename(granted)),
    "abstract": said(sys.argv[4]), "missing": said(granted + "-not"),
    "datagrams": said(granted, socket.SOCK_DGRAM),
}
"""


@pytest.fixture
def unix_servers(user, scratch):
    """Start servers that send their own name and their client's user id."""
    with contextlib.ExitStack() as stack:
        names = [
            str(scratch / "granted.sock"),
            str(scratch / "other.sock"),
            "\0corral-test-" + scratch.name,
        ]
        for name in names:
            end = stack.enter_context(socket.socket(socket.AF_UNIX))
            end.bind(name)
            end.listen(8)
            if name.startswith("/"):
                os.chown(name, user.owner, user.owner)
            thread = threading.Thread(target=serve_unix, args=(end, name.rpartition("/")[2]))
            thread.start()
            stack.callback(thread.join)
            stack.callback(end.shutdown, socket.SHUT_RDWR)
        os.symlink(names[1], scratch / "link")
        yield names


def serve_unix(listener, name):
    while True:
        try:
            end = listener.accept()[0]
        except OSError:
            return
        with end:
            _, uid, _ = struct.unpack(
                "=iii", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if end.recv(64):
                end.sendall(f"{name} {uid}".encode())


def test_a_granted_unix_socket_is_reached_and_no_other(user, scratch, unix_servers):
    """Check that the target reaches the granted path in every spelling, and no other path. The
    server sees the target's user id.
    """
    granted, other, abstract = unix_servers
    policy = scratch / "policy.toml"
    policy.write_text(f'version = 1\n[filesystem]\nunix_sockets = ["{granted}"]\n')
    os.chown(policy, user.owner, user.owner)
    words = (granted, other, str(scratch / "link"))
    code = UNIX.replace("sys.argv[4]", repr(abstract))
    report = scratch / "report.json"
    held = inside(user, code, *words, flags=("--policy", str(policy), "--report", str(report)))
    reached = f"granted.sock {user.owner}"
    assert held == {
        **dict.fromkeys(("granted", "relative", "dots"), reached),
        **dict.fromkeys(("other", "link", "abstract", "missing"), "EACCES"),
        "datagrams": "EPERM",
    }
    denied = [row["destination"] for row in json.loads(report.read_text())["denials"]]
    assert other in denied
    closed = inside(
        user, "import socket\nanswer = [tried(socket.socket, family) for family in (1, 2)]"
    )
    assert closed == ["EPERM", "EPERM"]
    free = user.outside(PRELUDE + code, *words)
    assert (free["other"], free["link"]) == (f"other.sock {user.uid}",) * 2


def test_a_replaced_unix_socket_is_not_reached(user, scratch, unix_servers):
    """Check that the grant is for the file, not for its path. If another server makes a socket at
    the same path, the target must not reach it.
    """
    granted, other, _ = unix_servers
    policy = scratch / "policy.toml"
    policy.write_text(f'version = 1\n[filesystem]\nunix_sockets = ["{granted}"]\n')
    os.chown(policy, user.owner, user.owner)
    code = (
        UNIX.partition("granted, other")[0]
        + """
print("ready", flush=True)
sys.stdin.readline()
print(said(sys.argv[1]), flush=True)
"""
    )
    script = f"import json, os, sys\n{PRELUDE}{code}"
    argv = user.corral_argv(
        "run", "--policy", str(policy), "--", user.python, "-c", script, granted
    )
    pipe = subprocess.PIPE
    process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout.readline() == b"ready\n"
    os.rename(other, granted)
    out, err = process.communicate(b"\n", timeout=60)
    assert out.startswith((b"granted.sock", b"ECONNREFUSED")), err


LOCK = """
PACKAGE = sys.argv[1]
sys.path.insert(0, PACKAGE)
import socket, threading
from corral.abi import linux as abi
from corral.abi import linux_notifications as listening
from corral.plan.model import Results
from corral.platforms.linux.mechanisms import landlock, seccomp_compiler, seccomp_rules
server = socket.create_server(("127.0.0.1", 0))
where = server.getsockname()
ours, theirs = socket.socketpair()
pid = os.fork()
if pid == 0:
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    landlock.Landlock(read=("/",), write=(), deny_tcp=sys.argv[2] == "locked").apply(Results())
    rules = seccomp_rules.target_rules(subprocess=True, unix_sockets=False, namespaces=False, cookie=None, broker=True)
    program = seccomp_rules.compile_filter(os.uname().machine, rules)
    fd = abi.seccomp_set_filter(program, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER)
    socket.send_fds(theirs, [b"x"], [fd])
    os.close(fd)
    end = socket.socket()
    theirs.sendall(str(end.connect_ex(where)).encode())
    os._exit(0)
theirs.close()
[listener] = socket.recv_fds(ours, 1, 1)[1]
# This answer lets the call continue in the kernel. The socket broker never gives it for connect.
listening.send(listener, listening.receive(listener).id, flags=1)
answer = errno.errorcode.get(int(ours.recv(16)), "done")
os.waitpid(pid, 0)
"""


def test_landlock_refuses_connects_that_the_broker_let_pass(user):
    """Let a connect that is not granted continue in the kernel, as if the socket broker had a bug.
    Landlock must still refuse the connect. As a sanity check, the connect succeeds without
    Landlock.
    """
    assert outside(user, LOCK, str(user.package), "open") == "done"
    if (
        user.outside(
            f"sys.path.insert(0, {str(user.package)!r})\nfrom corral.abi import linux\nanswer = linux.landlock_abi()"
        )
        >= 4
    ):
        assert outside(user, LOCK, str(user.package), "locked") == "EACCES"


@pytest.mark.parametrize("capabilities", ["-sys_ptrace", "-all"])
def test_root_with_fewer_capabilities_has_the_same_network(who, world, capabilities):
    """Run corral as root with fewer capabilities. Without CAP_SYS_PTRACE, root cannot read the
    memory of another user's process, so corral reads it as that user.

    Without any capabilities, corral cannot change the target's user id, so it stays root's.
    """
    if who.uid:
        pytest.skip("an ordinary user has no capabilities")
    script = f"import json, os, sys\n{PRELUDE}{TALK}{ADDRESSES}\nprint(json.dumps([os.getuid(), answer]))"
    argv = who.corral_argv("run", *ALLOW, "--", who.python, "-c", script)
    drop = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
    pipe = subprocess.PIPE
    process = who.popen([*drop, *argv], stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    uid, held = json.loads(out)
    assert uid == (who.owner if capabilities == "-sys_ptrace" else 0)
    assert held.pop("good") == "done"
    assert held == dict.fromkeys(held, "ECONNREFUSED")
    assert world.arrived == [(PUBLIC, 80)]


LISTENER = """
machine = os.uname().machine
program = struct.pack("HBBI", 6, 0, 0, 0x7FC00000)  # notify every call
where = ctypes.create_string_buffer(program, len(program))
filled = struct.pack("@HP", 1, ctypes.addressof(where))
call("prctl", 38, 1, 0, 0, 0)
answer = [tried(lambda: call("seccomp", 1, flags, filled)) for flags in (8, 8 | 16, 8 | 7 << 32)]
"""


def test_a_target_cannot_install_a_seccomp_listener(user):
    """Try to install a seccomp listener, which decides about system calls. If a process has two
    listeners, the kernel asks only the newer one. A target with its own listener could therefore
    allow connects that corral denies.
    """
    assert inside(user, LISTENER, flags=ALLOW) == ["EPERM"] * 3
    # Sanity check: outside, the child can install a listener. Its next call then waits for an
    # answer forever, so kill the child.
    code = f"""
{PRELUDE}
pid = os.fork()
if pid == 0:
    exec(compile(sys.argv[1], "listener", "exec"))
while not (state := open(f"/proc/{{pid}}/wchan").read()).startswith("seccomp"):
    pass
os.kill(pid, 9)
os.waitpid(pid, 0)
answer = state
"""
    assert user.outside(
        code, PRELUDE.replace("import", "import json, os, sys,", 1) + LISTENER
    ).startswith("seccomp")
