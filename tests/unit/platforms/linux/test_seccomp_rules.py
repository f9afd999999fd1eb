"""Test the rules of corral's seccomp filter: compare them with libseccomp for all numbers below
1024 and for some higher ones, and try each attack that the rules must stop.
"""

from __future__ import annotations

import itertools
import random

import libseccomp_oracle
import pytest
from bpf_simulator import JEQ, JSET, decode, run

import rigs
from corral.abi.linux_syscalls import AUDIT_ARCH_AARCH64, AUDIT_ARCH_X86_64, AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_init_rules, seccomp_rules
from corral.platforms.linux.mechanisms.seccomp_compiler import (
    ALLOW,
    KILL_PROCESS,
    NOTIFY,
    errno_action,
)

EPERM, ENOSYS, EPROTONOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT = map(errno_action, (1, 38, 93, 95, 97))
COOKIE = (0x0123456789ABCDEF, 0xFFFFFFFF00000000, 0x00000000FFFFFFFF)
OWN = 4242
JUNK = 0xDEADBEEF << 32
AUDIT_ARCH_I386, AUDIT_ARCH_ARM = 0x40000003, 0x40000028
X32 = 0x40000000

MACHINES = tuple(TABLES)
OPTIONS = [
    {**execs, "unix_sockets": unix, **tier}
    for execs in (
        {"subprocess": True, "cookie": None},
        {"subprocess": False, "cookie": None},
        {"subprocess": False, "cookie": COOKIE},
    )
    for unix in (False, True)
    for tier in (
        {"namespaces": True},
        {"namespaces": False},
        {"namespaces": False, "own_pid": OWN},
    )
]
OPTIONS += [{**OPTIONS[at], "duty_cycle": True} for at in (0, 2, len(OPTIONS) - 3)]


class Filter:
    def __init__(self, machine, raw):
        self.table = TABLES[machine]
        self.arch = AUDIT_ARCHES[machine]
        self.program = decode(raw)

    def __call__(self, name, *args):
        wide = tuple(value & (1 << 64) - 1 for value in args)
        return run(self.program, self.arch, self.table[name], wide).action


def compiled(machine, **options):
    return seccomp_rules.compile_filter(machine, seccomp_rules.target_rules(**options))


def target(machine="x86_64", **changes):
    options = {
        "subprocess": False,
        "unix_sockets": False,
        "namespaces": True,
        "cookie": None,
        **changes,
    }
    return Filter(machine, compiled(machine, **options))


def numbered(machine, named, others):
    table = TABLES[machine]
    rules = {} if others is None else dict.fromkeys(table.values(), others)
    rules.update({table[name]: rule for name, rule in named.items() if name in table})
    return rules


def words_of(*programs):
    """Return all constants that the programs compare arguments with. Arguments made from these
    constants reach every branch.
    """
    return sorted({k for program in programs for code, _, _, k in program if code in {JEQ, JSET}})


def corpus(words):
    """Return tuples of a system call's arguments: boundary values, values near the constants
    `words`, values with one bit set, COOKIE with one wrong bit, and random combinations.
    """
    edges = [
        0,
        1,
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
        1 << 32,
        1 << 63,
        (1 << 64) - 1,
        OWN,
        -OWN,
        *COOKIE,
    ]
    values = edges + [near for word in words for near in (word, word + 1, word | JUNK)]
    tuples = [(value,) * 6 for value in values]
    tuples += [(0, 0, 0, *COOKIE)]
    for place, bit in itertools.product(range(3), range(64)):
        tuples.append(tuple(1 << bit if index == place else 0 for index in range(6)))
    for bit in range(64):
        wrong = [word ^ (1 << bit if index == bit % 3 else 0) for index, word in enumerate(COOKIE)]
        tuples.append((0, 0, 0, *wrong))
    chance = random.Random(20)
    small = [0, 1, 2, 3, 5, 6, 8, 10, 16, 17, 31, OWN]
    for _ in range(250):
        tuples.append(
            tuple(chance.choice(small if chance.random() < 0.7 else values) for _ in range(6))
        )
    return [tuple(value & (1 << 64) - 1 for value in args) for args in tuples]


@pytest.fixture(scope="module")
def libseccomp():
    rigs.need("libseccomp")
    return libseccomp_oracle.load()


