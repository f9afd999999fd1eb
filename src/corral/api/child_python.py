"""Build the command line of another Python process that uses this installation of corral."""

import os

# The directory with the corral package is on `sys.path` only while the package is imported, so that
# other packages in that directory cannot replace Python's own modules. Later imports find corral's
# modules through the imported package.
FIND_CORRAL = "import sys; sys.path.insert(0, sys.argv.pop(1)); import corral; del sys.path[0]; "


def build_arguments(code: str, *words: str) -> list[str]:
    """Return the arguments that make Python run `code`. The code finds `words` in sys.argv[1:]."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return ["-I", "-c", FIND_CORRAL + code, packages, *words]
