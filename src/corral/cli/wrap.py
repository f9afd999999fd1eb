"""`corral wrap`: rewrite a client's configuration so that its servers start through corral."""

import os
import sys
from collections.abc import Mapping, Sequence

from corral.cli import approve, client_output, output, run_flags, what_to_run
from corral.cli.option_parser import Flag, Options, parse
from corral.clients.corral_path import find_corral
from corral.clients.edit_file import FileEdit, lock_client_file, wrap_file
from corral.clients.rewrite import ServerOutcome
from corral.clients.wrap import Proposal, WrapRequest, propose, refuse
from corral.directories import home_directory
from corral.errors import SandboxError, UnchosenReadsError
from corral.programs.package_runners import Package
from corral.record import fields, replace
from corral.servers.packages import package as packages
from corral.servers.reference import parse_reference
from corral.supervisor.prepare import prepare

SUMMARY = "rewrite a client's configuration so that its servers start through corral"
USAGE = "usage: corral wrap [OPTIONS] CLIENT|FILE [SERVER...]"
OWN = (
    Flag(name="--dry-run", help="print what would change, and change nothing"),
    Flag(name="--grant-arguments", help="let servers reach the places that their arguments name"),
    Flag(name="--pin", help="install packages now, and write down their exact versions"),
    Flag(name="--no-profile", help="do not use corral's curated policies for known servers"),
    Flag(name="--corral", value="PATH", help="the corral that the client is to start"),
    Flag(name="--json", help="as JSON"),
)
FLAGS = (*OWN, *run_flags.FLAGS)
PATH_FLAGS = ("--read", "--write", "--policy")
# Only the client can fill in variables, and it does so in the arguments of corral too. A brace
# alone starts a policy as JSON text.
NOT_PATHS = ("${", "{")
# The client fills in the home directory here, which no run grants.
HOME_VARIABLES = frozenset(
    name + end for name in ("${userHome}", "${env:HOME}", "${HOME}") for end in ("", "/")
)
TEXTS = {"wrapped": "wrapped", "already": "unchanged", "left": "left alone", "refused": "refused"}


def main(options: Options, rest: list[str]) -> int:
    selection = client_output.select(FLAGS, options, rest, USAGE)
    dry_run = options.has("--dry-run")
    pin = options.has("--pin") and not dry_run
    request = WrapRequest(
        corral=find_corral(options.get("--corral")),
        names=selection.names,
        flags=tuple(_select_flags(options)),
        grant_arguments=options.has("--grant-arguments"),
        use_profiles=not options.has("--no-profile"),
    )

    def edit(path: str) -> FileEdit:
        with lock_client_file(path, dry_run=dry_run) as file:
            proposals = [
                check(one, pin=pin, dry_run=dry_run) for one in propose(file.servers, request)
            ]
            return wrap_file(file, proposals, request.corral, dry_run=dry_run)

    texts = {**TEXTS, "wrapped": "would be wrapped"} if dry_run else TEXTS
    return client_output.edit_files(
        selection, edit, options, texts=texts, fields=fields(ServerOutcome)
    )


def check(proposal: Proposal, *, pin: bool, dry_run: bool = False) -> Proposal:
    """Refuse a server that would not start on this host; pin the version of its package."""
    if proposal.outcome is not None:
        return proposal
    try:
        check_run(proposal.flags, proposal.arguments)
        if proposal.package is None:
            proposal = grant_reads(proposal, dry_run=dry_run)
        if pin and proposal.package is not None:
            return replace(proposal, package=pin_package(proposal.package, proposal.flags))
    except SandboxError as error:
        return refuse(proposal, error)
    return proposal


def grant_reads(proposal: Proposal, *, dry_run: bool) -> Proposal:
    """Add a `--read` for what the server's own files lead to, if the user agrees."""
    server = proposal.server
    set_here = {key: str(value) for key, value in server.env.items() if value is not None}
    own = {key: value for key, value in set_here.items() if "${" not in value}
    try:
        prepare_run(proposal.flags, server.argv, cwd=server.cwd, variables=own)
    except UnchosenReadsError as error:
        output.note(f"{server.name}: {error.message}")
        flags = tuple(word for path in error.reads for word in ("--read", path))
        if not dry_run and not approve.is_on_terminal():
            raise
        if not dry_run and not approve.ask(f"let it read {', '.join(error.reads)}?"):
            raise
        return replace(proposal, flags=(*proposal.flags, *flags))
    except SandboxError:
        pass  # `check_run` has judged the flags, and the client may have another PATH
    return proposal


def check_run(flags: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Prepare `corral run` with these flags as far as possible without the program itself."""
    prepare_run(flags, [sys.executable, "-c", "pass", *arguments])


def prepare_run(
    flags: tuple[str, ...],
    command: Sequence[str],
    *,
    cwd: str = "",
    variables: Mapping[str, str] = {},
) -> None:
    options, _ = parse(run_flags.FLAGS, flags)
    given = [value for name in ("--env", "--secret") for value in options.all(name)]
    for values in options.values.values():
        values[:] = [home_directory() if value in HOME_VARIABLES else value for value in values]
        values[:] = [value for value in values if not value.startswith("${")]
    sources, _ = what_to_run.sources_and_command(options, [sys.executable, *command[1:]])
    # The client will set these variables.
    environment = {**os.environ, **{value.partition("=")[0]: "" for value in given}, **variables}
    here = cwd if os.path.isdir(cwd) else what_to_run.current_directory()
    prepare(command, sources, environment=environment, cwd=here)


def pin_package(package: Package, flags: tuple[str, ...]) -> Package:
    """Install a package with what the flags add, and return it with its exact version."""
    reference = parse_reference(package.reference)
    if reference is None:
        raise SandboxError(f"{package.reference} is no package")
    options, _ = parse(run_flags.FLAGS, flags)
    pinned = packages.pin_package(
        reference,
        scripts=options.has("--allow-install-scripts"),
        extra=what_to_run.extra_packages(options),
        notify=output.note,
    )
    return replace(package, version=pinned.version)


def _select_flags(options: Options) -> list[str]:
    """Return the flags of `run`, with absolute paths, because the client may start anywhere."""
    chosen = Options()
    found = []
    for flag in run_flags.FLAGS:
        for typed in options.all(flag.name):
            value = _make_absolute(typed) if flag.name in PATH_FLAGS else typed
            chosen.values.setdefault(flag.name, []).append(value)
            found += [flag.name, value] if flag.value else [flag.name]
    if found:
        # Reports mistakes now instead of in the client.
        what_to_run.sources_and_command(chosen, [os.devnull])
    return found


def _make_absolute(value: str) -> str:
    if value.startswith(NOT_PATHS):
        return value
    return os.path.abspath(os.path.expanduser(value))
