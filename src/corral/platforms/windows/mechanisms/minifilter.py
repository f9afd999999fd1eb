"""Answer a minifilter driver's questions from the policy, as a second layer.

The driver intercepts the file and registry operations of a target's processes. It asks corral about
changes. Some versions of the driver also ask about reads. corral allows file operations inside the
grants and reads of registry values, and denies all other operations. If corral cannot parse a
message, it denies the operation. If corral's answer is late, the driver denies the operation.

No wall depends on the driver. If no driver is installed, or if another program occupies its only
connection, the run continues and reports this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count

from corral.abi import win32_filter as abi
from corral.abi.prototypes import MissingFunctionError
from corral.abi.win32 import E_NOTIMPL, ERROR_ACCESS_DENIED, ERROR_FILE_NOT_FOUND, winerror
from corral.abi.win32_process import Process, windows_directory
from corral.paths.windows import upper_case
from corral.plan import model
from corral.plan.host import Finding
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.platforms.windows.mechanisms import minifilter_messages as wire
from corral.record import record

CAPABILITY = "minifilter driver"
LABEL = (CAPABILITY, "Minifilter driver", "available")
DEVICE = "\\DEVICE\\"
TIMEOUT_MS = 5000
MAX_FAILURES = 10
CACHE_ENTRIES = 4096
CACHE_MS = 2000
# The driver caches answers by operation and path only. An answer that also depends on other fields
# of the message must not be reused. But a cache time of 0 would mean the driver's default time, so
# such an answer is cached for 1 ms.
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
"""Rights that let a program change a file. Opening a file with any of them requires a write grant.
"""
ABSENCES = {
    ERROR_FILE_NOT_FOUND: "no driver is listening",
    ERROR_ACCESS_DENIED: "the driver accepts connections only from administrators",
    abi.ERROR_CONNECTION_COUNT_LIMIT: "the driver is connected to another program",
    E_NOTIMPL: "not implemented here",
}


@record
class Checks:
    r"""Decides whether an operation is allowed. `read` and `write` are the granted roots, as the
    driver writes them (`\Device\HarddiskVolume3\...`) but in upper case.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def file(self, check: wire.FileCheck) -> wire.Decision:
        if check.operation in CHANGES:
            good = is_within(check.path, self.write)
        elif check.operation == wire.FILE_READ:
            roots = self.write if check.access & CHANGING_ACCESS else (*self.read, *self.write)
            good = is_within(check.path, roots)
        elif check.operation == wire.FILE_RENAME:
            # If the message names no destination, it is "", which is outside every root.
            good = is_within(check.path, self.write) and is_within(check.destination, self.write)
        else:
            good = False
        return "allow" if good else "deny"

    def registry(self, check: wire.RegistryCheck) -> wire.Decision:
        """Allow only reads of values, because a policy cannot grant changes to the registry."""
        return "allow" if check.operation == wire.VALUE_QUERY else "deny"


@record
class Minifilter:
    """Registers the target with the driver. `read` and `write` list the paths of the grants, the
    runtime and the private directory, with drive letters.
    """

    name = "minifilter"
    read: tuple[str, ...]
    write: tuple[str, ...]
    workspace: str
    stage: model.Stage = "after_clone"
    verify = unverified

    def describe(self) -> str:
        return "minifilter: the driver also denies changes outside the write grants"

    def apply(self, results: Results) -> None:
        checks = self.checks(query=abi.query_dos_device, windows=windows_directory())
        try:
            session = connect(checks)
        except AbsentError as error:
            raise OSError(0, f"the driver is no longer listening: {error}") from error
        results.add(session)
        try:
            session.register(results.get(Process).pid, self.workspace)
        except ValueError as error:
            raise OSError(0, str(error)) from error

    def checks(self, *, query: Callable[[str], str], windows: str) -> Checks:
        """Return the checks for the granted roots. They also allow reads in the Windows directory,
        which every program needs.
        """
        return Checks(
            read=device_roots((*self.read, windows), query), write=device_roots(self.write, query)
        )


class AbsentError(Exception):
    """corral cannot connect to a driver. The report quotes the error's text as the reason."""


