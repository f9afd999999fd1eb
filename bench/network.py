"""Compare transfers and connections through the gateway with loopback and with srt's proxy.

corral is measured with namespaces (the gateway) and without them (the socket broker). The client
starts its clock right before its first connection, so the start of the client does not count.
Budgets are ratios of times: 2 means half the throughput. A flood of refused connections shows how
much CPU time a target can make its supervisor use. The kernel counts this time in whole ticks, so a
short time is only a rough value.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import measure
import peers
import processes
from measure import Ratio, Section, Stats

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

DIRECT, GATEWAY, BROKER, SRT = "loopback", "gateway", "broker", "srt"
LOCAL = "127.0.0.1"
NOWHERE = "192.0.2.1"
"""An address reserved for documentation (RFC 5737): it is not allowed, and no host has it."""
MEGABYTES, CONNECTIONS = 512, 400
THROUGHPUT = 2.0
BROKER_THROUGHPUT, BROKER_REQUEST = 1.25, 1.3
"""Budgets for the broker. A budget is the broker's time divided by the gateway's time: 1.25 is 0.8
of the gateway's throughput, and a request may take 1.3 times as long.
"""
REFUSED_CONNECTS, FLOOD_THREADS = 2000, 8
MAX_FLOOD_CPU = 0.1
"""The share of one processor that the supervisor may use during a flood of refused connections."""
SYSTEM_PYTHON = "/usr/bin/python3"
WITHOUT_NAMESPACES = """
import os, sys
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler as compiler
machine = os.uname().machine
table = TABLES[machine]
denied, absent = compiler.errno_action(1), compiler.errno_action(38)
rules = dict.fromkeys(table.values(), compiler.ALLOW)
rules.update({table["unshare"]: denied, table["mount"]: denied, table["clone3"]: absent})
flags = abi.CLONE_NEWUSER, abi.CLONE_NEWNS, abi.CLONE_NEWPID, abi.CLONE_NEWNET
kinds = tuple(((compiler.low(0, flag, flag),), denied) for flag in flags)
rules[table["clone"]] = (kinds, compiler.ALLOW)
limit = 0x40000000 if machine == "x86_64" else None
arch = AUDIT_ARCHES[machine]
program = compiler.assemble(rules, arch=arch, unknown=absent, number_limit=limit)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
abi.seccomp_set_filter(program)
os.execv(sys.argv[1], sys.argv[1:])
"""
BLOCK = 1 << 18
CLIENT = f"""
import base64, os, socket, sys, time, urllib.parse
kind, port, amount, route = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
block = bytearray({BLOCK})
def direct():
    return socket.create_connection(("{LOCAL}", port))
def tunnel():
    # Clients that use the proxy variable send CONNECT. All bytes after the answer are the server's.
    end = socket.create_connection((proxy.hostname, proxy.port))
    end.sendall(request)
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += end.recv(1) or sys.exit("the proxy hung up")
    if b" 200 " not in head.partition(b"\\r\\n")[0]:
        sys.exit(head.decode())
    return end
connect = direct
if route == "proxy":
    connect = tunnel
    proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
    key = urllib.parse.unquote(proxy.username) + ":" + urllib.parse.unquote(proxy.password)
    key = base64.b64encode(key.encode()).decode()
    where = f"{LOCAL}:{{port}}"
    request = f"CONNECT {{where}} HTTP/1.1\\r\\nHost: {{where}}\\r\\n"
    request = f"{{request}}Proxy-Authorization: Basic {{key}}\\r\\n\\r\\n".encode()
    patience = time.monotonic() + 20
    while True:  # the proxy starts at the same time as the client, and may not listen yet
        try:
            socket.create_connection((proxy.hostname, proxy.port)).close()
            break
        except ConnectionRefusedError:
            if time.monotonic() > patience:
                raise
def many():
    for _ in range(amount):
        with connect() as end:
            end.sendall(b"0\\n")
            end.recv(1)
def large():
    with connect() as end:
        end.sendall(b"%d\\n" % amount)
        while end.recv_into(block):
            pass
