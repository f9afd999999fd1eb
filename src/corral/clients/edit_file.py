"""Change one client's file as a whole or not at all: read, work out, record, back up, replace."""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from corral.clients import backups, safe_write
from corral.clients.configured_servers import ConfiguredServer, mask_command, read_servers
from corral.clients.file_formats import Format, load_format
from corral.clients.rewrite import ServerOutcome
from corral.clients.safe_write import FileContent
from corral.clients.unwrap import unwrap
from corral.clients.wrap import Proposal, wrap
from corral.errors import SandboxError
from corral.formats.positions import BrokenFileError, Splice, splice
from corral.policy.variables import MASK, is_secret_name
from corral.record import record

MIN_SECRET_LENGTH = 4
"""A shorter secret may be part of any word, so it is masked only as the value of its own key."""
KEY = re.compile(r"([A-Za-z_][\w.-]*)[\"']?[ \t]*[:=][ \t]*")
VALUE = re.compile(
    r"""("(?:[^"\\\n]++|\\.)*+"|'[^'\n]*')"""
    r"""|(?!(?:true|false|null)\b)[^\s,}\]"'{\[|>][^,}\]"'\n]*"""
)


@record
class ClientFile:
    """A client's file as it was read, with the servers in it."""

    path: str
    content: FileContent
    form: Format
    servers: tuple[ConfiguredServer, ...]


@record
class FileEdit:
    """`diff` is what changes, with secrets masked; `backup` is empty if nothing was written."""

    path: str
    real: str
    outcomes: tuple[ServerOutcome, ...]
    diff: str = ""
    backup: str = ""


def read_client_file(path: str) -> ClientFile:
    content = safe_write.read(path)
    form = load_format(path) or load_format(content.path)
    if form is None:
        raise SandboxError(
            f"{path}: corral reads configurations in JSON, TOML and YAML, told by their names"
        )
    if not content.text.strip("\ufeff \t\r\n"):
        raise SandboxError(f"{path} is empty: there are no servers in it")
    try:
        servers = tuple(read_servers(form, content.text))
    except BrokenFileError as error:
        raise SandboxError(
            f"{path}: {error.message}", hint="nothing was changed; the client cannot read it either"
        ) from None
    return ClientFile(path=path, content=content, form=form, servers=servers)


@contextmanager
def lock_client_file(path: str, *, dry_run: bool) -> Iterator[ClientFile]:
    """Read a file while no other corral edits it. A dry run takes no lock, which leaves a file."""
    real = safe_write.read(path).path  # raises before a lock is made for a file that is not there
    with nullcontext() if dry_run else backups.lock(real):
        yield read_client_file(path)


def wrap_file(
    file: ClientFile, proposals: Sequence[Proposal], corral: str, *, dry_run: bool = False
) -> FileEdit:
    """Write the accepted proposals into a locked file."""
    result = wrap(file.content.text, file.form, proposals, corral)
    new = {one.key_path: one for one in result.originals}
    known = {**backups.load(file.content.path), **new}
    wrapped = {server.key_path for server in file.servers if server.is_wrapped} | new.keys()
    records = [one for key_path, one in known.items() if key_path in wrapped]
    return _edit(file, result.text, result.outcomes, records, dry_run=dry_run)


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
    """Replace the file's text, after the records: a crash leaves one too many, never too few."""
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
    # Masked before the lines are compared, because a secret may have several lines.
    for secret, shown in _find_secrets(file):
        old, new = old.replace(secret, shown), new.replace(secret, shown)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), file.path, file.path, lineterm="", n=1
    )
    return _mask_values("\n".join(lines))


def _mask_values(text: str) -> str:
    """Mask the value of every key with a secret's name, also outside of the servers."""
    splices = [
        Splice(start=value.start(), end=value.end(), text=f'"{MASK}"' if value[1] else MASK)
        for key in KEY.finditer(text)
        if is_secret_name(key[1]) and (value := VALUE.match(text, key.end()))
    ]
    return splice(text, splices)


def _find_secrets(file: ClientFile) -> list[tuple[str, str]]:
    """Return the servers' secrets as the file writes them, each with its mask.

    The longest comes first, because one secret may contain another.
    """
    text, quote = file.content.text, file.form.quote
    pairs: dict[str, str] = {}
    for server in file.servers:
        named = [
            value
            for name, value in server.env.items()
            if is_secret_name(name) and isinstance(value, str) and len(value) >= MIN_SECRET_LENGTH
        ]
        pairs |= {one: MASK for value in named for one in (value, quote(value)[1:-1])}
        items = (server.args.items or ()) if server.args else ()
        for item, shown in zip(items, mask_command(server.argv)[1:], strict=False):
            if shown != item.data:
                pairs[text[item.start : item.end]] = quote(shown)
    return sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)
