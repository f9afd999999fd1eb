"""Wrap Linux system calls in short functions with the names from the manual. On failure they raise
OSError.

The C library is bound when it is first called, so this module can be imported on every system.
Calls keep the GIL (they use PyDLL): most callers have only one thread, and the child of `clone` has
to hold the GIL. Callers with several threads use `waiting_syscall`, which releases it.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from corral.abi import few_ctypes as ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from ctypes import Array, _NamedFuncPointer

    Syscall = _NamedFuncPointer


O_CLOEXEC = 0o2000000
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000

MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

RENAME_NOREPLACE = 1
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
RESOLVE_NO_XDEV = 0x01
RESOLVE_BENEATH = 0x08
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_NO_MAGICLINKS = 0x02

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CLOSE_RANGE_CLOEXEC = 4
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 32
PIDFD_THREAD = 0o200
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_TRUNCATE_ABI = 3  # since Linux 6.2; Landlock in older kernels cannot deny truncation
LANDLOCK_RULE_PATH_BENEATH = 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522

IN_ATTRIB = 0x4
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_DONT_FOLLOW = 0x02000000
IN_MASK_ADD = 0x20000000
IN_NONBLOCK = 0o4000

SIG_BLOCK = 0
SIG_SETMASK = 2
SFD_CLOEXEC = 0o2000000
SFD_NONBLOCK = 0o4000

STATX_BYTES = 256
STATX_ATTR_ENCRYPTED = 0x800
FS_IOC_GET_ENCRYPTION_POLICY_EX = 0xC0096616
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
CGROUP2_SUPER_MAGIC = 0x63677270
AF_INET = 2
SOCK_DGRAM = 2
SOCK_CLOEXEC = 0o2000000

_bound: list[tuple[Syscall, dict[str, int]]] = []
_waiting: list[tuple[Syscall, dict[str, int]]] = []


def _bind(library: type[ctypes.CDLL]) -> tuple[Syscall, dict[str, int]]:
    from corral.abi.linux_syscalls import TABLES

    if sys.platform == "win32":
        raise OSError("Windows has no Linux system calls")
    function = library(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    # The arguments of system calls differ in type. c_void_p accepts all of them: integers of any
    # sign, bytes, buffers and None.
    function.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6
    return function, TABLES[os.uname().machine]


def syscall(name: str, *args: object) -> int:
    if not _bound:
        _bound.append(_bind(ctypes.PyDLL))
    return _call(_bound[0], name, *args)


def waiting_syscall(name: str, *args: object) -> int:
    """Make a system call that may take a long time, and let other threads run meanwhile."""
    if not _waiting:
        _waiting.append(_bind(ctypes.CDLL))
    return _call(_waiting[0], name, *args)


def _call(bound: tuple[Syscall, dict[str, int]], name: str, *args: object) -> int:
    function, numbers = bound
    result = function(numbers[name], *args, *(0,) * (6 - len(args)))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return int(result)


def read_file(path: str) -> bytes:
    """Return the content of a file. This takes a quarter of the time that a file object needs."""
    fd = os.open(path, os.O_RDONLY)
    try:
        found = b""
        while chunk := os.read(fd, 65536):
            found += chunk
        return found
    finally:
        os.close(fd)


def write_file(path: str, text: str) -> None:
    """Write `text` to an existing file with a single call, because some files in /proc, such as
    uid_map, accept only one.
    """
    fd = os.open(path, os.O_WRONLY | O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def is_encrypted(fd: int) -> bool:
    """Return whether fscrypt encrypts the directory `fd`. While the key is missing, the kernel
    lists the files in such a directory under different names than with the key.
    """
    found = ctypes.create_string_buffer(STATX_BYTES)
    syscall("statx", fd, b"", AT_EMPTY_PATH, 0, found)
    return bool(int.from_bytes(found.raw[8:16], sys.byteorder) & STATX_ATTR_ENCRYPTED)


def supports_encryption(path: str) -> bool:
    """Return whether fscrypt can encrypt directories at `path`, or True if this is unknown."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return True
    try:
        syscall("ioctl", fd, FS_IOC_GET_ENCRYPTION_POLICY_EX, struct.pack("=Q24x", 24))
    except OSError as error:
        return error.errno not in {errno.ENOTTY, errno.EOPNOTSUPP}
    finally:
        os.close(fd)
    return True


def clone(flags: int) -> tuple[int, int]:
    """Fork into new namespaces. Return (0, -1) in the child, and (pid, pidfd) in the parent."""
    pidfd = ctypes.c_int(-1)
    sigchld = 17
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = -1
    try:
        pid = syscall("clone", flags | CLONE_PIDFD | sigchld, 0, ctypes.byref(pidfd))
    finally:
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
    return (pid, -1 if pid == 0 else pidfd.value)


def setns(fd: int, kind: int) -> None:
    syscall("setns", fd, kind)


def unshare(flags: int) -> None:
    syscall("unshare", flags)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    syscall("mount", _text(source), _text(target), _text(kind), flags, _text(data))


def umount2(target: str, flags: int) -> None:
    syscall("umount2", os.fsencode(target), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    syscall("pivot_root", os.fsencode(new_root), os.fsencode(put_old))


def renameat2(olddirfd: int, oldpath: str, newdirfd: int, newpath: str, flags: int) -> None:
    syscall("renameat2", olddirfd, os.fsencode(oldpath), newdirfd, os.fsencode(newpath), flags)


def open_tree(dirfd: int, path: str, flags: int) -> int:
    return syscall("open_tree", dirfd, os.fsencode(path), flags | OPEN_TREE_CLOEXEC)


def move_mount(from_fd: int, to_fd: int, to_path: str) -> None:
    """Attach the detached mount `from_fd` at `to_path` below `to_fd`, or at `to_fd` itself if
    `to_path` is empty.
    """
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if to_path else MOVE_MOUNT_T_EMPTY_PATH)
    syscall("move_mount", from_fd, b"", to_fd, os.fsencode(to_path), flags)


