"""Turn a policy and a program into the steps of a run. Reads the file system, changes nothing."""

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
from corral.platforms.macos.mechanisms.seatbelt_profile import View
from corral.platforms.posix import rlimits, run_directories
from corral.platforms.posix.environment import environment
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Held, Step
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

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
    # A short path, because that of a unix socket has at most 103 bytes.
    private = run_directories.work_directory(run)
    state = (
        seatbelt_paths.to_kernel_path(run_directories.state_path(program)) if policy.state else ""
    )
    steps: list[Step] = [
        run_directories.WorkDirectory(path=private, uid=os.geteuid(), gid=os.getegid()),
        *([run_directories.State(path=state, inside=state)] if state else []),
        _rlimits(policy),
    ]
    mechanisms = {held.control: held.mechanism for held in controls}
    if mechanisms.get("memory") == options.JETSAM and policy.limits.memory is not None:
        steps.append(jetsam.plan(policy.limits.memory))
    proxy = options.PROXY in mechanisms.get("network", "")
    steps += [loopback_proxy.LoopbackProxy(allow=policy.allow)] if proxy else []
    if options.SEATBELT in mechanisms.get("filesystem", ""):
        view = build_view(policy, program, home=home, private=private, state=state)
        steps.append(_seatbelt(view, proxy=proxy))
    starters = seatbelt_secrets.held(kernel_grants(policy.grants), *home_directories(home))
    return Composition(
        steps=tuple(steps),
        environment=environment(f"{private}/home", f"{private}/tmp", state=state),  # noqa: S108
        home=f"{private}/home",
        run=run,
        residue=(private,),
        watched=tuple(path for path in starters if not os.path.lexists(path)),
    )


def _rlimits(policy: Policy) -> rlimits.Rlimits:
    """Leave out DATA: it bounds the address space as AS does, so that node could not start."""
    step = rlimits.plan(replace(policy.limits, pids=None, memory=None), count_init=False)
    # NPROC counts the user's processes, so only 1 means anything.
    return step if policy.subprocess else replace(step, values=(*step.values, ("NPROC", 1)))


def _seatbelt(view: View, *, proxy: bool) -> seatbelt.Seatbelt:
    text, parameters = seatbelt_profile.profile(view)
    return seatbelt.Seatbelt(
        profile=text,
        parameters=parameters,
        closed=seatbelt.directory_outside((*view.read, *view.write, *view.needed)),
        alone=not view.subprocess,
        proxy=proxy,
    )


def build_view(policy: Policy, program: Program, *, home: str, private: str, state: str) -> View:
    grants, homes = kernel_grants(policy.grants), home_directories(home)
    reads = tuple(map(seatbelt_paths.to_kernel_path, program.reads))
    prefixes = package_prefixes(reads)
    written = [grant.path for grant in grants if grant.access == "write"]
    hidden = seatbelt_secrets.hidden(grants, *homes) if grants else ()
    own = [path for path in reads if any(is_below(path, top) for top in written)]
    held = (*seatbelt_secrets.held(grants, *homes), *own) if written else ()
    links = (path for path, _ in program.links)
    certificates = (f"{prefix}/{name}" for prefix in prefixes for name in CERTIFICATES)
    return View(
        execute=executables(program),
        needed=(*reads, *links, *certificates),
        private=private,
        read=tuple(grant.path for grant in grants if grant.access == "read"),
        write=(*written, *([state] if state else [])),
        sockets=tuple(grant.path for grant in grants if grant.access == "socket"),
        hidden=(*service_directories(prefixes, grants), *hidden),
        held=held,
        anchors=seatbelt_secrets.anchors(grants, (*hidden, *held)),
        links=tuple(grant.written for grant in grants if grant.written not in {"", grant.path}),
        subprocess=policy.subprocess,
    )


def home_directories(home: str) -> tuple[str, ...]:
    """Return the value of HOME, which the caller of corral can set, and the user's own home."""
    import pwd

    try:
        recorded = [os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)]
    except KeyError:
        recorded = []
    return tuple(dict.fromkeys(map(seatbelt_paths.to_kernel_path, (home, *recorded))))


def kernel_grants(grants: Sequence[Grant]) -> tuple[Grant, ...]:
    return tuple(replace(grant, path=seatbelt_paths.to_kernel_path(grant.path)) for grant in grants)


def package_prefixes(reads: Sequence[str]) -> tuple[str, ...]:
    """Return the readable prefixes of package managers, the system's and the program's."""
    paths = ("/usr/local", *reads)
    return tuple(path for path in paths if path in INSTALLED or os.path.isdir(f"{path}/Cellar"))


def service_directories(prefixes: Sequence[str], grants: Sequence[Grant]) -> tuple[str, ...]:
    """Return where installed programs keep data and settings (databases, keys), unless granted. On
    a Mac they are the user's own files, which the target could read.
    """
    found = (f"{prefix}/{name}" for prefix in prefixes for name in SERVICES)
    granted = [grant.path for grant in grants]
    return tuple(path for path in found if not any(is_below(f"{path}/", top) for top in granted))


def executables(program: Program) -> tuple[str, ...]:
    """Return every path that the kernel may check: as typed, resolved, and what a stub executes."""
    real = seatbelt_paths.to_kernel_path(program.real or os.path.realpath(program.path))
    bundle = framework_bundle(real)
    return tuple(dict.fromkeys((program.path, real, *([bundle] if bundle else []))))


def framework_bundle(real: str) -> str:
    """Return what the python of a framework build executes, empty for every other program."""
    prefix, found, rest = real.partition(FRAMEWORK)
    version, slash, name = rest.partition("/bin/")
    if not found or not slash or not name.startswith("python"):
        return ""
    return f"{prefix}{FRAMEWORK}{version}/{BUNDLE}"


def notes(program: Program) -> tuple[str, ...]:
    """Return what may surprise the user of this program."""
    if program.real in SHIMS:
        return (f"{program.real} only starts the one that Xcode brings: name that (`xcrun -f`)",)
    return (STUB,) if framework_bundle(program.real) else ()
