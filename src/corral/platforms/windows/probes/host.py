"""Probe what Windows enforces. Most probes try an operation in a disposable process.

Windows may accept a limit without enforcing it. So a limit is proven only if Windows reports it
back and it stops an operation. As a sanity check the probe also runs the same operation without the
limit, or with a higher one. There the operation must succeed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from corral.abi import win32_process as abi
from corral.plan import model
from corral.plan.host import Finding
from corral.platforms.doctor_lines import Label
from corral.platforms.windows.layers import BASE
from corral.platforms.windows.mechanisms import (
    app_container,
    job,
    minifilter,
    mitigations,
    restricted_token,
)
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.mechanisms.process_creation import Creation
from corral.platforms.windows.probes import app_container as container
from corral.platforms.windows.probes import trial
from corral.record import replace

TRIES = 3
BUSY_SECONDS = 0.5
RATE = 50
"""The limit of the CPU probe, in thousandths of a processor. A process without a limit gets more
than this even on a busy machine.
"""
MEMORY = 96 << 20
ALLOCATE = """
control = bytearray(8 << 20)
try:
    bytearray(256 << 20)
except MemoryError:
    print("denied")
else:
    print("allocated")
"""
SPAWN = """
import os, sys
try:
    # spawnv joins the arguments without quotes, so none of them may be a path with a space.
    code = os.spawnv(os.P_WAIT, sys.executable, ["python", "-I", "-S", "-c", "pass"])
except OSError as error:
    print("denied")
else:
    print("started" if code == 0 else "denied")
"""
BURN = """
import sys, time
print("busy", flush=True)
while time.process_time() < float(sys.argv[1]):
    pass
print(time.process_time())
"""
TREE = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=0)
print(child.pid, flush=True)
child.wait()
"""
DESKTOP = """
import ctypes
create = ctypes.WinDLL("user32").CreateDesktopW
create.restype = ctypes.c_void_p
text, number, pointer = ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_void_p
create.argtypes = [text, pointer, pointer, number, number, pointer]
print("made" if create("corral-probe", None, None, 0, 0x2, None) else "denied")
"""


PRIORITY = """
import ctypes
kernel = ctypes.WinDLL("kernel32")
kernel.GetCurrentProcess.restype = ctypes.c_void_p
own = ctypes.c_void_p(kernel.GetCurrentProcess())
kernel.SetPriorityClass(own, 0x80)
print("high" if kernel.GetPriorityClass(own) == 0x80 else "kept")
"""


HINTS = {
    "session": "start corral from a desktop session, unless the target has a desktop of its own",
}


NO_CONTAINER = "there is no AppContainer"
UNTRIED = "not tried yet, because no run has needed it"
LABELS: tuple[Label, ...] = (
    ("job_read_back", "Job limits read back", "available"),
    ("job_kill_on_close", "Tree ends with corral", "available"),
    ("job_memory", "Memory limit", "available"),
    ("job_processes", "Process limit", "available"),
    ("job_cpu_rate", "CPU rate limit", "available"),
    ("job_accounting", "CPU time accounting", "available"),
    ("job_ui", "UI restrictions", "available"),
    ("job_priority", "Fixed priority", "available"),
    ("child_process_policy", "Child process policy", "available"),
    ("session", "Desktop session", "available"),
    ("app_container", "AppContainer", "available"),
    ("desktop", "Private desktop", "available"),
    ("nul", "NUL inside an AppContainer", "available"),
    ("relay", "Network allowlist", "available"),
    ("mitigations", "Mitigations", "available"),
    ("strict_handles", "Strict handle checks", "available"),
    *(mechanism.LABEL for mechanism in (app_container, restricted_token, minifilter)),
)


class Machine:
    """Stores the findings, and probes each capability only when it is first needed."""

    def __init__(self) -> None:
        self.found: dict[str, Finding] = {}

    def find(self, capability: str) -> Finding:
        if capability not in self.found:
            self.found[capability] = PROBES[capability](self)
        return self.found[capability]

    def has(self, capability: str) -> bool:
        return self.find(capability).status == "proven"

    def job(self) -> Job:
        """Return a job without limits. Its settings are read back if this host supports that."""
        return Job(read_back=self.has("job_read_back"))

    def container(self) -> tuple[model.Step, ...]:
        return (*container.steps(desktop=self.has("desktop")), self.job())


def probe(wanted: Collection[str] = ()) -> tuple[Finding, ...]:
    """Probe the wanted capabilities and those on which they depend, or all capabilities if `wanted`
    is empty. Report those that were not probed as unknown.
    """
    machine = Machine()
    for name in PROBES:
        if not wanted or name in wanted:
            machine.find(name)
    untried = {
        name: Finding(capability=name, status="unknown", evidence=UNTRIED) for name in PROBES
    }
    return tuple((untried | machine.found).values())


