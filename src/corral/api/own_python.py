"""Another Python that runs this very corral, and takes nothing from where it is started."""

from __future__ import annotations

import os

# Corral is found by its place, and only corral: what is installed beside it stays behind Python's
# own modules, whatever they are called.
FIND_CORRAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); import corral; del sys.path[0]; "


def arguments(code: str, *words: str) -> list[str]:
    """For an interpreter; `code` finds `words` from sys.argv[1] on."""
    place = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return ["-I", "-c", FIND_CORRAL + code, place, *words]
