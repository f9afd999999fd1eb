"""Compose the steps of a macOS run from its policy and program.

Composing does not change any file. The steps do so when they are applied.
"""

from __future__ import annotations

import os
import sys

from corral.paths.posix import is_below
from corral.plan.model import Composition
from corral.platforms.macos import developer_tools, options, working_directory
from corral.platforms.macos.mechanisms import (
    jetsam,
    loopback_proxy,
    responsibility,
    seatbelt,
    seatbelt_paths,
    seatbelt_profile,
    seatbelt_secrets,
)
from corral.platforms.macos.mechanisms.seatbelt_profile import View
from corral.platforms.posix import rlimits, run_directories
from corral.platforms.posix.environment import environment
from corral.programs.arguments import detect_kind
from corral.programs.needed_files import list_names
from corral.programs.runtimes import HOMEBREW
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.plan.model import Held, Step
    from corral.policy.model import Control, Grant, Policy
    from corral.programs.model import Program

FRAMEWORK = ".framework/Versions/"
IMAGES = "Resources/Python.app/Contents/MacOS"
SHELL, SELECTED_SHELL = "/bin/sh", "/private/var/select/sh"
SAMPLED_ROOM = 16
"""How much higher RLIMIT_NPROC is than a process limit that the policy sets. Sampling enforces the
limit itself.
"""
LANGUAGE = "en_US.UTF-8"  # some macOS versions have no C.UTF-8
MANAGERS = (
    ("/opt/homebrew/Cellar", HOMEBREW),
    ("/opt/local/lib", ("bin", "lib", "libexec", "share", "Library/Frameworks")),
)
"""Homebrew on Apple silicon, and MacPorts. Each pair consists of a directory that exists only if
the manager is installed, and the directories that every target may then read. Their libraries are
also used by other programs, such as a python that pyenv has built. Homebrew on Intel needs no pair,
because it is in /usr/local, which every target may read.
"""
INSTALLED = ("/usr/local", "/opt/homebrew", "/opt/local")
SERVICES = ("var", "etc")
CERTIFICATES = ("etc/openssl@3", "etc/openssl", "etc/ca-certificates")
BUN = "bun lists the directories above its files, so the target sees the file names in them"
STUB = "this python executes a second program, so the default memory limit is not enforced"


def compose(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str, running: int = 0
) -> Composition:
    """Return the steps of a run.

    `running` is the number of the user's processes before the run. RLIMIT_NPROC counts them too.
    """
    run = f"{os.getpid()}-{os.urandom(4).hex()}"
    # The private directory needs a short path. The target creates unix sockets in it, and the path
    # of a socket can be at most 103 bytes long.
    private = run_directories.work_directory(run)
    state = (
        seatbelt_paths.to_kernel_path(run_directories.state_path(program)) if policy.state else ""
    )
    mechanisms = {held.control: held.mechanism for held in controls}
    steps: list[Step] = [
        run_directories.WorkDirectory(path=private, uid=os.geteuid(), gid=os.getegid()),
        *([_state(state, program)] if state else []),
        _rlimits(policy, mechanisms, running),
    ]
    if mechanisms.get("memory") == options.JETSAM and policy.limits.memory is not None:
        steps.append(jetsam.plan(policy.limits.memory))
    walled = options.SEATBELT in mechanisms.get("filesystem", "")
    possible = options.DISCLAIM in mechanisms.get("syscalls", "") or not walled
    disclaims = policy.macos.disclaim and possible
    steps += [responsibility.Disclaimer()] if disclaims else []
    proxy = options.PROXY in mechanisms.get("network", "")
    steps += [loopback_proxy.LoopbackProxy(allow=policy.allow)] if proxy else []
    home_inside, temporary = run_directories.inner(private)
    home_inside = state or home_inside
    start_in, notices = "", list[str]()
    if walled:
        view = build_view(policy, program, home=home, private=private, state=state)
        start_in, notices = working_directory.choose(view, program, home_inside)
        view = replace(view, marker=f"org.corral.{os.urandom(16).hex()}")
        services = seatbelt_profile.TRUSTD if proxy and policy.macos.trustd else ()
        steps.append(_seatbelt(replace(view, services=services), proxy=proxy))
    grants, homes = kernel_grants(policy.grants), home_directories(home)
    starters = seatbelt_secrets.held(grants, *homes)
    asked = (*program.reads, *(grant.path for grant in grants))
    privacy = responsibility.warnings(asked, homes, program.real) if disclaims else ()
    return Composition(
        steps=tuple(steps),
        environment=environment(home_inside, temporary, state=state, language=LANGUAGE),
        home=home_inside,
        run=run,
        residue=(private,),
        watched=tuple(path for path in starters if not os.path.lexists(path)),
        warnings=(*notices, *privacy),
        start_in=start_in,
    )


def _state(path: str, program: Program) -> run_directories.State:
    return run_directories.State(
        path=path,
        inside=path,
        server=program.server or program.typed,
        start_directory=program.directory,
    )


