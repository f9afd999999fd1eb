"""Where the user's own pip or uv would look for Python packages, and with which credentials."""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.record import record, replace
from corral.safe_text import shown
from corral.servers.packages.source import Registry, plain, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = "https://pypi.org/simple"
FILES = {"pypi.org": "https://files.pythonhosted.org/"}


@record
class Index:
    main: str = ""
    more: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def indexes(environment: Mapping[str, str]) -> Registry:
    """The settings of uv where there are any, else pip's, else PyPI.

    The addresses travel in variables that are never printed: they may carry credentials.
    """
    found, own = configured(environment)
    main = found.main
    urls: list[str] = []
    reads: list[str] = []
    for url in (main, *found.more, *found.links):
        if host := host_of(url):
            urls += [url, *([FILES[host]] if host in FILES else [])]
        else:
            reads.append(above(local(url)))
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
        # pip takes the best of all indexes, so settings of pip's mean that to uv as well.
        settings={} if own else {"UV_INDEX_STRATEGY": "unsafe-best-match"},
        secrets={name: value for name, value in variables.items() if value},
        hidden=tuple(filter(None, map(password_of, urls))),
    )


def configured(environment: Mapping[str, str]) -> tuple[Index, bool]:
    """The settings that count, and whether they are uv's own."""
    found = uv_settings(environment)
    own = found != Index()
    if not own:
        found = pip_settings(environment)
    return replace(found, main=found.main or DEFAULT), own


def origin(environment: Mapping[str, str]) -> str:
    """The indexes in one word; "" for PyPI."""
    found, _ = configured(environment)
    return told((found.main, *found.more, *found.links), DEFAULT)


def host_of(url: str) -> str:
    """The host of a web address; "" for a place on this machine."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return parts.hostname
    if os.path.isabs(local(url)):
        return ""
    raise SandboxError(f"the package index {shown(plain(url))} is no address that corral knows")


def password_of(url: str) -> str:
    """A token may also stand where the user's name would."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.password or parts.username or ""


def local(url: str) -> str:
    from urllib.parse import unquote

    return unquote(url.removeprefix("file://")) if url.startswith("file://") else url


def above(path: str) -> str:
    """The files of an index on disk lie beside its `simple` directory as a rule."""
    path = path.rstrip("/")
    return os.path.dirname(path) if os.path.basename(path) == "simple" else path


def pip_settings(environment: Mapping[str, str]) -> Index:
    everybody, files = pip_files(environment)
    if own := environment.get("PIP_CONFIG_FILE", ""):
        files = [own]
    files = [*everybody, *files] if own != os.devnull else []
    found: dict[str, str] = {}
    for file in files:
        found.update(read_ini(file))
    for key in ("index-url", "extra-index-url", "find-links"):
        if value := environment.get("PIP_" + key.upper().replace("-", "_"), ""):
            found[key] = value
    return Index(
        main=found.get("index-url", ""),
        more=tuple(found.get("extra-index-url", "").split()),
        links=tuple(found.get("find-links", "").split()),
    )


def pip_files(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """For everybody on this machine, and the user's own."""
    from corral.directories import home_directory

    home = home_directory(environment)
    if sys.platform == "win32":
        # Not /etc, which anybody may make there.
        machine = os.path.join(environment.get("PROGRAMDATA") or "C:\\ProgramData", "pip")
        places = [os.path.join(home, "pip"), os.path.join(roaming(environment, home), "pip")]
        return [os.path.join(machine, "pip.ini")], [os.path.join(p, "pip.ini") for p in places]
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    places = [os.path.join(home, ".pip"), os.path.join(config, "pip")]
    return (
        ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"],
        [os.path.join(place, "pip.conf") for place in places],
    )


def roaming(environment: Mapping[str, str], home: str) -> str:
    return environment.get("APPDATA") or os.path.join(home, "AppData", "Roaming")


def read_ini(file: str) -> dict[str, str]:
    from corral.programs.needed_files import read_text

    text = read_text(file)
    if not text:
        return {}
    import configparser  # 3 ms, which a cached package should not pay for nothing

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


def uv_settings(environment: Mapping[str, str]) -> Index:
    from corral.directories import home_directory

    home = home_directory(environment)
    if sys.platform == "win32":
        everybody = environment.get("PROGRAMDATA") or "C:\\ProgramData"
        config = roaming(environment, home)
    else:
        everybody = "/etc"
        config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    found = Index()
    for place in (everybody, config):
        file = os.path.join(place, "uv", "uv.toml")
        found = read_uv(file) if os.path.exists(file) else found
    main = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL") or found.main
    more = environment.get("UV_INDEX", "").split()
    more += environment.get("UV_EXTRA_INDEX_URL", "").split()
    links = environment.get("UV_FIND_LINKS", "").split(",")
    return Index(
        main=unnamed(main),
        more=tuple(map(unnamed, more)) or found.more,
        links=tuple(filter(None, links)) or found.links,
    )


def unnamed(index: str) -> str:
    """An address without the name that uv lets stand before it: `name=https://...`."""
    name, equals, url = index.partition("=")
    return url if equals and "/" not in name else index


def read_uv(file: str) -> Index:
    import tomllib

    from corral.programs.needed_files import read_text

    try:
        data: dict[str, object] = tomllib.loads(read_text(file))
    except (ValueError, RecursionError):
        raise SandboxError(f"{file} is not valid TOML") from None
    table = data.get("pip")
    whole = {**data, **(table if isinstance(table, dict) else {})}
    main, more = str(whole.get("index-url") or ""), texts(whole.get("extra-index-url"))
    listed = whole.get("index")
    for item in listed if isinstance(listed, list) else ():
        url = str(item.get("url") or "") if isinstance(item, dict) else ""
        if url and item.get("default") is True:
            main = url
        elif url:
            more.append(url)
    return Index(main=main, more=tuple(more), links=tuple(texts(whole.get("find-links"))))


def texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
