"""Change the flags of wrapped servers in a configuration's text, and nothing else."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer, find_span, read_servers
from corral.clients.file_formats import Format
from corral.clients.rewrite import (
    KeyPath,
    Rewrite,
    RewrittenText,
    State,
    describe_doubt,
    describe_outcome,
    rewrite_servers,
)
from corral.clients.unwrap import is_untouched
from corral.formats.positions import Splice
from corral.record import replace


def change_flags(
    text: str,
    form: Format,
    servers: Sequence[ConfiguredServer],
    flags: Mapping[KeyPath, tuple[str, ...]],
    originals: Mapping[KeyPath, Original],
) -> RewrittenText:
    """Return a text in which the wrapped servers have the given flags, and the updated originals.

    An original contains a server's lines before and after `wrap`. The lines after `wrap` are
    updated, so that `unwrap` still recognizes them.
    """
    chosen = {one.key_path: one for one in servers if one.key_path in flags}
    rewrites = {key: _rewrite(text, form, one, flags[key]) for key, one in chosen.items()}
    new, done = rewrite_servers(text, form, rewrites)
    after = {one.key_path: one for one in read_servers(form, new)}
    outcomes = []
    kept = dict(originals)
    for key, server in chosen.items():
        if key not in done:
            outcomes.append(describe_doubt(server))
            continue
        changed = server.run_flags != flags[key]
        command = after[key].argv[1:]
        why = "" if changed else "it already has these grants"
        state: State = "changed" if changed else "already"
        outcomes.append(describe_outcome(server, state, why, command=command))
        if key in kept and is_untouched(text, server, kept[key]):
            kept[key] = follow_record(kept[key], after[key], new)
    return RewrittenText(text=new, outcomes=tuple(outcomes), originals=tuple(kept.values()))


def _rewrite(text: str, form: Format, server: ConfiguredServer, flags: tuple[str, ...]) -> Rewrite:
    """Insert and remove single words before `--`, so that other arguments stay on their lines."""
    args, old = server.args, server.run_flags
    if args is None or args.items is None:
        raise TypeError("a wrapped server has a list of arguments")
    first = 2 if server.joined else 1
    splices: list[Splice] = []
    for what, start, end, low, high in SequenceMatcher(None, old, flags, False).get_opcodes():
        if what == "equal":
            continue
        tail = replace(args, items=args.items[first + start :])
        words = [form.quote(word) for word in flags[low:high]]
        drop = end - start
        cut = form.prepend(text, tail, drop, words) if words else form.without(text, tail, drop)
        splices.append(cut)
    rest = server.argv[2 + len(old) :]
    return Rewrite(splices=tuple(splices), argv=(*server.argv[:2], *flags, *rest))


def follow_record(original: Original, server: ConfiguredServer, text: str) -> Original:
    replaced = [
        replace(one, after=text[slice(*find_span(server, one.part))]) for one in original.replaced
    ]
    return replace(original, replaced=tuple(replaced))
