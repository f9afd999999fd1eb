"""The order of application on Windows, and which step belongs to whom.

Everything happens outside the target: first what has to be there (journal, profile, entries in
access lists, token, desktop, job), then the process, suspended, with all its attributes; then every
step is looked at from the outside, in that very process, and only then does it run.
"""

from __future__ import annotations

import os

from corral.abi import win32_security
from corral.directories import directories
from corral.errors import PolicyError
from corral.paths import windows
from corral.platforms.windows import undo
from corral.platforms.windows.environment import environment
from corral.platforms.windows.mechanisms import (
    app_container,
    desktop,
    integrity,
    job,
    minifilter,
    mitigations,
    network_capabilities,
    path_grants,
    process_creation,
    restricted_token,
    work_directory,
)
from corral.platforms.windows.options import APP_CONTAINER, MITIGATIONS, RESTRICTED, STRICT
from corral.platforms.windows.relay import start as relay_start
from corral.platforms.windows.runtime_copies import python_paths
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs.windows_disk import HostDisk
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Held, Step
    from corral.platforms.windows.run_context import Scene
    from corral.policy.model import Policy
    from corral.programs.model import Program

RELAY, CHILDLESS = "relay", "child process policy"
BASE = (
    mitigations.EXTENSION_POINTS.bit
    | mitigations.NO_REMOTE_IMAGES.bit
    | mitigations.NO_LOW_LABEL_IMAGES.bit
)


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str, run: str
) -> tuple[tuple[Step, ...], str]:
    """The steps in their order, and the private directory of the target.

    What holds the system calls decides the layering.
    """
    holding = {held.control: held.mechanism for held in controls}
    token = holding["syscalls"]
    limited = job.plan(policy, controls)
    bits = (BASE if MITIGATIONS in token else 0) | (
        mitigations.STRICT_HANDLES.bit if STRICT in token else 0
    )
    if APP_CONTAINER in token:
        steps, private = _contained(policy, program, home, run)
        if RELAY in holding["network"]:
            steps = _with_relay(policy, steps, home, private, limited=limited, bits=bits)
    else:
        _refuse_state(policy)
        private = os.path.join(
            os.path.dirname(directories().cache), "work", work_directory.PREFIX + run
        )
        steps = [work_directory.WorkDirectory(path=private, low=RESTRICTED in token)]
        if RESTRICTED in token:
            steps += _restricted(policy)
    steps.append(limited)
    childless = CHILDLESS in holding["subprocess"]
    steps.append(mitigations.plan(bits, subprocess=not childless))
    steps += _second_layer(policy, program, private, steps)
    return (*steps, process_creation.Creation()), private


def _contained(policy: Policy, program: Program, home: str, run: str) -> tuple[list[Step], str]:
    reach = network_capabilities.plan(policy)
    known = windows.places(os.environ, home, HostDisk().real)
    granted = path_grants.plan(
        policy, path_grants.look(policy), known=known, directory=python_paths.journals()
    )
    copies = runtimes.plan(program, directory=python_paths.store(), granted=policy.grants)
    name = app_container.profile_name(digest(program), "state" if policy.state else run)
    private = app_container.folder(python_paths.local(home), name)
    claim = undo.Claim(
        directory=python_paths.journals(),
        run=run,
        profile="" if policy.state else name,
        roots=granted.roots,
        keep=granted.keep,
    )
    profile = app_container.Profile(
        name=name,
        capabilities=tuple(dict.fromkeys((*reach.capabilities, *granted.sids, *copies.sids))),
        home=private,
        keep=policy.state,
    )
    return [claim, profile, granted, copies, reach], private


def _with_relay(
    policy: Policy, steps: Sequence[Step], home: str, private: str, *, limited: job.Job, bits: int
) -> list[Step]:
    """The relay's inner end needs an interpreter that the container can read."""
    copies = python_paths.copies(home)
    hosts = relay_start.NamedHosts(
        allow=policy.allow,
        python=copies.program.path,
        environment=tuple(environment(private, own=False).items()),
        cpu=limited.cpu,
        ui=limited.ui,
        bits=bits,
    )
    found = [_also(step, copies.sids) for step in steps]
    return [*found, copies, hosts]


