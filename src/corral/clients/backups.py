"""Keep records of the text that corral has replaced in clients' files, and backups of the whole
files.

Records and backups contain the secrets of the configuration, so their directory is private.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from glob import escape, glob
from hashlib import sha256
from typing import Literal

from corral.abi.private_directory import make_private_directory
from corral.abi.whole_file import discard_leftovers, replace_file
from corral.clients import safe_write
from corral.directories import directories, is_private, refuse_shared
from corral.disk_hints import disk_hint
from corral.errors import SandboxError
from corral.record import record
from corral.servers.store.locks import Lock
from corral.supervisor.report import to_json

Part = Literal["command", "args", "both"]
PARTS: dict[str, Part] = {"command": "command", "args": "args", "both": "both"}
VERSION = 1
STORE = "clients"
MAX_BACKUPS = 10


@record
class ReplacedText:
    """The text of one part of a server's entry, before and after a change. The part `both` is the
    command together with its arguments.
    """

    part: Part
    before: str
    after: str


@record
class Original:
    """The text that corral has replaced in one server's entry. The entry is at `key_path` in the
    file.
    """

    key_path: tuple[str, ...]
    replaced: tuple[ReplacedText, ...]


def lock(path: str) -> AbstractContextManager[None]:
    """Lock a file, because two corral processes that edit it at the same time would overwrite each
    other's records.
    """
    name = _stored_path(path, "lock")
    _make_private(os.path.dirname(name))
    for directory in (os.path.dirname(name), os.path.dirname(path)):
        discard_leftovers(directory)
    return Lock(name)


def load(path: str) -> dict[tuple[str, ...], Original]:
    """Return {key path: original} for each server entry that corral has changed in a file. Return
    {} if the file has no record, or if its record cannot be read or other users have access to it.
    """
    try:
        content = safe_write.read(_stored_path(path, "json"))
        data: object = json.loads(content.data)
    except (SandboxError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("path") != path:
        return {}
    listed = data.get("servers") if is_private(content.stat, 0o077) else None
    originals = map(_parse_original, listed) if isinstance(listed, list) else ()
    return {one.key_path: one for one in originals if one is not None}


def list_files() -> list[str]:
    """Return the files that have records. Skip records that other users own or can access."""
    directory = os.path.join(directories().state, STORE)
    found: list[str] = []
    for name in sorted(glob(os.path.join(escape(directory), "*.json"))):
        try:
            content = safe_write.read(name)
            data: object = json.loads(content.data)
        except (SandboxError, ValueError, RecursionError):
            continue
        path = data.get("path") if isinstance(data, dict) else None
        if isinstance(path, str) and is_private(content.stat, 0o077):
            found.append(path)
    return found


def _parse_original(item: object) -> Original | None:
    if not isinstance(item, dict):
        return None
    keys, changes = item.get("at"), item.get("changes")
    if not isinstance(keys, list) or not isinstance(changes, list):
        return None
    replaced = tuple(
        ReplacedText(part=PARTS[one["part"]], before=str(one["before"]), after=str(one["after"]))
        for one in changes
        if isinstance(one, dict) and one.get("part") in PARTS and {"before", "after"} <= one.keys()
    )
    return Original(key_path=tuple(map(str, keys)), replaced=replaced) if replaced else None


def save(path: str, originals: Sequence[Original]) -> None:
    """Record the originals of a file. If there are none, remove the file's record."""
    name = _stored_path(path, "json")
    if not originals:
        with suppress(FileNotFoundError):
            os.unlink(name)
        return
    servers = [{"at": one.key_path, "changes": to_json(one.replaced)} for one in originals]
    data = json.dumps({"version": VERSION, "path": path, "servers": servers}, indent=1)
    _write(name, data.encode())


def back_up(path: str, data: bytes) -> str:
    """Save a whole file, and return the path of the backup. Keep only the newest MAX_BACKUPS
    backups.
    """
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(3).hex()}"
    name = _stored_path(path, f"{stamp}.backup")
    _write(name, data)
    for old in sorted(glob(f"{escape(_stored_path(path, ''))}*.backup"))[:-MAX_BACKUPS]:
        os.unlink(old)
    return name


def _write(name: str, data: bytes) -> None:
    _make_private(os.path.dirname(name))
    try:
        replace_file(name, data)
    except OSError as error:
        raise _recording_failed(os.path.dirname(name), error) from error


def _make_private(directory: str) -> None:
    """Create a directory that only this user can access. Refuse an existing directory that other
    users can access.
    """
    try:
        make_private_directory(directory)
        found = os.lstat(directory)
    except OSError as error:
        raise _recording_failed(directory, error) from error
    refuse_shared(directory, found, 0o077)


def _recording_failed(directory: str, error: OSError) -> SandboxError:
    return SandboxError(
        f"cannot record the original text in {directory}: {error.strerror}",
        hint="nothing was changed; "
        + disk_hint(error, directory, "set XDG_STATE_HOME to another directory that you own"),
    )


def _stored_path(path: str, ending: str) -> str:
    digest = sha256(os.fsencode(path)).hexdigest()[:32]
    return os.path.join(directories().state, STORE, f"{digest}.{ending}")
