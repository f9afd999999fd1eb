"""Run a virtual machine so that it cannot change the host: `enclosure.py WORK BINDS COMMAND...`

`rig.enclosed` starts this script in new mount and PID namespaces. The script makes all mounts
read-only, except for a tmpfs on WORK/memory. If root runs the script, it becomes a user who owns no
files. So a guest that escapes into this process can write only to the tmpfs.
"""

import ctypes
import os
import struct
import sys

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 0x2, 0x4, 0x1000, 0x4000
MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 1, -100, 0x8000
SYS_mount_setattr = 442
PR_SET_NO_NEW_PRIVS = 38
KEEPER = 65532
CONSOLE = 3  # a copy of stderr, because QEMU's -add-fd refuses descriptors 0 to 2

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: "str | bytes | int | None") -> None:
    encoded = [a.encode() if isinstance(a, str) else a for a in arguments]
    if getattr(libc, name)(*encoded) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def read_only(path: str) -> None:
    """Make a mount and all mounts below it read-only."""
    attributes = struct.pack("4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)
    call("syscall", SYS_mount_setattr, AT_FDCWD, path, AT_RECURSIVE, attributes, len(attributes))


def become_nobody() -> None:
    """If root started the machine, become a user who owns no files. If an ordinary user started it,
    change nothing, because that user's namespace has no other user id.
    """
    if os.stat("/").st_uid == 0:
        os.setgroups([])
        os.setresgid(KEEPER, KEEPER, KEEPER)
        os.setresuid(KEEPER, KEEPER, KEEPER)


def main() -> None:
    work, binds, *command = sys.argv[1:]
    for bind in binds.split(","):
        source, target = bind.split(":")
        call("mount", source, target, None, MS_BIND | MS_REC, None)
    read_only("/")
    memory = f"{work}/memory"
    # The tmpfs needs no size limit, because only the machine writes to it, and the machine's memory is limited.
    call("mount", "tmpfs", memory, "tmpfs", MS_NOSUID | MS_NODEV, "size=100%,mode=1777")
    child = os.fork()
    if child == 0:
        become_nobody()
        os.dup2(2, CONSOLE)
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": memory,
            "TMPDIR": memory,
            "LANG": "C.UTF-8",
        }
        os.execvpe(command[0], command, environment)
    # The machine is a child of this process and not PID 1 itself, because the kernel ignores the
    # SIGABRT with which a PID 1 tries to abort(). When this process ends, the kernel kills all
    # processes that the machine left behind.
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
