"""The servers in a client's file: where their keys stand, what they are, how they are started.

The shapes are few. Most clients have a table of servers under one key, Continue has a list of them,
Claude Code has tables inside projects, Zed once put program and arguments into one table more.
"""

from __future__ import annotations

from corral.clients.corral_path import is_corral
from corral.policy.variables import masked
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corral.clients.backups import Part
    from corral.formats.positions import Format, Value

EVERY = "*"
SHAPES = (
    ("mcpServers",),
    ("projects", EVERY, "mcpServers"),
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
class Server:
    """`at` is the path of its keys in the file; `table` is what has `command` and `args`.

    `why` says why it cannot be wrapped and is empty if it can be. `off` means that the client does
    not start it now.
    """

    name: str
    at: tuple[str, ...]
    table: Value
    command: Value | None = None
    args: Value | None = None
    why: str = ""
    off: bool = False
    env: Mapping[str, object] = {}
    forwarded: tuple[str, ...] = ()
    env_file: str = ""
    cwd: str = ""

    @property
    def scope(self) -> str:
        """The project that it belongs to, if it does."""
        return self.at[1] if self.at[0] == "projects" else ""

    @property
    def words(self) -> tuple[str, ...]:
        """Program and arguments as configured."""
        first = self.command.data if self.command else ""
        rest = self.args.data if self.args and isinstance(self.args.data, list) else []
        return (str(first), *map(str, rest))

    @property
    def wrapped(self) -> bool:
        return is_corral(self.words[0]) and self.words[1:2] == ("run",)

    @property
    def flags(self) -> tuple[str, ...]:
        """What stands between `run` and `--`."""
        words = self.words[2:]
        return words[: words.index("--")] if "--" in words else words

    @property
    def inner(self) -> tuple[str, ...]:
        """What corral was told to run; empty where that cannot be told for sure."""
        words = self.words
        return words[words.index("--") + 1 :] if "--" in words else ()


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command for people. Of corral's own flags `--secret` has a name behind it, no value."""
    wrapped = "run" in words[:2] and "--" in words
    end = words.index("--") if wrapped else 0
    return (*(told for word in words[:end] for told in masked((word,))), *masked(words[end:]))


def servers(root: Value) -> list[Server]:
    return [server for shape in SHAPES for server in _under(root, shape, ())]


def read_servers(form: Format, text: str) -> list[Server]:
    return servers(form.read(text, may_hold))


def may_hold(at: tuple[str, ...]) -> bool:
    """Whether what these keys lead to could be a server, or have one in it."""
    return any(
        all(want in {EVERY, name} for want, name in zip(shape, at, strict=False))
        for shape in SHAPES
    )


def span(server: Server, part: Part) -> tuple[int, int]:
    """Where the text of a change stands. `both` is for arguments that corral itself added."""
    command, args = server.command, server.args
    if command is None or (part == "args" and args is None):
        return 0, 0
    if part == "command" or args is None:
        return command.start, command.end
    return (args.start if part == "args" else command.start), args.end


def _under(value: Value, shape: tuple[str, ...], at: tuple[str, ...]) -> Iterator[Server]:
    if not shape:
        yield from _listed(value, at)
        return
    first, *rest = shape
    members = value.members or {}
    for name in members if first == EVERY else [first]:
        if name in members:
            yield from _under(members[name], tuple(rest), (*at, name))


def _listed(value: Value, at: tuple[str, ...]) -> Iterator[Server]:
    for name, entry in (value.members or {}).items():
        if entry.members is not None:
            yield _server(name, (*at, name), entry)
    listed = [(_text(entry, "name"), entry) for entry in value.items or ()]
    names = [name for name, _ in listed]
    for name, entry in listed:
        if name:
            yield _server(name, (*at, name), entry, twin=names.count(name) > 1)


def _server(name: str, at: tuple[str, ...], entry: Value, *, twin: bool = False) -> Server:
    members = entry.members or {}
    command = members.get("command") or members.get("cmd")
    table = entry
    if command is not None and command.members is not None:
        table, command = command, command.members.get("path")
    inner = table.members or {}
    env = inner.get("env") or inner.get("envs") or members.get("env")
    names = members.get("env_vars") or members.get("env_keys")
    args = inner.get("args")
    values = env.data if env is not None and isinstance(env.data, dict) else {}
    return Server(
        name=name,
        at=at,
        table=table,
        command=command,
        args=args,
        why="another server has the same name" if twin else _why(entry, command, args),
        off=_is(entry, "disabled", said=True) or _is(entry, "enabled", said=False),
        env={str(key): value for key, value in values.items()},
        forwarded=_names(names),
        env_file=_text(entry, "envFile"),
        cwd=_text(entry, "cwd"),
    )


def _why(entry: Value, command: Value | None, args: Value | None) -> str:
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
    if _is(entry, "sandboxEnabled", said=True):
        return "the client runs it in its own sandbox (sandboxEnabled)"
    return ""


def _text(entry: Value, key: str) -> str:
    found = (entry.members or {}).get(key)
    return found.data if found is not None and isinstance(found.data, str) else ""


def _is(entry: Value, key: str, *, said: bool) -> bool:
    found = (entry.members or {}).get(key)
    return found is not None and found.data is said


def _names(found: Value | None) -> tuple[str, ...]:
    """Codex lists names, or tables with a name in them; Goose lists names."""
    if found is None or not isinstance(found.data, list):
        return ()
    named = [item.get("name") if isinstance(item, dict) else item for item in found.data]
    return tuple(name for name in named if isinstance(name, str))
