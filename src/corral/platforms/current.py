"""Choose the backend for this operating system. No other module does this."""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.host import System
    from corral.platforms.contract import Backend


def system() -> System:
    if sys.platform == "darwin":
        return "darwin"
    return "windows" if sys.platform == "win32" else "linux"


def machine() -> str:
    if sys.platform == "win32":
        return os.environ.get("PROCESSOR_ARCHITECTURE", "").lower()
    return os.uname().machine


def load() -> Backend:
    if sys.platform == "linux":
        from corral.platforms.linux import backend

        return backend
    if sys.platform == "win32":
        from corral.platforms.windows import backend as windows

        return windows
    if sys.platform == "darwin":
        from corral.platforms.macos.backend import Macos
        from corral.platforms.macos.process_table import ProcessTable

        return Macos(ProcessTable())
    raise SandboxError(
        f"corral does not support this system: {sys.platform}",
        hint="use corral on Linux, macOS or Windows, for example in a Linux virtual machine",
    )
