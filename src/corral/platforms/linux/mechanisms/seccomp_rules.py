"""List the target's syscall rules as data, which `seccomp_compiler` turns into a filter.

The filter denies calls that reach out of the sandbox, and allows all others, because servers are
ordinary programs and need most calls. Calls that are newer than corral's table of syscall numbers
fail with ENOSYS, as on an older kernel.

A filter sees only registers, so it cannot check memory behind a pointer (clone3's flags, paths). If
the kernel truncates an argument to 32 bits, the rule compares only these bits. Otherwise a target
could evade the rule with junk in the high word.
"""

from __future__ import annotations

from corral.platforms.linux.mechanisms.seccomp_compiler import (
    ALLOW,
    LONG,
    NOTIFY,
    assemble_by_name,
    errno_action,
    low,
    whole,
)
from corral.platforms.linux.notified_calls import CHANGES, CREATES, MEMORY, MIN_MAPPED, PATHS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.platforms.linux.mechanisms.seccomp_compiler import Alternative, Condition, Rule

# These are Linux's error numbers. Do not use the module `errno`, because a plan may be made on
# another system, where the numbers differ.
DENY = errno_action(1)  # EPERM
ABSENT = errno_action(38)  # ENOSYS
NO_PROTOCOL = errno_action(93)  # EPROTONOSUPPORT
NO_FAMILY = errno_action(97)  # EAFNOSUPPORT
NO_OPTION = errno_action(92)  # ENOPROTOOPT
NOT_SUPPORTED = errno_action(95)  # EOPNOTSUPP
DONE = errno_action(0)

# Maps each reason for a denial to the names of the calls. mbind and set_mempolicy are not denied,
# because they affect only the caller. seccomp is not denied either, because programs should be able
# to sandbox themselves.
_DENIED = {
    "does file and socket work that no filter sees": """
        io_uring_setup io_uring_enter io_uring_register""",
    "reads, changes or compares other processes": """
        ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
        move_pages migrate_pages""",
    "loads code into the kernel or observes it": "bpf perf_event_open lookup_dcookie syslog",
    "reaches the keyrings of the user": "keyctl add_key request_key",
    "stops the kernel in the middle of its work": "userfaultfd",
    "changes or lists what is mounted": """
        mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount
        fspick mount_setattr statmount listmount""",
    "makes or enters namespaces, which give new privileges": "unshare setns",
    "changes the kernel itself": """
        init_module finit_module delete_module create_module get_kernel_syms query_module kexec_load
        kexec_file_load reboot""",
    "administers the machine": """
        swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime adjtimex clock_adjtime
        sethostname setdomainname vhangup nfsservctl sysfs ustat lsm_set_self_attr""",
    "opens files by number, without any path rule": "open_by_handle_at name_to_handle_at",
    "touches hardware or segments": "iopl ioperm modify_ldt",
    "loads a library in an old, unsafe way": "uselib",
    "watches whole filesystems": "fanotify_init fanotify_mark",
    "allocates memory that no limit counts": "memfd_secret",
    "takes requests from fs.aio-max-nr, which the whole machine shares": "io_setup",
    "changes the flags of files that are only open for reading": "file_setattr",
}

# More calls that are denied in runs without namespaces, because Landlock does not control them.
# Calls on descriptors are as dangerous as calls on paths: a descriptor opened for reading is enough
# to change a file's mode. With a listener, the supervisor changes modes and times on the target's
# behalf, but only of files that the target may write to.
_DENIED_WITHOUT_NAMESPACES = {
    "changes mode, owner, times or attributes of files without write access": """
        chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat
        futimesat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr
        removexattrat""",
    "reads extended attributes of any file by its path, whose values are data": """
        getxattr lgetxattr listxattr llistxattr getxattrat listxattrat""",
    "shows file names in directories that are not granted": "inotify_add_watch",
    "uses up the inotify instances of the host's user": "inotify_init inotify_init1",
    "reaches the host's System V and POSIX queues, semaphores and shared memory": """
        shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr""",
    "signals processes of the host": "pidfd_send_signal",
}

