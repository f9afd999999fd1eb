"""Change servers in a file's text, and check the result with an independent parser."""

from collections.abc import Mapping
from typing import Literal

from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.corral_path import is_corral
from corral.clients.file_formats import Format
from corral.errors import SandboxError
from corral.formats.positions import Splice, same, splice
from corral.record import record

KeyPath = tuple[str, ...]
State = Literal["wrapped", "already", "left", "refused", "changed", "restored", "derived", "forced"]


@record
class ServerOutcome:
    """The result for one server in a file, with the reason. `command` is the server's command
    without the path of corral: `run FLAGS -- PROGRAM ARGUMENTS`.
    """

    name: str
    state: State
    scope: str = ""
    why: str = ""
    hint: str = ""
    command: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()  # paths that the server names but cannot access


@record
class RewrittenText:
    """The new text of a file. `originals` are the records of servers that start through corral."""

    text: str
    outcomes: tuple[ServerOutcome, ...]
    originals: tuple[Original, ...] = ()


@record
class Rewrite:
    """The changes to one server's text. `argv` is the command that the server must have afterwards,
    or None if any command except corral is acceptable.
    """

    splices: tuple[Splice, ...]
    argv: tuple[str, ...] | None


def describe_outcome(
    server: ConfiguredServer,
    state: State,
    why: str = "",
    hint: str | None = None,
    **words: tuple[str, ...],
) -> ServerOutcome:
    """Return the outcome for a server. `words` contains the outcome's fields `command` and
    `suggested`.
    """
    name, scope = server.name, server.scope
    return ServerOutcome(name=name, scope=scope, state=state, why=why, hint=hint or "", **words)


def describe_doubt(server: ConfiguredServer) -> ServerOutcome:
    why = "its lines cannot be changed safely"
    hint = "write them more simply, or change them by hand"
    return describe_outcome(server, "refused", why, hint)


def rewrite_servers(
    text: str, form: Format, rewrites: Mapping[KeyPath, Rewrite]
) -> tuple[str, frozenset[KeyPath]]:
    """Return the new text, and the servers that were changed.

    If `_is_right` refuses all changes together, add them one at a time, and leave out those that it
    refuses.
    """
    new = _apply(text, rewrites)
    if _is_right(form, text, new, rewrites):
        return new, frozenset(rewrites)
    done: dict[KeyPath, Rewrite] = {}
    new = text
    for key_path, rewrite in rewrites.items():
        tried = {**done, key_path: rewrite}
        result = _apply(text, tried)
        if _is_right(form, text, result, tried):
            new, done = result, tried
    return new, frozenset(done)


def _apply(text: str, rewrites: Mapping[KeyPath, Rewrite]) -> str:
    return splice(text, [one for rewrite in rewrites.values() for one in rewrite.splices])


def _is_right(form: Format, old: str, new: str, rewrites: Mapping[KeyPath, Rewrite]) -> bool:
    """Return whether each server in `rewrites` has the command that its Rewrite requires, and no
    other value has changed.
    """
    try:
        before, after = form.load(old), form.load(new)
        for key_path, rewrite in rewrites.items():
            _remove_command(before, key_path)
            found = _remove_command(after, key_path)
            if is_corral(found[0]) if rewrite.argv is None else found != rewrite.argv:
                return False
    except (ValueError, TypeError, KeyError, RecursionError, SandboxError):
        return False
    return same(before, after)


def _remove_command(data: object, key_path: KeyPath) -> tuple[str, ...]:
    """Remove the program and its arguments from the server's table, and return them."""
    table, key = _find_command(data, key_path)
    program, arguments = table.pop(key), table.pop("args", None)
    words = program if isinstance(program, list) else [program]
    return tuple(map(str, [*words, *(arguments if isinstance(arguments, list) else [])]))


def _find_command(data: object, key_path: KeyPath) -> tuple[dict[object, object], str]:
    """Return the table that contains the program and its arguments, and the program's key."""
    for name in key_path:
        if isinstance(data, list):
            [data] = [item for item in data if isinstance(item, dict) and item.get("name") == name]
        elif isinstance(data, dict):
            data = data[name]
    if not isinstance(data, dict):
        raise TypeError
    command = data.get("command")
    if isinstance(command, dict):
        return command, "path"
    return data, "command" if "command" in data else "cmd"
