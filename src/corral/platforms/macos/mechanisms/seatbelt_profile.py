"""Write a target's Seatbelt profile: its text and its parameters.

The profile denies everything that no rule allows, and the last matching rule decides. Paths from
the policy and the program are passed as parameters (`(param "READ_0")`), so that they cannot be
read as rules. They have to be real paths, because Seatbelt compares real paths: a rule for the
symlink /tmp silently matches nothing.

`(version 1)`, with which the profile begins, allows 28 operations even after `(deny default)`. The
profile denies each of them by name, unless a list in the tests gives a reason to allow it. macOS
refuses a profile with an unknown operation. If some versions of macOS do not know an operation, its
denial is therefore wrapped in `(if (defined? ...))`.

A rule for one operation (`file-write-data`) takes precedence over rules for a class of operations
(`file-write*`), whatever their order. The rules below do not depend on this.
"""

from __future__ import annotations

from corral.paths.posix import is_inside
from corral.policy import secret_files
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Parameters = tuple[tuple[str, str], ...]

SYSTEM = (
    "/bin", "/sbin", "/usr", "/System/Library", "/System/Cryptexes", "/System/iOSSupport",
    "/System/Volumes/Preboot/Cryptexes", "/Library/Apple", "/nix/store", "/private/var/db/dyld",
    "/private/var/db/timezone", "/private/etc/ssl",
)  # fmt: skip
"""Paths that every target may read and map as code. A target that may start processes may also
execute the programs in them.
"""

FILES = (
    "/", "/private/etc/localtime", "/private/etc/passwd", "/private/etc/protocols",
    "/private/etc/services", "/private/var/select/sh", "/private/var/select/developer_dir",
    "/private/var/db/xcode_select_link",
)  # fmt: skip
"""Single files that every target may read. The loader opens `/`. passwd is harmless, because on a
Mac it contains no passwords.
"""

LINKS = (
    "/etc", "/tmp", "/var", "/dev", "/private",  # noqa: S108 - only the links
    "/System/Volumes/Data",
)  # fmt: skip
"""Paths that every target may stat: symlinks such as /tmp, the directories /dev and /private, and
the mount point of the user's volume.
"""
DEVICES = ("/dev/random", "/dev/urandom")
WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
SYSCTLS = (
    "kern.argmax", "kern.boottime", "kern.hostname", "kern.maxfilesperproc", "kern.ngroups",
    "kern.osproductversion", "kern.osrelease", "kern.ostype", "kern.osvariant_status",
    "kern.osversion", "kern.secure_kernel", "kern.sysv.semmns", "kern.usrstack64",
    "kern.version", "machdep.cpu.brand_string", "sysctl.proc_cputype", "vm.loadavg",
)  # fmt: skip
SYSCTL_PREFIXES = ("hw.", "net.routetable.")
"""A target may read the sysctls in SYSCTLS and those with these prefixes. Two entries are less
obvious: `kern.sysv.semmns` is for Python's ProcessPoolExecutor, and `net.routetable.` is for node's
`os.networkInterfaces`.
"""
MACH = ("com.apple.system.opendirectoryd.libinfo",)
"""The mach service that returns the user name for a uid. Never add launchservicesd, lsd, Apple
events or SecurityServer, which act outside the sandbox on behalf of any process that asks.
"""

TRUSTD = ("com.apple.trustd", "com.apple.trustd.agent")
"""Services that check certificates, which Go programs need, for example. They are not allowed by
default, because they fetch URLs outside the sandbox.
"""