def mount_setattr(fd: int, path: str, flags: int, *, attr_set: int, userns_fd: int = 0) -> None:
    attr = struct.pack("=QQQQ", attr_set, 0, 0, userns_fd)
    syscall("mount_setattr", fd, os.fsencode(path), flags, attr, len(attr))


def fsmount(kind: str, options: dict[str, str], *, attributes: int = 0) -> int:
    """Return the descriptor of a new, detached mount of a file system of type `kind`."""
    context = syscall("fsopen", kind.encode(), FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            syscall("fsconfig", context, FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        syscall("fsconfig", context, FSCONFIG_CMD_CREATE, None, None, 0)
        return syscall("fsmount", context, FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def openat2(dirfd: int, path: str, flags: int, *, resolve: int) -> int:
    how = struct.pack("=QQQ", flags | O_CLOEXEC, 0, resolve)
    return syscall("openat2", dirfd, os.fsencode(path), how, len(how))


def prctl(option: int, argument: int = 0, third: int = 0) -> int:
    return syscall("prctl", option, argument, third, 0, 0)


def capset_empty() -> None:
    """Give up every capability: effective, permitted and inheritable."""
    header = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    syscall("capset", header, bytes(24))


def capget() -> tuple[int, int, int]:
    """Return the (effective, permitted, inheritable) capabilities of this process."""
    header = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    syscall("capget", header, data)
    low_e, low_p, low_i, high_e, high_p, high_i = struct.unpack("=IIIIII", data.raw)
    return low_e | high_e << 32, low_p | high_p << 32, low_i | high_i << 32


def close_range(first: int, last: int, flags: int) -> None:
    syscall("close_range", first, last, flags)


def pidfd_send_signal(pidfd: int, signal: int) -> None:
    syscall("pidfd_send_signal", pidfd, signal, None, 0)


def pidfd_open(pid: int, flags: int = 0) -> int:
    return syscall("pidfd_open", pid, flags)


def pidfd_getfd(pidfd: int, fd: int) -> int:
    return syscall("pidfd_getfd", pidfd, fd, 0)


def setresuid(real: int, effective: int, saved: int) -> None:
    """Set the user ids of this thread only. `os.setresuid` would set them in all threads of the
    process.
    """
    syscall("setresuid", real, effective, saved)


def setresgid(real: int, effective: int, saved: int) -> None:
    syscall("setresgid", real, effective, saved)


def seccomp_set_filter(program: bytes, flags: int = 0) -> int:
    """Load a seccomp filter. With NEW_LISTENER in `flags`, return the listener's descriptor."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    return syscall("seccomp", SECCOMP_SET_MODE_FILTER, flags, fprog)


def landlock_abi() -> int:
    return syscall("landlock_create_ruleset", None, 0, LANDLOCK_CREATE_RULESET_VERSION)


def landlock_create_ruleset(attributes: bytes) -> int:
    return syscall("landlock_create_ruleset", attributes, len(attributes), 0)


def landlock_add_path(ruleset: int, access: int, parent_fd: int) -> None:
    rule = struct.pack("=Qi", access, parent_fd)
    syscall("landlock_add_rule", ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_restrict_self(ruleset: int) -> None:
    syscall("landlock_restrict_self", ruleset, 0)


def sigprocmask(how: int, signals: Sequence[int]) -> None:
    syscall("rt_sigprocmask", how, _sigset(signals), None, 8)


def signalfd(signals: Sequence[int]) -> int:
    return syscall("signalfd4", -1, _sigset(signals), 8, SFD_CLOEXEC | SFD_NONBLOCK)


def inotify_init1() -> int:
    return syscall("inotify_init1", IN_NONBLOCK | O_CLOEXEC)


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    return syscall("inotify_add_watch", fd, os.fsencode(path), mask)


def reset_signals() -> None:
    """Reset every signal to its default action. Otherwise an executed program would ignore SIGPIPE,
    as Python does.
    """
    # struct kernel_sigaction contains handler, flags, restorer and mask. The handler 0 is SIG_DFL.
    default = bytes(32)
    for signal in range(1, 65):
        if signal not in {9, 19}:
            syscall("rt_sigaction", signal, default, None, 8)


def fstatfs_type(fd: int) -> int:
    """Return the magic number of the file system that `fd` is on."""
    buffer = ctypes.create_string_buffer(120)
    syscall("fstatfs", fd, buffer)
    return int(struct.unpack_from("=q", buffer)[0])


def sethostname(name: str) -> None:
    raw = os.fsencode(name)
    syscall("sethostname", raw, len(raw))


def execve(
    path: str, argv: Sequence[str], environment: Sequence[str], cookie: Sequence[int]
) -> None:
    """Execute a program, and pass the secret `cookie` in argument registers that the kernel
    ignores. If the target may not start processes, its filter allows execve only with this cookie.
    """
    syscall("execve", os.fsencode(path), _strings(argv), _strings(environment), *cookie)


def _strings(items: Sequence[str]) -> Array[ctypes.c_char_p]:
    encoded = [os.fsencode(item) for item in items]
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def _sigset(signals: Sequence[int]) -> bytes:
    return sum(1 << (signal - 1) for signal in signals).to_bytes(8, "little")


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)
