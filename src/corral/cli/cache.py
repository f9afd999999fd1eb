"""`corral cache`: list, check and remove packages, bundles and servers' home directories."""

import shlex
import sys

from corral.cli import interrupts, output, wrapped_servers
from corral.cli.option_parser import Flag, Options, UsageError, suggest
from corral.errors import SandboxError
from corral.platforms import states
from corral.servers.reference import SEPARATORS
from corral.servers.store import store
from corral.servers.store.store import Entry
from corral.supervisor.report import to_json

SUMMARY = "list, check and remove installed packages, bundles and servers' home directories"
USAGE = """\
usage: corral cache [--json] [ls]               list installed packages and bundles
       corral cache [--json] rm WHAT...         remove packages and bundles
       corral cache [--json] gc                 remove unused files of earlier installations
       corral cache [--json] verify             check that installed files are unchanged
       corral cache [--json] homes              list home directories that servers keep
       corral cache [--json] rm-home SERVER...  remove home directories"""
FLAGS = (Flag(name="--json", help="as JSON"),)
VERBS = ("ls", "rm", "gc", "verify", "homes", "rm-home")
HEADER = ("NAME", "VERSION", "SIZE", "INSTALLED", "DIGEST")
HOMES_HEADER = ("SERVER", "SIZE", "PATH")
MIN_DIGITS = 12
"""The number of digits of a digest that `ls` shows. They are enough to name an entry in `rm`."""


def main(options: Options, rest: list[str]) -> int:
    verb, *words = rest or ["ls"]
    as_json = options.has("--json")
    if verb not in VERBS or (words and verb not in REMOVING) or (verb in REMOVING and not words):
        known = "ls, rm WHAT..., gc, verify, homes, rm-home SERVER..."
        unknown = () if verb in VERBS else VERBS
        hint = suggest(verb, unknown, "corral cache --help")
        raise UsageError(f"give one of: {known}", hint=hint)
    if verb in REMOVING:
        remove, list_names = REMOVING[verb]
        with interrupts.report_changes(
            lambda: dict.fromkeys(list_names(), True),
            none="nothing was removed",
            some="removed before that",
        ):
            return remove(words, as_json=as_json)
    verbs = {"ls": _list, "gc": _collect, "verify": _verify, "homes": _list_homes}
    return verbs[verb](as_json=as_json)


def _list(*, as_json: bool) -> int:
    found = store.entries()
    if as_json:
        output.write_json([_entry_to_json(entry) for entry in found])
    else:
        rows = [_format_row(entry) for entry in found]
        output.write_table(rows, "nothing is installed", header=HEADER)
    return 0


def _format_row(entry: Entry) -> tuple[str, ...]:
    short = entry.key[: len("bundle:") + MIN_DIGITS]
    label = f"{entry.name} ({short})" if entry.kind == "bundle" else entry.key
    size, digest = f"{entry.size / 1e6:.1f} MB", entry.digest[:MIN_DIGITS]
    return label, entry.version, size, entry.created[:10], digest


def _entry_to_json(entry: Entry) -> object:
    row = to_json(entry)
    return {**row, "path": entry.path()} if isinstance(row, dict) else row


def _remove(words: list[str], *, as_json: bool) -> int:
    """Remove the cache entries that the words name. Each word may be a reference, a name, or the
    start of a digest.
    """
    removed: list[Entry] = []
    for word in words:
        fitting = [entry for entry in store.entries() if _is_meant(entry, word)]
        if not fitting:
            raise SandboxError(f"the cache has no entry {word}", hint="corral cache ls")
        for entry in fitting:
            store.remove(entry)
        removed += fitting
    keys = [entry.key for entry in removed]
    output.write_result({"removed": keys}, [f"removed {key}" for key in keys], as_json=as_json)
    return 0


def _list_homes(*, as_json: bool) -> int:
    homes = states.list_states()
    found = [(one.server, states.measure(one.path), one.path) for one in homes]
    if as_json:
        output.write_json(
            [
                {"server": one.command, "directory": one.directory, "bytes": size, "path": path}
                for one, size, path in found
            ]
        )
    else:
        rows = [(one.describe(), f"{size / 1e6:.1f} MB", path) for one, size, path in found]
        output.write_table(rows, "no server keeps a home directory", header=HOMES_HEADER)
    return 0


