"""Build the filesystem view: a private root that contains only granted paths.

Each mount gets its flags before it is attached, so no mount ever has too many rights. Sources and
mount points are opened without following symlinks. A source must still be the file that was at this
path when the policy was made. Mount points are made only on the sandbox's own tmpfs, so corral
never creates a directory on the host.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.abi import linux as abi
from corral.platforms.linux.descriptor_channel import DescriptorChannel
from corral.platforms.steps import unverified
from corral.record import record
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import Literal

    from corral.plan.model import Results, Stage

    BindAccess = Literal["read", "write", "device"]
    Role = Literal["", "repository", "named"]

BUILT_AT = "/tmp"  # noqa: S108 - any directory that exists: the new root is mounted over it
NO_LINKS = abi.RESOLVE_NO_SYMLINKS | abi.RESOLVE_NO_MAGICLINKS
CLONE_ALL = abi.OPEN_TREE_CLONE | abi.AT_RECURSIVE
ATTRIBUTES = {
    "read": abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV,
    "write": abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV,
    "device": abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NOEXEC,
}
MAX_PARENTS = 64
TRIED = "/.corral"
"""The symlink that the target's process tries to create, to check that the root is read-only."""
PRIVATE = "private-{}"
"""The name of a directory in the private space. The number is the directory's position in
`View.private`.
"""
BYTES_PER_INODE = 16384
"""The private space gets one inode for this many bytes. With more inodes, 300 000 empty files would
fit into a tmpfs of 16 MB, although each of them uses a kilobyte of kernel memory.
"""


@record
class Bind:
    """A path on the host to mount in the sandbox.

    `device` and `inode` identify the file that was at this path when the policy was made. They are
    0 for a system path, which is not checked. `covers` is true if masks hide mounts
    below the path. An idmapped mount of the path then leaves out all mounts below the path.
    """

    source: str
    target: str
    access: BindAccess = "read"
    device: int = 0
    inode: int = 0
    covers: bool = False


@record
class Mask:
    """A path in the sandbox to hide or protect.

    - A path with `hide` becomes an empty, read-only file or directory. A path with `protect`
      becomes read-only.
    - A grant below a masked path stays visible, because it is mounted later.
    - `role` is "repository" for a version-control directory. If the user granted such a directory
      by name, `role` is "named" for the masked files in it.
    """

    path: str
    kind: Literal["hide", "protect"]
    directory: bool
    role: Role = ""
    device: int = 0
    inode: int = 0


@record
class OpenedSources:
    """Init's descriptors of the sources to mount. The keys are paths on the host."""

    fds: dict[str, int]


@record
class DetachedTrees:
    """Detached mounts to use in place of sources. The keys are the sources' paths on the host."""

    fds: dict[str, int]


@record
class Sources:
    """Opens the sources of binds before init changes its ids.

    With the new ids init might not be allowed to open them.
    """

    name = "bind_sources"
    binds: tuple[Bind, ...]
    stage: Stage = "init"
    verify = unverified

    def describe(self) -> str:
        checked = sum(1 for bind in self.binds if bind.inode)
        return (
            f"open {len(self.binds)} sources without following links, {checked} compared by inode"
        )

    def apply(self, results: Results) -> None:
        abi.mount(None, "/", None, abi.MS_REC | abi.MS_PRIVATE, None)
        trees = _detached(results)
        binds = [bind for bind in self.binds if bind.source not in trees]
        results.add(OpenedSources(fds={bind.source: open_source(bind) for bind in binds}))


