"""Packages (`npm:`, `pypi:`): installed once, in their own sandbox, and run from the store."""

import os
import sys
from collections.abc import Callable, Sequence

from corral.errors import SandboxError
from corral.record import replace
from corral.servers.packages import npm_settings, pypi_settings
from corral.servers.packages.sources import Source
from corral.servers.reference import Reference
from corral.servers.store import store
from corral.servers.store.store import Entry

# The module of the same name installs a package of this kind: packages/npm.py, packages/pypi.py.
SOURCES = {
    "npm": Source(host="registry.npmjs.org", fingerprint=npm_settings.fingerprint_registry),
    "pypi": Source(
        host="pypi.org",
        fingerprint=pypi_settings.fingerprint_registry,
        runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
        links=(pypi_settings.INTERPRETER,),
    ),
}


def package_key(
    reference: Reference, *, scripts: bool, extra: Sequence[str], origin: str = ""
) -> str:
    """Return a text of everything that makes another installation."""
    runtime = SOURCES[reference.kind].runtime
    words = [f"{reference.kind}:{reference.requirement()}", *([runtime] if runtime else [])]
    words += [f"#{reference.program}"] if reference.program else []
    words += ["scripts"] if scripts else []
    words += [f"from:{origin}"] if origin else []
    return " ".join([*words, *(f"with:{item}" for item in sorted(extra))])


def fetch_package(
    reference: Reference, *, scripts: bool, extra: Sequence[str], notify: Callable[[str], None]
) -> Entry:
    """Return the installed package; if it is in the store, without a process or the network."""
    if sys.platform == "win32":
        # Package managers there are started by scripts and start processes: corral has no
        # AppContainer for installers yet.
        raise SandboxError(
            "packages are not installed on Windows yet",
            hint="install it yourself and name its program, or use corral in WSL2",
        )
    origin = SOURCES[reference.kind].fingerprint(os.environ)
    key = package_key(reference, scripts=scripts, extra=extra, origin=origin)
    found = store.find_usable(key)
    if found is not None:
        return found
    with store.lock_key(key):
        found = store.find_usable(key)  # another process may have installed it meanwhile
        if found is None:
            found = _install(reference, key, scripts=scripts, extra=extra)
            notify(f"installed {reference.name} {found.version} from {found.origin}")
            if not reference.version:
                notify(
                    f"{reference.text} stays at {found.version} until `corral cache rm` removes it"
                )
    return found


def pin_package(
    reference: Reference, *, scripts: bool, extra: Sequence[str], notify: Callable[[str], None]
) -> Entry:
    """Install a package, and store it under its exact version as well."""
    found = fetch_package(reference, scripts=scripts, extra=extra, notify=notify)
    if not reference.version:
        exact = replace(reference, version=found.version)
        origin = SOURCES[reference.kind].fingerprint(os.environ)
        store.add_key(found, package_key(exact, scripts=scripts, extra=extra, origin=origin))
    return found


def _install(reference: Reference, key: str, *, scripts: bool, extra: Sequence[str]) -> Entry:
    from importlib import import_module

    installer = import_module(f"corral.servers.packages.{reference.kind}")
    with store.staging_directory(key) as staging:
        made: dict[str, object] = installer.install(
            reference, staging, scripts=scripts, extra=extra
        )
        values = {"key": key, "kind": reference.kind, "name": reference.name, **made}
        return store.commit(staging, values, allowed=SOURCES[reference.kind].links)
