"""`corral learn`: run a server in its sandbox, watch what it asks for, and propose a policy."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence

from corral.cli import approve, output, run, run_flags, what_to_run, wrapped_servers
from corral.cli.option_parser import Flag, Options
from corral.clients import catalogue
from corral.denials.records import Denial, Denials
from corral.disk_hints import disk_hint
from corral.errors import SandboxError, UnenforceableError
from corral.learn.policy_text import policy_text
from corral.learn.proposals import Learned, Proposal
from corral.plan.model import Plan
from corral.platforms import current
from corral.policy.manifest import Manifest
from corral.policy.model import Source
from corral.programs.missing_script import describe_missing_script
from corral.safe_text import last_words, shell_word
from corral.servers.reference import parse_reference
from corral.supervisor import start
from corral.supervisor.report import find_outcome, to_json

SUMMARY = "run a server in its sandbox and propose the policy it needs"
USAGE = (
    what_to_run.USAGE.format("learn")
    + "\nexit code: 0 if the target was watched to its end, however it ended; 130 after Ctrl-C "
    "at a question"
)
FLAGS = (
    *run_flags.FLAGS,
    Flag(name="--output", value="FILE", help="write the accepted proposals as a policy"),
    Flag(name="--accept", help="accept every proposal without asking"),
    Flag(name="--json", help="print the result as JSON, after the target has ended"),
)
WATCHED = frozenset(("path", "own_files", "unix_socket", "variable"))
"""Kinds of denials that `learn` also finds among the calls that it watches. They are not printed a
second time.
"""
# This host name never exists, so a run that allows only this name has a gateway but cannot reach
# any host.
NOWHERE = "learn.invalid"


def main(options: Options, rest: list[str]) -> int:
    if sys.platform != "linux":
        raise SandboxError(
            "the file accesses of a target cannot be watched on this system",
            hint="`corral learn` needs Linux; `corral run --report FILE` lists denied names",
        )
    from corral.learn import watched_run

    if (path := options.get("--output")) is not None:
        _check_output(path)
    plan = watched_run.watched_plan(_prepare(options, what_to_run.replace_runner(options, rest)))
    if os.isatty(0):
        output.note("the server waits for a client's messages on this terminal; Ctrl-C ends it")
        if command := _format_wrap(rest):
            output.note(f"to watch it while its client uses it: {command}")
    elif watched_run.is_silent(0):
        output.note("the server waits for a client's messages on its standard input, which is open")
        output.note("add `</dev/null` to watch only its start; Ctrl-C ends it")
    used = watched_run.has_client(0)
    started = time.monotonic()
    signals = current.load().signals(run.forwarded_signals())
    restore_terminal = run.keep_terminal()
    watch = start.run(plan, (0, 1, 2), signals=signals, control=-1, denials=Denials())
    ending = watch.until_end()
    restore_terminal()
    # The run has blocked the signals that corral forwards to the server, SIGINT among them. Unblock
    # them, because Ctrl-C must work while corral asks questions.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, run.forwarded_signals())
    missing = run.find_missing(plan, ending, rest)
    learned = watched_run.find_learned(plan, watch, ending.denials, missing=missing)
    outcome = find_outcome(plan, ending)
    output.note(f"the target ended: {outcome.kind}, exit code {outcome.exit_code}")
    output.note(
        f"watched {learned.calls} calls in {time.monotonic() - started:.1f} s; "
        f"this slowed the target down by at least {learned.waited_seconds:.2f} s"
    )
    if options.has("--json"):
        output.write_json(to_json(learned))
    _print(learned, ending.denials, used=used, missing=missing)
    if not used and not missing:
        command = _format_wrap(rest) or "pipe the messages of a client into `corral learn`"
        output.note(
            f"no MCP client used the target, so it may ask for more later; to watch that: {command}"
        )
    accepted = _accept(options, learned)
    if accepted:
        output.note("accepted: " + " ".join(one.typed() for one in accepted))
        if path is not None:
            _write(path, policy_text(accepted))
        elif rest and ":" in rest[0]:
            _name_next_command(rest[0], accepted)
    return 0


def _format_wrap(rest: Sequence[str]) -> str:
    """If `rest` starts with CLIENT:SERVER, return the `wrap` command with which corral watches the
    runs that the client starts. Otherwise return "".
    """
    client, colon, server = "".join(rest[:1]).partition(":")
    known = colon and catalogue.find_client(client)
    return f"corral wrap --learn 2h {last_words(client, server)}" if known else ""


def _prepare(options: Options, rest: list[str]) -> Plan:
    """Prepare the run. If the policy allows no destination, allow NOWHERE, so that the run gets a
    gateway that sees every address the target asks for.

    If this host cannot enforce an allowlist, the run has no gateway.
    """
    sources, command = what_to_run.sources_and_command(options, rest)
    plan = what_to_run.plan_run(command, sources, rest)
    if plan.allow:
        return plan
    nowhere = Manifest(origin="corral learn", allow=(NOWHERE,))
    more = Source(manifest=nowhere, trust="user", approved=True)
    try:
        return what_to_run.plan_run(command, [more, *sources], rest)
    except UnenforceableError:
        return plan


def _accept(options: Options, learned: Learned) -> list[Proposal]:
    if options.has("--accept"):
        return list(learned.proposed)
    if options.has("--json"):
        return []
    if not approve.is_on_terminal():
        if learned.proposed:
            output.note(
                "nothing was accepted: there is no terminal to ask for confirmation; "
                "--accept accepts all"
            )
        return []
    return [one for one in learned.proposed if approve.ask(f"{one.why}: allow {one.typed()}?")]


def _name_next_command(word: str, accepted: list[Proposal]) -> None:
    """For CLIENT:SERVER, print the command that adds the accepted flags to the client's file."""
    reference = parse_reference(word)
    if reference is None or reference.kind != "client":
        return
    client, _, server = word.partition(":")
    wrapped = any(
        (one, found.name) == (client, server) for one, _, found in wrapped_servers.list_wrapped()
    )
    flags = " ".join(one.typed() for one in accepted)
    command = f"wrap {flags} {last_words(client, server)}"
    if wrapped:
        command = f"grant {shlex.quote(word)} {flags}"
    output.note(f"to keep this: corral {command}")


