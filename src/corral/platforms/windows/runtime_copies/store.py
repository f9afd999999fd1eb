r"""The store: copies of runtimes and servers that AppContainers can read.

An AppContainer may read neither node as its installer leaves it nor a user's Python. Their access
lists are not ours to change (Program Files), or are where entries for AppContainers break other
programs (AppData). So what a run needs is copied, never linked, into a directory of corral's own.
The directory is empty when it gets its entry, for a capability of its own; the files that are
copied into it inherit the entry at no further cost.

The name of a copy is a digest of what it was made from: the source, the name, size and time of
every file. A file beside the copy marks it as complete, and a mutex is owned until then. Times are
kept, because otherwise every start would compile Python's modules again. Links are refused: a copy
of one leads out of the store, and node only starts inside with `--preserve-symlinks`, under which
packages that are linked together no longer find each other.
"""

from __future__ import annotations

import ntpath
import os
import sys
from collections.abc import Sequence

from corral.directories import directories
from corral.errors import PolicyError
from corral.paths.windows import extended_path, is_inside
from corral.plan import model
from corral.plan.model import Results
from corral.platforms.windows.files import access_list, file_trees, granted_tree
from corral.platforms.windows.files.access_list import grant_sid
from corral.platforms.windows.files.file_trees import Listing, TreeCopy
from corral.platforms.windows.runtime_copies import python_paths
from corral.policy.model import Grant
from corral.programs import windows_resolve, windows_shims
from corral.programs.model import Program
from corral.record import record, replace

NODE_FLAGS = ("--preserve-symlinks", "--preserve-symlinks-main")
PYTHON_PREFIX = ("Doc", "include", "libs", "tcl", "Tools", "Lib\\test", "Lib\\idlelib")
SERVER = (".git", ".hg", ".svn")
MARK = ".whole"
OPEN_FLAGS: int = os.O_RDONLY | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
STORE_APPS = "\\windowsapps\\"


@record
class Store:
    """`program` is started in the AppContainer; the target uses `granted` paths where they are."""

    name = "runtime_copies"
    trees: tuple[TreeCopy, ...]
    program: Program
    granted: tuple[str, ...] = ()
    stage: model.Stage = "supervisor"

    def path_inside(self, path: str) -> str:
        """Return the path at which the target finds what corral finds at `path`."""
        return path_inside(path, self.trees, self.granted)

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(tree.sid for tree in self.trees)

    def describe(self) -> str:
        copies = [f"{one.source} ({one.listing.describe()}) to {one.staged}" for one in self.trees]
        return f"store: copy {'; '.join(copies) or 'nothing'}; start {self.program.path}"

    def apply(self, results: Results) -> None:
        copies = results.find(OpenCopies)
        if copies is None:
            copies = OpenCopies()
            results.add(copies)
        for tree in self.trees:
            copies.open(tree)

    def verify(self, _results: Results) -> None:
        """Check that each copy is complete, and has the entry that lets the target read it."""
        for tree in self.trees:
            problem = "its access list has no entry for the target"
            granted_tree.check_entry(tree.directory, tree.sid, problem)
            if not os.path.exists(mark_path(tree)):
                raise OSError(0, "is not whole", tree.staged)


class OpenCopies:
    """The open marks of copies: Windows deletes no open file, so `collect` leaves them alone."""

    def __init__(self) -> None:
        self._marks: list[int] = []

    def open(self, tree: TreeCopy) -> None:
        """Open the mark of a copy, and make the copy first if there is none."""
        try:
            self._marks.append(os.open(mark_path(tree), OPEN_FLAGS))
        except FileNotFoundError:
            with granted_tree.mutex(tree.sid):
                # Another process may have made the same copy by now.
                if not os.path.exists(mark_path(tree)):
                    make_copy(tree)
                self._marks.append(os.open(mark_path(tree), OPEN_FLAGS))

    def release(self) -> None:
        while self._marks:
            os.close(self._marks.pop())


def find(steps: Sequence[model.Step]) -> Store | None:
    return next((step for step in steps if isinstance(step, Store)), None)


def default_directory() -> str:
    return os.path.join(directories().cache, "store")


def plan(
    program: Program, *, directory: str, granted: Sequence[Grant] = (), without: Sequence[str] = ()
) -> Store:
    """List every file that is needed, and copy none. PolicyError for what cannot be copied.

    Granted paths are used where they are, because a copy cannot be written. What the target may
    write is not copied at all, because every change in it would be a reason to copy again.
    `without` are further relative names to leave out.
    """
    written = [grant.path for grant in granted if grant.access == "write"]
    listings = _listings(program, written, without)
    keys = {source: file_trees.copy_key(source, listing) for source, listing in listings.items()}
    every = tuple(sorted(keys.values()))
    pointing = {source: python_paths.find(listing) for source, listing in listings.items()}
    copies = [
        # A file that names other copies is good only together with these.
        plan_copy(source, listing, directory=directory, beside=every if pointing[source] else ())
        for source, listing in listings.items()
    ]
    base = ntpath.dirname(path_in_copies(program.real, copies))
    settings = settings_path(program)
    made = []
    for one in copies:
        texts = python_paths.changed_texts(one, pointing[one.source], copies, settings, base)
        made.append(replace(one, texts=texts))
    paths = tuple(grant.path for grant in granted)
    return Store(trees=tuple(made), program=program_inside(program, made, paths), granted=paths)


def own_interpreter() -> str:
    """Return the interpreter that runs corral; that of a virtual environment only starts it."""
    return getattr(sys, "_base_executable", "") or sys.executable


