r"""A second layer, where a minifilter driver is installed: it asks, corral answers from the policy.

The driver sees every file and registry operation of the processes of a session before it happens.
It asks for changes (some versions also for reads); what it asks is answered here: yes inside the
grants, no everywhere else, no to what cannot be read. It is told to fail closed: a question without
an answer in time is a no.

No wall depends on it. Where there is no driver, or it talks to somebody else already (it takes one
connection), the run goes on and says so.

    session = connect(checks)        # Absent: no driver; the run goes on without it
    session.register(pid, workspace) # before the target's first instruction
    session.close()                  # when its tree is gone
"""

from __future__ import annotations

import os

from corral.abi import win32_filter as abi
from corral.abi.win32 import (
    E_NOTIMPL,
    ERROR_ACCESS_DENIED,
    ERROR_FILE_NOT_FOUND,
    MissingFunctionError,
    winerror,
)
from corral.abi.win32_process import windows_directory
from corral.plan.host import Finding
from corral.platforms.windows.mechanisms import minifilter_messages as wire
from corral.programs.windows_command_line import upper
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from corral.plan.model import Place

    class Transport(Protocol):
        """What `abi.win32_filter.Port` does; tests have a driver behind a socket."""

        def send(self, message: bytes, room: int) -> bytes: ...
        def receive(self, room: int) -> bytes: ...
        def reply(self, data: bytes) -> None: ...
        def stop(self) -> None: ...
        def close(self) -> None: ...


CAPABILITY = "minifilter driver"
DEVICE = "\\DEVICE\\"
TIMEOUT_MS = 5000
FAILURES = 10
CACHE_ENTRIES = 4096
CACHE_MS = 2000
# The driver reads 0 as "your default", and remembers an answer by operation and path alone. Where
# an answer depends on more than those, it must be forgotten at once.
UNCACHED_MS = 1
CHANGES = frozenset({wire.FILE_CREATE, wire.FILE_WRITE, wire.FILE_DELETE})
CHANGING_ACCESS = (
    abi.FILE_WRITE_DATA
    | abi.FILE_APPEND_DATA
    | abi.FILE_WRITE_EA
    | abi.FILE_DELETE_CHILD
    | abi.FILE_WRITE_ATTRIBUTES
    | abi.DELETE
    | abi.WRITE_DAC
    | abi.WRITE_OWNER
    | abi.MAXIMUM_ALLOWED
    | abi.GENERIC_ALL
    | abi.GENERIC_WRITE
)
"""What makes an open more than a read."""


@record
class Checks:
    r"""Roots as the driver sees them (`\Device\HarddiskVolume3\...`), in upper case."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def file(self, check: wire.FileCheck) -> wire.Decision:
        if check.operation in CHANGES:
            good = within(check.path, self.write)
        elif check.operation == wire.FILE_READ:
            roots = self.write if check.access & CHANGING_ACCESS else (*self.read, *self.write)
            good = within(check.path, roots)
        elif check.operation == wire.FILE_RENAME:
            # One that does not say where to could lead anywhere.
            good = within(check.path, self.write) and within(check.destination, self.write)
        else:
            good = False
        return "allow" if good else "deny"

    def registry(self, check: wire.RegistryCheck) -> wire.Decision:
        """No policy grants a key: what is there may be read, nothing may be changed."""
        return "allow" if check.operation == wire.VALUE_QUERY else "deny"


@record
class Minifilter:
    """`read` and `write` are paths with drive letters: the grants, the runtime, the private space.

    Windows' own directory is always among what may be read.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    workspace: str
    place: Place = "beside"

    def describe(self) -> str:
        return "minifilter: changes outside the write grants are denied a second time"


class AbsentError(Exception):
    """There is no driver to talk to; the text says why, for the report."""


def within(path: str, roots: Iterable[str]) -> bool:
    """Is it one of the roots, or below one? A path that could be read in two ways is in none."""
    name = upper(path)
    parts = name.split("\\")
    if not name.startswith(DEVICE) or parts[0] or any(p in {"", ".", ".."} for p in parts[1:]):
        return False
    return any(name == root or name.startswith(f"{root}\\") for root in roots)


def device_roots(paths: Iterable[str], query: Callable[[str], str]) -> tuple[str, ...]:
    r"""`C:\x` as `\DEVICE\HARDDISKVOLUME3\X`; what has no device of its own is left out.

    `query` names the device behind a drive. A drive that stands for another directory (subst) is
    followed once; a network drive has no such form and stays unknown, which means denied.
    """
    found = [root for path in paths if (root := _device_root(path, query, follow=True))]
    return tuple(dict.fromkeys(found))


def _device_root(path: str, query: Callable[[str], str], *, follow: bool) -> str:
    drive, rest = path[:2], path[2:].rstrip("\\")
    if len(drive) != 2 or drive[1] != ":" or not (drive[0].isascii() and drive[0].isalpha()):
        return ""
    if rest and not rest.startswith("\\"):
        return ""
    try:
        device = query(drive)
    except OSError:
        return ""
    if device.startswith("\\??\\") and follow:
        return _device_root(device[4:].rstrip("\\") + rest, query, follow=False)
    root = upper(device + rest)
    return root if root.startswith(DEVICE) and ";" not in root.split("\\")[2] else ""


