"""Declare rigs: the programs and kernels that some tests need besides Python and this kernel.

`CORRAL_RIGS=uml,git` or `pytest --rigs=uml,git` declares rigs; a group declares all its rigs. A declared rig that is
missing, or a name that is not a rig, ends the run before the first test. Undeclared rigs are not used, so that a run
does not depend on what else is installed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

VARIABLE = "CORRAL_RIGS"
SHARED = "CORRAL_RIGS_SHARED"
"""The variable that contains the path of a directory that all workers of a test run share."""
DEFINITIONS = "CORRAL_AGENT_SANDBOX"
"""The variable that contains the path of a directory with agent-sandbox's definitions (CRDs)."""
PREFIX = "needs the rig "
ADMIN = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclasses.dataclass(frozen=True, slots=True)
class Rig:
    """A rig: its purpose, and the programs or file patterns that it needs, with the Debian package of each."""

    tries: str
    things: Mapping[str, str] = dataclasses.field(default_factory=dict)
    modules: tuple[str, ...] = ()
    root: bool = False

    def missing(self) -> list[str]:
        """Return what the rig still lacks: packages to install, and "root" if it needs root."""
        wanted = [package for name, package in self.things.items() if not found(name)]
        wanted += [
            f"pip's {name}" for name in self.modules if importlib.util.find_spec(name) is None
        ]
        if self.root and getattr(os, "geteuid", lambda: 1)():
            wanted.append("root")
        return list(dict.fromkeys(wanted))


