"""Read the servers in a client's file, with the positions of their values.

Most clients have a table of servers under one key. Continue has a list of servers instead, and
Claude Code also has a table for each project. Older versions of Zed put the program and its
arguments into a nested table, and opencode puts them into one list. A server at any other place in
a file is reported as not understood, so that the user does not overlook it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from corral.clients.backups import Part
from corral.clients.corral_path import is_corral
from corral.clients.file_formats import Format
from corral.formats.positions import Value
from corral.policy.variables import masked
from corral.record import record
from corral.safe_text import shown

ANY_KEY = "*"
SHAPES = (
    ("mcpServers",),
    ("projects", ANY_KEY, "mcpServers"),
    ("servers",),
    ("mcp", "servers"),
    ("mcp",),
    ("amp.mcpServers",),
    ("context_servers",),
    ("mcp_servers",),
    ("extensions",),
)
ADDRESSES = ("url", "serverUrl", "httpUrl", "uri")
REMOTE = frozenset((
    "http", "https", "remote", "sse", "ws", "websocket", "streamable-http", "streamableHttp",
    "streamable_http",
))  # fmt: skip
LOCAL = frozenset(("", "stdio", "local"))
PARTS_OF_CLIENT = frozenset(("builtin", "platform", "frontend"))
"""The types of Goose's built-in extensions."""
KEYS = frozenset((
    "command", "cmd", "path", "args", "cwd", "working_directory", "env", "envs", "environment",
    "env_vars", "env_keys", "envFile",
))  # fmt: skip
"""The keys of a server that decide what a client starts on this machine."""
SYNONYMS = (
    ("command", "cmd"), ("args",), ("env", "envs", "environment"), ("env_vars", "env_keys"),
    ("cwd", "working_directory"),
)  # fmt: skip
"""Keys with the same meaning. Each client reads only one of them, so an entry may have only one."""
KEYS_IGNORING_CASE = frozenset(map(str.casefold, KEYS))
"""Clients that are written in Go ignore the case of keys, so that a project could write the command
that they start beside the command that corral reads.
"""
MARKS = frozenset(map(str.casefold, ("command", "cmd", "type", "transport", *ADDRESSES)))
ABOVE_SERVERS = ("mcp", "modelcontext", "context_servers")
MAX_DEPTH = 12
NOTHING = Value(data=None)
IS_TWIN = "another server has the same name"
IS_SANDBOXED = "the client runs it in its own sandbox (sandboxEnabled)"
IS_REMOTE = "it is remote, so it does not run on this machine"


