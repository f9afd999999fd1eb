"""Are resource limits held? Tried in a disposable process, by effect."""

from __future__ import annotations

import os
import sys

from corral.posix import disposable

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def probe() -> str:
    import resource

    opened = os.open("/", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 1, opened + 1))
    words = disposable.refused(lambda: os.open("/", os.O_RDONLY))
    os.close(opened)
    os.close(os.open("/", os.O_RDONLY))
    return f"a descriptor beyond RLIMIT_NOFILE is denied ({words}), one below is not"