def _also(step: Step, sids: Sequence[str]) -> Step:
    if not isinstance(step, app_container.Profile):
        return step
    return replace(step, capabilities=tuple(dict.fromkeys((*step.capabilities, *sids))))


def _refuse_state(policy: Policy) -> None:
    if policy.state:
        raise PolicyError(
            "state = true needs an AppContainer: its profile is the directory that stays",
            hint="grant a directory with filesystem.write instead",
        )


def _restricted(policy: Policy) -> list[Step]:
    if any(grant.access == "write" for grant in policy.grants):
        raise PolicyError(
            "without an AppContainer filesystem.write cannot be opened: a target of Low integrity "
            "writes nothing that is not labelled for it",
            hint="use AppContainers, or let the server write into its own directory",
        )
    return [
        restricted_token.RestrictedToken(),
        integrity.LowIntegrity(),
        desktop.PrivateDesktop(),
    ]


def _second_layer(
    policy: Policy, program: Program, private: str, steps: Sequence[Step]
) -> list[Step]:
    """A driver that is not there is no reason to stop: `doctor` tells of it."""
    if not policy.windows.minifilter or minifilter.probe().status != "proven":
        return []
    stores = [step for step in steps if isinstance(step, runtimes.Store)]
    staged = [tree.staged for store in stores for tree in store.trees]
    read = [grant.path for grant in policy.grants if grant.access == "read"]
    write = [grant.path for grant in policy.grants if grant.access == "write"]
    return [
        minifilter.Minifilter(
            read=(*staged, *program.reads, *read),
            write=(private, *write),
            workspace=private,
        )
    ]


def digest(program: Program) -> str:
    import hashlib

    text = "\0".join(program.typed or program.argv)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def apply(step: Step, scene: Scene) -> None:
    if isinstance(step, undo.Claim):
        undo.apply(step, scene)
    elif isinstance(step, app_container.Profile):
        app_container.apply(step, scene)
    elif isinstance(step, path_grants.Grants):
        path_grants.apply(step, scene)
    elif isinstance(step, runtimes.Store):
        runtimes.apply(step, scene)
    elif isinstance(step, relay_start.NamedHosts):
        shim = relay_start.apply(step, scene)
        scene.shim = shim
        scene.variables = tuple(relay_start.variables(shim.port).items())
        scene.undo.append(shim.end)
    elif isinstance(step, restricted_token.RestrictedToken):
        scene.token = restricted_token.apply(step)
        scene.undo.append(scene.token.close)
    elif isinstance(step, integrity.LowIntegrity):
        integrity.apply(step, scene.token.value if scene.token else 0)
    elif isinstance(step, desktop.PrivateDesktop):
        made = desktop.apply(step)
        scene.desktop = made.path
        scene.undo.append(made.close)
    elif isinstance(step, mitigations.Mitigations):
        scene.attributes += mitigations.attributes(step)
    elif isinstance(step, work_directory.WorkDirectory):
        work_directory.apply(step, scene)
    elif isinstance(step, job.Job):
        job.apply(step, scene)


def verify(step: Step, scene: Scene) -> None:
    """In the suspended process."""
    if isinstance(step, process_creation.Creation):
        process_creation.verify(scene)
    elif isinstance(step, app_container.Profile):
        app_container.verify(step, scene)
    elif isinstance(step, path_grants.Grants):
        path_grants.verify(step, scene)
    elif isinstance(step, runtimes.Store):
        runtimes.verify(step, scene)
    elif isinstance(step, restricted_token.RestrictedToken):
        with win32_security.open_token(scene.process) as token:
            restricted_token.verify(step, token.value)
    elif isinstance(step, integrity.LowIntegrity):
        with win32_security.open_token(scene.process) as token:
            integrity.verify(step, token.value)
    elif isinstance(step, mitigations.Mitigations):
        mitigations.verify(step, scene.process)
    elif isinstance(step, minifilter.Minifilter):
        _register(step, scene)


def _register(step: minifilter.Minifilter, scene: Scene) -> None:
    try:
        session = minifilter.apply(step)
    except minifilter.AbsentError as error:
        raise OSError(0, f"the driver that listened is gone: {error}") from error
    scene.undo.append(session.close)
    try:
        session.register(scene.pid, step.workspace)
    except ValueError as error:
        raise OSError(0, str(error)) from error
