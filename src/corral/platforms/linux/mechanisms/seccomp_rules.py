"""The syscall rules of the target, as data; `seccomp_compiler` makes a filter of them.

The filter denies what reaches past the walls and allows the rest, because servers are whole
programs. Numbers newer than the table fail with ENOSYS, which libraries take for an older kernel.
A filter sees registers only: it cannot judge what is behind a pointer (clone3's flags, paths).
Where the kernel truncates an argument to 32 bits, so does the comparison: one of all 64 could be
passed by junk in the high word.
"""

from __future__ import annotations

from corral.platforms.linux.mechanisms.seccomp_compiler import (
    ALLOW,
    assemble_by_name,
    errno_action,
    low,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.platforms.linux.mechanisms.seccomp_compiler import Alternative, Condition, Rule

# By number, since `errno` has those of the system that plans, not of the one that runs the filter.
DENY = errno_action(1)  # EPERM
ABSENT = errno_action(38)  # ENOSYS
NO_PROTOCOL = errno_action(93)  # EPROTONOSUPPORT
NO_FAMILY = errno_action(97)  # EAFNOSUPPORT

# Reason -> names. mbind, set_mempolicy and seccomp stay: they act on the caller alone, and programs
# that sandbox themselves should.
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
    "makes or enters namespaces, where privileges begin anew": "unshare setns",
    "changes the kernel itself": """
        init_module finit_module delete_module create_module get_kernel_syms query_module kexec_load
        kexec_file_load reboot""",
    "administers the machine": """
        swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime adjtimex clock_adjtime
        sethostname setdomainname vhangup nfsservctl sysfs ustat lsm_set_self_attr""",
    "opens files by number, past every path rule": "open_by_handle_at name_to_handle_at",
    "touches hardware or segments": "iopl ioperm modify_ldt",
    "loads a library by an old and unguarded way": "uselib",
    "watches whole filesystems": "fanotify_init fanotify_mark",
    "makes memory that no limit counts": "memfd_secret",
    "takes requests from fs.aio-max-nr, which the whole machine shares": "io_setup",
}

# Where there are no namespaces, because Landlock does not cover these. The calls on descriptors
# are as bad as those on paths: one opened for reading is enough to change its file's mode or times.
_DENIED_WITHOUT_NAMESPACES = {
    "changes mode, owner, times or attributes of files that may only be read, or not even that": """
        chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat
        futimesat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr
        removexattrat file_setattr""",
    "tells the names of files in directories that are not granted": "inotify_add_watch",
    "takes from the inotify instances of the host's user": "inotify_init inotify_init1",
    "reaches the host's System V and POSIX queues, semaphores and shared memory": """
        shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr""",
    "signals processes of the host": "pidfd_send_signal",
}

DENIED: dict[str, str] = {name: why for why, names in _DENIED.items() for name in names.split()}
DENIED_WITHOUT_NAMESPACES: dict[str, str] = {
    name: why for why, names in _DENIED_WITHOUT_NAMESPACES.items() for name in names.split()
}

# Taken numbers that no kernel of this machine ever answered.
_NEVER_IMPLEMENTED = (
    "_sysctl afs_syscall epoll_ctl_old epoll_wait_old get_thread_area getpmsg putpmsg security "
    "set_thread_area tuxcall vserver"
)

CLONE_THREAD = 0x10000
# NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET. NEWTIME is in the byte of the exit
# signal, above the last signal.
CLONE_NEW = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
CLONE_NEW_ANY = sum(CLONE_NEW)

# Docker's list: PER_LINUX, PER_LINUX32, UNAME26, both, and the question for the current one. None
# that turns off address randomization or makes readable pages executable.
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

PR_SET_PDEATHSIG = 1
PR_SET_MM = 35  # rewrites the caller's command line and executable in /proc
PR_SCHED_CORE = 62  # ties other processes to the caller's core

SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8

S_IFMT, S_IFIFO, S_IFREG = 0xF000, 0x1000, 0x8000

TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
IOC_TYPE = 0xFF00
# A snapshot puts a whole subvolume, ~/.ssh included, under a path that is granted (old btrfs takes
# any descriptor in it for that), and subvolumes come and go past Landlock. cp's three calls for
# shared blocks have the same type and stay.
BTRFS_IOCTL, BCACHEFS_IOCTL = 0x9400, 0xBC00
FICLONE, FICLONERANGE, FIDEDUPERANGE = 0x40049409, 0x4020940D, 0xC0189436
# Changes to a file through a descriptor opened for reading. A read-only mount stops them, Landlock
# does not; verity makes the file immutable for good.
FS_IOC_CHANGES = (
    0x40086602,  # FS_IOC_SETFLAGS
    0x401C5820,  # FS_IOC_FSSETXATTR
    0x40806685,  # FS_IOC_ENABLE_VERITY
    0x800C6613,  # FS_IOC_SET_ENCRYPTION_POLICY
    0x40086604,  # EXT4_IOC_SETVERSION
    0x40087602,  # FS_IOC_SETVERSION
    0x40047211,  # FAT_IOCTL_SET_ATTRIBUTES
)
# The kernel sends a signal of the caller's choice to a descriptor's owner: these name the owner.
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902
# A lease makes every other process wait that opens the file for writing.
F_SETLEASE = 1024
F_SETSIG, SIGCONT, CSIGNAL = 10, 18, 0xFF
RENAME_WHITEOUT = 4

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
SOCK_TYPE_MASK = 0xF
SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET = 1, 2, 5
IPPROTO_TCP, IPPROTO_UDP, NETLINK_ROUTE = 6, 17, 0
TCP_ULP = 31

PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
PRIO_USER, IOPRIO_WHO_USER = 2, 3


def _sockets(*, unix_sockets: bool, namespaces: bool) -> dict[str, Rule]:
    """Allow TCP and UDP, by number or as protocol 0; MPTCP, SCTP, SMC and raw sockets are others.

    An unknown family fails as on a kernel without it, so clients go on without it. AF_INET with
    SOCK_PACKET, which the kernel turns into AF_PACKET, is not a listed type.
    """
    unix = ALLOW if unix_sockets else DENY
    choices: list[Alternative] = [((low(0, AF_UNIX),), unix)]
    for family in (AF_INET, AF_INET6):
        if namespaces:
            for kind, protocol in ((SOCK_STREAM, IPPROTO_TCP), (SOCK_DGRAM, IPPROTO_UDP)):
                typed = (low(0, family), low(1, kind, SOCK_TYPE_MASK))
                choices.append(((*typed, low(2, 0)), ALLOW))
                choices.append(((*typed, low(2, protocol)), ALLOW))
        choices.append(((low(0, family),), NO_PROTOCOL if namespaces else DENY))
    choices.append(((low(0, AF_NETLINK), low(2, NETLINK_ROUTE)), ALLOW))
    choices.append(((low(0, AF_NETLINK),), NO_PROTOCOL))
    # A pair of datagram sockets is not closed: either end can connect or send to another socket,
    # the host's log socket for example. SOCK_RAW is the same to the kernel. Streams stay connected.
    pairs: list[Alternative] = [
        ((low(0, AF_UNIX), low(1, kind, SOCK_TYPE_MASK)), ALLOW)
        for kind in (SOCK_STREAM, SOCK_SEQPACKET)
    ]
    pairs.append(((low(0, AF_UNIX),), unix))
    return {
        "socket": (tuple(choices), NO_FAMILY),
        "socketpair": (tuple(pairs), NO_FAMILY),
        # Upper-layer protocols: "smc" makes of a TCP socket what socket() refuses.
        "setsockopt": ((((low(1, IPPROTO_TCP), low(2, TCP_ULP)), DENY),), ALLOW),
    }


def _processes(*, subprocess: bool, cookie: tuple[int, int, int] | None) -> dict[str, Rule]:
    """Make clone3 absent, because its flags are behind a pointer; libc falls back to clone."""
    namespaces: Alternative = ((low(0, 0, CLONE_NEW_ANY),), ALLOW)
    if subprocess:
        return {"clone": ((namespaces,), DENY), "clone3": ABSENT}
    thread: Condition = low(0, CLONE_THREAD, CLONE_NEW_ANY | CLONE_THREAD)
    rules: dict[str, Rule] = {
        "clone": ((((thread,), ALLOW),), DENY),
        "clone3": ABSENT,
        "fork": DENY,
        "vfork": DENY,
        "execve": DENY,
        "execveat": DENY,
    }
    if cookie is not None:
        words = tuple(whole(3 + position, word) for position, word in enumerate(cookie))
        rules["execve"] = (((words, ALLOW),), DENY)
    return rules