def upload():
    with connect() as end:
        end.sendall(b"-%d\\n" % amount)
        for _ in range(amount * (1 << 20) // len(block)):
            end.sendall(block)
        end.shutdown(socket.SHUT_WR)
        end.recv(1)
def latency():
    with connect() as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.sendall(b"e\\n")
        for _ in range(amount):
            end.sendall(b"x")
            end.recv(1)
started = time.perf_counter_ns()
dict(many=many, large=large, upload=upload, latency=latency)[kind]()
print((time.perf_counter_ns() - started) / 1e6)
"""
FLOOD = f"""
import socket, sys, threading
amount = int(sys.argv[1])
def flood():
    for _ in range(amount // {FLOOD_THREADS}):
        with socket.socket() as end:
            try:
                end.connect(("{NOWHERE}", 9))
                while end.recv(1):
                    pass
            except OSError:
                refused.append(1)
refused = []
threads = [threading.Thread(target=flood) for _ in range({FLOOD_THREADS})]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(refused), flush=True)
sys.stdin.readline()
"""
PARTS = (
    ("large", "download", MEGABYTES, THROUGHPUT, BROKER_THROUGHPUT),
    ("upload", "upload", MEGABYTES, THROUGHPUT, BROKER_THROUGHPUT),
    ("many", "connections", CONNECTIONS, None, BROKER_REQUEST),
    ("latency", "round trip of a byte", 2000, None, None),
)


def serve(listener: socket.socket) -> None:
    """Accept connections forever, and answer the line that each client sends."""
    block = bytearray(BLOCK)
    while True:
        end = listener.accept()[0]
        with end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = b""
            while not asked.endswith(b"\n"):
                asked += end.recv(1) or b"\n"
            _answer(end, asked.strip(), block)


def _answer(end: socket.socket, asked: bytes, block: bytearray) -> None:
    if asked == b"e":
        while byte := end.recv(1):
            end.sendall(byte)
    elif asked.startswith(b"-"):
        while end.recv_into(block):
            pass
        end.sendall(b"x")
    elif asked == b"0":
        end.sendall(b"x")
    elif asked:
        for _ in range(int(asked) * (1 << 20) // len(block)):
            end.sendall(block)


@dataclasses.dataclass(frozen=True)
class Start:
    """The command that starts a client, and whether the client has to connect through a proxy."""

    wrapper: tuple[str, ...] = ()
    proxy: bool = False


@dataclasses.dataclass(frozen=True)
class Flood:
    """The result of one flood: how many connections were refused, how much CPU time the supervisor
    used (in seconds), and how many seconds the flood took.
    """

    refused: int
    cpu: float
    seconds: float


def client(
    start: Start, environment: Mapping[str, str], kind: str, port: int, amount: int
) -> float:
    """Run a client, and return how many milliseconds its connections took."""
    words = [kind, str(port), str(amount), "proxy" if start.proxy else "direct"]
    command = [*start.wrapper, find_python(), "-I", "-c", CLIENT, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(start.wrapper) or 'the client'} failed: {done.stderr}")
    return float(done.stdout)


def find_python() -> str:
    """Return the path of the system's Python, or of this interpreter if the system has none.

    This interpreter may be in root's home. A target that root starts without namespaces has another
    user id and cannot read that home.
    """
    return SYSTEM_PYTHON if os.access(SYSTEM_PYTHON, os.X_OK) else sys.executable


def flood(start: Start, environment: Mapping[str, str], amount: int) -> Flood:
    """Let a target try connections that are all refused, and return how much CPU time its
    supervisor used for this.
    """
    command = [*start.wrapper, find_python(), "-I", "-c", FLOOD, str(amount)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        before, began = processes.cpu_seconds(process.pid), time.monotonic()
        print(file=process.stdin, flush=True)
        refused = int(process.stdout.readline())
        seconds = time.monotonic() - began
        return Flood(refused, processes.cpu_seconds(process.pid) - before, seconds)


def flood_section(
    options: argparse.Namespace,
    compared: Mapping[str, Start],
    environment: Mapping[str, str],
) -> Section:
    """Measure the flood once in each tier. Once is enough, because other processes do not change
    the supervisor's CPU time.
    """
    amount = REFUSED_CONNECTS // 4 if options.quick else REFUSED_CONNECTS
    ratios, notes = [], []
    for name in (GATEWAY, BROKER):
        if name not in compared:
            continue
        found = flood(compared[name], environment, amount)
        budget = MAX_FLOOD_CPU if name == BROKER else None
        ratios += [
            Ratio(f"{name}: supervisor's CPU time / time", found.cpu / found.seconds, budget),
            Ratio(
                f"{name}: supervisor's CPU ms per refused connect", found.cpu * 1000 / found.refused
            ),
        ]
        rate = found.refused / found.seconds
        notes.append(f"{name}: {found.refused} of {amount} refused, {rate:.0f} per second")
    title = f"A flood of {amount} refused connects by {FLOOD_THREADS} threads"
    return Section(title, "", (), tuple(ratios), tuple(notes))


def find_starts(
    directory: str, installed: peers.Installed, environment: Mapping[str, str], port: int
) -> tuple[dict[str, Start], list[str]]:
    """Return the contenders that work on this host, and the reason why each of the others
    does not.
    """
    run = (installed.corral, "run", "--allow-net", f"{LOCAL}:{port}", "--")
    found = {DIRECT: Start(), GATEWAY: Start(run)}
    absent = []
    tried = {BROKER: Start((installed.python, "-c", WITHOUT_NAMESPACES, *run))}
    wrapper = peers.srt_network(os.path.join(directory, "srt"), LOCAL)
    if isinstance(wrapper, peers.Missing):
        absent.append(f"{SRT} is absent: {wrapper.why}")
    else:
        tried[SRT] = Start(tuple(wrapper), proxy=True)
    for name, start in tried.items():
        try:
            client(start, environment, "many", port, 1)
        except SystemExit as error:
            absent.append(f"{name} is absent: it does not run here: {error}")
        else:
            found[name] = start
    return found, absent


def sections(
    options: argparse.Namespace,
    compared: Mapping[str, Start],
    environment: Mapping[str, str],
    port: int,
) -> Iterator[Section]:
    for kind, title, amount, budget, against_gateway in PARTS:
        asked = amount // 4 if options.quick else amount
        found = measure.interleave(
            {
                name: functools.partial(client, start, environment, kind, port, asked)
                for name, start in compared.items()
            },
            measure.rounds_of(options),
        )
        ratios = [measure.ratio(f"{GATEWAY} / {DIRECT}", found[GATEWAY], found[DIRECT], budget)]
        if BROKER in found:
            ours = found[BROKER]
            ratios += [
                measure.ratio(f"{BROKER} / {DIRECT}", ours, found[DIRECT], budget),
                measure.ratio(f"{BROKER} / {GATEWAY}", ours, found[GATEWAY], against_gateway),
            ]
        if SRT in found:
            ratios += [
                measure.ratio(f"{SRT} / {DIRECT}", found[SRT], found[DIRECT]),
                measure.ratio(f"{GATEWAY} / {SRT}", found[GATEWAY], found[SRT]),
            ]
        unit = "MB" if budget else "times"
        notes = (rates(unit, asked, found),)
        yield Section(f"{title}, {asked} {unit}", "ms", tuple(found.values()), tuple(ratios), notes)


def rates(unit: str, amount: int, found: Mapping[str, Stats]) -> str:
    """Format the best rate per second of each contender."""
    best = {name: amount * 1000 / stats.minimum for name, stats in found.items()}
    return f"{unit} per second: " + ", ".join(f"{name} {value:.0f}" for name, value in best.items())


def main() -> int:
    options = measure.parser(__doc__, rounds=10, only=("bytes", "flood")).parse_args()
    output = measure.Output(json_wanted=options.json)
    with measure.apart() as (directory, environment):
        output.notice("installing the checkout ...")
        installed = peers.install(os.path.join(directory, "corral"))
        with socket.create_server((LOCAL, 0), backlog=512) as listener:
            server = os.fork()
            if server == 0:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                serve(listener)
            try:
                port = listener.getsockname()[1]
                output.notice("looking for srt ...")
                compared, absent = find_starts(directory, installed, environment, port)
                for why in absent:
                    output.show(Section(why, ""))
                if "bytes" in (options.only or ["bytes"]):
                    for section in sections(options, compared, environment, port):
                        output.show(section)
                if "flood" in (options.only or ["flood"]):
                    output.show(flood_section(options, compared, environment))
            finally:
                os.kill(server, signal.SIGKILL)
                os.waitpid(server, 0)
    return output.finish()


if __name__ == "__main__":
    sys.exit(measure.guarded(main))
