"""Try system calls that could bypass the walls. Each call must fail inside with the expected errno,
and work outside.
"""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import signal
import subprocess

import pytest
from attempts import (
    BOTH_TIERS,
    PRELUDE,
    by_a_grandchild,
    by_tier,
    everywhere,
    inside,
    outside,
)

DENIED = """
def nothing(*arguments):
    return lambda: call(*arguments)

def traced():
    call("ptrace", 0, 0, 0, 0)

def remote(name):
    # Reads the process's own memory by its own pid, the simplest case.
    kept = ctypes.create_string_buffer(b"kept", 8)
    into = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(into), 8)
    other = struct.pack("PN", ctypes.addressof(kept), 8)
    call(name, os.getpid(), local, 1, other, 1, 0)

def stolen():
    fd = call("pidfd_open", os.getpid(), 0)
    call("pidfd_getfd", fd, 0, 0)

def joined():
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
    call("setns", fd, 0x40000000)  # the wrong kind of namespace: EINVAL if the filter allows the call

def counted():
    attr = bytearray(112)
    struct.pack_into("=IIQ", attr, 0, 1, 112, 0)
    struct.pack_into("=Q", attr, 40, 1 << 5 | 1 << 6)  # neither kernel nor hypervisor
    call("perf_event_open", bytes(attr), 0, -1, -1, 0)

def handled():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    call("name_to_handle_at", -100, b"/usr", handle, ctypes.byref(ctypes.c_int()), 0)

def listened():
    call("prctl", 38, 1, 0, 0, 0)
    allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), 8)
    call("seccomp", 1, 8, struct.pack("@HP", 1, ctypes.addressof(allow)))

def whiteout():
    os.chdir(os.environ.get("TMPDIR", "/tmp"))
    path = f"whiteout-{os.getpid()}".encode()
    call("mknod", path, 0o020644, 0) if "mknod" in N else call("mknodat", -100, path, 0o020644, 0)
    os.unlink(path)

def born(name, *arguments):
    def act():
        pid = call(name, *arguments)
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    return act

def clone_args(flags):
    return ctypes.create_string_buffer(struct.pack("=11Q", flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)

answer = {
    "io_uring_setup": tried(nothing("io_uring_setup", 1, bytes(120))),
    "userfaultfd": tried(nothing("userfaultfd", 0o2000001)),
    "bpf": tried(nothing("bpf", 0, bytes(8), 1 << 20)),
    "perf_event_open": tried(counted),
    "keyctl": tried(nothing("keyctl", 0, -3, 1)),
    "add_key": tried(nothing("add_key", b"user", b"corral", b"x", 1, -2)),
    "request_key": tried(nothing("request_key", b"user", b"corral-absent", None, 0)),
    "process_vm_readv": tried(lambda: remote("process_vm_readv")),
    "process_vm_writev": tried(lambda: remote("process_vm_writev")),
    "kcmp": tried(nothing("kcmp", os.getpid(), os.getpid(), 0, 1, 1)),
    "pidfd_getfd": tried(stolen),
    "setns": tried(joined),
    "name_to_handle_at": tried(handled),
    "open_by_handle_at": tried(nothing("open_by_handle_at", -1, None, 0)),
    "umount2": tried(nothing("umount2", b"/nothing/here", 0)),
    "fanotify_init": tried(nothing("fanotify_init", 0x200, 0)),
    "modify_ldt": tried(nothing("modify_ldt", 0, bytes(16), 16)),
    "personality": tried(nothing("personality", 0x40000)),
    "seccomp listener": tried(listened),
    "whiteout": tried(whiteout),
    "clone NEWUSER": tried(born("clone", 0x10000000 | 17, 0, 0, 0, 0)),
    "clone NEWNET": tried(born("clone", 0x50000000 | 17, 0, 0, 0, 0)),
    "clone3": tried(born("clone3", clone_args(0), 88)),
    "clone3 NEWUSER": tried(born("clone3", clone_args(0x10000000), 88)),
    "clone3 thread": tried(nothing("clone3", clone_args(0x10000), 4)),
    "unshare nothing": tried(nothing("unshare", 0)),
    "unshare NEWUSER": tried(nothing("unshare", 0x10000000)),
    "ptrace": tried(traced),
}
if "modify_ldt" not in N:
    del answer["modify_ldt"]
"""
# Outside, these errors count as success, because the kernel returns them only after all permission checks.
OTHERWISE = {
    "bpf": "E2BIG",
    "request_key": "ENOKEY",
    "setns": "EINVAL",
    "open_by_handle_at": "EFAULT",
    "umount2": "ENOENT",
    "clone3 thread": "EINVAL",
}
# Some old or specially configured kernels refuse these calls to ordinary users, so a denial on such
# a kernel proves nothing.
REFUSED_ANYWAY = {
    "bpf": ("EPERM",),  # kernel.unprivileged_bpf_disabled
    "fanotify_init": ("EPERM",),  # before 5.13
    "kcmp": ("ENOSYS",),
    "open_by_handle_at": ("EPERM",),  # before 6.11
    # EACCES comes from kernel.perf_event_paranoid, and ENOSYS from user-mode Linux.
    "perf_event_open": ("EACCES", "ENOSYS"),
}


