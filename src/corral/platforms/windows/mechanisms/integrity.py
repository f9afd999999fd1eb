"""Low integrity, for layering B: nothing that is labelled higher can be written to.

Every file, key, process and window of an ordinary program is Medium, so this is what keeps the
target from changing them. Reading up is not denied. An AppContainer is Low already: in layering A
no level is ever set, since Windows refuses both together.

The probe shows the effect of the whole token: a thread that wears it must fail to write a file of
the user's that it can read.
"""

from __future__ import annotations

import os

from corral.abi import win32_token as abi
from corral.abi.win32 import ERROR_ACCESS_DENIED, MissingFunctionError, winerror
from corral.abi.win32_files import open_itself
from corral.plan.host import Finding
from corral.platforms.windows.mechanisms import restricted_token
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place

CAPABILITY = "restricted token"
LOW = "S-1-16-4096"
LABEL = "S:(ML;;NW;;;LW)"
"""A Low object: Low subjects may write it."""


@record
class LowIntegrity:
    place: Place = "supervisor"

    def describe(self) -> str:
        return "integrity level: Low (nothing of higher integrity can be written)"


def apply(step: LowIntegrity, token: int) -> None:
    abi.set_token_integrity(token, abi.sid_of(LOW))
    verify(step, token)


def verify(_step: LowIntegrity, token: int) -> None:
    """OSError unless the level reads back: some systems take it and change nothing."""
    found = abi.sid_text(abi.token_integrity(token))
    if found != LOW:
        raise OSError(0, f"the integrity level reads back as {found}, not {LOW}")


def probe(directory: str) -> Finding:
    """Can a target be held so that it does not write? `directory` is one of the user's own."""
    try:
        with restricted_token.apply(restricted_token.RestrictedToken()) as token:
            apply(LowIntegrity(), token.value)
            evidence = _effect(token.value, directory)
    except MissingFunctionError as error:
        return _absent(str(error))
    except OSError as error:
        return _absent(error.strerror or str(error))
    return Finding(capability=CAPABILITY, status="proven", evidence=evidence)


def _absent(why: str) -> Finding:
    return Finding(capability=CAPABILITY, status="absent", evidence=why)


def _effect(token: int, directory: str) -> str:
    """OSError unless a write is denied to the token and its control, a read, is not."""
    path = os.path.join(directory, f"corral-probe-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.close(fd)
    try:
        read = _try_as(token, path, abi.FILE_READ_DATA)
        written = _try_as(token, path, abi.FILE_WRITE_DATA)
    finally:
        os.unlink(path)
    if read:
        raise OSError(0, f"the control failed: reading gave error {read}")
    if written != ERROR_ACCESS_DENIED:
        raise OSError(0, "a file of the user's could be written all the same")
    return "a thread with this token could read a file of the user's and not write it"


def _try_as(token: int, path: str, access: int) -> int:
    """Open a file as the token would; 0, or Windows' error."""
    with abi.impersonation_token(token) as worn:
        abi.ImpersonateLoggedOnUser(worn.value)
        try:
            opened = open_itself(path, access=access)
        except OSError as error:
            return winerror(error) or -1
        finally:
            _revert()
    opened.close()
    return 0


def _revert() -> None:
    """A thread that cannot take the token off again must not go on."""
    try:
        abi.RevertToSelf()
    except OSError:
        os._exit(125)
