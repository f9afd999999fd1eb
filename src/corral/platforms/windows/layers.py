"""Compose the steps for a target on Windows, in the order in which they are applied.

corral applies every step from outside the target. For a target in an AppContainer, the first steps
create the journal (a file that lists what to undo after the run), the AppContainer's profile,
entries in the access lists of granted files, the token, the desktop and the job. Then the target's
process is created suspended. It is resumed only after the steps have checked that it has the
planned restrictions.
"""

from __future__ import annotations

import hashlib
import ntpath
import os
from collections.abc import Sequence

from corral.directories import directories
from corral.errors import PolicyError
from corral.paths import windows
from corral.plan import model
from corral.plan.model import Composition
from corral.platforms.windows import undo
from corral.platforms.windows.files import journal
from corral.platforms.windows.mechanisms import (
    app_container,
    job,
    minifilter,
    mitigations,
    network_capabilities,
    path_grants,
    process_creation,
    work_directory,
)
from corral.platforms.windows.mechanisms.desktop import CAPABILITY as STATION
from corral.platforms.windows.mechanisms.desktop import PrivateDesktop
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.mechanisms.restricted_token import (
    FilteredToken,
    LowIntegrity,
    RestrictedToken,
)
from corral.platforms.windows.options import (
    APP_CONTAINER,
    MITIGATIONS,
    OWN_DESKTOP,
    RESTRICTED,
    STRICT,
)
from corral.platforms.windows.relay import start as relay
from corral.platforms.windows.runtime_copies import store
from corral.policy.model import Policy
from corral.programs.identity import home_words
from corral.programs.model import Program
from corral.programs.windows_disk import HostDisk

SHARED_DESKTOP = (
    "the target shares your desktop and can see which windows are open, because giving it "
    "a desktop of its own did not work on this system"
)
SHELLS = ("cmd.exe", "powershell.exe", "pwsh.exe")
SHELL = (
    "in an AppContainer `cd`, `dir` and `if exist` fail without a message, and PowerShell might "
    "fail to start: name the server's own program instead"
)
RELAY, CHILDLESS = "relay", "child process policy"
BASE = (
    mitigations.EXTENSION_POINTS.bit
    | mitigations.NO_REMOTE_IMAGES.bit
    | mitigations.NO_LOW_LABEL_IMAGES.bit
)
PASSED = (
    "SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "OS", "ProgramData",
    "ProgramFiles", "CommonProgramFiles", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
)  # fmt: skip
"""Environment variables that describe the machine, not the user. Several runtimes need them to
start.
"""


def compose(
    policy: Policy, program: Program, controls: Sequence[model.Held], *, home: str, run: str
) -> Composition:
    if policy.own_unix_sockets:
        raise PolicyError("own_unix_sockets is not available on Windows", hint="use corral in WSL2")
    private, steps = _order(policy, program, controls, home=home, run=run)
    own = any(isinstance(step, work_directory.WorkDirectory) for step in steps)
    residual = (work_directory.WorkDirectory, undo.Claim)
    copies = store.find(steps)
    granted = [step for step in steps if isinstance(step, path_grants.Grants)]
    started = program if copies is None else copies.program
    return Composition(
        steps=tuple(steps),
        environment=(
            *environment(private, own=own).items(),
            ("PATH", ";".join(started.search)),
            *((("STATE_DIRECTORY", private),) if policy.state else ()),
            *started.environment,
        ),
        home=f"{private}\\home" if own else private,
        run=run,
        residue=tuple(step.residue for step in steps if isinstance(step, residual)),
        watched=tuple(name for step in granted for name in step.watched),
        warnings=(
            *_warnings(program, steps),
            *(text for step in granted for text in step.warnings()),
        ),
    )


def _warnings(program: Program, steps: Sequence[model.Step]) -> tuple[str, ...]:
    kinds = {type(step) for step in steps}
    if app_container.Profile not in kinds:
        return ()
    found = [] if PrivateDesktop in kinds else [SHARED_DESKTOP]
    name = ntpath.basename(program.path).lower()
    return (*found, f"{name}: {SHELL}") if name in SHELLS else tuple(found)


def _order(
    policy: Policy, program: Program, controls: Sequence[model.Held], *, home: str, run: str
) -> tuple[str, list[model.Step]]:
    """Return the target's private directory, and all steps in order. The target gets an
    AppContainer, a restricted token or neither, depending on the mechanism that the plan chose for
    the control `syscalls`.
    """
    mechanisms: dict[str, str] = {held.control: held.mechanism for held in controls}
    limits, token = job.plan(policy, controls), mechanisms["syscalls"]
    bits = BASE if MITIGATIONS in token else 0
    bits |= mitigations.STRICT_HANDLES.bit if STRICT in token else 0
    if APP_CONTAINER in token:
        network = mechanisms["network"]
        own = OWN_DESKTOP in token
        private, steps = _contained(
            policy, program, limits, bits, network, desktop=own, home=home, run=run
        )
    else:
        private, steps = _uncontained(policy, run, restricted=RESTRICTED in token)
    childless = CHILDLESS in mechanisms["subprocess"]
    steps += [limits, mitigations.plan(bits, subprocess=not childless), process_creation.Creation()]
    return private, steps + _minifilter(policy, program, private, steps)


