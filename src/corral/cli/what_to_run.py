"""Find out from the command line which command to run, and where its policy comes from."""

from __future__ import annotations

import os
import sys

from corral.cli.option_parser import Options, UsageError, parse
from corral.errors import EXIT_USAGE, ManifestError, SandboxError
from corral.policy.model import Source
from corral.programs.advice import may_install
from corral.record import replace
from corral.supervisor.prepare import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.clients.find_server import FoundServer
    from corral.plan.model import Plan
    from corral.policy.approvals import Request
    from corral.servers.open_reference import ReadyServer
    from corral.servers.packages.sources import InstallOptions

USAGE = (
    "usage: corral {0} [OPTIONS] [--] COMMAND [ARGUMENT...]\n"
    "       corral {0} [OPTIONS] DIRECTORY | BUNDLE.mcpb | npm:PACKAGE | pypi:PACKAGE | "
    "CLIENT:SERVER | ORG/NAME [ARGUMENT...]"
)
BUNDLES = (".mcpb", ".dxt")
RUNTIMES = ("python", "node")
"""The runtimes that packages use. For each there is a flag of the same name that chooses its
version.
"""
NOT_FOR_COMMANDS = {
    "--python": "pypi: packages",
    "--node": "npm: packages",
    "--with": "pypi: packages",
    "--allow-install-scripts": "npm: and pypi: packages",
    "--config": "bundles and registry servers",
}


def current_directory() -> str:
    try:
        return os.getcwd()
    except OSError as problem:
        raise SandboxError(
            f"the current directory cannot be found: {problem.strerror}",
            hint="start corral from a directory that exists",
        ) from problem


def replace_runner(options: Options, rest: list[str]) -> list[str]:
    """Replace `npx`, `uvx` and similar with the package that they start, as `corral wrap` does."""
    if not may_install(rest):
        _warn_of_unused_flags(options, rest)
        return rest
    from corral.cli import output
    from corral.programs.package_runners import Package, parse_runner

    found = parse_runner(rest[0], rest[1:])
    if not isinstance(found, Package):
        # corral cannot replace this runner. The run is refused later, unless the policy allows
        # subprocesses.
        return rest
    output.note(f"{rest[0]} is not started: corral installs {found.reference} and runs it directly")
    from corral.cli.run_flags import ALL

    for name, values in parse(ALL, found.flags)[0].values.items():
        options.values.setdefault(name, []).extend(values)
    return [found.reference, *rest[1 + found.used :]]


def _warn_of_unused_flags(options: Options, rest: list[str]) -> None:
    """Warn about flags that affect only packages and bundles, if the user runs a plain command."""
    unused = [name for name in NOT_FOR_COMMANDS if options.has(name)]
    if unused and rest and not _may_be_reference(rest[0]):
        from corral.cli import output

        for name in unused:
            output.warn(f"{name} has no effect: it is only for {NOT_FOR_COMMANDS[name]}")


def start_directory(rest: list[str]) -> str:
    """Return the directory that the command starts in: the server's `cwd` in a client's file, or
    else the current directory.
    """
    server = _find_configured(rest)
    return (server.cwd if server else "") or current_directory()


def refuse_other_directory(wanted: str | None, rest: list[str]) -> None:
    """Refuse the run if it would start in a directory other than `wanted`.

    `wanted` is a real path. Compare it with the real path of the start directory, because the
    client's file may name this directory through a symlink.
    """
    if wanted is None:
        return
    here = os.path.realpath(start_directory(rest))
    if os.path.normcase(here) != os.path.normcase(wanted):
        raise SandboxError(
            f"the server would start in {here}, but `corral wrap` recorded {wanted}",
            hint="a link on the way to this directory has changed; if you changed it, unwrap the"
            " server and wrap it again",
        )


def _find_configured(rest: list[str]) -> FoundServer | None:
    """If the first word of the command is CLIENT:SERVER, return this server, otherwise None."""
    if not rest or ":" not in rest[0]:
        return None
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None or reference.kind != "client":
        return None
    from corral.clients.find_server import find_server

    return find_server(reference.name)


def name_server(rest: list[str]) -> tuple[str, ...]:
    """Return the words that identify a package or a client's server, without the version. For a
    plain command, return ().
    """
    if not rest or ":" not in rest[0]:
        return ()
    from corral.servers import reference

    server = _find_configured(rest)
    words = (*server.argv, *rest[1:]) if server else rest
    return reference.name_server(words) if ":" in words[0] else ()


