"""Read the servers that a client's file configures, with the positions of their keys.

Most clients have a table of servers under one key. Continue has a list of servers, Claude Code has
tables inside projects, and older versions of Zed put program and arguments into a nested table.
"""

from collections.abc import Iterator, Mapping, Sequence

from corral.clients.backups import Part
from corral.clients.corral_path import is_corral
from corral.clients.file_formats import Format
from corral.formats.positions import Value
from corral.policy.variables import masked
from corral.record import record

ANY_KEY = "*"
SHAPES = (
    ("mcpServers",),
    ("projects", ANY_KEY, "mcpServers"),
    ("servers",),
    ("mcp", "servers"),
    ("context_servers",),
    ("mcp_servers",),
    ("extensions",),
)
ADDRESSES = ("url", "serverUrl", "httpUrl", "uri")
REMOTE = frozenset((
    "http", "https", "sse", "ws", "websocket", "streamable-http", "streamableHttp",
    "streamable_http",
))  # fmt: skip
LOCAL = frozenset(("", "stdio"))


@record
class ConfiguredServer:
    """`key_path` leads to the server in the file; `table` is the value with `command` and `args`.

    `why` says why the server cannot be wrapped; it is empty for one that can be. A `disabled`
    server is one that the client does not start now.
    """

    name: str
    key_path: tuple[str, ...]
    table: Value
    command: Value | None = None
    args: Value | None = None
    why: str = ""
    disabled: bool = False
    env: Mapping[str, object] = {}
    forwarded: tuple[str, ...] = ()
    env_file: str = ""
    cwd: str = ""

    @property
    def scope(self) -> str:
        """Return the project that the server belongs to, or ""."""
        return self.key_path[1] if self.key_path[0] == "projects" else ""

    @property
    def argv(self) -> tuple[str, ...]:
        """Return program and arguments as configured."""
        program = self.command.data if self.command else ""
        arguments = self.args.data if self.args and isinstance(self.args.data, list) else []
        return (str(program), *map(str, arguments))

    @property
    def is_wrapped(self) -> bool:
        return is_corral(self.argv[0]) and self.argv[1:2] == ("run",)

    @property
    def run_flags(self) -> tuple[str, ...]:
        """Return the words between `run` and `--` of a wrapped server."""
        words = self.argv[2:]
        return words[: words.index("--")] if "--" in words else words

    @property
    def inner_argv(self) -> tuple[str, ...]:
        """Return what a wrapped server lets corral run; empty without a `--`."""
        return self.argv[self.argv.index("--") + 1 :] if "--" in self.argv else ()

    @property
    def unwrapped_argv(self) -> tuple[str, ...]:
        """Return program and arguments without corral in front of them."""
        return self.inner_argv if self.is_wrapped else self.argv


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Mask secrets in a command. corral's own `--secret` is followed by a name, not by a secret."""
    wrapped = "run" in words[:2] and "--" in words
    end = words.index("--") if wrapped else 0
    return (*(shown for word in words[:end] for shown in masked((word,))), *masked(words[end:]))


def read_servers(form: Format, text: str) -> list[ConfiguredServer]:
    root = form.read(text, may_contain_server)
    return [server for shape in SHAPES for server in _find_servers(root, shape, ())]


def may_contain_server(keys: tuple[str, ...]) -> bool:
    """Return whether the value at these keys could be a server or contain one."""
    return any(
        all(want in {ANY_KEY, name} for want, name in zip(shape, keys, strict=False))
        for shape in SHAPES
    )


def find_span(server: ConfiguredServer, part: Part) -> tuple[int, int]:
    """Return start and end of a part's text. `both` is for arguments that corral itself added."""
    command, args = server.command, server.args
    if command is None or (part == "args" and args is None):
        return 0, 0
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
    """Read a table of servers by name, or a list of servers with a name each."""
    for name, entry in (value.members or {}).items():
        if entry.members is not None:
            yield _read_server(name, (*keys, name), entry)
    listed = [(_text(entry, "name"), entry) for entry in value.items or ()]
    names = [name for name, _ in listed]
    for name, entry in listed:
        if name:
            yield _read_server(name, (*keys, name), entry, twin=names.count(name) > 1)


def _read_server(
    name: str, key_path: tuple[str, ...], entry: Value, *, twin: bool = False
) -> ConfiguredServer:
    members = entry.members or {}
    command = members.get("command") or members.get("cmd")
    table = entry
    if command is not None and command.members is not None:
        table, command = command, command.members.get("path")
    inner = table.members or {}
    env = inner.get("env") or inner.get("envs") or members.get("env")
    args = inner.get("args")
    values = env.data if env is not None and isinstance(env.data, dict) else {}
    return ConfiguredServer(
        name=name,
        key_path=key_path,
        table=table,
        command=command,
        args=args,
        why="another server has the same name" if twin else _find_obstacle(entry, command, args),
        disabled=_is_set_to(entry, "disabled", True) or _is_set_to(entry, "enabled", False),
        env={str(key): value for key, value in values.items()},
        forwarded=_read_names(members.get("env_vars") or members.get("env_keys")),
        env_file=_text(entry, "envFile"),
        cwd=_text(entry, "cwd"),
    )


def _find_obstacle(entry: Value, command: Value | None, args: Value | None) -> str:
    """Return why corral cannot start this server, or ""."""
    kind = _text(entry, "type") or _text(entry, "transport")
    if kind in REMOTE or (command is None and any(_text(entry, key) for key in ADDRESSES)):
        return "it is remote: nothing of it runs on this machine"
    if kind not in LOCAL:
        return f"it is a part of the client ({kind})"
    if command is None:
        return "it has no command: an extension or the client itself starts it"
    if not isinstance(command.data, str) or not command.data:
        return "its command is no text"
    listed = args.data if args is not None else None
    if listed is not None and not (
        isinstance(listed, list) and all(isinstance(word, str) for word in listed)
    ):
        return "its arguments are no list of texts"
    if any(part is not None and part.shared for part in (entry, command, args)):
        return "it shares its lines with other places of the file (an alias)"
    if _is_set_to(entry, "sandboxEnabled", True):
        return "the client runs it in its own sandbox (sandboxEnabled)"
    return ""


def _text(entry: Value, key: str) -> str:
    found = (entry.members or {}).get(key)
    return found.data if found is not None and isinstance(found.data, str) else ""


def _is_set_to(entry: Value, key: str, value: object) -> bool:
    found = (entry.members or {}).get(key)
    return found is not None and found.data is value


def _read_names(found: Value | None) -> tuple[str, ...]:
    """Read a list of names. Codex also lists tables with a name in them."""
    if found is None or not isinstance(found.data, list):
        return ()
    named = [item.get("name") if isinstance(item, dict) else item for item in found.data]
    return tuple(name for name in named if isinstance(name, str))
