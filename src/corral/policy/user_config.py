"""Read the user's config.toml, which applies to every run."""

from __future__ import annotations

import os
import stat
import sys

from corral.directories import CONFIG_FILE, config_file
from corral.errors import ManifestError, PolicyError
from corral.policy.manifest import Manifest, decode_toml, file_error, read_file, sort_mistakes
from corral.policy.schema import BY_PATH
from corral.policy.validation import Validator, format_path, suggest_key
from corral.record import record, replace
from corral.safe_text import printable, shell_word, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = ("ceilings", "network")
MAX_ADMITTED = 64


@record
class Config:
    """The user's config. `ceilings` is a manifest whose limits no source may exceed. `admit` lists
    networks that the address guard would otherwise refuse.
    """

    ceilings: Manifest | None = None
    admit: tuple[str, ...] = ()


def load(directory: str | None = None) -> Config:
    """Return the user's config.toml, or an empty Config if there is no such file. The file counts
    as the user's decision, so refuse it if other users could have written it.
    """
    path = config_file() if directory is None else os.path.join(directory, CONFIG_FILE)
    if not os.path.lexists(path):
        return Config()
    content = read_file(path, check=lambda found: check_owner(path, found))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise file_error(path, None, "not UTF-8 text") from None
    data, lines = decode_toml(text, path)
    return read_config(data, path, lines)


def read_config(data: Mapping[str, object], path: str, lines: Mapping[str, int]) -> Config:
    validator = Validator(printable(path), lines, [])
    for name in data:
        if name not in TABLES:
            validator.add(format_path((name,)), f"unknown key; known here: {', '.join(TABLES)}")
    limits = _limits(validator, _table(validator, data, "ceilings"))
    admit = _admitted(validator, _table(validator, data, "network"))
    if validator.mistakes:
        raise ManifestError(
            sort_mistakes(validator.mistakes),
            hint=f"{CONFIG_FILE} may contain only the table `ceilings` and the key `network.admit`",
        )
    ceilings = replace(Manifest(origin=path, file=path, lines=lines), limits=limits)
    return Config(ceilings=ceilings, admit=admit)


def _table(validator: Validator, data: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = data.get(name, {})
    if isinstance(table, dict):
        return table
    validator.add(name, "must be a table of keys")
    return {}


def _limits(validator: Validator, table: Mapping[str, object]) -> dict[str, object]:
    limits: dict[str, object] = {}
    for name, value in table.items():
        key = BY_PATH.get(f"limits.{name}")
        if key is None or "." in name:
            validator.add(
                format_path(("ceilings", name)), f"unknown key; {suggest_key(name, 'limits')}"
            )
        else:
            limits[name] = validator.value(replace(key, path=f"ceilings.{name}"), value)
    return limits


def _admitted(validator: Validator, table: Mapping[str, object]) -> tuple[str, ...]:
    """Return the networks in `network.admit`, the only key of `network` in config.toml."""
    for name in table:
        if name != "admit":
            validator.add(format_path(("network", name)), "unknown key; known here: admit")
    entries = table.get("admit", [])
    if not isinstance(entries, list) or len(entries) > MAX_ADMITTED:
        validator.add("network.admit", f"must be a list of at most {MAX_ADMITTED} networks")
        return ()
    found: list[str] = []
    for index, entry in enumerate(entries):
        from corral.network.guard_exceptions import parse_admitted

        try:
            if not isinstance(entry, str):
                raise ValueError("is not a string")  # noqa: TRY004
            found.append(str(parse_admitted(entry)))
        except ValueError as error:
            validator.add(f"network.admit[{index}]", f"{shown(entry)}: {error}")
    return tuple(dict.fromkeys(found))


def check_owner(path: str, found: os.stat_result) -> None:
    """Refuse a file that another user owns or can write to. Accept files that root owns, because
    root may set ceilings for all users.
    """
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
            hint=f"chmod go-w {shell_word(path)}",
        )
