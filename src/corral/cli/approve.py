"""`corral approve`: approve exactly what a server asks for.

Only the user can approve, so the command asks on the terminal. Without a terminal, it requires
`--yes`. If the user or the server's manifest asks for pins, the command also stores the definitions
of the server's tools, so that corral notices when they change.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from corral.cli import output, what_to_run
from corral.cli.option_parser import Flag, Options, UsageError
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.policy import approvals, granted_paths
from corral.policy.approvals import Request
from corral.policy.model import Source
from corral.policy.path_grants import Refused, make_absolute, resolve
from corral.policy.requests import describe_requests
from corral.safe_text import is_digest
from corral.supervisor.report import to_json

SUMMARY = "approve what a server asks for; list and revoke approvals"
USAGE = """\
usage: corral approve [--yes] [--json] [--pin-tools] DIRECTORY|BUNDLE|SERVER
       corral approve [--yes] --path PATH
       corral approve [--json] --list
       corral approve [--json] --revoke SERVER|DIGEST"""
FLAGS = (
    Flag(name="--list", help="list all valid approvals (the default)"),
    Flag(
        name="--revoke",
        value="WHAT",
        help="remove all approvals of a server, or the one with this digest",
    ),
    Flag(name="--path", value="PATH", help="approve the current destination of a granted path"),
    Flag(name="--pin-tools", help="start the server once, and pin the tools that it has now"),
    Flag(name="--yes", help="approve without asking; required if there is no terminal"),
    Flag(name="--json", help="print JSON; without --yes, show the request but approve nothing"),
)
TERMINAL = "CONIN$" if sys.platform == "win32" else "/dev/tty"
YES = frozenset({"y", "yes"})


def main(options: Options, rest: list[str]) -> int:
    asked = bool(rest) + sum(map(options.has, ("--list", "--revoke", "--path")))
    if asked > 1 or len(rest) > 1:
        raise UsageError(
            "give only one of: a server, --path, --list, --revoke", hint="corral approve --help"
        )
    if path := options.get("--path"):
        return _approve_path(path, yes=options.has("--yes"))
    if options.has("--list") or not asked:
        return _list(as_json=options.has("--json"))
    if what := options.get("--revoke"):
        return _revoke(what, as_json=options.has("--json"))
    return _approve(options, rest)


def _approve(options: Options, rest: list[str]) -> int:
    yes, as_json = options.has("--yes"), options.has("--json")
    request = _request(options, rest)
    manifest = request.source.manifest
    asks = [*describe_requests(manifest), *request.asks]
    approved = approvals.is_approved(request.digest)
    if not as_json:
        output.write_lines(format_request(request))
    # A request that asks for nothing needs no approval.
    if asks and not approved and (yes or (not as_json and confirm(rest[:1]))):
        remember(request)
        approved = True
    if as_json:
        answer = {"directory": request.subject, "digest": request.digest, "asks": asks}
        output.write_json({**answer, "approved": approved})
    elif asks:
        output.write_line(f"approved {request.digest}" if approved else "not approved")
    agreed = approved or not asks
    pins = options.has("--pin-tools") or manifest.mcp.get("pins") in {"refuse", "warn"}
    if pins and agreed and (yes or not as_json):
        return _pin_tools(options, rest, yes=yes)
    return 0 if as_json or agreed else 1


def _pin_tools(options: Options, rest: list[str], *, yes: bool) -> int:
    """Start an approved server once in its sandbox, and pin the definitions of its tools."""
    from corral.cli import inspect
    from corral.policy.manifest import COMMAND_LINE, Manifest
    from corral.servers.inspection import inspect_server

    sources, command = what_to_run.sources_and_command(options, rest)
    # The server's manifest may demand pins, which do not exist yet, so this run must not check
    # them.
    own = Manifest(origin=COMMAND_LINE, limits={"timeout": inspect.TIMEOUT_MS}, mcp={"pins": "off"})
    sources.append(Source(manifest=own, trust="user", approved=True))
    plan = what_to_run.plan_run(command, sources, rest)
    found = inspect_server(plan)
    for mark in found.marks:
        output.note(f"look at {mark.describe()}")
    return inspect.pin(plan.pinned_as, found, yes=yes)


def _request(options: Options, rest: list[str]) -> Request:
    server = what_to_run.open_server(options, rest, complete=False)
    if server is not None and server.request is not None:
        return server.request
    if server is not None:
        raise SandboxError(
            f"{rest[0]} asks for nothing, so there is nothing to approve",
            hint="grant more with flags of `corral run`, a profile or your own policy",
        )
    found = approvals.request_for(rest[0])
    if found is None:
        names = " or ".join(approvals.NAMES)
        missing = f"has no {names}" if os.path.lexists(rest[0]) else "does not exist"
        raise SandboxError(
            f"{rest[0]} {missing}: there is nothing to approve",
            hint="name a server's directory, a bundle or a package that asks for something",
        )
    source = Source(manifest=found[0], trust="request")
    return approvals.Request(source=source, digest=found[1], subject=found[0].directory)


def remember(request: Request) -> None:
    """Record an approval. If the server is a directory, read its manifest again, and raise an error
    if the request has changed since the user saw it.
    """
    manifest = request.source.manifest
    if manifest.directory:
        approvals.approve(manifest.directory, expected=request.digest)
    else:
        approvals.remember(manifest, request.digest, request.subject, asks=request.asks)


def format_request(request: Request) -> list[str]:
    """List the items of a server's request, and mark those that are new since its last approval."""
    manifest = request.source.manifest
    origin = manifest.origin
    asks = [*describe_requests(manifest), *request.asks]
    before = approvals.previous_approval(request.subject)
    known = before.asks if before else ()
    lines = [f"{origin} asks to:"]
    lines += [f"  {words}" + (" (new)" if before and words not in known else "") for words in asks]
    lines += [f"it no longer asks to: {words}" for words in known if words not in asks]
    if not asks:
        lines = [f"{origin} asks for nothing beyond the defaults: it needs no approval"]
    if manifest.command:
        lines.append("it starts: " + shlex.join(manifest.command))
    return lines


