"""A configuration's text with its servers started through corral: text in, text out."""

from __future__ import annotations

from corral.clients.backups import Change, Original
from corral.clients.configured_servers import read_servers, span
from corral.clients.corral_path import is_same
from corral.clients.rewrite import DOUBT, HINT, Turn, rewrite
from corral.clients.server_needs import (
    UnfitError,
    environment,
    places,
    refuse_company,
    refuse_steering,
)
from corral.errors import SandboxError
from corral.formats.positions import Splice
from corral.policy.profiles import fitting, paths
from corral.programs.package_runners import Package, Refusal, parse_runner
from corral.record import record
from corral.servers.reference import parse_reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from corral.clients.backups import Part
    from corral.clients.configured_servers import Server
    from corral.formats.positions import Format, Value
    from corral.policy.profiles import Profile

    Place = tuple[str, ...]
    State = Literal["wrapped", "already", "left", "refused"]


@record
class Wish:
    """What the user asked for: which servers (none: all), by which corral, with which flags.

    `trial` takes flags and arguments and raises if this host would not run them; `pin` makes one
    version of a package that runs with these flags, where that is wanted.
    """

    corral: str
    names: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    grant: bool = False
    profiles: bool = True
    trial: Callable[[tuple[str, ...], tuple[str, ...]], None] | None = None
    pin: Callable[[Package, tuple[str, ...]], Package] | None = None


@record
class Outcome:
    """`suggested` are places that the server was configured with and that it may not reach."""

    name: str
    state: State
    scope: str = ""
    why: str = ""
    hint: str = ""
    command: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()


@record
class Wrapped:
    text: str
    outcomes: tuple[Outcome, ...]
    originals: tuple[Original, ...] = ()


@record
class Line:
    """How one server is to be started: `words` replace its program and `drop` arguments."""

    server: Server
    words: tuple[str, ...]
    drop: int = 0

    @property
    def whole(self) -> tuple[str, ...]:
        return (*self.words, *self.server.words[1 + self.drop :])


def wrap(text: str, form: Format, wish: Wish, found: Sequence[Server] | None = None) -> Wrapped:
    """Every server that can be; what cannot is told and stays. `found` are those in the text."""
    lines: list[Line] = []
    outcomes: dict[Place, Outcome] = {}
    for server in read_servers(form, text) if found is None else found:
        if wish.names and server.name not in wish.names:
            continue
        try:
            line, outcomes[server.at] = _decide(server, wish)
            lines += [line] if line is not None else []
        except UnfitError as refusal:
            outcomes[server.at] = _refused(server, refusal)
    turns = {line.server.at: _turn(text, form, line, wish.corral) for line in lines}
    new, done = rewrite(text, form, turns)
    after = {server.at: server for server in read_servers(form, new)}
    originals = []
    for server in (line.server for line in lines):
        if server.at in done:
            originals.append(_original(server, after[server.at], text, new))
        else:
            outcomes[server.at] = _refused(server, UnfitError(DOUBT, hint=HINT))
    return Wrapped(text=new, outcomes=tuple(outcomes.values()), originals=tuple(originals))


def _refused(server: Server, refusal: UnfitError) -> Outcome:
    return Outcome(
        name=server.name,
        scope=server.scope,
        state="left" if refusal.apart else "refused",
        why=refusal.message,
        hint=refusal.hint or "",
    )


def _decide(server: Server, wish: Wish) -> tuple[Line | None, Outcome]:
    stays = _stays(server, wish)
    if stays is None or server.wrapped:
        refuse_steering(server)
    if stays is not None:
        return None, stays
    package = _package(server, wish)
    drop = package.used if package else 0
    profile = _profile(server, package, wish)
    suggested = () if profile and profile.arguments else places(server, drop)
    granted = [word for place in suggested if wish.grant for word in ("--read", place)]
    flags = (
        *(("--profile", profile.name) if profile else ()),
        *(word for one in (package.extra if package else ()) for word in ("--with", one)),
        *environment(server, wish.flags),
        *wish.flags,
        *granted,
    )
    package = _tried(package, wish, flags, server.words[1 + drop :])
    program = package.reference if package else server.words[0]
    line = Line(server=server, words=("run", *flags, "--", program), drop=drop)
    outcome = Outcome(
        name=server.name,
        scope=server.scope,
        state="wrapped",
        command=line.whole,
        suggested=() if wish.grant else suggested,
    )
    return line, outcome


