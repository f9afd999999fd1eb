"""Build the cache key of findings from everything that can change a probe's result.

The key includes whether corral itself is in a job object. The target's job is then nested in that
job, and the UI limits of a nested job do not always work.
"""

import os
import sys

from corral.abi import win32_job, win32_token
from corral.abi import win32_process as abi
from corral.abi.win32_security import TOKEN_QUERY, format_sid


def cache_key() -> tuple[str, ...]:
    with win32_token.own_token(TOKEN_QUERY) as own:
        user = format_sid(win32_token.token_user(own.value))
        level = format_sid(win32_token.token_integrity(own.value))
    return (
        str(abi.boot_time()),
        windows_build(),
        user,
        level,
        str(abi.session_of(os.getpid())),
        str(win32_job.is_in_job(abi.GetCurrentProcess(), None)),
        str(abi.processors()),
        sys.executable,
    )


def windows_build() -> str:
    if sys.platform != "win32":
        return ""
    version = sys.getwindowsversion()
    return ".".join(map(str, version.platform_version or version[:3]))