DENIED: dict[str, str] = {name: why for why, names in _DENIED.items() for name in names.split()}
DENIED_WITHOUT_NAMESPACES: dict[str, str] = {
    name: why for why, names in _DENIED_WITHOUT_NAMESPACES.items() for name in names.split()
}

# Calls on extended attributes fail as on a file system without attributes (EOPNOTSUPP). `ls -l`,
# `cp -p` and `install` make such calls, because access control lists are extended attributes. These
# programs continue after this error, but not after EPERM.
ATTRIBUTES = frozenset(name for name in DENIED_WITHOUT_NAMESPACES if "xattr" in name)

# These calls have a number, but today's kernels for x86_64 and aarch64 do not implement them.
_NEVER_IMPLEMENTED = (
    "_sysctl afs_syscall epoll_ctl_old epoll_wait_old get_thread_area getpmsg putpmsg security "
    "set_thread_area tuxcall vserver"
)

CLONE_THREAD = 0x10000
# The flags that make namespaces: NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET.
# NEWTIME is a bit of the byte that contains the exit signal, but no signal's number has this bit.
CLONE_NEW = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
CLONE_NEW_ANY = sum(CLONE_NEW)

# The arguments of personality(2) that are allowed, as in Docker: PER_LINUX and PER_LINUX32, each
# with and without UNAME26, and the query of the current personality. The flags that turn off
# address randomization or make readable pages executable are not allowed.
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

PR_SET_PDEATHSIG = 1
# If the supervisor counts the tasks (`limit_tasks`), no process of the target may become a
# subreaper. A subreaper becomes the parent of orphans among its descendants. So an orphan could
# change its parent twice while the supervisor counts the tree, and would be missed.
PR_SET_CHILD_SUBREAPER = 36
PR_SET_MM = 35  # changes which command line and executable /proc shows for the caller
PR_SCHED_CORE = 62  # changes which processes may run on the same processor core at the same time

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8

S_IFMT, S_IFIFO, S_IFREG = 0xF000, 0x1000, 0x8000

TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
# The target must not change the size of a terminal. The terminal would keep the new size after the
# run, and corral could not tell whether the user or the target had set it.
TIOCSWINSZ = 0x5414
IOC_TYPE = 0xFF00
# All ioctls of btrfs and bcachefs are denied. With a snapshot a target could put a whole subvolume,
# including ~/.ssh, under a granted path; in old versions of btrfs any descriptor in the subvolume
# is enough for that. Landlock does not control the creation and removal of subvolumes. FICLONE,
# FICLONERANGE and FIDEDUPERANGE, which cp uses to share blocks, are allowed, although they have the
# type of btrfs's ioctls.
BTRFS_IOCTL, BCACHEFS_IOCTL = 0x9400, 0xBC00
FICLONE, FICLONERANGE, FIDEDUPERANGE = 0x40049409, 0x4020940D, 0xC0189436
# ioctls that can change a file even through a descriptor that is open only for reading, such as a
# standard stream. FS_IOC_ENABLE_VERITY makes the file immutable forever.
FS_IOC_CHANGES = (
    0x40086602,  # FS_IOC_SETFLAGS
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x40806685,  # FS_IOC_ENABLE_VERITY
    0x800C6613,  # FS_IOC_SET_ENCRYPTION_POLICY
    0x40086604,  # EXT4_IOC_SETVERSION
    0x40087602,  # FS_IOC_SETVERSION
    0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
)
# ioctls that add a key for encrypted directories to a file system, or remove the user's key. They
# accept a descriptor of any file on the file system.
FS_IOC_KEYS = (
    0xC0506617,  # FS_IOC_ADD_ENCRYPTION_KEY
    0xC0406618,  # FS_IOC_REMOVE_ENCRYPTION_KEY
    0xC0406619,  # FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
)
# Commands of fcntl and ioctl that set a descriptor's owner. The kernel sends signals to the owner,
# and the caller can choose which signal.
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902
# Copies a file on ocfs2. It takes the paths of both files, which Landlock does not check.
OCFS2_IOC_REFLINK = 0x40186F04
# With a lease, the target could delay every other process that opens the file for writing.
F_SETLEASE = 1024
F_SETSIG, SIGCONT, CSIGNAL = 10, 18, 0xFF
RENAME_WHITEOUT = 4

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_TYPE_MASK = 0xF
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
IPPROTO_TCP, IPPROTO_UDP, NETLINK_ROUTE = 6, 17, 0
TCP_ULP = 31
NETLINK_ADDRESS_BYTES = 12  # sizeof(struct sockaddr_nl)
MSG_FASTOPEN = 0x20000000
SOL_SOCKET, SOL_IP, SOL_IPV6, SOL_NETLINK = 1, 0, 41, 270
# The socket options that the target may set in a run with the socket broker. Other options could
# connect the socket, choose a device, protocol or route, or share a port with another of the user's
# processes.
SOCKET_OPTIONS = {
    # REUSEADDR BROADCAST SNDBUF RCVBUF KEEPALIVE OOBINLINE PRIORITY PASSCRED RCVLOWAT RCVTIMEO
    # SNDTIMEO (the last two also in their 64-bit form)
    SOL_SOCKET: (2, 6, 7, 8, 9, 10, 12, 16, 18, 20, 21, 66, 67),
    # NODELAY MAXSEG CORK KEEPIDLE KEEPINTVL KEEPCNT SYNCNT LINGER2 DEFER_ACCEPT WINDOW_CLAMP
    # QUICKACK USER_TIMEOUT NOTSENT_LOWAT
    IPPROTO_TCP: (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 18, 25),
    SOL_IP: (1,),  # TOS
    SOL_IPV6: (26, 67),  # V6ONLY TCLASS
}
# Setting these options succeeds, but has no effect. Resolvers give up if they cannot set RECVERR,
# MTU_DISCOVER and PKTINFO. The target's datagram sockets do not have these options, because they
# are unix sockets, which the socket broker gives to the target. LINGER makes the last process that
# closes a socket wait. The target could use it to make the supervisor wait, by sending a socket
# with LINGER over one of these unix sockets, whose other end the supervisor has.
IGNORED_OPTIONS = {SOL_SOCKET: (13,), SOL_IP: (8, 10, 11), SOL_IPV6: (23, 25, 49)}

RLIMIT_CORE = 4
PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
PRIO_USER, IOPRIO_WHO_USER = 2, 3


