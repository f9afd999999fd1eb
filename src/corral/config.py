"""The user's config.toml: the ceilings that it sets for every run."""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import CONFIG_FILE, Directories, directories, home_directory
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
from corral.record import replace
from corral.schema import BY_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Directories", "directories", "home_directory", "load_ceilings"]


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
