"""What a target may do -> the text of a Seatbelt profile and its parameters. Pure.

Everything is denied that no rule below allows, and the last rule that matches decides. Paths of the
policy and of the program never stand in the text: they are parameters (`(param "READ_0")`), which
the library hands to the rule as a value. They have to be real paths, since Seatbelt compares what a
file is really called: a rule for /tmp is silently dead.

Some operations are allowed under `deny default` unless they are denied by name (process-info,
mapping as a program, nvram, IOKit's properties, and KERN_PROCARGS2 among the sysctls, which shows
other processes' environment): they are, and so is what may be one of them.

It is said of Seatbelt that a rule for one operation (`file-write-data`) counts before every rule
for a class of them (`file-write*`), in whatever order they stand. The rules below are such that
both readings decide the same.
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
"""Read, mapped and, where processes are allowed, executed by everybody."""

FILES = (
    "/", "/private/etc/localtime", "/private/etc/passwd", "/private/etc/protocols",
    "/private/etc/services", "/private/var/select/sh",
)  # fmt: skip
"""`/` itself, where the loader begins; on a Mac no password is in passwd."""

LINKS = (
    "/etc", "/tmp", "/var", "/dev", "/private",  # noqa: S108 - the link, not what is in it
    "/System/Volumes/Data",
)  # fmt: skip
"""Passed on the way to files; the last is where the user's volume really is."""
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
"""Who a uid is. Never launchservicesd, lsd, Apple events or SecurityServer: they act for whoever
asks, outside of every sandbox.
"""

TASKS = ("mach-task-read", "mach-task-inspect")
"""Ports of other processes by which their memory can be read; not every macOS knows them."""

STAT = "file-read-metadata file-test-existence"
READ = "file-read* file-test-existence"
"""Whether a file is there (`access`) is asked by an operation that `file-read*` does not cover."""

LAST_PORT = 65535


@record
class View:
    """Real paths. `execute` are the only programs where processes are not allowed, `needed` what
    they read of their own, `read` and `write` what the policy grants.

    `hidden` lies inside what may be read and `held` inside what may be written; neither needs to
    exist, and a grant that lies deeper counts again. `anchors` are the directories above them that
    may not be renamed away. `links` are the names by which grants were written, where they go
    through links.
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
    """The text, and (name, path) for each parameter in it."""
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
        """`(form (param "KIND_0"))` and so on; the paths go beside."""
        found: list[str] = []
        for path in paths:
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"{path!r} is no absolute path")
            name = f"{kind}_{sum(known.startswith(kind) for known, _ in self.pairs)}"
            self.pairs.append((name, path))
            found.append(f'({form} (param "{name}"))')
        return found


def _rule(action: str, operations: str, filters: Sequence[str]) -> Iterator[str]:
    """Nothing for no filters: a rule without any would be about everything."""
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
    # After what is hidden: a grant inside of that has to be reached.
    above = named.filters("path-ancestors", "ABOVE", _paths(view))
    passed = above + named.filters("literal", "LINK", view.links)
    yield from _rule("allow", STAT, passed + _constants("path-ancestors", SYSTEM))
    yield from _denied(view, named)


def _layers(view: View, named: _Parameters) -> Iterator[str]:
    """What is granted, needed, hidden and held, from the outside inwards: what lies deeper decides.

    What outlives the run and can be written is neither executed nor mapped, and what is for reading
    is not written, however they lie in each other. Of the same path the later kind is the later
    rule: a grant counts more than what is hidden, and a program is executed that its own grant lets
    it change.
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
    """With executing, where that goes by what may be read and not by name."""
    return f"{operations} process-exec*" if view.subprocess else operations


def _paths(view: View) -> tuple[str, ...]:
    granted = (*view.read, *view.write, view.private, *view.sockets, *view.links)
    return (*view.execute, *view.needed, *granted)


def _denied(view: View, named: _Parameters) -> Iterator[str]:
    """Last, so that no grant brings it back.

    A second name by a hard link would be outside of a rule for the first. A set-id file would
    outlive the run. A flag such as uchg, or an access list that denies deleting, would keep files
    from being removed by whoever owns them, those of the private directory among them.
    """
    anchors = named.filters("literal", "ANCHOR", view.anchors)
    yield from _rule("deny", "file-write-unlink", anchors)
    yield "(deny file-link)"
    yield "(deny file-write-setugid)"
    yield "(deny file-write-flags)"
    yield "(deny file-write-acl)"


def _sockets(view: View, named: _Parameters) -> Iterator[str]:
    """Unix sockets go by their path: the private directory's, and those that the policy names."""
    own = named.filters("subpath", "OWN", (view.private,))
    theirs = named.filters("literal", "SOCKET", view.sockets)
    yield "(deny network*)"
    yield "(allow system-socket (socket-domain AF_UNIX))"
    yield from _rule("allow", "network-bind", [f"(local unix-socket {item})" for item in own])
    reached = [f"(remote unix-socket {item})" for item in (*own, *theirs)]
    yield from _rule("allow", "network-outbound", reached)


def door(port: int) -> str:
    """The rules to follow all others where one port of this Mac may be reached, by TCP alone.

    There is no host to name but `localhost`: that is every address that this Mac itself has.
    """
    if type(port) is not int or not 0 < port <= LAST_PORT:
        raise ValueError(f"{port!r} is no port")
    return (
        "(allow system-socket (socket-domain AF_INET))\n"
        f'(allow network-outbound\n  (remote tcp "localhost:{port:d}"))\n'
    )
