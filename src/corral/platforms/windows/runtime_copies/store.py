"""Keep copies of runtimes and servers in a store that AppContainers can read.

An AppContainer cannot read many runtimes, such as a Python that is installed for one user. corral
cannot change the access lists in Program Files. In AppData it could add entries for AppContainers
to the access lists, but these would break other programs. So corral copies the files that a run
needs into its own directory. The access list of a copy's directory gets an entry for the copy's own
capability before files are copied into it, so that they inherit the entry.

The name of a copy is a digest of the path of the copied directory, and of the name, size and time
of every file in it. When a copy is complete, corral writes a file next to it, which is called the
copy's mark. A process holds a mutex while it makes a copy, so that no other process makes the same
copy. Copied files keep their times, because otherwise Python would compile its modules again at
every start.

Two kinds of links are refused in the directory to copy:

- a link to a path outside of this directory, because the AppContainer could not read that path
- a link to a directory, even inside of this directory: node starts in an AppContainer only with
  `--preserve-symlinks`, and with this option linked packages do not find each other

A copied node or Python loads a preload (`node_preload.cjs`, `python_preload.py`), which repairs the
parts of its standard library that fail in an AppContainer. No wall depends on the preload.
"""

from __future__ import annotations

import hashlib
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
from corral.programs.model import LAUNCHER, Program
from corral.record import record, replace

NODE_FLAGS = ("--preserve-symlinks", "--preserve-symlinks-main")
NODE_PRELOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_preload.cjs")
PYTHON_PRELOAD = os.path.join(os.path.dirname(NODE_PRELOAD), "python_preload.py")
PYTHON_PREFIX = ("Doc", "include", "libs", "tcl", "Tools", "Lib\\test", "Lib\\idlelib")
SERVER = (".git", ".hg", ".svn")
MARK = ".whole"
OPEN_FLAGS: int = os.O_RDONLY | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
STORE_APPS = "\\windowsapps\\"


@record
class Store:
    """Makes the copies that are still missing. `program` is the copy to start. The target uses
    files in `granted` paths directly, even if they are in a copy too.
    """

    name = "runtime_copies"
    trees: tuple[TreeCopy, ...]
    program: Program
    granted: tuple[str, ...] = ()
    stage: model.Stage = "supervisor"

    def path_inside(self, path: str) -> str:
        return path_inside(path, self.trees, self.granted)

    @property
    def sids(self) -> tuple[str, ...]:
        return tuple(tree.sid for tree in self.trees)

    def describe(self) -> str:
        copies = [f"{one.source} ({one.listing.describe()}) to {one.staged}" for one in self.trees]
        untried = "" if self.has_started() else " (not yet seen to start in an AppContainer)"
        return f"store: copy {'; '.join(copies) or 'nothing'}; start {self.program.path}{untried}"

    def has_started(self) -> bool:
        """Return whether the copied runtime has already started in a trial. A successful trial
        leaves a note next to the copy.
        """
        tree = next((one for one in self.trees if is_inside(self.program.path, one.staged)), None)
        if tree is None:
            return False
        directory, key = ntpath.split(tree.directory)
        notes = file_trees.find_copies(directory).get(key, [])
        return any(name != key + MARK for name in notes)

    def apply(self, results: Results) -> None:
        copies = results.find(OpenCopies)
        if copies is None:
            copies = OpenCopies()
            results.add(copies)
        for tree in self.trees:
            copies.open(tree)

    def verify(self, _results: Results) -> None:
        for tree in self.trees:
            problem = "its access list has no entry for the target"
            granted_tree.check_entry(tree.directory, tree.sid, problem)
            if not os.path.exists(mark_path(tree)):
                raise OSError(0, "the copy is not complete", tree.staged)