def plan_own_interpreter(home: str) -> Store:
    """Plan a copy of corral's interpreter with its library alone. SandboxError if it cannot."""
    path = own_interpreter()
    if STORE_APPS in path.lower():
        text = f"{path} came from the Store, and its files cannot be copied"
        raise PolicyError(text, hint=windows_resolve.STORE)
    program = windows_resolve.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    own = without_projects(program)
    return plan(own, directory=default_directory(), without=(python_paths.SITE,))


def without_projects(program: Program) -> Program:
    """Return an interpreter without the projects that were installed into it as links."""
    rows = zip(program.reads, program.why, program.seen, strict=True)
    reads, why, seen = zip(*(row for row in rows if is_inside(program.real, row[0])), strict=True)
    return replace(program, reads=reads, why=why, seen=seen)


def _listings(
    program: Program, written: Sequence[str], without: Sequence[str]
) -> dict[str, Listing]:
    settings = settings_path(program)
    text = python_paths.read_text(settings) if settings else ""
    return {
        source: _list_files(
            source, (*_left_out(settings, why, text), *_below(source, written), *without)
        )
        for source, why in zip(program.reads, program.why, strict=True)
    }


def plan_copy(
    source: str, listing: Listing, *, directory: str, beside: Sequence[str] = ()
) -> TreeCopy:
    own = ntpath.join(directory, file_trees.copy_key(source, listing, beside))
    staged = ntpath.join(own, ntpath.basename(source))
    return TreeCopy(source=source, staged=staged, sid=grant_sid(own, "read"), listing=listing)


def settings_path(program: Program) -> str:
    """Return the settings of the virtual environment that the program is for; empty for none."""
    redirector = dict(program.environment).get(windows_resolve.LAUNCHER, "")
    if not redirector:
        return ""
    return ntpath.join(ntpath.dirname(ntpath.dirname(redirector)), python_paths.SETTINGS)


def _left_out(settings: str, why: str, text: str) -> tuple[str, ...]:
    """`text` are the settings of the environment, if there is one."""
    if why != "the prefix of python":
        return SERVER
    both = windows_shims.settings(text).get("include-system-site-packages", "").lower() == "true"
    return (*PYTHON_PREFIX, python_paths.SITE) if settings and not both else PYTHON_PREFIX


def _below(source: str, paths: Sequence[str]) -> list[str]:
    """Return those paths that are below `source`, relative to it."""
    inner = [path for path in paths if is_inside(path, source) and not is_inside(source, path)]
    return [path[len(source) :].lstrip("\\") for path in inner]


def _list_files(source: str, without: Sequence[str]) -> Listing:
    try:
        return file_trees.list_files(source, without)
    except file_trees.Unsuitable as error:
        raise PolicyError(
            f"{source} cannot be copied for an AppContainer: {error}",
            hint="install the server without links (pnpm: node-linker=hoisted), or give it a "
            "directory of its own",
        ) from error
    except OSError as error:
        raise PolicyError(f"{error.filename} cannot be read: {error.strerror}") from error


def program_inside(
    program: Program, copies: Sequence[TreeCopy], granted: Sequence[str] = ()
) -> Program:
    """Return the same program with the copies' paths in all its words but granted ones.

    The runtime is the copy in any case: what it needs beside it may not be granted.
    """
    path = path_in_copies(program.path, copies)
    path = path_in_copies(program.real, copies) if path == program.path else path
    arguments = tuple(path_inside(word, copies, granted) for word in program.argv[1:])
    if windows_resolve.kind_of(path) == "node":
        arguments = (*NODE_FLAGS, *arguments)
    return replace(
        program,
        path=path,
        argv=(path, *arguments),
        real=path,
        cwd=path_inside(program.cwd, copies, granted),
        search=tuple(dict.fromkeys((ntpath.dirname(path), *program.search[1:]))),
        environment=tuple(
            (name, path_in_copies(value, copies)) for name, value in program.environment
        ),
    )


def path_inside(path: str, copies: Sequence[TreeCopy], granted: Sequence[str]) -> str:
    return path if any(is_inside(path, one) for one in granted) else path_in_copies(path, copies)


def path_in_copies(path: str, copies: Sequence[TreeCopy]) -> str:
    """Return the path of the copy; the path itself if it is not copied."""
    for one in copies:
        if path[1:3] == ":\\" and is_inside(path, one.source):
            return one.staged + path[len(one.source) :]
    return path


def mark_path(tree: TreeCopy) -> str:
    """Return the file that marks a copy as complete: beside the copy, where no target reads."""
    return tree.directory + MARK


def make_copy(tree: TreeCopy) -> None:
    """Copy a tree, not elsewhere and then renamed: a virus scanner may have it open meanwhile."""
    file_trees.remove(tree.directory)  # left by a process that died in the middle
    os.makedirs(tree.directory)
    # The directory is empty, and what is made in it inherits the entry.
    entries = access_list.entries_for(tree.sid, "read", directory=True, root=True)
    with granted_tree.open_object(tree.directory) as handle:
        granted_tree.set_entries(tree.directory, handle.value, tree.sid, entries)
    file_trees.copy(tree.source, tree.staged, tree.listing)
    for name, text in tree.texts:
        path = extended_path(ntpath.join(tree.staged, name))
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    with open(mark_path(tree), "w", encoding="utf-8") as file:
        file.write(tree.source)


def collect(directory: str) -> list[str]:
    """Remove every copy that no run uses. What is needed again is copied again."""
    removed = []
    for key, names in file_trees.find_copies(directory).items():
        copy = ntpath.join(directory, key)
        with granted_tree.mutex(grant_sid(copy, "read")):
            try:
                for name in sorted(names, key=lambda name: not name.endswith(MARK)):
                    os.unlink(ntpath.join(directory, name))
            except PermissionError:
                continue  # a run has it open
            file_trees.remove(copy)
        removed += [] if os.path.exists(copy) else [copy]
    return removed
