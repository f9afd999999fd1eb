"""Read the user's settings for uv and pip: the package indexes that they would use, and the
credentials for these indexes.
"""

import os
import sys
from collections.abc import Mapping

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.programs.needed_files import read_text
from corral.record import record, replace
from corral.safe_text import shown
from corral.servers.packages.sources import Registry, fingerprint, without_credentials

DEFAULT_URL = "https://pypi.org/simple"
WINDOWS = sys.platform == "win32"
INTERPRETER = "Scripts/python.exe" if WINDOWS else "bin/python"
LINKS = () if WINDOWS else (INTERPRETER,)
"""Links that corral itself makes in an installed package, and that lead to an interpreter outside
of the package.
"""
UV_CERTIFICATES = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
TRUE_WORDS = frozenset(("1", "true", "yes", "on", "y", "t"))
FILE_HOSTS = {"pypi.org": "https://files.pythonhosted.org/"}


@record
class Indexes:
    """The user's settings for PyPI: the main index, more indexes, and pages with links to packages
    (`find-links`). `system_certificates` is true if uv has to use the system's certificates.
    """

    main: str = ""
    more: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    system_certificates: bool = False


def read_registry(environment: Mapping[str, str]) -> Registry:
    """Return the indexes from uv's settings, or else those from pip's settings, or else PyPI. The
    addresses may contain credentials, so they are passed to the installer in variables whose values
    are never printed.
    """
    found, from_uv = _read_indexes(environment)
    main = found.main
    urls: list[str] = []
    reads: list[str] = []
    for url in (main, *found.more, *found.links):
        if host := _parse_host(url):
            urls += [url, *([FILE_HOSTS[host]] if host in FILE_HOSTS else [])]
        else:
            reads.append(_index_root(_url_to_path(url)))
    variables = {
        "UV_DEFAULT_INDEX": main,
        "UV_INDEX": " ".join(found.more),
        "UV_FIND_LINKS": ",".join(found.links),
        "PIP_INDEX_URL": main,
        "PIP_EXTRA_INDEX_URL": " ".join(found.more),
        "PIP_FIND_LINKS": " ".join(found.links),
    }
    return Registry(
        urls=tuple(dict.fromkeys(urls)),
        reads=tuple(dict.fromkeys(path for path in reads if os.path.exists(path))),
        # pip takes the best version from all indexes, so uv must do the same if the indexes come
        # from pip's settings.
        settings={
            **({} if from_uv else {"UV_INDEX_STRATEGY": "unsafe-best-match"}),
            **(dict.fromkeys(UV_CERTIFICATES, "true") if found.system_certificates else {}),
        },
        secrets={name: value for name, value in variables.items() if value},
        hidden=tuple(filter(None, map(_parse_secret, urls))),
    )


def _read_indexes(environment: Mapping[str, str]) -> tuple[Indexes, bool]:
    """Return the indexes, and whether they come from uv's own settings."""
    found = _read_uv_settings(environment)
    trusted = found.system_certificates
    from_uv = replace(found, system_certificates=False) != Indexes()
    if not from_uv:
        found = replace(_read_pip_settings(environment), system_certificates=trusted)
    return replace(found, main=found.main or DEFAULT_URL), from_uv


def fingerprint_registry(environment: Mapping[str, str]) -> str:
    found, _ = _read_indexes(environment)
    return fingerprint((found.main, *found.more, *found.links), DEFAULT_URL)


def _parse_host(url: str) -> str:
    """Return the host of a web address, or "" for a path on this machine. Refuse anything else."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return parts.hostname
    if os.path.isabs(_url_to_path(url)):
        return ""
    plain = shown(without_credentials(url))
    raise SandboxError(f"the package index {plain} is not a web address or an absolute path")


def _parse_secret(url: str) -> str:
    """Return the password in an address. If the address has no password, return the user name,
    because it may be a token.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.password or parts.username or ""


def _url_to_path(url: str) -> str:
    from urllib.parse import unquote

    if not url.startswith("file://"):
        return url
    path = unquote(url.removeprefix("file://"))
    # On Windows, remove the slash before the drive: file:///C:/wheels is the path C:\wheels.
    return path[1:].replace("/", "\\") if WINDOWS and path[2:3] == ":" else path


