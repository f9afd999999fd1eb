"""Remove the user's names and paths from a result of `corral demo`, so that it can be published."""

import getpass
import os
import platform
import re
import tempfile
from collections.abc import Mapping

MIN_NAME_LENGTH = 3  # shorter names, such as the home directory `/`, would match in many places


def remove_names(value: object) -> object:
    """Replace the user's paths, user name and machine name in all strings in the value."""
    names = _list_names()
    # Replace whole words only, because the user name `root` must not change `pivot_root`.
    words = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)
    return _replace(value, re.compile(words), names) if names else value


def _list_names() -> dict[str, str]:
    """Return {name: replacement}, longest name first, because one name may contain another."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""  # this user's id has no name in the user database
    found = {
        os.path.realpath(tempfile.gettempdir()): "TMP",
        tempfile.gettempdir(): "TMP",
        os.path.realpath(os.path.expanduser("~")): "HOME",
        os.path.expanduser("~"): "HOME",
        user: "USER",
        platform.node(): "MACHINE",
    }
    usable = [name for name in found if len(name) >= MIN_NAME_LENGTH]
    return {name: found[name] for name in sorted(usable, key=len, reverse=True)}


def _replace(value: object, words: re.Pattern[str], names: Mapping[str, str]) -> object:
    if isinstance(value, dict):
        return {key: _replace(item, words, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(item, words, names) for item in value]
    if isinstance(value, str):
        return words.sub(lambda found: names[found[0]], value)
    return value
