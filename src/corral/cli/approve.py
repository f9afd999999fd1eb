"""`corral approve`: the user's word on what a server asks for, and on exactly that.

On a terminal it asks. Elsewhere it needs `--yes`: an approval that nobody typed is nobody's word.
"""

from __future__ import annotations

import os
import sys

from corral.cli import output
from corral.cli.option_parser import Flag, UsageError
from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.policy.approvals import Request

SUMMARY = "approve what a server asks for; list and revoke approvals"
USAGE = (
    "usage: corral approve [--yes] [--json] DIRECTORY|BUNDLE|SERVER"
    " | --list [--json] | --revoke WHAT|DIGEST"
)
FLAGS = (
    Flag(name="--list", help="show every approval in force"),
    Flag(name="--revoke", value="WHAT", help="forget the approvals of a server, or one digest"),
    Flag(name="--yes", help="approve without being asked, as it must be without a terminal"),
    Flag(name="--json", help="as JSON; without --yes it shows and changes nothing"),
)
TERMINAL = "CONIN$" if sys.platform == "win32" else "/dev/tty"
YES = frozenset({"y", "yes"})


def main(options: Options, rest: list[str]) -> int:
    asked = bool(rest) + options.has("--list") + options.has("--revoke")
    if asked != 1 or len(rest) > 1:
        raise UsageError("say one of: a directory, --list, --revoke", hint=USAGE)
    if options.has("--list"):
        return _list(as_json=options.has("--json"))
    if what := options.get("--revoke"):
        return _revoke(what, as_json=options.has("--json"))
    if not rest or not rest[0]:
        raise UsageError("there is no directory to look at", hint=USAGE)
    return _approve(options, rest)


def _approve(options: Options, rest: list[str]) -> int:
    from corral.policy import approvals
    from corral.policy.requests import describe_requests

    yes, as_json = options.has("--yes"), options.has("--json")
    request = _request(options, rest)
    manifest = request.source.manifest
    asks = [*describe_requests(manifest), *request.asks]
    approved = approvals.is_approved(request.digest)
    if not as_json:
        for line in request_lines(request):
            output.say(line)
    # Nothing asked, nothing to record: such a request needs no approval.
    if asks and not approved and (yes or (not as_json and confirm(rest[0]))):
        remember(request)
        approved = True
    if as_json:
        answer = {"directory": request.subject, "digest": request.digest, "asks": asks}
        output.json({**answer, "approved": approved})
    elif asks:
        output.say(f"approved {request.digest}" if approved else "not approved")
    return 0 if as_json or approved or not asks else 1


def _request(options: Options, rest: list[str]) -> Request:
    """What a directory, or whatever else can be run, asks for."""
    from corral.cli.what_to_run import open_reference
    from corral.policy import approvals
    from corral.policy.model import Source

    opened = open_reference(options, rest, complete=False)
    if opened is not None and opened.request is None:
        raise SandboxError(
            f"{rest[0]} asks for nothing: what it may do is yours to say",
            hint="by flags of `corral run`, a profile or a policy of your own",
        )
    if opened is not None and opened.request is not None:
        return opened.request
    found = approvals.request_for(rest[0])
    if found is None:
        names = " or ".join(approvals.NAMES)
        raise SandboxError(
            f"{rest[0]} has no {names}: there is nothing to approve",
            hint="name a server's directory, a bundle or a package that asks for something",
        )
    source = Source(manifest=found[0], trust="request")
    return approvals.Request(source=source, digest=found[1], subject=found[0].directory)


def remember(request: Request) -> None:
    """Directories are read again: what was shown may have changed meanwhile."""
    from corral.policy import approvals

    if request.source.manifest.directory:
        approvals.approve(request.source.manifest.directory, expected=request.digest)
    else:
        manifest, subject = request.source.manifest, request.subject
        approvals.remember(manifest, request.digest, subject, asks=request.asks)


def request_lines(request: Request) -> list[str]:
    """What is asked for; beside what was approved of the same server before, what is new."""
    from corral.policy import approvals
    from corral.policy.requests import describe_requests
    from corral.safe_text import printable

    manifest = request.source.manifest
    origin = printable(manifest.origin)
    asks = [*describe_requests(manifest), *request.asks]
    before = approvals.previous_approval(request.subject)
    known = before.asks if before else ()
    lines = [f"{origin} asks to:"]
    lines += [f"  {words}" + (" (new)" if before and words not in known else "") for words in asks]
    lines += [f"it no longer asks to: {words}" for words in known if words not in asks]
    if not asks:
        lines = [f"{origin} asks for nothing beyond the defaults: it needs no approval"]
    if manifest.command:
        lines.append("it starts: " + " ".join(map(printable, manifest.command)))
    return lines


def on_terminal() -> bool:
    """Whether a person can see a question and is there to answer."""
    return os.isatty(0) and os.isatty(2)


def confirm(directory: str) -> bool:
    """The answer comes from the terminal itself: in `run` standard input is the server's."""
    if not on_terminal():
        raise SandboxError(
            "there is no terminal to ask on, and an approval is your word",
            hint=f"look at what is asked, then: corral approve --yes {directory}",
        )
    sys.stdout.flush()
    sys.stderr.write("corral: approve exactly this, until the manifest changes? [y/N] ")
    sys.stderr.flush()
    try:
        # The server inherits nothing: the descriptor is closed before it exists.
        with open(TERMINAL, encoding="utf-8", errors="replace") as terminal:
            return terminal.readline().strip().lower() in YES
    except OSError as error:
        raise SandboxError(
            f"the terminal cannot be read: {error.strerror}",
            hint="`corral approve --yes` approves without a question",
        ) from error


def _list(*, as_json: bool) -> int:
    from corral.policy import approvals
    from corral.safe_text import printable
    from corral.supervisor.report import to_json

    found = approvals.list_approvals()
    if as_json:
        output.json(to_json(tuple(found)))
        return 0
    for approval in found:
        output.say(f"{approval.digest}  {approval.approved}  {printable(approval.directory)}")
        for words in approval.asks:
            output.say(f"  {words}")
    return 0


def _revoke(what: str, *, as_json: bool) -> int:
    from corral.policy import approvals
    from corral.safe_text import is_digest

    digests = [what] if is_digest(what) else []
    where = os.path.realpath(what)
    names = {where, what, f"bundle {what}", f"server {what}"}
    digests += [one.digest for one in approvals.list_approvals() if one.directory in names]
    revoked = [digest for digest in digests if approvals.revoke(digest)]
    if as_json:
        output.json({"revoked": revoked})
    for digest in () if as_json else revoked:
        output.say(f"revoked {digest}")
    if not revoked:
        raise SandboxError(f"there is no approval of {what}", hint="corral approve --list")
    return 0
