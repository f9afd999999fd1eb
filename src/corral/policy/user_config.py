"""The user's config.toml: what it sets for every run."""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import CONFIG_FILE, Directories, directories, home_directory
from corral.errors import ManifestError, PolicyError
from corral.policy.manifest import (
    Manifest,
    broken,
    decode_toml,
    in_order,
    nearest,
    path_text,
    read_file,
)
from corral.policy.schema import BY_PATH
from corral.record import record, replace
from corral.safe_text import printable, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.policy.validation import Reading

__all__ = ["Config", "Directories", "directories", "home_directory", "load"]

TABLES = ("ceilings", "network")
MOST_ADMITTED = 64


@record
class Config:
    """`ceilings`: a manifest whose limits nothing may exceed. `admit`: networks that names which a
    policy allows may lead to, past the address guard.
    """

    ceilings: Manifest | None = None
    admit: tuple[str, ...] = ()


def load(directory: str | None = None) -> Config:
    """config.toml of the user's, empty if there is none.

    The file is the user's word, so it counts only if nobody else could have written it.
    """
    path = os.path.join(directories().config if directory is None else directory, CONFIG_FILE)
    if not os.path.lexists(path):
        return Config()
    content = read_file(path, check=lambda found: check_owner(path, found))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise broken(path, None, "not UTF-8 text") from None
    data, places = decode_toml(text, path)
    return read_config(data, path, places)


def read_config(data: Mapping[str, object], path: str, places: Mapping[str, int]) -> Config:
    from corral.policy.validation import Reading

    reading = Reading(printable(path), places, [])
    for name in data:
        if name not in TABLES:
            reading.wrong(path_text((name,)), f"unknown key; known here: {', '.join(TABLES)}")
    limits = _limits(reading, _table(reading, data, "ceilings"))
    admit = _admitted(reading, _table(reading, data, "network"))
    if reading.mistakes:
        raise ManifestError(
            in_order(reading.mistakes), hint=f"{CONFIG_FILE} holds [ceilings] and [network] admit"
        )
    ceilings = replace(Manifest(origin=path, file=path, places=places), limits=limits)
    return Config(ceilings=ceilings, admit=admit)


def _table(reading: Reading, data: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = data.get(name, {})
    if isinstance(table, dict):
        return table
    reading.wrong(name, "is a table of keys")
    return {}


def _limits(reading: Reading, table: Mapping[str, object]) -> dict[str, object]:
    limits: dict[str, object] = {}
    for name, value in table.items():
        key = BY_PATH.get(f"limits.{name}")
        if key is None or "." in name:
            reading.wrong(path_text(("ceilings", name)), f"unknown key; {nearest(name, 'limits')}")
        else:
            limits[name] = reading.value(replace(key, path=f"ceilings.{name}"), value)
    return limits


def _admitted(reading: Reading, table: Mapping[str, object]) -> tuple[str, ...]:
    """Hosts are allowed in policies, where it is seen who asks: this file has no list of them."""
    for name in table:
        if name != "admit":
            reading.wrong(path_text(("network", name)), "unknown key; known here: admit")
    entries = table.get("admit", [])
    if not isinstance(entries, list) or len(entries) > MOST_ADMITTED:
        reading.wrong("network.admit", f"is a list of at most {MOST_ADMITTED} networks")
        return ()
    found = [_network(reading, index, entry) for index, entry in enumerate(entries)]
    return tuple(dict.fromkeys(filter(None, found)))


def _network(reading: Reading, index: int, entry: object) -> str:
    from corral.network.guard_exceptions import parse_admitted

    if isinstance(entry, str):
        try:
            return str(parse_admitted(entry))
        except ValueError as error:
            why = str(error)
    else:
        why = "is no text"
    reading.wrong(f"network.admit[{index}]", f"{shown(entry)}: {why}")
    return ""


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
