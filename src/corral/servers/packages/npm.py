"""Install a package from npm's registry with the host's npm. Later runs need only node, not npm.

Install scripts run only with `--allow-install-scripts`. Without this flag, no code of the package
runs before the server itself starts. npm checks each archive against the registry's checksum. The
lock file with all checksums is kept beside the installed packages.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.programs.installed_runtimes import find_runtime
from corral.programs.needed_files import find_on_path
from corral.safe_text import shown
from corral.servers.packages.install_errors import MAX_LINE_LENGTH, name_node
from corral.servers.packages.npm_settings import (
    SETTINGS_FILE,
    find_index,
    read_registry,
    settings_lines,
)
from corral.servers.packages.sandboxed_install import (
    FETCH_SECONDS,
    Notify,
    ask_program,
    choose_program,
    read_json,
    run_installer,
    write_text,
)
from corral.servers.packages.sources import InstallOptions
from corral.servers.reference import Reference, is_version

FLAGS = (
    "install", "--no-audit", "--no-fund", "--no-update-notifier", "--omit=dev", "--no-progress",
    f"--fetch-timeout={FETCH_SECONDS * 1000}", "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000",
)  # fmt: skip
LOCK = "package-lock.json"
ENGINE_LINES = 3
"""npm's warning about the version of node has these three lines: the package, the required version
and the current version.
"""
APT = " (Debian and Ubuntu: apt install nodejs npm)" if sys.platform == "linux" else ""
HINT = f"install Node.js and npm{APT}, or name the server's own command"


def install(
    reference: Reference, staging: str, how: InstallOptions, notify: Notify = lambda _: None
) -> dict[str, object]:
    """Install a package into the directory `staging`. Return the values that the store records for
    it.
    """
    node, origin, output = _run_npm(reference, staging, how, notify)
    version, integrity = read_lock(staging, reference.name)
    if wanted := find_unmet_engine(output, f"{reference.name}@{version}"):
        notify(_describe_engine(reference, version, *wanted))
    return {
        "version": version,
        "integrity": integrity,
        "origin": origin,
        # If a package may have run code, corral does not record which registry the packages came
        # from, because that code may have written false addresses into the lock file.
        "index": "" if how.scripts else find_index(*list_sources(staging), os.environ),
        "command": build_command(staging, reference, node or "node"),
    }


def resolve(
    reference: Reference, staging: str, how: InstallOptions, notify: Notify
) -> dict[str, str]:
    """Return the versions that npm would install now, in the same form as `list_versions`, without
    installing anything.
    """
    _run_npm(reference, staging, how, notify, words=["--package-lock-only"])
    return list_versions(staging)


def _run_npm(
    reference: Reference,
    staging: str,
    how: InstallOptions,
    notify: Notify,
    words: Sequence[str] = (),
) -> tuple[str, str, list[str]]:
    """Run `npm install` in `staging`. Return three things: the path of node, or "" if the user did
    not choose one; the address of the registry; and npm's output.
    """
    if how.extra:
        raise SandboxError(
            "--with works only with packages from PyPI (pypi:NAME)", hint="leave out --with"
        )
    registry = read_registry(os.environ)
    wanted = how.runtimes.get("node")
    node = find_runtime("node", wanted, ask_program).path if wanted else ""
    npm = find_npm(node)
    # For "*" npm installs the newest version whose `engines` accept this node, as npx does.
    packages = {reference.name: reference.version or "*"}
    write_text(staging, "package.json", json.dumps({"private": True, "dependencies": packages}))
    lines = settings_lines(registry, os.environ)
    write_text(staging, SETTINGS_FILE, "".join(f"{key}={value}\n" for key, value in lines))
    try:
        output = run_installer(
            [*npm, *FLAGS, *words, *([] if how.scripts else ["--ignore-scripts"])],
            staging=staging,
            registry=registry,
            label=reference.text,
            settings={
                "npm_config_userconfig": os.path.join(staging, SETTINGS_FILE),
                "npm_config_globalconfig": os.path.join(staging, ".none"),
                "npm_config_prefix": os.path.join(staging, ".none"),
            },
            subprocess=how.scripts,
            notify=notify,
        )
    finally:
        os.unlink(os.path.join(staging, SETTINGS_FILE))
    return node, registry.urls[0], output


def find_unmet_engine(output: Sequence[str], package: str) -> tuple[str, str] | None:
    """Return the wanted and the current version of node if npm has warned that the package needs a
    different version. Otherwise return None.
    """
    mark = f"package: '{package}',"
    lines = (at for at, line in enumerate(output) if "EBADENGINE" in line and line.endswith(mark))
    start = next(lines, len(output))
    near = [line[:MAX_LINE_LENGTH] for line in output[start : start + ENGINE_LINES]]
    wanted, current = (
        re.search(rf"(?m)^npm \w+ EBADENGINE +{what}: .*?node: 'v?([^'\n]+)'", "\n".join(near))
        for what in ("required", "current")
    )
    return (wanted[1], current[1]) if wanted and current else None


def _describe_engine(reference: Reference, version: str, wanted: str, current: str) -> str:
    """Return a warning that the package needs another version of node. This is not an error,
    because npx would also install the package.
    """
    hint = name_node(wanted) or "--node chooses another node"
    if reference.version:
        hint += f"; leave out the version to get the newest {reference.name} that fits"
    return f"{reference.name} {version} needs node {wanted}, and this is node {current}; {hint}"


def find_npm(node: str) -> list[str]:
    """Return the command that starts npm. If the user chose a node, prefer the npm beside it."""
    if sys.platform == "win32":
        return find_npm_script(node)
    own = os.path.join(os.path.dirname(node), "npm")
    npm = own if node and os.path.exists(own) else find_on_path("npm")
    if not npm:
        raise CommandError("npm was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=HINT)
    return [node, os.path.realpath(npm)] if node else [npm]


def find_npm_script(node: str) -> list[str]:
    """Return the command that runs npm's own script with node. It is needed on Windows, where `npm`
    is only a batch file.
    """
    npm = os.path.join(os.path.dirname(node), "npm.cmd") if node else find_on_path("npm")
    script = os.path.join(os.path.dirname(npm), "node_modules", "npm", "bin", "npm-cli.js")
    node = node or find_on_path("node")
    if not npm or not node or not os.path.isfile(script):
        where = f", or it is a shim: {npm}" if npm else ""
        text = f"npm was not found on PATH{where}"
        raise CommandError(text, exit_code=EXIT_NOT_FOUND, hint=HINT)
    return [os.path.realpath(node), os.path.realpath(script)]


def read_lock(staging: str, name: str) -> tuple[str, str]:
    """Return the version and the checksum of a package. Raise SandboxError if any package was
    installed without a checksum.
    """
    found = _read_packages(staging)
    for path, item in found.items():
        checked = not path or item.get("integrity") or item.get("inBundle")
        if not checked or item.get("link"):
            raise SandboxError(f"{shown(path, 200)} came without a checksum")
    own = found.get(f"node_modules/{name}")
    version, integrity = (own.get("version"), own.get("integrity")) if own else ("", "")
    if not isinstance(version, str) or not is_version(version) or not isinstance(integrity, str):
        raise SandboxError(f"npm did not install {name}")
    return version, integrity


def list_versions(tree: str) -> dict[str, str]:
    """Return the version of each package in a tree, keyed by the package's path. If a package is
    installed under another name (an alias), return NAME@VERSION with its real name.
    """
    return {
        path.removeprefix("node_modules/"): _read_version(path, item)
        for path, item in _read_packages(tree).items()
        if path
    }


def _read_version(path: str, item: Mapping[str, object]) -> str:
    version, name = str(item.get("version")), item.get("name")
    is_alias = name is not None and name != path.rpartition("node_modules/")[2]
    return f"{name}@{version}" if is_alias else version


def list_checksums(tree: str) -> dict[str, str]:
    """Return the checksum of each package in a tree, keyed by the package's path."""
    found = _read_packages(tree).items()
    return {path.removeprefix("node_modules/"): str(item.get("integrity")) for path, item in found}


