"""The key of cached findings: everything on a Mac that can change what a probe sees."""

from __future__ import annotations

import os
import sys

from corral.abi import darwin, darwin_sandbox

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def build(node: str) -> tuple[str, ...]:
    """`node` is the one that the probe of the runtimes starts."""
    return (str(os.geteuid()), *os.uname(), _boot(), _confined(), sys.executable, node)


def _boot() -> str:
    try:
        return darwin.sysctl_text("kern.bootsessionuuid")
    except OSError:
        return ""


def _confined() -> str:
    """Inside another program's sandbox no second one can be put up."""
    try:
        return str(darwin_sandbox.confined(os.getpid()))
    except OSError:
        return ""