def _print(learned: Learned, denials: Sequence[Denial], *, used: bool, missing: str) -> None:
    if missing:
        output.note(describe_missing_script(missing))
    judged = {one.typed() for one in learned.proposed} | {what for what, _ in learned.never}
    rows = [row for row in denials if row.kind not in WATCHED]
    others = [row for row in rows if not judged & {row.allow, row.destination}]
    for row in others:
        output.note(row.describe())
    for path, reason in learned.never:
        what = shell_word(path) if path.startswith("/") else path
        output.note(f"the target asked for {what}: never proposed, {reason}")
    for one in learned.proposed:
        output.note(f"{one.why}; {one.typed()}")
    if not learned.proposed and (learned.never or others):
        output.note("there is nothing to propose; the target did not get what is listed above")
    elif not learned.proposed and not missing:
        when = "" if used else " while it started"
        output.note(f"the target got everything that it asked for{when}")


def _check_output(path: str) -> None:
    """Refuse an output file that cannot be created, before the user spends time on the run."""
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.lexists(path) or not os.access(directory, os.W_OK):
        why = "File exists" if os.path.lexists(path) else f"you cannot write in {directory}"
        raise SandboxError(f"cannot write the policy to {path}: {why}", hint="name a new file")


def _write(path: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        # An error of `open` names the file, and an error of `write` does not. So in the second case
        # remove the file, which has been created but is incomplete.
        if error.filename is None:
            os.unlink(path)
        raise SandboxError(
            f"cannot write the policy to {path}: {error.strerror}",
            hint=disk_hint(error, os.path.abspath(path), "name a new file"),
        ) from error
    output.note(f"written: {path}; `corral run --policy {shlex.quote(path)} ...` uses it")
