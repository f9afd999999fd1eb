"""Probe whether an AppContainer confines a Python process. For comparison, the same process also
runs outside the AppContainer.

The probe uses the code of a real run: it copies the interpreter into the store, creates and deletes
a profile, and creates the process in the same way.
"""

from __future__ import annotations

import os
import socket

from corral.abi import win32_process as abi
from corral.denials.records import Denials
from corral.errors import SandboxError
from corral.network.destinations import check_from_policy
from corral.network.http_proxy.outbound import Outbound
from corral.plan import model
from corral.platforms.windows import undo
from corral.platforms.windows.files import journal
from corral.platforms.windows.layers import machine_variables
from corral.platforms.windows.mechanisms import app_container
from corral.platforms.windows.mechanisms.desktop import CAPABILITY as STATION
from corral.platforms.windows.mechanisms.desktop import PREFIX as DESKTOP_PREFIX
from corral.platforms.windows.mechanisms.desktop import PrivateDesktop
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.mechanisms.process_creation import Creation
from corral.platforms.windows.mechanisms.restricted_token import FilteredToken
from corral.platforms.windows.probes import trial
from corral.platforms.windows.relay.outside import Relay
from corral.platforms.windows.relay.start import NamedHosts
from corral.platforms.windows.runtime_copies import store

ATTEMPTS = """
import os, select, socket, sys

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

def pair():  # asyncio needs a pair, which on Windows is a connection over loopback
    one, other = socket.socketpair()
    one.close(), other.close()

def connect():  # Windows drops denied packets silently, so wait until a later connection succeeds
    with socket.socket() as end:
        end.setblocking(False)
        end.connect_ex(("127.0.0.1", int(sys.argv[2])))
        pair()
        select.select((), (end,), (), 2)
        end.getpeername()

acts = lambda: open(sys.argv[1]).read(), connect, write_own, pair
print(*map(attempt, acts))
"""
CLIPBOARD = """
import ctypes, sys, time
user, kernel = ctypes.WinDLL("user32"), ctypes.WinDLL("kernel32")
pointer, number = ctypes.c_void_p, ctypes.c_uint32
user.GetProcessWindowStation.restype = user.GetThreadDesktop.restype = pointer
user.GetThreadDesktop.argtypes = [number]
name = user.GetUserObjectInformationW
name.argtypes = [pointer, number, pointer, number, pointer]

def name_of(handle):
    text = ctypes.create_unicode_buffer(256)
    name(handle, 2, text, 512, None)
    return text.value

station = name_of(user.GetProcessWindowStation())
desktop = name_of(user.GetThreadDesktop(kernel.GetCurrentThreadId()))
for _ in range(int(sys.argv[1])):  # another program may have it open for a moment
    if user.OpenClipboard(None):
        user.CloseClipboard()
        print(station, desktop, "opened", sep="|")
        break
    time.sleep(0.05)
else:
    print(station, desktop, "denied", sep="|")
"""
CLIPBOARD_TRIES = 100
INTERACTIVE = "winsta0"
"""The window station that contains the user's windows."""


NUL = """
try:
    open("NUL", "r+b", buffering=0).close()
    print("open")
except OSError as error:
    print(error)
"""
ASK = """
import os, socket, sys
from urllib.parse import urlsplit

proxy = urlsplit(os.environ["HTTPS_PROXY"])

def ask(port):
    with socket.create_connection((proxy.hostname, proxy.port)) as end:
        end.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        return end.recv(64).split()[1].decode()

print(*(ask(port) for port in sys.argv[1:]))
"""


def steps(*, desktop: bool = True) -> tuple[model.Step, ...]:
    """Return the steps for an AppContainer to which only the copied interpreter is granted."""
    home = os.path.expanduser("~")
    try:
        copies = store.plan_own_interpreter(home)
    except SandboxError as error:
        raise OSError(0, error.message) from error
    run = f"probe-{os.urandom(8).hex()}"
    name = app_container.profile_name("probe", run)
    private = app_container.profile_folder(home, name)
    sids = (*copies.sids, *((STATION,) if desktop else ()))
    profile = app_container.Profile(profile=name, capabilities=sids, home=private)
    claim = undo.Claim(directory=journal.default_directory(), run=run, profile=name, roots=())
    own = (PrivateDesktop(package=profile.package),) if desktop else ()
    return (claim, profile, FilteredToken(), *own, copies)