CLOSED = (
    "appleevent-send", "darwin-notification-post", "file-clone", "file-link", "file-write-acl",
    "file-write-setugid", "fs-quota*", "fs-snapshot-mount", "iokit-get-properties",
    "iokit-open-service", "job-creation", "lsopen", "mach-cross-domain-lookup", "mach-priv*",
    "mach-task-inspect", "mach-task-name", "mach-task-read", "nvram*",
    "system-memorystatus-control",
)  # fmt: skip
"""Operations that the last rules of the profile deny for all paths. Some macOS versions do not know
all of them.

A clone or a hard link would give a file a second name, to which the rule for the first name does
not apply, and a clone of a directory would even include its hidden files. A set-id file would keep
its privileges after the run. With an access list that denies deletion, the target could create a
file that the user cannot remove.
"""
FLOWS = ("necp-client-open", "system-necp-client-action")
"""Operations through which a program can learn about the Mac's network. They are allowed only if
the target may use the proxy.
"""


def _any_case(name: str) -> str:
    """Return a regular expression that matches a name in upper and lower case, because most volumes
    ignore case.
    """
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else f"\\{c}" for c in name)


VERSION_CONTROL = frozenset(secret_files.VERSION_CONTROL)
ENVIRONMENT = f'(regex #"/{_any_case(".env")}(\\.[^/]*)?$")'
PUBLISHED = f'(regex #"({"|".join(map(_any_case, secret_files.PUBLISHED))})$")'
REPOSITORY = f'(regex #"/({"|".join(map(_any_case, secret_files.VERSION_CONTROL))})(/.*)?$")'
"""Patterns for `.env` files, published examples of `.env` files, and repositories. A rule with such
a pattern applies at any depth in a grant.
"""

STAT = "file-read-metadata file-test-existence"
READ = f"file-read* {STAT}"
"""The operations that every read rule lists. STAT is listed separately for two reasons:
`file-read*` does not include the check whether a file exists (`access`), and a rule for STAT alone
overrides a rule for `file-read*` alone.
"""

MAX_PORT = 65535


@record
class View:
    """The paths and services that the profile allows or denies to the target.

    - `execute`: a target that may not start processes can execute only these programs.
    - `needed`: the program's own files.
    - `read`, `write`, `sockets`: the policy's grants.
    - `links`: the paths of grants that contain symlinks, as the policy spells them.
    - `listed`: the target can list the directories above these paths.
    - `hidden`: the target cannot read these paths, even inside readable paths.
    - `held`: the target cannot change these paths, even inside writable paths.
    - `anchors`: the directories above hidden and held paths. The target cannot rename them.
    - `services`: mach services that are allowed in addition to `MACH`.
    - `marker`: a name that no service has. `process_tree` uses it to recognize processes under this
      profile.

    Hidden and held paths need not exist. A grant of a path below a hidden or held path still
    applies.
    """

    execute: tuple[str, ...]
    needed: tuple[str, ...]
    private: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    marker: str = ""
    subprocess: bool = False


def profile(view: View) -> tuple[str, Parameters]:
    """Return the text of the profile, and (name, path) for each of its parameters."""
    named = _Parameters()
    rules = [
        "(version 1)",
        "(deny default)",
        *_processes(view, named),
        *_system(view),
        *_files(view, named),
        *_sockets(view, named),
        *(_guarded("deny", operation) for operation in CLOSED),
    ]
    return "\n".join((*rules, "")), tuple(named.pairs)


class _Parameters:
    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def add(self, kind: str, path: str) -> str:
        """Add a path as a parameter, and return the expression for it: `(param "KIND_0")`."""
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{path!r} is not an absolute path")
        name = f"{kind}_{sum(known.startswith(kind) for known, _ in self.pairs)}"
        self.pairs.append((name, path))
        return f'(param "{name}")'

    def filters(self, form: str, kind: str, paths: Iterable[str]) -> list[str]:
        return [f"({form} {self.add(kind, path)})" for path in paths]


def _rule(action: str, operations: str, filters: Sequence[str]) -> Iterator[str]:
    """Yield a rule with these filters, or nothing if there are none, because a rule without filters
    would apply to everything.
    """
    if filters:
        yield f"({action} {operations}\n  " + "\n  ".join(filters) + ")"


def _constants(form: str, words: Iterable[str]) -> list[str]:
    return [f'({form} "{word}")' for word in words]


