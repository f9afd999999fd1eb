"""TOML, JSON or flags -> Manifest: what was written, with the place of every mistake.

The text may come from the attacker. Whatever it is, the result is a Manifest or one ManifestError
that lists every mistake; nothing of it is put into a message without being made printable first.
"""

from __future__ import annotations

import os
import stat

from corral.errors import ManifestError, Mistake
from corral.policy.schema import BY_PATH, KEYS, TABLES
from corral.record import record, replace
from corral.safe_text import printable, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from corral.formats.positions import Path

COMMAND_LINE = "command line"
# What to do about a mistake, by where it was made.
IN_FLAGS = "`corral run --help` says how each flag is written"
IN_KEYS = "`corral schema` has every key and how its value is written"
IN_FORM = "correct it there; https://toml.io and https://json.org describe the two forms"
NO_FILE = "name a TOML or JSON file of your own of at most 1 MiB"
LARGEST_FILE = 1 << 20
# tomllib joins the parts of a dotted key one by one: time by the square of their number.
MAX_DOTS = 1000
MOST_MISTAKES = 100
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@record
class Manifest:
    """What one source said; None means that it said nothing. Paths are as written.

    `limits` holds the limits that were written, and None there means "none". `directory` is where
    relative paths start ("": the working directory), `file` the absolute path of the file, if there
    is one. `places` maps key paths (`limits.memory`, `filesystem.read[0]`) to lines. `resolved` is
    filled for requests: where each path led when the digest for the approval was taken.
    """

    origin: str
    directory: str = ""
    file: str = ""
    places: Mapping[str, int] = {}
    resolved: tuple[tuple[str, str], ...] | None = None
    version: int | None = None
    command: tuple[str, ...] | None = None
    limits: Mapping[str, int | None] = {}
    allow: tuple[str, ...] | None = None
    listen: tuple[int, ...] | None = None
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    unix_sockets: tuple[str, ...] | None = None
    state: bool | None = None
    subprocess: bool | None = None
    pass_names: tuple[str, ...] | None = None
    set_values: tuple[tuple[str, str], ...] | None = None
    secret_names: tuple[str, ...] | None = None
    degrade: tuple[str, ...] | None = None
    app_container: bool | None = None
    minifilter: bool | None = None
    fail_on_app_container_error: bool | None = None
    windows_network: str | None = None
    keep_grants: bool | None = None
    seatbelt: str | None = None
    best_effort: bool | None = None
    strict: bool | None = None

    def place(self, key: str) -> str:
        """Where a key was written, for messages: `file:line: key`, or the flag."""
        if self.origin == COMMAND_LINE:
            name = key.partition("[")[0]
            return (BY_PATH[name].flag or key) if name in BY_PATH else key
        origin = printable(self.origin)
        line = self.places.get(key)
        return f"{origin}: {key}" if line is None else f"{origin}:{line}: {key}"


