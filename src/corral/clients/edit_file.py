"""Change a client's file, either completely or not at all. The steps are: read the file, compute
the new text, record the original text, back up the file, replace it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from corral.clients import backups, grants, safe_write
from corral.clients.configured_servers import (
    SHAPES,
    ConfiguredServer,
    has_server_table,
    mask_command,
    read_servers,
)
from corral.clients.file_formats import Format, load_format
from corral.clients.moved_corral import change_corral, find_moved
from corral.clients.rewrite import KeyPath, ServerOutcome
from corral.clients.safe_write import FileContent
from corral.clients.unwrap import unwrap
from corral.clients.wrap import Proposal, wrap
from corral.errors import SandboxError
from corral.formats.positions import BrokenFileError, Splice, splice
from corral.policy.variables import is_secret, is_secret_name
from corral.record import record
from corral.safe_text import MASK

# A shorter secret may occur by chance inside other words, so it is masked only where it is the
# value of its own key.
MIN_SECRET_LENGTH = 4
IN_SCRIPT = "it is a Bash script; remove it, and add its servers to crush.json"
KEY = re.compile(r"([A-Za-z_][\w.-]*)[\"']?[ \t]*[:=][ \t]*")
VALUE = re.compile(
    r"""("(?:[^"\\\n]++|\\.)*+"|'[^'\n]*')"""
    r"""|(?!(?:true|false|null)\b)[^\s,}\]"'{\[|>][^,}\]"'\n]*"""
)


@record
class ClientFile:
    path: str
    content: FileContent
    form: Format
    servers: tuple[ConfiguredServer, ...]

    def refuse_unknown_shape(self) -> None:
        """Refuse a file without any of the keys under which corral looks for servers, because its
        servers may be under a key that corral does not know.
        """
        if not self.servers and not has_server_table(self.form, self.content.text):
            raise SandboxError(
                f"{self.path} has no servers in a form that corral knows",
                hint="corral looks for servers under " + ", ".join(map(".".join, SHAPES)),
            )


@record
class FileEdit:
    """The result of an edit. Secrets are masked in `diff`. If nothing was written, `backup` is
    empty.
    """

    path: str
    real: str
    outcomes: tuple[ServerOutcome, ...]
    diff: str = ""
    backup: str = ""


def read_client_file(path: str) -> ClientFile:
    content = safe_write.read(path)
    is_script = path.endswith("crushrc")  # a link to JSON is still a Bash script for Crush
    form = None if is_script else load_format(path) or load_format(content.path)
    if form is None:
        raise SandboxError(
            f"{path}: corral reads only files that end in .json, .jsonc, .toml, .yaml or .yml",
            hint=IN_SCRIPT if is_script else safe_write.NAME_A_FILE,
        )
    if not content.text.strip("\ufeff \t\r\n"):
        raise SandboxError(
            f"{path} is empty: there are no servers in it",
            hint="add a server to it first",
        )
    try:
        servers = tuple(read_servers(form, content.text))
    except BrokenFileError as error:
        raise SandboxError(
            f"{path}: {error.message}",
            hint="correct this error; the client cannot read the file either",
        ) from None
    return ClientFile(path=path, content=content, form=form, servers=servers)


@contextmanager
def lock_client_file(path: str, *, dry_run: bool) -> Iterator[ClientFile]:
    """Read a file, and lock it against edits by other corral processes. In a dry run do not lock
    it, because locking creates a lock file.
    """
    real = safe_write.read(path).path  # if the file is missing, fail before locking it
    with nullcontext() if dry_run else backups.lock(real):
        yield read_client_file(path)


def wrap_file(
    file: ClientFile, proposals: Sequence[Proposal], corral: str, *, dry_run: bool = False
) -> FileEdit:
    """Write the accepted proposals into a file that the caller has locked."""
    result = wrap(file.content.text, file.form, proposals, corral)
    new = {one.key_path: one for one in result.originals}
    known = {**backups.load(file.content.path), **new}
    wrapped = {server.key_path for server in file.servers if server.is_wrapped} | new.keys()
    records = [one for key_path, one in known.items() if key_path in wrapped]
    return _edit(file, result.text, result.outcomes, records, dry_run=dry_run)


