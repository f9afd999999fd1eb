"""From a policy and a program to the steps of a run here. Looks at files, changes nothing."""

from __future__ import annotations

import os
import sys

from corral.paths.posix import is_below
from corral.plan.model import Composition
from corral.platforms.macos import options
from corral.platforms.macos.mechanisms import (
    jetsam,
    loopback_proxy,
    seatbelt,
    seatbelt_paths,
    seatbelt_profile,
    seatbelt_secrets,
)
from corral.platforms.posix import rlimits, state_directory, work_directory
from corral.platforms.posix.environment import environment
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Held, Step
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

WORK_PREFIX = "corral-"
TEMPORARY = "/tmp"  # noqa: S108 - a directory in it is made 0700, never reused
FRAMEWORK = "/Python.framework/Versions/"
BUNDLE = "Resources/Python.app/Contents/MacOS/Python"
INSTALLED = ("/usr/local", "/opt/homebrew", "/opt/local")
SERVICES = ("var", "etc")
CERTIFICATES = ("etc/openssl@3", "etc/openssl", "etc/ca-certificates")
SHIMS = ("/usr/bin/python3", "/usr/bin/pip3", "/usr/bin/git", "/usr/bin/make")
STUB = "this python executes a second image at its start: only a stated memory limit holds that"


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> Composition:
    run = f"{os.getpid()}-{os.urandom(4).hex()}"
    # A short path: that of a unix socket has room for 103 bytes.
    place = f"{os.path.realpath(TEMPORARY)}/{WORK_PREFIX}{os.geteuid()}-{run}"
    kept = seatbelt_paths.exact(state_directory.path_for(program)) if policy.state else ""
    steps: list[Step] = [
        work_directory.WorkDirectory(path=place, uid=os.geteuid(), gid=os.getegid()),
        *([state_directory.State(path=kept, inside=kept)] if kept else []),
        _rlimits(policy),
    ]
    mechanisms = {held.control: held.mechanism for held in controls}
    if mechanisms.get("memory") == options.JETSAM and policy.limits.memory is not None:
        steps.append(jetsam.plan(policy.limits.memory))
    opened = options.DOOR in mechanisms.get("network", "")
    steps += [loopback_proxy.Door(allow=policy.allow)] if opened else []
    if options.SEATBELT in mechanisms.get("filesystem", ""):
        seen = view(policy, program, home=home, private=place, kept=kept)
        steps.append(_seatbelt(seen, opened=opened))
    starters = seatbelt_secrets.held(exact(policy.grants), *homes(home))
    return Composition(
        steps=tuple(steps),
        environment=environment(f"{place}/home", f"{place}/tmp", state=kept),  # noqa: S108
        home=f"{place}/home",
        run=run,
        residue=(place,),
        watched=tuple(path for path in starters if not os.path.lexists(path)),
    )


def _rlimits(policy: Policy) -> rlimits.Rlimits:
    """No DATA: here it bounds the address space as AS does, in which node cannot start. NPROC
    counts the user's processes, so no number but 1 means anything.
    """
    step = rlimits.plan(replace(policy.limits, pids=None, memory=None), count_init=False)
    if policy.subprocess:
        return step
    return replace(step, values=(*step.values, ("NPROC", 1)))


def _seatbelt(seen: seatbelt_profile.View, *, opened: bool) -> seatbelt.Seatbelt:
    text, parameters = seatbelt_profile.profile(seen)
    closed = seatbelt.outside((*seen.read, *seen.write, *seen.needed))
    return seatbelt.Seatbelt(
        profile=text,
        parameters=parameters,
        closed=closed,
        alone=not seen.subprocess,
        door=opened,
    )


def view(
    policy: Policy, program: Program, *, home: str, private: str, kept: str
) -> seatbelt_profile.View:
    grants = exact(policy.grants)
    reads = tuple(map(seatbelt_paths.exact, program.reads))
    prefixes = packages(reads)
    written = [grant.path for grant in grants if grant.access == "write"]
    hidden = seatbelt_secrets.hidden(grants, *homes(home)) if grants else ()
    own = [path for path in reads if any(is_below(path, top) for top in written)]
    held = (*seatbelt_secrets.held(grants, *homes(home)), *own) if written else ()
    links = (path for path, _ in program.links)
    certificates = (f"{prefix}/{name}" for prefix in prefixes for name in CERTIFICATES)
    return seatbelt_profile.View(
        execute=executables(program),
        needed=(*reads, *links, *certificates),
        private=private,
        read=tuple(grant.path for grant in grants if grant.access == "read"),
        write=(*written, *([kept] if kept else [])),
        sockets=tuple(grant.path for grant in grants if grant.access == "socket"),
        hidden=(*services(prefixes, grants), *hidden),
        held=held,
        anchors=seatbelt_secrets.anchors(grants, (*hidden, *held)),
        links=tuple(grant.written for grant in grants if grant.written not in {"", grant.path}),
        subprocess=policy.subprocess,
    )


def homes(home: str) -> tuple[str, ...]:
    """The one that HOME says, which whoever starts corral can set, and the user's own."""
    import pwd

    try:
        recorded = [os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)]
    except KeyError:
        recorded = []
    return tuple(dict.fromkeys(map(seatbelt_paths.exact, (home, *recorded))))


def exact(grants: Sequence[Grant]) -> tuple[Grant, ...]:
    return tuple(replace(grant, path=seatbelt_paths.exact(grant.path)) for grant in grants)


def packages(reads: Sequence[str]) -> tuple[str, ...]:
    """Prefixes of package managers that can be read, as a part of the system or for the program."""
    return tuple(
        path
        for path in ("/usr/local", *reads)
        if path in INSTALLED or os.path.isdir(f"{path}/Cellar")
    )


def services(prefixes: Sequence[str], grants: Sequence[Grant]) -> tuple[str, ...]:
    """Data and settings of what is installed there (databases, keys). On a Mac these are the user's
    own files, so they are only seen where they were granted.
    """
    found = (f"{prefix}/{name}" for prefix in prefixes for name in SERVICES)
    granted = [grant.path for grant in grants]
    return tuple(path for path in found if not any(is_below(f"{path}/", top) for top in granted))


def executables(program: Program) -> tuple[str, ...]:
    """By every name that the kernel may check: as typed, where links lead, and what a stub runs."""
    real = seatbelt_paths.exact(program.real or os.path.realpath(program.path))
    bundle = framework_bundle(real)
    return tuple(dict.fromkeys((program.path, real, *([bundle] if bundle else []))))


def framework_bundle(real: str) -> str:
    """What the python of a framework build executes; empty for every other program."""
    prefix, found, rest = real.partition(FRAMEWORK)
    version, slash, name = rest.partition("/bin/")
    if not found or not slash or not name.startswith("python"):
        return ""
    return f"{prefix}{FRAMEWORK}{version}/{BUNDLE}"


def notes(program: Program) -> tuple[str, ...]:
    """What may surprise whoever runs it."""
    if program.real in SHIMS:
        return (f"{program.real} only starts the one that Xcode brings: name that (`xcrun -f`)",)
    return (STUB,) if framework_bundle(program.real) else ()
