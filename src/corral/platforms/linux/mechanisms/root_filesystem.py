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
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from typing import Literal

    from corral.plan.model import Place
    from corral.platforms.steps import Scene

    BindAccess = Literal["read", "write", "device"]

STAGE = "/tmp"  # noqa: S108 - any directory that exists: the new root is mounted over it, out of sight
NO_LINKS = abi.RESOLVE_NO_SYMLINKS | abi.RESOLVE_NO_MAGICLINKS
CLONE_ALL = abi.OPEN_TREE_CLONE | abi.AT_RECURSIVE
ATTRIBUTES = {
    "read": abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV,
    "write": abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NODEV,
    "device": abi.MOUNT_ATTR_RDONLY | abi.MOUNT_ATTR_NOSUID | abi.MOUNT_ATTR_NOEXEC,
}
BYTES_PER_INODE = 16384
"""Empty files cost a kilobyte of kernel memory each: 300 000 of them fit in a 16 MB tmpfs
otherwise.
"""


@record
class Bind:
    """`device` and `inode` are what the policy saw; 0 means the path is the system's own."""

    source: str
    target: str
    access: BindAccess = "read"
    device: int = 0
    inode: int = 0


@record
class Mask:
    """`hide` shows an empty, read-only thing instead; `protect` shows the thing itself, read-only.

    `anchors` are the directories from the grant down to the mask: bound onto themselves, they
    cannot be renamed away with the mask's cover left behind.
    """

    path: str
    kind: Literal["hide", "protect"]
    directory: bool
    anchors: tuple[str, ...] = ()


@record
class Sources:
    """Open what will be bound while the process still is who the host knows."""

    binds: tuple[Bind, ...]
    place: Place = "init"

    def describe(self) -> str:
        checked = sum(1 for bind in self.binds if bind.inode)
        return (
            f"open {len(self.binds)} sources without following links, {checked} compared by inode"
        )


@record
class View:
    """`private` directories share one tmpfs of `size` bytes: the disk limit holds for all together.

    `anchors` are bound onto themselves: a directory in a write grant that leads to another bind
    cannot be renamed, or the host would find something else under that bind's name afterwards.
    """

    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    private: tuple[str, ...]
    size: int
    masks: tuple[Mask, ...] = ()
    anchors: tuple[str, ...] = ()
    place: Place = "init"

    def describe(self) -> str:
        lines = ["private root:"]
        lines += [f"  {bind.access:7}{bind.target}" for bind in self.binds]
        lines += [f"  private {path}" for path in self.private]
        lines += [f"  link   {path} -> {target}" for path, target in self.links]
        lines += [f"  made   {path}" for path, _ in self.files]
        lines += [f"  {mask.kind:7}{mask.path}" for mask in self.masks]
        lines.append(f"  private space {self.size} bytes; the rest read-only; fresh /proc, hidepid")
        return "\n".join(lines)


def apply(step: Sources | View, scene: Scene) -> None:
    match step:
        case Sources():
            abi.mount(None, "/", None, abi.MS_REC | abi.MS_PRIVATE, None)
            for bind in step.binds:
                if bind.source not in scene.trees:
                    scene.sources[bind.source] = open_source(bind)
        case View():
            _assemble(step, scene)


def verify(step: Sources | View, _scene: Scene) -> None:
    """The root refuses writing, and what the host has and nobody granted is not there."""
    if isinstance(step, Sources):
        return
    try:
        os.mkdir("/.corral")
    except OSError:
        pass
    else:
        raise OSError(0, "the root directory is writable")
    expected = {path.split("/")[1] for path in _paths(step)} | {"proc"}
    strangers = set(os.listdir("/")) - expected
    if strangers:
        raise OSError(0, f"the root shows what nobody granted: {sorted(strangers)}")
    for mask in step.masks:
        _check_mask(mask)
    free = os.statvfs(step.private[0])
    if free.f_blocks * free.f_frsize > step.size:
        raise OSError(0, "the private space is larger than its limit")


def _check_mask(mask: Mask) -> None:
    if mask.kind != "hide":
        return
    try:
        bare = not os.listdir(mask.path) if mask.directory else not os.stat(mask.path).st_size
    except PermissionError:
        return
    if not bare:
        raise OSError(0, "a secret shows through its mask", mask.path)


