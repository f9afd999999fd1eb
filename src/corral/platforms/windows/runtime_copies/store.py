r"""The store: copies of runtimes and servers that AppContainers can read.

node's installer and a user's Python leave nothing that an AppContainer may read, and their access
lists are not ours to change (Program Files), or lie where entries for AppContainers break other
programs (AppData). So what a run needs is copied, never linked, into a directory of corral's own.
The directory is empty when it gets its entry, for a capability of its own; what is copied into it
inherits that, and costs nothing more.

A copy is named after all that it was made from: the source, the name, size and time of every file.
A file beside it says when it is whole, and a mutex is held until then. Times are kept, or every
start would compile Python's modules again. Links are refused: a copy of one leads out of the store,
and node only starts inside with `--preserve-symlinks`, under which packages that are linked
together no longer find each other.

For who composes a plan:
    step = runtimes.plan(program, directory=..., granted=policy.grants)
    step.sids belong into app_container.Profile.capabilities;
    step.program is what is to be started in the AppContainer, instead of `program`.
"""

from __future__ import annotations

import ntpath
import os

from corral.abi import win32_files, win32_security
from corral.errors import PolicyError
from corral.paths.windows import is_inside
from corral.platforms.windows.files import access_list, remove_directory
from corral.platforms.windows.files import granted_tree as trees
from corral.platforms.windows.files.access_list import grant_sid
from corral.platforms.windows.runtime_copies import copy as staging
from corral.platforms.windows.runtime_copies import python_paths
from corral.programs import windows_resolve, windows_shims
from corral.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.plan.model import Place
    from corral.platforms.windows.run_context import Scene
    from corral.platforms.windows.runtime_copies.copy import Listing
    from corral.policy.model import Grant
    from corral.programs.model import Program

NODE_FLAGS = ("--preserve-symlinks", "--preserve-symlinks-main")
PYTHON_PREFIX = ("Doc", "include", "libs", "tcl", "Tools", "Lib\\test", "Lib\\idlelib")
SERVER = (".git", ".hg", ".svn")
WHOLE = ".whole"
HOLDING: int = os.O_RDONLY | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)


@record
class Tree:
    """`staged` is the copy of `source`, in a directory of its own. `texts` are files that say
    where their neighbours are, and have to say where the copies are: (relative name, text).
    """

    source: str
    staged: str
    sid: str
    listing: Listing
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def room(self) -> str:
        return ntpath.dirname(self.staged)


@record
class Store:
    """`granted` are paths that the target reaches where they are."""

    trees: tuple[Tree, ...]
    program: Program
    granted: tuple[str, ...] = ()
    place: Place = "supervisor"

    def placed(self, path: str) -> str:
        """Where the target finds what corral finds at `path`."""
        return placed(path, self.trees, self.granted)

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(tree.sid for tree in self.trees)

    def describe(self) -> str:
        copies = [
            f"{tree.source} ({tree.listing.describe()}) to {tree.staged}" for tree in self.trees
        ]
        return f"store: copy {'; '.join(copies) or 'nothing'}; start {self.program.path}"


def plan(
    program: Program,
    *,
    directory: str,
    granted: Sequence[Grant] = (),
    without: Sequence[str] = (),
) -> Store:
    """Looks at every file that is needed, and copies none. PolicyError for what cannot be.

    What is granted the target reaches where it is, and there it is led: into a copy nobody writes.
    What it may write is not copied at all, or every change in it would be a reason to copy again.
    `without` are further relative names to leave out.
    """
    written = [grant.path for grant in granted if grant.access == "write"]
    listings = _listings(program, written, without)
    keys = {source: staging.key(source, listing) for source, listing in listings.items()}
    every = tuple(sorted(keys.values()))
    pointing = {source: python_paths.find(listing) for source, listing in listings.items()}
    copies = [
        # What says where others are is good only together with these others.
        tree(source, listing, directory=directory, beside=every if pointing[source] else ())
        for source, listing in listings.items()
    ]
    base = ntpath.dirname(moved(program.real, copies))
    settings = settings_of(program)
    made = [
        replace(one, texts=python_paths.texts(one, pointing[one.source], copies, settings, base))
        for one in copies
    ]
    paths = tuple(grant.path for grant in granted)
    return Store(trees=tuple(made), program=inside(program, made, paths), granted=paths)


def _listings(
    program: Program, written: Sequence[str], without: Sequence[str]
) -> dict[str, Listing]:
    settings = settings_of(program)
    text = python_paths.text_of(settings) if settings else ""
    return {
        source: _looked(
            source, (*_left_out(settings, why, text), *_below(source, written), *without)
        )
        for source, why in zip(program.reads, program.why, strict=True)
    }


def tree(source: str, listing: Listing, *, directory: str, beside: Sequence[str] = ()) -> Tree:
    room = ntpath.join(directory, staging.key(source, listing, beside))
    staged = ntpath.join(room, ntpath.basename(source))
    return Tree(source=source, staged=staged, sid=grant_sid(room, "read"), listing=listing)


def settings_of(program: Program) -> str:
    """Of the virtual environment that the program is started for; empty for none."""
    redirector = dict(program.environment).get(windows_resolve.LAUNCHER, "")
    if not redirector:
        return ""
    return ntpath.join(ntpath.dirname(ntpath.dirname(redirector)), python_paths.SETTINGS)


