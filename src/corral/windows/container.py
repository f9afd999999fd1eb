"""Whether an AppContainer holds: a Python inside one, what it must not reach, and its control.

Everything is as in a real run: the interpreter is copied into the store, the profile is made and
deleted, the process is born by the same code.
"""

from __future__ import annotations

import os
import socket

from corral.abi import win32_process as abi
from corral.windows import app_container, launchers, layering, process, residue, runtimes, trial

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
STORE_APPS = "\\windowsapps\\"


def steps() -> tuple[Step, ...]:
    """A container of a probe's own, with nothing granted but the copy of the interpreter."""
    path = trial.interpreter()
    if STORE_APPS in path.lower():
        raise OSError(0, "this Python came from the Store, and its files cannot be copied", path)
    home = os.path.expanduser("~")
    program = launchers.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    copies = runtimes.plan(program, directory=layering.store())
    run = f"probe-{os.urandom(8).hex()}"
    name = app_container.profile_name("probe", run)
    private = app_container.folder(layering.local(home), name)
    return (
        residue.Claim(directory=layering.journals(), run=run, profile=name, roots=()),
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
