"""Unpack kernel images from Debian and Ubuntu packages, and make an initrd for each kernel that
mounts a 9p root.

apt fetches the packages with a private state directory, so it needs no root and does not change the
host's package lists. Ubuntu's archive key comes from a Debian package, so Debian's signature covers
it.
"""

from __future__ import annotations

import dataclasses
import lzma
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
from typing import TYPE_CHECKING

import rigs
from vm import rig

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYRING = ("trixie", "ubuntu-keyring")
# Modules for a 9p root over virtio with an overlay. `load_order` adds the modules that they depend on.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
RECIPE = 1  # increase this if the initrd changes, because the name of the cached kernel contains it
# `init.py` loads these modules: for tests of case-insensitive directories, for a home on a disk, and for the network
# of tests/world.py.
FILE_SYSTEMS = ("loop", "crc32c_generic", "ext4")
DISK = ("virtio_blk", "crc32c_generic", "ext4")
NETWORK = ("veth",)
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
options=trans=virtio,version=9p2000.L,cache=loose,msize=524288
/bin/busybox mount -t 9p -o ro,$options host /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root "$@"
"""


@dataclasses.dataclass(frozen=True)
class Source:
    """A kernel in Debian's or Ubuntu's archive. `package` contains the kernel's image, or depends
    on the package that contains it.
    """

    suite: str
    package: str = "linux-image-amd64"
    architecture: str = "amd64"
    ubuntu: bool = False

    @property
    def name(self) -> str:
        usual = self.package == "linux-image-amd64"
        return self.suite if usual else f"{self.suite}-{self.package.removeprefix('linux-image-')}"


def kernel(name: str, source: Source) -> pathlib.Path:
    """Return a directory with a kernel's `vmlinuz`, `initrd` and `version`. The first call
    downloads the kernel.
    """
    target = rigs.cache(f"kernel-{source.name}-{RECIPE}")
    if not target.exists():
        with rig.building(target) as partial, tempfile.TemporaryDirectory() as scratch:
            try:
                build(source, pathlib.Path(scratch), partial)
            except subprocess.CalledProcessError as error:
                rigs.broken(name, f"the kernel of {source.name} cannot be fetched: {error}")
    return target


def more_modules(name: str, source: Source, names: Sequence[str]) -> list[pathlib.Path]:
    """Return the files of modules and their dependencies in load order, except for the modules that
    the initrd loads.
    """
    target = rigs.cache(f"modules-{'-'.join(names)}-{kernel(name, source).name}")
    if not target.exists():
        with rig.building(target) as partial, tempfile.TemporaryDirectory() as scratch:
            try:
                _, modules = unpack(source, pathlib.Path(scratch))
            except subprocess.CalledProcessError as error:
                rigs.broken(name, f"the kernel of {source} cannot be fetched: {error}")
            loaded = load_order(modules)
            found = load_order(modules, (*MODULES, *names))
            wanted = [module for module in found if module not in loaded]
            for number, module in enumerate(wanted):
                (partial / f"{number:03}-{module}.ko").write_bytes(found[module])
    return sorted(target.iterdir())


def unpack(source: Source, scratch: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Unpack a kernel. Return the path of the kernel's image and the directory of its modules."""
    tree = unpacked(image_packages(source, scratch), scratch / "tree")
    image = next(tree.glob("**/vmlinuz*"))
    version = image.name.removeprefix("vmlinuz").lstrip("-") or image.parent.name
    modules = next(path for path in tree.glob("**/modules") if (path / version).is_dir())
    return image, modules / version


def build(source: Source, scratch: pathlib.Path, target: pathlib.Path) -> None:
    image, modules = unpack(source, scratch)
    shutil.copy(image, target / "vmlinuz")
    (target / "version").write_text(modules.name)
    (target / "initrd").write_bytes(initrd(modules, busybox(source, scratch)))
    for path in target.iterdir():
        path.chmod(0o644)


def unpacked(packages: list[pathlib.Path], tree: pathlib.Path) -> pathlib.Path:
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
    return tree


def busybox(source: Source, scratch: pathlib.Path) -> pathlib.Path:
    """Return the host's busybox for amd64, or download a busybox for another architecture."""
    if source.architecture == "amd64":
        return pathlib.Path(rigs.found("busybox") or "busybox")
    apt = fresh_apt(source, scratch / "busybox")
    return next(
        unpacked(download(apt, ["busybox-static"]), scratch / "other").glob("**/bin/busybox")
    )


