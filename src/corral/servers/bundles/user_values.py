"""Collect the user's values for a bundle's `user_config`, and insert them into the bundle's
command.

If the user gives a directory or a file as a value, the bundle may read it. To let the bundle write
to it, the user has to add `--write`, because a manifest does not say whether a bundle reads or
writes. A default path needs the user's approval, because the bundle's author chose it. Sensitive
values become secrets.
"""

import os
import re
from collections.abc import Iterable, Mapping

from corral.directories import directories
from corral.errors import SandboxError
from corral.policy.manifest import decode_toml, read_file
from corral.policy.user_config import check_owner
from corral.record import record
from corral.safe_text import shown
from corral.servers.bundles.manifest import Bundle, Setting, format_value

VARIABLE = re.compile(r"\$\{([^${}]*)\}")
FILE = "bundles.toml"
HOME_DIRECTORIES = ("Desktop", "Documents", "Downloads")


@record
class Values:
    """The values of a bundle's settings. `texts` maps the key of each setting to its values.

    `given` contains the keys of the settings that the user has set. All other settings have the
    bundle's defaults. `stored` contains the keys whose values come from the user's `bundles.toml`.
    A stored value applies to every bundle with this name, even if it has a different author.
    """

    texts: Mapping[str, tuple[str, ...]]
    given: frozenset[str]
    stored: tuple[str, ...] = ()


def parse_config(words: Iterable[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SandboxError(f"--config {shown(key)} has no value", hint="--config KEY=VALUE")
        found.append((key, value))
    return found


def collect(bundle: Bundle, flags: Iterable[str], stored: Mapping[str, object]) -> Values:
    given: dict[str, list[str]] = {}
    for key, text in parse_config(flags):
        given.setdefault(key, []).append(text)
    used = [key for key in stored if key not in given]
    for key in used:
        value = stored[key]
        given[key] = [format_value(one) for one in (value if isinstance(value, list) else [value])]
    for key in given:
        if key not in bundle.settings:
            known = ", ".join(bundle.settings) or "none"
            raise SandboxError(f"{bundle.name} has no setting {shown(key)}", hint=f"known: {known}")
    texts = {key: setting.default for key, setting in bundle.settings.items()}
    for key, words in given.items():
        setting = bundle.settings[key]
        if len(words) > 1 and not setting.multiple:
            raise SandboxError(f"{shown(key)} takes only one value")
        texts[key] = tuple(_check_value(setting, word) for word in words)
    return Values(texts=texts, given=frozenset(given), stored=tuple(used))


def defaults(bundle: Bundle) -> Values:
    return collect(bundle, (), {})


def _check_value(setting: Setting, value: str) -> str:
    match setting.shape:
        case "boolean":
            if value not in {"true", "false"}:
                raise SandboxError(f"{shown(setting.key)} must be true or false")
        case "number":
            _check_number(setting, value)
        case "directory" | "file":
            path = os.path.abspath(os.path.expanduser(value))
            exists = os.path.isdir if setting.shape == "directory" else os.path.isfile
            if not exists(path):
                text = f"{shown(setting.key)}: {shown(value, 200)} is not a {setting.shape}"
                raise SandboxError(text)
            return path
        case "string":
            pass
    return value


def _check_number(setting: Setting, value: str) -> None:
    try:
        number = float(value)
    except ValueError:
        raise SandboxError(f"{shown(setting.key)} must be a number") from None
    low, high = setting.low, setting.high
    # The condition is negated so that it also refuses `nan`, because every comparison with `nan` is
    # false.
    if not ((low is None or number >= low) and (high is None or number <= high)):
        raise SandboxError(f"the value of {shown(setting.key)} is outside of the bundle's limits")


def find_missing(bundle: Bundle, values: Values, provided: Iterable[str]) -> list[Setting]:
    """Return the required settings that have no value.

    `provided` contains the names of the variables that the user passes to the bundle. A setting
    that the bundle puts into one of these variables needs no value.
    """
    passed = set(provided)
    found: list[Setting] = []
    for key, setting in bundle.settings.items():
        if setting.required and not any(values.texts[key]):
            mark = f"${{user_config.{key}}}"
            names = {name for name, text in bundle.environment.items() if mark in text}
            if not names & passed:
                found.append(setting)
    return found


def known_paths(directory: str, home: str) -> dict[str, str]:
    """Return the paths and separators that a manifest may refer to as `${NAME}`, keyed by NAME."""
    return {
        "__dirname": directory,
        "HOME": home,
        **{name.upper(): os.path.join(home, name) for name in HOME_DIRECTORIES},
        "pathSeparator": os.sep,
        "/": os.sep,
    }


def substitute(text: str, known: Mapping[str, str], values: Values) -> str:
    """Replace each `${...}` with its value. Several values of a setting are joined with commas. A
    `${...}` inside an inserted value is not replaced.
    """

    def replacement(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("user_config."):
            return ",".join(values.texts.get(name.removeprefix("user_config."), ()))
        if name not in known:
            raise SandboxError(f"the bundle uses {shown(found[0])}, which corral does not know")
        return known[name]

    return VARIABLE.sub(replacement, text)


def expand(words: Iterable[str], known: Mapping[str, str], values: Values) -> list[str]:
    """Replace each `${...}` in the arguments with its value. If an argument is exactly
    `${user_config.KEY}`, replace it with one argument for each value of that setting.
    """
    found: list[str] = []
    for word in words:
        match = VARIABLE.fullmatch(word)
        key = match[1].removeprefix("user_config.") if match else ""
        if match and match[1] != key:
            found += values.texts.get(key, ())
        else:
            found.append(substitute(word, known, values))
    return found


def find_keys(text: str) -> list[str]:
    names = (found[1] for found in VARIABLE.finditer(text))
    return [name.removeprefix("user_config.") for name in names if name.startswith("user_config.")]


def read_stored(name: str) -> Mapping[str, object]:
    """Return the table `[name]` of bundles.toml in corral's configuration directory. Refuse the
    file if other users can write to it, or if it belongs neither to this user nor to root.
    """
    path = os.path.join(directories().config, FILE)
    if not os.path.lexists(path):
        return {}
    content = read_file(path, check=lambda found: check_owner(path, found))
    data, _ = decode_toml(content.decode("utf-8", "replace"), path)
    table = data.get(name, {})
    return table if isinstance(table, dict) else {}
