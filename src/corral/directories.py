"""Find the directories of the user and of corral, and check that only the user can write to them.

No library is used for this, because importing it would take longer than the rest of corral's start.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.errors import PolicyError, SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE = "config.toml"
STAGING = "-staging"
"""Packages are assembled in a directory beside the cache, whose name has this suffix."""
WORK_DIRECTORIES = "/tmp/corral-"  # noqa: S108 - the directories are new and 0700
"""The beginning of the path of each private directory for a run without its own root filesystem."""
NO_HOME = "/nonexistent"
"""The path that user databases list for accounts that do not have a home directory."""


@record
class Directories:
    config: str
    state: str
    cache: str


def home_directory(environ: Mapping[str, str] | None = None) -> str:
    """Return HOME (on Windows USERPROFILE) if it is absolute, otherwise `recorded_home`. Raise
    SandboxError if neither is absolute.
    """
    environ = os.environ if environ is None else environ
    name = "USERPROFILE" if sys.platform == "win32" else "HOME"
    home = environ.get(name, "")
    home = home if os.path.isabs(home) else recorded_home()
    if os.path.isabs(home):
        return home
    raise SandboxError(
        f"cannot find your home directory: {name} is not an absolute path",
        hint=f"set {name} to an absolute path",
    )


def recorded_home() -> str:
    """Return the home directory from the user database, or NO_HOME if the user is not in it. On
    Windows, return HOMEDRIVE followed by HOMEPATH.

    Do not call `expanduser`, because it would return HOME even if HOME is invalid.
    """
    if sys.platform == "win32":
        return os.environ.get("HOMEDRIVE", "") + os.environ.get("HOMEPATH", "")
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return NO_HOME


def directories(environ: Mapping[str, str] | None = None, home: str | None = None) -> Directories:
    """Return the absolute paths of corral's directories, which may not exist yet. Ignore variables
    such as XDG_CACHE_HOME if they contain a relative path.
    """
    environ = os.environ if environ is None else environ
    home = home_directory(environ) if home is None else home
    if sys.platform == "win32":
        roaming = absolute(environ, "APPDATA", os.path.join(home, "AppData", "Roaming"))
        # State and cache are not in AppData. If a client is installed as a package (MSIX), Windows
        # redirects what the client and its children write to AppData. Other programs, such as a
        # corral that is started in a terminal, would not find these files.
        own = os.path.join(home, ".corral")
        config, state = os.path.join(roaming, "corral"), os.path.join(own, "state")
        cache = os.path.join(own, "cache")
    elif sys.platform == "darwin":
        config = os.path.join(home, "Library", "Application Support", "corral")
        state = os.path.join(config, "state")
        cache = os.path.join(home, "Library", "Caches", "corral")
    else:
        bases = (
            absolute(environ, "XDG_CONFIG_HOME", os.path.join(home, ".config")),
            absolute(environ, "XDG_STATE_HOME", os.path.join(home, ".local", "state")),
            absolute(environ, "XDG_CACHE_HOME", os.path.join(home, ".cache")),
        )
        config, state, cache = (os.path.join(base, "corral") for base in bases)
    return Directories(config=config, state=state, cache=cache)


def target_homes() -> str:
    """Return the directory for the persistent homes (`state = true`) of targets that root runs
    without namespaces.

    These targets have another user id, which may not enter root's home.
    """
    return os.path.join(absolute(os.environ, "XDG_STATE_HOME", "/var/lib"), "corral-homes")


def absolute(environ: Mapping[str, str], name: str, otherwise: str) -> str:
    value = environ.get(name, "")
    return value if os.path.isabs(value) else otherwise


def config_file() -> str:
    return os.path.join(directories().config, CONFIG_FILE)


def is_private(found: os.stat_result, forbidden: int = 0o022) -> bool:
    """Return whether a file belongs to this user and has none of the `forbidden` mode bits.

    On Windows, return True: the access list of the user's profile protects the file.
    """
    if sys.platform == "win32":
        return True
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden


def refuse_shared(path: str, found: os.stat_result, forbidden: int = 0o022) -> None:
    """Raise PolicyError unless the path is a directory for which `is_private` returns True."""
    if not stat.S_ISDIR(found.st_mode) or not is_private(found, forbidden):
        from corral.safe_text import printable, shell_word

        shown, word = printable(path), shell_word(path)
        hint = f"check its content, then: chmod 700 {word}"
        if not stat.S_ISDIR(found.st_mode):
            hint = f"check what it is, then remove it: rm {word}"
        elif sys.platform != "win32" and found.st_uid != os.geteuid():
            hint = f"it belongs to user {found.st_uid}; "
            # Do not suggest `chown` if root runs corral. With `sudo`, the directory may be in the
            # home of the user who called `sudo`.
            hint += (
                f"to make it yours: sudo chown -R {os.geteuid()} {word}"
                if os.geteuid()
                else "start corral as that user, or with root's own home: sudo -H corral ..."
            )
        raise PolicyError(f"{shown} is not a directory that only you can write to", hint=hint)