@record
class ConfiguredServer:
    name: str
    key_path: tuple[str, ...]  # the keys from the top of the file to the server
    table: Value  # the table that contains `command` and `args`
    entry: Mapping[str, object] = {}  # the whole entry
    command: Value | None = None
    args: Value | None = None
    joined: bool = False  # whether `args` is one list that begins with the program
    why: str = ""  # why the server cannot be wrapped, or "" if it can
    understood: bool = True  # whether corral knows how the client uses the entry
    disabled: bool = False  # whether the server is switched off in the client
    env: Mapping[str, str] = {}  # variables that the client sets to a value
    forwarded: tuple[str, ...] = ()
    env_file: str = ""
    cwd: str = ""

    @property
    def scope(self) -> str:
        """Return the directory of the project for which Claude Code's own file configures the
        server, or "" for any other server.
        """
        return self.key_path[1] if self.key_path[0] == "projects" else ""

    @property
    def is_remote(self) -> bool:
        return self.why == IS_REMOTE

    @property
    def argv(self) -> tuple[str, ...]:
        program = [self.command.data if self.command else ""]
        arguments = self.args.data if self.args and isinstance(self.args.data, list) else []
        return tuple(map(str, arguments if self.joined else program + arguments))

    @property
    def is_wrapped(self) -> bool:
        return is_corral(self.argv[0]) and self.argv[1:2] == ("run",)

    @property
    def run_flags(self) -> tuple[str, ...]:
        """Return the words between `run` and `--` in a wrapped server's command."""
        words = self.argv[2:]
        return words[: words.index("--")] if "--" in words else words

    @property
    def inner_argv(self) -> tuple[str, ...]:
        """Return the command that corral runs for a wrapped server, or () if there is no `--`."""
        return self.argv[self.argv.index("--") + 1 :] if "--" in self.argv else ()

    @property
    def unwrapped_argv(self) -> tuple[str, ...]:
        return self.inner_argv if self.is_wrapped else self.argv


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Mask secrets in a command, but keep the name of the variable after corral's own flag
    `--secret`.
    """
    wrapped = "run" in words[:2] and "--" in words
    end = words.index("--") if wrapped else 0
    return (*(shown for word in words[:end] for shown in masked((word,))), *masked(words[end:]))


def read_servers(form: Format, text: str) -> list[ConfiguredServer]:
    root = form.read(text, may_contain_server)
    known = [server for shape in SHAPES for server in _find_servers(root, shape, ())]
    seen = {server.key_path for server in known}
    unknown = _find_unknown(form.load(text), ())
    return known + [one for one in unknown if one.key_path not in seen]


def has_server_table(form: Format, text: str) -> bool:
    """Return whether a file has a key for servers, even if there are no servers under it."""
    root = form.read(text, may_contain_server)
    return any(_has_keys(root, shape) for shape in SHAPES)


def _has_keys(value: Value, shape: tuple[str, ...]) -> bool:
    members = value.members or {}
    names = members if shape[0] == ANY_KEY else {shape[0]} & members.keys()
    return any(len(shape) == 1 or _has_keys(members[name], shape[1:]) for name in names)


def may_contain_server(keys: tuple[str, ...]) -> bool:
    """Return whether the value at these keys could be a server or contain one."""
    return any(_fits(shape[: len(keys)], keys[: len(shape)]) for shape in SHAPES)


def find_span(server: ConfiguredServer, part: Part) -> tuple[int, int]:
    """Return where the text of one part of a server starts and ends, or (0, 0) if the server does
    not have this part. The part `both` extends from the command to the end of the arguments.
    """
    command, args = server.command, server.args
    if command is None or (part == "args" and args is None):
        return 0, 0
    if args is not None and server.joined:
        return args.start, args.end
    if part == "command" or args is None:
        return command.start, command.end
    return (args.start if part == "args" else command.start), args.end


def _find_servers(
    value: Value, shape: tuple[str, ...], keys: tuple[str, ...]
) -> Iterator[ConfiguredServer]:
    if not shape:
        yield from _read_collection(value, keys)
        return
    first, *rest = shape
    members = value.members or {}
    for name in members if first == ANY_KEY else [first]:
        if name in members:
            yield from _find_servers(members[name], tuple(rest), (*keys, name))


def _read_collection(value: Value, keys: tuple[str, ...]) -> Iterator[ConfiguredServer]:
    """Read a table of servers by name, or a list of servers that each have a name.

    In the table `mcp`, skip entries that do not look like servers, because this table may also
    contain settings or a table `servers`.
    """
    for name, entry in (value.members or {}).items():
        if keys == ("mcp",) and not is_entry(entry.members or {}):
            continue
        if entry.members is not None:
            yield _read_server(name, (*keys, name), entry)
    listed = [(_text(entry, "name"), entry) for entry in value.items or ()]
    names = Counter(name for name, _ in listed)
    for name, entry in listed:
        if name:
            yield _read_server(name, (*keys, name), entry, twin=names[name] > 1)


def is_entry(names: Iterable[object]) -> bool:
    """Return whether a table with these keys looks like a server."""
    return not MARKS.isdisjoint(str(name).casefold() for name in names)


def _find_unknown(data: object, keys: tuple[str, ...]) -> Iterator[ConfiguredServer]:
    """Yield entries that look like servers, but are at a place that SHAPES does not list, or are in
    a list and have no name. Search only below keys that contain one of the texts in ABOVE_SERVERS.

    Also yield each entry among servers that is not a table, and each key that contains a variable,
    because a client may replace the variable and then find a server.
    """
    in_list = isinstance(data, list)
    if isinstance(data, list):
        data = {str(at): item for at, item in enumerate(data)}
    if not isinstance(data, dict) or len(keys) > MAX_DEPTH:
        return
    among = keys[-1:] not in {("mcp",), ("extensions",)} and any(_fits(one, keys) for one in SHAPES)
    for name, entry in data.items():
        path, place = (*keys, str(name)), ".".join(keys)
        below = any(text in key.lower() for key in path[:-1] for text in ABOVE_SERVERS)
        named = entry if below and isinstance(entry, dict) else {}
        command = next((named[key] for key in named if str(key).casefold() == "command"), None)
        is_table = isinstance(command, dict) and "path" in command  # older versions of Zed
        is_server = is_table or isinstance(command, str) or _is_list_of_texts(command)
        called = entry.get("name") if isinstance(entry, dict) else None
        nameless = not (isinstance(called, str) and called)
        variables = ("{env:", "{file:", "${", "{{") if below or not keys else ("{env:", "{file:")
        if any(mark in str(name) for mark in variables):
            yield _not_understood(path, f"a client may replace a part of its key {shown(path[-1])}")
        elif in_list and nameless and (among or is_server):
            yield _not_understood(path, f"its entry in the list {place} has no name")
        elif among and isinstance(entry, str | list):
            yield _not_understood(path, f"its entry in {place} is not a table")
        elif not is_server:
            yield from _find_unknown(entry, path)
        elif not any(_fits(shape, keys) for shape in SHAPES):
            why = f"corral does not support servers in this part of a file ({place})"
            yield _not_understood(path, why)


def _not_understood(key_path: tuple[str, ...], why: str) -> ConfiguredServer:
    return ConfiguredServer(
        name=key_path[-1], key_path=key_path, table=NOTHING, why=why, understood=False
    )


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _fits(shape: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    return len(shape) == len(keys) and all(
        want in {ANY_KEY, name} for want, name in zip(shape, keys, strict=True)
    )


def _read_server(
    name: str, key_path: tuple[str, ...], entry: Value, *, twin: bool = False
) -> ConfiguredServer:
    members = entry.members or {}
    command = members.get("command") or members.get("cmd")
    table = entry
    if command is not None and command.members is not None:
        table, command = command, command.members.get("path")
    inner = table.members or {}
    env = inner.get("env") or inner.get("envs") or inner.get("environment") or members.get("env")
    args = inner.get("args")
    joined = command is not None and bool(command.items) and args is None
    if joined and command is not None and command.items:
        args, command = command, command.items[0]
    values = env.data if env is not None and isinstance(env.data, dict) else {}
    why, understood = _find_obstacle(entry, command, args, key_path)
    if twin:
        why, understood = IS_TWIN, command is None
    return ConfiguredServer(
        name=name,
        key_path=key_path,
        table=table,
        entry=entry.data if isinstance(entry.data, dict) else {},
        command=command,
        args=args,
        joined=joined,
        why=why,
        understood=understood,
        disabled=_is_set_to(entry, "disabled", True) or _is_set_to(entry, "enabled", False),
        env={str(key): str(value) for key, value in values.items() if value is not None},
        forwarded=_read_names(members.get("env_vars") or members.get("env_keys")),
        env_file=_text(entry, "envFile"),
        cwd=_text(entry, "cwd") or _text(entry, "working_directory"),
    )


def _find_obstacle(
    entry: Value, command: Value | None, args: Value | None, keys: tuple[str, ...]
) -> tuple[str, bool]:
    """Return why corral cannot start a server, or "" if it can. Also return whether the entry is
    understood.
    """
    names = [*(entry.members or {}), *((entry.members or {}).get("command", NOTHING).members or {})]
    for name in names:
        if name not in KEYS and name.casefold() in KEYS_IGNORING_CASE:
            return f"some clients ignore the case of its key {shown(name)}, others do not", False
    for synonyms in SYNONYMS:
        if len(given := [shown(name) for name in names if name in synonyms]) > 1:
            return f"it has several keys of the same meaning ({', '.join(given)})", False
    kind = _text(entry, "type") or _text(entry, "transport")
    if command is None and (kind in REMOTE or any(_text(entry, key) for key in ADDRESSES)):
        return IS_REMOTE, True
    if command is None and kind in PARTS_OF_CLIENT:
        return f"it is a part of the client ({kind})", True
    if kind in REMOTE | PARTS_OF_CLIENT:
        # The type contradicts the command. A client that does not know this type would start the
        # command, so corral must not treat the server as remote.
        return f"it has a command, but its type is {kind!r}", False
    if kind not in LOCAL:
        return f"corral does not support servers of type {kind!r}", False
    if command is None:
        from difflib import get_close_matches

        others = [name for name in names if name not in KEYS and _text(entry, name)]
        if near := get_close_matches("command", others, 1, 0.8):
            return f"it has no command; did you mean command instead of {shown(near[0])}?", False
        return "it has no command: an extension or the client itself starts it", True
    if not isinstance(command.data, str) or not command.data:
        return "its command is not a string", False
    if args is not None and args.data is not None and not _is_list_of_texts(args.data):
        return "its arguments are not a list of strings", False
    if any(part is not None and part.shared for part in (entry, command, args)):
        return "it shares its lines with other entries of the file (an alias)", False
    if _is_set_to(entry, "sandboxEnabled", True) and "servers" in keys[:-1]:
        return IS_SANDBOXED, True
    return "", True


def _text(entry: Value, key: str) -> str:
    found = (entry.members or {}).get(key)
    return found.data if found is not None and isinstance(found.data, str) else ""


def _is_set_to(entry: Value, key: str, value: object) -> bool:
    found = (entry.members or {}).get(key)
    return found is not None and found.data is value


def _read_names(found: Value | None) -> tuple[str, ...]:
    """Read a list of names. In Codex, items may also be tables with a name."""
    if found is None or not isinstance(found.data, list):
        return ()
    named = [item.get("name") if isinstance(item, dict) else item for item in found.data]
    return tuple(name for name in named if isinstance(name, str))
