"""Change a configuration's text so that its servers start through corral.

`propose` works out how each server would start. The caller may check the proposals on this host,
and `refuse` or replace some. `wrap` then writes the accepted ones into the text.
"""

from collections.abc import Iterable, Sequence

from corral.clients import server_needs
from corral.clients.backups import Original, Part, ReplacedText
from corral.clients.configured_servers import ConfiguredServer, find_span, read_servers
from corral.clients.corral_path import is_same_program
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
from corral.clients.server_needs import UnfitError
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.formats.positions import Splice
from corral.policy import profiles
from corral.policy.home_grants import is_home
from corral.programs.package_runners import Package, Refusal, parse_runner
from corral.record import record, replace
from corral.servers.reference import parse_reference


@record
class WrapRequest:
    """What the user asked for: which servers (none: all), by which corral, with which flags."""

    corral: str
    names: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    grant_arguments: bool = False
    use_profiles: bool = True


@record
class Proposal:
    """How one server would start: `corral run FLAGS -- PROGRAM ARGUMENTS`.

    A proposal with an `outcome` is decided already: the server stays as it is.
    """

    server: ConfiguredServer
    flags: tuple[str, ...] = ()
    package: Package | None = None
    suggested: tuple[str, ...] = ()
    outcome: ServerOutcome | None = None

    @property
    def dropped(self) -> int:
        """Return how many of the configured arguments are the package runner's."""
        return self.package.used if self.package else 0

    @property
    def new_words(self) -> tuple[str, ...]:
        """Return the words that replace the program and its dropped arguments."""
        program = self.package.reference if self.package else self.server.argv[0]
        return ("run", *self.flags, "--", program)

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.server.argv[1 + self.dropped :]


def propose(servers: Iterable[ConfiguredServer], request: WrapRequest) -> list[Proposal]:
    """Return a proposal for each server that the request names."""
    chosen = [one for one in servers if not request.names or one.name in request.names]
    return [_propose(server, request) for server in chosen]


def refuse(proposal: Proposal, error: SandboxError) -> Proposal:
    """Return the decision to leave the server as it is, because of `error`."""
    left = isinstance(error, UnfitError) and error.leave_alone
    outcome = describe_outcome(
        proposal.server, "left" if left else "refused", error.message, error.hint
    )
    return Proposal(server=proposal.server, outcome=outcome)


def wrap(text: str, form: Format, proposals: Sequence[Proposal], corral: str) -> RewrittenText:
    """Write the accepted proposals into the text; the other servers stay byte for byte."""
    rewrites = {
        one.server.key_path: _rewrite(text, form, one, corral)
        for one in proposals
        if one.outcome is None
    }
    new, done = rewrite_servers(text, form, rewrites)
    after = {server.key_path: server for server in read_servers(form, new)}
    outcomes: dict[KeyPath, ServerOutcome] = {}
    originals = []
    for one in proposals:
        server, key = one.server, one.server.key_path
        if key in done:
            command = (*one.new_words, *one.arguments)
            outcomes[key] = describe_outcome(
                server, "wrapped", command=command, suggested=one.suggested
            )
            originals.append(_original(server, after[key], text, new))
        else:
            outcomes[key] = one.outcome or describe_doubt(server)
    return RewrittenText(text=new, outcomes=tuple(outcomes.values()), originals=tuple(originals))


def _propose(server: ConfiguredServer, request: WrapRequest) -> Proposal:
    proposal = Proposal(server=server)
    try:
        outcome = _find_reason_to_stay(server, request)
        if outcome is None or server.is_wrapped:
            server_needs.refuse_unsafe_variables(server)
        if outcome is not None:
            return replace(proposal, outcome=outcome)
        package = _find_package(server, request)
        proposal = replace(proposal, package=package)
        profile = _find_profile(server, package, request)
        paths = (
            ()
            if profile and profile.arguments
            else server_needs.find_paths(server, proposal.dropped)
        )
        granted = paths if request.grant_arguments else ()
        flags = (
            *(("--profile", profile.name) if profile else ()),
            *(word for extra in (package.extra if package else ()) for word in ("--with", extra)),
            *server_needs.environment_flags(server, request.flags),
            *request.flags,
            *(word for path in granted for word in ("--read", path)),
        )
        # A suggestion of the home directory would be refused when it is typed.
        useful = [path for path in paths if not is_home(path, home_directory())]
        return replace(proposal, flags=flags, suggested=() if granted else tuple(useful))
    except UnfitError as error:
        return refuse(proposal, error)