def _approve_path(written: str, *, yes: bool) -> int:
    """Approve the current destination of a granted path: the file or directory to which the path
    leads now, through any symlinks in it. Ask the user first, unless `yes` is set.

    When the destination of a granted path has changed, corral refuses every run with this grant
    until the user approves the new destination.
    """
    path = make_absolute(written, what_to_run.current_directory(), home_directory())
    file = granted_paths.memory_file(os.path.realpath(home_directory()))
    try:
        before, now = granted_paths.read_memory(file).get(path, path), resolve(path)
    except Refused as error:
        raise SandboxError(str(error), hint=error.hint or None) from None
    if before == now:
        output.write_line(f"{path} still resolves to the same path: there is nothing to approve")
        return 0
    changed = {path: (before, now)}
    if yes:
        granted_paths.remember(file, {path: now})
    elif not confirm_paths(changed):
        output.write_line("not approved")
        return 1
    output.write_line(f"approved: {path} may resolve to {now}")
    return 0


def confirm_paths(changed: Mapping[str, tuple[str, str]]) -> bool:
    """Ask whether granted paths may resolve to their current destinations. If the user agrees,
    record these destinations.
    """
    for path, (before, now) in changed.items():
        output.note(granted_paths.describe_change(path, before, now))
    if not confirm(["--path", next(iter(changed))], "grant its current destination?"):
        return False
    file = granted_paths.memory_file(os.path.realpath(home_directory()))
    granted_paths.remember(file, {path: now for path, (_, now) in changed.items()})
    return True


def is_on_terminal() -> bool:
    return os.isatty(0) and os.isatty(2)


def confirm(
    words: Sequence[str], question: str = "approve exactly this, until the manifest changes?"
) -> bool:
    """Ask the user for approval on the terminal. Without a terminal, raise an error with the hint
    to type `corral approve --yes` followed by `words`.
    """
    if not is_on_terminal():
        output.flush()  # print the request first, because the hint refers to it
        raise SandboxError(
            "only you can approve this, and there is no terminal to ask for your approval",
            hint=f"read the request above, then: corral approve --yes {shlex.join(words)}",
        )
    return ask(question)


def ask(question: str) -> bool:
    try:
        # In `run`, standard input belongs to the server, so open the terminal itself. It is closed
        # again before the server starts, so that the server does not inherit it.
        with open(TERMINAL, encoding="utf-8", errors="replace") as terminal:
            if sys.platform != "win32":
                import termios

                # Discard input from before the question, because it cannot be the answer.
                termios.tcflush(terminal, termios.TCIFLUSH)
            output.prompt(f"{question} [y/N]")
            return terminal.readline().strip().lower() in YES
    except KeyboardInterrupt:
        output.end_prompt()
        raise
    except OSError as error:
        raise SandboxError(
            f"cannot read the terminal: {error.strerror}",
            hint="`corral approve --yes` approves without asking",
        ) from error


def _list(*, as_json: bool) -> int:
    found = approvals.list_approvals()
    lines = []
    for approval in found:
        lines.append(f"{approval.digest}  {approval.approved}  {approval.directory}")
        lines += [f"  {words}" for words in approval.asks]
    lines = lines or ["nothing is approved"]
    output.write_result(to_json(tuple(found)), lines, as_json=as_json)
    return 0


def _revoke(what: str, *, as_json: bool) -> int:
    digests = [what] if is_digest(what) else []
    where = os.path.realpath(what)
    names = {where, what, f"bundle {what}", f"server {what}"}
    digests += [one.digest for one in approvals.list_approvals() if one.directory in names]
    revoked = [digest for digest in digests if approvals.revoke(digest)]
    lines = [f"revoked {digest}" for digest in revoked]
    output.write_result({"revoked": revoked}, lines, as_json=as_json)
    if not revoked:
        raise SandboxError(f"there is no approval of {what}", hint="corral approve --list")
    return 0