def _sockets(
    *, unix_sockets: bool, namespaces: bool, broker: bool, notices: bool
) -> dict[str, Rule]:
    """Return the rules for sockets.

    With namespaces or the broker, the target may make TCP and UDP sockets. For these the type must
    be SOCK_STREAM with the protocol 0 or IPPROTO_TCP, or SOCK_DGRAM with the protocol 0 or
    IPPROTO_UDP. MPTCP, SCTP, SMC and raw sockets are denied. So is AF_INET with SOCK_PACKET, which
    the kernel would turn into AF_PACKET.

    An unknown family fails as on a kernel that does not support the family, because clients can
    handle this error.
    """
    unix = ALLOW if unix_sockets and not broker else DENY
    choices: list[Alternative] = []
    if unix_sockets and broker:
        choices += [
            ((low(0, AF_UNIX), low(1, kind, SOCK_TYPE_MASK)), ALLOW)
            for kind in (SOCK_STREAM, SOCK_SEQPACKET)
        ]
    choices.append(((low(0, AF_UNIX),), unix))
    kinds = ((SOCK_STREAM, IPPROTO_TCP, ALLOW), (SOCK_DGRAM, IPPROTO_UDP, ALLOW))
    if broker:
        kinds = (kinds[0], (SOCK_DGRAM, IPPROTO_UDP, NOTIFY))
    for family in (AF_INET, AF_INET6):
        if namespaces or broker:
            for kind, protocol, action in kinds:
                typed = (low(0, family), low(1, kind, SOCK_TYPE_MASK))
                choices.append(((*typed, low(2, 0)), action))
                choices.append(((*typed, low(2, protocol)), action))
        # Do not report denied AF_INET6 sockets. Libraries often make one only to see whether the
        # host has IPv6.
        denied = NOTIFY if notices and family == AF_INET else DENY
        choices.append(((low(0, family),), NO_PROTOCOL if namespaces or broker else denied))
    choices.append(((low(0, AF_NETLINK), low(2, NETLINK_ROUTE)), ALLOW))
    choices.append(((low(0, AF_NETLINK),), NO_PROTOCOL))
    # Unless unix sockets are allowed, deny pairs of datagram sockets, because either end can
    # connect or send to another socket, such as the host's log socket. To the kernel, SOCK_RAW
    # pairs are datagram sockets too.
    pairs: list[Alternative] = [
        ((low(0, AF_UNIX), low(1, kind, SOCK_TYPE_MASK)), ALLOW)
        for kind in (SOCK_STREAM, SOCK_SEQPACKET)
    ]
    pairs.append(((low(0, AF_UNIX),), unix))
    return {
        "socket": (tuple(choices), NO_FAMILY),
        "socketpair": (tuple(pairs), NO_FAMILY),
        # Deny upper-layer protocols. "smc" would turn a TCP socket into an SMC socket, and the
        # rules for socket() deny SMC sockets.
        "setsockopt": ((((low(1, IPPROTO_TCP), low(2, TCP_ULP)), DENY),), ALLOW),
        **(_brokered() if broker else {}),
    }


def _brokered() -> dict[str, Rule]:
    """Return the rules for sockets that the supervisor connects and binds on the target's behalf.

    The filter can allow calls that send data, because a TCP socket cannot send before the
    supervisor has connected it. The exception is a call with MSG_FASTOPEN, which connects the
    socket while sending. So the filter denies this flag. The supervisor also answers calls that
    return a socket's addresses.
    """
    fast_open = (3, 2, 3)
    options: list[Alternative] = [
        ((low(1, level), low(2, name)), action)
        for table, action in ((SOCKET_OPTIONS, ALLOW), (IGNORED_OPTIONS, DONE))
        for level, names in table.items()
        for name in names
    ]
    options.append(((low(1, SOL_NETLINK),), ALLOW))
    return {
        "setsockopt": (tuple(options), NO_OPTION),
        **{
            name: ((((low(flags, MSG_FASTOPEN, MSG_FASTOPEN),), NOT_SUPPORTED),), ALLOW)
            for name, flags in zip(("sendto", "sendmsg", "sendmmsg"), fast_open, strict=True)
        },
        "recvfrom": ((((whole(4, 0),), ALLOW),), NOTIFY),
        **dict.fromkeys(("connect", "bind", "listen"), NOTIFY),
        **dict.fromkeys(("recvmsg", "getsockname", "getpeername"), NOTIFY),
    }


def _netlink_binds(*, notified: bool) -> Rule:
    """Return the rule for `bind` without namespaces and without a broker.

    The target then has only netlink sockets and pairs of unix sockets. It must not bind
    unix sockets, because their abstract names belong to the host.

    The filter sees only the length of the address, so it denies all lengths except that of a
    netlink address. With a listener, the supervisor checks the address itself. Without a listener,
    the target can still bind a unix name of exactly this length.
    """
    return (((low(2, NETLINK_ADDRESS_BYTES),), NOTIFY if notified else ALLOW),), DENY


