"""Where the user's own files live.

Written by hand because a directory library costs more at start than everything else here.
"""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE = "config.toml"
NOWHERE = "/nonexistent"
"""As user databases say it of accounts without a home."""


@record
class Directories:
    config: str
    state: str
    cache: str


def home_directory(environ: Mapping[str, str] | None = None) -> str:
    """HOME if it is absolute, otherwise what the user database says."""
    environ = os.environ if environ is None else environ
    name = "USERPROFILE" if sys.platform == "win32" else "HOME"
    home = environ.get(name, "")
    home = home if os.path.isabs(home) else _recorded_home()
    if os.path.isabs(home):
        return home
    raise SandboxError(
        f"{name} names no directory, and nothing else says where your files are",
        hint=f"set {name} to an absolute path",
    )


def _recorded_home() -> str:
    """Not by expanduser, which believes HOME whatever it says."""
    if sys.platform == "win32":
        return os.environ.get("HOMEDRIVE", "") + os.environ.get("HOMEPATH", "")
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return NOWHERE


def directories(environ: Mapping[str, str] | None = None, home: str | None = None) -> Directories:
    """Absolute paths; nothing is created. Relative values in the environment are ignored (XDG)."""
    environ = os.environ if environ is None else environ
    home = home_directory(environ) if home is None else home
    if sys.platform == "win32":
        roaming = absolute(environ, "APPDATA", os.path.join(home, "AppData", "Roaming"))
        local = absolute(environ, "LOCALAPPDATA", os.path.join(home, "AppData", "Local"))
        own = os.path.join(local, "corral")
        return Directories(
            config=os.path.join(roaming, "corral"),
            state=os.path.join(own, "state"),
            cache=os.path.join(own, "cache"),
        )
    if sys.platform == "darwin":
        library = os.path.join(home, "Library")
        config = os.path.join(library, "Application Support", "corral")
        return Directories(
            config=config,
            state=os.path.join(config, "state"),
            cache=os.path.join(library, "Caches", "corral"),
        )
    places = {
        "config": absolute(environ, "XDG_CONFIG_HOME", os.path.join(home, ".config")),
        "state": absolute(environ, "XDG_STATE_HOME", os.path.join(home, ".local", "state")),
        "cache": absolute(environ, "XDG_CACHE_HOME", os.path.join(home, ".cache")),
    }
    return Directories(**{name: os.path.join(path, "corral") for name, path in places.items()})


def absolute(environ: Mapping[str, str], name: str, otherwise: str) -> str:
    value = environ.get(name, "")
    return value if os.path.isabs(value) else otherwise


def config_file() -> str:
    return os.path.join(directories().config, CONFIG_FILE)
