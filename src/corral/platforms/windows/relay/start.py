"""Start the relay's inner end, the shim, in the target's container but in its own job.

The shim cannot be in the target's job, because it would count against the job's limit `pids`: if
subprocess = false, this limit is a single process. Nor can the shim be outside the container,
because a program in an AppContainer cannot reach a port outside. The shim has to listen before the
target starts, because the target's proxy variables name the shim's port.

Windows treats the shim and the target as one principal, so the target can read and change the shim.
The shim is therefore not trusted, and its job has its own limits: one process, `SHIM_MEMORY`, and
the policy's CPU rate. The UI limits and mitigations of the target apply to it too. A target that
takes over the shim gains the shim's memory and CPU, but nothing else.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

from corral.abi import win32_security
from corral.abi.win32_process import Process
from corral.abi.win32_security import Capabilities
from corral.plan import model
from corral.plan.model import Plan, Results
from corral.platforms.steps import unverified
from corral.platforms.windows.mechanisms import mitigations, process_creation
from corral.platforms.windows.mechanisms.desktop import Desktop
from corral.platforms.windows.mechanisms.job import Job, LimitedJob
from corral.platforms.windows.mechanisms.restricted_token import PrimaryToken
from corral.platforms.windows.relay import inside
from corral.platforms.windows.streams import Streams
from corral.programs.model import Program
from corral.record import record

SHIM_MEMORY = 96 << 20
START_SECONDS = 20.0
"""How long to wait until the shim listens. On a busy machine with a virus scanner, the interpreter
is slow to start for the first time.
"""


@record
class NamedHosts:
    """Starts the shim, through which the target reaches the hosts in `allow`.

    `python` is an interpreter that the container can read, and `environment` contains its
    environment variables. `ui` and `bits` are the target's own UI limits and mitigations. The shim
    gets the same ones, because the target can take over the shim. `childless`, `read_back` and
    `memory` are off (False or None) if no probe has shown that this host supports them.
    """

    name = "relay"
    allow: tuple[str, ...]
    python: str
    environment: tuple[tuple[str, str], ...] = ()
    memory: int | None = SHIM_MEMORY
    cpu: int | None = None
    ui: int = 0
    bits: int = 0
    childless: bool = True
    read_back: bool = True
    stage: model.Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return f"relay: a proxy on loopback inside, for {', '.join(self.allow)}"

    def apply(self, results: Results) -> None:
        shim = start(self, results)
        results.add(shim)
        results.add(process_creation.ExtraVariables(values=tuple(variables(shim.port).items())))

    def shim_plan(self) -> Plan:
        argv = tuple(shim_argv(self.python))
        program = Program(path=self.python, argv=argv, cwd=os.path.dirname(self.python))
        return Plan(program=program, steps=(), controls=(), environment=self.environment)


class Shim:
    """A running shim. `release` closes its pipes, unless the caller has taken them."""

    def __init__(self, results: Results, pipes: tuple[int, int]) -> None:
        self.port = 0
        self._results = results
        self._pipes: tuple[int, ...] = pipes

    def wait_until_listening(self) -> None:
        """Wait until the shim has sent its port. Raise OSError if the shim takes too long, ends or
        sends something else.
        """
        watchdog = threading.Timer(START_SECONDS, self._results.get(LimitedJob).terminate)
        watchdog.start()
        try:
            self.port = inside.read_hello(self._pipes[0])
        except inside.ProtocolError as error:
            raise OSError(0, f"the network relay's process sent invalid data: {error}") from error
        finally:
            watchdog.cancel()
            watchdog.join()

    def take_pipes(self) -> tuple[int, int]:
        """Return the pipes from and to the shim. The caller has to close them."""
        reader, writer = self._pipes
        self._pipes = ()
        return reader, writer

    def release(self) -> None:
        self._results.get(LimitedJob).end()
        self._results.release()
        for fd in self._pipes:
            os.close(fd)
        self._pipes = ()


def start(step: NamedHosts, target: Results) -> Shim:
    """Start a shim in the target's container, with the target's token and desktop, and wait until
    it listens. If it does not listen in time, end it and raise OSError.
    """
    results = Results()
    for made in (target.find(Capabilities), target.find(PrimaryToken), target.find(Desktop)):
        if made is not None:
            # This object is also in the target's results, so it is released twice. The first
            # release does no harm, because the object is only needed while the two processes are
            # created. The second release does nothing.
            results.add(made)
    limits = Job(
        memory=step.memory, cpu=step.cpu, processes=1, ui=step.ui, read_back=step.read_back
    )
    restrictions = mitigations.plan(step.bits, subprocess=not step.childless)
    limits.apply(results)
    restrictions.apply(results)
    reading, theirs_out = os.pipe()
    theirs_in, writing = os.pipe()
    shim = Shim(results, (reading, writing))
    try:
        _create(step.shim_plan(), results, (theirs_in, theirs_out))
        limits.verify(results)
        restrictions.verify(results)
        _check_container(results)
        results.get(Process).resume()
        shim.wait_until_listening()
    except BaseException:
        shim.release()
        raise
    return shim


def _check_container(results: Results) -> None:
    """Raise OSError if the target gets an AppContainer, but the shim is not in one. The shim would
    then have the user's rights, and so would a target that takes the shim over.
    """
    if results.find(Capabilities) is None:
        return
    with win32_security.open_token(results.get(Process).handle.value) as token:
        if not win32_security.is_app_container(token.value):
            raise OSError(0, "the network relay's process is not in the AppContainer")


def _create(plan: Plan, results: Results, ends: tuple[int, int]) -> None:
    # Discard the shim's stderr, because its lines would look like the target's.
    unread, errors = os.pipe()
    with ExitStack() as stack:
        for fd in (*ends, unread, errors):
            stack.callback(os.close, fd)
        streams = Streams((*ends, errors))
        stack.callback(streams.close_handles)
        process_creation.create(plan, streams, results)


def shim_argv(python: str) -> list[str]:
    """Return the shim's arguments. They include its source, so that it need not read a file."""
    with open(inside.__file__, encoding="utf-8") as file:
        return [python, "-I", "-S", "-c", file.read()]


def variables(port: int) -> dict[str, str]:
    """Return the target's proxy variables, in upper case only, because Windows ignores the case of
    names.
    """
    proxy = f"http://127.0.0.1:{port}"
    return {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "localhost,127.0.0.1,::1",
        "NODE_USE_ENV_PROXY": "1",
    }
