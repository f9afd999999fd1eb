"""Where corral keeps what runs need on Windows, and a copy of its own interpreter among it."""

from __future__ import annotations

import os

from corral.directories import directories
from corral.errors import PolicyError
from corral.record import replace
from corral.windows import launchers, pointers, runtimes
from corral.windows.environment import interpreter
from corral.windows.paths import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.servers.program import Program
    from corral.windows.runtimes import Store

STORE_APPS = "\\windowsapps\\"


def copies(home: str) -> Store:
    """Of the interpreter that runs corral, without what is installed in it: what corral itself runs
    inside needs the standard library alone. SandboxError for one that cannot be copied.
    """
    path = interpreter()
    if STORE_APPS in path.lower():
        raise PolicyError(
            f"{path} came from the Store, and its files cannot be copied", hint=launchers.STORE
        )
    program = launchers.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    return runtimes.plan(alone(program), directory=store(), without=(pointers.SITE,))


def alone(program: Program) -> Program:
    """Without the projects that were installed into it as links."""
    rows = zip(program.reads, program.why, program.seen, strict=True)
    reads, why, seen = zip(*(row for row in rows if within(program.real, row[0])), strict=True)
    return replace(program, reads=reads, why=why, seen=seen)


def store() -> str:
    return os.path.join(directories().cache, "store")


def journals() -> str:
    return os.path.join(directories().state, "grants")


def local(home: str) -> str:
    return os.environ.get("LOCALAPPDATA", "") or f"{home}\\AppData\\Local"
