"""Debian's own kernels, as packages and never installed: the image, and an initrd that reaches a 9p root.

Fetched with a private apt state, so that no root is needed and the host's own lists stay as they are.
"""

from __future__ import annotations

import lzma
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

from vm import rig

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
# What reaches a 9p root over virtio and puts an overlay on it; what they depend on comes along.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
RECIPE = 1  # of the initrd: a change here is a new cache entry
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
options=trans=virtio,version=9p2000.L,cache=loose,msize=524288
/bin/busybox mount -t 9p -o ro,$options host /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root "$@"
"""


def kernel(name: str, suite: str) -> pathlib.Path:
    """A directory with `vmlinuz` and `initrd` of the suite's kernel; downloaded once."""
    target = rig.cache(f"kernel-{suite}-{RECIPE}")
    if not target.exists():
        busybox = rig.need_program(name, "busybox", "busybox-static")
        for program in ("apt-get", "dpkg-deb"):
            rig.need_program(name, program, "a Debian host, which has it")
        if not os.path.exists(KEYRING):
            rig.unavailable(
                name, f"{KEYRING} is missing; install the package debian-archive-keyring"
            )
        with rig.building(target) as partial, tempfile.TemporaryDirectory() as scratch:
            try:
                build(suite, busybox, pathlib.Path(scratch), partial)
            except subprocess.CalledProcessError as error:
                rig.unavailable(name, f"the kernel of {suite} cannot be fetched: {error}")
    return target


def build(suite: str, busybox: str, scratch: pathlib.Path, target: pathlib.Path) -> None:
    package = download(suite, scratch)
    subprocess.run(["dpkg-deb", "-x", package, scratch / "tree"], check=True)
    image = next((scratch / "tree/boot").glob("vmlinuz-*"))
    version = image.name.removeprefix("vmlinuz-")
    modules = next(p for p in (scratch / "tree").glob("**/modules") if (p / version).is_dir())
    shutil.copy(image, target / "vmlinuz")
    (target / "version").write_text(version)
    (target / "initrd").write_bytes(initrd(modules / version, pathlib.Path(busybox)))
    for path in target.iterdir():
        path.chmod(0o644)


def download(suite: str, scratch: pathlib.Path) -> pathlib.Path:
    """The package that `linux-image-amd64` stands for."""
    apt = ["apt-get", *(f"-o{option}" for option in private_state(suite, scratch))]
    subprocess.run([*apt, "-qq", "update"], check=True)
    show = subprocess.run(
        ["apt-cache", *apt[1:], "depends", "linux-image-amd64"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    name = re.search(r"Depends: (linux-image-\S+)", show.stdout)
    assert name, show.stdout
    subprocess.run([*apt, "-qq", "download", name[1]], check=True, cwd=scratch)
    return next(scratch.glob("linux-image-*.deb"))


def private_state(suite: str, scratch: pathlib.Path) -> list[str]:
    (scratch / "lists/partial").mkdir(parents=True)
    (scratch / "archives/partial").mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
    return [
        f"Dir::State={scratch}",
        f"Dir::State::status={scratch}/status",
        f"Dir::Cache={scratch}",
        f"Dir::Etc::sourcelist={scratch}/sources.list",
        "Dir::Etc::sourceparts=-",
        "APT::Sandbox::User=",  # its own user could not write here
        "APT::Architecture=amd64",
        "Acquire::Languages=none",
    ]


def mirror() -> str:
    """The one that the host uses itself, if it is Debian."""
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


def load_order(modules: pathlib.Path) -> dict[str, bytes]:
    """The modules and what they depend on, each after what it needs; what is built in has no file."""
    files = {
        path.name.partition(".ko")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")
    }
    order: dict[str, bytes] = {}

    def add(name: str) -> None:
        path = files.get(name.replace("-", "_"))
        if path is None or name in order:
            return
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in found[1].decode().split(",") if found and found[1] else ():
            add(needed)
        order[name] = data

    for name in MODULES:
        add(name)
    return order


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """The `newc` format, as the kernel's own buffer-format.rst has it."""
    archive = bytearray()
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))]):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields)
        archive += name.encode() + b"\0"
        archive += bytes(-len(archive) % 4) + data
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
