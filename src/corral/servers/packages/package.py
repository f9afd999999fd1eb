"""Packages (`npm:`, `pypi:`): installed once, in a sandbox of their own, run from the store."""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.record import replace
from corral.servers.store import locks, store
from corral.servers.store.tree import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.servers.reference import Reference
    from corral.servers.store.store import Entry


def key_of(reference: Reference, *, scripts: bool, extra: Sequence[str], origin: str = "") -> str:
    """Everything that makes another installation of it."""
    version = f"@{reference.version}" if reference.version else ""
    words = [f"npm:{reference.name}{version}"]
    if reference.kind == "pypi":
        extras = f"[{','.join(reference.extras)}]" if reference.extras else ""
        pin = f"=={reference.version}" if reference.version else ""
        words = [
            f"pypi:{reference.name}{extras}{pin}",
            f"python{sys.version_info[0]}.{sys.version_info[1]}",
        ]
    words += [f"#{reference.program}"] if reference.program else []
    words += ["scripts"] if scripts else []
    words += [f"from:{origin}"] if origin else []
    return " ".join([*words, *(f"with:{item}" for item in sorted(extra))])


def fetch(
    reference: Reference,
    *,
    scripts: bool = False,
    extra: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Entry:
    """The installed package; a cached one costs no process and no network."""
    if sys.platform == "win32":
        # Package managers there are started by scripts and start others: an AppContainer of the
        # installer's own has not been written.
        raise SandboxError(
            "packages are not installed on Windows yet",
            hint="install it yourself and name its program, or use corral in WSL2",
        )
    origin = origin_of(reference)
    key = key_of(reference, scripts=scripts, extra=extra, origin=origin)
    found = usable(key)
    if found is not None:
        return found
    store.make()
    with locks.held(store.lock_path(key)):
        found = usable(key)  # somebody else may have been faster
        if found is None:
            found = install(reference, key, scripts=scripts, extra=extra)
            tell(f"installed {reference.name} {found.version} from {found.origin}")
            if not reference.version:
                tell(
                    f"{reference.text} stays at {found.version} until `corral cache rm` removes it"
                )
    return found


def pinned(
    reference: Reference, *, scripts: bool, extra: Sequence[str], tell: Callable[[str], None]
) -> Entry:
    """Installed, and found under its exact version from now on too."""
    found = fetch(reference, scripts=scripts, extra=extra, tell=tell)
    if not reference.version:
        exact = replace(reference, version=found.version)
        store.also(found, key_of(exact, scripts=scripts, extra=extra, origin=origin_of(reference)))
    return found


def origin_of(reference: Reference) -> str:
    """Where it would be installed from, if that is not where everybody's packages are."""
    if reference.kind == "npm":
        from corral.servers.packages import npm_settings

        return npm_settings.origin(os.environ)
    from corral.servers.packages import pypi_settings

    return pypi_settings.origin(os.environ)


def usable(key: str) -> Entry | None:
    """Not when the interpreter that it was made for is gone."""
    found = store.find(key)
    gone = found and any(
        os.path.isabs(word) and not os.path.exists(word) for word in found.argv()[:1]
    )
    return None if gone else found


def install(reference: Reference, key: str, *, scripts: bool, extra: Sequence[str]) -> Entry:
    from corral.servers.packages import npm, pypi
    from corral.servers.packages.sandboxed_install import LINKS

    staging = store.staged(key)
    try:
        if reference.kind == "npm":
            made = npm.install(reference, staging, scripts=scripts, extra=extra)
        else:
            made = pypi.install(reference, staging, scripts=scripts, extra=extra)
        values = {"key": key, "kind": reference.kind, "name": reference.name, **made}
        return store.adopt(staging, values, allowed=LINKS if reference.kind == "pypi" else ())
    finally:
        remove_tree(staging)