class OpenCopies:
    """Keeps the mark files of used copies open. Windows does not delete open files, so `collect`
    cannot remove these copies.
    """

    def __init__(self) -> None:
        self._marks: list[int] = []

    def open(self, tree: TreeCopy) -> None:
        """Open the mark file of a copy and keep it open. Make the copy first if it is missing."""
        try:
            self._marks.append(os.open(mark_path(tree), OPEN_FLAGS))
        except FileNotFoundError:
            with granted_tree.mutex(tree.sid):
                # Another process may have made the same copy in the meantime.
                made = not os.path.exists(mark_path(tree))
                if made:
                    make_copy(tree)
                self._marks.append(os.open(mark_path(tree), OPEN_FLAGS))
            if made:
                collect(ntpath.dirname(tree.directory), of=tree)

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
    """List every file that has to be copied, without copying anything. Raise PolicyError if a file
    cannot be copied.

    Paths with a write grant are left out. The target could not write to their copies, and whenever
    a file changed, a new copy would be needed. `without` lists more relative names to leave out.
    """
    written = [grant.path for grant in granted if grant.access == "write"]
    listings = _listings(program, written, without)
    if windows_resolve.kind_of(program.real) == "node":
        listings[NODE_PRELOAD] = _list_files(NODE_PRELOAD, ())
    keys = {source: file_trees.copy_key(source, listing) for source, listing in listings.items()}
    every = tuple(sorted(keys.values()))
    pointing = {source: python_paths.find(listing) for source, listing in listings.items()}
    preloads = {source: _preload_texts(listing) for source, listing in listings.items()}
    copies = []
    for source, listing in listings.items():
        # The files in `pointing[source]` name paths in other trees. In the copy they name paths in
        # the copies of those trees, and such a path contains the key of its copy. So the key of
        # this copy depends on the keys of all copies.
        beside = [*(every if pointing[source] else ()), *map(digest, preloads[source])]
        copies.append(plan_copy(source, listing, directory=directory, beside=beside))
    base = ntpath.dirname(path_in_copies(program.real, copies))
    settings = settings_path(program)
    made = []
    for one in copies:
        texts = python_paths.changed_texts(one, pointing[one.source], copies, settings, base)
        made.append(replace(one, texts=(*texts, *preloads[one.source])))
    paths = tuple(grant.path for grant in granted)
    inside = program_inside(program, made, paths, written)
    return Store(trees=tuple(made), program=inside, granted=paths)


def _preload_texts(listing: Listing) -> list[tuple[str, str]]:
    """Return (name, text) of the preload and of a `.pth` file that makes Python load the preload.
    Return [] for a tree without site-packages. Python reads `.pth` files even in isolated mode and
    in child processes.
    """
    if python_paths.SITE not in listing.directories:
        return []
    name = f"{python_paths.SITE}\\corral_python_preload"
    code = python_paths.read_text(PYTHON_PRELOAD)
    return [(f"{name}.py", code), (f"{name}.pth", "import corral_python_preload\n")]


def digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def own_interpreter() -> str:
    """Return the path of corral's interpreter itself, not of a virtual environment's launcher."""
    return getattr(sys, "_base_executable", "") or sys.executable


def plan_own_interpreter(home: str) -> Store:
    """Plan a copy of corral's interpreter and library, or raise SandboxError."""
    path = own_interpreter()
    if STORE_APPS in path.lower():
        text = f"{path} is from the Microsoft Store, so its files cannot be copied"
        raise PolicyError(text, hint=windows_resolve.STORE)
    program = windows_resolve.resolve(
        [path], environment=os.environ, cwd=os.path.dirname(path), home=home, subprocess=False
    )
    own = without_projects(program)
    return plan(own, directory=default_directory(), without=(python_paths.SITE,))


def without_projects(program: Program) -> Program:
    """Return the interpreter without the directories of its editable installs."""
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
    """Return the path of the program's `pyvenv.cfg`, or "" if it has no virtual environment."""
    redirector = dict(program.environment).get(LAUNCHER, "")
    if not redirector:
        return ""
    return ntpath.join(ntpath.dirname(ntpath.dirname(redirector)), python_paths.SETTINGS)


def _left_out(settings: str, why: str, text: str) -> tuple[str, ...]:
    """Return the names to leave out of a copy.

    `why` is the reason for the copy, such as "the prefix of python". `settings` is the path of the
    virtual environment's pyvenv.cfg, and `text` is its content.
    """
    if why != "the prefix of python":
        return SERVER
    both = windows_shims.settings(text).get("include-system-site-packages", "").lower() == "true"
    return (*PYTHON_PREFIX, python_paths.SITE) if settings and not both else PYTHON_PREFIX