def _app_container(machine: Machine) -> Finding:
    profile = machine.find(app_container.CAPABILITY)
    if profile.status != "proven":
        return replace(profile, capability="app_container")
    own = machine.has("desktop")
    return _try("app_container", lambda: container.try_walls(machine.job(), desktop=own))


def _inside(
    capability: str, need: str, attempt: Callable[[Machine], str]
) -> Callable[[Machine], Finding]:
    """Return a probe that runs in an AppContainer. If this host does not have the capability
    `need`, the probe reports its own capability as absent.
    """

    def find(machine: Machine) -> Finding:
        if not machine.has(need):
            return Finding(capability=capability, status="absent", evidence=NO_CONTAINER)
        return _try(capability, lambda: attempt(machine))

    return find


def _job(capability: str, attempt: Callable[[Job], str]) -> Callable[[Machine], Finding]:
    return lambda machine: _try(capability, lambda: attempt(machine.job()))


def _starts_under(capability: str, bits: int) -> Callable[[Machine], Finding]:
    """Return a probe that tries mitigations with the strongest token that works on this host."""

    def attempt(machine: Machine) -> str:
        base: tuple[model.Step, ...] = (machine.job(),)
        if machine.has("app_container"):
            base = machine.container()
        elif machine.has(restricted_token.CAPABILITY):
            base = (restricted_token.RestrictedToken(), restricted_token.LowIntegrity(), *base)
        asked = mitigations.plan(bits, subprocess=True)
        _expect(_observe("print('started')", *base, asked), "started", "python")
        return "python starts with these mitigations, and its process reports them"

    return lambda machine: _try(capability, lambda: attempt(machine))


def _try(capability: str, attempt: Callable[[], str]) -> Finding:
    """Call `attempt`, and return the finding. `attempt` returns the evidence for the capability,
    and raises an error if the capability is absent.
    """
    try:
        return Finding(capability=capability, status="proven", evidence=attempt())
    except TimeoutError as error:  # the machine may just be busy, so the result is unknown
        return Finding(capability=capability, status="unknown", evidence=str(error.strerror))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = f"{where}{error.strerror or error}"
    except ValueError as error:  # the process printed no number, because it did not start
        why = f"the trial printed no number: {error}"
    walls = capability == "app_container"
    hint = app_container.elsewhere() if walls else HINTS.get(capability, "")
    return Finding(capability=capability, status="absent", evidence=why, hint=hint)


def _expect(seen: trial.Outcome, wanted: str, what: str) -> None:
    if seen.output != wanted:
        raise OSError(0, f"{what}: {seen.last_line()}")


def _observe(code: str, *steps: model.Step) -> trial.Outcome:
    return trial.observe(code, (*steps, Creation()))


def _read_back() -> str:
    job.create(Job(memory=MEMORY, processes=1, user_time=60_000)).release()
    return "every limit that was set on a job could be read back"


def _kill_on_close(plain: Job) -> str:
    running = trial.start(TREE, (plain, Creation()))
    try:
        child = int(running.line())
        with (
            abi.open_process(running.child.pid, abi.SYNCHRONIZE) as first,
            abi.open_process(child, abi.SYNCHRONIZE) as second,
        ):
            if abi.wait_any((first.value, second.value), 0) is not None:
                raise OSError(
                    0, "the sanity check failed: a process ended before its job was closed"
                )
            # Both processes wait for input, which stays open. So only the job can end them.
            running.child.abandon()
            for handle in (first, second):
                if abi.wait_any((handle.value,), trial.TIMEOUT_MS) is None:
                    raise OSError(0, "a process survived after its job's handle was closed")
    finally:
        running.child.abandon()
        running.close()
    return "closing the job's handle ended a process and its child"


def _memory() -> str:
    job.create(Job(memory=MEMORY)).release()
    _expect(_observe(ALLOCATE, Job()), "allocated", "the sanity check failed")
    _expect(_observe(ALLOCATE, Job(memory=MEMORY)), "denied", "256 MiB under a limit of 96 MiB")
    return "256 MiB could be allocated without a limit, but not with a limit of 96 MiB"


def _processes() -> str:
    job.create(Job(processes=1)).release()
    # The sanity check allows four processes, not two, because a console's process may count too.
    _expect(_observe(SPAWN, Job(processes=4)), "started", "the sanity check failed")
    _expect(_observe(SPAWN, Job(processes=1)), "denied", "a second process under a limit of one")
    return "a second process started under a limit of four processes, but not under a limit of one"