# Rules that were already compared with all argument tuples. If a later filter has the same rule, a
# sample of the tuples is enough.
COMPARED = set()


def assert_same(machine, rules, ours, theirs):
    """Compare both programs for all numbers below 1024 and for some higher ones. Vary the arguments
    only if one of the programs reads them.

    libseccomp's program is always for x86_64 (see libseccomp_oracle). The number -1 is not
    compared. Tracers use it to skip a call, and libseccomp treats it differently from other numbers
    in the x32 range. corral's filter kills the process for every number in that range.
    """
    arch = AUDIT_ARCHES[machine]
    tuples = corpus(words_of(ours))
    beyond = [X32, X32 + 1, X32 + 520, X32 | 0x80000000, 0xFFFFFFFE] if machine == "x86_64" else []
    compared = 0
    for number in [*range(1024), 4095, 65535, X32 - 1, *beyond]:
        rule = (machine, number, rules.get(number))
        for args in tuples[:: 9 if rule in COMPARED else 1]:
            one = run(ours, arch, number, args)
            two = run(theirs, AUDIT_ARCH_X86_64, number, args)
            assert hex(one.action) == hex(two.action), (number, list(map(hex, args)))
            compared += 1
            if not (one.arguments or two.arguments):
                break
        else:
            COMPARED.add(rule)
    assert compared > 1024 + 100  # some calls were tried with more than one tuple


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_target_filter_equals_libseccomps(machine, options, libseccomp):
    rules = numbered(machine, seccomp_rules.target_rules(**options), ALLOW)
    theirs = libseccomp_oracle.compile_rules(
        libseccomp, rules, unknown=ENOSYS, bad_arch=KILL_PROCESS
    )
    ours = compiled(machine, **options)
    assert_same(machine, rules, decode(ours), decode(theirs, longest=1 << 16))


@pytest.mark.parametrize("machine", MACHINES)
def test_the_init_filter_equals_libseccomps(machine, libseccomp):
    rules = numbered(machine, seccomp_init_rules.init_rules(), None)
    theirs = libseccomp_oracle.compile_rules(
        libseccomp, rules, unknown=KILL_PROCESS, bad_arch=KILL_PROCESS
    )
    ours = seccomp_init_rules.compile_filter(machine)
    assert_same(machine, rules, decode(ours), decode(theirs, longest=1 << 16))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_call_of_a_foreign_architecture_is_killed(machine, options):
    program = decode(compiled(machine, **options))
    for arch in {AUDIT_ARCH_I386, AUDIT_ARCH_ARM, AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64, 0}:
        expected = ALLOW if arch == AUDIT_ARCHES[machine] else KILL_PROCESS
        assert run(program, arch, TABLES[machine]["getpid"]).action == expected


def test_x32_is_killed_and_its_old_numbers_are_absent():
    program = target().program
    getpid = TABLES["x86_64"]["getpid"]
    assert run(program, AUDIT_ARCH_X86_64, getpid).action == ALLOW
    for number in (X32 | getpid, X32, X32 | 520, 0x80000000, 0xFFFFFFFF):
        assert run(program, AUDIT_ARCH_X86_64, number).action == KILL_PROCESS
    # On old kernels, the numbers 512 to 547, such as execve (520), made x32 calls even without the
    # x32 bit.
    for number in range(512, 548):
        assert run(program, AUDIT_ARCH_X86_64, number).action == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_unknown_numbers_return_enosys(machine):
    filter_ = target(machine)
    known = set(TABLES[machine].values())
    for number in set(range(1024)) - known:
        assert run(filter_.program, filter_.arch, number).action == ENOSYS


# This list deliberately repeats the names in `seccomp_rules`, so that a test fails if one of them
# is removed there.
ALWAYS = """
    io_uring_setup io_uring_enter io_uring_register ptrace process_vm_readv process_vm_writev
    process_madvise process_mrelease kcmp bpf perf_event_open keyctl add_key request_key userfaultfd
    mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
    mount_setattr statmount listmount unshare setns init_module file_setattr finit_module delete_module kexec_load
    kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd open_by_handle_at
    name_to_handle_at pidfd_getfd settimeofday clock_settime adjtimex clock_adjtime syslog vhangup
    iopl ioperm modify_ldt nfsservctl lookup_dcookie sethostname setdomainname sysfs ustat uselib
    move_pages migrate_pages fanotify_init fanotify_mark memfd_secret lsm_set_self_attr
    create_module get_kernel_syms query_module io_setup
""".split()  # noqa: SIM905
WITHOUT_NAMESPACES = """
    chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat setxattr lsetxattr fsetxattr
    setxattrat removexattr lremovexattr fremovexattr removexattrat utime utimes utimensat futimesat
    shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr pidfd_send_signal
    inotify_add_watch inotify_init inotify_init1 getxattr lgetxattr listxattr llistxattr
    getxattrat listxattrat
""".split()  # noqa: SIM905