def _guarded(action: str, operation: str) -> str:
    return f"(if (defined? '{operation}) ({action} {operation}))"


def _processes(view: View, named: _Parameters) -> Iterator[str]:
    # process-info* does not include process-info-codesignature here: `(version 1)` has its own rule
    # for that operation, which a rule for process-info* does not override.
    for operation in ("process-info*", "process-info-codesignature"):
        yield f"(deny {operation})"
        yield f"(allow {operation} (target self))"
    yield "(allow dynamic-code-generation)"  # V8 needs this on Apple silicon
    if view.subprocess:
        yield "(allow process-fork)"
        yield "(allow process-info* (target same-sandbox))"
        yield "(allow signal (target same-sandbox))"
        yield "(allow ipc-posix-sem)"
        yield from _rule("allow", "process-exec*", _constants("subpath", SYSTEM))
    else:
        yield "(allow signal (target self))"
        yield from _rule("allow", "process-exec", named.filters("literal", "RUN", view.execute))


def _system(view: View) -> Iterator[str]:
    yield "(deny sysctl-read)"
    names = _constants("sysctl-name", SYSCTLS) + _constants("sysctl-name-prefix", SYSCTL_PREFIXES)
    yield from _rule("allow", "sysctl-read", names)
    services = (*MACH, *view.services, *([view.marker] if view.marker else []))
    yield from _rule("allow", "mach-lookup", _constants("global-name", services))


def _files(view: View, named: _Parameters) -> Iterator[str]:
    constant = _constants("subpath", SYSTEM)
    yield "(deny file-map-executable file-test-existence)"
    yield from _rule("allow", STAT, _constants("literal", LINKS))
    yield from _rule("allow", READ, _constants("literal", (*FILES, *DEVICES)) + constant)
    yield from _rule("allow", "file-map-executable", constant)
    devices = [*_constants("literal", WRITABLE_DEVICES), '(subpath "/dev/fd")']
    yield from _rule("allow", f"{READ} file-write-data", devices)
    yield from _layers(view, named)
    # The next rules come after those for hidden paths, so that they decide. The target must be able
    # to reach the directories above a grant, even if these are hidden.
    above = named.filters("path-ancestors", "ABOVE", _paths(view))
    passed = above + named.filters("literal", "LINK", view.links)
    yield from _rule("allow", STAT, passed + _constants("path-ancestors", SYSTEM))
    listed = named.filters("path-ancestors", "LISTED", view.listed)
    directories = [f"(require-all {item} (vnode-type DIRECTORY))" for item in listed]
    yield from _rule("allow", "file-read-data", directories)
    anchors = named.filters("literal", "ANCHOR", view.anchors)
    yield from _rule("deny", "file-write-unlink", anchors)


def _layers(view: View, named: _Parameters) -> Iterator[str]:
    """Yield the rules for all paths. In a profile the last matching rule decides. The rules for
    outer paths come first, so that the rule for the deepest path decides. If a path has rules of
    several kinds, the last kind in `kinds` decides: for example, a grant of a hidden path makes it
    visible.

    In a read grant, the target cannot write files. In a write grant, it cannot execute files or map
    them as code. Otherwise code that one run writes there could be executed in a later run. Both
    rules also apply if one grant is inside the other. The target can always execute the program's
    own files (NEEDED), even files that it can change.

    At any depth in a grant, the rule ENVIRONMENT hides `.env` files, and the rule REPOSITORY
    protects repositories from changes. If a grant names a `.env` file or a repository itself, the
    grant decides, because its rules come after those for the directories around it. The program's
    own files are treated in the same way.
    """
    seen = _executed(view, f"{READ} file-map-executable")
    around = [path for path in (*view.read, *view.write) if not _is_environment_file(path)]
    kinds = (
        ("ENVIRONMENT", 1, around, "", ""),
        ("REPOSITORY", 1, filter(_is_outside_repositories, view.write), "", "file-write*"),
        ("HIDDEN", 0, view.hidden, "", f"{seen} file-write*"),
        ("HELD", 0, view.held, "", "file-write*"),
        ("READ", 0, view.read, seen, "file-write*"),
        ("PRIVATE", 0, (view.private,), f"{seen} file-write*", ""),
        ("WRITE", 0, view.write, f"{READ} file-write*", _executed(view, "file-map-executable")),
        ("NEEDED", 0, (*view.execute, *view.needed), seen, ""),
    )
    layers = [(path.count("/") + kind[1], kind, path) for kind in kinds for path in kind[2]]
    for _, (name, _, _, allowed, denied), path in sorted(layers, key=lambda layer: layer[0]):
        value = named.add(name, path)
        if name == "ENVIRONMENT":
            yield from _environment_files(value, f"{seen} file-write*")
            continue
        # `literal` is added because `subpath` alone reportedly does not match a name that does not
        # exist yet.
        filters = [f"(literal {value})", f"(subpath {value})"]
        if name == "REPOSITORY":
            filters = [f"(require-all (subpath {value}) {REPOSITORY})"]
        yield from _rule("deny", denied, filters if denied else ())
        yield from _rule("allow", allowed, filters if allowed else ())