@BOTH_TIERS
def test_calls_that_could_bypass_the_walls_are_denied(user):
    expected = outside(user, DENIED)
    handle = expected.pop("name_to_handle_at")
    assert handle in {"done", "ENOTSUP"}  # some file systems have no file handles
    # Linux 6.12 looks at the bad descriptor before the bad pointer, so it fails with another errno.
    if expected["open_by_handle_at"] == "EBADF":
        expected["open_by_handle_at"] = "EFAULT"
    shown = {
        name: said for name, said in expected.items() if said not in REFUSED_ANYWAY.get(name, ())
    }
    assert {name: said for name, said in shown.items() if said != "done"} == {
        name: said for name, said in OTHERWISE.items() if name in shown
    }
    expected["name_to_handle_at"] = handle
    denied = {name: "ENOSYS" if name.startswith("clone3") else "EPERM" for name in expected}
    for seen in everywhere(user, DENIED):
        assert seen == denied


NESTED = """
def first():
    call("unshare", 0x10000000 | 0x20000)  # user and mount namespace

def mounted():
    call("mount", b"/tmp", b"/tmp", None, 0x5000, None)  # a recursive bind

def remounted():
    call("mount", None, b"/usr", None, 0x1000 | 0x20, None)

answer = {"unshare": tried(first)}
answer["mount"] = tried(mounted)
answer["open_tree"] = tried(lambda: call("open_tree", -100, b"/", 1 | 0x8000))
answer["fsopen"] = tried(lambda: call("fsopen", b"tmpfs", 0))
answer["mount_setattr"] = tried(lambda: call("mount_setattr", -100, b"/tmp", 0, bytes(32), 32))
answer["move_mount"] = tried(lambda: call("move_mount", -1, b"", -100, b"/tmp", 4))
answer["chroot"] = tried(lambda: call("chroot", b"/tmp"))
answer["escape"] = tried(lambda: [os.chdir(".."), os.stat("bin")] if answer["chroot"] == "done" else call("chroot", b"."))
"""


@BOTH_TIERS
def test_no_user_namespace_can_be_made_for_mounts(user):
    free = outside(user, NESTED)
    assert free.pop("move_mount") == "EBADF"
    assert free.pop("escape") in {"done", "ENOENT", "EACCES"}
    assert set(free.values()) == {"done"}
    for seen in everywhere(user, NESTED):
        assert set(seen.values()) == {"EPERM"}


