"""Collect what a plan needs to know about the host: system directories, /etc and user ids."""

from __future__ import annotations

import os
import stat
import sys

from corral.errors import PolicyError
from corral.paths.posix import is_below, is_inside
from corral.platforms.linux.mechanisms import cgroup, user_ids
from corral.record import record
from corral.safe_text import printable, shell_word

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Covers
    from corral.platforms.linux.mechanisms.cgroup import Base
    from corral.platforms.linux.mechanisms.masks import Found
    from corral.platforms.linux.mechanisms.root_filesystem import Mask
    from corral.platforms.linux.mechanisms.user_ids import IdMaps
    from corral.policy.model import Policy
    from corral.programs.model import Program

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
)  # fmt: skip

# The files in /etc that the target sees: the loader's cache, TLS roots, crypto policies, locale,
# protocol names and fonts. The target does not see accounts, keys or the settings of services.
ETC = (
    "ld.so.cache",
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem",
    "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted",
    "ca-certificates/extracted", "crypto-policies",
    "alternatives", "localtime", "timezone", "os-release", "locale.conf",
    "mime.types", "protocols", "services", "fonts",
)  # fmt: skip
MUSL = "ld-musl-{machine}.path"
HOME = "/home/user"
OTHER_HOME = "/home/corral"
"""The home inside the sandbox if the user's own home is already HOME. If both homes had the same
path, the user's paths would seem to exist in the sandbox.
"""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@record
class Entry:
    """A system path in the sandbox.

    The path is bound from the host's `source`, or is a symlink to `link`.
    """

    path: str
    source: str = ""
    link: str = ""


@record
class Layout:
    """The facts about the host that a plan needs, and the paths of this run.

    `home` is the home in the sandbox, and `host_home` is the user's home on the host. If root
    started the run, `owners` contains (path, uid, gid) for each grant, for the state directory, and
    for the program's files that not every user can read.
    """

    uid: int
    gid: int
    who: IdMaps
    home: str
    host_home: str
    machine: str
    system: tuple[Entry, ...]
    devices: tuple[str, ...] = DEVICES
    masks: tuple[Mask, ...] = ()
    watched: tuple[str, ...] = ()
    covers: Covers | None = None
    warnings: tuple[str, ...] = ()
    owners: tuple[tuple[str, int, int], ...] = ()
    state: str = ""
    run: str = ""
    directory: str = ""
    cgroup: Base | None = None
    disks: tuple[str, ...] = ()


def survey(policy: Policy, program: Program, *, home: str) -> Layout:
    machine = os.uname().machine
    names = [*ETC, MUSL.format(machine=machine)]
    system = [entry for path in SYSTEM if (entry := _entry(path))]
    system += [entry for name in names if (entry := _entry(f"/etc/{name}"))]
    uid = os.geteuid()
    found: Found | None = None
    if policy.grants:
        from corral.platforms.linux.mechanisms.masks import find

        found = find(policy.grants, home, program.reads, policy.covered)
    state = ""
    if policy.state:
        from corral.platforms.posix import run_directories

        state = run_directories.state_path(program)
    disks: tuple[str, ...] = ()
    if policy.limits.io is not None:
        from corral.platforms.linux import block_devices

        disks = block_devices.find_disks(policy)[0]
    return Layout(
        uid=uid,
        gid=os.getegid(),
        who=user_ids.choose(uid, os.getegid()),
        home=OTHER_HOME if home == HOME else HOME,
        host_home=home,
        machine=machine,
        system=tuple(system),
        devices=tuple(path for path in DEVICES if os.path.exists(path)),
        masks=found.masks if found else (),
        watched=found.absent if found else (),
        covers=_covers(policy, program, found) if found else None,
        warnings=_warnings(policy, found) if found else (),
        owners=_owners(policy, program, state) if uid == 0 else (),
        state=state,
        run=(run := f"{os.getpid()}-{os.urandom(4).hex()}"),
        directory=f"/tmp/corral-{uid}-{run}",  # noqa: S108
        cgroup=cgroup.find(),
        disks=disks,
    )


def home_links(policy: Policy, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return (relative path, path) for each symlink to make in the target's home.

    A grant below the user's home gets a symlink at the same relative path in the target's home. A
    grant inside another grant does not need one.
    """
    paths = {grant.written or grant.path for grant in policy.grants}
    below = [path for path in paths if is_below(path, layout.host_home)]
    outermost = [path for path in below if not any(is_below(path, other) for other in below)]
    return tuple((os.path.relpath(path, layout.host_home), path) for path in sorted(outermost))


def _covers(policy: Policy, program: Program, found: Found) -> Covers | None:
    """Return the paths to watch: masked paths, and read-only paths inside write grants."""
    from corral.plan.model import Cover, Covers

    tops = [*(grant.path for grant in policy.grants), *program.reads]
    writable = [grant.path for grant in policy.grants if grant.access == "write"]
    covers = {
        mask.path: Cover(
            path=mask.path,
            device=mask.device,
            inode=mask.inode,
            top=min((top for top in tops if is_inside(mask.path, top)), key=len),
            directory=mask.directory,
            repository=mask.role == "repository",
        )
        for mask in found.masks
    }
    nested = [(one.path, one.device, one.inode) for one in policy.grants if one.access == "read"]
    nested += [(path, *seen) for path, seen in zip(program.reads, program.seen, strict=True)]
    for path, device, inode in nested:
        around = [top for top in writable if is_inside(path, top)]
        if around:
            directory = os.path.isdir(path)
            top = min(around, key=len)
            covers[path] = Cover(
                path=path, device=device, inode=inode, top=top, directory=directory
            )
    return Covers(names=tuple(covers.values()), strict=policy.strict) if covers else None


def _warnings(policy: Policy, found: Found) -> tuple[str, ...]:
    from corral.policy.secret_files import MAKES_GIT_RUN

    texts = [f"{printable(path)} may be written: {MAKES_GIT_RUN}" for path in found.named]
    closed = [mask.path for mask in found.masks if mask.role == "repository"]
    if closed and policy.subprocess:
        more = f" (and {len(closed) - 1} more)" if len(closed) > 1 else ""
        path, word = printable(closed[0]), shell_word(closed[0])
        texts.append(f"{path} is read-only{more}: `--write {word}` lets git commit there")
    if found.unsearched:
        more = f" and {len(found.unsearched) - 1} more directories" if found.unsearched[1:] else ""
        text = f"not searched for secrets and hooks: {printable(found.unsearched[0])}{more}"
        if policy.strict:
            raise PolicyError(text, hint="grant a directory with fewer files")
        texts.append(text)
    return tuple(texts)


def _entry(path: str) -> Entry | None:
    try:
        link = os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        return Entry(path=path, source=path)
    real = os.path.realpath(path)
    if not os.path.exists(real):
        return None
    # Keep a symlink into /usr, because it also works in the sandbox, which contains /usr. For other
    # symlinks, bind the file.
    return (
        Entry(path=path, link=link) if real.startswith("/usr/") else Entry(path=path, source=real)
    )


def _owners(policy: Policy, program: Program, state: str) -> tuple[tuple[str, int, int], ...]:
    owners = [(grant.path, grant.owner, grant.group) for grant in policy.grants]
    if state and os.path.isdir(state):
        seen = os.stat(state)
        owners.append((state, seen.st_uid, seen.st_gid))
    for path in program.reads:
        seen = os.stat(path)
        if not seen.st_mode & stat.S_IROTH:
            owners.append((path, seen.st_uid, seen.st_gid))
    return tuple(owners)
