"""A package of npm's registry: installed once with the host's npm, run by node alone.

Install scripts are off: nothing of the package runs before the server itself does. npm checks each
archive against the registry's checksum; the lock file with all of them stays in the tree.
"""

from __future__ import annotations

import json
import os

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.safe_text import printable, shown
from corral.servers.packages.npm_settings import SETTINGS, lines, settings
from corral.servers.packages.sandboxed_install import run
from corral.servers.reference import is_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.servers.reference import Reference

FLAGS = (
    "install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--no-progress",
    "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000",
)  # fmt: skip
LOCK = "package-lock.json"
LARGEST = 32 << 20
HINT = "install Node.js, which brings npm, or name the server's own command"


def install(
    reference: Reference, staging: str, *, scripts: bool, extra: Sequence[str]
) -> dict[str, object]:
    """Into `staging`; what the store should remember."""
    if extra:
        raise SandboxError("--with is for pypi: packages", hint="npm: has no such thing")
    registry = settings(os.environ)
    wanted = reference.version or "latest"
    put(staging, "package.json", json.dumps({"private": True, "dependencies": {
        reference.name: wanted,
    }}))  # fmt: skip
    put(staging, SETTINGS, "".join(f"{k}={v}\n" for k, v in lines(registry, os.environ)))
    try:
        run(
            [npm_program(), *FLAGS, *([] if scripts else ["--ignore-scripts"])],
            staging=staging,
            registry=registry,
            label=reference.text,
            settings={
                "npm_config_userconfig": os.path.join(staging, SETTINGS),
                "npm_config_globalconfig": os.path.join(staging, ".none"),
                "npm_config_prefix": "/tmp/prefix",  # noqa: S108 - the sandbox's own
            },
            subprocess=scripts,
        )
    finally:
        os.unlink(os.path.join(staging, SETTINGS))
    version, integrity = locked(staging, reference.name)
    return {
        "version": version,
        "integrity": integrity,
        "origin": registry.urls[0],
        "command": command(staging, reference),
    }


def npm_program() -> str:
    from corral.programs.needed_files import Caller

    caller = Caller(environment=os.environ, cwd="/", home="")
    found = caller.lookup("npm")
    if not found:
        raise CommandError("npm was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=HINT)
    return found


def put(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(text)


def locked(staging: str, name: str) -> tuple[str, str]:
    """(version, integrity) of the package; every other must have been checked as well."""
    packages = read_json(os.path.join(staging, LOCK)).get("packages")
    found = packages if isinstance(packages, dict) else {}
    for place, item in found.items():
        if not isinstance(item, dict):
            raise SandboxError(f"{LOCK} is not what npm writes")
        checked = not place or item.get("integrity") or item.get("inBundle")
        if not checked or item.get("link"):
            raise SandboxError(f"{shown(place, 200)} came without a checksum")
    own = found.get(f"node_modules/{name}")
    version, integrity = (own.get("version"), own.get("integrity")) if own else ("", "")
    if not isinstance(version, str) or not is_version(version) or not isinstance(integrity, str):
        raise SandboxError(f"npm did not install {name}")
    return version, integrity


def command(staging: str, reference: Reference) -> list[str]:
    """The package's program with node, or the program itself if it is none of node's."""
    folder = os.path.join("node_modules", *reference.name.split("/"))
    package = read_json(os.path.join(staging, folder, "package.json"))
    bins = package.get("bin")
    bare = reference.name.rpartition("/")[2]
    programs = {bare: bins} if isinstance(bins, str) else bins if isinstance(bins, dict) else {}
    name = choose(list(programs), reference, bare)
    path = os.path.normpath(os.path.join(folder, str(programs[name])))
    if not path.startswith("node_modules" + os.sep):
        raise SandboxError(f"the program {shown(name)} of {reference.name} lies outside of it")
    try:
        with open(os.path.join(staging, path), "rb") as file:
            head = file.readline(256)
    except OSError as error:
        text = f"the program {shown(name)} of {reference.name} cannot be read: {error.strerror}"
        raise SandboxError(text, hint="the package is broken; its authors should know") from None
    if head.startswith(b"#!") and b"node" not in head:
        return [f"{{tree}}/{path}"]
    return ["node", f"{{tree}}/{path}"]


def choose(programs: Sequence[str], reference: Reference, usual: str) -> str:
    """As npx and uvx do: the one that was named, the only one, the one named like the package."""
    if not programs:
        raise SandboxError(f"{reference.name} has no program to run: it is a library")
    if reference.program:
        if reference.program in programs:
            return reference.program
    elif len(programs) == 1:
        return programs[0]
    elif usual in programs:
        return usual
    what = reference.program or "one program"
    raise SandboxError(
        f"{reference.name} does not have {what}, but " + ", ".join(map(shown, sorted(programs))),
        hint=f"say which: {reference.text.partition('#')[0]}#{printable(min(programs))}",
    )


def read_json(path: str) -> dict[str, object]:
    try:
        data: object = json.loads(read_listed(path))
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{shown(path, 200)} cannot be read: {error}") from None
    return data if isinstance(data, dict) else {}


def read_listed(path: str) -> str:
    """A file that an installer left or a package brought: read outside of the walls, so not all of
    it whatever its size.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise SandboxError(f"{shown(path, 200)} is larger than {LARGEST >> 20} MiB")
    return text
