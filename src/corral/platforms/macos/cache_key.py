"""Build the cache key of findings from everything on a Mac that can change a probe's result."""

from __future__ import annotations

import os
import sys

from corral.abi import darwin, darwin_sandbox

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def build(node: str) -> tuple[str, ...]:
    return (str(os.geteuid()), *os.uname(), _boot(), _confined(), sys.executable, node)


def _boot() -> str:
    try:
        return darwin.sysctl_text("kern.bootsessionuuid")
    except OSError:
        return ""


def _confined() -> str:
    """Return "True" if corral itself is in a Seatbelt sandbox, "False" if it is not, or "" if macOS
    does not report this.

    In a sandbox the findings are different, because macOS refuses to apply a second one.
    """
    try:
        return str(darwin_sandbox.confined(os.getpid()))
    except OSError:
        return ""