def path_text(path: Path) -> str:
    """(`network`, `allow`, 2) -> `network.allow[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part and len(part) <= 80 and PLAIN.issuperset(part)
            text += ("." if text else "") + (part if plain else shown(part))
    return text


def parse_toml(text: str, origin: str, *, directory: str = "") -> Manifest:
    data, places = decode_toml(text, origin)
    return from_data(data, origin, directory=directory, places=places)


def decode_toml(text: str, origin: str) -> tuple[dict[str, object], Mapping[str, int]]:
    """Return the data of a TOML text, and the line of each key."""
    import tomllib

    from corral.formats import toml
    from corral.formats.positions import BrokenFileError, line_numbers

    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS:
            raise broken(origin, number, f"more than {MAX_DOTS} dots in one line")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise broken(origin, *toml_place(str(error), text)) from None
    except RecursionError:
        raise broken(origin, None, "nested too deeply") from None
    except (ValueError, OverflowError) as error:
        # Numbers of thousands of digits and impossible dates reach int() and datetime().
        raise broken(origin, None, f"not valid TOML: {printable(str(error))}") from None
    try:
        found = line_numbers(text, toml.locate(text, data))
    except BrokenFileError:
        found = {}  # no line is better than a wrong one
    return data, {path_text(path): line for path, line in found.items()}


def toml_place(message: str, text: str) -> tuple[int | None, str]:
    """The line stands only in the words of the error: `... (at line 3, column 5)`."""
    what, _, place = message.rpartition(" (at ")
    line: int | None = None
    if place == "end of document)":
        line = text.count("\n") + 1
    elif place.startswith("line "):
        line = int(place[5:].partition(",")[0])
    return line, f"not valid TOML: {printable(what if line else message)[:200]}"


def parse_json(text: str, origin: str, *, directory: str = "") -> Manifest:
    import json

    from corral.formats import jsonc
    from corral.formats.positions import line_counter, line_numbers

    try:
        data: object = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise broken(origin, error.lineno, f"not valid JSON: {error.msg}") from None
    except RecursionError:
        raise broken(origin, None, "nested too deeply") from None
    except ValueError as error:
        raise broken(origin, None, f"not valid JSON: {printable(str(error))}") from None
    line_of = line_counter(text)
    repeated: list[tuple[Path, int]] = []
    found = jsonc.Reader(text, max_depth=len(text), repeated=repeated).document()
    twice = [
        Mistake((origin, line_of(at), path_text(path), "written twice")) for path, at in repeated
    ]
    lines = {path_text(path): line for path, line in line_numbers(text, found).items()}
    return from_data(data, origin, directory=directory, places=lines, mistakes=twice)


def refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number in JSON")


def broken(origin: str, line: int | None, text: str, hint: str = IN_FORM) -> ManifestError:
    return ManifestError([Mistake((printable(origin), line, "", text))], hint=hint)


def from_data(
    data: object,
    origin: str,
    *,
    directory: str = "",
    places: Mapping[str, int] | None = None,
    mistakes: list[Mistake] | None = None,
) -> Manifest:
    """A manifest from decoded data, as from `_meta` of a bundle."""
    from corral.policy.validation import Reading

    reading = Reading(printable(origin), places or {}, mistakes or [])
    values = reading.document(data)
    if reading.mistakes:
        raise ManifestError(in_order(reading.mistakes), hint=IN_KEYS)
    return said(Manifest(origin=origin, directory=directory, places=places or {}), values)


def said(start: Manifest, values: Mapping[str, object]) -> Manifest:
    limits = {path for path in values if path.startswith("limits.")}
    return replace(
        start,
        limits={BY_PATH[path].field: values[path] for path in limits},
        **{BY_PATH[path].field: values[path] for path in values.keys() - limits},
    )


def in_order(mistakes: list[Mistake]) -> list[Mistake]:
    """By line, those without one last, and no more of them than a person would read."""
    mistakes.sort(key=lambda item: (item[1] is None, item[1] or 0))
    if len(mistakes) <= MOST_MISTAKES:
        return mistakes
    more = f"and {len(mistakes) - MOST_MISTAKES} more mistakes"
    return [*mistakes[:MOST_MISTAKES], Mistake((mistakes[0][0], None, "", more))]


def from_flags(
    values: Mapping[str, object], *, best_effort: bool | None = None, strict: bool | None = None
) -> Manifest:
    """The command line as a manifest: key path -> text as typed (lists of texts for lists).

    Mistakes name the flag. A bare integer for `limits.cpu` is millicores here.
    """
    from corral.policy.validation import Reading

    reading = Reading(COMMAND_LINE, {}, [], flags=True)
    read = {path: reading.value(BY_PATH[path], value) for path, value in values.items()}
    reading.across(read)
    if reading.mistakes:
        raise ManifestError(in_order(reading.mistakes), hint=IN_FLAGS)
    start = Manifest(origin=COMMAND_LINE, best_effort=best_effort, strict=strict)
    return said(start, read)


def load(path: str, *, follow: bool = True) -> Manifest:
    """Read a policy file. JSON if it is named so or starts with a brace, TOML otherwise."""
    return parse_bytes(read_file(path, follow=follow), path)


def parse_bytes(content: bytes, path: str) -> Manifest:
    """A manifest from the bytes of the file at `path`."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise broken(path, line, "not UTF-8 text") from None
    file = os.path.abspath(path)
    parse = parse_json if path.endswith(".json") or text.lstrip()[:1] == "{" else parse_toml
    return replace(parse(text, path, directory=os.path.dirname(file)), file=file)


def read_file(
    path: str, *, follow: bool = True, check: Callable[[os.stat_result], None] | None = None
) -> bytes:
    """The content of a small regular file; never waits on a fifo, follows links only if told.

    `check` sees the very file that is read, and raises if it should not be.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        why = (error.strerror or "unknown") if isinstance(error, OSError) else str(error)
        raise broken(path, None, f"cannot be read: {why}", NO_FILE) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise broken(path, None, "not a regular file", NO_FILE)
        if not (follow or hasattr(os, "O_NOFOLLOW") or os.path.samestat(found, os.lstat(path))):
            raise broken(path, None, "is a link", NO_FILE)
        if check is not None:
            check(found)
        content = bytearray()
        while chunk := os.read(descriptor, LARGEST_FILE + 1 - len(content)):
            content += chunk
    except OSError as error:
        raise broken(path, None, f"cannot be read: {error.strerror}", NO_FILE) from None
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE:
        raise broken(path, None, "larger than 1 MiB", NO_FILE)
    return bytes(content)


def nearest(unknown: str, table: str) -> str:
    """The valid key that was probably meant, as advice; empty if none is near."""
    import difflib

    word = unknown[:80]
    siblings = [key.path for key in KEYS if key.path.startswith(f"{table}.")] if table else []
    names = [path.rpartition(".")[2] for path in siblings] or [*TABLES, "version"]
    if close := difflib.get_close_matches(word, names, 1, 0.6):
        return f"did you mean {close[0]}?"
    everywhere = {key.path.rpartition(".")[2]: key.path for key in reversed(KEYS)}
    if close := difflib.get_close_matches(word, list(everywhere), 1, 0.7):
        return f"did you mean {everywhere[close[0]]}?"
    return f"known here: {', '.join(names)}" if len(names) < 12 else ""
