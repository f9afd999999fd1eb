"""Whether an AppContainer holds: a Python inside one, what it must not reach, and its control.

Everything is as in a real run: the interpreter is copied into the store, the profile is made and
deleted, the process is born by the same code.
"""

from __future__ import annotations

import os
import socket

from corral.abi import win32_process as abi
from corral.errors import SandboxError
from corral.network.destinations import check_from_policy
from corral.network.http_proxy.outbound import Outbound
from corral.platforms.windows import undo
from corral.platforms.windows.environment import machine
from corral.platforms.windows.mechanisms import app_container, process_creation
from corral.platforms.windows.probes import trial
from corral.platforms.windows.relay import start as relay_start
from corral.platforms.windows.relay.outside import Relay
from corral.platforms.windows.runtime_copies import python_paths
from corral.platforms.windows.runtime_copies.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Step
    from corral.platforms.windows.mechanisms.job import Job

ATTEMPTS = """
import os, socket, sys

def attempt(act):
    try:
        act()
    except OSError:
        return "denied"
    return "done"

def write_own():
    path = os.path.join(os.environ["TEMP"], "corral-probe")
    open(path, "x").close()
    os.unlink(path)

def connect():
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), 2).close()

print(attempt(lambda: open(sys.argv[1]).read()), attempt(connect), attempt(write_own))
"""


ASK = """
import os, socket, sys
from urllib.parse import urlsplit

proxy = urlsplit(os.environ["HTTPS_PROXY"])

def ask(port):
    with socket.create_connection((proxy.hostname, proxy.port), 10) as end:
        end.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        return end.recv(64).split()[1].decode()

print(*(ask(port) for port in sys.argv[1:]))
"""


def steps() -> tuple[Step, ...]:
    """A container of a probe's own, with nothing granted but the copy of the interpreter."""
    home = os.path.expanduser("~")
    try:
        copies = python_paths.copies(home)
    except SandboxError as error:
        raise OSError(0, error.message) from error
    run = f"probe-{os.urandom(8).hex()}"
    name = app_container.profile_name("probe", run)
    private = app_container.folder(python_paths.local(home), name)
    return (
        undo.Claim(directory=python_paths.journals(), run=run, profile=name, roots=()),
        app_container.Profile(name=name, capabilities=copies.sids, home=private),
        copies,
    )


def effect(plain: Job) -> str:
    """OSError unless a file of the user's and loopback are denied inside and not outside."""
    if abi.session_of(os.getpid()) == 0:
        raise OSError(0, "no AppContainer starts in session 0, where services and SSH run")
    secret = os.path.join(os.path.expanduser("~"), f"corral-probe-{os.urandom(8).hex()}")
    with open(secret, "x", encoding="utf-8"):
        pass
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            arguments = (secret, str(listener.getsockname()[1]))
            outside = trial.observe(ATTEMPTS, (plain, process_creation.Creation()), *arguments)
            inside = trial.observe(
                ATTEMPTS, (*steps(), plain, process_creation.Creation()), *arguments
            )
    finally:
        os.unlink(secret)
    if outside.said != "done done done":
        raise OSError(0, f"the control failed: {outside.said}")
    if inside.said != "denied denied done":
        code = (inside.reaped.status or 0) >> 8
        raise OSError(0, f"inside: {inside.said or 'nothing'} (exit code {code:#x})")
    return "python inside could write its own directory, not read the user's files or use loopback"


def relayed(plain: Job) -> str:
    """OSError unless a named port is reached through the relay, and another one is not."""
    base = steps()
    copies = next(step for step in base if isinstance(step, Store))
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("", 0)) as other:
        ports = [str(listener.getsockname()[1]) for listener in (named, other)]
        hosts = relay_start.NamedHosts(
            allow=(f"127.0.0.1:{ports[0]}",),
            python=copies.program.path,
            environment=tuple(machine().items()),
        )
        running = trial.start(ASK, (*base, hosts, plain, process_creation.Creation()), *ports)
        reader, writer = running.child.doors()
        outer = Relay(reader, writer, Outbound(check_from_policy(hosts.allow, (), {}, None)))
        seen = running.finish()
        outer.close()
    if seen.said != "200 403":
        raise OSError(0, f"the named port and another one: {seen.said or 'nothing'}")
    return "a program inside reached a named port through its proxy, and no other one"
