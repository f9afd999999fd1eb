"""Find wrapped servers that no longer start, and servers that `wrap` would refuse because npm is
missing.

A wrapped server no longer starts if a path in its entry no longer exists, or if an earlier version
of corral wrote flags that this version refuses. Most of these entries can be repaired with a
command.
"""

import os
from collections.abc import Sequence
from shlex import join

from corral.cli import entry_flags, grant, run, wrap
from corral.cli.grant import FlagWords
from corral.cli.option_parser import parse
from corral.clients import backups, catalogue
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import ClientFile
from corral.clients.unwrap import is_untouched
from corral.errors import (
    EXIT_NOT_FOUND,
    ChangedPathsError,
    CommandError,
    SandboxError,
    UnchosenReadsError,
    UnpinnedError,
)
from corral.policy import pins
from corral.programs.package_runners import Package, parse_runner
from corral.safe_text import last_words
from corral.servers.reference import name_server, parse_reference


def find_refusal(client: str, file: ClientFile, server: ConfiguredServer) -> tuple[str, str]:
    """Return why a server would not start, and the command that repairs its entry.

    Both strings are "" if no reason is found. The command is "" if the program or its script is
    missing. Nothing is installed for this check.

    If the server's lines were changed since corral wrote them, check only the names of its flags.
    The other checks read files that these lines name, and lines that a project wrote could name any
    file.
    """
    original = backups.load(file.content.path).get(server.key_path)
    if original is None or not is_untouched(file.content.text, server, original):
        return _find_mistake(file, server)
    try:
        _check(server, server.run_flags)
    except SandboxError as error:
        return error.message, _find_mend(client, file, server, error)
    return "", ""


def _find_mistake(file: ClientFile, server: ConfiguredServer) -> tuple[str, str]:
    """Return why the flags of a server cannot be parsed, and a hint, or two empty strings."""
    try:
        parse(run.FLAGS, server.run_flags if server.is_wrapped else ())
    except SandboxError as error:
        return error.message, f"correct it in {file.path}"
    return "", ""


def find_missing_npm(server: ConfiguredServer) -> tuple[str, str]:
    """If `wrap` would refuse a server because npm is missing, return the reason and a hint.
    Otherwise return two empty strings.
    """
    package = parse_runner(server.argv[0], server.argv[1:])
    if isinstance(package, Package):
        try:
            wrap.refuse_missing_npm(package, package.flags)
        except SandboxError as error:
            return error.message, error.hint or ""
    return "", ""


def _find_mend(client: str, file: ClientFile, server: ConfiguredServer, error: SandboxError) -> str:
    """Return the command that repairs the server's entry, or "" if no command can repair it.
    `client` is the name of a client, or the path of a file.
    """
    if isinstance(error, UnchosenReadsError):
        reads = [word for path in error.reads for word in ("--read", path)]
        return f"{join(['corral', 'wrap', *reads])} {last_words(client, server.name)}"
    if isinstance(error, CommandError):
        return ""  # the program is missing, and `wrap` would write the same program again
    if isinstance(error, ChangedPathsError):
        return " && ".join(join(["corral", "approve", "--path", path]) for path in error.paths)
    if isinstance(error, UnpinnedError):
        return format_pinning(client, file.content.path, server)
    if bad := _find_bad_flags(server):
        words = [word for one in bad for word in one.words]
        return join(["corral", "grant", f"{client}:{server.name}", "--remove", *words])
    again = last_words(client, server.name)
    return f"corral unwrap {again} && corral wrap {again}"


def format_pinning(client: str, real: str, server: ConfiguredServer) -> str:
    """Return the command that pins a server's tools. It can use the name CLIENT:SERVER only if
    `real` is one of the client's own files.
    """
    known = catalogue.find_client(client)
    own = map(os.path.realpath, catalogue.own_files(known) if known else ())
    if real in own:
        return f"corral inspect --pin {last_words(f'{client}:{server.name}')}"
    return pins.format_pinning(name_server(server.inner_argv))


def _check(server: ConfiguredServer, flags: Sequence[str]) -> None:
    entry_flags.check_run(tuple(flags), server.inner_argv)
    program = server.inner_argv[0]
    if parse_reference(program) is None and "${" not in program and os.path.isabs(program):
        entry_flags.prepare_run(tuple(flags), server.inner_argv, cwd=server.cwd)
    if missing := entry_flags.find_missing_file(server):
        raise CommandError(missing, exit_code=EXIT_NOT_FOUND)


def _find_bad_flags(server: ConfiguredServer) -> list[FlagWords]:
    """Return the flags that keep the server from starting, or [] if they cannot be found."""
    try:
        flags = grant.split_flags(server.run_flags)
        bad = [one for one in flags if _is_refused(server, [one])]
        rest = [one for one in flags if one not in bad]
        return [] if _is_refused(server, rest) else bad
    except SandboxError:
        return []


def _is_refused(server: ConfiguredServer, flags: Sequence[FlagWords]) -> bool:
    try:
        entry_flags.check_run(tuple(word for one in flags for word in one.words), server.inner_argv)
    except SandboxError:
        return True
    return False
