"""One file changed as a whole, or not at all: read, work out, record, back up, replace."""

from __future__ import annotations

import re

from corral.clients import backups, catalogue, safe_write
from corral.clients.configured_servers import read_servers, without_secrets
from corral.clients.unwrap import unwrap
from corral.clients.wrap import wrap
from corral.errors import SandboxError
from corral.formats.positions import BrokenFileError, Splice, splice
from corral.policy.variables import MASK, is_secret_name
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from corral.clients.configured_servers import Server
    from corral.clients.safe_write import Content
    from corral.clients.unwrap import Outcome as Undone
    from corral.clients.wrap import Outcome as Done
    from corral.clients.wrap import Wish
    from corral.formats.positions import Format

SHORT = 4
"""A secret of fewer letters may be part of any word: it is masked in its own place only."""
KEY = re.compile(r"([A-Za-z_][\w.-]*)[\"']?[ \t]*[:=][ \t]*")
VALUE = re.compile(
    r"""("(?:[^"\\\n]++|\\.)*+"|'[^'\n]*')"""
    r"""|(?!(?:true|false|null)\b)[^\s,}\]"'{\[|>][^,}\]"'\n]*"""
)


@record
class Opened:
    """A configuration as it was found, with the servers in it."""

    path: str
    content: Content
    form: Format
    servers: tuple[Server, ...]


@record
class Edit:
    """`diff` is what changes, with secrets masked; `backup` is empty if nothing was written."""

    path: str
    real: str
    outcomes: tuple[Done | Undone, ...]
    diff: str = ""
    backup: str = ""


def opened(path: str) -> Opened:
    content = safe_write.read(path)
    form = catalogue.format_of(path) or catalogue.format_of(content.path)
    if form is None:
        raise SandboxError(
            f"{path}: corral reads configurations in JSON, TOML and YAML, told by their names"
        )
    if not content.text.strip("\ufeff \t\r\n"):
        raise SandboxError(f"{path} is empty: there are no servers in it")
    try:
        found = tuple(read_servers(form, content.text))
    except BrokenFileError as error:
        raise SandboxError(
            f"{path}: {error.message}", hint="nothing was changed; the client cannot read it either"
        ) from None
    return Opened(path=path, content=content, form=form, servers=found)


def wrap_file(path: str, wish: Wish, *, dry_run: bool = False) -> Edit:
    with _alone(path, dry_run=dry_run):
        found = opened(path)
        result = wrap(found.content.text, found.form, wish, found.servers)
        real = found.content.path
        known = {**backups.load(real), **{one.at: one for one in result.originals}}
        at = {server.at for server in found.servers if server.wrapped}
        at |= {one.at for one in result.originals}
        records = [one for place, one in known.items() if place in at]
        backup = _write(found, result.text, records, dry_run=dry_run)
        return _edit(found, result.text, result.outcomes, backup)


def unwrap_file(
    path: str, *, names: tuple[str, ...] = (), force: bool = False, dry_run: bool = False
) -> Edit:
    with _alone(path, dry_run=dry_run):
        found = opened(path)
        known = backups.load(found.content.path)
        result = unwrap(
            found.content.text, found.form, known, names=names, force=force, found=found.servers
        )
        backup = _write(found, result.text, list(known.values()), dry_run=dry_run)
        if backup:
            backups.save(found.content.path, result.kept)
        return _edit(found, result.text, result.outcomes, backup)


def _alone(path: str, *, dry_run: bool) -> AbstractContextManager[None]:
    """A lock leaves a file behind, so it is taken only for files that are there."""
    from contextlib import nullcontext

    real = safe_write.read(path).path
    return nullcontext() if dry_run else backups.locked(real)


def _write(found: Opened, text: str, records: list[backups.Original], *, dry_run: bool) -> str:
    """The backup's path. Records come first: a crash leaves one too many, never one too few."""
    if text == found.content.text or dry_run:
        return ""
    safe_write.refuse_unwritable(found.content)
    backup = backups.back_up(found.content.path, found.content.data)
    backups.save(found.content.path, records)
    safe_write.replace(found.content, text.encode())
    return backup


def _edit(found: Opened, text: str, outcomes: tuple[Done | Undone, ...], backup: str) -> Edit:
    return Edit(
        path=found.path,
        real=found.content.path,
        outcomes=outcomes,
        diff=_diff(found, text),
        backup=backup,
    )


def _diff(found: Opened, new: str) -> str:
    import difflib

    old = found.content.text
    if old == new:
        return ""
    # Before the lines are taken apart: a text may have several.
    for secret, shown in _secrets(found):
        old, new = old.replace(secret, shown), new.replace(secret, shown)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), found.path, found.path, lineterm="", n=1
    )
    return _masked("\n".join(lines))


def _masked(text: str) -> str:
    """Whatever has a telling name, also beside the servers: a file may be one single line."""
    places = [
        Splice(start=value.start(), end=value.end(), text=f'"{MASK}"' if value[1] else MASK)
        for key in KEY.finditer(text)
        if is_secret_name(key[1]) and (value := VALUE.match(text, key.end()))
    ]
    return splice(text, places)


def _secrets(found: Opened) -> list[tuple[str, str]]:
    """As they are and as the file writes them; the longest first, since one may contain another."""
    text, quote = found.content.text, found.form.quote
    pairs: dict[str, str] = {}
    for server in found.servers:
        named = [
            value
            for name, value in server.env.items()
            if is_secret_name(name) and isinstance(value, str) and len(value) >= SHORT
        ]
        pairs |= {one: MASK for value in named for one in (value, quote(value)[1:-1])}
        items = (server.args.items or ()) if server.args else ()
        for item, told in zip(items, without_secrets(server.words)[1:], strict=False):
            if told != item.data:
                pairs[text[item.start : item.end]] = quote(told)
    return sorted(pairs.items(), key=lambda pair: len(pair[0]), reverse=True)
