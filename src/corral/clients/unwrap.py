"""The text as it was before corral: exactly, where nobody touched what corral wrote."""

from __future__ import annotations

from corral.clients.configured_servers import read_servers, span
from corral.clients.rewrite import DOUBT, HINT, Turn, rewrite
from corral.formats.positions import Splice
from corral.programs.package_runners import format_runner
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from corral.clients.backups import Original
    from corral.clients.configured_servers import Server
    from corral.formats.positions import Format

    State = Literal["restored", "derived", "forced", "refused"]
    Place = tuple[str, ...]


@record
class Outcome:
    name: str
    state: State
    scope: str = ""
    why: str = ""
    hint: str = ""


@record
class Unwrapped:
    """`kept` are the records of servers that still start through corral."""

    text: str
    outcomes: tuple[Outcome, ...]
    kept: tuple[Original, ...] = ()


def unwrap(
    text: str,
    form: Format,
    originals: Mapping[Place, Original],
    *,
    names: tuple[str, ...] = (),
    force: bool = False,
    found: Sequence[Server] | None = None,
) -> Unwrapped:
    found = [one for one in (read_servers(form, text) if found is None else found) if one.wrapped]
    turns: dict[Place, Turn] = {}
    outcomes: dict[Place, Outcome] = {}
    for server in found:
        if not names or server.name in names:
            turn, outcomes[server.at] = _decide(
                text, form, server, originals.get(server.at), force=force
            )
            turns.update({server.at: turn} if turn else {})
    new, done = rewrite(text, form, turns)
    for at in turns.keys() - done:
        outcomes[at] = replace(outcomes[at], state="refused", why=DOUBT, hint=HINT)
    kept = [originals[one.at] for one in found if one.at in originals and one.at not in done]
    return Unwrapped(text=new, outcomes=tuple(outcomes.values()), kept=tuple(kept))


def _decide(
    text: str, form: Format, server: Server, original: Original | None, *, force: bool
) -> tuple[Turn | None, Outcome]:
    if original is not None and (untouched(text, server, original) or force):
        state: State = "restored" if untouched(text, server, original) else "forced"
        outcome = Outcome(name=server.name, scope=server.scope, state=state)
        return Turn(splices=_recorded(server, original), words=None), outcome
    return _derived(text, form, server, recorded=original is not None)


def untouched(text: str, server: Server, original: Original) -> bool:
    return all(text[slice(*span(server, one.part))] == one.after for one in original.changes)


def _recorded(server: Server, original: Original) -> tuple[Splice, ...]:
    spans = [(span(server, one.part), one.before) for one in original.changes]
    return tuple(Splice(start=start, end=end, text=before) for (start, end), before in spans)


def _derived(
    text: str, form: Format, server: Server, *, recorded: bool
) -> tuple[Turn | None, Outcome]:
    """From what stands behind `--`; edits of the arguments that are the server's own stay."""
    command, args, inner = server.command, server.args, server.inner
    edited = "it was edited since" if recorded else "corral has no record of it"
    if command is None or args is None or not inner:
        hint = "--force puts the recorded lines back" if recorded else "change it by hand"
        why = f"{edited}, and its arguments have no `--` with a command behind it"
        refusal = Outcome(name=server.name, scope=server.scope, state="refused", why=why, hint=hint)
        return None, refusal
    program, *lead = format_runner(inner[0]) or [inner[0]]
    drop = len(server.words) - len(inner)  # all up to the program, which is one of the arguments
    quoted = [form.quote(word) for word in lead]
    cut = form.prepend(text, args, drop, quoted) if lead else form.without(text, args, drop)
    outcome = Outcome(
        name=server.name,
        scope=server.scope,
        state="derived",
        why=f"{edited}: made from what stands behind `--`",
        hint="--force would have put the recorded lines back" if recorded else "",
    )
    start = Splice(start=command.start, end=command.end, text=form.quote(program))
    return Turn(splices=(start, cut), words=(program, *lead, *inner[1:])), outcome
