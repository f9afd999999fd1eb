"""Write the Containerfile of an exported server, which checks packages against the lock file's
hashes.

The base image is a build argument, so that a user can pin it by digest or replace it. A pod's
ConfigMap replaces the policy in the image.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from corral.errors import SandboxError
from corral.record import record
from corral.servers.store.store import store_path

SERVER = "/srv/server"
POLICY_DIRECTORY = "/etc/corral"
POLICY_FILE = f"{POLICY_DIRECTORY}/policy.json"
WHEEL = "mcp_corral-*.whl"
# Lock files have hashes of packages for one platform. The tag of a base can be moved to another
# image, its digest cannot.
HEAD = """\
# Pin the base by its digest:
#   podman pull {base}
#   podman image inspect --format '{{{{index .RepoDigests 0}}}}' {base}
# and build with `--build-arg BASE=` and that name.
ARG BASE={base}
FROM --platform={platform} ${{BASE}}
"""
NPM = f"""\
RUN apt-get update \\
 && apt-get install -y --no-install-recommends python3 python3-venv \\
 && rm -rf /var/lib/apt/lists/*
WORKDIR {SERVER}
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts --omit=dev && npm cache clean --force
"""
PYPI = f"""\
WORKDIR {SERVER}
RUN python3 -m venv {SERVER}
COPY requirements.lock start.py ./
RUN bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
"""
COMMAND = "# Add here what this command needs: {words}\n"
# corral is installed from a copied wheel, because no package index has it. It needs no other
# package.
TAIL = f"""\
COPY {WHEEL} /opt/
RUN python3 -m venv /opt/corral \\
 && /opt/corral/bin/pip install --no-cache-dir --no-index --no-deps /opt/{WHEEL}
COPY policy.json {POLICY_FILE}
ENV PATH=/opt/corral/bin:$PATH
USER 1000:1000
"""
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
PYTHON_BASE = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
NODE_BASE = "docker.io/library/node:24-bookworm-slim"
COPIED = {"npm": ("package.json", "package-lock.json"), "pypi": ("requirements.lock", "start.py")}


@record
class Build:
    """The text of the Containerfile, and the files that it copies."""

    text: str
    files: Mapping[str, bytes] = {}


def make_build(argv: tuple[str, ...], tree: str) -> Build:
    return build_package(tree) if tree else build_command(argv)


def build_command(argv: tuple[str, ...]) -> Build:
    """Return the build for a command that the user adds to the image."""
    words = " ".join(argv).replace("\n", " ")
    return Build(text=_head(PYTHON_BASE) + COMMAND.format(words=words) + TAIL)


def _head(base: str) -> str:
    machine = os.uname().machine if hasattr(os, "uname") else "x86_64"
    return HEAD.format(base=base, platform=PLATFORMS.get(machine, "linux/amd64"))


def build_package(tree: str) -> Build:
    """Return the build for a package, with the lock files of its installation on this machine."""
    kind = next((kind for kind, names in COPIED.items() if _has_all(tree, names)), "")
    if not kind:
        raise SandboxError(
            "this server was not installed from npm or PyPI",
            hint="leave --containerfile out, and put the unpacked server into " + SERVER,
        )
    files = {}
    for name in COPIED[kind]:
        with open(os.path.join(tree, name), "rb") as file:
            files[name] = file.read()
    base, steps = (NODE_BASE, NPM) if kind == "npm" else (PYTHON_BASE, PYPI)
    return Build(text=_head(base) + steps + TAIL, files=files)


def _has_all(tree: str, names: tuple[str, ...]) -> bool:
    return all(os.path.isfile(os.path.join(tree, name)) for name in names)


def find_tree(argv: Sequence[str]) -> str:
    """Return the tree of the store that contains the command's files; "" if there is none."""
    above = store_path("trees") + os.sep
    words = [word.removeprefix(above) for word in argv if word.startswith(above)]
    return os.path.join(above, words[0].partition(os.sep)[0]) if words else ""


def move_to_image(argv: Sequence[str], tree: str) -> tuple[str, ...]:
    """Return the command with its paths inside the image."""
    return tuple(word.replace(tree, SERVER) if tree else word for word in argv)
