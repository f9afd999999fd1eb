"""Probe what Windows enforces, each in a disposable child and with its control.

A limit counts only when it reads back *and* stops what it should stop, while the same act without
it succeeds. That Windows accepts a limit proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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
text, number, pointer = ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_void_p
create.argtypes = [text, pointer, pointer, number, number, pointer]
print("made" if create("corral-probe", None, None, 0, 0x2, None) else "denied")
"""


HINTS = {
    "app_container": app_container.WSL2,
    "session": "start corral from a desktop session: AppContainers do not start in session 0",
}


LABELS: tuple[Label, ...] = (
    ("job_read_back", "Job limits read back", "available"),
    ("job_kill_on_close", "Tree ends with corral", "available"),
    ("job_memory", "Memory limit", "available"),
    ("job_processes", "Process limit", "available"),
    ("job_cpu_rate", "CPU rate limit", "available"),
    ("job_accounting", "CPU time accounting", "available"),
    ("job_ui", "UI restrictions", "available"),
    ("child_process_policy", "Child process policy", "available"),
    ("session", "Desktop session", "available"),
    ("app_container", "AppContainer", "available"),
    ("relay", "Network allowlist", "available"),
    ("mitigations", "Mitigations", "available"),
    ("strict_handles", "Strict handle checks", "available"),
    *(mechanism.LABEL for mechanism in (app_container, restricted_token, minifilter)),
)


def probe() -> tuple[Finding, ...]:
    read_back = _try("job_read_back", _read_back)
    # The kill is tried even where the job does not return the limits that were set.
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
    return (*found, *_tokens(plain), minifilter.probe())


def _tokens(plain: Job) -> tuple[Finding, ...]:
    """Probe both kinds of token, and mitigations together with the better one that works."""
    profile = app_container.probe()
    contained = replace(profile, capability="app_container")
    if profile.status == "proven":
        contained = _try("app_container", lambda: container.try_walls(plain))
    relay = Finding(capability="relay", status="absent", evidence="there is no AppContainer")
    if contained.status == "proven":
        relay = _try("relay", lambda: container.try_relay(plain))
    restricted = restricted_token.probe(os.path.expanduser("~"))
    base: tuple[model.Step, ...] = (plain,)
    if contained.status == "proven":
        base = (*container.steps(), plain)
    elif restricted.status == "proven":
        base = (restricted_token.RestrictedToken(), restricted_token.LowIntegrity(), plain)
    return (contained, relay, restricted, *_mitigations(base))


def _try(capability: str, attempt: Callable[[], str]) -> Finding:
    """`attempt` returns what it saw, or raises why that is not enough."""
    try:
        return Finding(capability=capability, status="proven", evidence=attempt())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = f"{where}{error.strerror or error}"
    except ValueError as error:  # the process could not even start, and printed no number
        why = f"the trial did not say what it saw: {error}"
    hint = HINTS.get(capability, "")
    return Finding(capability=capability, status="absent", evidence=why, hint=hint)


def _expect(output: str, wanted: str, what: str) -> None:
    if output != wanted:
        raise OSError(0, f"{what}: {output.splitlines()[-1] if output else 'it said nothing'}")


def _output(code: str, *steps: model.Step) -> str:
    return trial.observe(code, (*steps, Creation())).output


def _read_back() -> str:
    job.create(Job(memory=MEMORY, processes=1)).release()
    return "every limit that was set on a job reads back"


def _kill_on_close(plain: Job) -> str:
    running = trial.start(TREE, (plain, Creation()))
    try:
        child = int(running.line())
        with (
            abi.open_process(running.child.pid, abi.SYNCHRONIZE) as first,
            abi.open_process(child, abi.SYNCHRONIZE) as second,
        ):
            if abi.wait_any((first.value, second.value), 0) is not None:
                raise OSError(0, "the control failed: a process did not wait")
            running.child.abandon()  # their input stays open, so nothing else ends them
            for handle in (first, second):
                if abi.wait_any((handle.value,), trial.TIMEOUT_MS) is None:
                    raise OSError(0, "a process outlived the handle of its job")
    finally:
        running.child.abandon()
        running.close()
    return "a process and its child ended with the handle of their job"


def _memory() -> str:
    job.create(Job(memory=MEMORY)).release()
    _expect(_output(ALLOCATE, Job()), "allocated", "the control failed")
    _expect(_output(ALLOCATE, Job(memory=MEMORY)), "denied", "256 MiB under a limit of 96 MiB")
    return "256 MiB could be allocated without and not with a limit of 96 MiB"


def _processes() -> str:
    job.create(Job(processes=1)).release()
    _expect(_output(SPAWN, Job(processes=2)), "started", "the control failed")
    _expect(_output(SPAWN, Job(processes=1)), "denied", "a second process under a limit of one")
    return "a second process started under a limit of two and not of one"


def _cpu_rate(plain: Job) -> str:
    limited = replace(plain, cpu=200)
    job.create(limited).release()
    free = float(_output(BURN, plain))
    used = float(_output(BURN, limited))
    if used > free / 2:
        raise OSError(0, f"a fifth of a processor was {used:.2f} of one, {free:.2f} without limit")
    return f"a busy process got {used:.2f} of a processor with a limit of 0.2, {free:.2f} without"


def _accounting(plain: Job) -> str:
    seen = trial.observe(BURN, (plain, Creation()))
    if seen.reaped.cpu < float(seen.output) / 4:
        raise OSError(0, f"a busy second was accounted as {seen.reaped.cpu:.2f} s")
    return f"a busy second was accounted as {seen.reaped.cpu:.2f} s"


def _ui(plain: Job) -> str:
    limited = replace(plain, ui=job.UI_LIMITS)
    job.create(limited).release()
    _expect(_output(DESKTOP, plain), "made", "the control failed")
    _expect(_output(DESKTOP, limited), "denied", "a desktop under UI limits")
    return "a desktop could be made without and not with the job's UI limits"


def _child_process_policy(plain: Job) -> str:
    _expect(_output(SPAWN, plain), "started", "the control failed")
    alone = mitigations.plan(0, subprocess=False)
    _expect(_output(SPAWN, plain, alone), "denied", "a process that was told to start none")
    return "a process could start another without and not with the policy"


def _session() -> str:
    number = abi.session_of(os.getpid())
    if number == 0:
        raise OSError(0, "corral runs in session 0, as services and SSH do")
    return f"session {number}"


def _mitigations(base: tuple[model.Step, ...]) -> list[Finding]:
    def starts(bits: int) -> str:
        asked = mitigations.plan(bits, subprocess=True)
        _expect(_output("print('started')", *base, asked), "started", "python")
        return "python starts with them, and its process tells them"

    return [
        _try("mitigations", lambda: starts(BASE)),
        _try("strict_handles", lambda: starts(mitigations.STRICT_HANDLES.bit)),
    ]
