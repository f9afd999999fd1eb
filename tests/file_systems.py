"""Make real file systems for the tests, each mounted in a mount namespace that ends with the test.

`Mounted` keeps the namespace alive. A `Resident` is a user whose commands run in this namespace. Some file systems are
in an image, a file that is mounted through a loop device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from users import ORDINARY, User

if TYPE_CHECKING:
    from collections.abc import Iterator

POINT = "/mnt"
WORK = "/var/tmp"
ADMIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
TARGET_OF_ROOT = 1879097344  # the user id that corral gives root's target (user_ids.unused_id)
LAYERS = "mkdir lower upper work && "
LAYERED = "lowerdir=lower,upperdir=upper,workdir=work /mnt"
FUSE = "mkdir under && chmod 755 under && "
# On some hosts ordinary users cannot open /dev/fuse, so mount one that they can open. fusermount
# needs a user with a name, so mount a passwd that contains one.
OWN_FUSE = (
    "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && mkdir under && "
    "cp /etc/passwd . && echo fuse:x:{0}:{0}::/:/bin/sh >>passwd && mount --bind passwd /etc/passwd && "
    "mount -t tmpfs -o mode=1777 tmpfs /mnt && chown {0} under /mnt && "
    "setpriv --reuid={0} --regid={0} --clear-groups bindfs --no-allow-other under /mnt"
)
# Mount NFS from the same machine. nfsdcld tracks the server's clients, so that the server can end
# its grace period early. The mount is soft, because a process that uses a hard mount after its
# server has ended waits forever, and cannot be killed.
NFS = (
    "truncate -s 64M image && mke2fs -qF -t ext4 image && mkdir export && mount -o loop image export && chmod 1777 export && "
    "mount -t nfsd nfsd /proc/fs/nfsd && mkdir -p /var/lib/nfs/rpc_pipefs /var/lib/nfs/nfsdcld && "
    "mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs && : >/var/lib/nfs/etab && "
    "echo 10 >/proc/fs/nfsd/nfsv4gracetime && echo 10 >/proc/fs/nfsd/nfsv4leasetime && "
    "exportfs -o rw,{squash},insecure,no_subtree_check,fsid=0 '*:'$PWD/export && rpc.mountd -N 3 && nfsdcld && "
    "rpc.nfsd -N 3 -U 1 && mount -t nfs4 -o vers=4.2,soft,timeo=100,retrans=2{options} 127.0.0.1:/ /mnt"
)
# diod needs a name for every user, so mount a passwd that contains the names. The mount is repeated
# until it works, because diod returns before its server listens.
DIOD = (
    "mkdir export && mount -t tmpfs -o size=64m,mode=1777 tmpfs export && cp /etc/passwd . && "
    f"for id in {ORDINARY} {TARGET_OF_ROOT}; do echo u$id:x:$id:$id::/:/bin/sh >>passwd; done && "
    "mount --bind passwd /etc/passwd && diod --no-auth --export=$PWD/export --listen=127.0.0.1:5640 && "
    "until mount -t 9p -o trans=tcp,port=5640,version=9p2000.L,uname=root,access=user,aname=$PWD/export 127.0.0.1 /mnt; "
    "do sleep 0.1; done"
)
MAX_SECONDS = 300
"""The timeout for one command on a file system, long enough for a slow machine."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system. Root runs `commands` in an empty directory to mount it at /mnt.

    `closed_to_root` means that the file system has no idmapped mounts. Root's target can then use only files that are
    open to the target's own user id.

    If the host cannot mount the file system, `machine` is a virtual machine that can. If root may
    not make files at /mnt, `behind` is the directory that is mounted there, and root makes the
    files in that directory. `quota` means that the ordinary user has a quota.
    """

    how: str
    commands: str
    closed_to_root: bool = False
    machine: str = ""
    behind: str = ""
    quota: bool = False


def image(
    how: str, make: str, size: str, *, options: str = "", after: str = "", **more
) -> FileSystem:
    mount = f"truncate -s {size} image && {make} image && mount -o loop{options} image /mnt"
    return FileSystem(how, mount + after, **more)


FILE_SYSTEMS = {
    "ext4": image("ext4 on a loop device", "mke2fs -qF -t ext4", "64M"),
    "btrfs": image("btrfs on a loop device", "mkfs.btrfs -q", "128M"),
    "xfs": image("xfs on a loop device", "mkfs.xfs -q", "320M"),
    "tmpfs": FileSystem("tmpfs", "mount -t tmpfs -o size=64m tmpfs /mnt"),
    "ramfs": FileSystem("ramfs", "mount -t ramfs ramfs /mnt", closed_to_root=True),
    "overlayfs": FileSystem(
        "overlayfs on ext4, as in containers",
        f"{LAYERS} mount -t overlay overlay -o {LAYERED}",
        closed_to_root=True,
    ),
    "fuse": FileSystem(
        "FUSE: bindfs, mounted by root for all users",
        f"{FUSE} bindfs -o allow_other,nonempty under /mnt",
        closed_to_root=True,
    ),
    "fuse-overlayfs": FileSystem(
        "fuse-overlayfs, as in rootless containers",
        f"{LAYERS} fuse-overlayfs -o allow_other,{LAYERED}",
        closed_to_root=True,
    ),
    "casefold": image(
        "ext4 with case-insensitive directories, on a loop device",
        "mke2fs -qF -t ext4 -O casefold",
        "64M",
        after=" && rmdir /mnt/lost+found && chattr +F /mnt",
        machine="qemu",
    ),
    "nfs": FileSystem(
        "NFS 4.2 from the same machine, without root_squash",
        NFS.format(squash="no_root_squash", options=""),
        closed_to_root=True,
        machine="uml",
    ),
    "nfs-root-squash": FileSystem(
        "NFS 4.2 from the same machine, with root_squash",
        NFS.format(squash="root_squash", options=",actimeo=0"),
        closed_to_root=True,
        machine="uml",
        behind="export",
    ),
    "ext4-quota": image(
        "ext4 on a loop device, with a quota for the ordinary user",
        "mke2fs -qF -t ext4 -O quota -E quotatype=usrquota",
        "64M",
        options=",usrquota",
        after=f" && setquota -u {ORDINARY} 30M 30M 900 900 /mnt",
        machine="uml",
        quota=True,
    ),
    "9p": FileSystem(
        "9p2000.L, served by diod on the same machine, with access=user",
        DIOD,
        closed_to_root=True,
        machine="uml",
    ),
}  # fmt: skip


OWN = FileSystem("FUSE, mounted by an ordinary user: closed to root", OWN_FUSE.format(ORDINARY))


class Mounted:
    """A mount namespace with a file system at /mnt."""

    def __init__(self, file_system: FileSystem, work: pathlib.Path) -> None:
        self.work = work
        self.quota = file_system.quota
        self.top = str(work / file_system.behind) if file_system.behind else POINT
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout
        self.holder.stdout.readline()
        try:
            self.shell(f"cd {work} && {file_system.commands}")
        except BaseException:
            self.close()
            raise

    def shell(self, commands: str) -> str:
        """Run commands as root in the namespace, and return their output. The output goes to a
        file, because FUSE servers that the commands start would keep a pipe open, and reading from
        it would not end.
        """
        with tempfile.TemporaryFile("w+") as said:
            argv = [*self.prefix("/"), "sh", "-ec", f"cd {POINT} 2>/dev/null || cd /; {commands}"]
            env = {**os.environ, "PATH": ADMIN}
            options = {"stderr": subprocess.STDOUT, "env": env, "timeout": MAX_SECONDS}
            status = subprocess.call(argv, stdout=said, **options)
            said.seek(0)
            text = said.read()
        assert not status, (commands, text)
        return text

    def prefix(self, directory: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", f"--wdns={directory}", "--"]

    def resident(self, user: User, *, home: str = "", package: str = "") -> Resident:
        where = pathlib.Path(home or user.home), pathlib.Path(package or user.package)
        found = Resident(user.name, user.uid, *where, user.tier)
        found.mounted = self
        return found

    def close(self) -> None:
        """End the namespace's last process. This removes the namespace's mounts and ends their FUSE
        servers.
        """
        unmount = [*self.prefix("/"), "umount", "-lR", POINT]
        subprocess.run(unmount, capture_output=True, check=False)
        self.holder.communicate()


class Resident(User):
    """A user whose commands run in the namespace of a `Mounted`."""

    mounted: Mounted

    def popen(self, argv, *, env=None, **options):
        directory = str(options.pop("cwd", self.home))
        ids = (f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups")
        become = ["setpriv", *ids] if self.uid else []
        # Change the directory as the user, because other users may not be able to enter it. On NFS
        # not even root can.
        enter = ["sh", "-c", 'cd "$0" 2>/dev/null || cd /; exec "$@"', directory]
        return subprocess.Popen(
            [*self.mounted.prefix("/"), *become, *enter, *argv],
            env=self.environment() if env is None else env,
            cwd="/",
            **options,
        )


@contextlib.contextmanager
def mounted(file_system: FileSystem) -> Iterator[Mounted]:
    work = pathlib.Path(tempfile.mkdtemp(prefix="corral-fs-", dir=WORK))
    work.chmod(0o755)
    there = None
    try:
        there = Mounted(file_system, work)
        yield there
    finally:
        if there:
            there.close()
        shutil.rmtree(work)
