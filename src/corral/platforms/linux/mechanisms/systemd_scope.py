"""Get a cgroup from systemd, for users who cannot make a cgroup in their session's cgroup.

corral asks systemd for a delegated transient scope, `corral-<run>.scope`, with the limits as the
scope's properties, and systemd puts init into the scope. systemd changes nothing inside a delegated
unit. So corral can make a leaf in the scope: the cgroup for the processes of one run, which
`cgroup` describes. The leaf's settings make the kernel kill the whole tree at once when memory runs
out.

systemd removes a scope as soon as it is empty. The kernel's counts of the run, such as its CPU
time, would then be lost. So an idle process stays in the scope, beside the leaf, until corral has
read the counts. The idle process ends when the supervisor ends.
"""

from __future__ import annotations

import os
import select
import sys

from corral.abi import linux as abi
from corral.abi.signal_numbers import SIGKILL
from corral.platforms import steps
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import cgroup
from corral.platforms.steps import unverified
from corral.record import record, replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn, Self

    from corral.plan.model import Results, Stage
    from corral.platforms.linux.dbus import Bus, Message, Value, Variant

    Property = tuple[str, Variant]

NAME = "org.freedesktop.systemd1"
DRIVER = "org.freedesktop.DBus"
PATH = "/org/freedesktop/systemd1"
INTERFACE = "org.freedesktop.systemd1.Manager"
OWNER_CHANGED = f"type='signal',sender='{DRIVER}',member='NameOwnerChanged',arg0='{NAME}'"
SYSTEM_BUS = "/run/dbus/system_bus_socket"
OWN_CGROUP = "supervisor"
"""The cgroup for the scope's processes that are not in the leaf.

They cannot be in the scope's own cgroup, because it enables controllers for its children.
"""
START_SECONDS = 5.0
END_SECONDS = 1.0
"""The maximum time to wait for systemd at the end of a run, because a client gives corral only
about this long to end. If systemd does not answer, the empty scope ends by itself.
"""
STOP_USEC = 5_000_000
"""Microseconds between SIGTERM and SIGKILL when the user stops the unit, as long as corral's own
grace period.
"""
OWN_MEMORY = 16 << 20
"""How many more bytes of memory the scope may use than its leaf, for the idle process and for the
kernel's records of the leaf.
"""


@record
class Scope:
    """Starts a scope. `leaf.base` is the path that the scope will probably have.

    `apply` replaces it with the path at which systemd really started the scope.
    """

    name = "systemd_scope"
    unit: str
    leaf: cgroup.Leaf
    stage: Stage = "after_clone"
    verify = unverified

    @property
    def residue(self) -> str:
        return self.leaf.path

    def describe(self) -> str:
        return (
            f"init joins {self.unit}, a delegated scope from systemd; in it {self.leaf.describe()}"
        )

    def apply(self, results: Results) -> None:
        """Start the scope, make the leaf in it and move init into the leaf.

        Kill the idle process if any of this fails.
        """
        idle = _fork_idle()
        try:
            pids = (idle, results.get(init.InitProcess).pid)
            leaf = replace(self.leaf, base=start(self.unit, pids, self.leaf.settings))
            # From now on, the end of the run removes the leaf, and this also ends the scope.
            results.add(cgroup.Cgroup(path=leaf.path))
            leaf.apply(results)
            cgroup.Enter().apply(results)
        except BaseException:
            os.kill(idle, SIGKILL)
            os.waitpid(idle, 0)
            raise


def unit_of(name: str) -> str:
    return f"corral-{name}.scope"


def plan(leaf: cgroup.Leaf) -> Scope:
    """Return the step that starts a scope and makes a leaf in it.

    `leaf.base` is the cgroup of the systemd instance that will start the scope.
    """
    unit = unit_of(leaf.run)
    return Scope(unit=unit, leaf=replace(leaf, base=f"{leaf.base}/{_slice()}/{unit}"))


def _slice() -> str:
    """Return the systemd slice in which corral starts its scopes.

    systemd would choose the same slice by default. corral names it anyway, so that a later run
    knows the path of a scope that was left behind.
    """
    return "app.slice" if os.geteuid() else "system.slice"


