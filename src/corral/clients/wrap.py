"""Change a configuration's text so that its servers start through corral.

`propose` returns the new start command of each server. The caller may check these proposals on the
host, and replace or `refuse` some of them. Then `wrap` writes the accepted proposals into the text.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from os.path import abspath, expanduser, isabs

from corral.clients import server_needs
from corral.clients.backups import Original, Part, ReplacedText
from corral.clients.configured_servers import IS_TWIN, ConfiguredServer, find_span, read_servers
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
from corral.paths.native import is_inside
from corral.policy import profiles
from corral.policy.home_grants import is_home
from corral.programs.package_runners import Package, Refusal, parse_runner
from corral.record import record, replace
from corral.safe_text import last_words, shell_word
from corral.servers.packages.package import why_unproven
from corral.servers.reference import parse_reference

GRANTS = ("--read", "--write")


@record
class WrapRequest:
    corral: str
    target: str = "CLIENT"  # the client or file as the user typed it; hints repeat it
    names: tuple[str, ...] = ()  # names of servers; () means all servers
    flags: tuple[str, ...] = ()
    grant_arguments: bool = False
    use_profiles: bool = True
    keep_state: bool = False


@record
class Proposal:
    """The command that would start one server: `corral run FLAGS -- PROGRAM ARGUMENTS`.

    A proposal with an `outcome` is already decided: the server is not changed.
    """

    server: ConfiguredServer
    flags: tuple[str, ...] = ()
    package: Package | None = None
    suggested: tuple[str, ...] = ()
    outcome: ServerOutcome | None = None

    @property
    def dropped(self) -> int:
        """Return the number of configured arguments that belong to the package runner."""
        return self.package.used if self.package else 0

    @property
    def new_words(self) -> tuple[str, ...]:
        """Return the words that replace the program, or the package runner and its arguments."""
        program = self.package.reference if self.package else self.server.argv[0]
        return ("run", *self.flags, "--", program)

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.server.argv[1 + self.dropped :]


def propose(servers: Iterable[ConfiguredServer], request: WrapRequest) -> list[Proposal]:
    chosen = [one for one in servers if not request.names or one.name in request.names]
    return [_propose(server, request) for server in chosen]


def refuse(proposal: Proposal, error: SandboxError) -> Proposal:
    """Return a proposal to leave the server as it is, with `error` as the reason."""
    left = isinstance(error, UnfitError) and error.leave_alone
    outcome = describe_outcome(
        proposal.server, "left" if left else "refused", error.message, error.hint
    )
    return Proposal(server=proposal.server, outcome=outcome)


def wrap(text: str, form: Format, proposals: Sequence[Proposal], corral: str) -> RewrittenText:
    """Write the accepted proposals into the text. Other servers are not changed."""
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
            server_needs.refuse_unencodable(server)
            server_needs.refuse_unsafe_variables(server)
        if outcome is not None:
            return replace(proposal, outcome=outcome)
        server_needs.refuse_one_word(server)
        package = _find_package(server, request)
        proposal = replace(proposal, package=package)
        profile = _find_profile(server, package, request)
        arguments = not (profile and profile.arguments)
        paths = server_needs.find_paths(server, proposal.dropped, arguments=arguments)
        granted = [one for one in paths if not server_needs.is_sensitive_path(one)]
        flags = (
            *(("--profile", profile.name) if profile else ()),
            *(package.flags if package else ()),
            *(("--state",) if request.keep_state else ()),
            *server_needs.environment_flags(server, request.flags, profile),
            *request.flags,
            *(word for path in granted if request.grant_arguments for word in ("--read", path)),
        )
        return replace(proposal, flags=flags, suggested=_find_ungranted(paths, flags))
    except UnfitError as error:
        return refuse(proposal, error)


def _find_ungranted(paths: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that no flag grants. Leave out the home directory, because it can never be
    granted.
    """
    granted = find_granted(flags)
    others = [path for path in paths if not is_home(path, home_directory())]
    return tuple(one for one in others if not any(is_inside(one, path) for path in granted))


def find_granted(flags: Sequence[str]) -> list[str]:
    """Return the paths that flags grant. A path that begins with a client's variable stays as it
    is.
    """
    words = [word for flag, word in pairwise(flags) if flag in GRANTS]
    return [word if word.startswith("${") else abspath(expanduser(word)) for word in words]


def _find_ungranted_arguments(server: ConfiguredServer) -> tuple[str, ...]:
    """Return the paths in a wrapped server's arguments and variables that it cannot access."""
    name = dict(pairwise(server.run_flags)).get("--profile")
    arguments = not (name in profiles.names() and profiles.load(name).arguments)
    paths = server_needs.find_paths(server, 0, arguments=arguments)
    return _find_ungranted(paths, server.run_flags)


def _find_reason_to_stay(server: ConfiguredServer, request: WrapRequest) -> ServerOutcome | None:
    if server.is_wrapped:
        # Show the server's permissions, because in a shared file another person may have wrapped
        # this server.
        command = server.argv[1:]
        if is_same_program(server.argv[0], request.corral):
            why = "it already starts through corral"
            hint = ""
            if request.flags and server.name not in request.names:
                hint = "your flags were not added: name this server to change its grants"
            paths = _find_ungranted_arguments(server) if request.grant_arguments else ()
            return describe_outcome(server, "already", why, hint, command=command, suggested=paths)
        why = f"it is started by {server.argv[0]}, which is not this corral"
        hint = (
            "check its command; if you name the server, this corral will start it, unless its "
            "lines were edited"
        )
        return describe_outcome(server, "refused", why, hint, command=command)
    if server.why and not server.understood:
        hint = (
            "change it by hand so that it starts `corral run -- COMMAND`; until then it runs"
            " without a sandbox"
        )
        hint = "give it a name of its own" if server.why == IS_TWIN else hint
        return describe_outcome(server, "refused", server.why, hint)
    if server.why:
        return describe_outcome(server, "left", server.why)
    if server.disabled and server.name not in request.names:
        hint = f"to wrap it anyway: {format_command(server, request)}"
        return describe_outcome(server, "left", "it is switched off", hint)
    return None


