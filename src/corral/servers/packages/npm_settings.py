"""Where the user's own npm would look for packages, and with which credentials."""

from __future__ import annotations

import os

from corral.errors import SandboxError
from corral.safe_text import shown
from corral.servers.packages.source import Registry, plain, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT = "https://registry.npmjs.org/"
CREDENTIALS = ("_authToken", "_auth", "_password", "username", "email")
SETTINGS = ".npmrc"


def origin(environment: Mapping[str, str]) -> str:
    """The registries in one word; "" for npm's own."""
    return told(addresses(read_settings(environment)), DEFAULT)


def addresses(found: Mapping[str, str]) -> list[str]:
    return [found.get("registry", DEFAULT), *(url for key, url in found.items() if is_scope(key))]


def settings(environment: Mapping[str, str]) -> Registry:
    """The registries that the user's own npm would ask, with what it would show them."""
    found = read_settings(environment)
    urls = addresses(found)
    for url in urls:
        if not url.startswith(("https://", "http://")):
            raise SandboxError(f"the npm registry {shown(plain(url))} is no web address")
        if plain(url) != url:
            # npm would write it into files that are kept.
            raise SandboxError(
                f"the address of the npm registry {shown(plain(url))} has a password in it",
                hint="npm takes credentials from //HOST/:_authToken=... in .npmrc",
            )
    values = [found[key] for key in credentials(found, urls)]
    authority = found.get("cafile", "")
    return Registry(
        urls=tuple(dict.fromkeys(urls)),
        secrets={f"CORRAL_NPM_{at}": value for at, value in enumerate(values)},
        hidden=tuple(filter(None, values)),
        reads=(authority,) if os.path.isabs(authority) and os.path.isfile(authority) else (),
    )


def is_scope(key: str) -> bool:
    return key.startswith("@") and key.endswith(":registry")


def credentials(found: Mapping[str, str], urls: Sequence[str]) -> list[str]:
    """The keys that are for one of these registries; the others are none of its business."""
    places = [url.partition(":")[2].rstrip("/") + "/" for url in urls]
    return [
        key
        for key in found
        if key.startswith("//")
        and key.endswith(CREDENTIALS)
        and any(place.startswith(key.rpartition(":")[0].rstrip("/") + "/") for place in places)
    ]


def lines(registry: Registry, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings file inside; credentials stay in variables that nothing prints."""
    found = read_settings(environment)
    kept = {key: value for key, value in found.items() if is_scope(key) or key == "cafile"}
    named = zip(credentials(found, registry.urls), registry.secrets, strict=True)
    return [
        ("registry", registry.urls[0]),
        *kept.items(),
        *((key, f"${{{variable}}}") for key, variable in named),
    ]


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of npm, weakest first: the machine's, the user's, the environment's.

    The working directory's are left out: it may be anybody's.
    """
    from corral.directories import home_directory

    own = environment.get("NPM_CONFIG_USERCONFIG") or environment.get("npm_config_userconfig")
    files = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"]
    files.append(own or os.path.join(home_directory(environment), SETTINGS))
    found: dict[str, str] = {}
    for file in files:
        found.update(read_lines(file, environment))
    for name, value in environment.items():
        if name.lower() in {"npm_config_registry", "npm_config_cafile"} and value:
            found[name.lower().removeprefix("npm_config_")] = value
    return found


def read_lines(file: str, environment: Mapping[str, str]) -> dict[str, str]:
    import re

    from corral.programs.needed_files import read_text

    found: dict[str, str] = {}
    for line in read_text(file).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            text = value.strip().strip("\"'")
            whole = re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m[1], ""), text)
            found[key.strip()] = whole
    return found