def _processes(
    *, subprocess: bool, cookie: tuple[int, int, int] | None, notices: bool
) -> dict[str, Rule]:
    """Return the rules for processes.

    The filter cannot check clone3, whose flags are behind a pointer. So clone3 fails with ENOSYS,
    and libc uses clone instead. Without `subprocess`, process starts are denied. With `notices`,
    the filter passes them to the supervisor, which denies and reports them.
    """
    namespaces: Alternative = ((low(0, 0, CLONE_NEW_ANY),), ALLOW)
    if subprocess:
        return {"clone": ((namespaces,), DENY), "clone3": ABSENT}
    thread: Condition = low(0, CLONE_THREAD, CLONE_NEW_ANY | CLONE_THREAD)
    denied = NOTIFY if notices else DENY
    rules: dict[str, Rule] = {
        "clone": ((((thread,), ALLOW), (namespaces[0], denied)), DENY),
        "clone3": ABSENT,
        **dict.fromkeys(("fork", "vfork", "execve", "execveat"), denied),
    }
    if cookie is not None:
        words = tuple(whole(3 + position, word) for position, word in enumerate(cookie))
        rules["execve"] = (((words, ALLOW),), denied)
    return rules


def _ioctl(*, namespaces: bool) -> Rule:
    # FIOSETOWN and SIOCSPGRP choose the process that gets a descriptor's signals. Without
    # namespaces this could be a process of the host. Both pass the process by a pointer, which the
    # filter cannot follow, so deny them for every process.
    owners = () if namespaces else (FIOSETOWN, SIOCSPGRP)
    files = (*FS_IOC_CHANGES, *FS_IOC_KEYS, OCFS2_IOC_REFLINK)
    denied = (TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSWINSZ, *files, *owners)
    choices: list[Alternative] = [((low(1, command),), DENY) for command in denied]
    choices += [((low(1, c),), ALLOW) for c in (FICLONE, FICLONERANGE, FIDEDUPERANGE)]
    choices += [((low(1, kind, IOC_TYPE),), DENY) for kind in (BTRFS_IOCTL, BCACHEFS_IOCTL)]
    return tuple(choices), ALLOW


S_ISUID, S_ISGID = 0o4000, 0o2000
O_ACCMODE, O_CREAT, O_TMPFILE = 3, 0o100, 0o20000000
PROT_WRITE = 2
OPEN_FLAGS = {"open": 1, "openat": 2}
"""The position of the flags among the arguments of each call."""


def _calls(*, namespaces: bool) -> dict[str, Rule]:
    """Return the rules that check arguments and do not depend on the policy."""
    prctl = (
        (PR_SET_MM, PR_SCHED_CORE) if namespaces else (PR_SET_MM, PR_SCHED_CORE, PR_SET_PDEATHSIG)
    )
    whiteout = low(4, RENAME_WHITEOUT, RENAME_WHITEOUT)
    listener = (
        low(0, SECCOMP_SET_MODE_FILTER),
        low(1, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_NEW_LISTENER),
    )
    kinds = (0, S_IFREG, S_IFIFO)
    return {
        "ioctl": _ioctl(namespaces=namespaces),
        "personality": (tuple(((low(0, value),), ALLOW) for value in PERSONALITIES), DENY),
        "prctl": (tuple(((low(0, option),), DENY) for option in prctl), ALLOW),
        "seccomp": (((listener, DENY),), ALLOW),
        # Allow only ordinary files and FIFOs. Device files mostly work only on mounts that allow
        # devices. But a whiteout, with which overlayfs marks a deleted file, is also a character
        # device, and any user can make one.
        "mknod": _kinds(1, kinds),
        "mknodat": _kinds(2, kinds),
        "renameat2": ((((whiteout,), DENY),), ALLOW),
        "fcntl": ((((low(1, F_SETLEASE),), DENY),), ALLOW),
        **_set_ids(),
    }


def _kinds(mode: int, kinds: tuple[int, ...]) -> Rule:
    allowed = tuple(((low(mode, kind, S_IFMT),), ALLOW) for kind in kinds)
    return (*_with_set_id(mode), *allowed), DENY


