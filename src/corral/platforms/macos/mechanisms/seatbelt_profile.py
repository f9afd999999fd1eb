"""Write the Seatbelt profile of a target: its text and its parameters. Pure.

Everything is denied that no rule below allows, and the last rule that matches decides. Paths of the
policy and of the program are never part of the text: they are parameters (`(param "READ_0")`),
which the library passes to the rule as a value. They have to be real paths, because Seatbelt
compares real paths: a rule for /tmp silently matches nothing.

Some operations are allowed under `deny default` unless they are denied by name (process-info,
mapping as a program, nvram, IOKit's properties, and KERN_PROCARGS2 among the sysctls, which shows
other processes' environment). The profile denies them, and others that may be like them.

Some sources say that a rule for one operation (`file-write-data`) counts before every rule for a
class of operations (`file-write*`), whatever their order. Both readings decide the same for the
rules below.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Parameters = tuple[tuple[str, str], ...]

SYSTEM = (
    "/bin", "/sbin", "/usr", "/System/Library", "/System/Cryptexes", "/System/iOSSupport",
    "/System/Volumes/Preboot/Cryptexes", "/Library/Apple", "/private/var/db/dyld",
    "/private/var/db/timezone", "/private/etc/ssl",
)  # fmt: skip
"""Every target may read and map these and, where processes are allowed, execute them."""

FILES = (
    "/", "/private/etc/localtime", "/private/etc/passwd", "/private/etc/protocols",
    "/private/etc/services", "/private/var/select/sh",
)  # fmt: skip
"""The loader begins at `/` itself. On a Mac passwd contains no passwords."""

LINKS = (
    "/etc", "/tmp", "/var", "/dev", "/private",  # noqa: S108 - the link, not what is in it
    "/System/Volumes/Data",
)  # fmt: skip
"""Components of paths to files; the user's volume is really at the last one."""
DEVICES = ("/dev/random", "/dev/urandom")
WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
SYSCTLS = (
    "kern.argmax", "kern.boottime", "kern.hostname", "kern.maxfilesperproc", "kern.ngroups",
    "kern.osproductversion", "kern.osrelease", "kern.ostype", "kern.osvariant_status",
    "kern.osversion", "kern.secure_kernel", "kern.usrstack64", "kern.version",
    "machdep.cpu.brand_string", "sysctl.proc_cputype", "vm.loadavg",
)  # fmt: skip
SYSCTL_PREFIXES = ("hw.",)
MACH = ("com.apple.system.opendirectoryd.libinfo",)
"""The name of a uid. Never launchservicesd, lsd, Apple events or SecurityServer: they act for any
process that asks, outside of every sandbox.
"""

TASKS = ("mach-task-read", "mach-task-inspect")
"""Ports of other processes that give access to their memory; some macOS versions lack them."""

STAT = "file-read-metadata file-test-existence"
READ = "file-read* file-test-existence"
"""`file-read*` does not cover the operation that tests whether a file exists (`access`)."""

MAX_PORT = 65535