class Session:
    """One connection, one session, one thread that answers."""

    def __init__(self, transport: Transport, checks: Checks) -> None:
        import threading

        self.allowed = self.denied = self.malformed = 0
        self._transport = transport
        self._checks = checks
        self._requests = 0
        self._token = int.from_bytes(os.urandom(8), "little") or 1
        self._registered = False
        # A daemon: whatever a driver does, it cannot keep corral from ending.
        self._thread = threading.Thread(target=self._serve, name="minifilter", daemon=True)
        self._thread.start()

    @property
    def token(self) -> int:
        return self._token

    def register(self, root: int, workspace: str) -> None:
        """OSError if the driver refuses; ValueError for a workspace that no message can hold."""
        config = wire.set_config(
            self._next(),
            timeout_ms=TIMEOUT_MS,
            failures=FAILURES,
            cache_entries=CACHE_ENTRIES,
            cache_ms=CACHE_MS,
        )
        self._transport.send(config, 0)
        # corral itself is never asked about: it could not answer while it waits.
        self._transport.send(wire.exclude_process(self._next(), os.getpid()), 0)
        self._transport.send(wire.register_session(self._next(), self._token, root, workspace), 0)
        self._registered = True

    def metrics(self) -> wire.Metrics:
        """OSError or MalformedError if the driver has none."""
        size = wire.HEADER.size + wire.METRICS_BODY.size
        return wire.read_metrics(self._transport.send(wire.get_metrics(self._next()), size))

    def close(self) -> None:
        """Unregister; what fails now cannot matter any more, since the tree is gone."""
        try:
            if self._registered:
                self._transport.send(wire.unregister_session(self._next(), self._token), 0)
        except OSError:
            pass
        self._transport.stop()
        self._thread.join()
        self._transport.close()

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _serve(self) -> None:
        while True:
            try:
                data = self._transport.receive(wire.ROOM)
            except (EOFError, OSError):
                return  # unanswered from now on, which the driver was told to take for a no
            answer = self.answer(data)
            try:
                if answer is not None:
                    self._transport.reply(answer)
            except OSError:
                pass  # it was too late for that one

    def answer(self, data: bytes) -> bytes | None:
        """What to reply to a message; None if nobody waits for it or it cannot be addressed."""
        try:
            identity, request = wire.read_request(data)
        except wire.MalformedError as error:
            self.malformed += 1
            known = error.identity
            return None if known is None else wire.response(known, "deny", UNCACHED_MS)
        if isinstance(request, wire.Ping):
            return wire.pong(identity, request.time)
        if isinstance(request, wire.Notice):
            return None
        decision, cache = self._decide(request)
        self.allowed += decision == "allow"
        self.denied += decision == "deny"
        return wire.response(identity, decision, cache)

    def _decide(self, request: wire.FileCheck | wire.RegistryCheck) -> tuple[wire.Decision, int]:
        if request.token != self._token:
            return "deny", UNCACHED_MS
        if isinstance(request, wire.RegistryCheck):
            return self._checks.registry(request), CACHE_MS
        plain = request.operation in CHANGES
        return self._checks.file(request), CACHE_MS if plain else UNCACHED_MS


def apply(step: Minifilter) -> Session:
    """AbsentError if there is no driver: the run goes on, and says so."""
    return connect(checks_of(step, query=abi.query_dos_device, windows=windows_directory()))


def checks_of(step: Minifilter, *, query: Callable[[str], str], windows: str) -> Checks:
    """Nothing starts that cannot read Windows itself, where a driver asks about reads at all."""
    return Checks(
        read=device_roots((*step.read, windows), query), write=device_roots(step.write, query)
    )


def connect(checks: Checks) -> Session:
    try:
        port = abi.Port(wire.PORT, wire.context(os.getpid()))
    except OSError as error:
        raise AbsentError(absence(error)) from error
    return Session(port, checks)


def absence(error: OSError) -> str:
    if isinstance(error, MissingFunctionError):
        return "this Windows has no filter manager"
    code = winerror(error)
    if code == ERROR_FILE_NOT_FOUND:
        return "no driver listens"
    if code == ERROR_ACCESS_DENIED:
        return "the driver listens to administrators alone"
    if code == abi.ERROR_CONNECTION_COUNT_LIMIT:
        return "the driver talks to another program"
    return "not implemented here" if code == E_NOTIMPL else error.strerror or str(error)


def probe() -> Finding:
    """Whether a driver answers; a connection is made and given up again."""
    try:
        port = abi.Port(wire.PORT, wire.context(os.getpid()))
    except OSError as error:
        return Finding(capability=CAPABILITY, status="absent", evidence=absence(error))
    port.close()
    return Finding(capability=CAPABILITY, status="proven", evidence=f"it listens at {wire.PORT}")
