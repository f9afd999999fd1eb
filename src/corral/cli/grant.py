"""`corral grant`: change what a wrapped server may do, in the files of all clients that use it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence

from corral.cli import approve, client_output, entry_flags, output, run_flags, wrapped_servers
from corral.cli.flag_coverage import is_covered
from corral.cli.option_parser import Flag, Options, UsageError, parse
from corral.clients.configured_servers import ConfiguredServer
from corral.clients.edit_file import ClientFile, FileEdit, change_flags, lock_client_file
from corral.clients.rewrite import ServerOutcome
from corral.clients.server_needs import is_sensitive_path
from corral.denials import kept
from corral.denials.records import Denial
from corral.errors import SandboxError
from corral.record import fields, record
from corral.safe_text import last_words

SUMMARY = "change what a wrapped server may do"
USAGE = (
    "usage: corral grant [CLIENT:|FILE:]SERVER [--read PATH] [--allow-net HOST] ...  [--remove]\n"
    "       corral grant [CLIENT:|FILE:]SERVER    asks about each of the last denials"
)
OWN = (
    Flag(name="--remove", help="remove these grants instead"),
    Flag(name="--dry-run", help="print what would change, and change nothing"),
    Flag(name="--json", help="as JSON"),
)
FLAGS = (*OWN, *run_flags.FLAGS)
MAX_NAMED = 3  # a hint with more flags would be too long to read
TEXTS = {"changed": "changed", "already": "unchanged", "refused": "refused"}
OPPOSITES = {"--state": "--no-state", "--no-state": "--state"}
BY_NAME = {flag.name: flag for flag in (*run_flags.FLAGS, *run_flags.OUTPUTS)}


@record
class FlagWords:
    """A flag and its value, and the words of the command line that contained them."""

    flag: str
    value: str
    words: tuple[str, ...]

    def is_same(self, other: FlagWords) -> bool:
        mine, its = (entry_flags.make_absolute_value(one.flag, one.value) for one in (self, other))
        return self.flag == other.flag and mine == its


def main(options: Options, rest: list[str]) -> int:
    if len(rest) != 1:
        hint = wrapped_servers.suggest_one_word(rest) or _suggest_flags(rest)
        raise UsageError("name one server", hint=hint or USAGE.partition("\n")[0])
    found = wrapped_servers.find_wrapped(rest[0])
    paths = tuple(dict.fromkeys(path for _, path, _ in found))
    with client_output.report_interrupt(paths):
        servers = [server for _, _, server in found]
        change = entry_flags.select_flags(options) or _ask(rest[0], found, options)
    if not change:
        output.write_line("nothing was granted")
        return 0
    client_output.note_differences(found)
    remove = options.has("--remove")
    if remove:
        _refuse_absent(servers, change)
    else:
        client_output.warn_of_secrets(change)
    chosen = {(path, server.key_path) for _, path, server in found}

    def edit(path: str) -> FileEdit:
        with lock_client_file(path, dry_run=options.has("--dry-run")) as file:
            servers = [one for one in file.servers if (path, one.key_path) in chosen]
            return change_servers(
                file, servers, change, remove=remove, dry_run=options.has("--dry-run")
            )

    names = tuple(dict.fromkeys(server.name for _, _, server in found))
    selection = client_output.Selection(word=rest[0], paths=paths, names=names)
    return client_output.edit_files(
        selection, edit, options, texts=TEXTS, fields=fields(ServerOutcome), show_diff=True
    )


def _refuse_absent(servers: Sequence[ConfiguredServer], change: Sequence[str]) -> None:
    """Refuse to remove a flag that none of the servers has.

    It is enough if one of them has the flag, because the same server may have different flags in
    different clients.
    """
    flags = [flag for server in servers for flag in split_flags(server.run_flags)]
    for new in split_flags(change):
        if not any(one.is_same(new) for one in flags):
            each = dict.fromkeys(client_output.format_flags(one.run_flags) for one in servers)
            raise SandboxError(
                f"{servers[0].name} has no {' '.join(new.words)}",
                hint=f"it has: {', or '.join(each)}",
            )


def _suggest_flags(rest: Sequence[str]) -> str:
    """Return a hint if the words after the server's name are paths without a flag, otherwise ""."""
    paths = rest[1:]
    if not paths or not all(os.sep in path or os.path.exists(path) for path in paths):
        return ""
    flags = " ".join(f"--read {shlex.quote(path)}" for path in paths)
    return f"did you mean {flags}? (or --write)"


