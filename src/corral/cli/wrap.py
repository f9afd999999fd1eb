"""`corral wrap`: rewrite a client's configuration so that its servers start through corral."""

import os
from collections.abc import Sequence

from corral.cli import approve, client_output, output, run_flags, status, what_to_run
from corral.cli.entry_flags import check_run, find_missing_file, prepare_run, select_flags
from corral.cli.inspect import TIME_LIMIT, may_pin
from corral.cli.learn_time import format_end
from corral.cli.option_parser import Flag, Options, parse
from corral.clients import catalogue
from corral.clients.configured_servers import SHAPES
from corral.clients.corral_path import find_corral
from corral.clients.edit_file import ClientFile, FileEdit, lock_client_file, move_corral, wrap_file
from corral.clients.entry_check import refuse_doubtful
from corral.clients.rewrite import ServerOutcome
from corral.clients.server_needs import (
    UnfitError,
    find_start_directory,
    refuse_elsewhere,
    refuse_shared_home,
)
from corral.clients.wrap import (
    Proposal,
    WrapRequest,
    find_granted,
    format_command,
    propose,
    refuse,
)
from corral.errors import SandboxError, UnchosenReadsError
from corral.plan.model import Plan
from corral.platforms import current
from corral.policy import pins, profiles
from corral.programs.package_runners import Package
from corral.record import fields, replace
from corral.safe_text import last_words
from corral.servers.inspection import inspect_server
from corral.servers.packages import package as packages
from corral.servers.packages.sources import InstallOptions
from corral.servers.reference import Reference, name_server, parse_reference
from corral.supervisor.prepare import prepare

SUMMARY = "rewrite a client's configuration so that its servers start through corral"
USAGE = (
    "usage: corral wrap [OPTIONS] CLIENT|FILE [SERVER...]\n"
    "       corral wrap --check [CLIENT|FILE...]"
)
OWN = (
    Flag(name="--check", help="fail if a server of this project or FILE is not wrapped"),
    Flag(name="--dry-run", help="print what would change, and change nothing"),
    Flag(
        name="--grant-arguments", help="grant each server the paths in its arguments and variables"
    ),
    Flag(
        name="--pin", help="write the exact versions of installed packages into the client's file"
    ),
    Flag(name="--pin-tools", help="start each server once, and pin its tools for `--pins refuse`"),
    Flag(
        name="--learn",
        value="DURATION",
        help="for this long, e.g. 2h, record the files that the servers do not find",
    ),
    Flag(name="--no-install", help="leave slow steps, such as installations, to the first start"),
    Flag(name="--no-profile", help="do not use corral's curated policies for known servers"),
    Flag(name="--corral", value="PATH", help="the corral program for the client to start"),
    Flag(name="--json", help="as JSON"),
)
FLAGS = (*OWN, *run_flags.FLAGS)
TEXTS = {
    "changed": "changed",
    "wrapped": "wrapped",
    "already": "unchanged",
    "left": "left alone",
    "refused": "refused",
}


