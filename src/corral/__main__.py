"""`python -m corral`, for where the script of that name is not on the path."""

import sys


def main() -> None:
    from corral.cli import main

    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current directory first, and a project's json.py would be imported.
        del sys.path[0]
    main()
