"""Change a configuration's text back to its state before `corral wrap`.

The text is restored byte for byte, unless the lines that corral wrote have been edited since.
"""

from collections.abc import Mapping, Sequence

from corral.clients.backups import Original
from corral.clients.configured_servers import ConfiguredServer, find_span
from corral.clients.file_formats import Format
from corral.clients.rewrite import (
    KeyPath,
    Rewrite,
    RewrittenText,
    ServerOutcome,
    describe_doubt,
    describe_outcome,
    rewrite_servers,
)
from corral.formats.positions import Splice
from corral.programs.package_runners import format_runner


def unwrap(
    text: str,
    form: Format,
    servers: Sequence[ConfiguredServer],
    originals: Mapping[KeyPath, Original],
    *,
    names: tuple[str, ...] = (),
    force: bool = False,
) -> RewrittenText:
    wrapped = {server.key_path: server for server in servers if server.is_wrapped}
    rewrites: dict[KeyPath, Rewrite] = {}
    outcomes: dict[KeyPath, ServerOutcome] = {}
    for key, server in wrapped.items():
        if not names or server.name in names:
            rewrite, outcomes[key] = _decide(text, form, server, originals.get(key), force=force)
            rewrites.update({key: rewrite} if rewrite else {})
    new, done = rewrite_servers(text, form, rewrites)
    for key in rewrites.keys() - done:
        outcomes[key] = describe_doubt(wrapped[key])
    kept = [originals[key] for key in wrapped if key in originals and key not in done]
    return RewrittenText(text=new, outcomes=tuple(outcomes.values()), originals=tuple(kept))


def _decide(
    text: str, form: Format, server: ConfiguredServer, original: Original | None, *, force: bool
) -> tuple[Rewrite | None, ServerOutcome]:
    untouched = original is not None and is_untouched(text, server, original)
    if original is None or not (untouched or force):
        return _derive(text, form, server, recorded=original is not None)
    spans = [(find_span(server, one.part), one.before) for one in original.replaced]
    splices = tuple(Splice(start=start, end=end, text=before) for (start, end), before in spans)
    outcome = describe_outcome(server, "restored" if untouched else "forced")
    return Rewrite(splices=splices, argv=None), outcome


def is_untouched(text: str, server: ConfiguredServer, original: Original) -> bool:
    return all(text[slice(*find_span(server, one.part))] == one.after for one in original.replaced)


def _derive(
    text: str, form: Format, server: ConfiguredServer, *, recorded: bool
) -> tuple[Rewrite | None, ServerOutcome]:
    """Restore the command from the words after `--`, so that edits of these words are kept."""
    command, args, inner = server.command, server.args, server.inner_argv
    edited = "it was edited later" if recorded else "corral has no record of it"
    if command is None or args is None or not inner:
        hint = "--force restores the recorded lines" if recorded else "change it by hand"
        why = f"{edited}, and its arguments have no `--` followed by a command"
        return None, describe_outcome(server, "refused", why, hint)
    program, *lead = format_runner(inner[0]) or [inner[0]]
    drop = len(server.argv) - len(inner)  # the number of words of `corral run FLAGS --`
    why = f"{edited}: restored from the words after `--`"
    hint = "--force would have restored the recorded lines" if recorded else ""
    argv = (program, *lead, *inner[1:])
    if server.joined:
        words = [form.quote(word) for word in (program, *lead)]
        joined = Rewrite(splices=(form.prepend(text, args, drop + 1, words),), argv=argv)
        return joined, describe_outcome(server, "derived", why, hint)
    quoted = [form.quote(word) for word in lead]
    cut = form.prepend(text, args, drop, quoted) if lead else form.without(text, args, drop)
    start = Splice(start=command.start, end=command.end, text=form.quote(program))
    derived = Rewrite(splices=(start, cut), argv=argv)
    return derived, describe_outcome(server, "derived", why, hint)
