"""Read the `corral.toml` or `corral.json` in a server's directory, and check its command.

The server's author wrote this file, so the user has to approve the permissions that it requests.
The command may start the server's own program, or a runtime of the host that runs the server's own
script. If the command needs other files of the user, because of a link, a `#!` line or a linked
package, it is refused unless the user grants these files.
"""

import os
from collections.abc import Sequence

from corral.directories import home_directory
from corral.errors import SandboxError
from corral.platforms import current
from corral.policy.approvals import NAMES, Request, is_approved, request_for
from corral.policy.model import Grant, Source
from corral.safe_text import printable

HINT = "write [server] command = [...] into its corral.toml, or use `corral run -- COMMAND`"


def read_request(path: str, granted: Sequence[str] = ()) -> tuple[Request, list[str]]:
    """Return the request and the command of the server in a directory. Refuse a command that needs
    files outside of the directory, unless their paths are in `granted`.
    """
    found = request_for(path)
    if found is None:
        raise SandboxError(f"{printable(path)} has no {' or '.join(NAMES)}", hint=HINT)
    manifest, digest = found
    if not manifest.command:
        raise SandboxError(f"{printable(manifest.origin)} has no server.command", hint=HINT)
    command = make_absolute(manifest.command, manifest.directory)
    check_command(command, manifest.directory, granted)
    source = Source(manifest=manifest, trust="request", approved=is_approved(digest))
    return Request(source=source, digest=digest, subject=manifest.directory), command


def make_absolute(command: Sequence[str], directory: str) -> list[str]:
    """Return a command in which all paths are absolute. Relative paths are resolved against the
    server's directory.

    Three kinds of words are paths: the program, if it contains a slash; an argument with a slash,
    if it names an existing file; and the first argument that is not an option, if it names a file.
    """
    program, *rest = command
    words = [os.path.join(directory, program) if "/" in program else program]
    script = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
    for at, word in enumerate(rest):
        path = os.path.join(directory, word)
        named = ("/" in word and os.path.lexists(path)) or (at == script and os.path.isfile(path))
        words.append(path if named and not word.startswith("-") else word)
    return words


def check_command(command: Sequence[str], directory: str, granted: Sequence[str] = ()) -> None:
    """Refuse a command that needs files outside of the directory, unless they are in `granted`.
    Call this before the user is asked for approval.
    """
    current.load().resolve(
        command,
        environment=os.environ,
        cwd=os.getcwd(),
        home=os.path.realpath(home_directory()),
        subprocess=False,
        root=directory,
        grants=[
            Grant(
                path=os.path.realpath(os.path.expanduser(path)),
                access="read", device=0, inode=0, directory=True, owner=0, group=0,
            )
            for path in granted
        ],
    )  # fmt: skip