def open_source(bind: Bind) -> int:
    fd = abi.openat2(abi.AT_FDCWD, bind.source, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
    if bind.inode:
        seen = os.fstat(fd)
        if (seen.st_dev, seen.st_ino) != (bind.device, bind.inode):
            os.close(fd)
            raise OSError(0, "is no longer the file that was granted", bind.source)
    return fd


def _paths(step: View) -> list[str]:
    named = [bind.target for bind in step.binds] + list(step.private)
    return named + [path for path, _ in step.links] + [path for path, _ in step.files]


def _assemble(step: View, scene: Scene) -> None:
    stage = _Stage(step.size)
    for path, text in step.files:
        stage.write(path, text)
    targets = {bind.target: bind for bind in step.binds}
    links = dict(step.links)
    places = {*targets, *links, *step.private, *step.anchors}
    for path in sorted(places, key=lambda path: path.count("/")):
        if path in targets:
            stage.bind(targets[path], scene)
        elif path in step.anchors:
            stage.anchor(path)
        elif path in links:
            stage.link(path, links[path])
        else:
            stage.private(path)
    for mask in sorted(step.masks, key=lambda mask: mask.path.count("/")):
        stage.mask(mask)
    stage.proc()
    stage.enter()


class _Stage:
    """The new root while it is built, out of sight of everything but this process."""

    def __init__(self, size: int) -> None:
        inodes = str(max(1024, size // BYTES_PER_INODE))
        root = abi.fsmount("tmpfs", {"size": "4m", "nr_inodes": "16384", "mode": "0755"})
        abi.move_mount(root, abi.AT_FDCWD, STAGE)
        os.close(root)
        self.root = os.open(STAGE, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        options = {"size": str(size), "nr_inodes": inodes, "mode": "0700"}
        space = abi.fsmount("tmpfs", options, attributes=ATTRIBUTES["write"])
        os.mkdir(".space", dir_fd=self.root)
        abi.move_mount(space, self.root, ".space")
        self.own = {os.fstat(self.root).st_dev, os.fstat(space).st_dev}
        os.close(space)
        self.rooms = 0
        # Parents, held open: the next thing below one of them needs no second walk to it.
        self.parents: dict[str, int] = {}

    def bind(self, bind: Bind, scene: Scene) -> None:
        tree = scene.trees.pop(bind.source, -1)
        if tree < 0:
            source = scene.sources[bind.source]
            tree = abi.open_tree(source, "", CLONE_ALL | abi.AT_EMPTY_PATH)
        self._attach(tree, bind.target, ATTRIBUTES[bind.access])

    def private(self, path: str) -> None:
        room = f".space/{self.rooms}"
        self.rooms += 1
        os.mkdir(room, 0o700, dir_fd=self.root)
        self._attach(abi.open_tree(self.root, room, CLONE_ALL), path, ATTRIBUTES["write"])

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
            return  # init may do more than the target: what is closed to it needs no cover
        for anchor in mask.anchors:
            self.anchor(anchor)
        if mask.kind == "protect":
            self._attach(self._clone(mask.path), mask.path, ATTRIBUTES["read"])
            return
        self._attach(self._nothing(directory=mask.directory), mask.path, ATTRIBUTES["read"])

    def _nothing(self, *, directory: bool) -> int:
        """An empty thing in the private space, where nobody can reach it once the root is entered.

        It keeps its name: what has been unlinked cannot be attached (ENOENT).
        """
        name = f".space/{self.rooms}"
        self.rooms += 1
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
            # They tell of every key of the same user, whichever session holds it.
            try:
                self.mask(Mask(path=path, kind="hide", directory=False))
            except FileNotFoundError:
                continue  # a kernel without keyrings

    def enter(self) -> None:
        """pivot_root onto the stage; the old root goes, and the new one becomes read-only."""
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
            self._covered(path)
        finally:
            os.close(point)
            os.close(tree)

    def _point(self, path: str, *, directory: bool) -> int:
        """The mount point at `path`, made where it is missing."""
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
            self.parents[above] = self._point(above, directory=True)
        return self.parents[above], name

    def _covered(self, path: str) -> None:
        """What is now mounted at `path` is what later walks have to see."""
        for known in [known for known in self.parents if f"{known}/".startswith(f"{path}/")]:
            os.close(self.parents.pop(known))

    def _open(self, path: str) -> int:
        inside = path.strip("/") or "."
        return abi.openat2(self.root, inside, os.O_PATH | os.O_NOFOLLOW, resolve=NO_LINKS)