def change_servers(
    file: ClientFile,
    servers: Sequence[ConfiguredServer],
    change: Sequence[str],
    *,
    remove: bool = False,
    dry_run: bool = False,
) -> FileEdit:
    """Add flags to servers in a client's file, or remove flags from these servers. The caller has
    locked the file. Raise an error if `run` would refuse the resulting flags.
    """
    flags: dict[tuple[str, ...], tuple[str, ...]] = {}
    for server in servers:
        if not server.is_wrapped or not server.inner_argv:
            raise SandboxError(
                f"{file.path}: {server.name} was changed while this command ran,"
                " and is no longer wrapped",
                hint="nothing was written; `corral status` shows the current servers",
            )
        merged = merge_flags(server.run_flags, change, remove=remove)
        entry_flags.check_run(merged, server.inner_argv)
        flags[server.key_path] = merged
    return change_flags(file, flags, dry_run=dry_run)


def merge_flags(current: Sequence[str], change: Sequence[str], *, remove: bool) -> tuple[str, ...]:
    """Add the flags in `change` to those in `current`. If `remove` is true, remove them instead."""
    found, typed = split_flags(current), split_flags(change)
    for new in typed:
        if new.flag == "--write" and not remove:
            kept = [one for one in found if any(one.is_same(other) for other in typed)]
            found = [one for one in found if one in kept or not _is_widened(one, new, found)]
        same = [one for one in found if one.is_same(new)]
        if remove:
            found = [one for one in found if one not in same]
            continue
        found = [one for one in found if one.flag != OPPOSITES.get(new.flag)]
        once = BY_NAME[new.flag].value and not BY_NAME[new.flag].many
        if once and new.flag in {one.flag for one in found}:
            found = [new if one.flag == new.flag else one for one in found]
        elif not same:
            found.append(new)
    return tuple(word for one in found for word in one.words)


def _is_widened(one: FlagWords, new: FlagWords, found: Sequence[FlagWords]) -> bool:
    """Return whether the read grant `one` has to be removed when the write grant `new` is added.

    The path of a read grant stays read-only even inside a directory with a write grant. So a read
    grant inside `new` has to be removed, except in two cases. If it was inside another write grant
    before, the user wanted its path to be read-only. If its path is sensitive, the path would be
    hidden from the server without a grant of its own.
    """
    if one.flag != "--read" or is_sensitive_path(one.value, access="write"):
        return False
    writes = [(other.flag, other.value) for other in found if other.flag == "--write"]
    return is_covered(one.flag, one.value, [(new.flag, new.value)], any_port=False) and not (
        is_covered(one.flag, one.value, writes, any_port=False)
    )


def split_flags(words: Sequence[str]) -> list[FlagWords]:
    """Split a command line into flags of `run`. Refuse unknown flags.

    A flag that takes no value gets the value "".
    """
    found: list[FlagWords] = []
    rest = list(words)
    while rest:
        typed = [rest.pop(0)]
        flag, equals, value = typed[0].partition("=")
        known = BY_NAME.get(flag)
        if known is None:
            raise SandboxError(f"{flag} is not a flag of `corral run`", hint="corral run --help")
        if known.value and not equals and rest:
            value = rest.pop(0)
            typed.append(value)
        found.append(FlagWords(flag=flag, value=value, words=tuple(typed)))
    return found


def list_open_denials(path: str, server: ConfiguredServer) -> list[kept.SeenDenial]:
    """Return the denials of a server's stored runs that its current flags do not allow."""
    runs = kept.load_server(wrapped_servers.identify_entry(path, server))
    has = split_flags(server.run_flags)
    return [one for one in merge_runs(runs) if not is_granted(one, has)]


def merge_runs(runs: Sequence[kept.KeptRun]) -> tuple[kept.SeenDenial, ...]:
    """Return the denials of stored runs. Leave out denials that the flags of a later run allow."""

    def allow(denial: Denial, words: Sequence[str]) -> bool:
        try:
            return is_allowed(denial, split_flags(words))
        except SandboxError:
            return False  # another version of corral wrote these flags, and this one lacks a flag

    return kept.merge(runs, allow)


