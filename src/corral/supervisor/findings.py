"""The cache of probe results, so that `run` does not have to probe.

The key names everything that can change a result: boot, user, corral, kernel, namespaces, security
label, filters and sysctls. A different key is a different file, and a file without the whole key is
not read. The directory is private and can never be granted to a target. Root may run with another
user's HOME, so neither a directory nor a file of another user is believed, or written to.
"""

from __future__ import annotations

import os
import stat

from corral import __version__
from corral.directories import directories, is_private
from corral.plan.host import Finding, Host
from corral.platforms import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from corral.plan.host import Status

FIELD, LINE = "\t", "\n"
COLUMNS = 4
MAX_BYTES = 1 << 20


def current_host(*, fresh: bool = False) -> Host:
    """Return this machine, from the cache unless something changed that could change a finding."""
    findings = None if fresh else load()
    if findings is None:
        findings = current.load().probe()
        store(findings)
    return Host(system=current.system(), machine=current.machine(), findings=findings)


def load() -> tuple[Finding, ...] | None:
    key = _key()
    try:
        stored, _, rest = _read_own(_path(key)).partition(LINE)
    except (OSError, ValueError):
        return None
    if stored != key:
        return None
    rows = [line.split(FIELD) for line in rest.split(LINE) if line]
    if not rows or any(len(row) != COLUMNS for row in rows):
        return None  # half written, or not by corral
    return tuple(
        Finding(capability=name, status=_status(status), evidence=evidence, hint=hint)
        for name, status, evidence, hint in rows
    )


def _read_own(path: str) -> str:
    """Read a file that only this user can have written; do not follow links or wait for a pipe."""
    _refuse_foreign_directories(path)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not is_private(found):
            raise PermissionError(path)
        return file.read(MAX_BYTES)


def _refuse_foreign_directories(path: str) -> None:
    """Refuse a file below corral's cache if a directory there is a link or another user's."""
    directory = os.path.dirname(path)
    for part in (os.path.dirname(directory), directory):
        found = os.lstat(part)
        if not stat.S_ISDIR(found.st_mode) or not is_private(found, forbidden=stat.S_IWOTH):
            raise PermissionError(part)


def _status(text: str) -> Status:
    return "proven" if text == "proven" else "absent"


def store(findings: Iterable[Finding]) -> None:
    """Write the cache. If that fails, the next run probes again."""
    key = _key()
    rows = [(item.capability, item.status, item.evidence, item.hint) for item in findings]
    lines = [FIELD.join(_flat(cell) for cell in row) for row in rows]
    path = _path(key)
    fresh = f"{path}.{os.getpid()}"
    try:
        for part in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
            os.makedirs(part, mode=0o700, exist_ok=True)
        _refuse_foreign_directories(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(LINE.join((key, *lines, "")))
        os.replace(fresh, path)
    except OSError:
        return


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
    """Return when the backend's files were last replaced: other probes may have other results."""
    parts = (folder, os.path.join(folder, "mechanisms"), os.path.join(folder, "probes"))
    return str(max(os.stat(part).st_mtime_ns for part in parts))


def _path(key: str) -> str:
    # The name need not be unique, because the key in the file is compared.
    name = f"{sum(key.encode()):x}-{len(key)}"
    return os.path.join(directories().cache, "findings", name)