@pytest.mark.parametrize("machine", MACHINES)
def test_without_namespaces_no_file_is_opened_neither_for_reading_nor_for_writing(machine):
    """Check that files cannot be opened with the access mode 3 if there are no namespaces. This
    mode means neither reading nor writing, and Landlock does not check it.
    """
    for name, position in (("open", 1), ("openat", 2)):
        for namespaces in (True, False):
            filter_ = target(machine, namespaces=namespaces)
            if name not in filter_.table:
                continue
            for mode in range(4):
                for word in (mode, mode | 0o2000000, mode | JUNK):
                    arguments = [0] * 4
                    arguments[position] = word
                    expected = EPERM if mode == 3 and not namespaces else ALLOW
                    assert filter_(name, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_set_id_modes_never_reach_the_supervisor(machine):
    filter_ = target(machine, namespaces=False, file_changes=True)
    for name, position in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        if name not in filter_.table:
            continue
        for mode, expected in ((0o755, NOTIFY), (0o1777, NOTIFY), (0o4755, EPERM), (0o2755, EPERM)):
            for word in (mode, mode | JUNK):
                arguments = [0] * 4
                arguments[position] = word
                assert filter_(name, *arguments) == expected, (name, oct(mode))


def test_the_lists_of_denied_calls_are_complete():
    assert sorted(seccomp_rules.DENIED) == sorted(ALWAYS)
    assert sorted(seccomp_rules.DENIED_WITHOUT_NAMESPACES) == sorted(WITHOUT_NAMESPACES)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_denied_calls_are_denied_with_every_option(machine, options):
    filter_ = target(machine, **options)
    for name in ALWAYS:
        if name in TABLES[machine]:
            assert filter_(name) == EPERM, name
            assert filter_(name, *[(1 << 64) - 1] * 6) == EPERM, name
    assert filter_("clone3") == ENOSYS
    for name in (
        "read",
        "write",
        "futex",
        "mmap",
        "openat",
        "landlock_restrict_self",
        "memfd_create",
    ):
        assert filter_(name) == ALLOW, name


def test_every_denied_name_is_a_syscall_of_a_machine():
    known = {name for table in TABLES.values() for name in table}
    listed = {
        *seccomp_rules.DENIED,
        *seccomp_rules.DENIED_WITHOUT_NAMESPACES,
        *seccomp_init_rules.init_rules(),
    }
    listed |= set(seccomp_rules.target_rules(**OPTIONS[1]))
    assert listed - known == set()


CLONE_FLAGS = {
    "NEWTIME": 0x80, "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000,
    "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000,
}  # fmt: skip
PTHREAD = 0x3D0F00  # the flags with which glibc starts threads
FORK = 0x1200011  # the flags with which glibc forks: CHILD_SETTID, CHILD_CLEARTID, SIGCHLD
SPAWN = 0x4111  # the flags of glibc's posix_spawn: CLONE_VM, CLONE_VFORK, SIGCHLD


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("junk", [0, JUNK])
def test_clone_always_makes_threads_and_makes_processes_only_if_allowed(machine, junk):
    threads, processes = target(machine), target(machine, subprocess=True)
    assert threads("clone", PTHREAD | junk) == processes("clone", PTHREAD | junk) == ALLOW
    for flags in (FORK, SPAWN, 17, 0):
        assert threads("clone", flags | junk) == EPERM
        assert processes("clone", flags | junk) == ALLOW
    # The kernel ignores the high word of the flags, so CLONE_THREAD there does not make a thread.
    assert threads("clone", FORK | 0x10000 << 32) == EPERM


@pytest.mark.parametrize("flag", CLONE_FLAGS.values(), ids=CLONE_FLAGS.keys())
@pytest.mark.parametrize("machine", MACHINES)
def test_clone_cannot_make_namespaces(machine, flag):
    for subprocess in (False, True):
        filter_ = target(machine, subprocess=subprocess)
        for base in (PTHREAD, FORK, SPAWN, 0):
            assert filter_("clone", base | flag) == EPERM
            assert filter_("clone", base | flag | JUNK) == EPERM


def test_fork_and_vfork_are_denied_like_clone():
    for name in ("fork", "vfork"):
        assert target()(name) == EPERM
        assert target(subprocess=True)(name) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_exec_is_denied_if_any_bit_of_the_secret_cookie_is_wrong(machine):
    filter_ = target(machine, cookie=COOKIE)
    path = (0x1000, 0x2000, 0x3000)
    assert filter_("execve", *path, *COOKIE) == ALLOW
    assert filter_("execveat", *path, *COOKIE) == EPERM
    for place, bit in itertools.product(range(3), range(64)):
        wrong = [word ^ (1 << bit if index == place else 0) for index, word in enumerate(COOKIE)]
        assert filter_("execve", *path, *wrong) == EPERM
    for order in set(itertools.permutations(COOKIE)) - {COOKIE}:
        assert filter_("execve", *path, *order) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_without_a_cookie_exec_needs_the_subprocess_option(machine):
    for name in ("execve", "execveat"):
        for args in ((0,) * 6, (0, 0, 0, *COOKIE)):
            assert target(machine)(name, *args) == EPERM
            assert target(machine, subprocess=True)(name, *args) == ALLOW


FLAGS = 0o2000000 | 0o4000  # SOCK_CLOEXEC, SOCK_NONBLOCK
STREAM, DGRAM, RAW, RDM, SEQPACKET, DCCP, PACKET = 1, 2, 3, 4, 5, 6, 10


@pytest.mark.parametrize("family", [2, 10])
@pytest.mark.parametrize("junk", [0, JUNK])
@pytest.mark.parametrize("flags", [0, FLAGS])
def test_internet_sockets_are_tcp_and_udp(family, junk, flags):
    def socket(kind, protocol, **options):
        return target(**options)("socket", family | junk, kind | flags | junk, protocol | junk)

    for kind, protocol in ((STREAM, 0), (STREAM, 6), (DGRAM, 0), (DGRAM, 17)):
        assert socket(kind, protocol) == ALLOW
        assert socket(kind, protocol, namespaces=False) == EPERM
    tcp, icmp, udp, icmpv6, sctp, udplite, smc, mptcp = 6, 1, 17, 58, 132, 136, 256, 262
    for protocol in (icmp, udp, icmpv6, sctp, udplite, smc, mptcp, 255):
        assert socket(STREAM, protocol) == EPROTONOSUPPORT
    for protocol in (icmp, tcp, icmpv6, sctp, udplite, smc, mptcp, 255):
        assert socket(DGRAM, protocol) == EPROTONOSUPPORT
    # For example, AF_INET with SOCK_PACKET would make an AF_PACKET socket.
    for kind in (0, RAW, RDM, SEQPACKET, DCCP, PACKET, 15):
        for protocol in (0, 6, 17, 255):
            assert socket(kind, protocol) == EPROTONOSUPPORT


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize("junk", [0, JUNK])
def test_netlink_is_for_routes_only(namespaces, junk):
    filter_ = target(namespaces=namespaces)
    assert filter_("socket", 16 | junk, RAW, 0 | junk) == ALLOW
    for protocol in range(1, 32):
        assert filter_("socket", 16 | junk, RAW, protocol | junk) == EPROTONOSUPPORT


@pytest.mark.parametrize("namespaces", [True, False])
def test_other_socket_families_look_absent(namespaces):
    filter_ = target(namespaces=namespaces, unix_sockets=True)
    # Most families look absent, for example AF_PACKET (17), AF_ALG (38), AF_VSOCK (40) and AF_SMC
    # (43). The exceptions are AF_UNIX (1), AF_INET (2), AF_INET6 (10) and AF_NETLINK (16).
    for family in set(range(64)) - {1, 2, 10, 16}:
        for kind in (STREAM, DGRAM, RAW, SEQPACKET):
            assert filter_("socket", family, kind, 0) == EAFNOSUPPORT
            assert filter_("socketpair", family, kind, 0) == EAFNOSUPPORT


@pytest.mark.parametrize("junk", [0, JUNK])
@pytest.mark.parametrize("flags", [0, FLAGS])
def test_unix_sockets_need_permission_and_only_stream_pairs_exist(junk, flags):
    closed, opened = target(), target(unix_sockets=True)
    for kind in (STREAM, DGRAM, RAW, SEQPACKET):
        args = (1 | junk, kind | flags | junk, 0)
        assert closed("socket", *args) == EPERM
        assert opened("socket", *args) == opened("socketpair", *args) == ALLOW
        # Pairs of datagram sockets are denied, because the target could connect one of them to
        # another socket on the host. For unix sockets, SOCK_RAW means SOCK_DGRAM.
        assert closed("socketpair", *args) == (ALLOW if kind in {STREAM, SEQPACKET} else EPERM)


def test_tcp_cannot_be_turned_into_smc():
    filter_ = target()
    assert filter_("setsockopt", 3, 6, 31) == EPERM
    assert filter_("setsockopt", 3, 6 | JUNK, 31 | JUNK) == EPERM
    assert filter_("setsockopt", 3, 6, 1) == ALLOW  # TCP_NODELAY
    assert filter_("setsockopt", 3, 1, 31) == ALLOW


TIOCSTI, TIOCLINUX, TIOCSETD, TIOCGWINSZ, FIONREAD = 0x5412, 0x541C, 0x5423, 0x5413, 0x541B
TIOCSWINSZ = 0x5414
BTRFS_IOC_SNAP_CREATE_V2, BTRFS_IOC_INO_LOOKUP = 0x50009417, 0xD0009412
OCFS2_IOC_REFLINK = ord("o") << 8 | 4 | 24 << 16 | 1 << 30  # _IOW('o', 4, three 64-bit numbers)
FICLONE, FICLONERANGE, FIDEDUPERANGE = 0x40049409, 0x4020940D, 0xC0189436


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize("junk", [0, JUNK])
def test_dangerous_ioctls_are_denied(machine, namespaces, junk):
    filter_ = target(machine, namespaces=namespaces)
    changes = (0x40086602, 0x401C5820, 0x40806685, 0x800C6613, 0x40086604, 0x40087602)
    terminal = (TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSWINSZ)
    keys = (0xC0506617, 0xC0406618, 0xC0406619)
    others = (BTRFS_IOC_SNAP_CREATE_V2, BTRFS_IOC_INO_LOOKUP, OCFS2_IOC_REFLINK)
    for command in (*terminal, *changes, *keys, *others):
        assert filter_("ioctl", 0, command | junk) == EPERM
    for command in (TIOCGWINSZ, FIONREAD, FICLONE, FICLONERANGE, FIDEDUPERANGE, 0x5401):
        assert filter_("ioctl", 0, command | junk) == ALLOW
    for command in (0x8901, 0x8902):
        assert filter_("ioctl", 0, command | junk) == (ALLOW if namespaces else EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_personality_cannot_turn_off_address_randomization(machine):
    filter_ = target(machine)
    for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
        assert filter_("personality", value) == ALLOW
    for value in (0x0040000, 0x0100000, 0x0200000, 0x0400000, 0x0040008, 0x0040000 | JUNK, 1):
        assert filter_("personality", value) == EPERM


@pytest.mark.parametrize(("name", "index"), [("mknod", 1), ("mknodat", 2)])
@pytest.mark.parametrize("junk", [0, JUNK, 0xABCD0000])  # the kernel reads only 16 bits of the mode
def test_device_files_cannot_be_made(name, index, junk):
    for kind, expected in (
        (0, ALLOW), (0x1000, ALLOW), (0x8000, ALLOW), (0x2000, EPERM), (0x6000, EPERM), (0x4000, EPERM),
    ):  # fmt: skip
        args = [0] * index + [kind | 0o644 | junk]
        assert target()(name, *args) == expected


def test_the_target_cannot_install_a_second_listener():
    filter_ = target()
    assert filter_("seccomp", 1, 0) == ALLOW
    assert filter_("seccomp", 1, 1 | 4) == ALLOW
    assert filter_("seccomp", 1, 8) == filter_("seccomp", 1 | JUNK, 0xFF | JUNK) == EPERM
    assert filter_("seccomp", 3, 0) == ALLOW  # GET_NOTIF_SIZES


def test_dangerous_prctl_options_are_denied():
    for namespaces in (True, False):
        filter_ = target(namespaces=namespaces)
        assert filter_("prctl", 35) == filter_("prctl", 62) == filter_("prctl", 35 | JUNK) == EPERM
        assert filter_("prctl", 1) == (ALLOW if namespaces else EPERM)  # PR_SET_PDEATHSIG
        for option in (4, 15, 22, 38, 59):
            assert filter_("prctl", option) == ALLOW


FIRST = (
    "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "prlimit64", "sched_setscheduler",
    "sched_setparam", "sched_setattr", "sched_setaffinity",
)  # fmt: skip


ADJUSTING = FIRST[5:]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("namespaces", [True, False])
def test_file_leases_and_renames_that_leave_a_whiteout_are_denied(machine, namespaces):
    filter_ = target(machine, namespaces=namespaces)
    lease, get_lease, whiteout = 1024, 1025, 4
    assert filter_("fcntl", 3, lease, 0) == filter_("fcntl", 3, lease | JUNK, 1) == EPERM
    assert filter_("fcntl", 3, get_lease) == filter_("fcntl", 3, 6, 0) == ALLOW
    for flags in range(8):
        wanted = EPERM if flags & whiteout else ALLOW
        assert filter_("renameat2", 0, 0, 0, 0, flags) == wanted
        assert filter_("renameat2", 0, 0, 0, 0, flags | JUNK) == wanted


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("tier", [{"namespaces": True}, {"namespaces": False, "own_pid": OWN}])
@pytest.mark.parametrize("subprocess", [True, False])
def test_a_target_paused_by_signals_cannot_make_the_kernel_send_it_sigcont(
    machine, tier, subprocess
):
    held = target(machine, subprocess=subprocess, duty_cycle=True, **tier)
    free = target(machine, subprocess=subprocess, **tier)
    setsig, pdeathsig, sigcont = 10, 1, 18
    for junk in (0, JUNK):
        assert held("fcntl", 3, setsig, sigcont | junk) == EPERM
        assert free("fcntl", 3, setsig, sigcont | junk) == ALLOW
        assert held("prctl", pdeathsig, sigcont | junk) == EPERM
        assert held("clone", 0x1200000 | sigcont | junk) == EPERM
    assert held("timer_create") == held("mq_notify") == EPERM
    assert free("timer_create") == ALLOW
    assert held("fcntl", 3, setsig, 10) == held("timerfd_create") == ALLOW
    assert held("clone", PTHREAD) == ALLOW
    assert held("clone", FORK) == free("clone", FORK) == (ALLOW if subprocess else EPERM)
    assert held("prctl", pdeathsig, 9) == (ALLOW if tier["namespaces"] else EPERM)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FIRST)
def test_without_a_pid_namespace_a_target_can_signal_only_itself(machine, name):
    anybody = target(machine)
    nobody, own = (target(machine, namespaces=False, own_pid=pid) for pid in (None, OWN))
    for pid in (1, OWN + 1, -1, -OWN, 0x7FFFFFFF):
        assert anybody(name, pid) == (EPERM if pid == 1 and name in ADJUSTING else ALLOW)
        assert nobody(name, pid) == own(name, pid) == EPERM
        assert own(name, (pid & 0xFFFFFFFF) | JUNK) == EPERM
        assert own(name, (pid & 0xFFFFFFFF) | OWN << 32) == EPERM
    assert nobody(name, 0) == own(name, 0) == own(name, OWN) == own(name, OWN | JUNK) == ALLOW
    assert nobody(name, OWN) == EPERM


@pytest.mark.parametrize(("name", "process"), [("setpriority", 0), ("ioprio_set", 1)])
def test_a_target_can_change_only_its_own_priority(name, process):
    filter_ = target(namespaces=False, own_pid=OWN)
    for which in (0, 1, 2, 3):
        for who in (0, OWN, 1, -1):
            allowed = which == process and who in {0, OWN}
            assert filter_(name, which, who) == (ALLOW if allowed else EPERM)
            of_init = who == 1 or which == {"setpriority": 2, "ioprio_set": 3}[name]
            assert target()(name, which, who) == (EPERM if of_init else ALLOW)
            assert target()(name, which | JUNK, (who & 0xFFFFFFFF) | JUNK) == (
                EPERM if of_init else ALLOW
            )


def test_the_owner_of_a_descriptor_can_only_be_the_target():
    filter_ = target(namespaces=False, own_pid=OWN)
    setown, setown_ex, setsig = 8, 15, 10
    assert filter_("fcntl", 3, setown, 0) == filter_("fcntl", 3, setown, OWN) == ALLOW
    for pid in (1, -1, -OWN, OWN + 1):
        assert filter_("fcntl", 3, setown, pid) == EPERM
        assert filter_("fcntl", 3, setown | JUNK, pid) == EPERM
        assert target()("fcntl", 3, setown, pid) == ALLOW
    assert filter_("fcntl", 3, setown_ex, 0) == EPERM
    assert filter_("fcntl", 3, setsig, 9) == filter_("fcntl", 3, 2, 1) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_landlock_does_not_control_are_denied(machine):
    inside, outside = target(machine, namespaces=False), target(machine)
    for name in WITHOUT_NAMESPACES:
        if name in TABLES[machine]:
            assert inside(name) == (EOPNOTSUPP if "xattr" in name else EPERM), name
            assert inside(name, *[(1 << 64) - 1] * 6) == inside(name), name
            assert outside(name) == ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_init_can_only_wait(machine):
    filter_ = Filter(machine, seccomp_init_rules.compile_filter(machine))
    for name in ("read", "write", "ppoll", "wait4", "kill", "exit_group", "rt_sigreturn"):
        assert filter_(name) == ALLOW
    for name in set(TABLES[machine]) - set(seccomp_init_rules.init_rules()):
        assert filter_(name) == KILL_PROCESS, name
    for name in ("mmap", "mprotect"):
        for prot, expected in ((0, ALLOW), (3, ALLOW), (4, KILL_PROCESS), (7 | JUNK, KILL_PROCESS)):
            assert filter_(name, 0, 4096, prot) == expected
    assert filter_("fcntl", 0, 3) == ALLOW
    assert filter_("fcntl", 0, 8, 1) == KILL_PROCESS
    assert run(filter_.program, filter_.arch, 1023).action == KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frequent_calls_are_cheap_and_read_no_arguments(machine, options):
    """Check that the filter does not read the arguments of frequent calls. The kernel can then
    allow these calls by looking at a bitmap, without running the filter.
    """
    filter_ = target(machine, **options)
    for name in ("read", "write", "futex", "mmap", "getppid", "epoll_pwait", "recvfrom"):
        outcome = run(filter_.program, filter_.arch, TABLES[machine][name])
        assert outcome.action == ALLOW
        assert not outcome.arguments
        assert outcome.executed <= 13


def test_every_denied_call_has_a_reason_and_every_option_changes_the_filter():
    rules = {
        options: seccomp_rules.target_rules(
            subprocess=options[0], unix_sockets=options[1], namespaces=options[2], cookie=None
        )
        for options in itertools.product((False, True), repeat=3)
    }
    assert len({str(one) for one in rules.values()}) == 8
    reasons = {**seccomp_rules.DENIED, **seccomp_rules.DENIED_WITHOUT_NAMESPACES}
    assert all(reasons.values())
    assert set(reasons) <= set(rules[False, False, False])


@pytest.mark.parametrize("machine", MACHINES)
def test_only_opens_that_create_a_file_are_notified(machine):
    passed = target(machine, notices=True, cookie=COOKIE)
    writing, truncating, creating = 1, 0o1001, 0o101
    assert passed("openat", 0, 0, 0, 0) == ALLOW
    assert passed("openat", 0, 0, truncating, 0) == ALLOW
    assert passed("openat", 0, 0, writing, 0) == ALLOW
    assert passed("openat", 0, 0, creating, 0o644) == NOTIFY
    assert passed("openat", 0, 0, creating, 0o4755) == EPERM
    assert passed("mkdirat", 0, 0, 0o755) == NOTIFY
    assert target(machine, cookie=COOKIE)("openat", 0, 0, creating, 0o644) == ALLOW


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(KeyError):
        compiled("riscv64", subprocess=True, unix_sockets=True, namespaces=True, cookie=None)


def brokered(machine, **changes):
    options = {"subprocess": True, "namespaces": False, "own_pid": OWN, "broker": True, **changes}
    return target(machine, **options)


@pytest.mark.parametrize("machine", MACHINES)
def test_only_brokered_internet_sockets_exist(machine):
    """Check that the target can make TCP sockets, that calls for datagram sockets go to the
    supervisor, and that all other internet sockets are denied.
    """
    held = brokered(machine)
    for family in (2, 10):
        for flags in (0, 0o4000, 0o2000000, JUNK):
            assert held("socket", family, 1 | flags, 0) == ALLOW
            assert held("socket", family, 1 | flags, 6) == ALLOW
            assert held("socket", family, 2 | flags, 0) == NOTIFY
            assert held("socket", family, 2 | flags, 17) == NOTIFY
        for kind, protocol in ((1, 262), (1, 132), (2, 136), (2, 1), (3, 6), (5, 132), (10, 768)):
            assert held("socket", family, kind, protocol) == EPROTONOSUPPORT
    assert {held("socket", 1, kind, 0) for kind in (1, 2, 3, 5)} == {EPERM}
    assert held("socket", 17, 3, 0) == EAFNOSUPPORT


@pytest.mark.parametrize("machine", MACHINES)
def test_brokered_unix_sockets_are_streams(machine):
    """Check that unix datagram sockets are denied. The supervisor checks an address only when a
    socket connects to it, but each datagram could name another address.
    """
    held = brokered(machine, unix_sockets=True)
    assert (held("socket", 1, 1, 0), held("socket", 1, 5, 0)) == (ALLOW, ALLOW)
    for call in ("socket", "socketpair"):
        assert {held(call, 1, kind, 0) for kind in (2, 3)} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_no_flag_of_a_send_can_connect_a_socket(machine):
    held = brokered(machine)
    fast_open, none = 0x20000000, errno_action(95)
    for call, position in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        for junk in (0, JUNK):
            before = (3,) + (1,) * (position - 1)
            assert held(call, *before, junk | fast_open | 0x40) == none
            assert held(call, *before, junk | 0x4040) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_only_harmless_socket_options_can_be_set(machine):
    """Set options that connect or route a socket, mark it, share its port or change its protocol.
    Each call must fail as if the option did not exist.
    """
    held = brokered(machine)
    absent = errno_action(92)
    denied = {
        "TCP_REPAIR": (6, 19),
        "TCP_REPAIR_QUEUE": (6, 20),
        "TCP_FASTOPEN": (6, 23),
        "TCP_FASTOPEN_CONNECT": (6, 30),
        "TCP_ULP": (6, 31),
        "TCP_FASTOPEN_KEY": (6, 33),
        "TCP_AO_ADD_KEY": (6, 38),
        "SO_REUSEPORT": (1, 15),
        "SO_BINDTODEVICE": (1, 25),
        "SO_ATTACH_FILTER": (1, 26),
        "SO_MARK": (1, 36),
        "SO_ATTACH_BPF": (1, 50),
        "SO_ATTACH_REUSEPORT_CBPF": (1, 51),
        "IP_OPTIONS": (0, 4),
        "IP_RETOPTS": (0, 7),
        "IP_TRANSPARENT": (0, 19),
        "IP_ADD_MEMBERSHIP": (0, 35),
        "IPV6_ADDRFORM": (41, 1),
        "IPV6_ADD_MEMBERSHIP": (41, 20),
        "IPV6_RTHDR": (41, 57),
        "IPV6_TRANSPARENT": (41, 75),
    }
    for option, (level, name) in denied.items():
        for junk in (0, JUNK):
            assert held("setsockopt", 3, junk | level, junk | name) == absent, option
    for level, name in ((1, 2), (1, 9), (6, 1), (6, 18), (0, 1), (41, 26)):
        assert held("setsockopt", 3, level, name) == ALLOW
    assert held("setsockopt", 3, 0, 11) == errno_action(0)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_target_cannot_install_a_listener_with_a_broker(machine):
    """Check that the target cannot install its own listener. The kernel asks only the newest
    listener, so the target could allow itself connections that the supervisor would deny.
    """
    held = brokered(machine)
    for flags in (8, 8 | 32, 8 | 1 | JUNK):
        for operation in (1, 1 | JUNK):
            assert held("seccomp", operation, flags) == EPERM
    assert held("seccomp", 1, 1) == ALLOW
