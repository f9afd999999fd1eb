"""`corral cache`: what was installed or unpacked, and taking it away again."""

from __future__ import annotations

import sys

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.servers.store.store import Entry

SUMMARY = "list, check and remove installed packages and bundles"
USAGE = "usage: corral cache ls | rm WHAT... | gc | verify  [--json]"
FLAGS = (Flag(name="--json", help="as JSON"),)
VERBS = ("ls", "rm", "gc", "verify")
SHORT = 12
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
    from corral.servers.store import store

    found = store.entries()
    if as_json:
        output.json([_row(entry) for entry in found])
        return 0
    output.table(
        [
            (
                _label(entry),
                entry.version,
                f"{entry.size / 1e6:.1f} MB",
                entry.created[:10],
                entry.digest[:SHORT],
            )
            for entry in found
        ]
    )
    return 0


def _label(entry: Entry) -> str:
    """Bundles have a name of their own; what was typed for them is only a path."""
    short = entry.key[: len("bundle:") + SHORT]
    return f"{entry.name} ({short})" if entry.kind == "bundle" else entry.key


def _row(entry: Entry) -> object:
    from corral.supervisor.report import plain

    row = plain(entry)
    return {**row, "path": entry.path()} if isinstance(row, dict) else row


def _remove(words: list[str], *, as_json: bool) -> int:
    """By what was typed to run it, by its name, or by the start of its digest."""
    from corral.servers.store import store

    gone: list[Entry] = []
    for word in words:
        fitting = [entry for entry in store.entries() if _fits(entry, word)]
        if not fitting:
            raise SandboxError(
                f"there is nothing called {word} in the cache", hint="corral cache ls"
            )
        for entry in fitting:
            store.remove(entry)
        gone += fitting
    if as_json:
        output.json({"removed": [entry.key for entry in gone]})
    else:
        for entry in gone:
            output.say(f"removed {entry.key}")
    return 0


def _fits(entry: Entry, word: str) -> bool:
    """A digest may be cut short, as `ls` shows it; a name may not."""
    digests = [entry.digest, *([entry.key] if entry.kind == "bundle" else [])]
    if len(word) >= SHORT and any(digest.startswith(word) for digest in digests):
        return True
    return word in {entry.key, entry.key.partition(" ")[0], entry.name}


def _collect(*, as_json: bool) -> int:
    from corral.servers.store import store

    gone = [*store.collect(), *_copies()]
    if as_json:
        output.json({"removed": gone})
    else:
        output.say(f"removed {len(gone)} leftovers")
    return 0


def _copies() -> list[str]:
    """Only on Windows are programs copied to be run: a copy that no run uses is left over."""
    if sys.platform != "win32":
        return []
    from corral.platforms.windows.runtime_copies import store

    return store.collect(store.default_directory())


def _verify(*, as_json: bool) -> int:
    from corral.servers.store import store

    broken: list[str] = []
    for entry in store.entries():
        try:
            store.verify(entry)
        except (SandboxError, OSError) as problem:
            broken.append(entry.key)
            output.note(str(problem))
    if as_json:
        output.json({"broken": broken})
    elif not broken:
        output.say(f"all {len(store.entries())} are what was installed")
    return 1 if broken else 0