def _profile(server: Server, package: Package | None, wish: Wish) -> Profile | None:
    """The curated one for its package, unless the user names another or wants none.

    Some grant what the server's arguments name, and that needs the user's word.
    """
    if package is None or not wish.profiles or "--profile" in wish.flags:
        return None
    found = fitting(package.bare)
    if found is not None and found.arguments and not wish.grant:
        named = ", ".join(paths(server.words[1 + package.used :])) or "none here"
        does = "change" if found.arguments == "write" else "read"
        raise UnfitError(
            f"it is there to {does} the places in its arguments ({named}), and nobody has granted"
            " them",
            hint="to grant them: --grant-arguments; to say yourself what it may: --no-profile",
        )
    if found is not None:
        refuse_company(server, package, found)
    return found


def _stays(server: Server, wish: Wish) -> Outcome | None:
    state: State = "left"
    why, hint, command = server.why, "", server.words[1:] if server.wrapped else ()
    if server.wrapped:
        # Shown like one that was just wrapped: who wrote this may have granted himself everything.
        state, why = "already", "it starts through corral already"
        if not is_same(server.words[0], wish.corral):
            why = f"it is started by {server.words[0]}, which is not this corral"
            state, hint = "refused", "look at it, unwrap it, and wrap it again"
    elif not why and server.off and server.name not in wish.names:
        why, hint = "it is switched off", "name it to wrap it all the same"
    if not why:
        return None
    return Outcome(
        name=server.name, scope=server.scope, state=state, why=why, hint=hint, command=command
    )


def _package(server: Server, wish: Wish) -> Package | None:
    if (
        server.args is not None
        and server.args.data is None
        and server.args.start == server.args.end
    ):
        raise UnfitError("its list of arguments is empty", hint="write [], or take the key away")
    command, *arguments = server.words
    found = parse_runner(command, arguments)
    if isinstance(found, Refusal):
        if "--allow-subprocess" in wish.flags and "--allow-subprocess" in found.hint:
            return None
        raise UnfitError(found.why, hint=found.hint, apart=found.leave_alone)
    return found


def _tried(
    package: Package | None, wish: Wish, flags: tuple[str, ...], arguments: tuple[str, ...]
) -> Package | None:
    """A client whose servers do not start is worse off than before: whatever can be known is."""
    try:
        if wish.trial is not None:
            wish.trial(flags, arguments)
        if package is not None:
            parse_reference(package.reference)
        return wish.pin(package, flags) if package and wish.pin else package
    except SandboxError as error:
        raise UnfitError(error.message, hint=error.hint) from error


def _turn(text: str, form: Format, line: Line, corral: str) -> Turn:
    server, words = line.server, [form.quote(word) for word in line.words]
    command, args = _value(server.command), server.args
    program = form.quote(corral)
    if args is None:
        program += form.member(text, server.table, command, "args", words)
    changes = [Splice(start=command.start, end=command.end, text=program)]
    if args is not None and args.items is None:
        changes.append(Splice(start=args.start, end=args.end, text=f"[{', '.join(words)}]"))
    elif args is not None:
        changes.append(form.prepend(text, args, line.drop, words))
    return Turn(splices=tuple(changes), words=(corral, *line.whole))


def _value(found: Value | None) -> Value:
    if found is None:
        raise TypeError("a server that can be wrapped has a command")
    return found


def _original(before: Server, after: Server, text: str, new: str) -> Original:
    parts: tuple[Part, ...] = ("both",) if before.args is None else ("command", "args")
    changes = [
        Change(
            part=part,
            before=text[slice(*span(before, part))],
            after=new[slice(*span(after, part))],
        )
        for part in parts
    ]
    return Original(at=before.at, changes=tuple(changes))
