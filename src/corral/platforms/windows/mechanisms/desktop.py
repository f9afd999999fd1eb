"""A desktop of its own, for layering B.

Windows on one desktop can send each other messages, and a hook of one reaches all. The target's
windows, if it makes any, are on a desktop where there is nobody else. It is labelled Low, or the
target itself could not use it, and open to this user and logon alone.
"""

from __future__ import annotations

import os

from corral.abi import win32_token as abi
from corral.abi.win32_security import TOKEN_QUERY
from corral.platforms.windows.mechanisms.integrity import LABEL
from corral.platforms.windows.mechanisms.restricted_token import default_dacl, logon_sid
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.model import Place

ACCESS = (
    abi.DESKTOP_CREATEWINDOW | abi.DESKTOP_READOBJECTS | abi.DESKTOP_WRITEOBJECTS | abi.READ_CONTROL
)


@record
class PrivateDesktop:
    place: Place = "supervisor"

    def describe(self) -> str:
        return "a private desktop, so that no window of the user's can be sent messages"


class Desktop:
    """Kept open by the supervisor until the target is gone. `path` is for STARTUPINFO.lpDesktop."""

    def __init__(self, made: abi.Desktop, path: str) -> None:
        self._made = made
        self.path = path

    @property
    def value(self) -> int:
        return self._made.value

    def close(self) -> None:
        self._made.close()


def apply(step: PrivateDesktop) -> Desktop:
    with abi.own_token(TOKEN_QUERY) as own:
        user = abi.sid_text(abi.token_user(own.value))
        logon = abi.sid_text(logon_sid(abi.token_groups(own.value, abi.TokenGroups)))
    name = f"corral-{os.urandom(8).hex()}"
    made = abi.Desktop(name, ACCESS, default_dacl(user, logon) + LABEL)
    try:
        station = abi.user_object_name(abi.GetProcessWindowStation())
        desktop = Desktop(made, f"{station}\\{name}")
        verify(step, desktop)
    except BaseException:
        made.close()
        raise
    return desktop


def verify(_step: PrivateDesktop, desktop: Desktop) -> None:
    name = abi.user_object_name(desktop.value)
    if name != desktop.path.rpartition("\\")[2]:
        raise OSError(0, f"the private desktop reads back as {name}")
    label = abi.user_object_label(desktop.value)
    if "(ML;" not in label or ";LW)" not in label:
        raise OSError(0, f"the private desktop is not labelled Low but {label or 'not at all'}")
