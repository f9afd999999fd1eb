"""Restrict a target without an AppContainer: give it a restricted token of Low integrity.

corral uses this token only if the user's policy allows it. The token's only privilege is to
traverse directories, and administrators' groups in it can only deny access. The target can write an
object only if the object's access list allows this to the user, and also to Everyone or to this
logon. At Low integrity the target cannot write objects with a higher label. So it cannot change the
files, registry keys, processes and windows of ordinary programs, which are labelled Medium.

The token does not restrict reads or the network. corral does not set the integrity level of an
AppContainer, because it is Low already, and Windows refuses to change it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from corral.abi import win32_token as abi
from corral.abi.prototypes import MissingFunctionError
from corral.abi.win32 import ERROR_ACCESS_DENIED, Handle, winerror
from corral.abi.win32_files import open_itself
from corral.abi.win32_process import Process
from corral.abi.win32_security import TOKEN_QUERY, format_sid, open_token, parse_sid, token_groups
from corral.plan import model
from corral.plan.host import Finding
from corral.plan.model import Results
from corral.record import record

CAPABILITY = "restricted token"
LABEL = (CAPABILITY, "Restricted token", "available")
FLAGS = abi.DISABLE_MAX_PRIVILEGE | abi.LUA_TOKEN | abi.WRITE_RESTRICTED
FILTERED = abi.DISABLE_MAX_PRIVILEGE | abi.LUA_TOKEN
DANGEROUS = frozenset((
    "SeAssignPrimaryTokenPrivilege", "SeBackupPrivilege", "SeCreateTokenPrivilege",
    "SeDebugPrivilege", "SeImpersonatePrivilege", "SeLoadDriverPrivilege",
    "SeManageVolumePrivilege", "SeRelabelPrivilege", "SeRestorePrivilege", "SeSecurityPrivilege",
    "SeTakeOwnershipPrivilege", "SeTcbPrivilege",
))  # fmt: skip
"""Privileges that bypass access lists."""
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
"""Windows may add this SID to the restricting SIDs of a write-restricted token."""
LOW = "S-1-16-4096"
LOW_LABEL = "S:(ML;;NW;;;LW)"
"""The label of an object that processes of Low integrity may write to."""


@record
class RestrictedToken:
    name = "restricted_token"
    stage: model.Stage = "supervisor"

    def describe(self) -> str:
        return (
            "restricted token: no privileges, no administrator rights, "
            "writes only where Everyone or this logon may write"
        )

    def apply(self, results: Results) -> None:
        results.add(PrimaryToken(handle=create()))

    def verify(self, results: Results) -> None:
        with open_token(results.get(Process).handle.value) as token:
            check_restricted(token.value)


@record
class FilteredToken:
    """Removes corral's administrator rights and privileges, if it has any, from an AppContainer's
    token. Microsoft does not document whether Windows itself removes them for an AppContainer.
    """

    name = "filtered_token"
    stage: model.Stage = "supervisor"

    def describe(self) -> str:
        return "no administrator rights or privileges, even if corral has them"

    def apply(self, results: Results) -> None:
        with abi.own_token(ACCESS) as own:
            if not powers(own.value):
                return
            logon = logon_sid(_groups(own.value))
            token = abi.create_restricted_token(own.value, FILTERED, ())
        results.add(PrimaryToken(handle=token))
        _set_default_dacl(token.value, logon)

    def verify(self, results: Results) -> None:
        with open_token(results.get(Process).handle.value) as token:
            held = powers(token.value)
        if held:
            advice = "start corral without administrator rights"
            raise OSError(0, f"the target's token has {', '.join(held)}: {advice}")


def powers(token: int) -> list[str]:
    """Return the names of a token's privileges that bypass access lists, and "administrator rights"
    if the token has them.
    """
    found = sorted(DANGEROUS.intersection(abi.token_privileges(token)))
    return [*found, "administrator rights"] if is_administrators(_groups(token)) else found


def _groups(token: int) -> list[tuple[str, int]]:
    return [(format_sid(sid), bits) for sid, bits in token_groups(token, abi.TokenGroups)]


def ordinary_sids() -> tuple[str, ...]:
    """Return the SIDs that give a target access to files if corral is elevated. Return () if corral
    is not elevated.

    An elevated corral has administrator rights or similar privileges, which the target does not
    get. So the SIDs are the user and the groups in corral's own token, except Administrators and
    groups that only deny access.
    """
    with abi.own_token(TOKEN_QUERY) as own:
        if not powers(own.value):
            return ()
        groups = _groups(own.value)
        user = format_sid(abi.token_user(own.value))
    denying = abi.SE_GROUP_USE_FOR_DENY_ONLY
    kept = (sid for sid, bits in groups if sid != ADMINISTRATORS and not bits & denying)
    return (user, *kept)


def is_administrators(groups: Iterable[tuple[str, int]]) -> bool:
    return any(
        sid == ADMINISTRATORS and not bits & abi.SE_GROUP_USE_FOR_DENY_ONLY for sid, bits in groups
    )


@record
class LowIntegrity:
    name = "low_integrity"
    stage: model.Stage = "supervisor"

    def describe(self) -> str:
        return "integrity level: Low (the target cannot write objects of higher integrity)"

    def apply(self, results: Results) -> None:
        set_low(results.get(PrimaryToken).handle.value)

    def verify(self, results: Results) -> None:
        with open_token(results.get(Process).handle.value) as token:
            check_low(token.value)


@record
class PrimaryToken:
    handle: Handle

    def release(self) -> None:
        self.handle.close()


def create() -> Handle:
    with abi.own_token(ACCESS) as own:
        logon = logon_sid(_groups(own.value))
        restricting = (parse_sid(EVERYONE), parse_sid(logon))
        token = abi.create_restricted_token(own.value, FLAGS, restricting)
    try:
        _set_default_dacl(token.value, logon)
        check_restricted(token.value)
    except BaseException:
        token.close()
        raise
    return token


def _set_default_dacl(token: int, logon: str) -> None:
    """Let the target open the objects that it creates. The default access list in the caller's
    token does not always allow this, because it may name only administrators.
    """
    user = format_sid(abi.token_user(token))
    abi.set_token_default_dacl(token, default_dacl(user, logon))


def set_low(token: int) -> None:
    abi.set_token_integrity(token, parse_sid(LOW))
    check_low(token)


def check_low(token: int) -> None:
    """Raise OSError unless the integrity level is Low. Some systems accept a level without setting
    it.
    """
    found = format_sid(abi.token_integrity(token))
    if found != LOW:
        raise OSError(0, f"the integrity level reads back as {found}, not {LOW}")


def check_restricted(token: int) -> None:
    """Raise OSError if the token has administrator rights, a privilege that is not in KEPT, or the
    wrong restricting SIDs.
    """
    problem = extra_privileges(abi.token_privileges(token))
    if not problem:
        restricting = token_groups(token, abi.TokenRestrictedSids)
        problem = group_problem(_groups(token), {format_sid(sid) for sid, _ in restricting})
    if problem:
        raise OSError(0, f"the restricted token reads back differently: {problem}")


def extra_privileges(names: Sequence[str]) -> str:
    left = sorted(set(names) - KEPT)
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"it still has {left[0]}{more}" if left else ""


def group_problem(groups: Sequence[tuple[str, int]], restricting: set[str]) -> str:
    if is_administrators(groups):
        return "it still has administrator rights"
    wanted = {EVERYONE, logon_sid(groups)}
    if not wanted <= restricting <= wanted | {WRITE_RESTRICTED_CODE}:
        return f"its restricting SIDs are {', '.join(sorted(restricting)) or 'none'}"
    return ""


def logon_sid(groups: Iterable[tuple[str, int]]) -> str:
    """Return the SID of this logon, which only processes of the user's session have."""
    for sid, attributes in groups:
        if attributes & abi.SE_GROUP_LOGON_ID == abi.SE_GROUP_LOGON_ID:
            return sid
    raise OSError(0, "the caller's token has no logon SID")