@record
class View:
    """Builds the private root and enters it.

    The `private` directories share one tmpfs of `size` bytes, so this size limits all of them
    together.

    `anchors` lists the directories in a write grant that contain a bind or a mask. corral binds
    each of them onto itself, because the kernel does not rename mount points. If the target could
    rename such a directory, programs on the host could find a different directory at its path.
    """

    name = "root_filesystem"
    has_lines = True
    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    private: tuple[str, ...]
    size: int
    masks: tuple[Mask, ...] = ()
    anchors: tuple[str, ...] = ()
    stage: Stage = "init"

    def describe(self) -> str:
        lines = ["private root:"]
        lines += [f"  {bind.access:7}{bind.target}" for bind in self.binds]
        lines += [f"  private {path}" for path in self.private]
        lines += [f"  link   {path} -> {target}" for path, target in self.links]
        lines += [f"  made   {path}" for path, _ in self.files]
        lines += [f"  {mask.kind:7}{mask.path}" for mask in self.masks]
        lines.append(f"  private space {self.size} bytes; the rest read-only; fresh /proc, hidepid")
        return "\n".join(map(printable, lines))

    def apply(self, results: Results) -> None:
        root = _NewRoot(self.size)
        for path, text in self.files:
            root.write(path, text)
        sources, trees = results.get(OpenedSources).fds, _detached(results)
        targets = {bind.target: bind for bind in self.binds}
        masks = {mask.path: mask for mask in self.masks}
        links = dict(self.links)
        paths = {*targets, *masks, *links, *self.private, *self.anchors}
        for path in sorted(paths, key=lambda path: (path.count("/"), path)):
            if path in targets:
                root.bind(targets[path], sources, trees)
            elif path in masks:
                root.mask(masks[path])
            elif path in self.anchors:
                root.anchor(path)
            elif path in links:
                root.link(path, links[path])
            else:
                root.private(path, self.private.index(path))
        root.proc()
        root.send_space(results.get(DescriptorChannel))
        root.enter()

    def verify(self, _results: Results) -> None:
        """Check that the root refuses writes and shows only the paths of this step, that the masks
        work, and that the private space is not larger than its limit.
        """
        try:
            # Do not test with mkdir(), because the filter may pass it to the supervisor, which
            # would deny it even on a writable root.
            os.symlink("none", TRIED)
        except OSError:
            pass
        else:
            raise OSError(0, "the root directory is writable")
        expected = {path.split("/")[1] for path in self._paths()} | {"proc"}
        foreign = set(os.listdir("/")) - expected
        if foreign:
            raise OSError(0, f"the root shows paths that were not granted: {sorted(foreign)}")
        for mask in self.masks:
            _check_mask(mask, [bind.target for bind in self.binds])
        free = os.statvfs(self.private[0])
        if free.f_blocks * free.f_frsize > self.size:
            raise OSError(0, "the private space is larger than its limit")

    def _paths(self) -> list[str]:
        named = [bind.target for bind in self.binds] + list(self.private)
        return named + [path for path, _ in self.links] + [path for path, _ in self.files]


def _check_mask(mask: Mask, binds: list[str]) -> None:
    top = f"{mask.path}/"
    named = {path[len(top) :].split("/")[0] for path in binds if path.startswith(top)}
    try:
        if mask.kind == "protect":
            if not _is_read_only(mask.path):
                raise OSError(0, "a protected file can be changed", mask.path)
            return
        shown = set(os.listdir(mask.path)) if mask.directory else os.stat(mask.path).st_size
    except (PermissionError, FileNotFoundError):
        return
    if shown and shown != named:
        raise OSError(0, "a masked secret can be read", mask.path)


