"""The token of layering B: the user's own, with less in it.

Without an AppContainer, and only if the user's policy says that this will do, the target runs with
a restricted version of the caller's token: no privilege but the one that lets everybody walk
through directories, administrators and the like only for denying, and every *write* has to be
allowed to Everyone or to this logon as well as to the user.

It is no wall for reads: all that the user may read, the target may read. It says nothing about the
network. Those two controls are absent in layering B, and the report says so.
"""

from __future__ import annotations

from corral.abi import win32_token as abi
from corral.abi.win32_security import TOKEN_QUERY
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeVar

    from corral.abi.win32 import Handle
    from corral.plan.model import Place

    Sid = TypeVar("Sid", str, bytes)

FLAGS = abi.DISABLE_MAX_PRIVILEGE | abi.LUA_TOKEN | abi.WRITE_RESTRICTED
ACCESS = (
    TOKEN_QUERY
    | abi.TOKEN_DUPLICATE
    | abi.TOKEN_IMPERSONATE
    | abi.TOKEN_ASSIGN_PRIMARY
    | abi.TOKEN_ADJUST_DEFAULT
)
KEPT = frozenset({"SeChangeNotifyPrivilege"})
EVERYONE = "S-1-1-0"
ADMINISTRATORS = "S-1-5-32-544"
WRITE_RESTRICTED_CODE = "S-1-5-33"
"""Windows may add it by itself to the restricting SIDs of a write-restricted token."""


@record
class RestrictedToken:
    place: Place = "supervisor"

    def describe(self) -> str:
        return (
            "restricted token: no privileges, no administrator's rights, "
            "writes only where Everyone or this logon may write"
        )


def apply(_step: RestrictedToken) -> Handle:
    """A primary token for CreateProcessAsUserW, read back; the caller closes it."""
    with abi.own_token(ACCESS) as own:
        logon = logon_sid(abi.token_groups(own.value, abi.TokenGroups))
        restricting = (abi.sid_of(EVERYONE), logon)
        token = abi.create_restricted_token(own.value, FLAGS, restricting)
    try:
        # The user's default would let the target make pipes and events and then not open them.
        user = abi.sid_text(abi.token_user(token.value))
        abi.set_token_default_dacl(token.value, default_dacl(user, abi.sid_text(logon)))
        verify(_step, token.value)
    except BaseException:
        token.close()
        raise
    return token


def verify(_step: RestrictedToken, token: int) -> None:
    """OSError if the token is not what was asked for, whatever CreateRestrictedToken said."""
    problem = left_privileges(abi.token_privileges(token)) or _groups(token)
    if problem:
        raise OSError(0, f"the restricted token reads back otherwise: {problem}")


def left_privileges(names: Sequence[str]) -> str:
    left = sorted(set(names) - KEPT)
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"it still holds {left[0]}{more}" if left else ""


def _groups(token: int) -> str:
    groups = [(abi.sid_text(sid), bits) for sid, bits in abi.token_groups(token, abi.TokenGroups)]
    restricting = abi.token_groups(token, abi.TokenRestrictedSids)
    return unrestricted(groups, {abi.sid_text(sid) for sid, _ in restricting})


def unrestricted(groups: Sequence[tuple[str, int]], restricting: set[str]) -> str:
    """What of a restricted token's groups is not as it should be; empty if all is."""
    for sid, attributes in groups:
        if sid == ADMINISTRATORS and not attributes & abi.SE_GROUP_USE_FOR_DENY_ONLY:
            return "it is still an administrator's"
    wanted = {EVERYONE, logon_sid(groups)}
    if not wanted <= restricting <= wanted | {WRITE_RESTRICTED_CODE}:
        return f"its restricting SIDs are {', '.join(sorted(restricting)) or 'none'}"
    return ""


def logon_sid(groups: Iterable[tuple[Sid, int]]) -> Sid:
    """The SID of this logon, which every process of the user's session has and no other."""
    for sid, attributes in groups:
        if attributes & abi.SE_GROUP_LOGON_ID == abi.SE_GROUP_LOGON_ID:
            return sid
    raise OSError(0, "the caller's token has no logon SID")


def default_dacl(user: str, logon: str) -> str:
    return f"D:(A;;GA;;;SY)(A;;GA;;;{user})(A;;GA;;;{logon})"
