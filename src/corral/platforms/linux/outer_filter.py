"""Find out how an outer seccomp filter answers the calls that a sandbox needs.

An outer filter is one that applied before corral started, such as a container engine's. The kernel
reports that there is a filter, but not what it does. So make each call with invalid arguments. If
the filter allows the call, the kernel refuses the arguments, and nothing happens. If the filter
denies the call, the error is different. To find out whether the outer filter allows a listener,
load another filter that has one.

A filter may also kill the caller, so a child makes the calls. For calls by an ordinary user, the
kernel sometimes checks the rights before the arguments. So the child first enters namespaces of its
own if it can, because it has more rights there.
"""

from __future__ import annotations

import struct
import sys
from functools import partial

from corral.abi import linux as abi
from corral.platforms.posix import disposable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Callable

    Call = tuple[str, tuple[int, ...]]
    Attempt = Callable[[], object]

BAD = -1
"""An invalid descriptor. As a pointer it is an address that no process can read."""
CLONE_FS = 0x200
CLONE_THREAD = 0x10000
"""A flag that makes every clone fail: the kernel refuses it without CLONE_SIGHAND, and also
together with most of the namespace flags.
"""
CALLS: tuple[Call, ...] = (
    ("unshare", (1,)),
    ("unshare", (abi.CLONE_NEWUSER | 1,)),
    ("clone", (abi.CLONE_NEWUSER | CLONE_FS, 0, 0, 0, 0)),
    ("clone", (abi.CLONE_NEWNS | CLONE_FS, 0, 0, 0, 0)),
    ("clone", (abi.CLONE_NEWPID | CLONE_THREAD, 0, 0, 0, 0)),
    ("clone", (abi.CLONE_NEWNET | CLONE_THREAD, 0, 0, 0, 0)),
    ("clone", (abi.CLONE_NEWIPC | CLONE_THREAD, 0, 0, 0, 0)),
    ("clone3", (0, 0)),
    ("setns", (BAD, 0)),
    ("mount", (0, BAD, 0, 0, 0)),
    ("umount2", (BAD, 0)),
    ("pivot_root", (BAD, BAD)),
    ("open_tree", (BAD, BAD, 0)),
    ("move_mount", (BAD, BAD, BAD, BAD, 0)),
    ("fsopen", (BAD, 0)),
    ("mount_setattr", (BAD, BAD, 0, BAD, 0)),
    ("sethostname", (BAD, BAD)),
    ("landlock_create_ruleset", (BAD, 0, 0)),
    ("landlock_restrict_self", (BAD, 0)),
    ("seccomp", (BAD, 0, 0)),
    ("prctl", (abi.PR_SET_NO_NEW_PRIVS, 2, 0, 0, 0)),
    ("prctl", (abi.PR_CAPBSET_DROP, BAD, 0, 0, 0)),
    ("pidfd_open", (BAD, 0)),
    ("pidfd_getfd", (BAD, BAD, 0)),
    ("close_range", (1, 0, 0)),
    ("keyctl", (BAD, 0, 0, 0, 0)),
)
ENTER: Call = ("unshare", (abi.CLONE_NEWUSER | abi.CLONE_NEWNS | abi.CLONE_NEWUTS,))
ALLOW_EVERYTHING = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
"""A filter with one instruction: BPF_RET with SECCOMP_RET_ALLOW."""


def answers() -> str:
    """Return a word for each call: its error number, 0 if it succeeded, or "killed".

    One child makes all the calls. If a filter kills this child, make each call in its own child.
    """
    attempts: list[Attempt] = [
        partial(abi.syscall, name, *arguments) for name, arguments in (ENTER, *CALLS)
    ]
    attempts.append(_load_listener)
    survived, text = disposable.observe(lambda: " ".join(map(_answer, attempts)))
    return text if survived else " ".join(map(_answer_or_death, attempts))


def _load_listener() -> None:
    """Load a filter that allows everything and has a listener.

    The kernel refuses this if the outer filter has a listener already.
    """
    abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
    abi.seccomp_set_filter(ALLOW_EVERYTHING, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER)


def _answer_or_death(attempt: Attempt) -> str:
    survived, text = disposable.observe(lambda: _answer(attempt))
    return text if survived else "killed"


def _answer(attempt: Attempt) -> str:
    try:
        attempt()
    except OSError as error:
        return str(error.errno)
    return "0"
