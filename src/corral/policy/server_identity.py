"""Compute the identity under which corral stores a server's denials and its kept home directory."""

from __future__ import annotations

from corral.denials.server_id import VARIABLE, ServerId, digest_command
from corral.policy.variables import masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def identify_command(words: Sequence[str], directory: str = "") -> ServerId:
    """Return the identity of a command in a start directory, with its secrets masked. `words` must
    not be masked yet, because the digest is made from the original command.
    """
    return ServerId(
        digest=digest_command(words),
        command=masked(words),
        directory=directory,
        has_variables=any(VARIABLE in word for word in words),
    )