def _rlimits(policy: Policy, mechanisms: Mapping[Control, str], running: int) -> rlimits.Rlimits:
    """Return the step that sets the rlimits.

    RLIMIT_DATA is not set, because on macOS it limits the address space, so node could not start.
    RLIMIT_NPROC counts all of the user's processes, so `running`, the number of those that exist
    already, is added to the limit.
    """
    limits = replace(policy.limits, memory=None)
    if not mechanisms.get("address_space"):
        limits = replace(limits, address_space=None)
    room = SAMPLED_ROOM if "pids" in policy.stated else 0
    pids = limits.pids if limits.pids is None else running + limits.pids + room
    limits = replace(limits, pids=pids if policy.subprocess else 1)
    return rlimits.plan(limits, count_init=False)


def _seatbelt(view: View, *, proxy: bool) -> seatbelt.Seatbelt:
    text, parameters = seatbelt_profile.profile(view)
    return seatbelt.Seatbelt(
        profile=text,
        parameters=parameters,
        closed=seatbelt.directory_outside((*view.read, *view.write, *view.needed)),
        alone=not view.subprocess,
        proxy=proxy,
        marker=view.marker,
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
    tools = developer_tools.find_directory() if policy.subprocess else ""
    return View(
        execute=executables(program),
        needed=(*reads, *links, *certificates, *package_libraries(), *([tools] if tools else [])),
        private=private,
        read=tuple(grant.path for grant in grants if grant.access == "read"),
        write=(*written, *([state] if state else [])),
        sockets=tuple(grant.path for grant in grants if grant.access == "socket"),
        hidden=(*service_directories(prefixes, grants), *hidden),
        held=held,
        anchors=seatbelt_secrets.anchors(grants, (*hidden, *held)),
        links=tuple(grant.written for grant in grants if grant.written not in {"", grant.path}),
        listed=(*reads, private) if detect_kind(program.path, program.real) == "bun" else (),
        subprocess=policy.subprocess,
    )


def package_libraries() -> tuple[str, ...]:
    return tuple(
        f"{os.path.dirname(mark)}/{part}"
        for mark, parts in MANAGERS
        if os.path.isdir(mark)
        for part in parts
    )


def home_directories(home: str) -> tuple[str, ...]:
    """Return `home`, which comes from HOME, and the user's home directory in the user database.

    The two differ if corral's caller has set HOME to another directory.
    """
    import pwd

    try:
        recorded = [os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)]
    except KeyError:
        recorded = []
    return tuple(dict.fromkeys(map(seatbelt_paths.to_kernel_path, (home, *recorded))))


def kernel_grants(grants: Sequence[Grant]) -> tuple[Grant, ...]:
    return tuple(replace(grant, path=seatbelt_paths.to_kernel_path(grant.path)) for grant in grants)


def package_prefixes(reads: Sequence[str]) -> tuple[str, ...]:
    paths = ("/usr/local", *reads)
    return tuple(path for path in paths if path in INSTALLED or os.path.isdir(f"{path}/Cellar"))


def service_directories(prefixes: Sequence[str], grants: Sequence[Grant]) -> tuple[str, ...]:
    """Return the directories in which installed services keep data and settings, to hide them.

    On a Mac these directories belong to the user, so the target could otherwise read the databases
    and keys in them. Leave out directories that are granted or inside a granted directory.
    """
    found = (f"{prefix}/{name}" for prefix in prefixes for name in SERVICES)
    granted = [grant.path for grant in grants]
    return tuple(path for path in found if not any(is_below(f"{path}/", top) for top in granted))


def executables(program: Program) -> tuple[str, ...]:
    """Return every path whose execution Seatbelt may check when the program starts.

    These are the path as typed and the real path. If the program is only a launcher, they include
    the programs that it executes. For example, /bin/sh executes another shell.
    """
    real = seatbelt_paths.to_kernel_path(program.real or os.path.realpath(program.path))
    more = (_find_shell(),) if real == SHELL else framework_images(real)
    return tuple(dict.fromkeys((program.path, real, *more)))


def _find_shell() -> str:
    """Return the shell that /bin/sh executes."""
    try:
        return os.readlink(SELECTED_SHELL)
    except OSError:
        return "/bin/bash"


def framework_images(real: str) -> tuple[str, ...]:
    """Return the programs that `python` executes if it is only the launcher of a framework build.

    The frameworks are Python, Python3 (Apple's) and PythonT (free-threaded).
    """
    prefix, found, rest = real.partition(FRAMEWORK)
    version, slash, name = rest.partition("/bin/")
    is_python = os.path.basename(prefix).startswith("Python") and name.startswith("python")
    if not found or not slash or not is_python:
        return ()
    directory = f"{prefix}{FRAMEWORK}{version}/{IMAGES}"
    return tuple(f"{directory}/{name}" for name in list_names(directory) or ["Python"])


def notes(program: Program) -> tuple[str, ...]:
    if detect_kind(program.path, program.real) == "bun":
        return (BUN,)
    return (STUB,) if framework_images(program.real) else ()
