"""What every target on Windows finds in its environment."""

from __future__ import annotations

import os
import sys

PASSED = (
    "SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "OS", "ProgramData",
    "ProgramFiles", "CommonProgramFiles", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE",
)  # fmt: skip
"""What tells of the machine and nothing of the user; several runtimes do not start without."""


def machine() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED if name in os.environ}


def interpreter() -> str:
    """Corral's own, and the one behind a virtual environment's, which would only start it."""
    return getattr(sys, "_base_executable", "") or sys.executable


def environment(private: str, *, own: bool) -> dict[str, str]:
    """`own`: the directory is ours, with a room for each purpose. In an AppContainer Windows makes
    the rooms, and wants to find the user's LOCALAPPDATA to point it there.
    """
    values = machine()
    home = f"{private}\\home" if own else private
    temporary = f"{private}\\tmp" if own else f"{private}\\Temp"
    local = f"{private}\\local" if own else os.environ.get("LOCALAPPDATA", private)
    values.update(
        USERPROFILE=home,
        HOMEDRIVE=home[:2],
        HOMEPATH=home[2:],
        APPDATA=f"{private}\\roaming" if own else private,
        LOCALAPPDATA=local,
        TEMP=temporary,
        TMP=temporary,
        USERNAME="user",
    )
    return values