def _cpu_rate(plain: Job) -> str:
    limited = replace(plain, cpu=RATE)
    job.create(limited).release()
    ahead = behind = 0.0
    for _ in range(TRIES):
        free, needed = _race(plain, plain)
        ahead, behind = _race(limited, plain)
        if free >= needed / 2 and ahead < behind / 4:
            return (
                f"by the time a later process had used {behind:.2f} s of CPU, a busy process had "
                f"used {ahead:.2f} s with a limit of {RATE / 1000}, and {free:.2f} s without one"
            )
    raise TimeoutError(
        0, f"the limit did not slow a process down: {ahead:.2f} s of CPU, {behind:.2f} s without it"
    )


def _race(first: Job, second: Job) -> tuple[float, float]:
    """Start a busy process, and then a second one beside it. Return the CPU seconds that each has
    used when the second one ends. The second one ends after a fixed amount of its own CPU time, so
    these numbers do not depend on how busy the machine is.
    """
    ahead = trial.start(BURN, (first, Creation()), str(trial.TIMEOUT_MS))
    try:
        if ahead.line() != "busy":
            raise OSError(0, "a process did not start")
        behind = trial.observe(BURN, (second, Creation()), str(BUSY_SECONDS))
        used = ahead.child.measure().cpu
    finally:
        ahead.child.kill()
        ahead.finish()
    return used, behind.reaped.cpu


def _accounting(plain: Job) -> str:
    seen = trial.observe(BURN, (plain, Creation()), str(BUSY_SECONDS))
    own = float(seen.output.rpartition("\n")[2])
    text = f"a process used {own:.2f} s of CPU, and its job counted {seen.reaped.cpu:.2f} s"
    if seen.reaped.cpu < own / 2:
        raise OSError(0, text)
    return text


def _ui(plain: Job) -> str:
    limited = replace(plain, ui=job.UI_LIMITS)
    job.create(limited).release()
    _expect(_observe(DESKTOP, plain), "made", "the sanity check failed")
    _expect(_observe(DESKTOP, limited), "denied", "a desktop under UI limits")
    return "a desktop could be created without the job's UI limits, but not with them"


def _priority(plain: Job) -> str:
    limited = replace(plain, priority=True)
    job.create(limited).release()
    _expect(_observe(PRIORITY, plain), "high", "the sanity check failed")
    _expect(_observe(PRIORITY, limited), "kept", "a process in a job that fixes the priority")
    return "a process could raise its priority, but not in a job that fixes it"


def _child_process_policy(plain: Job) -> str:
    _expect(_observe(SPAWN, plain), "started", "the sanity check failed")
    alone = mitigations.plan(0, subprocess=False)
    _expect(_observe(SPAWN, plain, alone), "denied", "a process that may not start another")
    return "a process could start another without the policy, but not with it"


def _session() -> str:
    number = abi.session_of(os.getpid())
    if number == 0:
        raise OSError(0, "corral runs in session 0, as services and SSH do")
    return f"session {number}"


PROBES: dict[str, Callable[[Machine], Finding]] = {
    "job_read_back": lambda _: _try("job_read_back", _read_back),
    # This probe also works on hosts that cannot read a job's limits back, because it only checks
    # that all processes end when the job's handle is closed.
    "job_kill_on_close": _job("job_kill_on_close", _kill_on_close),
    "job_memory": lambda _: _try("job_memory", _memory),
    "job_processes": lambda _: _try("job_processes", _processes),
    "job_cpu_rate": _job("job_cpu_rate", _cpu_rate),
    "job_accounting": _job("job_accounting", _accounting),
    "job_ui": _job("job_ui", _ui),
    "job_priority": _job("job_priority", _priority),
    "child_process_policy": _job("child_process_policy", _child_process_policy),
    "session": lambda _: _try("session", _session),
    app_container.CAPABILITY: lambda _: app_container.probe(),
    "desktop": _inside(
        "desktop", app_container.CAPABILITY, lambda machine: container.try_desktop(machine.job())
    ),
    "app_container": _app_container,
    "nul": _inside("nul", "app_container", lambda machine: container.try_nul(machine.container())),
    "relay": _inside("relay", "app_container", lambda m: container.try_relay(m.container())),
    restricted_token.CAPABILITY: lambda _: restricted_token.probe(os.path.expanduser("~")),
    "mitigations": _starts_under("mitigations", BASE),
    "strict_handles": _starts_under("strict_handles", mitigations.STRICT_HANDLES.bit),
    minifilter.CAPABILITY: lambda _: minifilter.probe(),
}
"""The probe for each capability, in the order of the lines of `corral doctor`."""