@BOTH_TIERS
def test_pivot_root_is_denied(user):
    code = """
def pivoted():
    call("mount", b"/tmp", b"/tmp", None, 0x5000, None)
    os.chdir("/tmp")
    call("pivot_root", b".", b".")
first = tried(lambda: call("unshare", 0x10000000 | 0x20000))
answer = [first, tried(pivoted if first == "done" else lambda: call("pivot_root", b".", b"."))]
"""
    assert outside(user, code) == ["done", "done"]
    assert everywhere(user, code) == (["EPERM", "EPERM"],) * 2


@BOTH_TIERS
def test_mounts_cannot_be_changed_or_removed(user):
    """Try to remount, unmount and change the attributes of four mounts. Inside, every call must
    fail with EPERM. Sanity check: outside, a process in its own mount namespace can unmount what it
    has mounted.
    """
    code = """
answer = {path: [
    tried(lambda: call("mount", None, path.encode(), None, 0x1020, None)),
    tried(lambda: call("umount2", path.encode(), 2)),
    tried(lambda: call("mount_setattr", -100, path.encode(), 0, struct.pack("=QQQQ", 0, 1, 0, 0), 32)),
] for path in ("/", "/usr", "/proc", "/tmp")}
"""
    for seen in everywhere(user, code):
        assert seen == {path: ["EPERM"] * 3 for path in ("/", "/usr", "/proc", "/tmp")}
    unlocked = """
call("unshare", 0x10000000 | 0x20000)
answer = tried(lambda: [call("mount", b"/tmp", b"/tmp", None, 0x1000, None), call("umount2", b"/tmp", 2)])
"""
    assert outside(user, unlocked) == "done"


@BOTH_TIERS
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 and int 0x80 exist only on x86_64")
@pytest.mark.parametrize("flags", [(), ("--allow-subprocess",)], ids=["alone", "subprocess"])
def test_a_process_that_makes_x32_or_32_bit_system_calls_is_killed(user, flags):
    attempts = {
        "x32": "raw(N['getpid'] | 0x40000000)",
        "x32 unshare": "raw(N['unshare'] | 0x40000000, 0)",
        # mov eax, 20 (getpid of i386); int 0x80; ret
        "int 0x80": """
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
""",
    }
    if "User Mode Linux" in pathlib.Path("/proc/cpuinfo").read_text():
        # In user-mode Linux int 0x80 makes ordinary calls, and the seccomp filter sees them as
        # such, so the process is not killed.
        del attempts["int 0x80"]
    for name, code in attempts.items():
        # The output shows that the code reached the call, and that the call ended the process.
        source = f"import os, sys\n{PRELUDE}\nprint('ready', flush=True)\n"
        source += f"try:\n    exec({code!r})\nexcept OSError as error:\n    assert error.errno == errno.ENOSYS\nprint('alive', flush=True)"
        done = user.run(user.python, "-c", source, flags=flags)
        assert (done.returncode, done.stdout) == (128 + signal.SIGSYS, b"ready\n"), name
        if not flags:
            process = user.popen([user.python, "-c", source], stdout=subprocess.PIPE)
            out, _ = process.communicate()
            assert (process.returncode, out) == (0, b"ready\nalive\n"), name


def test_machine_code_with_ordinary_calls_runs(user):
    """Write harmless machine code to a page, and execute it. Sanity check for `int 0x80` in the
    test above: corral lets a target execute a page that it can write.
    """
    code = """
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b82a000000c3"))  # mov eax, 42; ret
answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    if platform.machine() != "x86_64":
        pytest.skip("the machine code is for x86_64")
    assert inside(user, code) == 42


@BOTH_TIERS
def test_a_target_has_no_capability_and_cannot_gain_one(user):
    code = """
