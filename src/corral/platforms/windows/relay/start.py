"""The relay's inner end, started for a run: in the target's container, but in a job of its own.

It cannot be in the target's job: there it would count against `pids`, and with subprocess = false
the limit of one process is the target's own. It cannot be outside the container: what listens out
there, no AppContainer reaches. And it has to listen before the target starts, which finds its port
in the proxy variables.

To Windows shim and target are one principal, so the target may read and change the shim. Nothing is
entrusted to it therefore, and its job has limits of its own: one process, `SHIM_MEMORY`, the CPU
rate of the policy, and whatever the target is not to do with windows and images. That is what a
target gains that takes the shim over, and all that it gains: with `network.allow` a target can have
this much more memory and CPU than it was given.

    shim = apply(step, scene)       # after the profile, before the target
    variables(shim.port)            # into the target's environment
    shim.doors()                    # for relay.Relay; shim.end() before relay.close()
"""

from __future__ import annotations

import os

from corral.abi import win32_security
from corral.plan.model import Plan
from corral.platforms.windows.mechanisms import job, mitigations, process_creation
from corral.platforms.windows.relay import inside
from corral.platforms.windows.run_context import Scene
from corral.platforms.windows.streams import Streams
from corral.programs.model import Program
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.abi.win32 import Handle
    from corral.plan.model import Place

SHIM_MEMORY = 96 << 20
PATIENCE = 20.0
"""Seconds: a cold interpreter on a busy machine, with a virus scanner reading along."""


@record
class NamedHosts:
    """`python` is an interpreter that the container can read, `environment` what it starts with.
    `ui` and `bits` are the target's own restrictions: it may take the shim over.

    `childless`, `memory` and `read_back` are off only where the host was not seen to hold them.
    """

    allow: tuple[str, ...]
    python: str
    environment: tuple[tuple[str, str], ...] = ()
    memory: int | None = SHIM_MEMORY
    cpu: int | None = None
    ui: int = 0
    bits: int = 0
    childless: bool = True
    read_back: bool = True
    place: Place = "supervisor"

    def describe(self) -> str:
        return f"relay: a proxy on loopback inside, for {', '.join(self.allow)}"


class Shim:
    """Until `end`, which also closes the pipes unless they were handed out."""

    def __init__(self, scene: Scene, limited: job.Limited, doors: list[int]) -> None:
        self.port = 0
        self._scene = scene
        self._job = limited
        self._doors = doors

    def greet(self) -> None:
        """Wait until it listens. OSError if it does not come up."""
        import threading

        watchdog = threading.Timer(PATIENCE, self._job.terminate)
        watchdog.start()
        try:
            self.port = inside.read_hello(self._doors[0])
        except inside.ProtocolError as error:
            raise OSError(0, f"the relay's inner end: {error}") from error
        finally:
            watchdog.cancel()
            watchdog.join()

    def doors(self) -> list[int]:
        """What it says, and what it hears; they are the caller's from now on."""
        doors, self._doors = self._doors, []
        return doors

    def end(self) -> None:
        self._job.end()
        self._scene.end()
        for fd in self.doors():
            os.close(fd)


def apply(step: NamedHosts, scene: Scene) -> Shim:
    """It listens, or OSError and nothing is left. `scene` has the container of the target."""
    own = Scene()
    own.capabilities = scene.capabilities
    own.token = scene.token
    own.desktop = scene.desktop
    alone = mitigations.plan(step.bits, subprocess=not step.childless)
    own.attributes += mitigations.attributes(alone)
    limits = job.Job(
        memory=step.memory, cpu=step.cpu, processes=1, ui=step.ui, read_back=step.read_back
    )
    job.apply(limits, own)
    assert own.job is not None  # noqa: S101 - it was just made
    reading, saying = os.pipe()
    hearing, writing = os.pipe()
    shim = Shim(own, own.job, [reading, writing])
    try:
        thread = _create(step, own, (hearing, saying))
        process_creation.verify(own)
        mitigations.verify(alone, own.process)
        _check_container(own)
        process_creation.resume(thread)
        shim.greet()
    except BaseException:
        shim.end()
        raise
    return shim


def _check_container(scene: Scene) -> None:
    """Out of it the shim would be a process with all of the user's rights, for the target's use."""
    if scene.capabilities is None:
        return
    with win32_security.open_token(scene.process) as token:
        if not win32_security.is_app_container(token.value):
            raise OSError(0, "the relay's inner end is not in the AppContainer")


def _create(step: NamedHosts, scene: Scene, ends: tuple[int, int]) -> Handle:
    # Its complaints go nowhere: stderr is the target's, and a stranger's words on it would mislead.
    nobody, complaining = os.pipe()
    try:
        streams = Streams((*ends, complaining))
        try:
            return process_creation.create(_plan(step), scene, streams)
        finally:
            streams.let_go()
    finally:
        for fd in (*ends, nobody, complaining):
            os.close(fd)


def _plan(step: NamedHosts) -> Plan:
    argv = tuple(shim_argv(step.python))
    program = Program(path=step.python, argv=argv, cwd=os.path.dirname(step.python))
    return Plan(program=program, steps=(), controls=(), environment=step.environment)


def shim_argv(python: str) -> list[str]:
    """The shim as a command. Its source goes with it, so that no file of corral's is needed."""
    with open(inside.__file__, encoding="utf-8") as file:
        return [python, "-I", "-S", "-c", file.read()]


def variables(port: int) -> dict[str, str]:
    """For the target. Names of variables have no case on Windows: one spelling is all."""
    proxy = f"http://127.0.0.1:{port}"
    return {
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
        "NO_PROXY": "localhost,127.0.0.1,::1",
        "NODE_USE_ENV_PROXY": "1",
    }
