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

    from corral.abi.win32 import Handle
    from corral.plan import Place

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
    groups = abi.token_groups(token, abi.TokenGroups)
    wanted = {EVERYONE, abi.sid_text(logon_sid(groups))}
    restricting = {abi.sid_text(sid) for sid, _ in abi.token_groups(token, abi.TokenRestrictedSids)}
    named = [(abi.sid_text(sid), attributes) for sid, attributes in groups]
    problem = difference(
        privileges=abi.token_privileges(token),
        restricting=restricting,
        wanted=wanted,
        groups=named,
    )
    if problem:
        raise OSError(0, f"the restricted token reads back otherwise: {problem}")


def difference(
    *,
    privileges: Sequence[str],
    restricting: set[str],
    wanted: set[str],
    groups: Iterable[tuple[str, int]],
) -> str:
    """What of a restricted token is not as it should be; empty if all is."""
    left = sorted(set(privileges) - KEPT)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        return f"it still holds {left[0]}{more}"
    if not wanted <= restricting <= wanted | {WRITE_RESTRICTED_CODE}:
        return f"its restricting SIDs are {', '.join(sorted(restricting)) or 'none'}"
    for sid, attributes in groups:
        if sid == ADMINISTRATORS and not attributes & abi.SE_GROUP_USE_FOR_DENY_ONLY:
            return "it is still an administrator's"
    return ""


def logon_sid(groups: Iterable[tuple[bytes, int]]) -> bytes:
    """The SID of this logon, which every process of the user's session has and no other."""
    for sid, attributes in groups:
        if attributes & abi.SE_GROUP_LOGON_ID == abi.SE_GROUP_LOGON_ID:
            return sid
    raise OSError(0, "the caller's token has no logon SID")


def default_dacl(user: str, logon: str) -> str:
    return f"D:(A;;GA;;;SY)(A;;GA;;;{user})(A;;GA;;;{logon})"