def _remove_homes(words: list[str], *, as_json: bool) -> int:
    """Remove the home directories that the words name. Each word may be a wrapped server, a
    server's command, or a path. If any word matches no home directory, remove nothing.
    """
    homes = states.list_states()
    # The words together may be one command that the user has not quoted.
    found = [one for one in homes if one.server.command == tuple(words)]
    _refuse_several(shlex.join(words), found)
    for word in () if found else words:
        rows = wrapped_servers.match_wrapped(word)
        wrapped_servers.refuse_different(word, rows)
        named = [wrapped_servers.identify_entry(path, one) for _, path, one in rows]
        started = [one for one in homes if any(map(one.server.is_started_by, named))]
        fitting = [
            one
            for one in homes
            if one in started or word in {one.path, shlex.join(one.server.command)}
        ]
        _refuse_several(word, fitting)
        fitting = fitting or _find_by_program(word, homes)
        if not fitting:
            raise SandboxError(
                f"no kept home directory matches {word}",
                hint="`corral cache homes` lists them; name one by its command or its path",
            )
        found += [one for one in fitting if one not in found]
    for one in found:
        states.remove(one)
    removed = [one.path for one in found]
    lines = [f"removed {path}" for path in removed]
    output.write_result({"removed": removed}, lines, as_json=as_json)
    return 0


def _find_by_program(word: str, homes: list[states.State]) -> list[states.State]:
    """Return the home directories of the servers that this package or program starts. Refuse a
    program, such as python3, that starts several servers, because each of them has its own home.
    """
    fitting = [one for one in homes if one.server.command[:1] == (word,)]
    if word.partition(":")[0] not in SEPARATORS:
        _refuse_several(word, fitting)
    return fitting


def _refuse_several(word: str, homes: list[states.State]) -> None:
    """Refuse a word that matches the home directories of different servers. For example, the word
    may be a program that starts several servers, or a command that starts another server in each
    directory.
    """
    if len({(one.server.command, one.server.directory) for one in homes}) > 1:
        raise SandboxError(
            f"{word} starts {len(homes)} servers that keep a home directory",
            hint="`corral cache homes` lists them; name one by its command or its path",
        )


def _is_meant(entry: Entry, word: str) -> bool:
    """Return whether `word` is a cache entry's reference or name, or the start of its digest."""
    digests = [entry.digest, *([entry.key] if entry.kind == "bundle" else [])]
    if len(word) >= MIN_DIGITS and any(digest.startswith(word) for digest in digests):
        return True
    return word in {entry.key, entry.key.partition(" ")[0], entry.name}


def _collect(*, as_json: bool) -> int:
    removed = store.collect_garbage()
    if sys.platform == "win32":
        from corral.platforms.windows.runtime_copies import store as copies

        removed += copies.collect(copies.default_directory())
    text = f"removed {len(removed)} leftovers"
    output.write_result({"removed": removed}, [text], as_json=as_json)
    return 0


def _verify(*, as_json: bool) -> int:
    found = store.entries()
    broken: list[str] = []
    for entry in found:
        try:
            store.verify(entry)
        except (SandboxError, OSError) as problem:
            broken.append(entry.key)
            if isinstance(problem, OSError):
                why = f"cannot be read: {problem.strerror}"
                problem = store.describe_damage(entry, why)
            output.write_error(problem)
    lines = [] if broken else [f"checked {len(found)} entries: all are unchanged"]
    output.write_result({"broken": broken}, lines, as_json=as_json)
    return 1 if broken else 0


def _list_keys() -> list[str]:
    return [entry.key for entry in store.entries()]


def _list_home_paths() -> list[str]:
    return [one.path for one in states.list_states()]


REMOVING = {"rm": (_remove, _list_keys), "rm-home": (_remove_homes, _list_home_paths)}
"""The verbs that remove something, with two functions for each: the first removes what the user
named, and the second lists everything that can be removed.
"""
