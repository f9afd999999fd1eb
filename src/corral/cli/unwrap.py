"""`corral unwrap`: a client's configuration as it was before `corral wrap`."""

from __future__ import annotations

from corral.cli import client_output, output
from corral.cli.option_parser import Flag, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options

SUMMARY = "put a client's configuration back as it was before `corral wrap`"
USAGE = "usage: corral unwrap [OPTIONS] CLIENT|FILE [SERVER...]"
FLAGS = (
    Flag(name="--dry-run", help="print what would change, and change nothing"),
    Flag(name="--force", help="put recorded lines back over what was edited since"),
    Flag(name="--json", help="as JSON"),
)
TEXTS = {
    "restored": "as it was",
    "derived": "unwrapped",
    "forced": "as it was; what was edited since is gone",
    "refused": "refused",
}


def main(options: Options, rest: list[str]) -> int:
    from corral.clients.edit_file import unwrap_file

    words = client_output.words(FLAGS, options, rest)
    if not words:
        raise UsageError("name a client or a file", hint=USAGE)
    paths, names = client_output.files_of(words[0]), tuple(words[1:])
    client_output.check_names(paths, names)
    dry_run, force = options.has("--dry-run"), options.has("--force")
    edits, problem = client_output.edited(
        paths, lambda path: unwrap_file(path, names=names, force=force, dry_run=dry_run)
    )
    if options.has("--json"):
        output.json([client_output.data(edit) for edit in edits])
    else:
        for edit in edits:
            client_output.tell(edit, TEXTS, dry_run=dry_run)
        client_output.project_note(words[0])
    return client_output.outcome(edits, problem)