def format_command(server: ConfiguredServer, request: WrapRequest, *flags: str) -> str:
    """Return the command that wraps this server with these flags."""
    words = map(shell_word, ("corral", "wrap", *flags))
    return f"{' '.join(words)} {last_words(request.target, server.name)}"


def _find_package(server: ConfiguredServer, request: WrapRequest) -> Package | None:
    args = server.args
    if args is not None and args.data is None and args.start == args.end:
        raise UnfitError("its list of arguments has no value", hint="write [], or remove the key")
    found = parse_runner(server.argv[0], server.argv[1:])
    if isinstance(found, Refusal):
        if "--allow-subprocess" in request.flags and "--allow-subprocess" in found.hint:
            return None
        # The hint names only a flag of `corral run`, but the user needs a whole command here.
        flag = "--allow-subprocess"
        hint = found.hint.replace(flag, format_command(server, request, flag))
        raise UnfitError(found.why, hint=hint, leave_alone=found.leave_alone)
    if found is not None:
        try:
            reference = parse_reference(found.reference)
        except SandboxError as error:
            raise UnfitError(error.message, hint=error.hint) from error
        if reference is not None and (why := why_unproven(reference.kind)):
            hint = (
                f"try it with `corral run {shell_word(reference.text)}`, then wrap the server again"
            )
            raise UnfitError(why, hint=hint, leave_alone=True)
    return found


def _find_profile(
    server: ConfiguredServer, package: Package | None, request: WrapRequest
) -> profiles.Profile | None:
    """Return the profile for the package, unless the user names another profile or wants none."""
    if package is None or not request.use_profiles or "--profile" in request.flags:
        return None
    found = profiles.fitting(package.bare)
    if found is not None and found.arguments:
        words = server.argv[1 + package.used :]
        filled = [word for word in words if word.startswith(server_needs.PATH_VARIABLES)]
        _refuse_arguments(server, [*profiles.paths(words), *filled], found, request)
    if found is not None:
        server_needs.refuse_extra_code(server, package, found)
    return found


def _refuse_arguments(
    server: ConfiguredServer, paths: Sequence[str], profile: profiles.Profile, request: WrapRequest
) -> None:
    """Refuse to wrap a server whose profile grants the paths in its arguments, unless the user gave
    `--grant-arguments`. Always refuse it if one of these paths is a home directory or may contain
    secrets.
    """
    does = "writes to" if profile.arguments == "write" else "reads"
    home = home_directory()
    for path in map(expanduser, paths):
        why = "a home directory is never granted as a whole" if is_home(path, home) else ""
        why = why or ("it may contain secrets" if server_needs.is_sensitive_path(path) else "")
        if isabs(path) and why:
            flags = ("--no-profile", f"--{profile.arguments}", f"{home}/DIRECTORY")
            command = format_command(server, request, *flags)
            raise UnfitError(
                f"the server {does} {path}, and {why}",
                hint=f"grant the directories that it needs: {command}",
            )
    if request.grant_arguments:
        return
    command = format_command(server, request, "--grant-arguments")
    if not paths:
        raise UnfitError(
            f"the server {does} the paths in its arguments, but none of them exists",
            hint=f"add a directory to the server's arguments, or create it; then: {command}",
        )
    raise UnfitError(
        f"the server {does} the paths in its arguments ({', '.join(paths)}), which are not"
        " granted yet",
        hint=f"to grant them: {command}",
    )


def _rewrite(text: str, form: Format, proposal: Proposal, corral: str) -> Rewrite:
    server, words = proposal.server, [form.quote(word) for word in proposal.new_words]
    command, args = server.command, server.args
    if command is None:
        raise TypeError("a server that can be wrapped has a command")
    program = form.quote(corral)
    argv = (corral, *proposal.new_words, *proposal.arguments)
    if args is not None and server.joined:
        joined = form.prepend(text, args, 1 + proposal.dropped, [program, *words])
        return Rewrite(splices=(joined,), argv=argv)
    if args is None:
        program += form.member(text, server.table, command, "args", words)
    splices = [Splice(start=command.start, end=command.end, text=program)]
    if args is not None and args.items is None:
        splices.append(Splice(start=args.start, end=args.end, text=f"[{', '.join(words)}]"))
    elif args is not None:
        splices.append(form.prepend(text, args, proposal.dropped, words))
    return Rewrite(splices=tuple(splices), argv=argv)


def _original(before: ConfiguredServer, after: ConfiguredServer, text: str, new: str) -> Original:
    parts: tuple[Part, ...] = ("command", "args")
    if before.args is None or before.joined:
        parts = ("both",)
    replaced = [
        ReplacedText(
            part=part,
            before=text[slice(*find_span(before, part))],
            after=new[slice(*find_span(after, part))],
        )
        for part in parts
    ]
    return Original(key_path=before.key_path, replaced=tuple(replaced))
