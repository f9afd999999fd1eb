"""What corral replaced in which file, so that it can be put back byte for byte; and backups.

One record and a few backups a file, named after a digest of its real path. They hold what the
configuration held, secrets too: the directory is the user's alone.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time

from corral.clients import safe_write
from corral.directories import directories
from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from typing import Literal

    Part = Literal["command", "args", "both"]

VERSION = 1
STORE = "clients"
KEPT = 10
PARTS: dict[str, Part] = {"command": "command", "args": "args", "both": "both"}


@record
class Change:
    """The text of one span before and after. `both` runs from the command to the arguments."""

    part: Part
    before: str
    after: str


@record
class Original:
    at: tuple[str, ...]
    changes: tuple[Change, ...]


def locked(path: str) -> AbstractContextManager[None]:
    """One corral at a time for each file: two would forget each other's records."""
    from corral.servers.store.locks import lock_file

    name = _name(path, "lock")
    _make(os.path.dirname(name))
    return lock_file(name)


def load(path: str) -> dict[tuple[str, ...], Original]:
    """By the place in the file. A record that cannot be read is no record."""
    try:
        content = safe_write.read(_name(path, "json"))
        data: object = json.loads(content.data)
    except (SandboxError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("path") != path or not _is_private(content.found):
        return {}
    listed = data.get("servers")
    made = [_original(item) for item in listed] if isinstance(listed, list) else []
    return {one.at: one for one in made if one is not None}


def _original(item: object) -> Original | None:
    if not isinstance(item, dict):
        return None
    at, changes = item.get("at"), item.get("changes")
    if not isinstance(at, list) or not isinstance(changes, list):
        return None
    made = tuple(
        Change(part=PARTS[one["part"]], before=str(one["before"]), after=str(one["after"]))
        for one in changes
        if isinstance(one, dict) and one.get("part") in PARTS and {"before", "after"} <= one.keys()
    )
    return Original(at=tuple(map(str, at)), changes=made) if made else None


def save(path: str, originals: Sequence[Original]) -> None:
    """Before the file itself is changed: a crash in between leaves a record too many, not few."""
    name = _name(path, "json")
    if not originals:
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
        return
    servers = [
        {
            "at": list(one.at),
            "changes": [
                {"part": change.part, "before": change.before, "after": change.after}
                for change in one.changes
            ],
        }
        for one in originals
    ]
    data = json.dumps({"version": VERSION, "path": path, "servers": servers}, indent=1)
    _write(name, data.encode())


def back_up(path: str, data: bytes) -> str:
    """The whole file as it was; the oldest of many goes."""
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}"
    name = _name(path, f"{stamp}.backup")
    _write(name, data)
    directory, base = os.path.split(_name(path, ""))
    found = sorted(
        entry
        for entry in os.listdir(directory)
        if entry.startswith(base) and entry.endswith(".backup")
    )
    for entry in found[:-KEPT]:
        os.unlink(os.path.join(directory, entry))
    return name


def _write(name: str, data: bytes) -> None:
    _make(os.path.dirname(name))
    try:
        os.replace(safe_write.write_beside(name, data), name)
        safe_write.sync_directory(os.path.dirname(name))
    except OSError as error:
        raise _unrecorded(os.path.dirname(name), error) from error


def _make(directory: str) -> None:
    """The user's alone, or nothing is put there."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise _unrecorded(directory, error) from error
    if not stat.S_ISDIR(found.st_mode) or not _is_private(found):
        raise SandboxError(
            f"{directory} is not a directory that only you can use",
            hint=f"look at what is in it, then: chmod 700 {directory}",
        )


def _unrecorded(directory: str, error: OSError) -> SandboxError:
    return SandboxError(
        f"what was there before cannot be recorded in {directory}: {error.strerror}",
        hint="nothing was changed",
    )


def _is_private(found: os.stat_result) -> bool:
    """Windows has no modes; there the profile's own access list guards it."""
    if sys.platform == "win32":
        return True
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _name(path: str, ending: str) -> str:
    from hashlib import sha256

    digest = sha256(os.fsencode(path)).hexdigest()[:32]
    return os.path.join(directories().state, STORE, f"{digest}.{ending}")