def _find_reason_to_stay(server: ConfiguredServer, request: WrapRequest) -> ServerOutcome | None:
    if server.is_wrapped:
        # Its permissions are shown too: the file may have come with this server wrapped.
        command = server.argv[1:]
        if is_same_program(server.argv[0], request.corral):
            why = "it starts through corral already"
            return describe_outcome(server, "already", why, command=command)
        why = f"it is started by {server.argv[0]}, which is not this corral"
        hint = "look at it, unwrap it, and wrap it again"
        return describe_outcome(server, "refused", why, hint, command=command)
    if server.why:
        return describe_outcome(server, "left", server.why)
    if server.disabled and server.name not in request.names:
        hint = "name it to wrap it all the same"
        return describe_outcome(server, "left", "it is switched off", hint)
    return None


def _find_package(server: ConfiguredServer, request: WrapRequest) -> Package | None:
    args = server.args
    if args is not None and args.data is None and args.start == args.end:
        raise UnfitError("its list of arguments is empty", hint="write [], or take the key away")
    found = parse_runner(server.argv[0], server.argv[1:])
    if isinstance(found, Refusal):
        if "--allow-subprocess" in request.flags and "--allow-subprocess" in found.hint:
            return None
        raise UnfitError(found.why, hint=found.hint, leave_alone=found.leave_alone)
    if found is not None:
        try:
            parse_reference(found.reference)
        except SandboxError as error:
            raise UnfitError(error.message, hint=error.hint) from error
    return found


def _find_profile(
    server: ConfiguredServer, package: Package | None, request: WrapRequest
) -> profiles.Profile | None:
    """Return the profile for the package, unless the user names another or wants none.

    Some profiles grant the paths in the server's arguments. Those need `--grant-arguments`.
    """
    if package is None or not request.use_profiles or "--profile" in request.flags:
        return None
    found = profiles.fitting(package.bare)
    if found is not None and found.arguments and not request.grant_arguments:
        named = ", ".join(profiles.paths(server.argv[1 + package.used :])) or "none here"
        does = "change" if found.arguments == "write" else "read"
        raise UnfitError(
            f"it is there to {does} the places in its arguments ({named}), and nobody has granted"
            " them",
            hint="to grant them: --grant-arguments; to say yourself what it may: --no-profile",
        )
    if found is not None:
        server_needs.refuse_extra_code(server, package, found)
    return found


def _rewrite(text: str, form: Format, proposal: Proposal, corral: str) -> Rewrite:
    server, words = proposal.server, [form.quote(word) for word in proposal.new_words]
    command, args = server.command, server.args
    if command is None:
        raise TypeError("a server that can be wrapped has a command")
    program = form.quote(corral)
    if args is None:
        program += form.member(text, server.table, command, "args", words)
    splices = [Splice(start=command.start, end=command.end, text=program)]
    if args is not None and args.items is None:
        splices.append(Splice(start=args.start, end=args.end, text=f"[{', '.join(words)}]"))
    elif args is not None:
        splices.append(form.prepend(text, args, proposal.dropped, words))
    argv = (corral, *proposal.new_words, *proposal.arguments)
    return Rewrite(splices=tuple(splices), argv=argv)


def _original(before: ConfiguredServer, after: ConfiguredServer, text: str, new: str) -> Original:
    parts: tuple[Part, ...] = ("both",) if before.args is None else ("command", "args")
    replaced = [
        ReplacedText(
            part=part,
            before=text[slice(*find_span(before, part))],
            after=new[slice(*find_span(after, part))],
        )
        for part in parts
    ]
    return Original(key_path=before.key_path, replaced=tuple(replaced))
