"""The entry point of the console script and of `python -m corral`.

Nothing is imported here, and in the package's `__init__`, that is not loaded already: the modules
of corral and of Python must not come from a directory that a project or a target can write.
"""

import os
import sys


def main() -> None:
    """Run a command with modules of Python and of corral's own installation only."""
    remove_foreign_paths()
    from corral.cli import main as run

    run()


def remove_foreign_paths() -> None:
    """Take the script's or working directory, PYTHONPATH and the user's site off `sys.path`.

    A directory stays if corral itself or the standard library is in it. What Python loads before
    this line (`encodings`, `sitecustomize`, `.pth` files) is protected by what may be granted.
    """
    standard = os.path.dirname(os.__file__)
    own = {os.path.dirname(os.path.dirname(__file__)), standard, f"{standard}{os.sep}lib-dynload"}
    foreign = {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    foreign.add(getattr(sys.modules.get("site"), "USER_SITE", None) or "")
    if not sys.flags.safe_path:
        foreign.update(sys.path[:1])
    try:
        foreign.add(os.getcwd())
    except OSError:
        pass  # the working directory was removed, so there are no modules in it
    foreign = {os.path.normpath(path) for path in foreign}
    # A relative path is one in the working directory.
    sys.path[:] = [
        path
        for path in sys.path
        if path in own or (os.path.isabs(path) and os.path.normpath(path) not in foreign)
    ]


if __name__ == "__main__":
    main()