status = dict(line.split(":\\t", 1) for line in got("/proc/self/status").splitlines() if ":\\t" in line)
answer = {name: status[name].strip() for name in
          ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")}
answer["securebits"] = call("prctl", 27, 0, 0, 0, 0)
answer["again"] = [tried(lambda: call("prctl", 28, 0, 0, 0, 0)), tried(lambda: os.setuid(0)), tried(lambda: os.setgroups([0]))]
"""
    none = "0" * 16
    # Without namespaces, an ordinary user cannot empty the bounding set, but no_new_privs makes the
    # set useless.
    bound = user.tier == "walled" or user.uid == 0
    # Changing to user id 0 fails with EINVAL in a user namespace, where this id is not mapped, and with EPERM elsewhere.
    root = by_tier(user, "EINVAL", "EPERM")
    for seen in (inside(user, code), by_a_grandchild(user, code)):
        assert bound == (seen.pop("CapBnd") == none)
        assert seen == {
            **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), none),
            "NoNewPrivs": "1",
            "Seccomp": "2",
            "securebits": 0b1110_1111 if bound else 0,
            "again": ["EPERM", root, "EPERM"],
        }
    free = outside(user, code)
    assert free["CapBnd"] != none
    assert (free["NoNewPrivs"], free["Seccomp"], free["securebits"]) == ("0", "0", 0)


@BOTH_TIERS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a setuid program of another user")
def test_a_setuid_program_gains_nothing(user, scratch):
    if os.statvfs(scratch).f_flag & os.ST_NOSUID:
        pytest.skip("the user's home is mounted nosuid")
    other = 0 if user.uid else 65532
    tool = scratch / "id"
    shutil.copy("/usr/bin/id", tool)
    os.chown(tool, other, other)
    tool.chmod(0o4755)
    code = "import subprocess\nanswer = int(subprocess.check_output([sys.argv[1], '-u']))"
    assert outside(user, code, str(tool)) == other
    flags = ("--allow-subprocess", "--read", str(scratch))
    own = inside(user, "answer = os.getuid()")
    assert own != other
    assert inside(user, code, str(tool), flags=flags) == own


@BOTH_TIERS
def test_the_users_keyring_is_not_visible(user):
    """Check that the target does not see the keys of the caller's session keyring in /proc/keys.
    Without corral, a child process inherits this keyring.
    """
    outer = """
import subprocess
call("keyctl", 1, None)  # makes a new session keyring
call("add_key", b"user", b"corral-token", b"secret", 6, -3)
answer = ["corral-token" in got("/proc/keys")]
look = "try: print('corral-token' in open('/proc/keys').read())\\nexcept PermissionError: print('closed')"
done = subprocess.run([*sys.argv[1:], look], capture_output=True, text=True, check=True)
answer.append(done.stdout.strip())
"""
    assert outside(user, outer, user.python, "-c") == [True, "True"]
    corral = user.corral_argv("run", "--", user.python, "-c")
    assert outside(user, outer, *corral) == [True, by_tier(user, "False", "closed")]
    # Without namespaces `--allow-subprocess` makes all of /proc visible. The target then sees the
    # descriptions of the user's keys, but cannot use the keys.
    named = user.tier == "bare" and user.uid == user.owner
    corral = user.corral_argv("run", "--allow-subprocess", "--", user.python, "-c")
    assert outside(user, outer, *corral) == [True, str(named)]


@BOTH_TIERS
def test_keys_of_encrypted_directories_cannot_be_changed(user, scratch):
    """Try to remove and add keys of encrypted directories. Without the seccomp filter, any
    descriptor on a file system would be enough to lock its encrypted directories.
    """
    code = """
BY_IDENTIFIER, ADD, REMOVE, REMOVE_ALL, STATUS = 2, 0xC0506617, 0xC0406618, 0xC0406619, 0xC080661A
there = os.open(sys.argv[1], os.O_RDONLY)
def asked(command):
    message = bytearray(struct.pack("=I", BY_IDENTIFIER) + bytes(124))
    return tried(lambda: call("ioctl", there, command, ctypes.addressof(ctypes.c_char.from_buffer(message))))
answer = [asked(command) for command in (ADD, REMOVE, REMOVE_ALL, STATUS)]
"""
    held = inside(user, code, str(scratch), flags=("--read", str(scratch)))
    free = outside(user, code, str(scratch))
    assert held == ["EPERM"] * 3 + free[3:]
    assert "EPERM" not in free
