"""Read the user's npm settings: the registries that npm would use, and their credentials."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.programs.needed_files import read_text
from corral.safe_text import shown
from corral.servers.packages.sources import (
    Registry,
    fingerprint,
    plain_index,
    without_credentials,
)

DEFAULT_URL = "https://registry.npmjs.org/"
CREDENTIALS = ("_authToken", "_auth", "_password", "username", "email")
SETTINGS_FILE = ".npmrc"


def fingerprint_registry(environment: Mapping[str, str]) -> str:
    settings = read_settings(environment)
    scopes = sorted(f"{key}={url}" for key, url in settings.items() if _is_scope(key))
    return fingerprint([settings.get("registry", DEFAULT_URL), *scopes], DEFAULT_URL)


def read_registry(environment: Mapping[str, str]) -> Registry:
    """Return the registries that the user's own npm would use, with their credentials."""
    settings = read_settings(environment)
    scopes = [url for key, url in settings.items() if _is_scope(key)]
    urls = [settings.get("registry", DEFAULT_URL), *scopes]
    for url in urls:
        plain = without_credentials(url)
        if not url.startswith(("https://", "http://")):
            raise SandboxError(f"the npm registry {shown(plain)} is not a web address")
        if plain != url:
            # Refuse the address, because npm would write the password into files that are kept.
            raise SandboxError(
                f"the address of the npm registry {shown(plain)} has a password in it",
                hint="npm takes credentials from //HOST/:_authToken=... in .npmrc",
            )
    values = [settings[key] for key in _credential_keys(settings, urls)]
    authority = settings.get("cafile", "")
    return Registry(
        urls=tuple(dict.fromkeys(urls)),
        secrets={f"CORRAL_NPM_{at}": value for at, value in enumerate(values)},
        hidden=tuple(filter(None, values)),
        reads=(authority,) if os.path.isabs(authority) and os.path.isfile(authority) else (),
    )


def find_index(
    names: Iterable[str], archives: Iterable[str], environment: Mapping[str, str]
) -> str:
    """Return the registry that packages with these names and archive addresses come from.

    Return "" if a package's scope has its own registry, or if an archive is on another host. An
    archive can be on another host, because a package can choose the addresses of its dependencies.
    """
    settings = read_settings(environment)
    registry = settings.get("registry", DEFAULT_URL)
    scopes = tuple(key.removesuffix(":registry") + "/" for key in settings if _is_scope(key))
    host = registry.split("/")[:3]
    if any(name.startswith(scopes) for name in names):
        return ""
    return plain_index(registry) if all(url.split("/")[:3] == host for url in archives) else ""


def _is_scope(key: str) -> bool:
    return key.startswith("@") and key.endswith(":registry")


def _credential_keys(settings: Mapping[str, str], urls: Sequence[str]) -> list[str]:
    """Return those keys of npm's settings that contain credentials for these registries."""
    addresses = [url.partition(":")[2].rstrip("/") + "/" for url in urls]
    return [
        key
        for key in settings
        if key.startswith("//")
        and key.endswith(CREDENTIALS)
        and any(one.startswith(key.rpartition(":")[0].rstrip("/") + "/") for one in addresses)
    ]


def settings_lines(registry: Registry, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the keys and values of the .npmrc for the sandbox. The file contains no secrets,
    because each credential is replaced with a variable such as ${CORRAL_NPM_0}.
    """
    settings = read_settings(environment)
    kept = {key: value for key, value in settings.items() if _is_scope(key) or key == "cafile"}
    named = zip(_credential_keys(settings, registry.urls), registry.secrets, strict=True)
    return [
        ("registry", registry.urls[0]),
        *kept.items(),
        *((key, f"${{{variable}}}") for key, variable in named),
    ]


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return npm's settings. The user's settings override those of the machine. The environment
    variables for `registry` and `cafile` override both. Settings in the working directory are
    ignored, because another person may have written them.
    """
    own = environment.get("NPM_CONFIG_USERCONFIG") or environment.get("npm_config_userconfig")
    files = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"]
    if sys.platform == "win32":
        # Do not read files in \etc on Windows, because any user may create such a directory there.
        files = [os.path.join(environment.get("APPDATA", ""), "npm", "etc", "npmrc")]
    files.append(own or os.path.join(home_directory(environment), SETTINGS_FILE))
    found: dict[str, str] = {}
    for file in files:
        found.update(_read_file(file, environment))
    for name, value in environment.items():
        if name.lower() in {"npm_config_registry", "npm_config_cafile"} and value:
            found[name.lower().removeprefix("npm_config_")] = value
    if authority := found.get("cafile"):
        found["cafile"] = _resolve_path(authority, home_directory(environment))
    return found


def _resolve_path(path: str, home: str) -> str:
    """Return the absolute form of a path, as npm does. `~/` means the home directory, and any other
    relative path is relative to the working directory.
    """
    if path.startswith(("~/", "~\\") if sys.platform == "win32" else "~/"):
        return os.path.join(home, path[2:])
    return os.path.abspath(path)


def _read_file(file: str, environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in read_text(file).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            text = value.strip().strip("\"'")
            import re  # imported here, because most users have no settings and do not need it

            filled = re.sub(r"\$\{(\w+)\}", lambda m: environment.get(m[1], ""), text)
            found[key.strip()] = filled
    return found