def try_desktop(plain: Job) -> str:
    """Check that a process in an AppContainer has its own desktop and no clipboard. Raise OSError
    otherwise.

    Usually the process also has its own window station. In session 0 corral may already be in that
    station, and then only the desktops differ.
    """
    outside = trial.observe(CLIPBOARD, (plain, Creation()), str(CLIPBOARD_TRIES))
    inside = trial.observe(CLIPBOARD, (*steps(), plain, Creation()), str(CLIPBOARD_TRIES // 5))
    where, _, clipboard = _split_names(outside)
    if not where:
        raise OSError(0, f"the sanity check failed: {outside.last_line()}")
    if clipboard != "opened":
        # Another program may be using the clipboard at this moment, so the probe has to be repeated
        # later. A TimeoutError makes the finding "unknown", and such a finding is not cached.
        raise TimeoutError(0, "the sanity check failed: the clipboard may be in use")
    station, own, clipboard = _split_names(inside)
    shared = where.lower() == station.lower() == INTERACTIVE
    if not station or shared or not own.startswith(DESKTOP_PREFIX) or clipboard != "denied":
        raise OSError(0, f"inside: {inside.last_line()}")
    return f"python inside was in {station}\\{own}, without a clipboard, and outside in {where}"


def _split_names(seen: trial.Outcome) -> tuple[str, str, str]:
    """Return the window station, the desktop and the state of the clipboard from the output of the
    program CLIPBOARD. Return empty strings for any other output.
    """
    words = seen.output.split("|")
    return (words[0], words[1], words[2]) if len(words) == 3 else ("", "", "")


def try_walls(plain: Job, *, desktop: bool) -> str:
    """Check that a process in an AppContainer can use neither the user's files nor the host's
    loopback, and as a sanity check that a process outside can use both. Raise OSError otherwise.
    """
    if not desktop and abi.session_of(os.getpid()) == 0:
        raise OSError(0, "in session 0, where services and SSH run, the user has no desktop")
    secret = os.path.join(os.path.expanduser("~"), f"corral-probe-{os.urandom(8).hex()}")
    with open(secret, "x", encoding="utf-8"):
        pass
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)  # so that `_accept` does not wait
            arguments = (secret, str(listener.getsockname()[1]))
            outside = trial.observe(ATTEMPTS, (plain, Creation()), *arguments)
            heard = _accept(listener)
            inside = trial.observe(
                ATTEMPTS, (*steps(desktop=desktop), plain, Creation()), *arguments
            )
            reached = _accept(listener)
    finally:
        os.unlink(secret)
    if outside.output != "done done done done" or not heard:
        raise OSError(0, f"the sanity check failed: {outside.last_line()}")
    if reached:
        raise OSError(0, "a connection from inside arrived on the host's loopback")
    if inside.output != "denied denied done done":
        code = (inside.reaped.status or 0) >> 8
        raise OSError(0, f"inside: {inside.last_line()} (exit code {code:#x})")
    return (
        "python inside could write its own directory and connect to itself, "
        "but not read the user's files or use the host's loopback"
    )


def _accept(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def try_nul(base: tuple[model.Step, ...]) -> str:
    """Check that a program in an AppContainer can open NUL. Raise OSError otherwise.

    No wall depends on NUL, but many programs do not work without it.
    """
    seen = trial.observe(NUL, (*base, Creation()))
    if seen.output != "open":
        text = "a program that opens NUL, as `subprocess.DEVNULL` does, needs the preload"
        raise OSError(0, f"{seen.last_line()}: {text}")
    return "a program inside could open NUL"


def try_relay(base: tuple[model.Step, ...]) -> str:
    """Check that a program in an AppContainer reaches a port in `network.allow` through the relay,
    but no other port. Raise OSError otherwise.
    """
    copies = store.find(base)
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("", 0)) as other:
        ports = [str(listener.getsockname()[1]) for listener in (named, other)]
        hosts = NamedHosts(
            allow=(f"127.0.0.1:{ports[0]}",),
            python=copies.program.path if copies else "",
            environment=tuple(machine_variables().items()),
        )
        running = trial.start(ASK, (*base[:-1], hosts, base[-1], Creation()), *ports)
        check = check_from_policy(hosts.allow, (), {}, Denials())
        outer = Relay(*running.child.relay_pipes(), Outbound(check))
        seen = running.finish()
        outer.close()
    if seen.hung:
        raise TimeoutError(0, "a request through the proxy was not answered")
    if seen.output != "200 403":
        raise OSError(
            0, f"expected 200 for the named port and 403 for another port, got {seen.last_line()!r}"
        )
    return "a program inside reached a named port through its proxy, but no other port"