def _ioctl(*, namespaces: bool) -> Rule:
    choices: list[Alternative] = [
        ((low(1, command),), DENY) for command in (TIOCSTI, TIOCLINUX, TIOCSETD)
    ]
    if not namespaces:
        # The new owner is behind a pointer.
        denied = (*FS_IOC_CHANGES, FIOSETOWN, SIOCSPGRP)
        choices += [((low(1, command),), DENY) for command in denied]
    choices += [((low(1, c),), ALLOW) for c in (FICLONE, FICLONERANGE, FIDEDUPERANGE)]
    choices += [((low(1, kind, IOC_TYPE),), DENY) for kind in (BTRFS_IOCTL, BCACHEFS_IOCTL)]
    return tuple(choices), ALLOW


S_ISUID, S_ISGID = 0o4000, 0o2000
O_CREAT, O_TMPFILE = 0o100, 0o20000000


def _calls(*, namespaces: bool) -> dict[str, Rule]:
    """Return the rules about arguments that do not depend on the policy."""
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
        # Devices only work where mounts allow them, but a whiteout needs no privilege at all.
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
    """Deny set-id files: in a write grant they would run as their owner outside, who may be root.

    Mounts are nosuid inside, but not on the host. openat2 has its mode in memory, which no filter
    reads, so it does not exist here; programs that use it fall back.
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
    """Deny what reaches other processes: without a PID namespace the target can name them all.

    0 is the caller, or its group for kill: the target has a session of its own.
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


def _not_init() -> dict[str, Rule]:
    """Deny adjusting PID 1, which enforces deadlines; every other process is the target's own.

    PRIO_USER and IOPRIO_WHO_USER mean all processes with the same id, PID 1 among them.
    """
    of_users = {"setpriority": PRIO_USER, "ioprio_set": IOPRIO_WHO_USER}
    return {
        **dict.fromkeys(ADJUSTING, ((((low(0, 1),), DENY),), ALLOW)),
        **{
            name: ((((low(1, 1),), DENY), ((low(0, which),), DENY)), ALLOW)
            for name, which in of_users.items()
        },
    }


def _no_continue_signals(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Deny what makes the kernel send SIGCONT, which would undo the SIGSTOP of a duty cycle.

    The signals of timer_create and mq_notify are behind a pointer.
    """
    denied: dict[str, tuple[Condition, ...]] = {
        "fcntl": (low(1, F_SETSIG), low(2, SIGCONT)),
        "prctl": (low(0, PR_SET_PDEATHSIG), low(1, SIGCONT)),
        "clone": (low(0, SIGCONT, CSIGNAL),),
    }
    found: dict[str, Rule] = {"timer_create": DENY, "mq_notify": DENY}
    for name, conditions in denied.items():
        rule = rules[name]
        if not isinstance(rule, int):
            found[name] = (((conditions, DENY), *rule[0]), rule[1])
    return found


def target_rules(
    *,
    subprocess: bool,
    unix_sockets: bool,
    namespaces: bool,
    cookie: tuple[int, int, int] | None,
    own_pid: int | None = None,
    scoped: bool = False,
    duty_cycle: bool = False,
) -> dict[str, Rule]:
    """Return the rule of every syscall that is not simply allowed, by name.

    Without `subprocess`, execve passes only with `cookie` in its last three registers, which the
    kernel ignores, and never when there is no cookie. `own_pid` matters only without namespaces: it
    is the one process, besides 0, that may be signalled and adjusted. With `duty_cycle` a share of
    the processors is enforced by SIGSTOP and SIGCONT.
    """
    rules: dict[str, Rule] = {
        **dict.fromkeys(_NEVER_IMPLEMENTED.split(), ABSENT),
        **dict.fromkeys(DENIED, DENY),
        **_calls(namespaces=namespaces),
        **_sockets(unix_sockets=unix_sockets, namespaces=namespaces),
        **_processes(subprocess=subprocess, cookie=cookie),
    }
    if namespaces:
        rules.update(_not_init())
    else:
        rules.update(dict.fromkeys(DENIED_WITHOUT_NAMESPACES, DENY))
        own = _own_process_only(own_pid)
        # Landlock's signal scope keeps the target's signals inside, and permits those to children.
        rules.update({name: own[name] for name in own if not (scoped and name in SIGNALLING)})
    if duty_cycle:
        rules.update(_no_continue_signals(rules))
    return rules


def compile_filter(machine: str, rules: dict[str, Rule]) -> bytes:
    return assemble_by_name(machine, rules, unknown=ABSENT, others=ALLOW)
