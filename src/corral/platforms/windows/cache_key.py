"""The cache key of findings: everything on a Windows host that can change what a probe sees.

Boot, build, user, session, and whether corral itself is in a job, since jobs with UI limits cannot
be nested.
"""

import os
import sys
import time

from corral.abi import win32_job, win32_token
from corral.abi import win32_process as abi
from corral.abi.win32_security import TOKEN_QUERY, format_sid

ROUNDING_SECONDS = 60
"""Two measurements of the time of boot agree within these."""


def cache_key() -> tuple[str, ...]:
    with win32_token.own_token(TOKEN_QUERY) as own:
        user = format_sid(win32_token.token_user(own.value))
        level = format_sid(win32_token.token_integrity(own.value))
    booted = time.time() - abi.GetTickCount64() / 1000
    return (
        str(round(booted / ROUNDING_SECONDS)),
        _build(),
        user,
        level,
        str(abi.session_of(os.getpid())),
        str(win32_job.is_in_job(abi.GetCurrentProcess(), None)),
        str(abi.processors()),
        sys.executable,
    )


def _build() -> str:
    if sys.platform != "win32":
        raise OSError("only Windows has a build")
    version = sys.getwindowsversion()
    return ".".join(map(str, version.platform_version or version[:3]))
