"""`manifest.json` of an MCPB bundle -> Bundle: what it says, checked; nothing is believed yet."""

from __future__ import annotations

import json

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Type = Literal["node", "python", "binary", "uv"]
    Shape = Literal["string", "number", "boolean", "directory", "file"]

VERSIONS = ("0.1", "0.2", "0.3", "0.4")
TYPES = ("node", "python", "binary", "uv")
SHAPES = ("string", "number", "boolean", "directory", "file")
META = "io.corral"
LARGEST = 1 << 20
LONGEST_TITLE = 200
HINT = "the form is described at https://github.com/modelcontextprotocol/mcpb"


@record
class Setting:
    """One entry of `user_config`; `default` as texts, since most settings have one value."""

    key: str
    shape: Shape
    title: str = ""
    required: bool = False
    sensitive: bool = False
    multiple: bool = False
    default: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@record
class Bundle:
    name: str
    version: str
    type: Type
    entry: str
    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    settings: Mapping[str, Setting] = {}
    request: Mapping[str, object] | None = None
    platforms: tuple[str, ...] = ()


def parse(content: bytes, platform: str) -> Bundle:
    try:
        if len(content) > LARGEST:
            raise wrong("is larger than 1 MiB")
        data: object = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise wrong(f"is not JSON: {shown(str(error), 200)}") from None
    top = table(data, "manifest.json")
    written = top.get("manifest_version", top.get("dxt_version"))
    if written not in VERSIONS:
        raise wrong(f"has version {shown(written)}; corral knows {', '.join(VERSIONS)}")
    server = table(top.get("server"), "server")
    kind = text(server.get("type"), "server.type")
    if kind not in TYPES:
        raise wrong(f"has the server type {shown(kind)}; corral knows {', '.join(TYPES)}")
    start = overridden(table(server.get("mcp_config", {}), "server.mcp_config"), platform)
    return Bundle(
        name=title(top.get("name"), "name"),
        version=title(top.get("version"), "version"),
        type=kind,  # type: ignore[arg-type] # it is one of TYPES
        entry=inner(server.get("entry_point")),
        command=text(start.get("command", ""), "server.mcp_config.command", empty=True),
        arguments=texts(start.get("args", []), "server.mcp_config.args"),
        environment=variables(start.get("env", {})),
        settings=settings(top.get("user_config", {})),
        request=request(top.get("_meta", {})),
        platforms=platforms(top.get("compatibility", {})),
    )


def overridden(start: Mapping[str, object], platform: str) -> Mapping[str, object]:
    """An override replaces what it names whole: its arguments are not added to the others."""
    overrides = table(start.get("platform_overrides", {}), "server.mcp_config.platform_overrides")
    own = table(overrides.get(platform, {}), f"server.mcp_config.platform_overrides.{platform}")
    return {**start, **own}


def settings(value: object) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for key, item in table(value, "user_config").items():
        title(key, "name of a setting")
        where = f"user_config.{key}"
        entry = table(item, where)
        shape = text(entry.get("type"), f"{where}.type")
        if shape not in SHAPES:
            raise wrong(f"has {where} of the type {shown(shape)}")
        found[key] = Setting(
            key=key,
            shape=shape,  # type: ignore[arg-type] # it is one of SHAPES
            title=text(entry.get("title", key), f"{where}.title"),
            required=entry.get("required") is True,
            sensitive=entry.get("sensitive") is True,
            multiple=entry.get("multiple") is True,
            default=values(entry.get("default"), f"{where}.default"),
            low=number(entry.get("min")),
            high=number(entry.get("max")),
        )
    return found


def values(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    return tuple(plain(item, where) for item in items)


def plain(value: object, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else text(value, where, empty=True)


def number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        raise wrong("has a number that is too large") from None


def request(meta: object) -> Mapping[str, object] | None:
    own = table(meta, "_meta").get(META)
    return None if own is None else table(own, f"_meta.{META}")


def platforms(value: object) -> tuple[str, ...]:
    listed = table(value, "compatibility").get("platforms", [])
    return texts(listed, "compatibility.platforms")


def table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong(f"has no table {where}")
    return value


def text(value: object, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        raise wrong(f"has no text for {where}")
    return value


def title(value: object, where: str) -> str:
    """What is shown to people: one line, nothing that moves a terminal's cursor."""
    found = text(value, where)
    if not found.isprintable() or len(found) > LONGEST_TITLE:
        raise wrong(f"has a {where} that cannot be shown")
    return found


def inner(value: object) -> str:
    """A path that stays in the bundle."""
    found = text(value, "server.entry_point")
    parts = found.replace("\\", "/").split("/")
    if found.startswith(("/", "\\")) or ".." in parts or ":" in found:
        raise wrong(f"has an entry point outside of the bundle: {shown(found, 200)}")
    return found


def texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong(f"has no list for {where}")
    return tuple(text(item, where, empty=True) for item in value)


def variables(value: object) -> dict[str, str]:
    where = "server.mcp_config.env"
    found = table(value, where)
    for name in found:
        if not name.isidentifier() or not name.isascii():
            raise wrong(f"sets a variable with the name {shown(name)}")
    return {name: plain(item, where) for name, item in found.items()}


def wrong(what: str) -> SandboxError:
    return SandboxError(f"the bundle's manifest.json {what}", hint=HINT)
