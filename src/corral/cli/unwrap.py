"""`corral unwrap`: restore a client's configuration from before `corral wrap`."""

import os

from corral.cli import client_output, output
from corral.cli.option_parser import Flag, Options, UsageError
from corral.clients import backups, catalogue
from corral.clients.edit_file import read_client_file, unwrap_file
from corral.errors import SandboxError

SUMMARY = "restore a client's configuration from before `corral wrap`"
USAGE = (
    "usage: corral unwrap [OPTIONS] CLIENT|FILE [SERVER...]\n       corral unwrap [OPTIONS] --all"
)
FLAGS = (
    Flag(name="--all", help="restore every file in which corral has wrapped servers"),
    Flag(name="--dry-run", help="print what would change, and change nothing"),
    Flag(name="--force", help="restore the recorded lines, even if later edits are lost"),
    Flag(name="--json", help="as JSON"),
)
TEXTS = {
    "restored": "restored",
    "derived": "unwrapped",
    "forced": "restored; later edits are lost",
    "refused": "refused",
}
WOULD = {
    "restored": "would be restored",
    "derived": "would be unwrapped",
    "forced": "would be restored; later edits would be lost",
}
FIELDS = ("name", "state", "scope", "why", "hint")


def main(options: Options, rest: list[str]) -> int:
    everything = options.has("--all")
    if everything and rest:
        raise UsageError(f"--all takes no names: {rest[0]}", hint=USAGE.partition("\n")[0])
    selection = _select_all() if everything else client_output.select(rest, USAGE)
    if not selection.paths and not options.has("--json"):
        output.write_line("no servers are wrapped")
    dry_run, force = options.has("--dry-run"), options.has("--force")
    return client_output.edit_files(
        selection,
        lambda path: unwrap_file(path, names=selection.names, force=force, dry_run=dry_run),
        options,
        texts=TEXTS | WOULD if dry_run else TEXTS,
        fields=FIELDS,
        verb="unwrap",
    )


def _select_all() -> client_output.Selection:
    """Select the clients' own files and the files in which corral recorded servers, but only those
    that have wrapped servers or cannot be read.
    """
    files = [path for client in catalogue.CLIENTS for path in client_output.list_existing(client)]
    files += filter(os.path.exists, backups.list_files())
    found = {os.path.realpath(path): path for path in reversed(files) if _may_be_wrapped(path)}
    return client_output.Selection(word="--all", paths=tuple(found.values()), names=())


def _may_be_wrapped(path: str) -> bool:
    try:
        return any(server.is_wrapped for server in read_client_file(path).servers)
    except SandboxError:
        return True