def main(options: Options, rest: list[str]) -> int:
    if options.has("--check"):
        return status.check_files(rest, as_json=options.has("--json"))
    selection = client_output.select(rest, USAGE)
    dry_run = options.has("--dry-run")
    pin = options.has("--pin") and not dry_run
    install = pin or not options.has("--no-install")
    learn: tuple[str, ...] = ()
    if options.has("--pin-tools") and options.get("--pins") == "refuse":
        del options.values["--pins"]  # `pin_tools` adds this flag after it has stored pins
    if (duration := options.get("--learn")) is not None:
        learn = ("--learn-until", format_end(duration))
    request = WrapRequest(
        corral=find_corral(options.get("--corral")),
        target=selection.word,
        names=selection.names,
        flags=(*select_flags(options), *learn),
        grant_arguments=options.has("--grant-arguments"),
        use_profiles=not options.has("--no-profile"),
        keep_state=not options.has("--state") and not options.has("--no-state"),
    )

    client_output.warn_of_secrets(request.flags)
    unwalled: list[str] = []

    def edit(path: str) -> FileEdit:
        moved = move_corral(path, request.corral, request.names, dry_run=dry_run)
        with lock_client_file(path, dry_run=dry_run) as file:
            if not catalogue.find_client(selection.word):
                file.refuse_unknown_shape()
            proposals = [
                check(one, request, install=install, pin=pin, dry_run=dry_run, path=path)
                for one in propose(file.servers, request)
            ]
            if options.has("--pin-tools"):
                proposals = [pin_tools(one, dry_run=dry_run) for one in proposals]
                _note_unpinned(proposals, selection.word, file)
            proposals = [_describe_refusal(one, selection.word, file) for one in proposals]
            unwalled.extend(one.server.name for one in proposals if _is_left_unwalled(one))
            done = wrap_file(file, proposals, request.corral, dry_run=dry_run)
        if request.names or learn:
            done = _change_grants(path, done, request, dry_run=dry_run)
        return _join_edits(moved, done, dry_run=dry_run) if moved else done

    texts = {**TEXTS, "wrapped": "would be wrapped"} if dry_run else TEXTS
    again = request.flags and (request.names or learn)
    code = client_output.edit_files(
        selection, edit, options, texts=texts, fields=fields(ServerOutcome), show_diff=bool(again),
        empty=f"no servers in it (looked for {', '.join(map('.'.join, SHAPES))})",
    )  # fmt: skip
    if unwalled and not dry_run:
        output.flush()
        named = ", ".join(dict.fromkeys(unwalled))
        output.note(f"refused servers are unchanged, so they still start without walls: {named}")
    return code


def _is_left_unwalled(proposal: Proposal) -> bool:
    """Return whether the client will still start the server of this proposal without corral."""
    outcome, server = proposal.outcome, proposal.server
    if outcome is None or server.is_wrapped or server.disabled:
        return False
    return outcome.state == "refused"


def _describe_refusal(proposal: Proposal, word: str, file: ClientFile) -> Proposal:
    """If a server is already wrapped but would not start, add the reason to its outcome."""
    if proposal.outcome is None or proposal.outcome.state != "already":
        return proposal
    from corral.cli.stale_entries import find_refusal

    refused, mend = find_refusal(word, file, proposal.server)
    if not refused:
        return proposal
    why = f"it is already wrapped, but does not start: {refused}"
    return replace(proposal, outcome=replace(proposal.outcome, why=why, hint=mend))


def _change_grants(path: str, done: FileEdit, request: WrapRequest, *, dry_run: bool) -> FileEdit:
    """Add the user's flags to the flags of servers that are already wrapped."""
    before = {(one.name, one.scope) for one in done.outcomes if one.state == "already"}
    if not before or not request.flags:
        return done
    from corral.cli.grant import change_servers

    with lock_client_file(path, dry_run=dry_run) as file:
        servers = [one for one in file.servers if (one.name, one.scope) in before]
        changed = change_servers(file, servers, request.flags, dry_run=dry_run)
    return _join_edits(done, changed, dry_run=dry_run)


def _join_edits(first: FileEdit, second: FileEdit, *, dry_run: bool) -> FileEdit:
    """Combine two edits of the same file into one, with one outcome for each server.

    Use the outcome of the second edit. But if the first edit changed the server and the second one
    had nothing to change, use the outcome of the first. In a dry run do this also if the second
    edit refuses the server: it does not see the first change, because nothing was written.
    """
    same = {"already", "refused"} if dry_run else {"already"}
    outcomes = {(one.name, one.scope): one for one in first.outcomes}
    for one in second.outcomes:
        before = outcomes.get((one.name, one.scope))
        if before is None or before.state != "changed" or one.state not in same:
            outcomes[one.name, one.scope] = one
    diff = "\n".join(filter(None, (first.diff, second.diff)))
    backup = second.backup or first.backup
    return replace(second, outcomes=tuple(outcomes.values()), diff=diff, backup=backup)


