"""Installs a package of npm's registry with the host's npm; node alone runs it later.

Install scripts are off, so that no code of the package runs before the server itself does. npm
checks each archive against the registry's checksum. The lock file with all checksums stays in the
tree.
"""

import json
import os
from collections.abc import Sequence

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.programs.needed_files import find_on_path
from corral.safe_text import shown
from corral.servers.packages.npm_settings import SETTINGS_FILE, read_registry, settings_lines
from corral.servers.packages.sandboxed_install import (
    choose_program,
    read_json,
    run_installer,
    write_text,
)
from corral.servers.reference import Reference, is_version

FLAGS = (
    "install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--no-progress",
    "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000",
)  # fmt: skip
LOCK = "package-lock.json"
HINT = "install Node.js, which brings npm, or name the server's own command"


def install(
    reference: Reference, staging: str, *, scripts: bool, extra: Sequence[str]
) -> dict[str, object]:
    """Install into `staging`; return values for the store's entry."""
    if extra:
        raise SandboxError("--with is for pypi: packages", hint="npm: has no such thing")
    registry = read_registry(os.environ)
    npm = find_on_path("npm")
    if not npm:
        raise CommandError("npm was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=HINT)
    wanted = {reference.name: reference.version or "latest"}
    write_text(staging, "package.json", json.dumps({"private": True, "dependencies": wanted}))
    lines = settings_lines(registry, os.environ)
    write_text(staging, SETTINGS_FILE, "".join(f"{key}={value}\n" for key, value in lines))
    try:
        run_installer(
            [npm, *FLAGS, *([] if scripts else ["--ignore-scripts"])],
            staging=staging,
            registry=registry,
            label=reference.text,
            settings={
                "npm_config_userconfig": os.path.join(staging, SETTINGS_FILE),
                "npm_config_globalconfig": os.path.join(staging, ".none"),
                "npm_config_prefix": "/tmp/prefix",  # noqa: S108 - the sandbox's own
            },
            subprocess=scripts,
        )
    finally:
        os.unlink(os.path.join(staging, SETTINGS_FILE))
    version, integrity = read_lock(staging, reference.name)
    return {
        "version": version,
        "integrity": integrity,
        "origin": registry.urls[0],
        "command": build_command(staging, reference),
    }


def read_lock(staging: str, name: str) -> tuple[str, str]:
    """Return (version, integrity) of a package. Refuse it if any package has no checksum."""
    packages = read_json(os.path.join(staging, LOCK)).get("packages")
    found = packages if isinstance(packages, dict) else {}
    for path, item in found.items():
        if not isinstance(item, dict):
            raise SandboxError(f"{LOCK} is not what npm writes")
        checked = not path or item.get("integrity") or item.get("inBundle")
        if not checked or item.get("link"):
            raise SandboxError(f"{shown(path, 200)} came without a checksum")
    own = found.get(f"node_modules/{name}")
    version, integrity = (own.get("version"), own.get("integrity")) if own else ("", "")
    if not isinstance(version, str) or not is_version(version) or not isinstance(integrity, str):
        raise SandboxError(f"npm did not install {name}")
    return version, integrity


def build_command(staging: str, reference: Reference) -> list[str]:
    """Return the command of a package's program: with node, unless a `#!` line names another."""
    folder = os.path.join("node_modules", *reference.name.split("/"))
    package = read_json(os.path.join(staging, folder, "package.json"))
    bins = package.get("bin")
    bare = reference.name.rpartition("/")[2]
    programs = {bare: bins} if isinstance(bins, str) else bins if isinstance(bins, dict) else {}
    name = choose_program(list(programs), reference, bare)
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
