"""List, measure and remove the home directories that servers keep between runs (`state = true`).

On Windows this module lists no homes. There each home is part of the server's AppContainer profile,
and is deleted with the profile.
"""

import os
import stat
import sys
from contextlib import suppress

from corral.denials.server_id import ServerId
from corral.directories import directories, is_private, target_homes
from corral.errors import SandboxError
from corral.platforms import run_records
from corral.platforms.run_records import NAME_OF_STATE as NAME
from corral.record import record
from corral.safe_text import is_digest, shell_word

MAX_ENTRIES = 100_000
DIGITS = 64  # of a digest


@record
class State:
    """A home that a server keeps between runs.

    `server` identifies the server. It comes from a file next to the home, and is empty if that file
    cannot be read.
    """

    path: str
    server: ServerId


def list_states() -> list[State]:
    if sys.platform == "win32":
        return []
    found = _list_homes(os.path.join(directories().state, "servers"), 0o077)
    if sys.platform == "linux" and os.geteuid() == 0:
        found += _list_homes(target_homes(), 0o022)
    return found


def _list_homes(base: str, forbidden: int) -> list[State]:
    """Return the homes in `base`. Return an empty list if another user owns `base`, or if its mode
    has a bit of `forbidden`, because another user could then have created the homes.
    """
    try:
        # Check the mode of `base`, not those of the homes, because a server may have changed the
        # mode of its own home.
        if not is_private(os.lstat(base), forbidden):
            return []
        names = sorted(os.listdir(base))
        found = [os.path.join(base, name) for name in names if not name.endswith(NAME)]
        homes = [path for path in found if stat.S_ISDIR(os.lstat(path).st_mode)]
    except OSError:
        return []
    return [State(path=path, server=_read_server(path)) for path in homes]


def _read_server(path: str) -> ServerId:
    """Return the server that a home belongs to. The digest is empty if an earlier version of corral
    made the home, because earlier versions wrote only the server's command.
    """
    try:
        with open(path + NAME, "rb") as file:
            first, *words = os.fsdecode(file.read()).split("\0")
    except OSError:
        return ServerId(digest="", command=())
    digest, directory = first[:DIGITS], first[DIGITS:]
    if is_digest(digest) and (not directory or os.path.isabs(directory)):
        return ServerId(digest=digest, command=tuple(words), directory=directory)
    return ServerId(digest="", command=(first, *words))


def measure(path: str) -> int:
    """Return the total size of the files below `path`, in bytes.

    Do not follow symlinks. After MAX_ENTRIES files and directories open no more directories, so the
    result is then too low.
    """
    total = seen = 0
    pending = [path]
    while pending and seen < MAX_ENTRIES:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # the server removed the entry, or made it unreadable
    return total


def remove(state: State) -> None:
    if sys.platform != "win32":
        from corral.platforms.posix import run_directories

        # If root runs corral, the target may have run as another user, who then owns the home. By
        # default `run_directories.remove` would refuse such a home, so name its owner. This is safe
        # for any owner, because only corral makes homes in the directory above.
        owner = os.lstat(state.path).st_uid
        run_directories.remove(state.path, run_records.Budget(), owner=owner)
        if os.path.lexists(state.path):
            raise SandboxError(
                f"{state.path} could not be removed completely",
                hint=f"end the server's runs, then: rm -rf {shell_word(state.path)}",
            )
        with suppress(FileNotFoundError):
            os.unlink(state.path + NAME)
