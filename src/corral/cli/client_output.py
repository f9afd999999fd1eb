"""What `wrap`, `unwrap` and `status` share: choose files, describe permissions, print edits."""

import os
from collections.abc import Callable, Sequence
from shlex import quote

from corral.cli import output, run, what_to_run
from corral.cli.option_parser import Flag, Options, UsageError, parse
from corral.clients import catalogue
from corral.clients.configured_servers import mask_command
from corral.clients.edit_file import FileEdit, read_client_file
from corral.clients.file_formats import load_format
from corral.clients.rewrite import ServerOutcome
from corral.errors import SandboxError
from corral.policy import profiles
from corral.policy.requests import describe_requests
from corral.record import record

# Flags of `run` that permit something and are no part of a policy.
OTHER_PERMISSIONS = {
    "--best-effort": "run even if a control cannot be enforced",
    "--allow-install-scripts": "run code while it is installed",
}


@record
class Selection:
    """The client or file that the user named, its files, and the named servers (none: all)."""

    word: str
    paths: tuple[str, ...]
    names: tuple[str, ...]


def describe_permissions(flags: Sequence[str], command: Sequence[str]) -> list[str]:
    """Describe what the flags of `run` let a server do, in the same words as `approve`."""
    try:
        options, rest = parse(run.FLAGS, flags)
        if rest or not command:
            return ["nothing: it cannot start: its `--` is missing"]
        # Only the arguments matter here, so the program is not looked up.
        sources, _ = what_to_run.sources_and_command(options, [os.devnull, *command[1:]])
    except SandboxError as error:
        return [f"nothing: it cannot start: {error.message}"]
    found = [words for source in sources for words in describe_requests(source.manifest)]
    found += _describe_variables(options, command)
    found += [words for flag, words in OTHER_PERMISSIONS.items() if options.has(flag)]
    return list(dict.fromkeys(found))


def _describe_variables(options: Options, command: Sequence[str]) -> list[str]:
    """Describe arguments that a profile grants and that only the client can fill in."""
    name = options.get("--profile")
    access = profiles.load(name).arguments if name else ""
    verb = "read and write" if access == "write" else "read"
    unknown = [word for word in command[1:] if "${" in word] if access else []
    return [f"{verb} {word}, wherever that leads" for word in unknown]


def collect_words(flags: Sequence[Flag], options: Options, rest: list[str]) -> list[str]:
    """Return the words that are not options; add the options between them to `options`."""
    found = []
    while rest:
        found.append(rest.pop(0))
        more, rest = parse(flags, rest)
        for name, values in more.values.items():
            options.values.setdefault(name, []).extend(values)
    return found


def select(flags: Sequence[Flag], options: Options, rest: list[str], usage: str) -> Selection:
    """Read `CLIENT|FILE [SERVER...]`. A mistyped server is refused before anything is changed."""
    words = collect_words(flags, options, rest)
    if not words:
        raise UsageError("name a client or a file", hint=usage)
    word, *names = words
    paths = find_files(word)
    known = {server.name for path in paths if names for server in read_client_file(path).servers}
    if missing := [name for name in names if name not in known]:
        listed = ", ".join(sorted(known)) or "none"
        raise SandboxError(
            f"there is no server {', '.join(missing)} in {', '.join(paths)}",
            hint=f"there are: {listed}",
        )
    return Selection(word=word, paths=tuple(paths), names=tuple(names))


def find_files(word: str) -> list[str]:
    """Return the existing files of the client with this name, or the file itself."""
    client = catalogue.find_client(word)
    if client is None:
        if os.path.lexists(word) or os.sep in word or load_format(word):
            return [word]
        raise SandboxError(
            f"{word} is neither a client that corral knows nor a file",
            hint="clients: " + ", ".join(catalogue.NAMES),
        )
    paths = catalogue.own_files(client)
    found = [path for path in paths if os.path.lexists(path)]
    if len(found) > 1:  # an editor may have empty settings beside the file with the servers
        found = [path for path in found if not os.path.isfile(path) or os.path.getsize(path)]
    if not found:
        raise SandboxError(
            f"{client.title} has no configuration here: looked for {', '.join(paths)}",
            hint="name the file itself if it is elsewhere",
        )
    return found


