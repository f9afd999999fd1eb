"""Change the program of servers that were wrapped before corral was moved, and keep their flags."""

import os
from collections.abc import Mapping, Sequence

from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer, read_servers
from corral.clients.corral_path import is_same_program
from corral.clients.file_formats import Format
from corral.clients.grants import follow_record
from corral.clients.rewrite import (
    KeyPath,
    Rewrite,
    RewrittenText,
    describe_doubt,
    describe_outcome,
    rewrite_servers,
)
from corral.clients.unwrap import is_untouched
from corral.formats.positions import Splice


def find_moved(
    text: str,
    servers: Sequence[ConfiguredServer],
    originals: Mapping[KeyPath, Original],
    corral: str,
    names: tuple[str, ...],
) -> list[ConfiguredServer]:
    """Return the wrapped servers in `names` that start through a program other than `corral`. If
    `names` is empty, return those whose corral no longer exists.

    Leave out servers whose lines were changed since corral wrote them, because another program or a
    project may have chosen their flags.
    """
    return [
        one
        for one in servers
        if one.is_wrapped
        and one.inner_argv
        and one.key_path in originals
        and is_untouched(text, one, originals[one.key_path])
        and not is_same_program(one.argv[0], corral)
        and (one.name in names or (not names and _is_gone(one.argv[0])))
    ]


def _is_gone(program: str) -> bool:
    return os.path.isabs(program) and not os.path.exists(program)


def change_corral(
    text: str,
    form: Format,
    servers: Sequence[ConfiguredServer],
    originals: Mapping[KeyPath, Original],
    corral: str,
) -> RewrittenText:
    """Start these servers through the program `corral` from now on. Return the new text and the
    updated originals.
    """
    chosen = {one.key_path: one for one in servers}
    rewrites = {key: _rewrite(form, one, corral) for key, one in chosen.items()}
    new, done = rewrite_servers(text, form, rewrites)
    after = {one.key_path: one for one in read_servers(form, new)}
    outcomes = []
    kept = dict(originals)
    for key, server in chosen.items():
        if key not in done:
            outcomes.append(describe_doubt(server))
            continue
        why = f"it was started by {server.argv[0]}, and is now started by this corral"
        outcomes.append(describe_outcome(server, "changed", why, command=after[key].argv[1:]))
        kept[key] = follow_record(kept[key], after[key], new)
    return RewrittenText(text=new, outcomes=tuple(outcomes), originals=tuple(kept.values()))


def _rewrite(form: Format, server: ConfiguredServer, corral: str) -> Rewrite:
    place = server.command
    if server.joined and server.args is not None and server.args.items:
        place = server.args.items[0]
    if place is None:
        raise TypeError("a wrapped server has a command")
    program = Splice(start=place.start, end=place.end, text=form.quote(corral))
    return Rewrite(splices=(program,), argv=(corral, *server.argv[1:]))
