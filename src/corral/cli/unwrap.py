"""`corral unwrap`: a client's configuration as it was before `corral wrap`."""

from __future__ import annotations

from corral.cli import client_files, output
from corral.cli.options import Flag, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.options import Options

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
    from corral.clients.editing import unwrap_file

    words = client_files.words(FLAGS, options, rest)
    if not words:
        raise UsageError("name a client or a file", hint=USAGE)
    paths, names = client_files.files_of(words[0]), tuple(words[1:])
    client_files.check_names(paths, names)
    dry_run, force = options.has("--dry-run"), options.has("--force")
    edits, problem = client_files.edited(
        paths, lambda path: unwrap_file(path, names=names, force=force, dry_run=dry_run)
    )
    if options.has("--json"):
        output.json([client_files.data(edit) for edit in edits])
    else:
        for edit in edits:
            client_files.tell(edit, TEXTS, dry_run=dry_run)
        client_files.project_note(words[0])
    return client_files.outcome(edits, problem)