def cache(name: str) -> pathlib.Path:
    """Return the path at which a build or a download is kept for later runs. This path exists only
    once the build is complete.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "corral-rigs" / name


def definitions() -> pathlib.Path:
    """Return the directory with the definitions (CRDs) of agent-sandbox, a Kubernetes project: the
    one that CORRAL_AGENT_SANDBOX names, else `data/agent-sandbox` in a directory beside the
    checkout, else the copy in the cache.
    """
    if named := os.environ.get(DEFINITIONS):
        return pathlib.Path(named).absolute()
    beside = sorted(pathlib.Path(__file__).absolute().parents[2].glob("*/data/agent-sandbox"))
    return beside[0] if beside else cache("agent-sandbox")


NAMESPACES = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
GCC = {"gcc": "gcc", "/usr/include/asm-generic/unistd.h": "libc6-dev"}
LIBSECCOMP = "/usr/lib/*/libseccomp.so.2"
NODE = {"/usr/bin/node": "nodejs", "npm": "npm"}
BESIDE_PYTHON = os.path.dirname(sys.executable)
UML = {
    "linux.uml": "user-mode-linux",
    "mke2fs": "e2fsprogs",
    "/usr/bin/python3": "python3",
    **NAMESPACES,
}
MINGW = {
    "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64-win32",
    "x86_64-w64-mingw32-windres": "binutils-mingw-w64-x86-64",
}
QEMU = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "dpkg-deb": "dpkg",
    **NAMESPACES,
}
RIGS = {
    "uml": Rig("a kernel with every controller of cgroup v2 and no Landlock", UML),
    "qemu": Rig("older and newer kernels, emulated", QEMU),
    "kernels": Rig(
        "corral on every kernel of docs/hosts.md, which takes an hour",
        {
            **UML,
            **QEMU,
            "qemu-system-aarch64": "qemu-system-arm",
            "mmdebstrap": "mmdebstrap",
            "zstd": "zstd",
        },
    ),
    "systemd": Rig("a login session under systemd", {**UML, "mmdebstrap": "mmdebstrap"}),
    "wine": Rig("the tests for Windows", {"/usr/lib/wine/wine64": "wine64", **MINGW, **NAMESPACES}),
    "mingw": Rig(
        "bindings against the headers of mingw-w64",
        {**MINGW, "i686-w64-mingw32-gcc": "gcc-mingw-w64-i686-win32"},
    ),
    "zig": Rig("bindings against the headers of Windows and macOS", modules=("ziglang",)),
    "libseccomp": Rig(
        "system call numbers against libseccomp and the kernel's headers",
        {**GCC, LIBSECCOMP: "libseccomp2"},
    ),
    "servers": Rig("published MCP servers and SDKs", NODE, ("uv",)),
    "frameworks": Rig("Python frameworks for agents, from PyPI", NODE, ("uv",)),
    "clients": Rig("real clients from npm, 1.4 GB, with wrapped servers", NODE, ("uv",)),
    "world": Rig(
        "hosts in a network namespace of the tests", {"ip": "iproute2", **NAMESPACES}, root=True
    ),
    "node": Rig("node and npm", NODE),
    "curl": Rig("curl", {"/usr/bin/curl": "curl"}),
    "pip": Rig("packages that pip installs", {"/usr/bin/pip3": "python3-pip"}),
    "debian_python": Rig(
        "a Python of an old Debian release", {"mmdebstrap": "mmdebstrap"}, root=True
    ),
    "pyenv": Rig(
        "pyenv's own choice of a Python", {"~/.pyenv/shims/python3": "pyenv by its installer"}
    ),
    "git": Rig("git", {"/usr/bin/git": "git"}),
    "hey": Rig("a client in Go", {"hey": "hey"}),
    "gcc": Rig("programs that gcc and musl build", {**GCC, "musl-gcc": "musl-tools"}),
    "bwrap": Rig("a program's files compared with bubblewrap", {"bwrap": "bubblewrap"}),
    "strace": Rig("system calls counted by strace", {"strace": "strace"}, root=True),
    "shells": Rig(
        "completion in bash, zsh and fish", {"bash": "bash", "zsh": "zsh", "fish": "fish"}
    ),
    "dbus": Rig("a real D-Bus daemon", {"dbus-daemon": "dbus"}),
    "packaging": Rig("the built package, installed by uv and pipx", modules=("build", "uv")),
    "chromium": Rig("the page of a report in a real browser", {"/usr/bin/chromium": "chromium"}),
    "workflows": Rig(
        "the workflows, checked by zizmor, check-jsonschema and actionlint",
        {os.path.join(BESIDE_PYTHON, "zizmor"): "pip's zizmor"},
        ("check_jsonschema",),
    ),
    "mounts": Rig("mounts below a grant", {"mount": "mount", **NAMESPACES}, root=True),
    "postgres": Rig("a real database", {"/usr/lib/postgresql/*/bin/initdb": "postgresql"}),
    "runc": Rig("exported bundles in a real OCI runtime", {"runc": "runc"}),
    "containers": Rig(
        "corral inside podman's containers",
        {
            "podman": "podman",
            "runc": "runc",
            "catatonit": "catatonit",
            "/usr/share/containers/seccomp.json": "golang-github-containers-common",
            "mmdebstrap": "mmdebstrap",
        },
        root=True,
    ),
    "kubernetes": Rig(
        "the schemas of Kubernetes", modules=("kubernetes_validate", "yaml", "jsonschema")
    ),
    "agent_sandbox": Rig(
        "the definitions of agent-sandbox, v1beta1",
        {
            f"{definitions()}/*_sandboxes.yaml": f"its CRDs in the directory that {DEFINITIONS} names"
        },
        modules=("jsonschema", "yaml"),
    ),
    "filesystems": Rig(
        "real file systems: btrfs, xfs, FUSE, NFS and more",
        {
            "mkfs.btrfs": "btrfs-progs",
            "mkfs.xfs": "xfsprogs",
            "mke2fs": "e2fsprogs",
            "bindfs": "bindfs",
            "fuse-overlayfs": "fuse-overlayfs",
            "fusermount3": "fuse3",
            "rpc.nfsd": "nfs-kernel-server",
            "diod": "diod",
            "setquota": "quota",
            **NAMESPACES,
        },
        root=True,
    ),
    "long": Rig("more examples of each property, every variant of an attack"),
}
GROUPS = {
    "vm": ("uml", "qemu", "systemd"),
    "headers": ("mingw", "zig", "libseccomp"),
    "tools": (
        "node",
        "pip",
        "pyenv",
        "curl",
        "git",
        "hey",
        "gcc",
        "bwrap",
        "strace",
        "shells",
        "dbus",
        "chromium",
        "postgres",
    ),
    "all": tuple(RIGS),
}


def found(name: str) -> str | None:
    """Return the path of a program on PATH or in `sbin`. If `name` is a file pattern, return the
    first match.
    """
    if name.startswith(("/", "~")):
        return next(iter(sorted(glob.glob(os.path.expanduser(name)))), None)
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{ADMIN}")


def declared() -> frozenset[str]:
    words = os.environ.get(VARIABLE, "").replace(",", " ").split()
    return frozenset(rig for word in words for rig in GROUPS.get(word, (word,)))


def declare(text: str | None) -> None:
    """Declare the rigs that `--rigs` and CORRAL_RIGS name. End the test run if one of them cannot be used."""
    if text:
        os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')},{text}"
    problems = [f"there is no rig {name!r}" for name in sorted(declared() - set(RIGS))]
    for name in sorted(declared() & set(RIGS)):
        problems += [f"the rig {name} needs {what}" for what in RIGS[name].missing()]
    if problems:
        known = ", ".join([*RIGS, *GROUPS])
        raise pytest.UsageError("; ".join(problems), f"known rigs: {known}")


def need(*names: str) -> None:
    """Skip the current test unless all these rigs are declared."""
    if reason := undeclared(names):
        pytest.skip(reason)


def undeclared(names: Iterable[str]) -> str:
    wanted = sorted(set(names) - declared())
    if unknown := set(wanted) - set(RIGS):
        raise pytest.UsageError(f"there is no rig {', '.join(unknown)}")
    return PREFIX + " ".join(wanted) if wanted else ""


def broken(name: str, why: str) -> NoReturn:
    """Fail the test, because a declared rig does not work."""
    pytest.fail(f"the rig {name} is declared, but: {why}", pytrace=False)


@contextlib.contextmanager
def alone(name: str) -> Iterator[pathlib.Path]:
    """Run the body of the `with` statement in only one worker at a time. Yield the directory that all workers share."""
    import fcntl

    place = pathlib.Path(os.environ[SHARED])
    with open(place / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place


def once(name: str, make: Callable[[], object]) -> Any:
    """Return the result of `make`, which only the first worker calls. Other workers wait for the
    result.
    """
    with alone(name) as place:
        made = place / name
        if not made.exists():
            text = json.dumps(make())
            made.write_text(text)
        return json.loads(made.read_text())


def skip_undeclared(items: Iterable[pytest.Item]) -> None:
    for item in items:
        names = [name for mark in item.iter_markers("rig") for name in mark.args]
        if reason := undeclared(names):
            item.add_marker(pytest.mark.skip(reason=reason))


def closing(reasons: Iterable[str]) -> str:
    """Return a paragraph that counts the skipped tests and names their rigs, or "" if no test was skipped."""
    rigs: collections.Counter[str] = collections.Counter()
    others: collections.Counter[str] = collections.Counter()
    for reason in reasons:
        counted = rigs if reason.startswith(PREFIX) else others
        counted[reason.removeprefix(PREFIX)] += 1
    if not rigs and not others:
        return ""
    said = [f"Not tried: {rigs.total() + others.total()} tests."]
    if rigs:
        names = sorted({name for key in rigs for name in key.split()}, key=list(RIGS).index)
        said.append(
            f"{rigs.total()} need rigs that are not declared: {'; '.join(f'{name} ({RIGS[name].tries})' for name in names)}."
        )
        said.append(f"To try them, type `pytest --rigs={','.join(names)}` or set {VARIABLE}.")
        said.append("`.ci/run` installs their programs and runs them.")
        packages = dict.fromkeys(what for name in names for what in RIGS[name].missing())
        if packages:
            said.append(f"Missing here: {', '.join(packages)}.")
    if others:
        said.append(
            "Other reasons: "
            + "; ".join(f"{reason} ({count})" for reason, count in others.most_common())
            + "."
        )
    return "\n".join(
        textwrap.wrap(" ".join(said), 110, break_long_words=False, break_on_hyphens=False)
    )


def main(question: str, left_out: Iterable[str]) -> None:
    """Answer a question of `.ci/run` about all rigs except `left_out`. Print the packages to
    install for "packages", the usable rigs for "usable", and otherwise the unusable rigs and what
    they lack.
    """
    rigs = {name: rig.missing() for name, rig in RIGS.items() if name not in set(left_out)}
    if question == "packages":
        lacking = dict.fromkeys(what for missing in rigs.values() for what in missing)
        for what in lacking:
            if " " not in what and what != "root":
                print(what)
    elif question == "usable":
        print(",".join(name for name, missing in rigs.items() if not missing))
    else:
        for name, missing in rigs.items():
            if missing:
                print(f"left out the rig {name} ({RIGS[name].tries}): missing {', '.join(missing)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
