"""The one table of policy keys; parser, JSON Schema and reference are all made from it.

The JSON Schema is as strict as it can be. Some mistakes only the parser refuses: a total of ports,
a string below a minimum, a whole float where an integer is meant. Defaults are those of the model.
"""

from __future__ import annotations

from corral.policy.model import (
    CONTROLS,
    LIMIT_KINDS,
    MIB,
    Limits,
    Macos,
    Policy,
    Windows,
    format_limit,
)
from corral.record import fields, record
from corral.units import MAX_AMOUNT, MAX_CPU

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal[
        "version", "size", "duration", "cpu", "count", "switch", "choice",
        "arguments", "destinations", "ports", "paths", "names", "variables", "controls",
    ]  # fmt: skip

VERSION = 1
MAX_ITEMS = 256
MAX_PORTS = 64
MAX_PATH_LENGTH = 4096
# MAX_ARG_STRLEN on Linux: execve refuses a longer argument or NAME=value.
MAX_TEXT_LENGTH = 131_071
MAX_NAME_LENGTH = 255
MAX_PIDS = 1 << 22  # PID_MAX_LIMIT
MAX_FDS = 1 << 30
PAGE = 4096


@record
class Key:
    """`field` is the name in Manifest; `flag` the option of `corral run` that sets the key."""

    path: str
    field: str
    kind: Kind
    text: str
    flag: str = ""
    minimum: int = 1
    maximum: int = MAX_AMOUNT
    choices: tuple[str, ...] = ()


def _limit(
    field: str, text: str, *, flag: str = "", minimum: int = 1, maximum: int = MAX_AMOUNT
) -> Key:
    path, kind = f"limits.{field}", LIMIT_KINDS[field]
    return Key(
        path=path, field=field, kind=kind, text=text, flag=flag, minimum=minimum, maximum=maximum
    )


KEYS: tuple[Key, ...] = (
    Key(
        path="version", field="version", kind="version",
        text="Which version of this schema is the file written in? Only 1 exists.",
    ),
    Key(
        path="server.command", field="command", kind="arguments",
        text="How is the server started? The program and its arguments, never a shell line.",
    ),
    _limit("memory", "How much memory may the whole process tree use?",
           flag="--max-memory", minimum=MIB),
    _limit("cpu", 'How many cores may the tree keep busy? `0.5` is half a core, `"500m"` the same.',
           flag="--max-cpu", maximum=MAX_CPU),
    _limit("cpu_time", "How much CPU time may the tree use in total?", flag="--max-cpu-time"),
    _limit("pids",
           "How many processes and threads may exist at once? A node server alone needs 11.",
           flag="--max-pids", maximum=MAX_PIDS),
    _limit("fds", "How many descriptors may one process have open?",
           flag="--max-fds", minimum=3, maximum=MAX_FDS),
    _limit("disk", "How large may the private writable space be, and any one file?",
           flag="--max-disk", minimum=PAGE),
    _limit("io", "How many bytes a second may be read and written, where the host can hold it?",
           minimum=PAGE),
    _limit("timeout", "After how much wall-clock time is the server stopped?", flag="--timeout"),
    _limit("address_space",
           "How much address space may one process map (RLIMIT_AS)? It breaks node.", minimum=MIB),
    Key(
        path="network.allow", field="allow", kind="destinations", flag="--allow-net",
        text="Which hosts may be reached? A name, `*.name`, an address or a network, with"
        " `:port` or `:low-high`; without one, ports 80 and 443. An empty list allows nothing.",
    ),
    Key(
        path="network.listen", field="listen", kind="ports", flag="--listen",
        text="Which of the server's ports can be reached from the host's loopback?",
    ),
    Key(
        path="filesystem.read", field="read", kind="paths", flag="--read",
        text="Which files and directories may be read?",
    ),
    Key(
        path="filesystem.write", field="write", kind="paths", flag="--write",
        text="Which files and directories may be read and written?",
    ),
    Key(
        path="filesystem.unix_sockets", field="unix_sockets", kind="paths",
        text="Which socket files may be connected to?",
    ),
    Key(
        path="filesystem.state", field="state", kind="switch",
        text="Does the server keep a private directory between runs?",
    ),
    Key(
        path="subprocess.allow", field="subprocess", kind="switch", flag="--allow-subprocess",
        text="May the server start other programs? Threads are always possible.",
    ),
    Key(
        path="environment.pass", field="pass_names", kind="names", flag="--env",
        text="Which environment variables are passed on from the host?",
    ),
    Key(
        path="environment.set", field="set_values", kind="variables", flag="--env",
        text="Which environment variables are set, and to what?",
    ),
    Key(
        path="environment.secrets", field="secret_names", kind="names", flag="--secret",
        text="Which environment variables are passed on but never printed or logged?",
    ),
    Key(
        path="degrade.allow", field="degrade", kind="controls", choices=CONTROLS,
        text="Which controls may go unenforced, with a warning, where the host cannot hold them?",
    ),
    Key(
        path="windows.app_container", field="app_container", kind="switch",
        text="Does the server run in an AppContainer?",
    ),
    Key(
        path="windows.minifilter", field="minifilter", kind="switch",
        text="Is the server registered with a file system filter driver, where one listens?",
    ),
    Key(
        path="windows.fail_on_app_container_error", field="fail_on_app_container_error",
        kind="switch",
        text="Does the run refuse when the AppContainer cannot be made? If not, a restricted"
        " token takes its place, which is no wall for reads or network.",
    ),
    Key(
        path="windows.network", field="windows_network", kind="choice", choices=("none", "outbound",
        "local", "full"), text="Which network capabilities does the AppContainer get?",
    ),
    Key(
        path="windows.keep_grants", field="keep_grants", kind="switch",
        text="Do permissions set for granted paths stay after the run? Saves time on large trees.",
    ),
    Key(
        path="macos.seatbelt", field="seatbelt", kind="choice", choices=("auto", "off"),
        text="Is Seatbelt used? `auto`: wherever its probe proves it.",
    ),
)  # fmt: skip
BY_PATH = {key.path: key for key in KEYS}
TABLES = tuple(dict.fromkeys(key.path.partition(".")[0] for key in KEYS if "." in key.path))
LIMIT_KEYS = tuple(key for key in KEYS if key.path.startswith("limits."))
LISTS = frozenset(("arguments", "destinations", "ports", "paths", "names", "controls"))
DEFAULTS = {
    **{
        name: getattr(part, name)
        for part in (Limits(), Windows(), Macos())
        for name in fields(part)
    },
    "windows_network": Windows().network,
    "state": Policy().state,
    "subprocess": Policy().subprocess,
}
"""By field. What is not here is a list or a table, and empty by default."""
SWITCHES = {key.field: DEFAULTS[key.field] for key in KEYS if key.kind in {"switch", "choice"}}
"""By field, the value that asks for nothing, which is also the default."""

