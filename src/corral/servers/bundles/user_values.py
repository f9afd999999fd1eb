"""What the user says for a bundle's `user_config`, and the command that comes of it.

A directory or file that the user named for the bundle is granted for reading; to let it be changed
takes `--write` as well, since the manifest has no word for the difference. One that only the bundle
names, as a default, is a request. Sensitive values become secrets.
"""

from __future__ import annotations

import os
import re

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.servers.bundles.manifest import Bundle, Setting

VARIABLE = re.compile(r"\$\{([^${}]*)\}")
FILE = "bundles.toml"


@record
class Values:
    """`said` are keys whose value is the user's own word; the others are the bundle's defaults.

    Those `kept` were said to a bundle of this name, and any file can call itself by it.
    """

    texts: Mapping[str, tuple[str, ...]]
    said: frozenset[str]
    kept: tuple[str, ...] = ()


def collect(bundle: Bundle, flags: Iterable[str], kept: Mapping[str, object]) -> Values:
    given: dict[str, list[str]] = {}
    taken: list[str] = []
    for word in flags:
        key, equals, value = word.partition("=")
        if not equals:
            raise SandboxError(f"--config {shown(key)} has no value", hint="--config KEY=VALUE")
        given.setdefault(key, []).append(value)
    for key, said in kept.items():
        items = said if isinstance(said, list) else [said]
        if key not in given:
            given[key] = [_written(item) for item in items]
            taken.append(key)
    for key in given:
        if key not in bundle.settings:
            known = ", ".join(bundle.settings) or "none"
            raise SandboxError(f"{bundle.name} has no setting {shown(key)}", hint=f"known: {known}")
    texts = {
        key: tuple(check(setting, given[key])) if key in given else setting.default
        for key, setting in bundle.settings.items()
    }
    return Values(texts=texts, said=frozenset(given), kept=tuple(taken))


def defaults(bundle: Bundle) -> Values:
    """As if the user had said nothing."""
    texts = {key: setting.default for key, setting in bundle.settings.items()}
    return Values(texts=texts, said=frozenset())


def _written(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def check(setting: Setting, given: Sequence[str]) -> list[str]:
    if len(given) > 1 and not setting.multiple:
        raise SandboxError(f"{shown(setting.key)} takes one value")
    return [check_one(setting, value) for value in given]


def check_one(setting: Setting, value: str) -> str:
    match setting.shape:
        case "boolean":
            if value not in {"true", "false"}:
                raise SandboxError(f"{shown(setting.key)} is true or false")
        case "number":
            check_number(setting, value)
        case "directory" | "file":
            path = os.path.abspath(os.path.expanduser(value))
            right = os.path.isdir(path) if setting.shape == "directory" else os.path.isfile(path)
            if not right:
                raise SandboxError(
                    f"{shown(setting.key)}: {shown(value, 200)} is no {setting.shape}"
                )
            return path
        case "string":
            pass
    return value


def check_number(setting: Setting, value: str) -> None:
    try:
        number = float(value)
    except ValueError:
        raise SandboxError(f"{shown(setting.key)} is a number") from None
    low, high = setting.low, setting.high
    # Written so that `nan`, which compares with nothing, is refused.
    if not ((low is None or number >= low) and (high is None or number <= high)):
        raise SandboxError(f"{shown(setting.key)} lies outside of what the bundle allows")


def missing(bundle: Bundle, values: Values, provided: Iterable[str]) -> list[Setting]:
    """Required settings without a value, but for those whose variable the user passes anyway."""
    passed = set(provided)
    found: list[Setting] = []
    for key, setting in bundle.settings.items():
        if setting.required and not any(values.texts[key]):
            mark = f"${{user_config.{key}}}"
            names = {name for name, text in bundle.environment.items() if mark in text}
            if not names & passed:
                found.append(setting)
    return found


def places(directory: str, home: str) -> dict[str, str]:
    folders = {name: os.path.join(home, name.capitalize()) for name in ("desktop", "documents")}
    return {
        "__dirname": directory,
        "HOME": home,
        "DESKTOP": folders["desktop"],
        "DOCUMENTS": folders["documents"],
        "DOWNLOADS": os.path.join(home, "Downloads"),
        "pathSeparator": os.sep,
        "/": os.sep,
    }


def substitute(text: str, known: Mapping[str, str], values: Values) -> str:
    """Once, from left to right: what a value brings along is never looked at again."""

    def one(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("user_config."):
            return ",".join(values.texts.get(name.removeprefix("user_config."), ()))
        if name not in known:
            raise SandboxError(f"the bundle uses {shown(found[0])}, which nobody knows")
        return known[name]

    return VARIABLE.sub(one, text)


def expand(words: Iterable[str], known: Mapping[str, str], values: Values) -> list[str]:
    """Arguments; one that is only a setting with several values becomes as many."""
    found: list[str] = []
    for word in words:
        whole = VARIABLE.fullmatch(word)
        key = whole[1].removeprefix("user_config.") if whole else ""
        if whole and whole[1] != key:
            found += values.texts.get(key, ())
        else:
            found.append(substitute(word, known, values))
    return found


def mentioned(text: str) -> list[str]:
    """The settings that a text uses."""
    names = (found[1] for found in VARIABLE.finditer(text))
    return [name.removeprefix("user_config.") for name in names if name.startswith("user_config.")]


def read_kept(name: str) -> Mapping[str, object]:
    """`[name]` of bundles.toml in corral's configuration: the user's word, so only if nobody else
    could have written it.
    """
    from corral.directories import directories
    from corral.policy.manifest import decode_toml, read_file
    from corral.policy.user_config import check_owner

    path = os.path.join(directories().config, FILE)
    if not os.path.lexists(path):
        return {}
    content = read_file(path, check=lambda found: check_owner(path, found))
    data, _ = decode_toml(content.decode("utf-8", "replace"), path)
    table = data.get(name, {})
    return table if isinstance(table, dict) else {}
