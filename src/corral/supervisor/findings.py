"""Cache the results of probes, so that not every `run` has to probe.

The cache key contains everything that can change a result: boot, user, corral's version and files,
kernel, namespaces, security label, seccomp filters and sysctls. Each key has a file of its own. The
name of the file is only a checksum of the key, so a file is ignored unless it also contains the
whole key. The directory is private and can never be granted to a target.
"""

from __future__ import annotations

import errno
import os
import sys

from corral import __version__
from corral.abi.private_directory import checksum, read_private_file, write_private_file
from corral.directories import directories
from corral.errors import SandboxError
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
"""Errors that keep a probe from running, so that its result says nothing about the host. If the
probe's evidence contains a key of this table, the hint is the key's value.
"""
SAID = {NO_TEMPORARY: "/tmp cannot be written"}  # noqa: S108 - a message
PROBING = "probing what this machine can enforce: this takes a while, once per boot"
MIN_DESCRIPTORS = 40
"""With fewer descriptors, probes fail for this reason alone and say nothing about this machine.
They would also leave temporary directories behind, because removing one needs a descriptor.
"""
_last: dict[str, str] = {}
"""The key of the last `load`. It is kept, because making a key means reading a dozen files."""


def current_host(
    *,
    fresh: bool = False,
    wanted: Callable[[], Collection[str]] = tuple,
    notify: Callable[[str], None] = lambda _: None,
) -> Host:
    """Return this machine with its findings. They come from the cache, unless something has changed
    that can affect them, or `fresh` is set. A finding that is "unknown" is probed again.

    `wanted` returns the names of the capabilities to probe, such as "landlock"; () means all.
    Probing is slow on Windows, so `notify` is called there with a line of text first.
    """
    known = None if fresh else load()
    if known is not None and all(item.status != "unknown" for item in known):
        return _host(known)
    names = wanted()
    old = {item.capability: item for item in known or ()}
    missing = [name for name, item in old.items() if item.status == "unknown"]
    missing = [name for name in missing if not names or name in names]
    if missing or not old:
        _refuse_few_descriptors()
        if current.system() == "windows":
            notify(PROBING)
        for item in map(_name_cause, current.load().probe(missing or names)):
            before = old.get(item.capability)
            # "unknown" means that the new probe could not run, so keep an old result.
            if item.status != "unknown" or before is None or before.status == "unknown":
                old[item.capability] = item
        store(old.values())
    return _host(tuple(old.values()))


def _refuse_few_descriptors() -> None:
    if sys.platform == "win32":
        return
    limit = os.sysconf("SC_OPEN_MAX")  # -1 if there is no limit
    if 0 <= limit < MIN_DESCRIPTORS:
        raise SandboxError(
            f"corral may open only {limit} descriptors here, and needs {MIN_DESCRIPTORS} to find"
            " out what this machine can enforce",
            hint=CAUSES[os.strerror(errno.EMFILE)],
        )


def _host(findings: tuple[Finding, ...]) -> Host:
    return Host(system=current.system(), machine=current.machine(), findings=findings)


def _name_cause(finding: Finding) -> Finding:
    """Change the status from "absent" to "unknown" if the probe could not run because of an
    unrelated problem. Return any other finding unchanged.

    The next run that needs an "unknown" capability probes it again.
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
        return None  # the file is incomplete, or corral did not write it
    return tuple(
        Finding(capability=name, status=_status(status), evidence=evidence, hint=hint)
        for name, status, evidence, hint in rows
    )


def _status(text: str) -> Status:
    return "proven" if text == "proven" else "unknown" if text == "unknown" else "absent"


def store(findings: Iterable[Finding]) -> None:
    """Write the findings to the cache. If that fails, the next run probes again."""
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
    """Return whether this is the first call with the current cache key, and record the call.

    A caller can use this to print a warning only once. The cache key changes at each boot, so the
    warning is repeated after a boot.
    """
    key = _last.get("key") or _key()
    path = os.path.join(directories().cache, "findings", "warned")
    try:
        if read_private_file(path) == key.encode():
            return False
    except (OSError, ValueError):
        pass  # the file does not exist, or belongs to another user
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
    """Return the time when a file of corral's code for this system was last added, replaced or
    removed. `folder` is the directory of this code.

    This time is part of the key, because changed probes may have different results. If a file is
    changed without being replaced, this is not noticed.
    """
    parts = (folder, os.path.join(folder, "mechanisms"), os.path.join(folder, "probes"))
    return str(max(os.stat(part).st_mtime_ns for part in parts))


def _path(key: str) -> str:
    return os.path.join(directories().cache, "findings", f"{checksum(key.encode()):x}")
