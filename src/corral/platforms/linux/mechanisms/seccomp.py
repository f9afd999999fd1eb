"""Load the target's syscall filter, which also enforces subprocess = false.

The rules are data in `seccomp_rules`, and the compiled filters are cached on disk. If subprocess is
false, the filter allows exec only with a random cookie in the call's registers. Only the process
that becomes the target has the cookie in its memory. The first exec replaces this memory, so a
second exec is not possible.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys

from corral import __version__
from corral.abi import linux as abi
from corral.abi.linux_sockets import close_all, socketpair
from corral.abi.private_directory import checksum, read_checked_file, write_checked_file
from corral.directories import directories
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.record import astuple, record, replace

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.model import Results, Stage, Step

    Cookie = tuple[int, int, int]

EPERM, EBUSY = 1, 16
NO_LISTENER = frozenset((EPERM, EBUSY))
"""EBUSY means that an outer filter has a listener, and EPERM that an outer filter forbids
listeners.

corral's own filter forbids listeners too, so corral gets EPERM inside another corral's sandbox.
"""
TIOCSTI = 0x5412


@record
class ExecCookie:
    """The cookie that execve must have in its last three registers. The kernel ignores these
    registers.
    """

    words: Cookie


@record
class Seccomp:
    name = "seccomp"
    machine: str
    subprocess: bool
    unix_sockets: bool
    namespaces: bool = True
    scoped: bool = False
    duty_cycle: bool = False
    notices: bool = False
    watch_paths: bool = False
    broker: bool = False
    limit_tasks: bool = False
    file_changes: bool = False
    stage: Stage = "target"

    @property
    def is_killable(self) -> bool:
        """Return whether only fatal signals interrupt a call that the supervisor has received."""
        return self.broker or self.limit_tasks or self.file_changes

    def describe(self) -> str:
        processes = "processes allowed" if self.subprocess else "threads allowed, processes denied"
        sockets = "unix sockets allowed" if self.unix_sockets else "no unix sockets"
        return f"seccomp: {processes}, {sockets}, dangerous system calls denied"

    def apply(self, results: Results) -> None:
        cookie: Cookie = (0, 0, 0)
        if not self.subprocess:
            cookie = struct.unpack("<3Q", os.urandom(24))
            results.add(ExecCookie(words=cookie))
        listens = self.notices or self.watch_paths or self.is_killable
        if not listens or not self._load_with_listener(results, cookie):
            quiet = replace(self, notices=False, file_changes=False)
            abi.seccomp_set_filter(target_filter(quiet, cookie))

    def _load_with_listener(self, results: Results, cookie: Cookie) -> bool:
        """Load the filter with a listener, and return whether that worked.

        Another seccomp filter around corral can prevent a listener. If this run does not need one,
        return False, so that the caller loads a filter without a listener. If the run needs one, or
        if loading fails for another reason, raise OSError.

        The filter without a listener still denies process starts and, without namespaces, changes
        to modes and times. But corral does not see these denials.
        """
        channel = results.get(DescriptorChannel)
        if self.watch_paths:
            ends = socketpair()
            channel.send("unix_socket", ends[:1])
            close_all(ends)
        flags = abi.SECCOMP_FILTER_FLAG_NEW_LISTENER
        if self.is_killable:
            # Without this flag a signal would interrupt calls that wait for the supervisor. A fork
            # would then fail with EINTR. Other calls would be made again after the signal, so the
            # supervisor would do them twice.
            flags |= abi.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
        try:
            listener = abi.seccomp_set_filter(target_filter(self, cookie), flags)
        except OSError as error:
            required = self.watch_paths or self.broker or self.limit_tasks
            if required or error.errno not in NO_LISTENER:
                raise
            return False
        channel.send("listener", [listener])
        os.close(listener)
        return True

    def verify(self, _results: Results) -> None:
        """Try calls that the filter must deny or pass to the supervisor."""
        if not is_filtered():
            raise OSError(0, "the filter has no effect")
        if not self.subprocess:
            _check_no_child()
        if not self.namespaces:
            _check_no_internet()
        if self.broker:
            _check_no_connection()


# A cached filter contains these three numbers instead of the cookie, as six words of 32 bits. These
# words occur nowhere else in the filter, because no address, flag or jump looks like them.
PLACEHOLDER = (0xC0FFEE01_C0FFEE02, 0xC0FFEE03_C0FFEE04, 0xC0FFEE05_C0FFEE06)
SOURCES = (
    "seccomp.py",
    "seccomp_rules.py",
    "seccomp_init_rules.py",
    "seccomp_compiler.py",
    "../notified_calls.py",
    "../../../abi/linux_syscalls.py",
)
"""The files that define the filters. If one changes, the filters are compiled again."""
_init: dict[str, bytes] = {}
_templates: dict[Seccomp, bytes] = {}


def target_filter(step: Seccomp, cookie: Cookie) -> bytes:
    if not step.namespaces:
        return _compile(step, cookie, own_pid=os.getpid())
    program = _templates[step]
    if step.subprocess:
        return program
    for old, new in zip(_halves(PLACEHOLDER), _halves(cookie), strict=True):
        if program.count(old) != 1:
            raise OSError(0, "the cookie does not occur exactly once in the filter")
        program = program.replace(old, new)
    return program


def init_filter(machine: str) -> bytes:
    return _init[machine]


def load_filters(steps: Iterable[Step]) -> None:
    """Load the compiled filters of a run or, without namespaces, the module that compiles them
    later. Do this before the clone, because the sandbox cannot read corral's files.
    """
    for step in steps:
        if not isinstance(step, Seccomp) or step in _templates:
            continue
        if not step.namespaces:
            from corral.platforms.linux.mechanisms import seccomp_rules  # noqa: F401 - see above

            continue
        variants = [step, replace(step, notices=False)] if step.notices else [step]
        _init[step.machine], *programs = _read_filters(step, len(variants)) or _keep(step, variants)
        _templates.update(zip(variants, programs, strict=True))


def warm_up(machine: str) -> None:
    """Load the filters that most runs need. The processes that are forked for the runs inherit the
    filters.
    """
    default = Seccomp(machine=machine, subprocess=False, unix_sockets=False, notices=True)
    load_filters((default, replace(default, subprocess=True, notices=False)))


def _read_filters(step: Seccomp, targets: int) -> list[bytes] | None:
    """Return the cached filters for init and the target, or None if they have to be compiled."""
    try:
        wanted = _key(step)
        key, *programs = marshal.loads(read_checked_file(_path(wanted)))  # noqa: S302 - our own
        return programs if key == wanted and len(programs) == 1 + targets else None
    except (OSError, ValueError, EOFError, TypeError):
        return None


def _keep(step: Seccomp, variants: list[Seccomp]) -> list[bytes]:
    """Compile the filters, and write them to the cache. If the write fails, the next run compiles
    them again.
    """
    from corral.platforms.linux.mechanisms import seccomp_init_rules

    init = _init.get(step.machine) or seccomp_init_rules.compile_filter(step.machine)
    programs = [init, *(_compile(one, PLACEHOLDER, own_pid=None) for one in variants)]
    try:
        key = _key(step)
        write_checked_file(_path(key), marshal.dumps((key, *programs)))
    except OSError:
        pass
    return programs


def _key(step: Seccomp) -> bytes:
    folder = os.path.dirname(__file__)
    seen = [os.stat(os.path.join(folder, name)) for name in SOURCES]
    identity = [f"{one.st_mtime_ns} {one.st_size}" for one in seen]
    return " ".join((__version__, *map(str, astuple(step)), *identity)).encode()


def _path(key: bytes) -> str:
    return os.path.join(directories().cache, "filters", f"{checksum(key):x}")


def _halves(cookie: Cookie) -> list[bytes]:
    words = struct.pack("<3Q", *cookie)
    return [words[at : at + 4] for at in range(0, len(words), 4)]


def _compile(step: Seccomp, cookie: Cookie, *, own_pid: int | None) -> bytes:
    from corral.platforms.linux.mechanisms import seccomp_rules

    rules = seccomp_rules.target_rules(
        subprocess=step.subprocess,
        unix_sockets=step.unix_sockets,
        namespaces=step.namespaces,
        cookie=None if step.subprocess else cookie,
        own_pid=own_pid,
        scoped=step.scoped,
        duty_cycle=step.duty_cycle,
        notices=step.notices,
        watch_paths=step.watch_paths,
        broker=step.broker,
        limit_tasks=step.limit_tasks,
        file_changes=step.file_changes,
    )
    return seccomp_rules.compile_filter(step.machine, rules)


def is_filtered() -> bool:
    """Return whether this process has a filter that denies TIOCSTI.

    The descriptor of the call is invalid, so without a filter the kernel answers EBADF.
    """
    try:
        abi.syscall("ioctl", -1, TIOCSTI, 0)
    except OSError as error:
        return error.errno == EPERM
    return False


def _check_no_internet() -> None:
    try:
        os.close(abi.syscall("socket", abi.AF_INET, abi.SOCK_DGRAM | abi.SOCK_CLOEXEC, 0))
    except OSError:
        return
    raise OSError(0, "the filter did not deny an internet socket")


def _check_no_connection() -> None:
    """Check that the filter passes socket calls to the supervisor.

    Until the target's exec the supervisor denies all of them, so each call here must fail with
    EPERM.
    """
    from corral.abi import linux_sockets as sockets

    made = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM)
    nobody = sockets.inet_address(bytes((127, 0, 0, 1)), 9)
    try:
        for call, *arguments in (("connect", nobody, 16), ("bind", nobody, 16), ("listen", 1)):
            _check_denied(call, made, *arguments)
    finally:
        os.close(made)


def _check_denied(call: str, *arguments: object) -> None:
    try:
        abi.syscall(call, *arguments)
    except OSError as error:
        if error.errno == EPERM:
            return
    raise OSError(0, f"{call} is not passed to the supervisor")


def _check_no_child() -> None:
    try:
        pid = os.fork()
    except OSError:
        return
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise OSError(0, "the filter did not deny a child process")
