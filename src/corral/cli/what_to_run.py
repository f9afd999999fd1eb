"""What a command line names: the command to run, and every source of its policy."""

from __future__ import annotations

import os

from corral.cli.option_parser import UsageError
from corral.errors import SandboxError
from corral.policy.model import Source
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.policy.approvals import Request
    from corral.policy.manifest import Manifest
    from corral.servers.open_reference import ReadyServer

BUNDLES = (".mcpb", ".dxt")


def current_directory() -> str:
    try:
        return os.getcwd()
    except OSError as problem:
        raise SandboxError(
            f"the current directory cannot be found: {problem.strerror}",
            hint="start corral from a directory that exists",
        ) from problem


def start_directory(rest: list[str]) -> str:
    """Return where the command starts: here, or in the directory that a client configured."""
    if rest and ":" in rest[0]:
        from corral.clients.find_server import find_server
        from corral.servers.reference import parse_reference

        reference = parse_reference(rest[0])
        if reference is not None and reference.kind == "client":
            return find_server(reference.name).cwd or current_directory()
    return current_directory()


def sources_and_command(options: Options, rest: list[str]) -> tuple[list[Source], list[str]]:
    """Return the sources of the policy, lowest precedence first, and the command to run."""
    found: list[Source] = []
    command = rest
    request: Request | None = None
    if rest and ":" in rest[0]:
        options, command, found = _configured_server(options, rest)
    arguments = command[1:]
    server: ReadyServer | None = None
    if command and _may_be_reference(command[0]):
        server = open_server(options, command)
    if server is not None:
        request, command = server.request, list(server.command)
        found += server.granted
        os.environ.update(server.secrets)  # the policy takes secrets from there
    elif len(command) == 1 and _is_directory(command[0]):
        from corral.servers.server_directory import read_request

        request, command = read_request(command[0], granted_paths(options))
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        found.append(profiles.source(profiles.load(name), arguments, os.environ))
    if (text := options.get("--policy")) is not None:
        manifest = _load_policy(text)
        found.append(Source(manifest=manifest, trust="user", approved=True))
        command = command or list(manifest.command or ())
    if options.values:
        found += _typed_flags(options)
    if not command:
        raise UsageError("there is no command to run", hint="corral run [OPTIONS] -- COMMAND ...")
    if request is not None:
        found.insert(0, _ask_for_approval(request, found))
    return found, command


def _typed_flags(options: Options) -> list[Source]:
    from corral.cli.run_flags import to_manifest

    flags = to_manifest(options)
    if flags is None:
        return []
    # Relative paths in flags start here, wherever the server starts.
    typed = replace(flags, directory=current_directory())
    return [Source(manifest=typed, trust="user", approved=True)]


def _configured_server(
    options: Options, rest: list[str]
) -> tuple[Options, list[str], list[Source]]:
    """Return flags, command and source of a server by its name in a client's configuration.

    The client's file counts as the user's decision.
    """
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None or reference.kind != "client":
        return options, rest, []
    from corral.cli.option_parser import parse as parse_flags
    from corral.cli.run_flags import FLAGS, OUTPUTS
    from corral.clients.find_server import find_server
    from corral.policy.manifest import Manifest

    server = find_server(reference.name)
    merged, _ = parse_flags((*FLAGS, *OUTPUTS), server.flags)
    merged.values.pop("--report", None)
    for name, values in options.values.items():
        merged.values[name] = [*merged.values.get(name, ()), *values]
    manifest = Manifest(
        origin=server.path,
        set_values=tuple(server.env.items()) or None,
        pass_names=tuple(server.forwarded) or None,
    )
    source = Source(manifest=manifest, trust="user", approved=True)
    return merged, [*server.argv, *rest[1:]], [source]


def _load_policy(text: str) -> Manifest:
    """Read a policy from a file, or from JSON text, so that programs need not write a file."""
    from corral.policy.manifest import load, parse_json

    return parse_json(text, "--policy") if text.startswith("{") else load(text)


def _is_directory(word: str) -> bool:
    """Return whether a word is written as a path and is a directory.

    Clients start servers in the project that is open, and that may have a folder with the name of a
    command or of a reference such as `npm:name`.
    """
    written = word in {os.curdir, os.pardir} or os.path.dirname(word)
    return bool(written) and os.path.isdir(word)


def _may_be_reference(word: str) -> bool:
    """Check the letters only, so that a plain command imports nothing more."""
    space, slash, _ = word.partition("/")
    return ":" in word or word.lower().endswith(BUNDLES) or bool(slash and "." in space[1:])


def open_server(options: Options, rest: list[str], *, complete: bool = True) -> ReadyServer | None:
    """Open the reference in the first word; None if it is a plain command."""
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None:
        return None
    from corral.cli import output
    from corral.servers.open_reference import Choices, open_reference

    choices = Choices(
        scripts=options.has("--allow-install-scripts"),
        extra=extra_packages(options),
        config=options.all("--config"),
        provided=(
            *options.all("--secret"),
            *(word.partition("=")[0] for word in options.all("--env")),
        ),
        granted=granted_paths(options),
        complete=complete,
        notify=output.note,
    )
    return open_reference(reference, rest[1:], choices)


def granted_paths(options: Options) -> tuple[str, ...]:
    return (*options.all("--read"), *options.all("--write"))


def extra_packages(options: Options) -> tuple[str, ...]:
    """Return what is installed beside a package: from flags, or from its profile."""
    beside: tuple[str, ...] = ()
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        beside = profiles.load(name).beside
    return (*beside, *options.all("--with"))


def _ask_for_approval(request: Request, users: list[Source]) -> Source:
    """Return a server's request, approved now if there is a terminal to ask on."""
    source = request.source
    if source.approved:
        return source
    from corral.cli import approve, output
    from corral.directories import home_directory
    from corral.errors import PolicyError
    from corral.policy.requests import refuse_unapproved

    try:
        refuse_unapproved([source, *users], home_directory(), current_directory())
        if request.asks:
            origin = source.manifest.origin
            raise PolicyError(
                f"{origin} asks for what you have not approved: to " + "; to ".join(request.asks),
                hint=f"look at it and run `corral approve {origin}`",
            )
    except PolicyError:
        if not approve.is_on_terminal():
            raise
    else:
        return source  # it only tightens, or the user grants the same anyway
    for line in approve.format_request(request):
        output.note(line)
    if not approve.confirm(source.manifest.directory or source.manifest.origin):
        return source
    approve.remember(request)
    return replace(source, approved=True)
