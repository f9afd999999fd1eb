"""Run as PID 1 of the virtual machines of `uml` and `qemu`: make the root writable, mount cgroup
v2, and run one command.

The machine starts `init.py JOB` with the system's Python and without other modules. JOB is a JSON
file. The machine's root is the host's root, mounted read-only. A machine of another architecture
has an unpacked Debian as its root instead (`foreign.py`). All writes go to a tmpfs overlay, which
is lost when the machine ends. If something fails, the machine prints the error and powers off.
"""

import ctypes
import fcntl
import json
import os
import pwd
import socket
import struct
import sys
import traceback
import tty

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND = 0x1, 0x2, 0x4, 0x1000
MNT_DETACH = 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
RB_POWER_OFF = 0x4321FEDC
SYS_finit_module, SYS_pivot_root = {"x86_64": (313, 155), "aarch64": (273, 41)}[os.uname().machine]

CGROUP = "/sys/fs/cgroup"
OVERLAY = "/mnt"
STAGE = "/srv"
# The disk with the homes: its name in user-mode Linux, and its name in QEMU.
DISKS = ("/dev/ubda", "/dev/vda")
DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: "str | int | None") -> None:
    encoded = [a.encode() if isinstance(a, str) else a for a in arguments]
    if getattr(libc, name)(*encoded) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(kind: str, target: str, options: "str | None" = None, flags: int = 0) -> None:
    os.makedirs(target, exist_ok=True)
    call("mount", kind, target, kind, flags, options)


def load_modules(paths: "list[str]") -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        call("syscall", SYS_finit_module, file, "", 0)
        os.close(file)


def enter_overlay(lower: str, stage: str) -> None:
    """Mount a writable overlay on `lower`, and switch to it as the new root.

    This uses pivot_root, because the kernel refuses user namespaces in a chroot.
    """
    mount("tmpfs", OVERLAY, "mode=755")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{OVERLAY}/{name}")
    layers = f"lowerdir={lower},upperdir={OVERLAY}/upper,workdir={OVERLAY}/work"
    root = f"{OVERLAY}/root"
    call("mount", "overlay", root, "overlay", 0, layers)
    os.makedirs(root + STAGE, exist_ok=True)
    call("mount", stage, root + STAGE, None, MS_BIND, None)
    os.chdir(root)
    call("syscall", SYS_pivot_root, ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/")


def mount_kernel_filesystems() -> None:
    mount("proc", "/proc", None, MS_NOSUID | MS_NODEV)
    mount("sysfs", "/sys", None, MS_NOSUID | MS_NODEV)
    mount("devtmpfs", "/dev", "mode=755", MS_NOSUID)
    mount("devpts", "/dev/pts", "mode=620,ptmxmode=666", MS_NOSUID)
    for path, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), ("/run", "755"), ("/root", "700")):
        mount("tmpfs", path, f"mode={mode}", MS_NOSUID | MS_NODEV)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        if not os.path.lexists(f"/dev/{name}"):
            os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")


def leave_the_hosts_container() -> None:
    """Remove Docker's file /.dockerenv from the machine's root. If the host is a container, corral
    would otherwise mistake the machine for a container too.
    """
    if os.path.exists("/.dockerenv"):
        os.unlink("/.dockerenv")


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        up = struct.unpack("16sh14x", flags)[1] | IFF_UP
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", up))


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def mount_cgroups() -> None:
    """Mount cgroup v2, enable every controller below its root, and move all processes out of the
    root, as systemd does.

    Kernel threads stay in the root, because the `cpu` controller accepts real-time threads only
    there. Unlike other processes, they do not keep the kernel from enabling controllers.
    """
    mount("cgroup2", CGROUP)
    os.mkdir(f"{CGROUP}/init")
    write(f"{CGROUP}/init/cgroup.procs", "0")
    enable_controllers(CGROUP)


def set_sysctls(values: "dict[str, str]") -> None:
    for name, value in values.items():
        write(f"/proc/sys/{name.replace('.', '/')}", value)


def enable_controllers(group: str) -> None:
    with open(f"{group}/cgroup.controllers", encoding="ascii") as controllers:
        for name in controllers.read().split():
            write(f"{group}/cgroup.subtree_control", f"+{name}")


def session(uid: int) -> str:
    """Make and return the cgroup for the command. An ordinary user's cgroup is in a delegated subtree."""
    slice_ = f"{CGROUP}/user-{uid}"
    os.mkdir(slice_)
    os.mkdir(f"{slice_}/session")
    if uid:
        for group in (slice_, f"{slice_}/session"):
            for name in DELEGATED:
                os.chown(os.path.join(group, name), uid, uid)
    return f"{slice_}/session"


def home(uid: int) -> str:
    """Return the user's home directory. Create the user's account and home if they are missing."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        with open("/etc/passwd", "a", encoding="utf-8") as file:
            file.write(f"rig{uid}:*:{uid}:{uid}::/home/rig{uid}:/bin/sh\n")
    path = pwd.getpwuid(uid).pw_dir
    if uid:
        os.makedirs(path, exist_ok=True)
        os.chown(path, uid, uid)
    return path


def home_on_disk(directory: str, uid: int) -> None:
    for disk in filter(os.path.exists, DISKS):
        # Do not add MS_NOSUID, because tests make setuid programs in the home.
        call("mount", disk, directory, "ext4", MS_NODEV, None)
        os.chown(directory, uid, uid)


def run(job: "dict") -> int:
    uid = job["as_user"] or 0
    group, directory = session(uid), home(uid)
    home_on_disk(directory, uid)
    environment = {"HOME": directory, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    child = os.fork()
    if child == 0:
        try:
            write(f"{group}/cgroup.procs", "0")
            os.setsid()
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.umask(0o022)
            os.execvpe(job["command"][0], job["command"], {**environment, **job["env"]})
        except BaseException:  # noqa: BLE001 - no other process would print it
            traceback.print_exc()
        finally:
            os._exit(127)
    while True:
        pid, status = os.wait()  # PID 1 also reaps orphans
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def take_output(path: str) -> None:
    output = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    tty.setraw(output)
    for fd in (1, 2):
        os.dup2(output, fd)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    try:
        load_modules(job["modules"])
        enter_overlay(job["root"], job["stage"])
        mount_kernel_filesystems()
        leave_the_hosts_container()
        take_output(job["output"])
        loopback_up()
        mount_cgroups()
        set_sysctls(job["sysctls"])
        returncode = run(job)
        os.write(1, f"\n{job['token']} {returncode}\n".encode())
    except BaseException:  # noqa: BLE001 - no other process would print it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os.sync()
        libc.reboot(RB_POWER_OFF)


if __name__ == "__main__":
    main()
