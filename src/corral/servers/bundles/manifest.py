"""Parse `manifest.json` of an MCPB bundle into a Bundle, and check its syntax."""

import json
from collections.abc import Mapping
from typing import Literal, get_args

from corral.errors import SandboxError
from corral.record import record
from corral.safe_text import is_visible, shown

Type = Literal["node", "python", "binary", "uv"]
Shape = Literal["string", "number", "boolean", "directory", "file"]
TYPES, SHAPES = get_args(Type), get_args(Shape)
VERSIONS = ("0.1", "0.2", "0.3", "0.4")
META = "io.corral"
MAX_MANIFEST_BYTES = 1 << 20
MAX_TITLE_LENGTH = 200
HINT = "the format is described at https://github.com/modelcontextprotocol/mcpb"


@record
class Setting:
    """A setting of a bundle, from the entry `key` of `user_config` in its manifest. If `multiple`
    is set, the user may give several values. `low` and `high` are the limits of a number.
    """

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


def parse_manifest(content: bytes, platform: str) -> Bundle:
    try:
        if len(content) > MAX_MANIFEST_BYTES:
            raise _refused("is larger than 1 MiB")
        data: object = json.loads(content.decode("utf-8-sig"))
        refuse_surrogates(data)
    except (ValueError, RecursionError) as error:
        raise _refused(f"is not JSON: {shown(str(error), 200)}") from None
    top = _read_table(data, "its content")
    written = top.get("manifest_version", top.get("dxt_version"))
    if written not in VERSIONS:
        raise _refused(f"has version {shown(written)}; corral supports {', '.join(VERSIONS)}")
    server = _read_table(top.get("server"), "server")
    kind = _read_text(server.get("type"), "server.type")
    if kind not in TYPES:
        raise _refused(f"has the server type {shown(kind)}; corral supports {', '.join(TYPES)}")
    start = _read_table(server.get("mcp_config", {}), "server.mcp_config")
    where = "server.mcp_config.platform_overrides"
    overrides = _read_table(start.get("platform_overrides", {}), where)
    # The manifest can override keys for this platform. An override replaces the whole value, so an
    # override of `args` replaces all arguments.
    start |= _read_table(overrides.get(platform, {}), f"{where}.{platform}")
    own = _read_table(top.get("_meta", {}), "_meta").get(META)
    compatible = _read_table(top.get("compatibility", {}), "compatibility")
    return Bundle(
        name=_read_title(top.get("name"), "name"),
        version=_read_title(top.get("version"), "version"),
        type=kind,  # type: ignore[arg-type] # it is one of TYPES
        entry=_read_entry_point(server.get("entry_point")),
        command=_read_text(start.get("command", ""), "server.mcp_config.command", empty=True),
        arguments=_read_texts(start.get("args", []), "server.mcp_config.args"),
        environment=_read_variables(start.get("env", {})),
        settings=_read_settings(top.get("user_config", {})),
        request=None if own is None else _read_table(own, f"_meta.{META}"),
        platforms=_read_texts(compatible.get("platforms", []), "compatibility.platforms"),
    )


def _read_settings(value: object) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for key, item in _read_table(value, "user_config").items():
        _read_title(key, "name of a setting")
        where = f"user_config.{key}"
        entry = _read_table(item, where)
        shape = _read_text(entry.get("type"), f"{where}.type")
        if shape not in SHAPES:
            raise _refused(f"gives {where} the unknown type {shown(shape)}")
        found[key] = Setting(
            key=key,
            shape=shape,  # type: ignore[arg-type] # it is one of SHAPES
            title=_read_text(entry.get("title", key), f"{where}.title"),
            required=entry.get("required") is True,
            sensitive=entry.get("sensitive") is True,
            multiple=entry.get("multiple") is True,
            default=_read_values(entry.get("default"), f"{where}.default"),
            low=_read_number(entry.get("min")),
            high=_read_number(entry.get("max")),
        )
    return found


def _read_values(value: object, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    return tuple(_read_scalar(item, where) for item in items)


def _read_scalar(value: object, where: str) -> str:
    if isinstance(value, (bool, int, float)):
        return format_value(value)
    return _read_text(value, where, empty=True)


def format_value(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _read_number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        raise _refused("has a number that is too large") from None


def _read_table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _refused(f"must have a JSON object as {where}")
    return value


def _read_text(value: object, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or "\0" in value or not (value or empty):
        kind = "string" if empty else "non-empty string"
        raise _refused(f"must have a {kind} without NUL characters as {where}")
    return value


def _read_title(value: object, where: str) -> str:
    """Return a name or title that corral shows to the user. Refuse characters that cannot be
    printed, such as line breaks.
    """
    found = _read_text(value, where)
    if not all(map(is_visible, found)) or len(found) > MAX_TITLE_LENGTH:
        raise _refused(f"has a {where} that is too long or cannot be printed")
    return found


def _read_entry_point(value: object) -> str:
    """Return the path of the entry point. Refuse a path that is not inside the bundle."""
    found = _read_text(value, "server.entry_point")
    parts = found.replace("\\", "/").split("/")
    if found.startswith(("/", "\\")) or ".." in parts or ":" in found:
        raise _refused(f"has an entry point outside of the bundle: {shown(found, 200)}")
    return found


def _read_texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _refused(f"must have a list as {where}")
    return tuple(_read_text(item, where, empty=True) for item in value)


def _read_variables(value: object) -> dict[str, str]:
    where = "server.mcp_config.env"
    found = _read_table(value, where)
    for name in found:
        if not name.isidentifier() or not name.isascii():
            raise _refused(f"sets a variable with the invalid name {shown(name)}")
    return {name: _read_scalar(item, where) for name, item in found.items()}


def refuse_surrogates(data: object) -> None:
    """Raise ValueError if a string in JSON data contains half of a surrogate pair, because system
    calls do not accept such a string.
    """
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string contains half of a surrogate pair") from None


def _refused(what: str) -> SandboxError:
    return SandboxError(f"the bundle's manifest.json {what}", hint=HINT)
