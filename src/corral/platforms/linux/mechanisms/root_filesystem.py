"""The filesystem view: a private root in which only what was granted exists.

Everything is assembled from detached mounts that get their flags before they are attached, so
nothing is ever visible with more rights than it ends up with. Sources are opened without following
symlinks and compared with what the policy saw; mount points are opened the same way, and are made
only on the sandbox's own tmpfs: no directory is ever created on the host.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.abi import linux as abi
from corral.platforms.steps import unverified
from corral.record import record
from corral.safe_text import printable

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable
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
BYTES_PER_INODE = 16384
"""Empty files cost a kilobyte of kernel memory each: 300 000 of them fit in a 16 MB tmpfs
otherwise.
"""


@record
class Bind:
    """`device` and `inode` are what the policy saw; 0 means the path is the system's own.

    `covers`: mounts below it are covered, and need not be cloned where they cannot be idmapped.
    """

    source: str
    target: str
    access: BindAccess = "read"
    device: int = 0
    inode: int = 0
    covers: bool = False


@record
class Mask:
    """`hide` shows an empty, read-only thing instead; `protect` shows the thing itself, read-only.

    A bind below a mask is mounted after it, and so is seen. The role is `repository` for a
    version-control directory, `named` for a file in one that a grant names.
    """

    path: str
    kind: Literal["hide", "protect"]
    directory: bool
    role: Role = ""
    device: int = 0
    inode: int = 0


def cover_mounts(paths: Iterable[str]) -> tuple[Mask, ...]:
    """Return masks that show an empty file or directory instead of each mount."""
    return tuple(Mask(path=path, kind="hide", directory=os.path.isdir(path)) for path in paths)


@record
class OpenedSources:
    """{path on the host: its descriptor in init}"""

    fds: dict[str, int]


@record
class DetachedTrees:
    """{path on the host: a mount of it that is not attached yet}, used in place of the source."""

    fds: dict[str, int]


@record
class Sources:
    """Open what will be bound while the process still has the ids that the host knows."""

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
    """`private` directories share one tmpfs of `size` bytes, which is the disk limit of them all.

    `anchors` are bound onto themselves: a directory in a write grant that leads to a bind or a mask
    cannot be renamed, or the host would find something else under that name afterwards.
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
                root.private(path)
        root.proc()
        root.enter()

    def verify(self, _results: Results) -> None:
        """Check that the root refuses writing and shows nothing that was not granted."""
        try:
            os.mkdir("/.corral")
        except OSError:
            pass
        else:
            raise OSError(0, "the root directory is writable")
        expected = {path.split("/")[1] for path in self._paths()} | {"proc"}
        foreign = set(os.listdir("/")) - expected
        if foreign:
            raise OSError(0, f"the root shows what was not granted: {sorted(foreign)}")
        for mask in self.masks:
            _check_mask(mask, [bind.target for bind in self.binds])
        free = os.statvfs(self.private[0])
        if free.f_blocks * free.f_frsize > self.size:
            raise OSError(0, "the private space is larger than its limit")

    def _paths(self) -> list[str]:
        named = [bind.target for bind in self.binds] + list(self.private)
        return named + [path for path, _ in self.links] + [path for path, _ in self.files]


def _check_mask(mask: Mask, binds: list[str]) -> None:
    if mask.kind != "hide":
        return
    top = f"{mask.path}/"
    named = {path[len(top) :].split("/")[0] for path in binds if path.startswith(top)}
    try:
        shown = set(os.listdir(mask.path)) if mask.directory else os.stat(mask.path).st_size
    except PermissionError:
        return
    if shown and shown != named:
        raise OSError(0, "a secret shows through its mask", mask.path)


def open_source(bind: Bind) -> int:
    fd = abi.openat2(abi.AT_FDCWD, bind.source, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
    if bind.inode:
        seen = os.fstat(fd)
        if (seen.st_dev, seen.st_ino) != (bind.device, bind.inode):
            os.close(fd)
            raise OSError(0, "is no longer the file that was granted", bind.source)
    return fd


def _detached(results: Results) -> dict[str, int]:
    found = results.find(DetachedTrees)
    return found.fds if found else {}


class _NewRoot:
    """The new root while it is built, where only this process can see it."""

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
        self.own = {os.fstat(self.root).st_dev, os.fstat(space).st_dev}
        os.close(space)
        self.made = 0
        self.hidden: list[str] = []
        # Open parents: what is made below one of them needs no second walk to it.
        self.parents: dict[str, int] = {}

    def bind(self, bind: Bind, sources: dict[str, int], trees: dict[str, int]) -> None:
        tree = trees.pop(bind.source, -1)
        if tree < 0:
            tree = abi.open_tree(sources[bind.source], "", CLONE_ALL | abi.AT_EMPTY_PATH)
        self._attach(tree, bind.target, ATTRIBUTES[bind.access])

    def private(self, path: str) -> None:
        name = self._next_name()
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
        try:
            os.close(self._open(mask.path))
        except PermissionError:
            return  # init may do more than the target: what it cannot open needs no mask
        if mask.kind == "protect":
            self._attach(self._clone(mask.path), mask.path, ATTRIBUTES["read"])
            return
        # It is read-only only in the end: a bind below it needs a mount point in it.
        self._attach(self._make_empty(directory=mask.directory), mask.path, 0)
        self.hidden.append(mask.path)

    def _next_name(self) -> str:
        self.made += 1
        return f".space/{self.made}"

    def _make_empty(self, *, directory: bool) -> int:
        """Make an empty file or directory in the private space, which cannot be reached after
        `enter`. It keeps its name, because what has been unlinked cannot be attached (ENOENT).
        """
        name = self._next_name()
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
            # They list every key of the same user, of all sessions.
            try:
                self.mask(Mask(path=path, kind="hide", directory=False))
            except FileNotFoundError:
                continue  # a kernel without keyrings

    def enter(self) -> None:
        """Make this the root with pivot_root; the old root goes, and the new one is read-only."""
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
        point = self._point(path, directory=directory)
        try:
            abi.move_mount(tree, point, "")
            self._forget_parents(path)
        finally:
            os.close(point)
            os.close(tree)

    def _point(self, path: str, *, directory: bool) -> int:
        """Open the mount point at `path`; make it where it is missing."""
        parent, name = self._parent(path)
        if os.fstat(parent).st_dev in self.own:
            self._make(parent, name, directory=directory)
        try:
            return abi.openat2(parent, name, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
        except FileNotFoundError:
            raise OSError(0, "would have to be created on the host", path) from None

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
                os.close(self.parents.pop(next(iter(self.parents))))
            self.parents[above] = self._point(above, directory=True)
        return self.parents[above], name

    def _forget_parents(self, path: str) -> None:
        """Close what was opened at or below `path`, which later walks find under a new mount."""
        for known in [known for known in self.parents if f"{known}/".startswith(f"{path}/")]:
            os.close(self.parents.pop(known))

    def _open(self, path: str) -> int:
        inside = path.strip("/") or "."
        return abi.openat2(self.root, inside, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
