"""Provide the path functions for the system that corral runs on."""

import sys

if sys.platform == "win32":
    from corral.paths.windows import extended_path, is_inside
else:
    from corral.paths.posix import is_inside

    def extended_path(path: str) -> str:
        return path


__all__ = ["extended_path", "is_inside"]