def edit_files(
    selection: Selection,
    edit: Callable[[str], FileEdit],
    options: Options,
    *,
    texts: dict[str, str],
    fields: Sequence[str],
) -> int:
    """Edit each file by itself, print the results, and return the exit code.

    A file that cannot be changed does not stop the others.
    """
    edits: list[FileEdit] = []
    problem: SandboxError | None = None
    for path in selection.paths:
        try:
            edits.append(edit(path))
        except SandboxError as error:
            problem = problem or error
    if options.has("--json"):
        output.write_json([_edit_to_json(one, fields) for one in edits])
    else:
        for one in edits:
            _print_edit(one, texts, selection.word, dry_run=options.has("--dry-run"))
        _note_project_files(selection.word)
    if problem is not None:
        raise problem
    return int(any(one.state == "refused" for edit in edits for one in edit.outcomes))


def _edit_to_json(edit: FileEdit, fields: Sequence[str]) -> dict[str, object]:
    servers = []
    for outcome in edit.outcomes:
        row = {name: getattr(outcome, name) for name in fields}
        if row.get("command"):
            row["command"] = mask_command(row["command"])
        servers.append(row)
    found = {name: getattr(edit, name) for name in ("path", "real", "backup", "diff")}
    return {**found, "servers": servers}


def _print_edit(edit: FileEdit, texts: dict[str, str], word: str, *, dry_run: bool) -> None:
    """Print one block: the file, and each server with what happened to it and why."""
    linked = f" (really {edit.real})" if edit.real != os.path.abspath(edit.path) else ""
    output.write_line(output.Painted(edit.path, "bold"), linked)
    for outcome in edit.outcomes:
        name = f"{outcome.name} ({outcome.scope})" if outcome.scope else outcome.name
        why = f": {outcome.why}" if outcome.why else ""
        output.write_line(f"  {name}  {texts[outcome.state]}{why}")
        if outcome.hint:
            output.write_line(f"    hint: {outcome.hint}")
        if outcome.state in {"wrapped", "already"}:
            _print_permissions(outcome)
    if not edit.outcomes:
        output.write_line("  nothing to do")
    if dry_run and edit.diff:
        output.write_lines(edit.diff.split("\n"))
    if edit.backup:
        output.write_line(f"  backup: {edit.backup}")
    for outcome in edit.outcomes:
        # Users copy these commands, and the names and paths come from the file.
        name = quote(outcome.name)
        for path in outcome.suggested:
            output.write_line(
                f"  {outcome.name} was configured with {path} and may not reach it; to let it:"
                f" corral unwrap {quote(word)} {name}, then corral wrap --read"
                f" {quote(path)} {quote(word)} {name} (or --write)"
            )


def _print_permissions(outcome: ServerOutcome) -> None:
    command = outcome.command
    end = command.index("--") if "--" in command else len(command)
    flags = command[1:end]
    permissions = describe_permissions(flags, command[end + 1 :])
    output.write_line(f"    may: {'; '.join(permissions) or 'nothing of yours'}")
    profile = parse(run.FLAGS, flags)[0].get("--profile") if outcome.state == "wrapped" else None
    if profile and (note := profiles.load(profile).note):
        output.write_line(f"    hint: {note}")


def _note_project_files(word: str) -> None:
    """Mention the client's files of the project in the current directory: they stay unchanged."""
    client = catalogue.find_client(word)
    if client is None:
        return
    own = {os.path.realpath(path) for path in catalogue.own_files(client)}
    for path in catalogue.project_files(client, os.curdir):
        if os.path.exists(path) and os.path.realpath(path) not in own:
            output.note(f"{path} is this project's own: name it to change it too")
