"""Identify a server by its command, without the secrets in the command."""

from __future__ import annotations

from corral.formats.light import sha256
from corral.record import record
from corral.safe_text import MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VARIABLE = "${"
HOME_VARIABLES = ("${userHome}", "${env:HOME}", "${HOME}")
"""A client replaces each of these variables with the home directory."""


@record
class ServerId:
    """The identity of a server. The secrets in `command` are masked. `digest` is the hash of the
    unmasked command, so servers that differ only in secrets have different digests. `directory` is
    the real start directory if the command may mean another server in another directory. It is
    empty if the command means the same server everywhere, or if only a client knows the directory.

    If `has_variables` is true, `command` contains variables that a client replaces before it starts
    the server. When corral runs the server, its command and digest are therefore different.
    """

    digest: str
    command: tuple[str, ...]
    directory: str = ""
    has_variables: bool = False

    def describe(self) -> str:
        import shlex

        place = f" (in {self.directory})" if self.directory else ""
        return shlex.join(self.command) + place

    def is_started_by(self, wanted: ServerId) -> bool:
        """Return whether `wanted`, an entry in a client's configuration, may have started this
        server.
        """
        if self.directory not in {"", wanted.directory}:
            return False
        if self.digest and not wanted.has_variables:
            return self.digest == wanted.digest
        return len(self.command) == len(wanted.command) and all(
            want == word or (VARIABLE in want and _is_filled(want, word))
            for word, want in zip(self.command, wanted.command, strict=True)
        )


def _is_filled(want: str, word: str) -> bool:
    """Return whether a client may replace the variables in the word `want` so that it becomes
    `word`.

    The home directory is known. Any other variable may have any value.
    """
    import glob
    import re
    from fnmatch import fnmatchcase

    from corral.directories import home_directory

    if word == MASK:
        return True
    for name in HOME_VARIABLES:
        want = want.replace(name, home_directory())
    return fnmatchcase(word, "*".join(map(glob.escape, re.split(r"\$\{[^}]*\}+", want))))


def digest_command(words: Sequence[str]) -> str:
    text = "\0".join(words)
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # A project's file may contain half of a surrogate pair, although such a command cannot be
        # started.
        encoded = text.encode("utf-8", "surrogatepass")
    return sha256(encoded).hexdigest()