def _with_set_id(mode: int, *when: Condition) -> tuple[Alternative, ...]:
    return tuple(((*when, low(mode, bit, bit)), DENY) for bit in (S_ISUID, S_ISGID))


def _set_ids() -> dict[str, Rule]:
    """Deny calls that make a set-user-ID or set-group-ID file.

    The sandbox's mounts are nosuid, but the host's are not. On the host, such a file in a write
    grant would run with the rights of its owner, who may be root.

    openat2 takes the mode from memory, which a filter cannot read. So openat2 fails with ENOSYS,
    and programs use another call.
    """
    creating = [low(2, O_CREAT, O_CREAT), low(2, O_TMPFILE, O_TMPFILE)]
    opening = [low(1, O_CREAT, O_CREAT), low(1, O_TMPFILE, O_TMPFILE)]
    openat = tuple(item for when in creating for item in _with_set_id(3, when))
    open_ = tuple(item for when in opening for item in _with_set_id(2, when))
    return {
        "chmod": (_with_set_id(1), ALLOW),
        "fchmod": (_with_set_id(1), ALLOW),
        "fchmodat": (_with_set_id(2), ALLOW),
        "fchmodat2": (_with_set_id(2), ALLOW),
        "creat": (_with_set_id(1), ALLOW),
        "open": (open_, ALLOW),
        "openat": (openat, ALLOW),
        "openat2": ABSENT,
    }


SIGNALLING = frozenset(("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"))
ADJUSTING = (
    "prlimit64",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
    "sched_setaffinity",
)


def _own_process_only(own_pid: int | None) -> dict[str, Rule]:
    """Deny calls on other processes. Without a PID namespace they could reach the host's processes.

    The pid 0 stays allowed. It means the caller or, for kill, the caller's process group. This
    group contains only processes of the target.
    """
    own = (0,) if own_pid is None else (0, own_pid)

    def only(index: int, *conditions: Condition) -> Rule:
        return tuple(((*conditions, low(index, pid)), ALLOW) for pid in own), DENY

    owner: list[Alternative] = [((low(1, F_SETOWN), low(2, pid)), ALLOW) for pid in own]
    owner += [((low(1, command),), DENY) for command in (F_SETOWN, F_SETOWN_EX, F_SETLEASE)]
    return {
        **dict.fromkeys((*sorted(SIGNALLING), *ADJUSTING), only(0)),
        "setpriority": only(1, low(0, PRIO_PROCESS)),
        "ioprio_set": only(1, low(0, IOPRIO_WHO_PROCESS)),
        "fcntl": (tuple(owner), ALLOW),
    }


def not_init() -> dict[str, Rule]:
    """Deny calls that limit or slow down PID 1.

    All other processes are the target's own, so they need no protection. PRIO_USER and
    IOPRIO_WHO_USER are denied, because they change all processes of a user, including PID 1.
    """
    of_users = {"setpriority": PRIO_USER, "ioprio_set": IOPRIO_WHO_USER}
    return {
        **dict.fromkeys(ADJUSTING, ((((low(0, 1),), DENY),), ALLOW)),
        **{
            name: ((((low(1, 1),), DENY), ((low(0, which),), DENY)), ALLOW)
            for name, which in of_users.items()
        },
    }


def _keep_core_limit(prlimit: Rule) -> dict[str, Rule]:
    """Let every change of RLIMIT_CORE succeed without effect.

    corral sets this limit to 1, which turns off the host's core handler (systemd-coredump, apport).
    The kernel would run the handler outside the sandbox and as root when a process crashes. Changes
    of the limit must not fail, because some programs exit if they cannot set it to 0.
    """
    # Compare only the lowest four bits of the limit's number, because there are only 16 limits.
    core = (1, 0xF, RLIMIT_CORE)
    rest, otherwise = ((), prlimit) if isinstance(prlimit, int) else prlimit
    judged: tuple[Alternative, ...] = (*rest, ((), otherwise))
    reads = [((core, whole(2, 0), *when), action) for when, action in judged]
    return {
        "setrlimit": ((((low(0, RLIMIT_CORE),), DONE),), ALLOW),
        "prlimit64": ((*reads, ((core,), DONE), *rest), otherwise),
    }