def _below(source: str, paths: Sequence[str]) -> list[str]:
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
    program: Program,
    copies: Sequence[TreeCopy],
    granted: Sequence[str] = (),
    written: Sequence[str] = (),
) -> Program:
    """Return the program with each path replaced by its path in a copy.

    Granted paths stay as they are, with two exceptions. The runtime is always a copy, because it
    may need files that are not granted. A script with only a read grant is a copy too, because its
    `node_modules` cannot be read in place.
    """
    path = path_in_copies(program.path, copies)
    path = path_in_copies(program.real, copies) if path == program.path else path
    arguments = tuple(
        path_inside(word, copies, written if _is_script(word) else granted)
        for word in program.argv[1:]
    )
    environment = tuple((one, path_in_copies(value, copies)) for one, value in program.environment)
    if windows_resolve.kind_of(path) == "node":
        preload = next(one.staged for one in copies if one.source == NODE_PRELOAD)
        arguments = ("--require", preload, *NODE_FLAGS, *arguments)
        # Workers and child processes that run node read NODE_OPTIONS. Its path has slashes,
        # because a backslash inside the quotes would be an escape character.
        options = f'--require "{preload.replace(ntpath.sep, "/")}" {" ".join(NODE_FLAGS)}'
        environment = (*environment, ("NODE_OPTIONS", options))
    return replace(
        program,
        path=path,
        argv=(path, *arguments),
        real=path,
        cwd=path_inside(program.cwd, copies, granted),
        search=tuple(dict.fromkeys((ntpath.dirname(path), *program.search[1:]))),
        environment=environment,
    )


def _is_script(word: str) -> bool:
    return ntpath.splitext(word)[1].lower() in windows_resolve.SCRIPTS


def path_inside(path: str, copies: Sequence[TreeCopy], granted: Sequence[str]) -> str:
    return path if any(is_inside(path, one) for one in granted) else path_in_copies(path, copies)


def path_in_copies(path: str, copies: Sequence[TreeCopy]) -> str:
    """Return where `path` is in one of the copies, or `path` itself if none contains it."""
    for one in copies:
        if path[1:3] == ":\\" and is_inside(path, one.source):
            return one.staged + path[len(one.source) :]
    return path


def _is_copy_of(mark: str, tree: TreeCopy) -> bool:
    try:
        with open(mark, encoding="utf-8", errors="surrogateescape") as file:
            return file.read() == mark_text(tree)
    except OSError:
        return False  # the copy is not complete yet


def mark_path(tree: TreeCopy) -> str:
    """Return the path of a copy's mark file. The file contains the path of the source. So it is
    next to the copy, where targets cannot read it.
    """
    return tree.directory + MARK


def make_copy(tree: TreeCopy) -> None:
    """Copy a tree directly to its final path, because a virus scanner could prevent a rename."""
    file_trees.remove(tree.directory)  # another process may have died while making the copy
    os.makedirs(tree.directory)
    # The directory is empty, so every file made in it inherits the entry.
    entries = access_list.entries_for(tree.sid, "read", directory=True, root=True)
    with granted_tree.open_object(tree.directory) as handle:
        granted_tree.set_entries(tree.directory, handle.value, tree.sid, entries)
    file_trees.copy(tree.source, tree.staged, tree.listing)
    for name, text in tree.texts:
        path = extended_path(ntpath.join(tree.staged, name))
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    with open(mark_path(tree), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(mark_text(tree))


def mark_text(tree: TreeCopy) -> str:
    """Return the content of a copy's mark file. Copies of the same tree have equal mark files, so
    that `collect` can find the older copies.
    """
    return "\n".join((tree.source, *tree.listing.without))


def collect(directory: str, *, of: TreeCopy | None = None) -> list[str]:
    """Remove every copy that no run uses. With `of`, remove only older copies of the same tree."""
    removed = []
    for key, names in file_trees.find_copies(directory).items():
        copy = ntpath.join(directory, key)
        if of is not None and (copy == of.directory or not _is_copy_of(copy + MARK, of)):
            continue
        with granted_tree.mutex(grant_sid(copy, "read")):
            try:
                for name in sorted(names, key=lambda name: not name.endswith(MARK)):
                    os.unlink(ntpath.join(directory, name))
            except PermissionError:
                continue  # a run has the mark file open
            file_trees.remove(copy)
        removed += [] if os.path.exists(copy) else [copy]
    return removed
