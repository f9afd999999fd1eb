"""The command line of another Python process that runs this same installation of corral."""

import os

# Only corral is imported from its directory: packages that are installed beside it must not
# replace Python's own modules.
FIND_CORRAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); import corral; del sys.path[0]; "


def build_arguments(code: str, *words: str) -> list[str]:
    """Return arguments for an interpreter; `code` finds `words` from sys.argv[1] on."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return ["-I", "-c", FIND_CORRAL + code, packages, *words]