def buses(uid: int) -> list[str]:
    """Return the sockets where this user's systemd might answer. The most likely one is first."""
    if uid == 0:
        return [SYSTEM_BUS]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    found = addresses(os.environ.get("DBUS_SESSION_BUS_ADDRESS", ""))
    found += [f"{runtime}/bus"] if runtime else []
    return [
        path for path in dict.fromkeys((*found, f"/run/user/{uid}/bus")) if os.path.exists(path)
    ]


def addresses(text: str) -> list[str]:
    """Return the paths of the unix sockets in a list of D-Bus addresses. Skip other transports."""
    found: list[str] = []
    for address in text.split(";"):
        transport, _, options = address.partition(":")
        pairs = dict(option.partition("=")[::2] for option in options.split(","))
        if transport == "unix" and pairs.get("path"):
            head, *escaped = pairs["path"].split("%")
            try:
                rest = b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in escaped)
            except ValueError:
                continue
            found.append(head + os.fsdecode(rest))
    return found


def _fork_idle() -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _idle(parent)
    finally:
        os._exit(1)


def _idle(parent: int) -> NoReturn:
    """Run as the idle process: close all descriptors, and wait until a signal ends the process.

    If it kept the pipes of the MCP client open, the client would think that the server still runs.
    """
    init.follow_supervisor()
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    abi.prctl(abi.PR_SET_DUMPABLE, 0)
    abi.reset_signals()
    abi.sigprocmask(abi.SIG_SETMASK, ())
    steps.keep_only(())
    while True:
        select.poll().poll()


def start(unit: str, pids: Sequence[int], settings: Iterable[tuple[str, str]]) -> str:
    """Start a scope with these processes, and return the scope's path.

    systemd puts the processes into the scope's cgroup. corral moves them from there to OWN_CGROUP,
    a cgroup in the scope, because a cgroup that contains processes cannot enable controllers for
    its children.
    """
    with _Manager(START_SECONDS) as manager:
        manager.start(unit, properties(pids, settings))
    mounted = cgroup.mount(str(pids[-1]))
    path = mounted[1] if mounted else ""
    if os.path.basename(path) != unit:
        raise OSError(
            0, f"systemd started {unit}, but left process {pids[-1]} in {path or 'no cgroup'}"
        )
    os.mkdir(f"{path}/{OWN_CGROUP}")
    for pid in pids:
        cgroup.write(f"{path}/{OWN_CGROUP}/cgroup.procs", str(pid))
    return path


def end(path: str) -> None:
    """Kill the remaining processes of a scope, and wait until systemd has removed it."""
    if os.path.isdir(path):
        cgroup.kill(path)
        stop(os.path.basename(path))


def stop(unit: str) -> None:
    """Stop a unit. Do nothing if the unit does not exist or systemd does not answer."""
    try:
        with _Manager(END_SECONDS) as manager:
            manager.stop(unit)
    except OSError:
        pass  # systemd removes an empty scope by itself


