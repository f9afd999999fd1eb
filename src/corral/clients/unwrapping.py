"""The text as it was before corral: exactly, where nobody touched what corral wrote."""

from __future__ import annotations

from corral.clients import checking
from corral.clients.launchers import back
from corral.clients.located import Splice, splice
from corral.clients.servers import servers, span
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from corral.clients.located import Format
    from corral.clients.originals import Original
    from corral.clients.servers import Server

    State = Literal["restored", "derived", "forced", "left", "refused"]
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


@record
class Step:
    """`words` is what the server has to be started as afterwards; None for what was recorded."""

    outcome: Outcome
    splices: tuple[Splice, ...] = ()
    words: tuple[str, ...] | None = None


def unwrap(
    text: str,
    form: Format,
    originals: Mapping[Place, Original],
    *,
    names: tuple[str, ...] = (),
    force: bool = False,
    found: Sequence[Server] | None = None,
) -> Unwrapped:
    found = [one for one in (servers(form.read(text)) if found is None else found) if one.wrapped]
    chosen = [one for one in found if not names or one.name in names]
    steps = {one.at: _step(text, form, one, originals.get(one.at), force=force) for one in chosen}
    done = {at: step for at, step in steps.items() if step.splices}
    new = splice(text, [one for step in done.values() for one in step.splices])
    checking.check(form, text, new, {at: step.words for at, step in done.items()})
    kept = [originals[one.at] for one in found if one.at in originals and one.at not in done]
    return Unwrapped(
        text=new, outcomes=tuple(step.outcome for step in steps.values()), kept=tuple(kept)
    )


def _step(
    text: str, form: Format, server: Server, original: Original | None, *, force: bool
) -> Step:
    if original is not None and (untouched(text, server, original) or force):
        state: State = "restored" if untouched(text, server, original) else "forced"
        outcome = Outcome(name=server.name, scope=server.scope, state=state)
        return Step(outcome=outcome, splices=_recorded(server, original))
    return _derived(text, form, server, recorded=original is not None)


def untouched(text: str, server: Server, original: Original) -> bool:
    return all(text[slice(*span(server, one.part))] == one.after for one in original.changes)


def _recorded(server: Server, original: Original) -> tuple[Splice, ...]:
    spans = [(span(server, one.part), one.before) for one in original.changes]
    return tuple(Splice(start=start, end=end, text=before) for (start, end), before in spans)


def _derived(text: str, form: Format, server: Server, *, recorded: bool) -> Step:
    """From what stands behind `--`; edits of the arguments that are the server's own stay."""
    command, args, inner = server.command, server.args, server.inner
    edited = "it was edited since" if recorded else "corral has no record of it"
    if command is None or args is None or not inner:
        hint = "--force puts the recorded lines back" if recorded else "change it by hand"
        why = f"{edited}, and its arguments have no `--` with a command behind it"
        refusal = Outcome(name=server.name, scope=server.scope, state="refused", why=why, hint=hint)
        return Step(outcome=refusal)
    program, *lead = back(inner[0]) or [inner[0]]
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
    return Step(outcome=outcome, splices=(start, cut), words=(program, *lead, *inner[1:]))