def plan_run(
    command: Sequence[str],
    sources: Sequence[Source],
    rest: list[str],
    *,
    protected: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Prepare the run of `command`.

    `rest` contains the words that name the server. They decide where the server starts, and
    under which name corral stores its denials, its pins and its home directory.
    """
    if (configured := _find_configured(rest)) is not None:
        from corral.cli.run_flags import ALL

        refuse_other_directory(parse(ALL, configured.flags)[0].get("--start-in"), rest)
    return prepare(
        command,
        sources,
        environment=os.environ,
        cwd=start_directory(rest),
        protected=protected,
        server=name_server(rest),
        notify=notify,
    )


def sources_and_command(options: Options, rest: list[str]) -> tuple[list[Source], list[str]]:
    """Return the sources of the policy, lowest precedence first, and the command to run."""
    options, command, found = _configured_server(options, rest)
    arguments = command[1:]
    request, command, server = _open(options, command)
    if server is not None:
        found += server.granted
        # The policy takes the values of secrets from the environment, so add the server's secrets.
        os.environ.update(server.secrets)
    typed, command = _typed_sources(options, command, arguments)
    found += typed
    if request is not None:
        found.insert(0, _ask_for_approval(request, found))
    return found, command


def sources_to_inspect(options: Options, rest: list[str]) -> tuple[list[Source], list[str]]:
    """Return the sources of the policy and the command for an inspection.

    Only the typed flags grant anything. The server's request and its flags in a client's file are
    ignored.
    """
    _, command, _ = _configured_server(options, rest)
    arguments = command[1:]
    request, command, _ = _open(options, command, complete=False)
    found, command = _typed_sources(options, command, arguments)
    if request is not None:
        manifest = request.source.manifest
        only = type(manifest)(origin=manifest.origin, directory=manifest.directory)
        found.insert(0, Source(manifest=only, trust="request", approved=True))
    return found, command


def _open(
    options: Options, command: list[str], *, complete: bool = True
) -> tuple[Request | None, list[str], ReadyServer | None]:
    """Return (request, command, server) for a command.

    If the command starts with a reference such as npm:NAME, install or unpack that server.
    Otherwise `server` is None. `request` contains the permissions that the server itself asks for,
    or is None if it asks for none.
    """
    server: ReadyServer | None = None
    if command and _may_be_reference(command[0]):
        server = open_server(options, command, complete=complete)
    if server is not None:
        return server.request, list(server.command), server
    if len(command) == 1 and _is_directory(command[0]):
        from corral.servers.server_directory import read_request

        return *read_request(command[0], granted_paths(options)), None
    return None, command, None


def _typed_sources(
    options: Options, command: list[str], arguments: list[str]
) -> tuple[list[Source], list[str]]:
    """Return the user's profile, policy and flags as sources of the policy, and the command. If no
    command was typed, take the command from the policy file.
    """
    found: list[Source] = []
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        found.append(profiles.source(profiles.load(name), arguments, os.environ))
    if (text := options.get("--policy")) is not None:
        from corral.policy.manifest import load, parse_json

        # `--policy` also accepts JSON text, so that programs need not write a file.
        manifest = parse_json(text, "--policy") if text.startswith("{") else load(text)
        found.append(Source(manifest=manifest, trust="user", approved=True))
        command = command or list(manifest.command or ())
    if options.values:
        _check_recorded_flags(options)
        found += _typed_flags(options)
    if not command:
        raise UsageError(
            "there is no command to run",
            hint="end with `-- COMMAND ...`, or with a directory, a bundle, npm:NAME, pypi:NAME or "
            "CLIENT:SERVER",
        )
    return found, command


def _check_recorded_flags(options: Options) -> None:
    """Check `--learn-until` and `--start-in`. `corral wrap` writes these flags, but users may type
    them too.
    """
    if (until := options.get("--learn-until")) is not None:
        from corral.cli.learn_time import is_over

        is_over(until)
    directory = options.get("--start-in")
    if directory is not None and not os.path.isabs(directory):
        from corral.safe_text import shell_word

        raise UsageError(
            f"--start-in: {directory!r} is not an absolute path",
            hint=f"write {shell_word(os.path.realpath(directory))}",
        )


def _typed_flags(options: Options) -> list[Source]:
    from corral.cli.run_flags import to_manifest

    try:
        flags = to_manifest(options)
    except ManifestError as error:
        error.exit_code = EXIT_USAGE
        raise
    if flags is None:
        return []
    # Paths in flags are relative to the current directory, even if the server starts in another
    # directory.
    typed = replace(flags, directory=current_directory())
    return [Source(manifest=typed, trust="user", approved=True)]


def warn_of_unset_variables(options: Options) -> None:
    """Warn about each `--env NAME` that has no effect, because the variable is not set here."""
    for name in options.all("--env"):
        if "=" not in name and name not in os.environ:
            from corral.cli import output

            output.warn(f"--env {name}: this variable is not set where corral was started")


def _configured_server(
    options: Options, rest: list[str]
) -> tuple[Options, list[str], list[Source]]:
    """If the first word is CLIENT:SERVER, return this server's options, command and sources.
    Otherwise return `options`, `rest` and no sources.

    The options combine the server's flags in the client's file with the typed `options`. The
    source sets the server's variables from the file.
    """
    server = _find_configured(rest)
    if server is None:
        return options, rest, []
    from corral.cli.run_flags import ALL
    from corral.policy.manifest import Manifest

    merged, _ = parse(ALL, server.flags)
    merged.values.pop("--report", None)
    for name, values in options.values.items():
        merged.values[name] = [*merged.values.get(name, ()), *values]
    manifest = Manifest(
        origin=server.path,
        set_values=tuple(server.env.items()) or None,
        pass_names=tuple(server.forwarded) or None,
    )
    # The client's file belongs to the user, so its variables need no approval.
    source = Source(manifest=manifest, trust="user", approved=True)
    return merged, [*server.argv, *rest[1:]], [source]


def _is_directory(word: str) -> bool:
    """Return whether a word is written as a path and is a directory."""
    # A name without a slash is a command, even if the current directory has a folder with this
    # name.
    written = word in {os.curdir, os.pardir} or os.path.dirname(word)
    return bool(written) and os.path.isdir(word)


def _may_be_reference(word: str) -> bool:
    """Return whether a word could be a reference such as npm:NAME.

    Look only at its characters, because the parser of references takes time to import.
    """
    space, slash, _ = word.partition("/")
    return ":" in word or word.lower().endswith(BUNDLES) or bool(slash and "." in space[1:])


def open_server(options: Options, rest: list[str], *, complete: bool = True) -> ReadyServer | None:
    """Install or unpack the server that the first word, such as npm:NAME, refers to. Return None if
    it is a plain command.
    """
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None:
        return None
    from corral.cli import output
    from corral.servers.open_reference import Choices, open_reference

    python = options.get("--python") or ""
    if sys.platform != "win32" and reference.kind == "pypi" and "/" in python:
        from corral.cli.chosen_python import check_chosen_python

        check_chosen_python(options, _typed_sources(options, rest, rest[1:])[0])
    choices = Choices(
        install=install_options(options),
        config=options.all("--config"),
        provided=(
            *options.all("--secret"),
            *(word.partition("=")[0] for word in options.all("--env")),
        ),
        granted=granted_paths(options),
        complete=complete,
        notify=output.note,
    )
    opened = open_reference(reference, rest[1:], choices)
    # Do not suggest the profile for a command that `corral wrap` wrote, which contains --state or
    # --no-state: `wrap` has already used the profile, unless the user did not want it.
    if complete and not any(map(options.has, ("--profile", "--policy", "--state", "--no-state"))):
        from corral.policy import profiles

        if found := profiles.fitting(f"{reference.kind}:{reference.name}"):
            output.note(f"there is a curated policy for this server: --profile {found.name}")
    return opened


def granted_paths(options: Options) -> tuple[str, ...]:
    return (*options.all("--read"), *options.all("--write"))


def install_options(options: Options) -> InstallOptions:
    """Return the options for installing a package, including the additional packages of the
    profile.
    """
    from corral.servers.packages.sources import InstallOptions

    beside: tuple[str, ...] = ()
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        beside = profiles.load(name).beside
    runtimes = {name: options.get(f"--{name}") or "" for name in RUNTIMES}
    return InstallOptions(
        scripts=options.has("--allow-install-scripts"),
        extra=(*beside, *options.all("--with")),
        runtimes={
            name: os.path.abspath(value) if os.sep in value else value
            for name, value in runtimes.items()
            if value
        },
    )


def _ask_for_approval(request: Request, users: list[Source]) -> Source:
    """Return the source of a server's request. If the request is not approved, ask the user, or
    raise PolicyError if there is no terminal.
    """
    source = request.source
    if source.approved:
        return source
    from corral.cli import approve, output
    from corral.directories import home_directory
    from corral.errors import PolicyError
    from corral.policy.requests import refuse_unapproved
    from corral.safe_text import shell_word

    try:
        refuse_unapproved([source, *users], home_directory(), current_directory())
        if request.asks:
            origin = source.manifest.origin
            raise PolicyError(
                f"{origin} asks for more than you approved: to " + "; to ".join(request.asks),
                hint=f"check this list, then run `corral approve {shell_word(origin)}`",
            )
    except PolicyError:
        if not approve.is_on_terminal():
            raise
        for line in approve.format_request(request):
            output.note(line)
        if not approve.confirm([source.manifest.directory or source.manifest.origin]):
            raise
        approve.remember(request)
        return replace(source, approved=True)
    return source  # the request only lowers limits, or the user's sources already grant all of it