def check(
    proposal: Proposal,
    request: WrapRequest,
    *,
    install: bool,
    pin: bool,
    dry_run: bool = False,
    path: str = "",
) -> Proposal:
    """Refuse a server that would not start on this host.

    With `install`, install the server's package. In a dry run, only check whether npm, which would
    install it, is missing. With `pin`, pin the package to the installed version. `path` is the file
    that configures the server.
    """
    project = catalogue.find_project(path) if path else ""
    try:
        if proposal.outcome is not None:
            is_left = proposal.outcome.state == "left" and not proposal.server.disabled
            if is_left or proposal.outcome.state == "already":
                refuse_doubtful(proposal.server, path, own=not is_left, strict=bool(project))
            return proposal
        proposal = _check_state(proposal)
        refuse_shared_home(proposal.server, proposal.flags, project)
        command: Sequence[str] = proposal.server.argv
        if proposal.package is None:
            proposal = grant_reads(proposal, dry_run=dry_run, project=project)
            proposal = _pin_directory(proposal, project)
            _note_missing_files(proposal, path)
        elif install and dry_run:
            refuse_missing_npm(proposal.package, proposal.flags)
        elif install:
            pinned, program = pin_package(proposal.package, proposal.flags)
            command = (*program, *proposal.arguments)
            proposal = replace(proposal, package=pinned) if pin else proposal
        _note_missing_paths(proposal)
        if install and not dry_run:
            rehearse(proposal, command)
    except UnchosenReadsError as error:
        flags = [word for read in error.reads for word in ("--read", read)]
        hint = f"to let it read this: {format_command(proposal.server, request, *flags)}"
        return refuse(proposal, SandboxError(error.message, hint=hint))
    except SandboxError as error:
        return refuse(proposal, error)
    return proposal


def _note_missing_files(proposal: Proposal, path: str) -> None:
    """Tell the user if a server's program or script does not exist. The server is wrapped anyway,
    because the file may be created later, or the program may be found only on the client's PATH.
    """
    server = proposal.server
    if missing := find_missing_file(server):
        output.note(
            f"{server.name} would not start: {missing}; install it, or correct it in {path}"
        )


def _note_missing_paths(proposal: Proposal) -> None:
    """Tell the user which paths in a server's arguments its profile cannot grant, because they do
    not exist.
    """
    name = parse(run_flags.FLAGS, proposal.flags)[0].get("--profile")
    if not name or not profiles.load(name).arguments:
        return
    server = proposal.server.name
    for path in profiles.missing_paths(proposal.arguments):
        why = f"{path} does not exist, so the server cannot use it"
        output.note(f"{server}: {why}; create it, and restart the client")


def _pin_directory(proposal: Proposal, project: str) -> Proposal:
    """Add the flag `--start-in` with the real path of the server's directory, so that corral
    refuses to start the server elsewhere.

    Otherwise a project could later replace the directory with a symlink to another project, and the
    server could read that project's files.
    """
    here = find_start_directory(proposal.server, project)
    if not here or "--start-in" in proposal.flags:
        return proposal
    return replace(proposal, flags=(*proposal.flags, "--start-in", os.path.realpath(here)))


def _check_state(proposal: Proposal) -> Proposal:
    """Check that the proposed flags work on this host. If they work only without `--state`, leave
    `--state` out and tell the user.
    """
    command = (proposal.new_words[-1], *proposal.arguments)
    try:
        check_run(proposal.flags, command)
    except SandboxError as error:
        flags = tuple(word for word in proposal.flags if word != "--state")
        if flags == proposal.flags:
            raise
        check_run(flags, command)
        output.note(f"{proposal.server.name}: its home directory is not kept: {error.message}")
        return replace(proposal, flags=flags)
    return proposal


def grant_reads(proposal: Proposal, *, dry_run: bool, project: str) -> Proposal:
    """If the server needs to read files that the user did not name, ask the user, and add a
    `--read` for each of them. Raise UnchosenReadsError if the user refuses or there is no terminal.
    A dry run adds the flags without asking.
    """
    server = proposal.server
    try:
        refuse_elsewhere(server, project, find_granted(proposal.flags))
        _prepare_server(proposal, server.argv)
    except UnchosenReadsError as error:
        if not dry_run and not approve.is_on_terminal():
            raise  # the caller reports the error with this server
        asks = "; without --dry-run, corral asks you whether to allow this" if dry_run else ""
        output.note(f"{server.name}: {error.message}{asks}")
        flags = tuple(word for path in error.reads for word in ("--read", path))
        if not dry_run and not approve.ask(f"let {server.name} read {', '.join(error.reads)}?"):
            raise
        return replace(proposal, flags=(*proposal.flags, *flags))
    except UnfitError:
        raise
    except SandboxError:
        pass  # `check_run` accepted the flags, so perhaps the program is only on the client's PATH
    return proposal


