"""Install packages (`npm:`, `pypi:`) once, in a sandbox of their own, and find them in the store
later.
"""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.record import replace
from corral.servers.packages import npm_settings, pypi_settings
from corral.servers.packages.sources import InstallOptions, Source, plain_index
from corral.servers.reference import Reference, parse_reference
from corral.servers.store import store
from corral.servers.store.store import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    Notify = Callable[[str], None]

    class Installer(Protocol):
        def install(
            self, reference: Reference, staging: str, how: InstallOptions, notify: Notify
        ) -> dict[str, object]: ...
        def resolve(
            self, reference: Reference, staging: str, how: InstallOptions, notify: Notify
        ) -> dict[str, str]: ...
        def list_versions(self, tree: str) -> dict[str, str]: ...
        def list_checksums(self, tree: str) -> dict[str, str]: ...


# Packages of each kind are installed by the module of the same name: packages/npm.py or
# packages/pypi.py.
SOURCES = {
    "npm": Source(
        host="registry.npmjs.org",
        index=plain_index(npm_settings.DEFAULT_URL),
        fingerprint=npm_settings.fingerprint_registry,
        runtime="node",
    ),
    "pypi": Source(
        host="pypi.org",
        index=plain_index(pypi_settings.DEFAULT_URL),
        fingerprint=pypi_settings.fingerprint_registry,
        runtime="python",
        version=f"{sys.version_info[0]}.{sys.version_info[1]}",
        links=pypi_settings.LINKS,
    ),
}
WAITS = "another process is installing {}; waiting for it"


def package_key(reference: Reference, how: InstallOptions, *, origin: str = "") -> str:
    """Return the key under which an installation is stored. The key contains the user's choices,
    such as the runtime, so that each combination of choices gets its own installation.
    """
    source = SOURCES[reference.kind]
    version = how.runtimes.get(source.runtime) or source.version
    words = [f"{reference.kind}:{reference.requirement()}"]
    words += [source.runtime + version] if version else []
    words += [f"#{reference.program}"] if reference.program else []
    words += ["scripts"] if how.scripts else []
    words += [f"from:{origin}"] if origin else []
    return " ".join([*words, *(f"with:{item}" for item in sorted(how.extra))])


def has_run_scripts(key: str) -> bool:
    """Return whether the packages of this key were allowed to run code during installation."""
    return "scripts" in key.partition(" with:")[0].split(" ")


def current_key(reference: Reference, how: InstallOptions) -> str:
    """Return the key that the package has if it is installed with the user's current settings."""
    origin = SOURCES[reference.kind].fingerprint(os.environ)
    return package_key(reference, how, origin=origin)


def parse_key(key: str) -> tuple[Reference, InstallOptions] | None:
    """Return the reference and the options from which a package's key was made. Return None if the
    key does not belong to a package, or if the user's current settings would give a different key,
    for example because they name another registry.
    """
    head, *extra = key.split(" with:")
    first, *words = head.split(" ")
    reference = parse_reference(first)
    if reference is None or reference.kind not in SOURCES:
        return None
    runtime = SOURCES[reference.kind].runtime
    program = next((word[1:] for word in words if word.startswith("#")), "")
    chosen = next((word for word in words if word.startswith(runtime)), "").removeprefix(runtime)
    how = InstallOptions(
        scripts="scripts" in words,
        extra=tuple(extra),
        runtimes={runtime: chosen} if chosen else {},
    )
    reference = replace(reference, program=program, text=first + (f"#{program}" if program else ""))
    return (reference, how) if current_key(reference, how) == key else None


def why_unproven(kind: str) -> str:
    """Return why packages of a kind (npm or PyPI) may not work on this machine, or "" if they are
    known to work.

    On Windows they count as working only after one of them has been installed, because corral was
    never tested with an installer inside an AppContainer.
    """
    if sys.platform != "win32" or any(entry.kind == kind for entry in store.entries()):
        return ""
    return f"no {kind}: package was ever installed here, and Windows may prevent the installation"


def fetch_package(reference: Reference, how: InstallOptions, notify: Notify) -> Entry:
    """Return a package from the store, and install it first if necessary. If the package is in the
    store, no process is started and the network is not used.
    """
    source = SOURCES[reference.kind]
    for other in sorted(set(how.runtimes) - {source.runtime}):
        raise SandboxError(
            f"--{other} cannot be used with {reference.kind}: packages",
            hint=f"use --{source.runtime}",
        )
    key = current_key(reference, how)
    found = store.find_usable(key) or _find_from_same_index(reference, how)
    if found is not None:
        return found
    with store.lock_key(key, lambda: notify(WAITS.format(reference.text))):
        found = store.find_usable(key)  # another process may have installed it
        if found is None:
            _check_npm(reference, how)
            _announce(reference, notify)
            found = _install_apart(reference, key, how, notify)
            notify(f"installed {reference.name} {found.version} from {found.origin}")
            if not reference.version:
                notify(f"{reference.text} stays at {found.version} until `corral upgrade`")
    return found


