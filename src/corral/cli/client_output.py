"""What `wrap`, `unwrap` and `status` share: which files are meant, and how outcomes are told."""

from __future__ import annotations

import os

from corral.cli import option_parser as command_line
from corral.cli import output, run_flags, what_to_run
from corral.clients import catalogue
from corral.clients.edit_file import opened
from corral.errors import SandboxError
from corral.policy import profiles
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.cli.option_parser import Flag, Options
    from corral.clients.edit_file import Edit


RUN_FLAGS = (*run_flags.FLAGS, *run_flags.OUTPUTS)
MORE = {
    "--best-effort": "run even if a control cannot be enforced",
    "--allow-install-scripts": "run code while it is installed",
}


def may(flags: Sequence[str], command: Sequence[str]) -> list[str]:
    """What the flags of `run` in a configuration let a server do, in the words of `approve`."""
    from corral.policy.requests import describe_requests

    try:
        options, rest = command_line.parse(RUN_FLAGS, flags)
        if rest or not command:
            return ["nothing: it cannot start: its `--` is missing"]
        # Only its arguments matter here: what it is is not looked up.
        sources, _ = what_to_run.sources_and_command(options, [os.devnull, *command[1:]])
    except SandboxError as error:
        return [f"nothing: it cannot start: {error.message}"]
    found = [words for source in sources for words in describe_requests(source.manifest)]
    found += _filled_in(options, command)
    found += [words for flag, words in MORE.items() if options.has(flag)]
    return list(dict.fromkeys(found))


def _note(flags: Sequence[str]) -> str:
    """What the profile in these flags leaves to the user."""
    name = command_line.parse(RUN_FLAGS, flags)[0].get("--profile")
    return profiles.load(name).note if name else ""


def _filled_in(options: Options, command: Sequence[str]) -> list[str]:
    """Places in its arguments that a profile grants, and that are known to the client alone."""
    name = options.get("--profile")
    arguments = profiles.load(name).arguments if name else ""
    verb = "read and write" if arguments == "write" else "read"
    unknown = [word for word in command[1:] if "${" in word] if arguments else []
    return [f"{verb} {word}, wherever that leads" for word in unknown]


def words(flags: Sequence[Flag], options: Options, rest: list[str]) -> list[str]:
    """Words that are no options, wherever they stand; options among them are added to `options`."""
    found = []
    while rest:
        found.append(rest.pop(0))
        more, rest = command_line.parse(flags, rest)
        for name, values in more.values.items():
            options.values.setdefault(name, []).extend(values)
    return found


def files_of(word: str) -> list[str]:
    """The files that a client's name stands for and that are there, or the file itself."""
    client = catalogue.named(word)
    if client is None:
        if os.path.lexists(word) or os.sep in word or catalogue.format_of(word):
            return [word]
        raise SandboxError(
            f"{printable(word)} is neither a client that corral knows nor a file",
            hint="clients: " + ", ".join(catalogue.NAMES),
        )
    places = catalogue.own_files(client)
    found = [path for path in places if os.path.lexists(path)]
    if len(found) > 1:  # an editor's empty settings beside the file that has the servers
        found = [path for path in found if not os.path.isfile(path) or os.path.getsize(path)]
    if not found:
        raise SandboxError(
            f"{client.title} has no configuration here: looked for {', '.join(places)}",
            hint="name the file itself if it is elsewhere",
        )
    return found


def check_names(paths: Sequence[str], names: Sequence[str]) -> None:
    """Before anything is changed: a mistyped name must not leave the rest half done."""
    if not names:
        return
    known = {server.name for path in paths for server in opened(path).servers}
    missing = [name for name in names if name not in known]
    if missing:
        listed = ", ".join(map(printable, sorted(known))) or "none"
        raise SandboxError(
            f"there is no server {', '.join(map(printable, missing))} in {', '.join(paths)}",
            hint=f"there are: {listed}",
        )


def edited(
    paths: Sequence[str], work: Callable[[str], Edit]
) -> tuple[list[Edit], SandboxError | None]:
    """Every file by itself: one that cannot be changed does not hold the others."""
    edits: list[Edit] = []
    problem: SandboxError | None = None
    for path in paths:
        try:
            edits.append(work(path))
        except SandboxError as error:
            problem = problem or error
    return edits, problem


def outcome(edits: Sequence[Edit], problem: SandboxError | None) -> int:
    if problem is not None:
        raise problem
    return int(any(one.state == "refused" for edit in edits for one in edit.outcomes))


def project_note(word: str) -> None:
    """Files of the project in the current directory are nobody's but their own."""
    client = catalogue.named(word)
    if client is None:
        return
    own = {os.path.realpath(path) for path in catalogue.own_files(client)}
    for path in catalogue.project_files(client, os.curdir):
        if os.path.exists(path) and os.path.realpath(path) not in own:
            output.note(f"{path} is this project's own: name it to change it too")


def data(edit: Edit) -> dict[str, object]:
    from corral.clients.configured_servers import without_secrets
    from corral.supervisor.report import to_json

    servers: list[object] = []
    for one in edit.outcomes:
        row = to_json(one)
        if isinstance(row, dict) and row.get("command"):
            row["command"] = without_secrets(row["command"])
        servers.append(row)
    return {
        "path": edit.path,
        "real": edit.real,
        "backup": edit.backup,
        "diff": edit.diff,
        "servers": servers,
    }


def tell(edit: Edit, texts: dict[str, str], *, dry_run: bool) -> None:
    """One block a file: each server with what happened to it and why."""
    linked = f" (really {printable(edit.real)})" if edit.real != os.path.abspath(edit.path) else ""
    output.say(output.paint(printable(edit.path), "bold") + linked)
    for one in edit.outcomes:
        name = f"{printable(one.name)} ({printable(one.scope)})" if one.scope else one.name
        why = f": {printable(one.why)}" if one.why else ""
        output.say(f"  {printable(name)}  {texts[one.state]}{why}")
        if one.hint:
            output.say(f"    hint: {printable(one.hint)}")
        command = getattr(one, "command", ())
        if one.state in {"wrapped", "already"}:
            end = command.index("--") if "--" in command else len(command)
            told = may(command[1:end], command[end + 1 :])
            output.say(printable(f"    may: {'; '.join(told) or 'nothing of yours'}"))
            if one.state == "wrapped" and (note := _note(command[1:end])):
                output.say(f"    hint: {note}")
    if not edit.outcomes:
        output.say("  nothing to do")
    if dry_run and edit.diff:
        output.say("\n".join(map(printable, edit.diff.split("\n"))))
    if edit.backup:
        output.say(f"  backup: {edit.backup}")
