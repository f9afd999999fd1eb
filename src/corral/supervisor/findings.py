"""Cache the results of probes, so that not every `run` has to probe.

The key contains everything that can change a result: boot, user, corral, kernel, namespaces,
security label, filters and sysctls. Each key has its own file, and a file that does not contain the
whole key is ignored. The directory is private and can never be granted to a target.
"""

from __future__ import annotations

import errno
import os

from corral import __version__
from corral.abi.private_directory import checksum, read_private_file, write_private_file
from corral.directories import directories
from corral.plan.host import Finding, Host
from corral.platforms import current
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from corral.plan.host import Status


FIELD, LINE = "\t", "\n"
COLUMNS = 4
NO_TEMPORARY = "No usable temporary directory"
CAUSES = {
    NO_TEMPORARY: "make /tmp writable (in a container: `--tmpfs /tmp`, or an emptyDir there)",
    os.strerror(errno.EMFILE): "raise `ulimit -n` where corral is started",
    os.strerror(errno.ENOMEM): "free some memory: none is left on this machine",
}
"""Errors that keep a probe from running, so that it cannot tell whether the host has a capability.
If the probe's evidence contains a key, its value is the hint.
"""
SAID = {NO_TEMPORARY: "/tmp cannot be written"}  # noqa: S108 - a message
PROBING = "probing what this machine can enforce: this takes a while, once per boot"
_last: dict[str, str] = {}
"""The key of the last `load`. It is stored because making a key reads a dozen files."""


def current_host(
    *,
    fresh: bool = False,
    wanted: Callable[[], Collection[str]] = tuple,
    notify: Callable[[str], None] = lambda _: None,
) -> Host:
    """Return this machine with its findings. They are cached until something relevant changes.

    `wanted` returns the capabilities that have to be probed; () means all. `notify` is called with
    a line before probing that takes long.
    """
    known = None if fresh else load()
    if known is not None and all(item.status != "unknown" for item in known):
        return _host(known)
    names = wanted()
    old = {item.capability: item for item in known or ()}
    missing = [name for name, item in old.items() if item.status == "unknown"]
    missing = [name for name in missing if not names or name in names]
    if missing or not old:
        if current.system() == "windows":
            notify(PROBING)
        for item in map(_name_cause, current.load().probe(missing or names)):
            before = old.get(item.capability)
            # If a new probe could not run, the old result stays.
            if item.status != "unknown" or before is None or before.status == "unknown":
                old[item.capability] = item
        store(old.values())
    return _host(tuple(old.values()))


def _host(findings: tuple[Finding, ...]) -> Host:
    return Host(system=current.system(), machine=current.machine(), findings=findings)


def _name_cause(finding: Finding) -> Finding:
    """Return the finding with status "unknown" if another problem kept the probe from running.

    The next run that needs an unknown finding probes it again.
    """
    if finding.status != "absent":
        return finding
    for text, hint in CAUSES.items():
        if text in finding.evidence:
            evidence = SAID.get(text, finding.evidence)
            return replace(finding, status="unknown", evidence=evidence, hint=hint)
    return finding


def load() -> tuple[Finding, ...] | None:
    key = _last["key"] = _key()
    try:
        stored, _, rest = read_private_file(_path(key)).decode().partition(LINE)
    except (OSError, ValueError):
        return None
    if stored != key:
        return None
    rows = [line.split(FIELD) for line in rest.split(LINE) if line]
    if not rows or any(len(row) != COLUMNS for row in rows):
        return None  # incomplete, or not written by corral
    return tuple(
        Finding(capability=name, status=_status(status), evidence=evidence, hint=hint)
        for name, status, evidence, hint in rows
    )


def _status(text: str) -> Status:
    return "proven" if text == "proven" else "unknown" if text == "unknown" else "absent"


def store(findings: Iterable[Finding]) -> None:
    """Write the cache. If that fails, the next run probes again."""
    key = _key()
    rows = [(item.capability, item.status, item.evidence, item.hint) for item in findings]
    lines = [FIELD.join(_flat(cell) for cell in row) for row in rows]
    _write(_path(key), LINE.join((key, *lines, "")))


def _write(path: str, text: str) -> None:
    try:
        write_private_file(path, text.encode())
    except OSError:
        return


def is_first_run() -> bool:
    """Return whether this is the first call with the current key of the findings, and record the
    call. The key changes at each boot.
    """
    key = _last.get("key") or _key()
    path = os.path.join(directories().cache, "findings", "warned")
    try:
        if read_private_file(path) == key.encode():
            return False
    except (OSError, ValueError):
        pass  # not written yet, or not this user's file
    _write(path, key)
    return True


def _flat(text: str) -> str:
    return text.replace(FIELD, " ").replace(LINE, "; ")


def _key() -> str:
    system = current.load()
    parts = (
        __version__,
        *system.cache_key(),
        _newest_change(os.path.dirname(system.__file__ or "")),
    )
    return "|".join(map(_flat, parts))


def _newest_change(folder: str) -> str:
    """Return when a file of the backend was last added, replaced or removed.

    This time is a part of the key, because changed probes may have other results. A file that is
    changed in place is not noticed.
    """
    parts = (folder, os.path.join(folder, "mechanisms"), os.path.join(folder, "probes"))
    return str(max(os.stat(part).st_mtime_ns for part in parts))


def _path(key: str) -> str:
    return os.path.join(directories().cache, "findings", f"{checksum(key.encode()):x}")
