"""Provide the entry point of the console script and of `python -m corral`.

Before `remove_foreign_paths` runs, an import could load a file that a project or a target wrote.
So this module and the package's `__init__` import only modules that Python has already loaded.
"""

import os
import sys


def main() -> None:
    """Run the command in `sys.argv`.

    Import modules only from Python and from corral's own installation.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 - a checkout can be started by any Python
        sys.exit("corral: needs Python 3.11 or newer, but this is %d.%d" % sys.version_info[:2])  # noqa: UP031
    remove_foreign_paths()
    try:
        from corral import code_cache

        code_cache.use()
        from corral.cli import main as run

        run()
    except KeyboardInterrupt:  # no command is running, because commands handle Ctrl-C themselves
        os._exit(130)


def remove_foreign_paths() -> None:
    """Remove the script's directory, the working directory, the directories in PYTHONPATH and the
    user site directory from `sys.path`.

    A directory stays if it contains corral itself or the standard library. Python loads
    `encodings`, `sitecustomize` and `.pth` files before this function runs, so this function cannot
    protect corral from them. Instead `policy/own_files.py` refuses a write grant that covers them.
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
    # Relative paths are dropped too, because Python looks for them in the working directory.
    sys.path[:] = [
        path
        for path in sys.path
        if path in own or (os.path.isabs(path) and os.path.normpath(path) not in foreign)
    ]


if __name__ == "__main__":
    main()
