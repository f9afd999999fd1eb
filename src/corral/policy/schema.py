"""Define the table of policy keys, which the parser, the JSON Schema and the reference
documentation all use. The defaults are in model.py.

A JSON Schema cannot express every rule. Only the parser refuses too many ports in total, a size
such as "1K" that is below its minimum, or 3.0 where an integer is required.
"""

from __future__ import annotations

from corral.policy.model import (
    CONTROLS,
    LIMIT_KINDS,
    MIB,
    Limits,
    Macos,
    Mcp,
    Policy,
    Windows,
    format_amount,
)
from corral.record import fields, record, replace
from corral.units import MAX_AMOUNT, MAX_CPU

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal[
        "version", "size", "duration", "cpu", "count", "switch", "choice",
        "arguments", "destinations", "ports", "paths", "names", "variables", "controls",
        "patterns",
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
MAX_PENDING = 1 << 16
MAX_PATTERN_LENGTH = 1024
MCP = "mcp."
PAGE = 4096


@record
class Key:
    """One key of a policy. `field` is its name in Manifest. `flag` is the option of `corral run`
    that sets it.
    """

    path: str
    field: str
    kind: Kind
    text: str
    flag: str = ""
    minimum: int = 1
    maximum: int = MAX_AMOUNT
    choices: tuple[str, ...] = ()


def _key(path: str, kind: Kind, text: str, *, field: str = "", **more: object) -> Key:
    """Return a key. The name of its field is the last part of `path`, unless `field` is given."""
    made = Key(path=path, field=field or path.rpartition(".")[2], kind=kind, text=text)
    return replace(made, **more)


def _limit(field: str, text: str, **more: object) -> Key:
    return replace(_key(f"limits.{field}", LIMIT_KINDS[field], text), **more)


def _patterns(name: str, text: str, *, flag: str = "") -> Key:
    return _key(f"mcp.{name}", "patterns", text, field=name.replace(".", "_"), flag=flag)


KEYS: tuple[Key, ...] = (
    _key("version", "version", "Which version of this schema does the file use? Only 1 exists."),
    _key("server.command", "arguments",
         "How is the server started? Write the program and its arguments, not a shell command."),
    _limit("memory", "How much memory may the whole process tree use?",
           flag="--max-memory", minimum=MIB),
    _limit("cpu", 'How many cores may the tree keep busy? `0.5` and `"500m"` are half a core.',
           flag="--max-cpu", maximum=MAX_CPU),
    _limit("cpu_time", "How much CPU time may the tree use in total?", flag="--max-cpu-time"),
    _limit("pids",
           "How many processes and threads may exist at once? A node server alone needs 11.",
           flag="--max-pids", maximum=MAX_PIDS),
    _limit("fds", "How many descriptors may one process have open?",
           flag="--max-fds", minimum=3, maximum=MAX_FDS),
    _limit("disk", "How large may the private writable space be, and any single file?",
           flag="--max-disk", minimum=PAGE),
    _limit("io", "How many bytes per second may be read and written, if the host can enforce it?",
           minimum=PAGE),
    _limit("timeout", "After how much wall-clock time is the server stopped?", flag="--timeout"),
    _limit("address_space",
           "How much address space may one process map (RLIMIT_AS)? This limit breaks node.",
           minimum=MIB),
    _key("network.allow", "destinations",
         "Which hosts may be reached? A name, `*.name`, an address or a network, with `:port` or"
         " `:low-high`; without a port, ports 80 and 443. An empty list allows nothing.",
         flag="--allow-net"),
    _key("network.listen", "ports",
         "Which of the server's ports can be reached from the host's loopback?", flag="--listen"),
    _key("network.listen_everywhere", "switch",
         "Can other machines reach the ports of `network.listen`, too (Linux)? Only you can set"
         " this. A Kubernetes Service needs it."),
    _key("filesystem.read", "paths", "Which files and directories may be read?", flag="--read"),
    _key("filesystem.write", "paths",
         "Which files and directories may be read and written?", flag="--write"),
    _key("filesystem.unix_sockets", "paths", "Which socket files may be connected to?"),
    _key("filesystem.own_unix_sockets", "switch",
         "May the server's processes use unix sockets among themselves? corral refuses this where"
         " they could reach a socket of this machine.", flag="--own-unix-sockets"),
    _key("filesystem.state", "switch",
         "Does the server keep its home directory between runs?", flag="--state"),
    _key("subprocess.allow", "switch",
         "May the server start other programs? Threads are always possible.",
         field="subprocess", flag="--allow-subprocess"),
    _key("environment.pass", "names",
         "Which environment variables are passed on from the host?",
         field="pass_names", flag="--env"),
    _key("environment.set", "variables",
         "Which environment variables are set, and to what?", field="set_values", flag="--env"),
    _key("environment.secrets", "names",
         "Which environment variables are passed on but never printed or logged?",
         field="secret_names", flag="--secret"),
    _key("degrade.allow", "controls",
         "Which controls may be dropped with a warning if the host cannot enforce them?",
         field="degrade", choices=CONTROLS),
    _key("windows.app_container", "switch", "Does the server run in an AppContainer?"),
    _key("windows.minifilter", "switch",
         "Is the server registered with a file system filter driver, if one is loaded?"),
    _key("windows.fail_on_app_container_error", "switch",
         "Is the run refused if AppContainers do not work? If not, it continues with a warning"
         " and a restricted token, or without one if restricted tokens do not work either. The"
         " server can then read your files and use the network."),
    _key("windows.network", "choice",
         "Which network capabilities does the AppContainer get?",
         field="windows_network", choices=("none", "outbound", "local", "full")),
    _key("windows.keep_grants", "switch",
         "Do the permissions that a run sets on granted paths stay afterwards? This saves time on"
         " large trees."),
    _key("windows.strict_handles", "switch",
         "Does Windows end the server when it uses a handle that is not open? Only you can set"
         " this. Some runtimes use such handles in rare cases."),
    _key("windows.strict_grants", "switch",
         "Is a run refused if a granted directory contains secrets, or if a writable one contains"
         " files that other programs run? If not, the server gets less access to these files than"
         " the grant says. Only you can set this."),
    _key("macos.seatbelt", "choice",
         "Is Seatbelt used? `auto` means: if its probe succeeds.", choices=("auto", "off")),
    _key("macos.disclaim", "switch",
         "Is the server itself responsible where macOS asks for consent? If not, it has the"
         " consents of the program that starts corral."),
    _key("macos.trustd", "switch",
         "May macOS check certificates for the server? Go programs need this if they use"
         " `network.allow`. macOS then downloads from addresses in certificates, outside the"
         " sandbox."),
    _patterns("tools.allow", "Which tools may the client see and call? Names, or patterns"
              " with `*`, `?` and `[...]`. An empty list allows none.", flag="--tools"),
    _patterns("tools.deny", "Which tools may the client neither see nor call?"),
    _patterns("prompts.allow", "Which prompts may the client see and get?"),
    _patterns("prompts.deny", "Which prompts may the client neither see nor get?"),
    _patterns("resources.allow", "Which resources may the client see and read? Patterns"
              " for URIs and URI templates."),
    _patterns("resources.deny", "Which resources may the client neither see nor read?"),
    _patterns("requests", "Which requests may the server make to the client? `sampling`,"
              " `elicitation`, `roots`, or patterns for methods. `ping` is always possible."),
    _key("mcp.pins", "choice",
         "Are tools, prompts and instructions compared with the pins of this server? `refuse`"
         " hides new and changed definitions, `warn` only reports them.",
         flag="--pins", choices=("off", "refuse", "warn")),
    _key("mcp.max_message", "size",
         "How long may one message be? A longer message is dropped and answered with an error.",
         minimum=PAGE),
    _key("mcp.max_pending", "count",
         "How many requests from either side may wait for an answer at once?", maximum=MAX_PENDING),
    _key("mcp.audit_arguments", "switch",
         "Does the audit file contain the arguments of tools? Secrets in them are masked."),
)  # fmt: skip
BY_PATH = {key.path: key for key in KEYS}
TABLES = tuple(
    dict.fromkeys(
        key.path[:end] for key in KEYS for end, letter in enumerate(key.path) if letter == "."
    )
)
LISTS = frozenset(("arguments", "destinations", "ports", "paths", "names", "controls", "patterns"))
DEFAULTS = {
    **{
        name: getattr(part, name)
        for part in (Policy(), Limits(), Windows(), Macos(), Mcp())
        for name in fields(part)
    },
    "windows_network": Windows().network,
}
"""The default value of each field."""
SWITCHES = {
    key.field: DEFAULTS[key.field]
    for key in KEYS
    if key.kind in {"switch", "choice"} and not key.path.startswith(MCP)
}
"""The defaults of all settings outside `mcp` whose value is true, false, or one of a few fixed
words. A manifest with only these values requests nothing.
"""

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
            text = format_amount(key.kind, DEFAULTS[key.field])
            return text if text.isdigit() else f'"{text}"'
        case "patterns":
            return "[]" if DEFAULTS[key.field] == () else '["*"]'
        case _:
            return "{}" if key.kind == "variables" else "[]"


def value_schema(key: Key) -> dict[str, object]:
    """Return the JSON Schema of one key's value, without its documentation."""
    integer: dict[str, object] = {"type": "integer", "minimum": key.minimum, "maximum": key.maximum}
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
            longest = MAX_PATTERN_LENGTH if key.kind == "patterns" else MAX_PATH_LENGTH
            return {"type": "string", "pattern": NO_NUL, "minLength": 1, "maxLength": longest}


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of a policy file, for editors and other programs."""
    tables: dict[str, dict[str, object]] = {name: {} for name in ("", *TABLES)}
    for key in KEYS:
        table, _, name = key.path.rpartition(".")
        tables[table][name] = value_schema(key) | {
            "description": key.text,
            "$comment": f"default {format_default(key)}",
        }
    for path in TABLES:
        table, _, name = path.rpartition(".")
        properties = tables[path]
        described = {"type": "object", "properties": properties, "additionalProperties": False}
        tables[table][name] = described
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "corral policy",
        "type": "object",
        "properties": tables[""],
        "required": ["version"],
        "additionalProperties": False,
    }