def pin_tools(proposal: Proposal, *, dry_run: bool) -> Proposal:
    """Start a server in its sandbox, and store the definitions of its tools as pins. If the command
    has other pins, ask the user first, or refuse the server. A dry run does not start it.
    """
    if proposal.outcome is not None:
        return proposal
    flags, server = proposal.flags, proposal.server
    if not dry_run:
        options, _ = parse(run_flags.FLAGS, flags)
        rest = [proposal.new_words[-1], *proposal.arguments]
        try:
            sources, command = what_to_run.sources_and_command(options, rest)
            plan = prepare(
                command,
                [TIME_LIMIT, *sources],
                environment={**os.environ, **server.env},
                cwd=server.cwd or what_to_run.current_directory(),
                server=what_to_run.name_server(rest),
            )
            found = inspect_server(plan)
            if not may_pin(plan.pinned_as, found):
                raise SandboxError(
                    "its tools differ from those that are pinned for the same command",
                    hint=f"to pin these instead: {pins.format_pinning(plan.pinned_as)}",
                )
            pins.keep_pins(plan.pinned_as, found.pins())
        except SandboxError as error:
            return refuse(proposal, error)
        for mark in found.marks:
            output.note(f"{server.name}: look at {mark.describe()}")
    return proposal if "--pins" in flags else replace(proposal, flags=(*flags, "--pins", "refuse"))


def _note_unpinned(proposals: Sequence[Proposal], word: str, file: ClientFile) -> None:
    """Tell the user how to pin the tools of servers that were wrapped before. `wrap` does not start
    them, because another person may have chosen their flags.
    """
    from corral.cli.stale_entries import format_pinning

    for one in proposals:
        server = one.server
        if one.outcome is None or one.outcome.state != "already" or not server.inner_argv:
            continue
        compares = "--pins" in server.run_flags
        if compares and pins.find_pinned(name_server(server.inner_argv)) is not None:
            continue
        command = format_pinning(word, file.content.path, server)
        if not compares:
            command += f" && corral grant --pins refuse {last_words(f'{word}:{server.name}')}"
        name = server.name
        output.note(
            f"{name} is already wrapped, so its tools were not pinned; to pin them: {command}"
        )


def rehearse(proposal: Proposal, command: Sequence[str]) -> None:
    """Do the one-time work of a server's first run now, because clients do not wait long for a
    server to start. On Windows, for example, this work copies the runtime into corral's store.
    """
    try:
        plan = _prepare_server(proposal, command)
    except SandboxError:
        return  # perhaps the program is only on the client's PATH
    current.load().rehearse(plan)


def _prepare_server(proposal: Proposal, command: Sequence[str]) -> Plan:
    server = proposal.server
    own = {key: value for key, value in server.env.items() if "${" not in value}
    return prepare_run(proposal.flags, command, cwd=server.cwd, variables=own)


def refuse_missing_npm(package: Package, flags: tuple[str, ...]) -> None:
    """Raise an error if corral would need npm to install the package, and npm is missing."""
    packages.refuse_missing_npm(*_parse_package(package, flags))


def _parse_package(package: Package, flags: tuple[str, ...]) -> tuple[Reference, InstallOptions]:
    reference = parse_reference(package.reference)
    if reference is None:
        raise SandboxError(f"{package.reference} is not a package")
    options, _ = parse(run_flags.FLAGS, flags)
    return reference, what_to_run.install_options(options)


def pin_package(package: Package, flags: tuple[str, ...]) -> tuple[Package, list[str]]:
    """Install a package, together with the packages that the flags add. Return the package with its
    exact version, and its command.
    """
    reference, how = _parse_package(package, flags)
    pinned = packages.pin_package(reference, how, output.note)
    return replace(package, version=pinned.version), pinned.argv()
