"""`python -m corral`, where the script of that name is not on the path."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current directory first, and a project's json.py would be ours to import.
        del sys.path[0]

    from corral.cli import main

    main()
