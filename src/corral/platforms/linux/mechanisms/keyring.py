"""A session keyring of its own: the caller's is inherited by fork, and /proc/keys lists what it
holds.
"""

from __future__ import annotations

import errno
import sys

from corral.abi import linux as abi
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Place
    from corral.platforms.steps import Scene

KEYCTL_JOIN_SESSION_KEYRING = 1


@record
class Keyring:
    place: Place = "target"

    def describe(self) -> str:
        return "a new, empty session keyring"


def apply(_step: Keyring, _scene: Scene) -> None:
    try:
        abi.syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # A kernel without keyrings has none to hide. Where a container's filter forbids the call,
        # the target cannot use keys either; their descriptions are covered with /proc/keys.
        if error.errno not in {errno.ENOSYS, errno.EPERM}:
            raise
