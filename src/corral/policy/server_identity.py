"""Compute the ServerId of a server. corral stores the server's denials, and the home directory that
the server keeps between runs, together with this ServerId.
"""

from __future__ import annotations

from corral.denials.server_id import VARIABLE, ServerId, digest_command
from corral.policy.variables import masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def identify_command(words: Sequence[str], directory: str = "") -> ServerId:
    """Return the ServerId of a command in a start directory, with masked secrets. `words` must not
    be masked yet, because the digest is made from the original command.
    """
    return ServerId(
        digest=digest_command(words),
        command=masked(words),
        directory=directory,
        has_variables=any(VARIABLE in word for word in words),
    )
