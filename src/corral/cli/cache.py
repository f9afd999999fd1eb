"""`corral cache`: list, check and remove installed packages and unpacked bundles."""

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import SandboxError
from corral.servers.store import store
from corral.servers.store.store import Entry
from corral.supervisor.report import to_json

SUMMARY = "list, check and remove installed packages and bundles"
USAGE = "usage: corral cache ls | rm WHAT... | gc | verify  [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)
VERBS = ("ls", "rm", "gc", "verify")
MIN_DIGITS = 12
"""Digits of a digest that are shown, and that are enough to name it."""


def main(options: Options, rest: list[str]) -> int:
    verb, *words = rest or [""]
    as_json = options.has("--json") or "--json" in words
    words = [word for word in words if word != "--json"]
    if verb not in VERBS or (words and verb != "rm") or (verb == "rm" and not words):
        raise UsageError("say one of: ls, rm WHAT..., gc, verify", hint=USAGE)
    if verb == "rm":
        return _remove(words, as_json=as_json)
    return {"ls": _list, "gc": _collect, "verify": _verify}[verb](as_json=as_json)


def _list(*, as_json: bool) -> int:
    found = store.entries()
    if as_json:
        output.write_json([_entry_to_json(entry) for entry in found])
    else:
        output.write_table([_format_row(entry) for entry in found])
    return 0


def _format_row(entry: Entry) -> tuple[str, ...]:
    """Format an entry: a bundle with its name, a package as it was typed to run it."""
    short = entry.key[: len("bundle:") + MIN_DIGITS]
    label = f"{entry.name} ({short})" if entry.kind == "bundle" else entry.key
    size, digest = f"{entry.size / 1e6:.1f} MB", entry.digest[:MIN_DIGITS]
    return label, entry.version, size, entry.created[:10], digest


def _entry_to_json(entry: Entry) -> object:
    row = to_json(entry)
    return {**row, "path": entry.path()} if isinstance(row, dict) else row


def _remove(words: list[str], *, as_json: bool) -> int:
    """Remove entries by what was typed to run them, by name, or by the start of a digest."""
    removed: list[Entry] = []
    for word in words:
        fitting = [entry for entry in store.entries() if _is_meant(entry, word)]
        if not fitting:
            raise SandboxError(
                f"there is nothing called {word} in the cache", hint="corral cache ls"
            )
        for entry in fitting:
            store.remove(entry)
        removed += fitting
    keys = [entry.key for entry in removed]
    output.write_result({"removed": keys}, [f"removed {key}" for key in keys], as_json=as_json)
    return 0


def _is_meant(entry: Entry, word: str) -> bool:
    """Return whether a word names an entry. A digest may be cut short, a name may not."""
    digests = [entry.digest, *([entry.key] if entry.kind == "bundle" else [])]
    if len(word) >= MIN_DIGITS and any(digest.startswith(word) for digest in digests):
        return True
    return word in {entry.key, entry.key.partition(" ")[0], entry.name}


def _collect(*, as_json: bool) -> int:
    removed = [*store.collect_garbage(), *_collect_runtime_copies()]
    text = f"removed {len(removed)} leftovers"
    output.write_result({"removed": removed}, [text], as_json=as_json)
    return 0


def _collect_runtime_copies() -> list[str]:
    """Remove copies of programs that no run uses; only on Windows are programs copied."""
    if sys.platform != "win32":
        return []
    from corral.platforms.windows.runtime_copies import store

    return store.collect(store.default_directory())


def _verify(*, as_json: bool) -> int:
    found = store.entries()
    broken: list[str] = []
    for entry in found:
        try:
            store.verify(entry)
        except (SandboxError, OSError) as problem:
            broken.append(entry.key)
            output.note(str(problem))
    lines = [] if broken else [f"all {len(found)} are what was installed"]
    output.write_result({"broken": broken}, lines, as_json=as_json)
    return 1 if broken else 0