def _environment_files(top: str, operations: str) -> Iterator[str]:
    """Yield rules that hide the content of `.env` files, but not their existence.

    Many servers check whether the file exists when they start, and exit if this check is denied.
    """
    files = [f"(require-all (subpath {top}) {ENVIRONMENT} (require-not {PUBLISHED}))"]
    yield from _rule("deny", operations, files)
    yield from _rule("allow", STAT, files)


def hides_environment_file(view: View, path: str) -> bool:
    """Return whether the rules hide this `.env` file. The rule for the deepest path decides."""
    around = [one for one in (*view.read, *view.write) if not _is_environment_file(one)]
    hiding = [one.count("/") + 1 for one in around if is_inside(path, one)]
    named = (one for one in (*view.read, *view.write) if _is_environment_file(one))
    showing = (*view.execute, *view.needed, *named)
    shown = [one.count("/") for one in showing if is_inside(path, one)]
    return max(hiding, default=-1) > max(shown, default=-1)


def _is_environment_file(path: str) -> bool:
    return secret_files.is_environment_file(path.rpartition("/")[2].lower())


def _is_outside_repositories(path: str) -> bool:
    return not VERSION_CONTROL.intersection(path.split("/"))


def _executed(view: View, operations: str) -> str:
    return f"{operations} process-exec*" if view.subprocess else operations


def _paths(view: View) -> tuple[str, ...]:
    granted = (*view.read, *view.write, view.private, *view.sockets, *view.links)
    return (*view.execute, *view.needed, *granted)


def _sockets(view: View, named: _Parameters) -> Iterator[str]:
    """Yield rules that deny the network, except for two kinds of unix sockets.

    These are the granted sockets and the sockets in the private directory.
    """
    own = named.filters("subpath", "OWN", (view.private,))
    theirs = named.filters("literal", "SOCKET", view.sockets)
    yield "(deny network*)"
    yield from (_guarded("deny", operation) for operation in FLOWS)
    yield "(allow system-socket (socket-domain AF_UNIX))"
    yield from _rule("allow", "network-bind", [f"(local unix-socket {item})" for item in own])
    reached = [f"(remote unix-socket {item})" for item in (*own, *theirs)]
    yield from _rule("allow", "network-outbound", reached)


def proxy_rules(port: int) -> str:
    """Return the rules that allow connections to one TCP port of this Mac, to be appended to the
    profile. The only host that a rule can name is `localhost`, which means every address of this
    Mac.
    """
    if type(port) is not int or not 0 < port <= MAX_PORT:
        raise ValueError(f"{port!r} is not a port")
    rules = (
        "(allow system-socket (socket-domain AF_INET))",
        f'(allow network-outbound\n  (remote tcp "localhost:{port:d}"))',
        *(_guarded("allow", operation) for operation in FLOWS),
    )
    return "\n".join((*rules, ""))
