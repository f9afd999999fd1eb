"""`corral unwrap`: restore a client's configuration from before `corral wrap`."""

from corral.cli import client_output
from corral.cli.option_parser import Flag, Options
from corral.clients.edit_file import unwrap_file

SUMMARY = "restore a client's configuration from before `corral wrap`"
USAGE = "usage: corral unwrap [OPTIONS] CLIENT|FILE [SERVER...]"
FLAGS = (
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
    selection = client_output.select(rest, USAGE)
    dry_run, force = options.has("--dry-run"), options.has("--force")
    return client_output.edit_files(
        selection,
        lambda path: unwrap_file(path, names=selection.names, force=force, dry_run=dry_run),
        options,
        texts=TEXTS | WOULD if dry_run else TEXTS,
        fields=FIELDS,
        verb="unwrap",
    )
