"""A private desktop for a target with a restricted token.

Windows on one desktop can send each other messages, and a hook of one reaches all. The target's
windows, if it makes any, are on a desktop without others. The desktop is labelled Low, because the
target could not use it otherwise, and open to this user and logon alone.
"""

from __future__ import annotations

import os

from corral.abi import win32_token as abi
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.steps import unverified
from corral.platforms.windows.mechanisms.restricted_token import LOW_LABEL, default_dacl, own_sids
from corral.record import record

ACCESS = (
    abi.DESKTOP_CREATEWINDOW | abi.DESKTOP_READOBJECTS | abi.DESKTOP_WRITEOBJECTS | abi.READ_CONTROL
)


@record
class PrivateDesktop:
    name = "desktop"
    stage: model.Stage = "supervisor"
    verify = unverified

    def describe(self) -> str:
        return "a private desktop, so that no window of the user's can be sent messages"

    def apply(self, results: Results) -> None:
        results.add(create())


@record
class Desktop:
    """A desktop that stays open until the target has ended. `path` is STARTUPINFO.lpDesktop."""

    made: abi.Desktop
    path: str

    def check(self) -> None:
        """Raise OSError unless name and label read back as they were asked for."""
        name = abi.user_object_name(self.made.value)
        if name != self.path.rpartition("\\")[2]:
            raise OSError(0, f"the private desktop reads back as {name}")
        label = abi.user_object_label(self.made.value)
        if "(ML;" not in label or ";LW)" not in label:
            raise OSError(0, f"the private desktop is not labelled Low but {label or 'not at all'}")

    def release(self) -> None:
        self.made.close()


def create() -> Desktop:
    name = f"corral-{os.urandom(8).hex()}"
    made = abi.Desktop(name, ACCESS, default_dacl(*own_sids()) + LOW_LABEL)
    try:
        station = abi.user_object_name(abi.GetProcessWindowStation())
        desktop = Desktop(made=made, path=f"{station}\\{name}")
        desktop.check()
    except BaseException:
        made.close()
        raise
    return desktop
