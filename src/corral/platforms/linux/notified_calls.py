"""List the calls that the kernel passes to the supervisor, with their deciders and answers.

If the supervisor answers "continue", the kernel executes the call, and reads again what the
arguments point to, such as a path. Another thread of the target may have changed this memory since
the supervisor read it. So the answer "continue" is not permitted if allowing the call depends on
such memory, or if the policy always denies the call.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    Decider = Literal[
        "change_watch",
        "denied_sockets",
        "denied_starts",
        "file_changes",
        "netlink_binds",
        "path_watch",
        "socket_broker",
        "socket_watch",
        "task_count",
    ]
    Verdict = Literal["deny", "continue", "answer", "answer_later"]

EPERM = 1
UNKNOWN = "an unknown address"
"""The destination in the report of a denied connection if corral did not see the address."""


@record
class NotifiedCall:
    """The decider of a call. `may` lists the answers that this decider may give to the call."""

    decider: Decider
    may: tuple[Verdict, ...]


@record
class Given:
    """A descriptor that the supervisor gives to the caller.

    `fd` is the supervisor's own descriptor, and is closed after the caller has got its copy. If
    `number` is -1, the copy gets a new number, which is the call's result. Otherwise the copy
    replaces the caller's descriptor `number`. `flags` is O_CLOEXEC or 0.
    """

    fd: int
    flags: int
    number: int = -1


@record
class Decision:
    """The answer to a call.

    - If `verdict` is "answer", the supervisor has made the call itself, and the caller gets `value`
      as the result.
    - If `verdict` is "answer_later", the decider sends the answer itself.
    - A call that is denied, or that the supervisor could not make, fails with `error`.

    `then` is called after the caller has the answer.
    """

    verdict: Verdict
    error: int = EPERM
    then: Callable[[], None] | None = None
    given: Given | None = None
    value: int = 0


DENIED = Decision(verdict="deny")
START = NotifiedCall(decider="denied_starts", may=("deny",))
PATH = NotifiedCall(decider="path_watch", may=("continue",))
# Without namespaces only the supervisor changes modes and times. With namespaces the kernel may
# execute these calls, because they cannot reach files outside the private root. In this case
# `change_watch` only records them for `corral learn`.
CHANGE = NotifiedCall(decider="file_changes", may=("answer_later",))
CHANGE_WATCH = NotifiedCall(decider="change_watch", may=("continue",))
SOCKET = NotifiedCall(decider="socket_broker", may=("answer",))
# The calls in SOCKET_NAMES neither connect nor send, so the kernel may execute them. This is needed
# for sockets that the broker does not know.
SOCKET_NAME = NotifiedCall(decider="socket_broker", may=("answer", "continue"))
# In `corral learn` the target gets Unix sockets, but cannot connect them. They only let the target
# call connect and bind, so that corral can record the paths in these calls.
SOCKET_WATCH = NotifiedCall(decider="socket_watch", may=("answer",))
CONNECT_WATCH = NotifiedCall(decider="socket_watch", may=("continue",))
# Without namespaces and without the broker, the supervisor binds netlink sockets, even in
# `corral learn`.
NETLINK_BIND = NotifiedCall(decider="netlink_binds", may=("answer",))
SOCKET_DENIED = NotifiedCall(decider="denied_sockets", may=("deny",))
TASK = NotifiedCall(decider="task_count", may=("deny", "continue"))
CLONE_THREAD = 0x10000
THREAD = "clone of a thread"
TASKS = ("fork", "vfork", "clone")
STARTS = ("fork", "vfork", "clone", "execve", "execveat")
SOCKETS = ("socket", "connect", "bind", "listen")
SOCKET_NAMES = ("getsockname", "getpeername", "recvfrom", "recvmsg")
_HERE, _AT = ((0, -1),), ((1, 0),)
PATHS: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(
        (
            "open", "stat", "lstat", "access", "readlink", "chdir", "mkdir", "rmdir", "unlink",
            "creat", "truncate", "chmod", "statfs", "mknod", "chown", "lchown", "utime", "utimes",
            "getxattr", "lgetxattr", "listxattr", "llistxattr", "setxattr", "lsetxattr",
            "removexattr", "lremovexattr",
        ),
        _HERE,
    ),
    **dict.fromkeys(
        (
            "openat", "newfstatat", "statx", "faccessat", "faccessat2", "readlinkat", "mkdirat",
            "unlinkat", "mknodat", "fchmodat", "fchmodat2", "fchownat", "utimensat", "futimesat",
            "getxattrat", "listxattrat", "setxattrat", "removexattrat", "file_getattr",
        ),
        _AT,
    ),
    **dict.fromkeys(("rename", "link"), ((0, -1), (1, -1))),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((1, 0), (3, 2))),
    "symlink": ((1, -1),),
    "symlinkat": ((2, 1),),
    "inotify_add_watch": ((1, -1),),
}  # fmt: skip
"""Maps each call to the positions of its paths among its arguments.

Each pair contains the position of a path, and the position of the path's base directory. There -1
means the working directory. The text of a symbolic link does not count as a path.
"""
MEMORY = "mmap"
"""`corral learn` watches writable mappings of at least MIN_MAPPED bytes."""
MIN_MAPPED = 1 << 20
LINKS = frozenset(("link", "linkat"))
"""Calls that read their first path, the source, and write only their second path."""
WRITES = frozenset(
    (
        "mkdir", "rmdir", "unlink", "creat", "truncate", "chmod", "rename", "mkdirat", "unlinkat",
        "mknod", "mknodat", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat",
        "renameat", "renameat2", "symlink", "symlinkat", "chown", "lchown", "fchownat", "setxattr",
        "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat", *LINKS,
    )
)  # fmt: skip
CHANGES = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat",
)  # fmt: skip
"""Calls that change the mode or times of a file."""
CREATES = ("open", "openat", "creat", "mkdir", "mkdirat")
"""Calls that create files and directories, which are watched in runs that report denied process
starts.
"""
CALLS: dict[str, tuple[NotifiedCall, ...]] = {
    **dict.fromkeys((*PATHS, MEMORY), (PATH,)),
    **dict.fromkeys(CHANGES, (CHANGE, CHANGE_WATCH)),
    **dict.fromkeys(STARTS, (START,)),
    **dict.fromkeys(TASKS, (START, TASK)),
    THREAD: (TASK,),
    **dict.fromkeys(SOCKETS, (SOCKET,)),
    "socket": (SOCKET, SOCKET_WATCH, SOCKET_DENIED),
    "connect": (SOCKET, CONNECT_WATCH),
    "bind": (SOCKET, NETLINK_BIND, CONNECT_WATCH),
    **dict.fromkeys(SOCKET_NAMES, (SOCKET_NAME,)),
}
"""Maps each call to its possible deciders. If a run has several of them, the first one decides."""


def name_call(name: str, arguments: tuple[int, ...]) -> str:
    """Return the call's name in CALLS. A clone that makes a thread has the name THREAD."""
    return THREAD if name == "clone" and arguments[0] & CLONE_THREAD else name
