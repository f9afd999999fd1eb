"""Where the user's own files live, and the ceilings that they set for every run.

Written by hand because a directory library costs more at start than everything else here.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.errors import ManifestError, PolicyError
from corral.manifest import (
    Manifest,
    broken,
    decode_toml,
    in_order,
    nearest,
    path_text,
    printable,
    read_file,
)
from corral.record import record, replace
from corral.schema import BY_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE = "config.toml"


@record
class Directories:
    config: str
    state: str
    cache: str


def home_directory(environ: Mapping[str, str] | None = None) -> str:
    """HOME if it is absolute, otherwise what the user database says."""
    environ = os.environ if environ is None else environ
    home = environ.get("USERPROFILE" if sys.platform == "win32" else "HOME", "")
    return home if os.path.isabs(home) else os.path.expanduser("~")


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


def load_ceilings(directory: str | None = None) -> Manifest | None:
    """`[ceilings]` of config.toml as a manifest whose limits nothing may exceed; None if unsaid.

    The file is the user's word, so it counts only if nobody else could have written it.
    """
    path = os.path.join(directories().config if directory is None else directory, CONFIG_FILE)
    if not os.path.lexists(path):
        return None
    content = read_file(path, check=lambda found: check_owner(path, found))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise broken(path, None, "not UTF-8 text") from None
    data, places = decode_toml(text, path)
    return read_ceilings(data, path, places)


def read_ceilings(data: Mapping[str, object], path: str, places: Mapping[str, int]) -> Manifest:
    from corral.reading import Reading

    reading = Reading(printable(path), places, [])
    for name in data:
        if name != "ceilings":
            reading.wrong(path_text((name,)), "unknown key; known here: ceilings")
    table = data.get("ceilings", {})
    if not isinstance(table, dict):
        reading.wrong("ceilings", "is a table of limits")
        table = {}
    limits: dict[str, object] = {}
    for name, value in table.items():
        key = BY_PATH.get(f"limits.{name}")
        if key is None or "." in name:
            reading.wrong(path_text(("ceilings", name)), f"unknown key; {nearest(name, 'limits')}")
        else:
            limits[name] = reading.value(replace(key, path=f"ceilings.{name}"), value)
    if reading.mistakes:
        raise ManifestError(in_order(reading.mistakes))
    return replace(Manifest(origin=path, file=path, places=places), limits=limits)


def check_owner(path: str, found: os.stat_result) -> None:
    """Root may write it as well: an administrator can set ceilings for everybody."""
    if sys.platform == "win32":
        return
    if found.st_uid not in {0, os.geteuid()}:
        raise PolicyError(
            f"{printable(path)} belongs to user {found.st_uid}, not to you",
            hint="remove it, or make it yours with chown",
        )
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise PolicyError(
            f"{printable(path)} can be written by other users",
            hint=f"chmod go-w {printable(path)}",
        )
