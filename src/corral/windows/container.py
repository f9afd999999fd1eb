"""Whether an AppContainer holds: a Python inside one, what it must not reach, and its control.

Everything is as in a real run: the interpreter is copied into the store, the profile is made and
deleted, the process is born by the same code.
"""

from __future__ import annotations

import os
import socket

from corral.abi import win32_process as abi
from corral.errors import SandboxError
from corral.network.denials import Denials
from corral.network.outbound import Outbound
from corral.network.rules import rules_of
from corral.windows import app_container, own_python, process, relay_start, residue, trial
from corral.windows.environment import machine
from corral.windows.relay import Relay
from corral.windows.runtimes import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan import Step
    from corral.windows.job import Job

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
        copies = own_python.copies(home)
    except SandboxError as error:
        raise OSError(0, error.message) from error
    run = f"probe-{os.urandom(8).hex()}"
    name = app_container.profile_name("probe", run)
    private = app_container.folder(own_python.local(home), name)
    return (
        residue.Claim(directory=own_python.journals(), run=run, profile=name, roots=()),
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
            outside = trial.observe(ATTEMPTS, (plain, process.Creation()), *arguments)
            inside = trial.observe(ATTEMPTS, (*steps(), plain, process.Creation()), *arguments)
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
        running = trial.start(ASK, (*base, hosts, plain, process.Creation()), *ports)
        reader, writer = running.child.doors()
        outer = Relay(
            reader, writer, Outbound(rules=rules_of(hosts.allow), denials=Denials(), proxy=None)
        )
        seen = running.finish()
        outer.close()
    if seen.said != "200 403":
        raise OSError(0, f"the named port and another one: {seen.said or 'nothing'}")
    return "a program inside reached a named port through its proxy, and no other one"