def _read_packages(tree: str) -> dict[str, dict[str, object]]:
    packages = read_json(os.path.join(tree, LOCK)).get("packages")
    found = packages if isinstance(packages, dict) else {}
    if not all(isinstance(item, dict) for item in found.values()):
        raise SandboxError(f"{LOCK} does not have npm's format")
    return found


def list_sources(tree: str) -> tuple[set[str], set[str]]:
    """Return the names and the download addresses of all packages in a tree. A package that is
    installed under another name is listed with both names. If the lock file has no address for a
    package, its address is "". Packages that come inside the archive of another package have no
    address of their own, so their addresses are left out.
    """
    found = _read_packages(tree).items()
    names = {path.rpartition("node_modules/")[2] for path, _ in found}
    names |= {str(item.get("name", "")) for _, item in found}
    apart = [item for path, item in found if path and not item.get("inBundle")]
    return names, {str(item.get("resolved", "")) for item in apart}


def build_command(staging: str, reference: Reference, node: str = "node") -> list[str]:
    """Return the command that starts a package's program. The command starts node, unless the
    program's `#!` line names a different interpreter.
    """
    folder = os.path.join("node_modules", *reference.name.split("/"))
    package = read_json(os.path.join(staging, folder, "package.json"))
    bins = package.get("bin")
    bare = reference.name.rpartition("/")[2]
    programs = {bare: bins} if isinstance(bins, str) else bins if isinstance(bins, dict) else {}
    name = choose_program(list(programs), reference, bare)
    path = os.path.normpath(os.path.join(folder, str(programs[name])))
    if not path.startswith("node_modules" + os.sep):
        raise SandboxError(
            f"the program {shown(name)} of {reference.name} is outside of the package"
        )
    try:
        with open(os.path.join(staging, path), "rb") as file:
            head = file.readline(256)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name is not a valid file name"
        text = f"the program {shown(name)} of {reference.name} cannot be read: {why}"
        raise SandboxError(text, hint="the package is broken; tell its authors") from None
    if head.startswith(b"#!") and b"node" not in head:
        return [f"{{tree}}/{path}"]
    return [node, f"{{tree}}/{path}"]