def _contained(
    policy: Policy,
    program: Program,
    limits: Job,
    bits: int,
    network: str,
    *,
    desktop: bool,
    home: str,
    run: str,
) -> tuple[str, list[model.Step]]:
    """Return the target's private directory, and the steps for an AppContainer. `network` is the
    mechanism chosen for the control `network`.
    """
    reach = network_capabilities.plan(policy)
    journals = journal.default_directory()
    known = windows.known_directories(os.environ, home, HostDisk().real)
    trees = path_grants.read_trees(policy, home=home, copied=program.reads)
    granted = path_grants.plan(policy, trees, known=known, directory=journals)
    copies = store.plan(program, directory=store.default_directory(), granted=policy.grants)
    sids = [*reach.capabilities, *granted.sids, *copies.sids]
    sids += [STATION] if desktop else []
    name = app_container.profile_name(digest(program), "state" if policy.state else run)
    private = app_container.profile_folder(home, name)
    last: list[model.Step] = []
    if RELAY in network:
        own = store.plan_own_interpreter(home)
        sids += own.sids
        hosts = relay.NamedHosts(
            allow=policy.allow,
            python=own.program.path,
            environment=tuple(environment(private, own=False).items()),
            cpu=limits.cpu,
            ui=limits.ui,
            bits=bits,
        )
        last = [own, hosts]
    temporary = "" if policy.state else name
    claim = undo.Claim(
        directory=journals, run=run, profile=temporary, roots=granted.roots, keep=granted.keep
    )
    profile = app_container.Profile(
        profile=name, capabilities=tuple(dict.fromkeys(sids)), home=private, keep=policy.state
    )
    own_desktop = [PrivateDesktop(package=profile.package)] if desktop else []
    return private, [claim, profile, FilteredToken(), *own_desktop, granted, copies, reach, *last]


def _uncontained(policy: Policy, run: str, *, restricted: bool) -> tuple[str, list[model.Step]]:
    if policy.state:
        raise PolicyError(
            "state = true needs an AppContainer, because its profile contains the state",
            hint="grant a directory with filesystem.write instead",
        )
    name = work_directory.PREFIX + run
    private = os.path.join(os.path.dirname(directories().cache), "work", name)
    steps: list[model.Step] = [work_directory.WorkDirectory(path=private, low=restricted)]
    if not restricted:
        return private, steps
    if any(grant.access == "write" for grant in policy.grants):
        raise PolicyError(
            "filesystem.write cannot be granted without an AppContainer, because a target of Low "
            "integrity can write only files that are labelled Low",
            hint="use AppContainers, or let the server write into its own directory",
        )
    return private, [*steps, RestrictedToken(), LowIntegrity(), PrivateDesktop()]


def _minifilter(
    policy: Policy, program: Program, private: str, steps: Sequence[model.Step]
) -> list[model.Step]:
    """Return the minifilter's step, or [] if the policy does not ask for it or no driver is
    installed. A missing driver is not an error, because no wall depends on the minifilter.
    """
    if not policy.windows.minifilter or minifilter.probe().status != "proven":
        return []
    stores = [step for step in steps if isinstance(step, store.Store)]
    staged = [tree.staged for one in stores for tree in one.trees]
    read = [grant.path for grant in policy.grants if grant.access == "read"]
    write = [grant.path for grant in policy.grants if grant.access == "write"]
    reads, writes = (*staged, *program.reads, *read), (private, *write)
    return [minifilter.Minifilter(read=reads, write=writes, workspace=private)]


def digest(program: Program) -> str:
    text = "\0".join(home_words(program))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def machine_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED if name in os.environ}


def environment(private: str, *, own: bool) -> dict[str, str]:
    """Return the environment variables that every target has, except PATH.

    With `own`, corral itself creates `private` and its subdirectories `home`, `tmp`, `local` and
    `roaming`. Otherwise `private` is the folder of an AppContainer profile, and Windows itself
    replaces the value of LOCALAPPDATA. But it refuses to create a process without this variable, so
    give it the user's own value.
    """
    home = f"{private}\\home" if own else private
    temporary = f"{private}\\tmp" if own else f"{private}\\Temp"
    local = f"{private}\\local" if own else os.environ.get("LOCALAPPDATA", private)
    return {
        **machine_variables(),
        "USERPROFILE": home,
        "HOMEDRIVE": home[:2],
        "HOMEPATH": home[2:],
        "APPDATA": f"{private}\\roaming" if own else private,
        "LOCALAPPDATA": local,
        "TEMP": temporary,
        "TMP": temporary,
        "USERNAME": "user",
    }
