"""A session keyring of the target's own, because fork inherits the caller's and /proc/keys lists
its keys.
"""

from __future__ import annotations

import errno

from corral.abi import linux as abi
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage

KEYCTL_JOIN_SESSION_KEYRING = 1


@record
class Keyring:
    name = "keyring"
    stage: Stage = "target"
    verify = unverified

    def describe(self) -> str:
        return "a new, empty session keyring"

    def apply(self, _results: Results) -> None:
        try:
            abi.syscall("keyctl", KEYCTL_JOIN_SESSION_KEYRING, None)
        except OSError as error:
            # A kernel without keyrings has none to hide. Where a container's filter forbids the
            # call, the target cannot use keys either; /proc/keys is masked.
            if error.errno not in {errno.ENOSYS, errno.EPERM}:
                raise
