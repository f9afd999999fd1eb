"""Write the Containerfile of an exported server. When the image is built, each package of the
server is checked against the hash in the server's lock file.

corral uses a package's lock file only if corral itself installed the package, from npm or PyPI and
without install scripts. The lock files of other servers cannot be trusted: a bundle may contain
files that are named like lock files, and an install script may have changed the lock file.

In the image, root installs corral and another user installs the server, so that no package can
change corral. In a pod, a ConfigMap replaces the policy that is in the image.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from corral.errors import SandboxError
from corral.record import record
from corral.servers.packages import pypi
from corral.servers.packages.package import has_run_scripts
from corral.servers.store import store
from corral.servers.store.store import Entry, store_path

SERVER = "/srv/server"
POLICY_DIRECTORY = "/etc/corral"
POLICY_FILE = f"{POLICY_DIRECTORY}/policy.json"
WHEEL = "mcp_corral-*.whl"
INSTALLER = "1001:1001"
"""The user and group that install the server in the image. The server runs as a different user, so
it cannot change its own files.
"""
# The platform is fixed, because lock files contain the hashes of packages for one platform. The
# text asks the user for a digest of the base image, because a tag can be moved to another image,
# but a digest cannot.
HEAD = """\
# Pin the base by its digest:
#   podman pull {base}
#   podman image inspect --format '{{{{index .RepoDigests 0}}}}' {base}
# and build with `--build-arg BASE=NAME`, where NAME is the printed name.
ARG BASE={base}
FROM --platform={platform} ${{BASE}}
"""
PYTHON = """\
RUN apt-get update \\
 && apt-get install -y --no-install-recommends python3 python3-venv \\
 && rm -rf /var/lib/apt/lists/*
"""
# corral is installed from a wheel that is copied into the image, because corral is not in any
# package index.
CORRAL = f"""\
COPY {WHEEL} /opt/
RUN python3 -m venv /opt/corral \\
 && /opt/corral/bin/pip install --no-cache-dir --no-index --no-deps /opt/{WHEEL}
COPY policy.json {POLICY_FILE}
"""
DIRECTORY = f"""\
RUN mkdir -p {SERVER} && chown {INSTALLER} {SERVER}
WORKDIR {SERVER}
USER {INSTALLER}
"""
NPM = f"""\
COPY --chown={INSTALLER} package.json package-lock.json ./
RUN npm ci --ignore-scripts --omit=dev --cache=/tmp/npm && rm -rf /tmp/npm
"""
PYPI = f"""\
RUN python3 -m venv {SERVER}
COPY --chown={INSTALLER} requirements.lock start.py ./
RUN bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.lock
"""
COMMAND = "# Add here what this command needs: {words}\n"
TAIL = """\
ENV PATH=/opt/corral/bin:$PATH
USER 1000:1000
"""
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
PYTHON_BASE = f"docker.io/library/python:{sys.version_info[0]}.{sys.version_info[1]}-slim"
NODE_BASE = "docker.io/library/node:24-bookworm-slim"
COPIED = {"npm": ("package.json", "package-lock.json"), "pypi": ("requirements.lock", "start.py")}


@record
class Build:
    text: str
    files: Mapping[str, bytes] = {}


def make_build(argv: tuple[str, ...], tree: str) -> Build:
    return build_package(tree) if tree else build_command(argv)


def build_command(argv: tuple[str, ...]) -> Build:
    """Return a Containerfile for a command. The user has to add the command's files to it."""
    words = " ".join(argv).replace("\n", " ")
    return Build(text=_head(PYTHON_BASE) + CORRAL + COMMAND.format(words=words) + TAIL)


def _head(base: str) -> str:
    machine = os.uname().machine if hasattr(os, "uname") else "x86_64"
    return HEAD.format(base=base, platform=PLATFORMS.get(machine, "linux/amd64"))


def build_package(tree: str) -> Build:
    """Return a Containerfile for a package, together with copies of the lock files from its
    installation on this machine.
    """
    kind = _find_package(tree).kind
    files = {}
    for name in COPIED[kind]:
        with open(os.path.join(tree, name), "rb") as file:
            files[name] = file.read()
    if kind == "npm":
        return Build(text=_head(NODE_BASE) + PYTHON + CORRAL + DIRECTORY + NPM + TAIL, files=files)
    files[pypi.LOCK] = pypi.format_lock(pypi.read_lock(tree)).encode()
    return Build(text=_head(PYTHON_BASE) + CORRAL + DIRECTORY + PYPI + TAIL, files=files)


def _find_package(tree: str) -> Entry:
    """Return the cache entry of the package that is installed in the directory `tree`.

    Refuse a package whose lock file cannot be trusted.
    """
    found = [one for one in store.entries() if one.path() == tree and one.kind in COPIED]
    if not found:
        raise SandboxError(
            "--containerfile needs a server that corral installed from npm or PyPI",
            hint="leave --containerfile out, and put the server's files into the image at "
            + SERVER,
        )
    for entry in found:
        if not has_run_scripts(entry.key):
            return entry
    raise SandboxError(
        f"{found[0].name} was installed with --allow-install-scripts, so a package may have"
        " written the lock file",
        hint="leave out either --allow-install-scripts or --containerfile",
    )


def find_tree(argv: Sequence[str]) -> str:
    """Return the directory in corral's cache that contains the command's package, or "" if the
    command uses no file from the cache.
    """
    above = store_path("trees") + os.sep
    words = [word.removeprefix(above) for word in argv if word.startswith(above)]
    return os.path.join(above, words[0].partition(os.sep)[0]) if words else ""
