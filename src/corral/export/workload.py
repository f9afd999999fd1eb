"""Choose the name of an exported server, and refuse names, images and volumes that Kubernetes would
refuse.
"""

import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256

from corral.errors import SandboxError
from corral.export.containerfile import POLICY_DIRECTORY, POLICY_FILE, SERVER
from corral.export.pod import PodPolicy
from corral.paths.posix import is_inside
from corral.record import record

HOME = "/home/corral"
OWN_PLACES = (POLICY_DIRECTORY, HOME, "/tmp", "/opt/corral", "/usr", SERVER)  # noqa: S108 - in the pod
MAX_IMAGE_LENGTH = 500
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?\Z")
VERSION = re.compile(r"(?<=[^:])(@|==)[^/@#]*(?=#|\Z)")
IMAGE = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)


@record
class Workload:
    name: str
    image: str
    argv: tuple[str, ...]
    pod: PodPolicy
    server: str = ""  # the server's reference or command

    @property
    def listens(self) -> bool:
        return bool(self.pod.policy.listen)

    @property
    def secrets(self) -> str:
        return f"{self.name}-secrets"

    @property
    def manager(self) -> str:
        return f"corral-{short_hash(self.server)}"

    def command(self) -> list[str]:
        policy = self.pod.policy
        flags = [*(["--strict"] * policy.strict), *(["--best-effort"] * policy.best_effort)]
        return ["corral", "run", "--policy", POLICY_FILE, *flags, "--", *self.argv]


def check_name(name: str) -> str:
    if not LABEL.match(name):
        raise SandboxError(
            f"{name!r} is not a valid name for a Kubernetes object",
            hint="--name takes at most 52 lower-case letters, digits and hyphens",
        )
    return name


def check_image(image: str) -> str:
    if len(image) > MAX_IMAGE_LENGTH or not IMAGE.match(image):
        raise SandboxError(
            f"{image!r} is not an image name",
            hint="--image takes registry/name:tag or registry/name@sha256:DIGEST",
        )
    return image


def make_name(words: Sequence[str]) -> str:
    """Return a name for the reference or the command: `npm:@scope/notes@1.2` becomes `notes-HASH`.

    The hash keeps different servers apart, and avoids a conflict with a Helm chart for `notes`. All
    versions of a package get the same name.
    """
    word = next((word for word in words if not word.startswith("-")), "")
    word = re.split(r"[@=#\[]", word.rpartition("/")[2].rpartition(":")[2])[0]
    short = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[:45].strip("-") or "server"
    return f"{short}-{short_hash(describe_server(words))}"


def describe_server(words: Sequence[str]) -> str:
    """Return the reference without its version, or the whole command."""
    return " ".join(VERSION.sub("", word) if word in words[:1] else word for word in words)


def short_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:6]


def parse_volumes(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        path, volume = parse_volume(text)
        if path in found:
            raise SandboxError(
                f"--volume names two volumes for {path}: {found[path]} and {volume}",
                hint="leave one of them out",
            )
        found[path] = volume
    return found


def parse_volume(text: str) -> tuple[str, str]:
    """Split `PATH=claim:NAME`, `PATH=configmap:NAME` or `PATH=emptydir` into the path and the
    volume.
    """
    path, equals, volume = text.rpartition("=")
    kind, _, name = volume.partition(":")
    named = kind in {"claim", "configmap"} and LABEL.match(name)
    path = path.rstrip("/")
    plain = path == os.path.normpath(path) and path.isprintable() and ":" not in path
    if not equals or not path.startswith("/") or not plain or not (named or volume == "emptydir"):
        raise SandboxError(
            f"--volume {text!r} is not a valid volume",
            hint="write PATH=claim:NAME, PATH=configmap:NAME or PATH=emptydir, with an absolute"
            " path without colons",
        )
    for own in OWN_PLACES:
        if is_inside(path, own) or is_inside(own, path):
            raise SandboxError(
                f"--volume {path}: corral itself uses {own} in the pod", hint="use another path"
            )
    return path, volume
