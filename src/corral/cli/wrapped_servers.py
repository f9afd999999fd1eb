"""Find configured servers by name, for `why`, `grant` and other commands that take a server.

A server is named as SERVER, CLIENT:SERVER or FILE:SERVER. The clients' own files and the files of
the project in the current directory are searched first. Other files in which corral wrapped servers
come last, because servers of two projects often have the same name.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from shlex import quote

from corral.cli import output, what_to_run
from corral.cli.option_parser import suggest
from corral.clients import backups, catalogue
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import read_client_file
from corral.clients.file_formats import identify
from corral.clients.server_needs import find_identity_directory
from corral.clients.wrap import WrapRequest, propose
from corral.denials.server_id import ServerId
from corral.errors import SandboxError
from corral.policy.server_identity import identify_command
from corral.safe_text import last_words
from corral.servers.reference import name_server

# A row is (client, file, server). For a file from `find_recorded_files`, its path takes the place
# of the client.
Row = tuple[str, str, ConfiguredServer]


def find_all_files() -> list[tuple[str, str]]:
    """Return (client, file) for the files that belong to the clients themselves, and for those that
    clients read from the project in the current directory.
    """
    here = what_to_run.current_directory()
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for client in catalogue.CLIENTS:
        for path in (*catalogue.own_files(client), *catalogue.project_files(client, here)):
            if os.path.lexists(path):
                # If the current directory is the home directory, a project's file may be the
                # client's own file.
                found.setdefault(identify(path), (client.name, path))
    return list(found.values())


def find_recorded_files() -> list[tuple[str, str]]:
    """Return (file, file) for each file in which corral wrapped servers, except those that
    `find_all_files` returns. The first path takes the place of a client's name.
    """
    known = {os.path.realpath(path) for _, path in find_all_files()}
    return [
        (path, path) for path in backups.list_files() if path not in known and os.path.exists(path)
    ]


def list_wrapped() -> list[Row]:
    """Return each wrapped server. Broken files are skipped, because `status` reports them."""
    return _select_wrapped(_list_servers(find_all_files()))


def list_recorded() -> list[Row]:
    """Return the wrapped servers in the files of `find_recorded_files`.

    Leave out entries that corral has no record of, because a project's file may contain any
    command.
    """
    found = _select_wrapped(_list_servers(find_recorded_files()))
    return [row for row in found if row[2].key_path in backups.load(os.path.realpath(row[1]))]


def _select_wrapped(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row[2].is_wrapped and row[2].inner_argv]


def identify_entry(path: str, server: ConfiguredServer) -> ServerId:
    """Return the ServerId under which corral stores the denials and the home directory of a wrapped
    server in a client's file.
    """
    return identify_command(name_server(server.inner_argv), find_identity_directory(server, path))


def _list_servers(
    files: Iterable[tuple[str, str]], note: Callable[[str], None] = lambda _: None
) -> list[Row]:
    found: list[Row] = []
    for client, path in files:
        try:
            found += [(client, path, one) for one in read_client_file(path).servers]
        except SandboxError as error:
            note(error.message)
    return found


def _is_named(row: Row, word: str) -> bool:
    client, path, server = row
    if word == f"{client}:{server.name}":
        return True
    if word == server.name:
        # A project chooses the names of its servers, so a name could look like CLIENT:SERVER or
        # FILE:SERVER. The project's server must not get grants that the user intended for the
        # server of that client or file.
        return not _names_file(word)
    file, _, _ = word.rpartition(f":{server.name}")
    return word == f"{file}:{server.name}" and os.path.realpath(file) == os.path.realpath(path)


def _names_file(word: str) -> bool:
    """Return whether `word` begins with the name of a client or a file, followed by a colon."""
    client, colon, _ = word.partition(":")
    return bool(colon and catalogue.find_client(client)) or bool(_find_named_files(word))


def _find_named_files(word: str) -> list[tuple[str, str]]:
    """Return the files that FILE:SERVER may refer to. There can be several, because both FILE and
    SERVER may contain a colon.
    """
    files = [word[:at] for at, letter in enumerate(word) if letter == ":"]
    return [(file, file) for file in files if os.path.isfile(file)]


def match_wrapped(word: str) -> list[Row]:
    """Return the wrapped servers that `word` names, or [] if there are none.

    If `word` is only the name of a server, the servers may be in several files.
    """
    places = (list_wrapped, list_recorded, lambda: _select_wrapped(_list_named(word)))
    for place in places:
        if found := [row for row in place() if _is_named(row, word)]:
            return found
    return []


def _list_named(word: str) -> list[Row]:
    return _list_servers(_find_named_files(word), output.note)


def find_wrapped(word: str) -> list[Row]:
    """Return one row for each client that has the wrapped server `word`.

    Raise an error if no client has it, or if `refuse_ambiguous` refuses the name.
    """
    found = match_wrapped(word)
    refuse_ambiguous(word, found)
    if found:
        return found
    if rows := list_unwrapped(word):
        raise refuse_unwrapped(rows)
    names = [server.name for _, _, server in (*list_wrapped(), *list_recorded())]
    listed = ", ".join(dict.fromkeys(names))
    hint = f"wrapped servers: {listed}" if listed else "`corral wrap CLIENT` wraps its servers"
    raise SandboxError(
        f"no client has a wrapped server named {word}",
        hint=suggest(word, names, hint),
    )


def suggest_one_word(words: Sequence[str]) -> str:
    """If two words name a client or file and one of its wrapped servers, as for `wrap`, return a
    hint with the name that `why` and `grant` take. Otherwise return "".
    """
    name = ":".join(words)
    known = len(words) == 2 and match_wrapped(name)
    return f"did you mean {last_words(name)}?" if known else ""


def refuse_ambiguous(word: str, rows: Iterable[Row]) -> None:
    """Refuse a name that occurs in files of several other projects, because it may name different
    servers there.
    """
    files = sorted({path for client, path, _ in rows if client == path})
    if len(files) > 1:
        named = " or ".join(quote(f"{file}:{word}") for file in files)
        raise SandboxError(
            f"several files have a wrapped server named {word}", hint=f"name {named}"
        )


def refuse_different(word: str, rows: Sequence[Row]) -> None:
    """Refuse a name that belongs to servers with different commands. Call this before deleting the
    home directory of a server. Otherwise a project whose file reuses the name of one of your
    servers could make you delete the wrong home directory.
    """
    refuse_ambiguous(word, rows)
    if len({name_server(server.inner_argv) for _, _, server in rows}) > 1:
        named = ", ".join(dict.fromkeys(path for _, path, _ in rows))
        raise SandboxError(
            f"{word} is the name of different servers in {named}",
            hint="`corral cache homes` lists the homes; name one by its command or its path",
        )


def list_unwrapped(word: str) -> list[Row]:
    """Return each server of this name that is not wrapped. The name may also be CLIENT:SERVER or
    FILE:SERVER.
    """
    rows = [*_list_servers(find_all_files(), output.note), *_list_named(word)]
    return [row for row in rows if not row[2].is_wrapped and row[2].argv and _is_named(row, word)]


def refuse_unwrapped(rows: Iterable[Row]) -> SandboxError:
    """Return an error that says why corral does not start these servers, with a hint that says how
    to wrap them. There is no hint if none of them can be wrapped.
    """
    texts, hints = zip(*map(_describe_unwrapped, rows), strict=True)
    return SandboxError(
        "; ".join(texts), hint="; ".join(dict.fromkeys(filter(None, hints))) or None
    )


def _describe_unwrapped(row: Row) -> tuple[str, str]:
    client, path, server = row
    refused, hint = find_wrap_refusal(*row)
    why = server.why or refused or "corral does not start it"
    command = f"corral wrap {last_words(name_target(client, path), server.name)}"
    text = f"{server.name} of {client} is not wrapped: {why}"
    return text, "" if server.why else hint if refused else command


def find_wrap_refusal(client: str, path: str, server: ConfiguredServer) -> tuple[str, str]:
    """Return why `wrap` without flags would refuse a server, and a hint, or two empty strings. Look
    only at the server's entry. `wrap` itself also plans the run, and may refuse the server then.
    """
    [proposal] = propose([server], WrapRequest(corral="", target=name_target(client, path)))
    outcome = proposal.outcome
    if outcome is None or outcome.state != "refused":
        return "", ""
    return outcome.why, outcome.hint


def name_target(client: str, path: str) -> str:
    """Return the word to type after `wrap` or `unwrap` for a file: the name of its client, or the
    path if it is not one of the client's own files.
    """
    known = catalogue.find_client(client)
    return client if known and path in catalogue.own_files(known) else path