def format_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def is_granted(seen: kept.SeenDenial, has: Sequence[FlagWords]) -> bool:
    """Return whether the flags in `has` allow what was denied.

    If the run had flags that seemed to allow it, but it was denied nevertheless, require exactly
    the flags that the denial suggests. For example, the grant of a directory does not include its
    protected files.
    """
    if not seen.had_flags:
        return is_allowed(seen.denial, has)
    wanted = parse_allow(seen.denial.allow)
    return bool(wanted) and all(any(one.is_same(want) for one in has) for want in wanted)


def is_allowed(denial: Denial, has: Sequence[FlagWords]) -> bool:
    """Return whether the flags in `has` allow what was denied. Return False if the denial suggests
    no flags.
    """
    given = [(one.flag, one.value) for one in has]
    wanted = parse_allow(denial.allow)
    return bool(wanted) and all(
        is_covered(one.flag, one.value, given, any_port=denial.kind == "name") for one in wanted
    )


def parse_allow(allow: str) -> list[FlagWords]:
    """Parse the flags in a denial's `allow` text. Return [] if they are not flags of `run`."""
    try:
        return split_flags(shlex.split(allow))
    except (SandboxError, ValueError):
        return []


def _find_missing(allow: str) -> str:
    """Return the first path in a denial's suggested flags that does not exist, or "".

    The user must not be asked about this denial, because `grant` refuses all accepted flags if one
    of them names a missing path.
    """
    named = [one for one in parse_allow(allow) if one.flag in entry_flags.PATH_FLAGS]
    paths = [entry_flags.make_absolute_value(one.flag, one.value) for one in named]
    return next((path for path in paths if not os.path.exists(path)), "")


def _ask(word: str, found: Sequence[wrapped_servers.Row], options: Options) -> list[str]:
    """Ask about each recent denial that is not granted yet. Return the flags that the user accepts.

    Raise an error if there is nothing to ask about or no terminal.
    """
    rows: dict[str, kept.SeenDenial] = {}
    for _, path, server in found:
        denials = list_open_denials(path, server)
        rows |= {one.denial.allow: one for one in denials if parse_allow(one.denial.allow)}
    if options.has("--remove"):
        raise UsageError("--remove needs the flags to remove", hint=USAGE.partition("\n")[0])
    if not rows:
        raise SandboxError(
            f"no denial is recorded for {word}",
            hint=f"to see how its last run ended: corral why {last_words(word)}; to grant a path"
            f" anyway: corral grant {shlex.quote(word)} --read PATH",
        )
    # Ask about wide grants first, and not about those that a wider one includes.
    rows = dict(sorted(rows.items(), key=lambda row: not row[0].startswith("--write")))
    if not approve.is_on_terminal():
        named = " ".join(_select(rows, lambda *_: True)) if len(rows) <= MAX_NAMED else "FLAG..."
        see = "" if len(rows) <= MAX_NAMED else f"`corral why {last_words(word)}` lists them; "
        things = "1 thing" if len(rows) == 1 else f"{len(rows)} things"
        raise SandboxError(
            f"{word} was denied {things}, but there is no terminal to ask for confirmation",
            hint=f"{see}corral grant {shlex.quote(word)} {named}",
        )
    output.note("the server chose what to ask for: grant only what you want it to reach")

    def agree(allow: str, seen: kept.SeenDenial) -> bool:
        output.note(f"{seen.denial.describe()} (last on {format_time(seen.time)})")
        if missing := _find_missing(allow):
            output.note(f"{missing} does not exist, so this cannot be granted yet")
        return not missing and approve.ask(f"grant {allow}?")

    agreed = [word for allow in _select(rows, agree) for word in shlex.split(allow)]
    chosen, _ = parse(run_flags.FLAGS, agreed)
    return entry_flags.select_flags(chosen)


def _select(
    rows: Mapping[str, kept.SeenDenial], agree: Callable[[str, kept.SeenDenial], bool]
) -> list[str]:
    """Return the flags that `agree` accepts. Do not ask about flags that accepted flags include."""
    agreed: list[str] = []
    for allow, seen in rows.items():
        if not is_allowed(seen.denial, parse_allow(" ".join(agreed))) and agree(allow, seen):
            agreed.append(allow)
    return agreed
