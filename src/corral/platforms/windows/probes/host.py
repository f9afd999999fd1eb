"""What Windows is seen to hold, each in a disposable child and with its control.

Nothing is believed that was only accepted: a limit counts when it reads back *and* stops what it
should stop, while the same act without it succeeds.
"""

from __future__ import annotations

import os

from corral.abi import win32_process as abi
from corral.plan.host import Finding
from corral.platforms.windows.layers import BASE
from corral.platforms.windows.mechanisms import (
    app_container,
    integrity,
    job,
    minifilter,
    mitigations,
    process_creation,
)
from corral.platforms.windows.mechanisms.integrity import LowIntegrity
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.mechanisms.restricted_token import RestrictedToken
from corral.platforms.windows.probes import app_container as container
from corral.platforms.windows.probes import trial
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.plan.model import Step

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
    # The words are joined unquoted: none of them may be a path with a space.
    code = os.spawnv(os.P_WAIT, sys.executable, ["python", "-I", "-S", "-c", "pass"])
except OSError as error:
    print("denied")
else:
    print("started" if code == 0 else "denied")
"""
BURN = """
import time
start, used = time.perf_counter(), time.process_time()
while time.perf_counter() - start < 1:
    pass
print((time.process_time() - used) / (time.perf_counter() - start))
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
text, number, place = ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_void_p
create.argtypes = [text, place, place, number, number, place]
print("made" if create("corral-probe", None, None, 0, 0x2, None) else "denied")
"""


def probe() -> tuple[Finding, ...]:
    read_back = _try("job_read_back", _read_back)
    # What kills the tree is looked at even where the job does not tell what it was given.
    plain = Job(read_back=read_back.status == "proven")
    found = [
        read_back,
        _try("job_kill_on_close", lambda: _kill_on_close(plain)),
        _try("job_memory", _memory),
        _try("job_processes", _processes),
        _try("job_cpu_rate", lambda: _cpu_rate(plain)),
        _try("job_accounting", lambda: _accounting(plain)),
        _try("job_ui", lambda: _ui(plain)),
        _try("child_process_policy", lambda: _child_process_policy(plain)),
        _try("session", _session),
    ]
    return (*found, *_layerings(plain), minifilter.probe())


def _layerings(plain: Job) -> tuple[Finding, ...]:
    """What is put on top of one is tried with it: alone it proves little."""
    profile = app_container.probe()
    contained = replace(profile, capability="app_container")
    if profile.status == "proven":
        contained = _try("app_container", lambda: container.effect(plain))
    relay = Finding(capability="relay", status="absent", evidence="there is no AppContainer")
    if contained.status == "proven":
        relay = _try("relay", lambda: container.relayed(plain))
    restricted = integrity.probe(os.path.expanduser("~"))
    base: tuple[Step, ...] = (plain,)
    if contained.status == "proven":
        base = (*container.steps(), plain)
    elif restricted.status == "proven":
        base = (RestrictedToken(), LowIntegrity(), plain)
    return (contained, relay, restricted, *_mitigations(base))


def _try(capability: str, attempt: Callable[[], str]) -> Finding:
    """`attempt` returns what it saw, or says by an error why it is not enough."""
    try:
        return Finding(capability=capability, status="proven", evidence=attempt())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = f"{where}{error.strerror or error}"
    except ValueError as error:  # a number was expected of a process that could not even start
        why = f"the trial did not say what it saw: {error}"
    return Finding(capability=capability, status="absent", evidence=why, hint=_hint(capability))


def _hint(capability: str) -> str:
    return HINTS.get(capability, "")


HINTS = {
    "app_container": app_container.WSL2,
    "session": "start corral from a desktop session: AppContainers do not start in session 0",
}


def _expect(said: str, wanted: str, what: str) -> None:
    if said != wanted:
        raise OSError(0, f"{what}: {said.splitlines()[-1] if said else 'it said nothing'}")


def _said(code: str, *steps: Step) -> str:
    return trial.observe(code, (*steps, process_creation.Creation())).said


def _read_back() -> str:
    job.create(Job(memory=MEMORY, processes=1)).close()
    return "every limit that was set on a job reads back"


def _kill_on_close(plain: Job) -> str:
    running = trial.start(TREE, (plain, process_creation.Creation()))
    try:
        child = int(running.line())
        with (
            abi.open_process(running.child.pid, abi.SYNCHRONIZE) as first,
            abi.open_process(child, abi.SYNCHRONIZE) as second,
        ):
            if abi.wait_any((first.value, second.value), 0) is not None:
                raise OSError(0, "the control failed: a process did not wait")
            running.child.abandon()  # their input stays open: nothing else ends them
            for handle in (first, second):
                if abi.wait_any((handle.value,), trial.PATIENCE) is None:
                    raise OSError(0, "a process outlived the handle of its job")
    finally:
        running.child.abandon()
        running.close()
    return "a process and its child ended with the handle of their job"


def _memory() -> str:
    job.create(Job(memory=MEMORY)).close()
    _expect(_said(ALLOCATE, Job()), "allocated", "the control failed")
    _expect(_said(ALLOCATE, Job(memory=MEMORY)), "denied", "256 MiB under a limit of 96 MiB")
    return "256 MiB could be allocated without and not with a limit of 96 MiB"


def _processes() -> str:
    job.create(Job(processes=1)).close()
    _expect(_said(SPAWN, Job(processes=2)), "started", "the control failed")
    _expect(_said(SPAWN, Job(processes=1)), "denied", "a second process under a limit of one")
    return "a second process started under a limit of two and not of one"


def _cpu_rate(plain: Job) -> str:
    limited = replace(plain, cpu=200)
    job.create(limited).close()
    free = float(_said(BURN, plain))
    held = float(_said(BURN, limited))
    if held > free / 2:
        raise OSError(0, f"a fifth of a processor was {held:.2f} of one, {free:.2f} without limit")
    return f"a busy process got {held:.2f} of a processor with a limit of 0.2, {free:.2f} without"


def _accounting(plain: Job) -> str:
    seen = trial.observe(BURN, (plain, process_creation.Creation()))
    if seen.reaped.cpu < float(seen.said) / 4:
        raise OSError(0, f"a busy second was accounted as {seen.reaped.cpu:.2f} s")
    return f"a busy second was accounted as {seen.reaped.cpu:.2f} s"


def _ui(plain: Job) -> str:
    limited = replace(plain, ui=job.UI_LIMITS)
    job.create(limited).close()
    _expect(_said(DESKTOP, plain), "made", "the control failed")
    _expect(_said(DESKTOP, limited), "denied", "a desktop under UI limits")
    return "a desktop could be made without and not with the job's UI limits"


def _child_process_policy(plain: Job) -> str:
    _expect(_said(SPAWN, plain), "started", "the control failed")
    alone = mitigations.plan(0, subprocess=False)
    _expect(
        _said(SPAWN, plain, alone),
        "denied",
        "a process that was told to start none",
    )
    return "a process could start another without and not with the policy"


def _session() -> str:
    number = abi.session_of(os.getpid())
    if number == 0:
        raise OSError(0, "corral runs in session 0, as services and SSH do")
    return f"session {number}"


def _mitigations(base: tuple[Step, ...]) -> list[Finding]:
    def starts(bits: int) -> str:
        asked = mitigations.plan(bits, subprocess=True)
        _expect(_said("print('started')", *base, asked), "started", "python")
        return "python starts with them, and its process tells them"

    return [
        _try("mitigations", lambda: starts(BASE)),
        _try("strict_handles", lambda: starts(mitigations.STRICT_HANDLES.bit)),
    ]
