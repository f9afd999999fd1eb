"""Where corral keeps what runs need on Windows, and a copy of its own interpreter among it."""

from __future__ import annotations

import os

from corral.directories import directories
from corral.windows import launchers, runtimes
from corral.windows.environment import interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.windows.runtimes import Store

STORE_APPS = "\\windowsapps\\"


def copies(home: str) -> Store:
    """Of the interpreter that runs corral; OSError for one that cannot be copied."""
    path = interpreter()
    if STORE_APPS in path.lower():
        raise OSError(0, "this Python came from the Store, and its files cannot be copied", path)
    program = launchers.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    return runtimes.plan(program, directory=store())


def store() -> str:
    return os.path.join(directories().cache, "store")


def journals() -> str:
    return os.path.join(directories().state, "grants")


def local(home: str) -> str:
    return os.environ.get("LOCALAPPDATA", "") or f"{home}\\AppData\\Local"