NUMBER = "[0-9]+(\\.[0-9]+)?"
PATTERNS = {
    "size": f"^(none|{NUMBER}([bB]|[kKmMgGtT]([iI][bB])?)?)$",
    "duration": f"^(none|{NUMBER}(ms|s|m|h))$",
    "cpu": f"^(none|{NUMBER}m?)$",
}
NAME = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_()]*$", "maxLength": MAX_NAME_LENGTH}
NO_NUL = "^[^\\u0000]*$"


def format_default(key: Key) -> str:
    """Return a key's default as a person would write it in a policy."""
    match key.kind:
        case "version":
            return "(required)"
        case "arguments":
            return "(none)"
        case "switch":
            return "true" if DEFAULTS[key.field] else "false"
        case "choice":
            return f'"{DEFAULTS[key.field]}"'
        case "size" | "duration" | "cpu" | "count":
            text = format_limit(key.field, DEFAULTS[key.field])
            return text if text.isdigit() else f'"{text}"'
        case _:
            return "{}" if key.kind == "variables" else "[]"


def value_schema(key: Key) -> dict[str, object]:
    """Return the JSON Schema of one key's value, without its documentation."""
    integer: dict[str, object] = {
        "type": "integer",
        "minimum": key.minimum,
        "maximum": key.maximum,
    }
    match key.kind:
        case "version":
            return {"type": "integer", "const": VERSION}
        case "size" | "duration":
            text: dict[str, object] = {"type": "string", "pattern": PATTERNS[key.kind]}
            return text if key.kind == "duration" else {"anyOf": [integer, text]}
        case "cpu":
            cores = {"type": "number", "minimum": 0.0005, "maximum": MAX_CPU // 1000}
            return {"anyOf": [cores, {"type": "string", "pattern": PATTERNS["cpu"]}]}
        case "count":
            return {"anyOf": [integer, {"const": "none"}]}
        case "switch":
            return {"type": "boolean"}
        case "choice":
            return {"enum": list(key.choices)}
        case "variables":
            value = {"type": "string", "pattern": NO_NUL, "maxLength": MAX_TEXT_LENGTH}
            return {
                "type": "object",
                "propertyNames": NAME,
                "additionalProperties": value,
                "maxProperties": MAX_ITEMS,
            }
        case _:
            return {"type": "array", "items": item_schema(key), "maxItems": max_items(key)} | (
                {"minItems": 1} if key.kind == "arguments" else {}
            )


def max_items(key: Key) -> int:
    return MAX_PORTS if key.kind == "ports" else MAX_ITEMS


def item_schema(key: Key) -> dict[str, object]:
    match key.kind:
        case "ports":
            return {"type": "integer", "minimum": 1, "maximum": 65535}
        case "destinations":
            return {"type": "string", "pattern": "^[A-Za-z0-9.*:/\\[\\]-]+$"}
        case "names":
            return dict(NAME)
        case "controls":
            return {"enum": list(key.choices)}
        case "arguments":
            return {"type": "string", "pattern": NO_NUL, "maxLength": MAX_TEXT_LENGTH}
        case _:
            return {
                "type": "string",
                "pattern": NO_NUL,
                "minLength": 1,
                "maxLength": MAX_PATH_LENGTH,
            }


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of a policy file, for editors and other programs."""
    tables: dict[str, dict[str, object]] = {name: {} for name in TABLES}
    top: dict[str, object] = {}
    for key in KEYS:
        table, dot, name = key.path.partition(".")
        described = value_schema(key) | {
            "description": key.text,
            "$comment": f"default {format_default(key)}",
        }
        (tables[table] if dot else top)[name if dot else table] = described
    for table, properties in tables.items():
        top[table] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "corral policy",
        "type": "object",
        "properties": top,
        "required": ["version"],
        "additionalProperties": False,
    }


def reference_table() -> str:
    """Return the table of keys in docs/policy.md; a test compares the two."""
    rows = ["| key | default | flag | question |", "|---|---|---|---|"]
    for key in KEYS:
        flag = f"`{key.flag}`" if key.flag else ""
        rows.append(f"| `{key.path}` | `{format_default(key)}` | {flag} | {key.text} |")
    return "\n".join(rows) + "\n"