def properties(pids: Sequence[int], settings: Iterable[tuple[str, str]]) -> list[Property]:
    """Return the properties of the scope for a leaf with these settings.

    Each limit of the scope is at least as high as the same limit of the leaf, so that the target
    reaches the leaf's limit first.
    """
    from corral.platforms.linux.dbus import Variant

    found: list[tuple[str, str, Value]] = [
        ("Description", "s", "corral sandbox"),
        ("Delegate", "b", True),
        ("Slice", "s", _slice()),
        ("CollectMode", "s", "inactive-or-failed"),
        ("TimeoutStopUSec", "t", STOP_USEC),
        ("PIDs", "au", list(pids)),
    ]
    chosen = dict(settings)
    if "memory.max" in chosen:
        found.append(("MemoryMax", "t", int(chosen["memory.max"]) + OWN_MEMORY))
    if "memory.swap.max" in chosen:
        found.append(("MemorySwapMax", "t", int(chosen["memory.swap.max"])))
    # The scope may have one task more than the leaf, because it also contains the idle process. If
    # the policy does not limit tasks, turn off systemd's default limit.
    tasks = int(chosen["pids.max"]) + 1 if "pids.max" in chosen else (1 << 64) - 1
    found.append(("TasksMax", "t", tasks))
    if "cpu.max" in chosen:
        quota, period = map(int, chosen["cpu.max"].split())
        found.append(("CPUQuotaPerSecUSec", "t", quota * 1_000_000 // period))
    found += _bandwidths(value for file, value in settings if file == "io.max")
    return [(name, Variant(signature=kind, value=value)) for name, kind, value in found]


def _bandwidths(limits: Iterable[str]) -> list[tuple[str, str, Value]]:
    """Return the properties that limit the I/O rate of a scope.

    `limits` contains lines for the cgroup's file io.max, such as `8:0 rbps=N wbps=N`.
    """
    names = {"rbps": "IOReadBandwidthMax", "wbps": "IOWriteBandwidthMax"}
    found: dict[str, list[Value]] = {}
    for line in limits:
        disk, *pairs = line.split()
        for pair in pairs:
            key, _, value = pair.partition("=")
            found.setdefault(names[key], []).append((f"/dev/block/{disk}", int(value)))
    return [(name, "a(st)", values) for name, values in found.items()]


class _Manager:
    """A connection to systemd, on the first bus where systemd answers."""

    def __init__(self, seconds: float) -> None:
        self._bus, self._owner = _connect(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.close()

    def start(self, unit: str, chosen: Sequence[Property]) -> None:
        (seen,) = self._bus.driver("GetConnectionUnixProcessID", "s", self._bus.name)
        if seen != os.getpid():
            # corral and systemd are in different PID namespaces, so for systemd the pids of this
            # run mean other processes.
            raise OSError(0, f"the bus knows process {os.getpid()} by another pid, {seen}")
        result = self._job("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", chosen, [])
        if result != "done":
            raise OSError(0, f"systemd did not start {unit}: {result}")

    def stop(self, unit: str) -> None:
        self._job("StopUnit", "ss", unit, "replace")

    def _job(self, member: str, signature: str, *arguments: Value) -> str:
        """Call a method of systemd that starts a job, wait until the job ends, and return its
        result.

        systemd reports the end of a job by the D-Bus signal JobRemoved. Subscribe to this signal
        before the job starts, so that corral cannot miss it.
        """
        rule = f"type='signal',sender='{NAME}',interface='{INTERFACE}',member='JobRemoved'"
        self._bus.driver("AddMatch", "s", rule)
        (job,) = self._bus.call(self._owner, PATH, INTERFACE, member, signature, *arguments)

        def removed(message: Message) -> bool:
            ours = (message.sender, message.member) == (self._owner, "JobRemoved")
            return ours and message.signature == "uoss" and message.body[1] == job

        return str(self._bus.wait(removed).body[3])


def _connect(seconds: float) -> tuple[Bus, str]:
    from corral.platforms.linux.dbus import Bus, CallError

    why: OSError = FileNotFoundError(2, "no bus of systemd")
    without: Bus | None = None
    for path in buses(os.geteuid()):
        try:
            bus = Bus(path, seconds)
        except OSError as error:
            why = error
            continue
        try:
            bus.driver("AddMatch", "s", OWNER_CHANGED)
            return bus, str(bus.driver("GetNameOwner", "s", NAME)[0])
        except CallError:
            without = bus
    if without is None:
        raise why
    return without, _until_owned(without)


def _until_owned(bus: Bus) -> str:
    """Wait until systemd joins the bus, and return systemd's name on the bus.

    The first client of a session starts the bus. systemd joins only afterwards.
    """

    def owned(message: Message) -> bool:
        ours = (message.sender, message.member) == (DRIVER, "NameOwnerChanged")
        return (
            ours
            and message.signature == "sss"
            and message.body[0] == NAME
            and bool(message.body[2])
        )

    try:
        return str(bus.wait(owned).body[2])
    except OSError as error:
        bus.close()
        raise OSError(error.errno, "systemd is not on the bus") from error