def image_packages(source: Source, scratch: pathlib.Path) -> list[pathlib.Path]:
    """Download the package that contains the kernel's image. If another package contains the
    modules, download that package too.
    """
    apt = fresh_apt(source, scratch / "kernel")
    image = dependencies(apt, source.package, "image")[:1] or [source.package]
    return download(apt, [*image, *dependencies(apt, image[0], "(?:binary|modules)")])


@dataclasses.dataclass(frozen=True)
class Apt:
    """A private apt state: the options that select it, and the directory for downloads."""

    options: tuple[str, ...]
    place: pathlib.Path


def fresh_apt(source: Source, place: pathlib.Path) -> Apt:
    """Return a private apt state with the package lists of one suite."""
    keyring = KEYRING
    if source.ubuntu:
        suite, package = UBUNTU_KEYRING
        found = download(fresh_apt(Source(suite), place / "debian"), [package])
        keyring = str(next(unpacked(found, place / "keys").glob("**/ubuntu-archive-keyring.gpg")))
    apt = Apt(tuple(f"-o{option}" for option in private_state(source, place, keyring)), place)
    subprocess.run(["apt-get", *apt.options, "-qq", "update"], check=True)
    return apt


def download(apt: Apt, packages: list[str]) -> list[pathlib.Path]:
    argv = ["apt-get", *apt.options, "-qq", "download", *packages]
    subprocess.run(argv, check=True, cwd=apt.place)
    return sorted(apt.place.glob("*.deb"))


def dependencies(apt: Apt, package: str, kind: str) -> list[str]:
    """Return the `linux-KIND-...` packages that a package depends on."""
    argv = ["apt-cache", *apt.options, "depends", package]
    show = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return re.findall(rf"Depends: (linux-{kind}-\d\S*)", show.stdout)


def private_state(source: Source, place: pathlib.Path, keyring: str) -> list[str]:
    for name in ("lists", "archives"):
        (place / name / "partial").mkdir(parents=True)
    (place / "status").touch()
    archive = UBUNTU if source.ubuntu else mirror()
    (place / "sources.list").write_text(
        f"deb [signed-by={keyring}] {archive} {source.suite} main\n"
    )
    return [
        f"Dir::State={place}",
        f"Dir::State::status={place}/status",
        f"Dir::Cache={place}",
        f"Dir::Etc::sourcelist={place}/sources.list",
        "Dir::Etc::sourceparts=-",
        # Download as the current user, because apt's own user could not write to this directory.
        "APT::Sandbox::User=",
        f"APT::Architecture={source.architecture}",
        f"APT::Architectures={source.architecture}",
        "Acquire::Languages=none",
    ]


def mirror() -> str:
    """Return the Debian mirror that the host uses itself, or MIRROR if the host uses none."""
    form = "$(ORIGIN) $(LABEL) $(REPO_URI)"
    argv = ["apt-get", "indextargets", "--format", form, "Identifier: Packages"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    found = [line.split() for line in done.stdout.splitlines()]
    return next((words[2] for words in found if words[:2] == ["Debian", "Debian"]), MIRROR)


def initrd(modules: pathlib.Path, busybox: pathlib.Path) -> bytes:
    order = load_order(modules)
    files = {f"modules/{name}.ko": (stat.S_IFREG | 0o644, data) for name, data in order.items()}
    listed = "\n".join(f"{name}.ko" for name in order).encode()
    return cpio(
        {
            "init": (stat.S_IFREG | 0o755, INIT.encode()),
            "bin": (stat.S_IFDIR | 0o755, b""),
            "bin/busybox": (stat.S_IFREG | 0o755, busybox.read_bytes()),
            **dict.fromkeys(("dev", "root", "modules"), (stat.S_IFDIR | 0o755, b"")),
            "modules/order": (stat.S_IFREG | 0o644, listed),
            **files,
        }
    )


def load_order(modules: pathlib.Path, wanted: Sequence[str] = MODULES) -> dict[str, bytes]:
    """Return the wanted modules and their dependencies in load order. Skip built-in modules,
    because they have no files.
    """
    files = {
        path.name.partition(".ko")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")
    }
    order: dict[str, bytes] = {}

    def add(name: str) -> None:
        path = files.get(name.replace("-", "_"))
        if path is None or name in order:
            return
        data = plain(path)
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in found[1].decode().split(",") if found and found[1] else ():
            add(needed)
        order[name] = data

    for name in wanted:
        add(name)
    return order


def plain(module: pathlib.Path) -> bytes:
    if module.suffix == ".zst":
        return subprocess.check_output(["zstd", "-dcq", module])
    return lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """Return an archive in the `newc` format, which the kernel's buffer-format.rst describes."""
    archive = bytearray()
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))]):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields)
        archive += name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + data
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