def change_flags(
    file: ClientFile, flags: Mapping[KeyPath, tuple[str, ...]], *, dry_run: bool = False
) -> FileEdit:
    """Replace the flags of wrapped servers in a file that the caller has locked."""
    text, known = file.content.text, backups.load(file.content.path)
    result = grants.change_flags(text, file.form, file.servers, flags, known)
    return _edit(file, result.text, result.outcomes, list(result.originals), dry_run=dry_run)


def move_corral(
    path: str, corral: str, names: tuple[str, ...], *, dry_run: bool = False
) -> FileEdit | None:
    """Update the path of corral in servers that were wrapped before corral was moved. Return None
    if there are none.
    """
    with lock_client_file(path, dry_run=dry_run) as file:
        text, known = file.content.text, backups.load(file.content.path)
        servers = find_moved(text, file.servers, known, corral, names)
        if not servers:
            return None
        result = change_corral(text, file.form, servers, known, corral)
        return _edit(file, result.text, result.outcomes, list(result.originals), dry_run=dry_run)


def unwrap_file(
    path: str, *, names: tuple[str, ...] = (), force: bool = False, dry_run: bool = False
) -> FileEdit:
    with lock_client_file(path, dry_run=dry_run) as file:
        text, real = file.content.text, file.content.path
        known = backups.load(real)
        result = unwrap(text, file.form, file.servers, known, names=names, force=force)
        records = list(known.values())
        edit = _edit(file, result.text, result.outcomes, records, dry_run=dry_run)
        if edit.backup:
            backups.save(real, result.originals)
        return edit


def _edit(
    file: ClientFile,
    text: str,
    outcomes: tuple[ServerOutcome, ...],
    records: list[backups.Original],
    *,
    dry_run: bool,
) -> FileEdit:
    """Write the records, and then the file. After a crash in between, no record is missing, but a
    record may describe lines that were never written.
    """
    real, backup = file.content.path, ""
    if text != file.content.text and not dry_run:
        safe_write.refuse_unwritable(file.content)
        backup = backups.back_up(real, file.content.data)
        backups.save(real, records)
        safe_write.replace(file.content, text.encode())
    diff = _diff(file, text)
    return FileEdit(path=file.path, real=real, outcomes=outcomes, diff=diff, backup=backup)


def _diff(file: ClientFile, new: str) -> str:
    old = file.content.text
    if old == new:
        return ""
    # Secrets are masked before the lines are compared, because a secret may have several lines.
    for secret, shown in _find_secrets(file):
        old, new = old.replace(secret, shown), new.replace(secret, shown)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), file.path, file.path, lineterm="", n=1
    )
    return _mask_values("\n".join(lines))


def _mask_values(text: str) -> str:
    """Mask the value of each key that is named like a secret, even outside of servers."""
    splices = [
        Splice(start=value.start(), end=value.end(), text=f'"{MASK}"' if value[1] else MASK)
        for key in KEY.finditer(text)
        if is_secret_name(key[1]) and (value := VALUE.match(text, key.end()))
    ]
    return splice(text, splices)


def _find_secrets(file: ClientFile) -> list[tuple[str, str]]:
    """Return the servers' secrets as they are written in the file, each with the text that replaces
    it. Longer secrets come first, because one secret may contain another.
    """
    text, quote = file.content.text, file.form.quote
    pairs: dict[str, str] = {}
    for server in file.servers:
        named = [
            value
            for name, value in server.env.items()
            if len(value) >= MIN_SECRET_LENGTH and is_secret(name, value)
        ]
        pairs |= {one: MASK for value in named for one in (value, quote(value)[1:-1])}
        items = (server.args.items or ()) if server.args else ()
        shown_words = mask_command(server.argv)[0 if server.joined else 1 :]
        for item, shown in zip(items, shown_words, strict=False):
            if shown != item.data:
                pairs[text[item.start : item.end]] = quote(shown)
    return sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)
