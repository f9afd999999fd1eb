"""Give the target its own window station and desktop.

The windows on one desktop can send each other messages, and the programs in one window station
share its clipboard. The target therefore gets its own desktop, in a window station that is not the
user's. It can open windows on this desktop, but may not use the station's clipboard, because all
of corral's runs in this logon session share the station. The station and the desktop are labelled
Low, because otherwise the target could not use them.

A target can still open the user's own window station, because Windows opens it to every
AppContainer. But the UI limits of the target's job (`job.py`) keep it from using the clipboard
there.

Without a window station of its own, a process in an AppContainer starts only in a session that has
the interactive window station, which contains the user's windows. Session 0, where services and SSH
run, does not have it. In all sessions corral puts the target into a window station that belongs to
the logon and contains none of the user's windows, so targets start in session 0 too. In session 0
corral itself may be in the same station, but it is never on the target's desktop.
"""

from __future__ import annotations

import os
import struct

from corral.abi import win32_token as abi
from corral.abi.win32_security import parse_sid
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.platforms.windows.files import access_list
from corral.platforms.windows.files.access_list import capability_sid
from corral.platforms.windows.mechanisms.restricted_token import LOW_LABEL, default_dacl, own_sids
from corral.record import record

ACCESS = (
    abi.DESKTOP_READOBJECTS
    | abi.DESKTOP_CREATEWINDOW
    | abi.DESKTOP_CREATEMENU
    | abi.DESKTOP_ENUMERATE
    | abi.DESKTOP_WRITEOBJECTS
    | abi.READ_CONTROL
)
"""The target's rights on its desktop. They exclude hooks, journals and switching to the desktop."""
STATION = abi.WINSTA_READATTRIBUTES | abi.WINSTA_ACCESSGLOBALATOMS | abi.READ_CONTROL
"""The target's rights on its window station. They exclude the clipboard and the screen."""
OPENED = STATION | abi.WINSTA_CREATEDESKTOP | abi.WRITE_DAC | abi.WRITE_OWNER
PREFIX = "corral-"
CAPABILITY = capability_sid("corral.desktop")
"""The capability that lets a target use the window station. It is given only to corral's
AppContainers.
"""


@record
class PrivateDesktop:
    """Creates the target's desktop. `package` is the SID of the target's AppContainer, or "" for a
    restricted token.
    """

    name = "desktop"
    package: str = ""
    stage: model.Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "its own window station and desktop, without the user's windows and clipboard"

    def apply(self, results: Results) -> None:
        results.add(create(self.package))


@record
class Desktop:
    """An open window station and desktop. `path` is the value for STARTUPINFO.lpDesktop."""

    station: abi.UserObject
    made: abi.UserObject
    path: str

    def release(self) -> None:
        self.made.close()
        self.station.close()


def create(package: str) -> Desktop:
    name = f"{PREFIX}{os.urandom(8).hex()}"
    owner = default_dacl(*own_sids())
    station = abi.open_window_station(OPENED, owner + LOW_LABEL)
    try:
        _open_to_targets(station.value)
        allowed = f"(A;;{ACCESS:#x};;;{package})" if package else ""
        made = abi.create_desktop(station.value, name, ACCESS, owner + allowed + LOW_LABEL)
    except BaseException:
        station.close()
        raise
    path = f"{abi.user_object_name(station.value)}\\{name}"
    desktop = Desktop(station=station, made=made, path=path)
    try:
        _check(desktop)
    except BaseException:
        desktop.release()
        raise
    return desktop


def _open_to_targets(station: int) -> None:
    """Let targets use a window station: add an entry for their capability to its access list, and
    label it Low. Do only what is missing, because an earlier run may have done this already.
    """
    found = abi.user_object_security(station)
    try:
        changed = access_list.grant(found, CAPABILITY, (station_entry(),))
    except access_list.Unusable as error:
        raise OSError(0, f"cannot use the window station of this logon: {error}") from error
    if changed is not None:
        abi.set_user_object_dacl(station, changed)
    if not _is_low(abi.user_object_label(station)):
        abi.set_user_object_label(station, LOW_LABEL)


def station_entry() -> bytes:
    sid = parse_sid(CAPABILITY)
    return struct.pack("<BBHI", access_list.ACCESS_ALLOWED, 0, 8 + len(sid), STATION) + sid


def _check(desktop: Desktop) -> None:
    """Raise OSError unless the desktop has its planned name, the window station has an entry for
    the target, and both are labelled Low.
    """
    name = abi.user_object_name(desktop.made.value)
    if name != desktop.path.rpartition("\\")[2]:
        raise OSError(0, f"the private desktop has the wrong name {name}")
    for what, opened in (("window station", desktop.station), ("desktop", desktop.made)):
        label = abi.user_object_label(opened.value)
        if not _is_low(label):
            raise OSError(0, f"the private {what} is not labelled Low ({label or 'no label'})")
    if not access_list.has_entry(abi.user_object_security(desktop.station.value), CAPABILITY):
        raise OSError(0, "the access list of the window station has no entry for the target")


def _is_low(label: str) -> bool:
    return "(ML;" in label and ";LW)" in label