def _index_root(path: str) -> str:
    """Return the parent of a directory named `simple`, because the parent usually also contains the
    files of the index. Return any other path unchanged.
    """
    path = path.rstrip("/\\" if WINDOWS else "/")
    return os.path.dirname(path) if os.path.basename(path) == "simple" else path


def _read_pip_settings(environment: Mapping[str, str]) -> Indexes:
    shared, own = pip_files(environment)
    if chosen := environment.get("PIP_CONFIG_FILE", ""):
        own = [chosen]
    found: dict[str, str] = {}
    for file in [*shared, *own] if chosen != os.devnull else []:
        found.update(_read_ini(file))
    for key in ("index-url", "extra-index-url", "find-links"):
        if value := environment.get("PIP_" + key.upper().replace("-", "_"), ""):
            found[key] = value
    return Indexes(
        main=found.get("index-url", ""),
        more=tuple(found.get("extra-index-url", "").split()),
        links=tuple(found.get("find-links", "").split()),
    )


def pip_files(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return pip's settings files: first those of the machine, then those of the user."""
    home = home_directory(environment)
    machine, config = _config_directories(environment, home)
    if sys.platform == "win32":
        shared, old, name = [os.path.join(machine, "pip", "pip.ini")], "pip", "pip.ini"
    else:
        shared, old, name = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"], ".pip", "pip.conf"
    return shared, [os.path.join(home, old, name), os.path.join(config, "pip", name)]


def _config_directories(environment: Mapping[str, str], home: str) -> tuple[str, str]:
    """Return the machine's settings directory, and the user's."""
    if sys.platform == "win32":
        # Do not use /etc on Windows, because any user may create such a directory there.
        machine = environment.get("PROGRAMDATA") or "C:\\ProgramData"
        return machine, environment.get("APPDATA") or os.path.join(home, "AppData", "Roaming")
    return "/etc", environment.get("XDG_CONFIG_HOME") or f"{home}/.config"


def _read_ini(file: str) -> dict[str, str]:
    text = read_text(file)
    if not text:
        return {}
    # Imported here, because the import takes 3 ms, and most users have no such file.
    import configparser

    reader = configparser.RawConfigParser()
    try:
        reader.read_string(text, file)
    except configparser.Error as error:
        raise SandboxError(f"{file} cannot be read: {error.message}") from None
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if reader.has_section(section):
            found.update((key.replace("_", "-"), value) for key, value in reader[section].items())
    return found


def _read_uv_settings(environment: Mapping[str, str]) -> Indexes:
    found = Indexes()
    for directory in _config_directories(environment, home_directory(environment)):
        file = os.path.join(directory, "uv", "uv.toml")
        found = _read_uv_file(file) if os.path.exists(file) else found
    main = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or found.main
    more = environment.get("UV_INDEX", "").split()
    more += environment.get("UV_EXTRA_INDEX_URL", "").split()
    links = environment.get("UV_FIND_LINKS", "").split(",")
    return Indexes(
        main=_without_name(main),
        more=tuple(map(_without_name, more)) or found.more,
        links=tuple(filter(None, links)) or found.links,
        system_certificates=found.system_certificates
        or any(environment.get(name, "").lower() in TRUE_WORDS for name in UV_CERTIFICATES),
    )


def _without_name(index: str) -> str:
    """Return an address without the name that uv allows before it, as in `name=https://...`."""
    name, equals, url = index.partition("=")
    return url if equals and "/" not in name else index


def _read_uv_file(file: str) -> Indexes:
    import tomllib

    try:
        data: dict[str, object] = tomllib.loads(read_text(file))
    except (ValueError, RecursionError):
        raise SandboxError(f"{file} is not valid TOML") from None
    table = data.get("pip")
    merged = {**data, **(table if isinstance(table, dict) else {})}
    main, more = str(merged.get("index-url") or ""), _texts(merged.get("extra-index-url"))
    listed = merged.get("index")
    for item in listed if isinstance(listed, list) else ():
        url = str(item.get("url") or "") if isinstance(item, dict) else ""
        if url and item.get("default") is True:
            main = url
        elif url:
            more.append(url)
    return Indexes(
        main=main,
        more=tuple(more),
        links=tuple(_texts(merged.get("find-links"))),
        system_certificates=any(merged.get(key) is True for key in ("system-certs", "native-tls")),
    )


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