def refuse_missing_npm(reference: Reference, how: InstallOptions) -> None:
    """Raise an error if npm is missing and a package still has to be installed with it. If the user
    chose a version of node, do not check.
    """
    if reference.kind != "npm" or store.find(current_key(reference, how)):
        return
    if _find_from_same_index(reference, how) is None:
        _check_npm(reference, how)


def _check_npm(reference: Reference, how: InstallOptions) -> None:
    """Raise an error if the package needs npm, and npm is missing. If the user chose a version of
    node, do not check, because corral then uses the npm beside that node if there is one.
    """
    if reference.kind == "npm" and not how.runtimes:
        from corral.servers.packages.npm import find_npm

        find_npm("")


def _find_from_same_index(reference: Reference, how: InstallOptions) -> Entry | None:
    """Return an installation of this package that corral can use although the user's settings named
    other indexes when it was made. Return None if there is none.

    All its packages must have come from the only index that the current settings name. If the
    current settings name several indexes, return None, because another index may contain a
    different package of the same name.
    """
    origin = SOURCES[reference.kind].fingerprint(os.environ)
    if "," in origin:
        return None
    index = origin or SOURCES[reference.kind].index
    wanted = package_key(reference, how)
    for entry in store.entries():
        head, *extra = entry.key.split(" with:")
        words = [word for word in head.split(" ") if not word.startswith("from:")]
        if entry.index == index and " with:".join([" ".join(words), *extra]) == wanted:
            return store.find_usable(entry.key)
    return None


def _announce(reference: Reference, notify: Notify) -> None:
    """Write to the client's log that a package is being installed, because this takes time. On a
    terminal do nothing, because a progress line is shown there.
    """
    from corral.servers.registry.download import is_progress_shown

    if not is_progress_shown():
        notify(f"installing {reference.text} ...")


def pin_package(reference: Reference, how: InstallOptions, notify: Notify) -> Entry:
    """Install a package, and also store it under the key of its exact version."""
    found = fetch_package(reference, how, notify)
    if not reference.version:
        store.add_key(found, current_key(replace(reference, version=found.version), how))
    return found


def fetch_newest(reference: Reference, how: InstallOptions, notify: Notify) -> Entry:
    """Return the newest version of a package. Install it, unless the store already has this version
    with the same versions of all dependencies.

    A new installation is stored only under its exact version. If the store already has this version
    with different dependencies, both entries are kept.
    """
    plain = current_key(reference, how)
    key = f"{plain} newest"
    with store.lock_key(key):
        with store.StagingDirectory(key) as staging:
            versions = _find_installer(reference.kind).resolve(reference, staging, how, notify)
        version = versions.get(reference.name, "")
        exact = current_key(replace(reference, version=version), how)
        stored = [one for one in map(store.find, (plain, exact, f"{exact} newest")) if one]
        for one in stored:
            if list_versions(one) == versions:
                return one
        _announce(reference, notify)
        found = _install(reference, key, how, notify)
        exact = current_key(replace(reference, version=found.version), how)
        exact += " newest" if any(one.key == exact for one in stored) else ""
        store.add_key(found, exact, replace=True)
        store.remove(found)
    return replace(found, key=exact)


def list_versions(entry: Entry) -> dict[str, str]:
    return _find_installer(entry.kind).list_versions(entry.path())


def list_checksums(entry: Entry) -> dict[str, str]:
    return _find_installer(entry.kind).list_checksums(entry.path())


def _find_installer(kind: str) -> Installer:
    from importlib import import_module

    found: Installer = import_module(f"corral.servers.packages.{kind}")
    return found


def _install_apart(reference: Reference, key: str, how: InstallOptions, notify: Notify) -> Entry:
    """Install in a separate process, which continues if the client gives up. On Windows, install in
    this process.
    """
    if sys.platform != "win32":
        from corral.servers.packages.installer_process import install_apart

        install_apart(lambda: _install(reference, key, how, notify), reference.text)
        if found := store.find(key):
            return found
    return _install(reference, key, how, notify)


def _install(reference: Reference, key: str, how: InstallOptions, notify: Notify) -> Entry:
    with store.StagingDirectory(key) as staging:
        made = _find_installer(reference.kind).install(reference, staging, how, notify)
        values = {"key": key, "kind": reference.kind, "name": reference.name, **made}
        return store.commit(staging, values, allowed=SOURCES[reference.kind].links)
