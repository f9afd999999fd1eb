"""The rules for paths of the system that corral runs on."""

import sys

if sys.platform == "win32":
    from corral.paths.windows import is_inside
else:
    from corral.paths.posix import is_inside

__all__ = ["is_inside"]
