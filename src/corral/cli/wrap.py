"""`corral wrap`: every server of a client starts through corral from now on."""

from __future__ import annotations

import os
import sys

from corral.cli import client_output, output, run_flags, what_to_run
from corral.cli.option_parser import Flag, Options, UsageError
from corral.errors import SandboxError
from corral.safe_text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.clients.edit_file import Edit
    from corral.programs.package_runners import Package

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
PATHS = ("--read", "--write", "--policy")
# Only the client can fill in variables, and it does so in the arguments of corral too; a brace
# alone begins a policy that is written out.
NO_PATHS = ("${", "{")
VARIABLES = ("--env", "--secret")
TEXTS = {"wrapped": "wrapped", "already": "unchanged", "left": "left alone", "refused": "refused"}
DRY = {**TEXTS, "wrapped": "would be wrapped"}


def main(options: Options, rest: list[str]) -> int:
    from corral.clients.corral_path import executable
    from corral.clients.edit_file import wrap_file
    from corral.clients.wrap import Wish

    words = client_output.words(FLAGS, options, rest)
    if not words:
        raise UsageError("name a client or a file", hint=USAGE)
    paths, names = client_output.files_of(words[0]), tuple(words[1:])
    dry_run = options.has("--dry-run")
    wish = Wish(
        corral=executable(options.get("--corral")),
        names=names,
        flags=tuple(_flags(options)),
        grant=options.has("--grant-arguments"),
        profiles=not options.has("--no-profile"),
        trial=tried,
        pin=pinned if options.has("--pin") and not dry_run else None,
    )
    client_output.check_names(paths, names)
    edits, problem = client_output.edited(
        paths, lambda path: wrap_file(path, wish, dry_run=dry_run)
    )
    if options.has("--json"):
        output.json([client_output.data(edit) for edit in edits])
    else:
        _tell(words[0], edits, dry_run=dry_run)
    return client_output.outcome(edits, problem)


def tried(flags: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Would `corral run` start with these here? All but the program itself is worked out."""
    from corral.cli.option_parser import parse
    from corral.supervisor.prepare import prepare

    options, _ = parse(run_flags.FLAGS, flags)
    names = [value.partition("=")[0] for name in VARIABLES for value in options.all(name)]
    for values in options.values.values():
        values[:] = [value for value in values if not value.startswith("${")]
    stand_in = [sys.executable, "-c", "pass", *arguments]
    sources, command = what_to_run.sources_and_command(options, stand_in)
    # The client will set them.
    environment = {**os.environ, **dict.fromkeys(names, "")}
    prepare(command, sources, environment=environment, cwd=what_to_run.current_directory())


def pinned(package: Package, flags: tuple[str, ...]) -> Package:
    """Installed as the client will ask for it: its exact version, with what these flags add."""
    from corral.cli.option_parser import parse as parse_flags
    from corral.record import replace
    from corral.servers.packages import package as packages
    from corral.servers.reference import parse

    reference = parse(package.reference)
    if reference is None:
        raise SandboxError(f"{package.reference} is no package")
    options, _ = parse_flags(run_flags.FLAGS, flags)
    found = packages.pinned(
        reference,
        scripts=options.has("--allow-install-scripts"),
        extra=what_to_run.extra_packages(options),
        tell=output.note,
    )
    return replace(package, version=found.version)


def _flags(options: Options) -> list[str]:
    """The user's own, with paths that mean the same wherever the client starts corral."""
    chosen = Options()
    found = []
    for flag in run_flags.FLAGS:
        for typed in options.all(flag.name):
            value = _absolute(typed) if flag.name in PATHS else typed
            chosen.values.setdefault(flag.name, []).append(value)
            found += [flag.name, value] if flag.value else [flag.name]
    if found:
        what_to_run.sources_and_command(
            chosen, [os.devnull]
        )  # mistakes are told now, not by the client
    return found


def _absolute(value: str) -> str:
    if value.startswith(NO_PATHS):
        return value
    return os.path.abspath(os.path.expanduser(value))


def _tell(word: str, edits: list[Edit], *, dry_run: bool) -> None:
    from shlex import quote  # names and places come from the file, and people copy what they see

    for edit in edits:
        client_output.tell(edit, DRY if dry_run else TEXTS, dry_run=dry_run)
        for one in edit.outcomes:
            for place in getattr(one, "suggested", ()):
                told = (
                    f"  {one.name} was configured with {place} and may not reach it; to let it:"
                    f" corral unwrap {quote(word)} {quote(one.name)}, then corral wrap --read"
                    f" {quote(place)} {quote(word)} {quote(one.name)} (or --write)"
                )
                output.say(printable(told))
    client_output.project_note(word)
