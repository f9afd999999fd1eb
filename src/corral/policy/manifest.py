"""Parse TOML, JSON or flags into a Manifest, and report mistakes with their line numbers.

The text may come from an attacker, so it is made printable before it is put into a message. The
result is a Manifest, or one ManifestError that lists every mistake.
"""

from __future__ import annotations

import os
import stat

from corral.errors import ManifestError, Mistake
from corral.policy.schema import BY_PATH, MCP
from corral.policy.validation import Validator, format_path
from corral.record import record, replace
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from corral.formats.positions import Path

COMMAND_LINE = "command line"
# Hints: for mistakes in flags, in the keys of a file, in the syntax of a file, and for files that
# cannot be read.
IN_FLAGS = "`corral run --help` shows how each flag is written"
IN_KEYS = "`corral schema` shows every key and how its value is written"
IN_FORM = "correct the file; https://toml.io and https://json.org describe the two formats"
NO_FILE = "name a TOML or JSON file that you own, of at most 1 MiB"
MAX_FILE_SIZE = 1 << 20
MAX_MISTAKES = 100


@record
class Manifest:
    """The keys that one source sets. None means that the source does not set the key.

    Paths are stored as they are written. Relative paths are relative to `directory`, or to the
    working directory if `directory` is "". `file` is the absolute path of the file, if there is
    one. `lines` maps each key (`limits.memory`, `filesystem.read[0]`) to its line number. For a
    server's request, `resolved` contains (path, real path) for each path that the user approves.

    `limits` and `mcp` contain only what the source sets. A limit of None means "no limit". The keys
    of `mcp` are the fields of `Mcp`.
    """

    origin: str
    directory: str = ""
    file: str = ""
    lines: Mapping[str, int] = {}
    resolved: tuple[tuple[str, str], ...] | None = None
    version: int | None = None
    command: tuple[str, ...] | None = None
    limits: Mapping[str, int | None] = {}
    mcp: Mapping[str, object] = {}
    allow: tuple[str, ...] | None = None
    listen: tuple[int, ...] | None = None
    listen_everywhere: bool | None = None
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    unix_sockets: tuple[str, ...] | None = None
    own_unix_sockets: bool | None = None
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
    strict_handles: bool | None = None
    strict_grants: bool | None = None
    seatbelt: str | None = None
    disclaim: bool | None = None
    trustd: bool | None = None
    best_effort: bool | None = None
    strict: bool | None = None

    def locate(self, key: str) -> str:
        """Return a key's location for messages: `file:line: key`, or the flag."""
        if self.origin == COMMAND_LINE:
            name = key.partition("[")[0]
            return (BY_PATH[name].flag or key) if name in BY_PATH else key
        origin = printable(self.origin)
        line = self.lines.get(key)
        return f"{origin}: {key}" if line is None else f"{origin}:{line}: {key}"


def parse_toml(text: str, origin: str) -> Manifest:
    data, lines = decode_toml(text, origin)
    return from_data(data, origin, lines=lines)


def decode_toml(text: str, origin: str) -> tuple[dict[str, object], Mapping[str, int]]:
    """Return the data in a TOML document, and the line of each key."""
    import tomllib

    from corral.formats import toml
    from corral.formats.bounded_toml import MAX_DOTS, find_long_key
    from corral.formats.positions import BrokenFileError, line_numbers

    if number := find_long_key(text):
        raise file_error(
            origin,
            number,
            f"more than {MAX_DOTS} dots in this line, or too many in the file up to this line",
        )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise file_error(origin, *_parse_toml_error(str(error), text)) from None
    except RecursionError:
        raise file_error(origin, None, "the values are nested too deeply") from None
    except (ValueError, OverflowError) as error:
        # tomllib does not catch two errors: `int` raises one for thousands of digits, and
        # `datetime` raises one for impossible dates.
        raise file_error(origin, None, f"not valid TOML: {printable(str(error))}") from None
    try:
        found = line_numbers(text, toml.locate(text, data))
    except BrokenFileError:
        found = {}  # report mistakes without lines rather than with wrong lines
    return data, {format_path(path): line for path, line in found.items()}


def _parse_toml_error(message: str, text: str) -> tuple[int | None, str]:
    """Return the line and the message of an error from tomllib. tomllib gives the line only in the
    message's text. If the text contains no line, the line is None.
    """
    what, _, where = message.rpartition(" (at ")
    line: int | None = None
    if where == "end of document)":
        line = text.count("\n") + 1
    elif where.startswith("line "):
        line = int(where[5:].partition(",")[0])
    return line, f"not valid TOML: {printable(what if line else message)[:200]}"