def _is_read_only(path: str) -> bool:
    """Return whether the mount at `path` is read-only.

    Do not follow a symlink at `path`, because a protected symlink has its own mount.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return bool(os.statvfs(fd).f_flag & os.ST_RDONLY)
    finally:
        os.close(fd)


def open_source(bind: Bind) -> int:
    fd = abi.openat2(abi.AT_FDCWD, bind.source, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
    if bind.inode:
        seen = os.fstat(fd)
        if (seen.st_dev, seen.st_ino) != (bind.device, bind.inode):
            os.close(fd)
            raise OSError(0, "this is no longer the file that was granted", bind.source)
    return fd


def _detached(results: Results) -> dict[str, int]:
    found = results.find(DetachedTrees)
    return found.fds if found else {}


class _NewRoot:
    """The new root during its construction. Only this process can see it."""

    def __init__(self, size: int) -> None:
        inodes = str(max(1024, size // BYTES_PER_INODE))
        root = abi.fsmount("tmpfs", {"size": "4m", "nr_inodes": "16384", "mode": "0755"})
        abi.move_mount(root, abi.AT_FDCWD, BUILT_AT)
        os.close(root)
        self.root = os.open(BUILT_AT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        options = {"size": str(size), "nr_inodes": inodes, "mode": "0700"}
        space = abi.fsmount("tmpfs", options, attributes=ATTRIBUTES["write"])
        os.mkdir(".space", dir_fd=self.root)
        abi.move_mount(space, self.root, ".space")
        self.devices = {os.fstat(self.root).st_dev, os.fstat(space).st_dev}
        os.close(space)
        self.made = 0
        self.hidden: list[str] = []
        # Open descriptors of parent directories by path, so that each path is looked up only once.
        self.parents: dict[str, int] = {}
        self.own = {self.root}
        """The descriptors in `parents` that are on the sandbox's own tmpfs, not on the host."""

    def bind(self, bind: Bind, sources: dict[str, int], trees: dict[str, int]) -> None:
        tree = trees.pop(bind.source, -1)
        if tree < 0:
            tree = abi.open_tree(sources[bind.source], "", CLONE_ALL | abi.AT_EMPTY_PATH)
        self._attach(tree, bind.target, ATTRIBUTES[bind.access])

    def private(self, path: str, number: int) -> None:
        name = f".space/{PRIVATE.format(number)}"
        os.mkdir(name, 0o700, dir_fd=self.root)
        self._attach(abi.open_tree(self.root, name, CLONE_ALL), path, ATTRIBUTES["write"])

    def link(self, path: str, target: str) -> None:
        parent, name = self._parent(path)
        try:
            os.symlink(target, name, dir_fd=parent)
        except FileExistsError:
            if os.readlink(name, dir_fd=parent) != target:
                raise

    def write(self, path: str, text: str) -> None:
        parent, name = self._parent(path)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=parent)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def anchor(self, path: str) -> None:
        self._attach(self._clone(path), path, 0)

    def mask(self, mask: Mask) -> None:
        if any(mask.path.startswith(f"{path}/") for path in self.hidden):
            return
        try:
            os.close(self._open(mask.path))
        except PermissionError:
            # corral found this path when it searched the grant for secrets, but init may not open
            # it. So the directory above has lost its permissions since then. The target could
            # restore them, so hide that whole directory.
            self.mask(Mask(path=os.path.dirname(mask.path), kind="hide", directory=True))
            return
        if mask.kind == "protect":
            self._attach(self._clone(mask.path), mask.path, ATTRIBUTES["read"])
            return
        # Leave the empty directory writable for now, because binds below it need mount points in
        # it. `enter` makes it read-only afterwards.
        self._attach(self._make_empty(directory=mask.directory), mask.path, 0)
        self.hidden.append(mask.path)

    def _make_empty(self, *, directory: bool) -> int:
        """Make an empty file or directory in the private space, where the target cannot reach it.

        Do not unlink it, because the kernel does not mount unlinked files (ENOENT).
        """
        self.made += 1
        name = f".space/{self.made}"
        if directory:
            os.mkdir(name, 0o555, dir_fd=self.root)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o444, dir_fd=self.root))
        return abi.open_tree(self.root, name, CLONE_ALL)

    def proc(self) -> None:
        flags = abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV | abi.MOUNT_ATTR_NOEXEC
        tree = abi.fsmount("proc", {"hidepid": "2"}, attributes=flags | abi.MOUNT_ATTR_RDONLY)
        self._attach(tree, "/proc", 0, directory=True)
        for path in ("/proc/keys", "/proc/key-users"):
            # Both files show this user's keys, even those of other sessions.
            try:
                self.mask(Mask(path=path, kind="hide", directory=False))
            except FileNotFoundError:
                continue  # a kernel without keyrings does not have these files

    def send_space(self, channel: DescriptorChannel) -> None:
        """Send the private space to the supervisor, which lists its files at the end of the run."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.open(".space", flags, dir_fd=self.root)
        channel.send("private_space", [fd])
        os.close(fd)

    def enter(self) -> None:
        """Switch to the new root with pivot_root, detach the old root, and make the new root
        read-only.
        """
        for path in self.hidden:
            fd = self._open(path)
            abi.mount_setattr(fd, "", abi.AT_EMPTY_PATH, attr_set=ATTRIBUTES["read"])
            os.close(fd)
        os.fchdir(self.root)
        for fd in self.parents.values():
            os.close(fd)
        abi.umount2(".space", abi.MNT_DETACH)
        os.rmdir(".space", dir_fd=self.root)
        abi.pivot_root(".", ".")
        abi.umount2(".", abi.MNT_DETACH)
        os.chdir("/")
        abi.mount_setattr(self.root, "", abi.AT_EMPTY_PATH, attr_set=ATTRIBUTES["read"])
        os.close(self.root)

    def _clone(self, path: str) -> int:
        fd = self._open(path)
        try:
            return abi.open_tree(fd, "", CLONE_ALL | abi.AT_EMPTY_PATH)
        finally:
            os.close(fd)

    def _attach(
        self, tree: int, path: str, attributes: int, *, directory: bool | None = None
    ) -> None:
        if attributes:
            flags = abi.AT_EMPTY_PATH | abi.AT_RECURSIVE
            abi.mount_setattr(tree, "", flags, attr_set=attributes)
        if directory is None:
            directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        try:
            # The mount point is a plain name in an open directory, so the kernel follows no
            # symlink.
            abi.move_mount(tree, *self._point(path, directory=directory))
            self._forget_parents(path)
        except FileNotFoundError:
            raise OSError(0, "corral does not create mount points on the host", path) from None
        finally:
            os.close(tree)

    def _point(self, path: str, *, directory: bool) -> tuple[int, str]:
        """Return a mount point as (parent directory, name).

        If the mount point is missing and is on the sandbox's own tmpfs, create it.
        """
        parent, name = self._parent(path)
        if parent in self.own:
            self._make(parent, name, directory=directory)
        return parent, name

    @staticmethod
    def _make(parent: int, name: str, *, directory: bool) -> None:
        try:
            if directory:
                os.mkdir(name, 0o755, dir_fd=parent)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(name, flags, 0o644, dir_fd=parent))
        except FileExistsError:
            pass

    def _parent(self, path: str) -> tuple[int, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        if not above:
            return self.root, name
        if above not in self.parents:
            if len(self.parents) >= MAX_PARENTS:
                self._forget_parent(next(iter(self.parents)))
            self.parents[above] = self._open_parent(above)
        return self.parents[above], name

    def _open_parent(self, path: str) -> int:
        parent, name = self._point(path, directory=True)
        try:
            fd = abi.openat2(parent, name, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
        except FileNotFoundError:
            raise OSError(0, "corral does not create mount points on the host", path) from None
        if os.fstat(fd).st_dev in self.devices:
            self.own.add(fd)
        return fd

    def _forget_parents(self, path: str) -> None:
        """Close descriptors at or below `path`, because a new mount hides their directories."""
        for known in [known for known in self.parents if f"{known}/".startswith(f"{path}/")]:
            self._forget_parent(known)

    def _forget_parent(self, path: str) -> None:
        fd = self.parents.pop(path)
        self.own.discard(fd)
        os.close(fd)

    def _open(self, path: str) -> int:
        inside = path.strip("/") or "."
        return abi.openat2(self.root, inside, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