def _no_continue_signals(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Deny calls that make the kernel send SIGCONT.

    corral enforces the target's CPU share with SIGSTOP. SIGCONT would resume the target too early.
    timer_create and mq_notify take their signal through a pointer, which the filter cannot follow.
    So both calls are denied for every signal.
    """
    denied: dict[str, tuple[Condition, ...]] = {
        "fcntl": (low(1, F_SETSIG), low(2, SIGCONT)),
        "prctl": (low(0, PR_SET_PDEATHSIG), low(1, SIGCONT)),
        "clone": (low(0, SIGCONT, CSIGNAL),),
    }
    found: dict[str, Rule] = {"timer_create": DENY, "mq_notify": DENY}
    return found | {name: _with_denied(rules[name], *when) for name, when in denied.items()}


def target_rules(
    *,
    subprocess: bool,
    unix_sockets: bool,
    namespaces: bool,
    cookie: tuple[int, int, int] | None,
    own_pid: int | None = None,
    scoped: bool = False,
    duty_cycle: bool = False,
    notices: bool = False,
    watch_paths: bool = False,
    broker: bool = False,
    limit_tasks: bool = False,
    file_changes: bool = False,
) -> dict[str, Rule]:
    """Return the rules by syscall name. The machine's other syscalls are allowed.

    - Without `subprocess`, execve is allowed only with `cookie` in its last three registers, which
      the kernel ignores. If `cookie` is None, execve is denied.
    - Without `namespaces`, the target may signal and adjust only the processes `own_pid` and 0. The
      pid 0 means the caller or, for kill, the caller's process group. With `scoped`, Landlock
      decides about signals instead.
    - With `duty_cycle`, calls that make the kernel send SIGCONT are denied, because corral enforces
      a CPU share with SIGSTOP and SIGCONT.

    The other flags choose the calls that are passed to the supervisor's listener:

    - `notices` (only without `subprocess`): denied process starts, denied IPv4 sockets, created
      files
    - `watch_paths`: calls with a path, large memory mappings, connections and denied unix sockets
    - `limit_tasks`: new processes and threads
    - `broker`: calls on sockets
    - `file_changes`: changes to modes and times (only without namespaces)
    """
    rules: dict[str, Rule] = {
        **dict.fromkeys(_NEVER_IMPLEMENTED.split(), ABSENT),
        **dict.fromkeys(DENIED, DENY),
        **_calls(namespaces=namespaces),
        **_sockets(
            unix_sockets=unix_sockets,
            namespaces=namespaces,
            broker=broker,
            notices=notices and not subprocess and not watch_paths,
        ),
        **_processes(subprocess=subprocess, cookie=cookie, notices=notices),
    }
    if namespaces:
        rules.update(not_init())
    else:
        rules.update(
            _without_namespaces(own_pid, scoped=scoped, broker=broker, file_changes=file_changes)
        )
    rules.update(_keep_core_limit(rules["prlimit64"]))
    if duty_cycle:
        rules.update(_no_continue_signals(rules))
    if limit_tasks:
        rules.update(
            {name: _notified(rules.get(name, ALLOW)) for name in ("fork", "vfork", "clone")}
        )
        rules["prctl"] = _with_denied(rules["prctl"], low(0, PR_SET_CHILD_SUBREAPER))
    if watch_paths:
        rules.update(_watched_paths(rules))
        if not broker:
            rules.update(_watched_sockets(rules, unix_sockets=unix_sockets))
    elif notices and not subprocess:
        rules.update(_creations(rules))
    return rules


def _without_namespaces(
    own_pid: int | None, *, scoped: bool, broker: bool, file_changes: bool
) -> dict[str, Rule]:
    """Return the rules that protect the host's files and processes in a run without namespaces.

    The filter denies access mode 3 of `open`, which opens a file neither for reading nor for
    writing. Landlock does not check files that are opened in this mode. But with such a descriptor
    a target could lock the file, use its extended attributes and make some ioctls.
    """
    rules: dict[str, Rule] = {
        name: NOT_SUPPORTED if name in ATTRIBUTES else DENY for name in DENIED_WITHOUT_NAMESPACES
    }
    set_ids = _set_ids()
    for name, flags in OPEN_FLAGS.items():
        rules[name] = _with_denied(set_ids[name], low(flags, O_ACCMODE, O_ACCMODE))
    if file_changes:
        rules.update({name: _notified(set_ids.get(name, ALLOW)) for name in CHANGES})
    if not broker:
        rules["bind"] = _netlink_binds(notified=file_changes)
    own = _own_process_only(own_pid)
    # With `scoped`, Landlock's signal scope replaces this filter's rules for signals. Unlike these
    # rules, the scope permits signals to the caller's children.
    rules.update({name: own[name] for name in own if not (scoped and name in SIGNALLING)})
    return rules


def _watched_paths(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Return the rules that `corral learn` uses to watch paths and large mappings."""
    return {name: _notified(rules.get(name, ALLOW)) for name in PATHS} | {MEMORY: _large_mappings()}


def _watched_sockets(rules: dict[str, Rule], *, unix_sockets: bool) -> dict[str, Rule]:
    """Return the rules that `corral learn` uses to watch connections.

    If Unix sockets are denied, the filter also passes attempts to make one to the supervisor. The
    supervisor then gives the target a Unix socket without a peer, and records the name that the
    target binds it to.
    """
    found: dict[str, Rule] = {"connect": _notified(rules.get("connect", ALLOW))}
    rule = rules["socket"]
    if not unix_sockets and not isinstance(rule, int):
        stream = (low(0, AF_UNIX), low(1, SOCK_STREAM, SOCK_TYPE_MASK))
        found["socket"] = ((stream, NOTIFY), *rule[0]), rule[1]
        found["bind"] = _notified(rules.get("bind", ALLOW))
    return found


def _large_mappings() -> Rule:
    """Return the rule that passes large writable memory mappings (mmap) to the supervisor.

    Such mappings count towards RLIMIT_DATA.
    """
    small: Condition = (1, LONG & ~(MIN_MAPPED - 1), 0)
    return (((small,), ALLOW), ((low(2, 0, PROT_WRITE),), ALLOW)), NOTIFY


def _creations(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Return rules that notify the supervisor of calls that create a file or directory.

    Calls that only open a file stay fast, because the supervisor does not see them.
    """
    found: dict[str, Rule] = {}
    for name in CREATES:
        rule = rules.get(name, ALLOW)
        flags = OPEN_FLAGS.get(name)
        if flags is None or isinstance(rule, int):
            found[name] = _notified(rule)
        else:
            found[name] = (*rule[0], ((low(flags, O_CREAT, O_CREAT),), NOTIFY)), rule[1]
    return found


def _with_denied(rule: Rule, *conditions: Condition) -> Rule:
    """Return `rule`, but deny calls that meet all these conditions."""
    alternatives, otherwise = ((), rule) if isinstance(rule, int) else rule
    return ((conditions, DENY), *alternatives), otherwise


def _notified(rule: Rule) -> Rule:
    """Return `rule` with NOTIFY in place of ALLOW, so that the supervisor answers these calls."""
    if isinstance(rule, int):
        return NOTIFY if rule == ALLOW else rule
    return tuple((when, _notified_action(one)) for when, one in rule[0]), _notified_action(rule[1])


def _notified_action(action: int) -> int:
    return NOTIFY if action == ALLOW else action


def compile_filter(machine: str, rules: dict[str, Rule]) -> bytes:
    return assemble_by_name(machine, rules, unknown=ABSENT, others=ALLOW)
