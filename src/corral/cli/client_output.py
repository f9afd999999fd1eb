"""Choose files, describe permissions and print edits for `wrap`, `unwrap` and `status`."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from shlex import quote

from corral.cli import interrupts, output, run, what_to_run
from corral.cli.option_parser import Options, UsageError, find_nearest, parse
from corral.cli.wrapped_servers import Row, list_unwrapped, list_wrapped, name_target
from corral.clients import catalogue, safe_write
from corral.clients.configured_servers import mask_command
from corral.clients.edit_file import FileEdit, read_client_file
from corral.clients.file_formats import load_format
from corral.clients.rewrite import ServerOutcome
from corral.clients.server_needs import is_sensitive_path
from corral.clients.wrap import find_granted
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.policy import profiles
from corral.policy.requests import GUARD, requested_items
from corral.policy.secret_files import Client
from corral.record import record
from corral.safe_text import last_words

# These flags of `run` permit something, but are not part of the policy.
OTHER_PERMISSIONS = {
    "--best-effort": "run even if a control cannot be enforced",
    "--allow-install-scripts": "run code while it is installed",
    "--report": "have corral replace {} with a report of each run",
    "--audit": "have corral append each denial to {}",
}


@record
class Selection:
    """The client or file that the user selected, and its servers.

    `word` is the client or file as typed, and `paths` lists the files to edit. `names` lists the
    servers; if it is empty, all servers in the files are selected.
    """

    word: str
    paths: tuple[str, ...]
    names: tuple[str, ...]


@record
class Permissions:
    """A server's permissions beyond the defaults (`may`), and its settings for the MCP guard
    (`guard`). They are separate, because the guard's settings only restrict the server.
    """

    may: tuple[str, ...]
    guard: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        lines = [f"    may: {'; '.join(self.may) or 'nothing beyond the defaults'}"]
        return [*lines, f"    guard: {'; '.join(self.guard)}"] if self.guard else lines


def describe_permissions(flags: Sequence[str], command: Sequence[str]) -> Permissions:
    """Describe what the flags of `run` let a server do, in the same words as `approve`."""
    try:
        options, rest = parse(run.FLAGS, flags)
        if rest or not command:
            return Permissions(may=("nothing: it cannot start, because its command has no `--`",))
        # The permissions depend only on the flags and the server's arguments. So pass os.devnull in
        # place of the program, which may not be installed.
        sources, _ = what_to_run.sources_and_command(options, [os.devnull, *command[1:]])
    except SandboxError as error:
        return Permissions(may=(f"nothing: it cannot start, because {error.message}",))
    here = what_to_run.current_directory()
    items = [
        item
        for source in sources
        for item in requested_items(source.manifest, home_directory(), here)
    ]
    may = [item.text for item in items if item.field != GUARD]
    # A profile may grant the paths in the server's arguments. An argument with a variable
    # (`${...}`) is shown as it is, because only the client knows the variable's value.
    name = options.get("--profile")
    access = profiles.load(name).arguments if name else ""
    verb = "read and write" if access == "write" else "read"
    unknown = [word for word in command[1:] if "${" in word] if access else []
    may += [f"{verb} {word} (the client chooses the path)" for word in unknown]
    may += [
        words.format(options.get(flag))
        for flag, words in OTHER_PERMISSIONS.items()
        if options.has(flag)
    ]
    guard = {item.text for item in items if item.field == GUARD}
    return Permissions(may=tuple(dict.fromkeys(may)), guard=tuple(sorted(guard)))


def select(words: list[str], usage: str) -> Selection:
    """Parse `CLIENT|FILE [SERVER...]`. Refuse an unknown server before any file is changed."""
    if not words:
        raise UsageError(
            "name a client or a file", hint=_join_hints(usage.partition("\n")[0], _name_clients())
        )
    word, *names = words
    first, colon, server = word.partition(":")
    if colon and server and catalogue.find_client(first) and not os.path.lexists(word):
        raise UsageError(
            f"{word} is neither a known client nor a file",
            hint=f"separate a client and its servers by a space: {first} {quote(server)}",
        )
    paths = find_files(word)
    if catalogue.find_client(word) is None and not os.path.lexists(word):
        raise SandboxError(
            f"{word} does not exist", hint=f"is it spelled right? {_name_clients()}".rstrip()
        )
    known = {server.name for path in paths if names for server in read_client_file(path).servers}
    if missing := [name for name in names if name not in known]:
        listed = f"the servers there: {', '.join(sorted(known)) or 'none'}"
        raise SandboxError(
            f"there is no server {', '.join(missing)} in {', '.join(paths)}",
            hint=_suggest_each([word, *missing], usage) or listed,
        )
    return Selection(word=word, paths=tuple(paths), names=tuple(names))


def _suggest_each(words: Sequence[str], usage: str) -> str:
    """If all words are clients, return a hint with one command for each. Otherwise return ""."""
    if not all(map(catalogue.find_client, words)):
        return ""
    verb = usage.split()[2]
    return "name one client at a time: " + " && ".join(f"corral {verb} {one}" for one in words)


def find_files(word: str) -> list[str]:
    """Return the existing files of the client `word`, or `word` itself if it is a path. Raise an
    error if `word` is neither a client nor a path, or if the client has no files here.
    """
    client = catalogue.find_client(word)
    if client is None:
        if os.path.lexists(word) or os.sep in word or load_format(word):
            return [word]
        hint = _suggest_client(word.partition(":")[0]) or _suggest_server(word)
        hint = hint or "clients: " + ", ".join(catalogue.NAMES)
        raise UsageError(f"{word} is neither a known client nor a file", hint=hint)
    found = list_existing(client)
    if not found:
        paths = ", ".join(catalogue.own_files(client))
        raise SandboxError(
            f"{client.title} has no configuration here: looked for {paths}",
            hint=_join_hints("name the file itself if it is elsewhere", _name_clients()),
        )
    return found


def _suggest_client(word: str) -> str:
    """Return a hint with the client that `word` most likely means, or "" if no name is similar.
    Prefer the clients that have settings here.
    """
    here = _list_clients_here()
    near = [name for name in here if len(word) > 2 and word in name]
    near = near or [find_nearest(word, here) or find_nearest(word, catalogue.NAMES)]
    return f"did you mean {' or '.join(near)}?" if near[0] else ""


def _suggest_server(word: str) -> str:
    """If `word` is only the name of a server, return a hint that names its client too, such as "did
    you mean cursor github?". Otherwise return "".
    """
    rows = [row for row in list_wrapped() if row[2].name == word] or list_unwrapped(word)
    found = next((last_words(name_target(row[0], row[1]), word) for row in rows), "")
    return f"did you mean {found}?" if found else ""


def _list_clients_here() -> list[str]:
    return [one.name for one in catalogue.CLIENTS if list_existing(one)]


def _name_clients() -> str:
    here = _list_clients_here()
    return f"clients found here: {', '.join(here)}" if here else ""


def _join_hints(*hints: str) -> str:
    return "; ".join(filter(None, hints))


def list_existing(client: Client) -> list[str]:
    """Return the client's own files that exist. If there are several, leave out empty ones, because
    an editor's settings file may be empty while another file lists the servers.
    """
    found = [path for path in catalogue.own_files(client) if os.path.lexists(path)]
    if len(found) > 1:
        found = [path for path in found if not os.path.isfile(path) or os.path.getsize(path)]
    return found


def format_flags(flags: Sequence[str]) -> str:
    """Return flags of `run` as a user would type them, with secrets masked."""
    return " ".join(map(quote, mask_command(("run", *flags, "--"))[1:-1])) or "no flags"


def warn_of_secrets(flags: Sequence[str]) -> None:
    """Warn the user about each path in flags of `run` that may contain secrets."""
    for path in filter(is_sensitive_path, find_granted(flags)):
        output.warn(f"{path} may contain secrets, which the server can then read")


def note_differences(found: Sequence[Row]) -> None:
    """Tell the user if clients have different flags for the server that `corral grant` changes.

    The flags still differ after the change, because each client keeps its other flags.
    """
    flags = {frozenset(server.run_flags) for _, _, server in found}
    if len(flags) > 1:
        for client, path, server in found:
            shown = format_flags(server.run_flags)
            output.note(f"{server.name} of {client} ({path}) has: {shown}")
        output.note("the flags differ; each client gets the change and keeps its other flags")


def edit_files(
    selection: Selection,
    edit: Callable[[str], FileEdit],
    options: Options,
    *,
    texts: dict[str, str],
    fields: Sequence[str],
    show_diff: bool = False,
    verb: str = "wrap",
    empty: str = "nothing to do",
) -> int:
    """Edit each file, print the results, and return the exit code.

    If a file cannot be changed, still edit the others, and raise the first error at the end.
    `empty` is the text for a file in which no server is affected.
    """
    edits: list[FileEdit] = []
    problem: SandboxError | None = None
    with report_interrupt(selection.paths):
        for path in selection.paths:
            try:
                edits.append(edit(path))
            except SandboxError as error:
                problem = problem or error
    if options.has("--json"):
        output.write_json([_edit_to_json(one, fields) for one in edits])
    else:
        for one in edits:
            show = show_diff or options.has("--dry-run")
            _print_edit(one, texts, selection.word, show_diff=show)
            if not one.outcomes:
                output.write_line(f"  {empty}")
        if any(one.backup for one in edits):
            output.write_line("restart the client, so that it reads the change")
        _note_project_files(selection.word, verb)
    if problem is not None:
        raise problem
    return int(any(one.state == "refused" for edit in edits for one in edit.outcomes))


def report_interrupt(paths: Sequence[str]) -> AbstractContextManager[None]:
    """If Ctrl-C ends the `with` block, tell the user which of these files were already changed."""

    def read() -> dict[str, bytes]:
        return {path: _read_bytes(path) for path in paths}

    return interrupts.report_changes(
        read, none="no client's settings were changed", some="changed before that"
    )


def _read_bytes(path: str) -> bytes:
    try:
        return safe_write.read(path).data
    except SandboxError:
        return b""


def _edit_to_json(edit: FileEdit, fields: Sequence[str]) -> dict[str, object]:
    servers = []
    for outcome in edit.outcomes:
        row = {name: getattr(outcome, name) for name in fields}
        if row.get("command"):
            row["command"] = mask_command(row["command"])
        servers.append(row)
    found = {name: getattr(edit, name) for name in ("path", "real", "backup", "diff")}
    return {**found, "servers": servers}


def _print_edit(edit: FileEdit, texts: dict[str, str], word: str, *, show_diff: bool) -> None:
    linked = f" (really {edit.real})" if edit.real != os.path.abspath(edit.path) else ""
    output.write_line(output.Painted(edit.path, "bold"), linked)
    for outcome in edit.outcomes:
        name = f"{outcome.name} ({outcome.scope})" if outcome.scope else outcome.name
        why, *more = outcome.why.split("\n")
        output.write_line(f"  {name}  {texts[outcome.state]}{': ' if why else ''}{why}")
        # If the reason has more lines, they are the messages of an installer.
        output.write_lines(f"      {line}" for line in more)
        if outcome.hint:
            output.write_line(f"    hint: {outcome.hint}")
        if outcome.state in {"wrapped", "already", "changed"}:
            _print_permissions(outcome, word)
    if show_diff and edit.diff:
        output.write_lines(line.expandtabs(4) for line in edit.diff.split("\n"))
    if edit.backup:
        output.write_line(f"  backup: {edit.backup}")
    for outcome in edit.outcomes:
        # Quote the names and paths, because they come from the client's file and users paste these
        # commands.
        words = last_words(word, outcome.name)
        for path in outcome.suggested:
            remedy = f"to grant it: corral wrap --read {quote(path)} {words} (or --write)"
            remedy = "it may contain secrets" if is_sensitive_path(path) else remedy
            output.write_line(
                f"  {outcome.name} was configured with {path}, which is not granted; {remedy}"
            )


def _print_permissions(outcome: ServerOutcome, word: str) -> None:
    command = outcome.command
    end = command.index("--") if "--" in command else len(command)
    flags = command[1:end]
    output.write_lines(describe_permissions(flags, command[end + 1 :]).lines())
    profile = parse(run.FLAGS, flags)[0].get("--profile") if outcome.state == "wrapped" else None
    if profile and (note := profiles.load(profile).note):
        change = (
            f"; to allow what it was denied: corral grant {last_words(f'{word}:{outcome.name}')}"
        )
        output.write_line(f"    hint: {note}{change if '--' in note else ''}")


def _note_project_files(word: str, verb: str) -> None:
    """Tell the user which of the client's files in the current project were not changed."""
    client = catalogue.find_client(word)
    if client is None:
        return
    own = {os.path.realpath(path) for path in catalogue.own_files(client)}
    for path in catalogue.project_files(client, os.curdir):
        if os.path.exists(path) and os.path.realpath(path) not in own:
            change = f"corral {verb} {quote(path)}"
            output.note(
                f"{path} belongs to this project and was not changed; to change it: {change}"
            )
