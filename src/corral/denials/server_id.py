"""Identify a server by its command, without the secrets in the command."""

from __future__ import annotations

from corral.formats.light import sha256
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "${"


@record
class ServerId:
    """The identity of a server. In `command` the secrets are masked. `digest` is the hash of the
    command with its secrets, so servers that differ only in secrets have different digests.

    `has_variables` means that a client replaces variables in the command before it starts the
    server. Then the command of a run, and so its digest, differ from these.
    """

    digest: str
    command: tuple[str, ...]
    has_variables: bool = False

    def is_started_by(self, wanted: ServerId) -> bool:
        """Return whether this server, which has run, may be the server `wanted`, which is in a
        client's file. A word of `wanted` that contains a variable matches any word.
        """
        if self.digest and not wanted.has_variables:
            return self.digest == wanted.digest
        return len(self.command) == len(wanted.command) and all(
            want == word or VARIABLE in want
            for word, want in zip(self.command, wanted.command, strict=True)
        )


def digest_command(words: Sequence[str]) -> str:
    text = "\0".join(words)
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # A command with half of a surrogate pair cannot be started, but a project's file may
        # contain such a command.
        encoded = text.encode("utf-8", "surrogatepass")
    return sha256(encoded).hexdigest()