def _left_out(settings: str, why: str, text: str) -> tuple[str, ...]:
    """`text` is what the settings of an environment say, if there is one."""
    if why != "the prefix of python":
        return SERVER
    both = windows_shims.settings(text).get("include-system-site-packages", "").lower() == "true"
    return (*PYTHON_PREFIX, python_paths.SITE) if settings and not both else PYTHON_PREFIX


def _below(source: str, paths: Sequence[str]) -> list[str]:
    """Those paths that lie in `source`, relative to it."""
    inner = [path for path in paths if is_inside(path, source) and not is_inside(source, path)]
    return [path[len(source) :].lstrip("\\") for path in inner]


def _looked(source: str, without: Sequence[str]) -> Listing:
    try:
        return staging.look(source, without)
    except staging.Unsuitable as error:
        raise PolicyError(
            f"{source} cannot be copied for an AppContainer: {error}",
            hint="install the server without links (pnpm: node-linker=hoisted), or give it a "
            "directory of its own",
        ) from error
    except OSError as error:
        raise PolicyError(f"{error.filename} cannot be read: {error.strerror}") from error


def inside(program: Program, made: Sequence[Tree], granted: Sequence[str] = ()) -> Program:
    """The same program with the copies' paths in all its words but those that are granted.

    The runtime is the copy in any case: what it needs beside it may be granted to nobody.
    """
    path = moved(program.path, made)
    path = moved(program.real, made) if path == program.path else path
    arguments = tuple(placed(word, made, granted) for word in program.argv[1:])
    if windows_resolve.kind_of(path) == "node":
        arguments = (*NODE_FLAGS, *arguments)
    return replace(
        program,
        path=path,
        argv=(path, *arguments),
        real=path,
        cwd=placed(program.cwd, made, granted),
        search=tuple(dict.fromkeys((ntpath.dirname(path), *program.search[1:]))),
        environment=tuple((name, moved(value, made)) for name, value in program.environment),
    )


def placed(path: str, made: Sequence[Tree], granted: Sequence[str]) -> str:
    return path if any(is_inside(path, one) for one in granted) else moved(path, made)


def moved(path: str, made: Sequence[Tree]) -> str:
    """Where the copy of a path is; the path itself if it was not copied."""
    for one in made:
        if path[1:3] == ":\\" and is_inside(path, one.source):
            return one.staged + path[len(one.source) :]
    return path


def apply(step: Store, scene: Scene) -> None:
    for one in step.trees:
        hold(one, scene)


def hold(one: Tree, scene: Scene) -> None:
    """Makes the copy if there is none, and keeps its mark open for as long as the run lasts: what
    is open nobody deletes on Windows, and a copy whose mark stays is left alone by `collect`.
    """
    try:
        mark = os.open(mark_of(one), HOLDING)
    except FileNotFoundError:
        with mutex(one.sid):
            # Whoever held it until now may have made the same copy.
            if not os.path.exists(mark_of(one)):
                stage(one)
            mark = os.open(mark_of(one), HOLDING)
    scene.undo.append(lambda: os.close(mark))


def mutex(sid: str) -> win32_files.Mutex:
    return win32_files.Mutex(f"Local\\corral-{sid}")


def mark_of(one: Tree) -> str:
    """The file that says that a copy is whole; out of the target's sight, beside the copy."""
    return one.room + WHOLE


def stage(one: Tree) -> None:
    """Not made aside and renamed: a virus scanner that looks at it would not let it be."""
    remove_directory.remove(one.room)  # of somebody who died in the middle
    os.makedirs(one.room)
    _open_up(one.room, one.sid)
    staging.copy(one.source, one.staged, one.listing)
    for name, text in one.texts:
        place = trees.reaching(ntpath.join(one.staged, name))
        with open(place, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    with open(mark_of(one), "w", encoding="utf-8") as file:
        file.write(one.source)


def verify(step: Store, _scene: Scene) -> None:
    """Each copy has the entry that lets the target read it, and is whole."""
    for one in step.trees:
        with trees.opened(trees.reaching(one.room)) as handle:
            if not access_list.holds(win32_security.security_of(handle.value), one.sid):
                raise OSError(0, "its access list has no entry for the target", one.room)
        if not os.path.exists(mark_of(one)):
            raise OSError(0, "is not whole", one.staged)


def _open_up(directory: str, sid: str) -> None:
    """While it is empty: what is made in it inherits."""
    with trees.opened(trees.reaching(directory)) as handle:
        ours = access_list.entries_for(sid, "read", directory=True, root=True)
        try:
            changed = access_list.grant(win32_security.security_of(handle.value), sid, ours)
        except access_list.Unusable as error:
            raise OSError(0, str(error), directory) from error
        if changed is not None:
            win32_security.set_security(handle.value, changed)


def collect(directory: str) -> list[str]:
    """Take away every copy that no run holds; what is needed again is copied again."""
    gone = []
    for key, notes in staging.kept(directory).items():
        room = ntpath.join(directory, key)
        with mutex(grant_sid(room, "read")):
            try:
                for name in sorted(notes, key=lambda name: not name.endswith(WHOLE)):
                    os.unlink(ntpath.join(directory, name))
            except PermissionError:
                continue  # a run has it
            remove_directory.remove(room)
        gone += [] if os.path.exists(room) else [room]
    return gone