@record
class View:
    """Real paths. `execute` are the only programs where processes are not allowed, `needed` are the
    files they read of their own, `read` and `write` are the policy's grants.

    `hidden` paths are inside readable ones and `held` paths, which stay read-only, inside writable
    ones. Neither needs to exist, and a grant below them counts again. `anchors` are the directories
    above them, which may not be renamed. `links` are grants as the policy spells them, where that
    path goes through links.
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
    subprocess: bool = False


def profile(view: View) -> tuple[str, Parameters]:
    """Return the text, and (name, path) for each parameter in it."""
    named = _Parameters()
    rules = [
        "(version 1)",
        "(deny default)",
        *_processes(view, named),
        *_system(),
        *_files(view, named),
        *_sockets(view, named),
    ]
    return "\n".join((*rules, "")), tuple(named.pairs)


class _Parameters:
    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def filters(self, form: str, kind: str, paths: Iterable[str]) -> list[str]:
        """Return `(form (param "KIND_0"))` and so on, and remember the paths as parameters."""
        found: list[str] = []
        for path in paths:
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"{path!r} is no absolute path")
            name = f"{kind}_{sum(known.startswith(kind) for known, _ in self.pairs)}"
            self.pairs.append((name, path))
            found.append(f'({form} (param "{name}"))')
        return found


def _rule(action: str, operations: str, filters: Sequence[str]) -> Iterator[str]:
    """Yield nothing without filters, because a rule without any applies to everything."""
    if filters:
        yield f"({action} {operations}\n  " + "\n  ".join(filters) + ")"


def _constants(form: str, words: Iterable[str]) -> list[str]:
    return [f'({form} "{word}")' for word in words]


def _processes(view: View, named: _Parameters) -> Iterator[str]:
    yield "(deny process-info*)"
    yield "(allow process-info* (target self))"
    yield "(deny mach-task-name)"
    yield "(deny mach-priv*)"
    for name in TASKS:
        yield f"(if (defined? '{name}) (deny {name}))"
    yield "(deny job-creation)"
    yield "(deny lsopen)"
    yield "(deny appleevent-send)"
    yield "(allow dynamic-code-generation)"  # V8's, on Apple silicon
    if view.subprocess:
        yield "(allow process-fork)"
        yield "(allow signal (target same-sandbox))"
        yield "(allow ipc-posix-sem)"
        yield from _rule("allow", "process-exec*", _constants("subpath", SYSTEM))
    else:
        yield "(allow signal (target self))"
        yield from _rule("allow", "process-exec", named.filters("literal", "RUN", view.execute))


def _system() -> Iterator[str]:
    yield "(deny sysctl-read)"
    names = _constants("sysctl-name", SYSCTLS) + _constants("sysctl-name-prefix", SYSCTL_PREFIXES)
    yield from _rule("allow", "sysctl-read", names)
    yield "(deny nvram*)"
    yield "(deny iokit-get-properties)"
    yield from _rule("allow", "mach-lookup", _constants("global-name", MACH))


def _files(view: View, named: _Parameters) -> Iterator[str]:
    constant = _constants("subpath", SYSTEM)
    yield "(deny file-map-executable file-test-existence)"
    yield from _rule("allow", STAT, _constants("literal", LINKS))
    yield from _rule("allow", READ, _constants("literal", (*FILES, *DEVICES)) + constant)
    yield from _rule("allow", "file-map-executable", constant)
    devices = [*_constants("literal", WRITABLE_DEVICES), '(subpath "/dev/fd")']
    yield from _rule("allow", f"{READ} file-write-data", devices)
    yield from _layers(view, named)
    # After the hidden paths, because a grant inside one of them must be reachable.
    above = named.filters("path-ancestors", "ABOVE", _paths(view))
    passed = above + named.filters("literal", "LINK", view.links)
    yield from _rule("allow", STAT, passed + _constants("path-ancestors", SYSTEM))
    yield from _denied(view, named)


def _layers(view: View, named: _Parameters) -> Iterator[str]:
    """Yield the rules of all paths, from the outside inwards: the deepest path decides.

    A writable path that outlives the run is neither executed nor mapped, and a read grant is not
    written, whichever is inside the other. For one path the later kind is the later rule: a grant
    counts more than a hidden path, and a program can be executed even if its grant lets the target
    change it.
    """
    seen = _executed(view, f"{READ} file-map-executable")
    kinds = (
        ("HIDDEN", view.hidden, "", f"{seen} file-write*"),
        ("HELD", view.held, "", "file-write*"),
        ("READ", view.read, seen, "file-write*"),
        ("PRIVATE", (view.private,), f"{seen} file-write*", ""),
        ("WRITE", view.write, f"{READ} file-write*", _executed(view, "file-map-executable")),
        ("NEEDED", (*view.execute, *view.needed), seen, ""),
    )
    layers = [(path.count("/"), kind, path) for kind in kinds for path in kind[1]]
    for _, (name, _, allowed, denied), path in sorted(layers, key=lambda layer: layer[0]):
        filters = named.filters("subpath", name, (path,))
        yield from _rule("deny", denied, filters if denied else ())
        yield from _rule("allow", allowed, filters if allowed else ())


def _executed(view: View, operations: str) -> str:
    """Add executing, where a program may execute whatever it may read."""
    return f"{operations} process-exec*" if view.subprocess else operations


def _paths(view: View) -> tuple[str, ...]:
    granted = (*view.read, *view.write, view.private, *view.sockets, *view.links)
    return (*view.execute, *view.needed, *granted)


def _denied(view: View, named: _Parameters) -> Iterator[str]:
    """Yield the last rules, which no grant overrides.

    A hard link would be a second name, to which the rule for the first does not apply. A set-id
    file would outlive the run. With a flag such as uchg, or an access list that denies deleting,
    the owner could not remove files, those of the private directory among them.
    """
    anchors = named.filters("literal", "ANCHOR", view.anchors)
    yield from _rule("deny", "file-write-unlink", anchors)
    yield "(deny file-link)"
    yield "(deny file-write-setugid)"
    yield "(deny file-write-flags)"
    yield "(deny file-write-acl)"


def _sockets(view: View, named: _Parameters) -> Iterator[str]:
    """Allow unix sockets by path: the private directory's, and those that the policy names."""
    own = named.filters("subpath", "OWN", (view.private,))
    theirs = named.filters("literal", "SOCKET", view.sockets)
    yield "(deny network*)"
    yield "(allow system-socket (socket-domain AF_UNIX))"
    yield from _rule("allow", "network-bind", [f"(local unix-socket {item})" for item in own])
    reached = [f"(remote unix-socket {item})" for item in (*own, *theirs)]
    yield from _rule("allow", "network-outbound", reached)


def proxy_rules(port: int) -> str:
    """Return the rules that follow all others where one port of this Mac may be reached by TCP.

    The only host that a rule can name is `localhost`, which is every address of this Mac.
    """
    if type(port) is not int or not 0 < port <= MAX_PORT:
        raise ValueError(f"{port!r} is no port")
    return (
        "(allow system-socket (socket-domain AF_INET))\n"
        f'(allow network-outbound\n  (remote tcp "localhost:{port:d}"))\n'
    )