def is_within(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path is a root or below one. A path counts as outside if it does not start
    with a device, or if one of its parts is empty, "." or "..".
    """
    name = upper_case(path)
    parts = name.split("\\")
    if not name.startswith(DEVICE) or parts[0] or any(p in {"", ".", ".."} for p in parts[1:]):
        return False
    return any(name == root or name.startswith(f"{root}\\") for root in roots)


def device_roots(paths: Iterable[str], query: Callable[[str], str]) -> tuple[str, ...]:
    r"""Return the paths in the form in which `Checks` compares them, such as
    `\DEVICE\HARDDISKVOLUME3\X` for `C:\x`. Leave out paths whose drive has no device.

    `query` returns the device of a drive. A drive made by `subst` is replaced by its directory,
    unless the directory is on such a drive too. Network drives are left out, because they have no
    device of this kind. So access to them is denied.
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
    root = upper_case(device + rest)
    return root if root.startswith(DEVICE) and ";" not in root.split("\\")[2] else ""


class Session:
    """Answers the driver's questions about one target, in a thread of its own."""

    def __init__(self, port: abi.Port, checks: Checks) -> None:
        self._port = port
        self._checks = checks
        self._requests = count(1)
        self.token = int.from_bytes(os.urandom(8), "little") or 1
        self._registered = False
        # A daemon thread, because a driver must not keep corral from exiting.
        self._thread = threading.Thread(target=self._serve, name="minifilter", daemon=True)
        self._thread.start()

    def register(self, root: int, workspace: str) -> None:
        """Register the target. Raise OSError if the driver refuses, and ValueError if the path of
        the target's private directory is too long.
        """
        config = wire.set_config(
            next(self._requests),
            timeout_ms=TIMEOUT_MS,
            failures=MAX_FAILURES,
            cache_entries=CACHE_ENTRIES,
            cache_ms=CACHE_MS,
        )
        self._port.send(config)
        # The driver must not ask about corral itself, which would then wait for its own answer.
        self._port.send(wire.exclude_process(next(self._requests), os.getpid()))
        request = next(self._requests)
        self._port.send(wire.register_session(request, self.token, root, workspace))
        self._registered = True

    def release(self) -> None:
        """Unregister and disconnect. Failures are ignored, because the target has ended."""
        with suppress(OSError):
            if self._registered:
                self._port.send(wire.unregister_session(next(self._requests), self.token))
        self._port.stop()
        self._thread.join()
        self._port.close()

    def _serve(self) -> None:
        while True:
            try:
                data = self._port.receive(wire.MAX_MESSAGE)
            except (EOFError, OSError):
                return  # the connection has ended, so the driver denies further operations
            answer = self.answer(data)
            with suppress(OSError):  # the driver may no longer wait for the answer
                if answer is not None:
                    self._port.reply(answer)

    def answer(self, data: bytes) -> bytes | None:
        """Return the reply to a message. Return None if the driver expects no reply, or if the
        message is too short to contain the id that a reply has to repeat.
        """
        try:
            identity, request = wire.read_request(data)
        except wire.MalformedError as error:
            known = error.identity
            return None if known is None else wire.response(known, "deny", UNCACHED_MS)
        if isinstance(request, wire.Ping):
            return wire.pong(identity, request.time)
        if isinstance(request, wire.Notice):
            return None
        decision, cache = self._decide(request)
        return wire.response(identity, decision, cache)

    def _decide(self, request: wire.FileCheck | wire.RegistryCheck) -> tuple[wire.Decision, int]:
        if request.token != self.token:
            return "deny", UNCACHED_MS
        if isinstance(request, wire.RegistryCheck):
            return self._checks.registry(request), CACHE_MS
        plain = request.operation in CHANGES
        return self._checks.file(request), CACHE_MS if plain else UNCACHED_MS


def connect(checks: Checks) -> Session:
    try:
        port = abi.Port(wire.PORT, wire.context(os.getpid()))
    except OSError as error:
        raise AbsentError(absence(error)) from error
    return Session(port, checks)


def absence(error: OSError) -> str:
    if isinstance(error, MissingFunctionError):
        return "this version of Windows has no filter manager"
    return ABSENCES.get(winerror(error)) or error.strerror or str(error)


def probe() -> Finding:
    try:
        port = abi.Port(wire.PORT, wire.context(os.getpid()))
    except OSError as error:
        return Finding(capability=CAPABILITY, status="absent", evidence=absence(error))
    port.close()
    return Finding(capability=CAPABILITY, status="proven", evidence=f"it listens at {wire.PORT}")