def parse_json(text: str, origin: str) -> Manifest:
    import json

    from corral.formats import jsonc
    from corral.formats.positions import line_counter, line_numbers

    try:
        data: object = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise file_error(origin, error.lineno, f"not valid JSON: {error.msg}") from None
    except RecursionError:
        raise file_error(origin, None, "the values are nested too deeply") from None
    except ValueError as error:
        raise file_error(origin, None, f"not valid JSON: {printable(str(error))}") from None
    line_of = line_counter(text)
    repeated: list[tuple[Path, int]] = []
    found = jsonc.Reader(text, max_depth=len(text), repeated=repeated).document()
    twice = [
        Mistake((printable(origin), line_of(at), format_path(path), "written twice"))
        for path, at in repeated
    ]
    lines = {format_path(path): line for path, line in line_numbers(text, found).items()}
    return from_data(data, origin, lines=lines, mistakes=twice)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"JSON does not allow {name}")


def file_error(origin: str, line: int | None, text: str, hint: str = IN_FORM) -> ManifestError:
    return ManifestError([Mistake((printable(origin), line, "", text))], hint=hint)


def from_data(
    data: object,
    origin: str,
    *,
    lines: Mapping[str, int] | None = None,
    mistakes: list[Mistake] | None = None,
) -> Manifest:
    validator = Validator(printable(origin), lines or {}, mistakes or [])
    values = validator.document(data)
    if validator.mistakes:
        raise ManifestError(sort_mistakes(validator.mistakes), hint=IN_KEYS)
    return _fill(Manifest(origin=origin, lines=lines or {}), values)


def from_flags(
    values: Mapping[str, object], *, best_effort: bool | None = None, strict: bool | None = None
) -> Manifest:
    """Return the flags of a command line as a manifest. `values` maps keys to strings or to lists
    of strings.

    Error messages name the flag instead of the key. For `limits.cpu`, a number without a unit means
    millicores here.
    """
    validator = Validator(COMMAND_LINE, {}, [], flags=True)
    found = {path: validator.value(BY_PATH[path], value) for path, value in values.items()}
    validator.check_variables(found)
    if validator.mistakes:
        raise ManifestError(sort_mistakes(validator.mistakes), hint=IN_FLAGS)
    start = Manifest(origin=COMMAND_LINE, best_effort=best_effort, strict=strict)
    return _fill(start, found)


def _fill(manifest: Manifest, values: Mapping[str, object]) -> Manifest:
    limits = {path for path in values if path.startswith("limits.")}
    guard = {path for path in values if path.startswith(MCP)}
    return replace(
        manifest,
        limits={BY_PATH[path].field: values[path] for path in limits},
        mcp={BY_PATH[path].field: values[path] for path in guard},
        **{BY_PATH[path].field: values[path] for path in values.keys() - limits - guard},
    )


def sort_mistakes(mistakes: list[Mistake]) -> list[Mistake]:
    """Sort the mistakes by line. Mistakes without a line come last. If there are more than
    MAX_MISTAKES, keep that many, and add an entry that says how many were left out.
    """
    mistakes.sort(key=lambda item: (item[1] is None, item[1] or 0))
    if len(mistakes) <= MAX_MISTAKES:
        return mistakes
    more = f"and {len(mistakes) - MAX_MISTAKES} more mistakes"
    return [*mistakes[:MAX_MISTAKES], Mistake((mistakes[0][0], None, "", more))]


def load(path: str) -> Manifest:
    """Read a policy file. It is JSON if its name ends in .json or its text starts with {, otherwise
    TOML.
    """
    return parse_bytes(read_file(path), path)


def parse_bytes(content: bytes, path: str) -> Manifest:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise file_error(path, line, "not UTF-8 text") from None
    file = os.path.abspath(path)
    parse = parse_json if path.endswith(".json") or text.lstrip()[:1] == "{" else parse_toml
    return replace(parse(text, path), directory=os.path.dirname(file), file=file)


def read_file(
    path: str, *, follow: bool = True, check: Callable[[os.stat_result], None] | None = None
) -> bytes:
    """Return the content of a small regular file. Refuse a fifo without waiting for a writer.

    `check` gets the status of the opened file, and raises an error if the file must not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        why = (error.strerror or "unknown") if isinstance(error, OSError) else str(error)
        raise file_error(path, None, f"cannot be read: {why}", NO_FILE) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise file_error(path, None, "not a regular file", NO_FILE)
        if not (follow or hasattr(os, "O_NOFOLLOW") or os.path.samestat(found, os.lstat(path))):
            raise file_error(path, None, "is a symlink", NO_FILE)
        if check is not None:
            check(found)
        content = bytearray()
        while chunk := os.read(descriptor, MAX_FILE_SIZE + 1 - len(content)):
            content += chunk
    except OSError as error:
        raise file_error(path, None, f"cannot be read: {error.strerror}", NO_FILE) from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE_SIZE:
        raise file_error(path, None, "larger than 1 MiB", NO_FILE)
    return bytes(content)
