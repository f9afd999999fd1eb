"""Let the supervisor bind the target's netlink sockets. The filter denies all other binds."""

from __future__ import annotations

import sys

from corral.platforms.linux import netlink_binds, notifications
from corral.platforms.steps import unverified
from corral.record import record

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from corral.plan.model import Results, Stage


@record
class NetlinkSockets:
    """Lets `NetlinkBinds` answer the `bind` calls. `uid` and `gid` are the target's ids."""

    name = "netlink_sockets"
    uid: int
    gid: int
    stage: Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "the supervisor binds route netlink sockets, and no other socket can be bound"

    def apply(self, results: Results) -> None:
        deciders = results.get(notifications.Deciders)
        deciders.by_name["netlink_binds"] = netlink_binds.NetlinkBinds(self.uid, self.gid)