def own_sids() -> tuple[str, str]:
    """Return the SIDs of this user and this logon."""
    with abi.own_token(TOKEN_QUERY) as own:
        return format_sid(abi.token_user(own.value)), logon_sid(_groups(own.value))


def default_dacl(user: str, logon: str) -> str:
    return f"D:(A;;GA;;;SY)(A;;GA;;;{user})(A;;GA;;;{logon})"


def probe(directory: str) -> Finding:
    """Check that a thread with a restricted token cannot write a file in the user's `directory`."""
    try:
        with create() as token:
            set_low(token.value)
            evidence = _try_effect(token.value, directory)
    except OSError as error:
        why = "" if isinstance(error, MissingFunctionError) else error.strerror
        return Finding(capability=CAPABILITY, status="absent", evidence=why or str(error))
    return Finding(capability=CAPABILITY, status="proven", evidence=evidence)


def _try_effect(token: int, directory: str) -> str:
    """Raise OSError if the token can write a file in `directory`, or, as a sanity check, if it
    cannot read the same file.
    """
    path = os.path.join(directory, f"corral-probe-{os.urandom(8).hex()}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        read = _try_as(token, path, abi.FILE_READ_DATA)
        written = _try_as(token, path, abi.FILE_WRITE_DATA)
    finally:
        os.unlink(path)
    if read:
        raise OSError(0, f"the sanity check failed: reading gave error {read}")
    if written != ERROR_ACCESS_DENIED:
        raise OSError(0, f"writing the user's file gave error {written} instead of access denied")
    return "a thread with this token could read the user's file, but not write it"


def _try_as(token: int, path: str, access: int) -> int:
    """Open a file with the rights of the token. Return 0, or the Windows error code."""
    with abi.impersonation_token(token) as impersonated:
        abi.ImpersonateLoggedOnUser(impersonated.value)
        try:
            opened = open_itself(path, access=access)
        except OSError as error:
            return winerror(error) or -1
        finally:
            _revert()
    opened.close()
    return 0


def _revert() -> None:
    """End the impersonation. If that fails, end this process, so that no thread keeps the token."""
    try:
        abi.RevertToSelf()
    except OSError:
        os._exit(125)
