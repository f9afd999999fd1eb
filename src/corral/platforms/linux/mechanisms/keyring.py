"""Give the target a new session keyring.

Otherwise the target would inherit the session keyring of the process that started corral, and could
list the keys of this keyring in /proc/keys.
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
            # The call fails on a kernel without keyrings, where the target cannot use keys anyway.
            # It also fails if a container's filter forbids it, or if the user's servers have used
            # up kernel.keys.maxkeys (200). The target then keeps the caller's keyring, but cannot
            # use its keys: the target's filter denies the system calls for keys, and a private root
            # masks /proc/keys. Without a private root, a target that may start processes can still
            # read the names of the keys in /proc/keys.
            if error.errno not in {errno.ENOSYS, errno.EPERM, errno.EDQUOT}:
                raise
