"""What a repository makes git, Mercurial and Jujutsu follow: other directories, files, programs.

A program on the host reads these when the user types `git status`. The readers here take more than
the programs themselves would: a file that is read-only without need is better than one that runs.
"""

from __future__ import annotations

import os
import stat
import sys

from corral.policy.secret_files import GIT

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Setting = tuple[str, str, str]

POINTERS = ("", "commondir", "sharedpath", "repo", "repo/store/git_target")
"""Files that name another directory: a `.git` file itself, git's, Mercurial's and Jujutsu's."""
SETTINGS = ("config", "config.worktree", "hgrc", "repo/config.toml")
USER_SETTINGS = (".gitconfig", ".config/git/config", ".hgrc", ".config/hg/hgrc")
SEPARATORS = str.maketrans(dict.fromkeys("\"':;,=!()[]{}", " "))
DIRECTORIES_OF_HOOKS = frozenset({"core.hookspath", "init.templatedir"})
MAX_FILES = 20
MAX_WORDS = 10_000
MAX_DIRECTORIES = 10_000
MAX_BYTES = 1 << 20


def find_directories(entry: str) -> list[str]:
    """Return a `.git`, `.hg` or `.jj`, and every directory that its pointers lead to."""
    found: dict[str, None] = {}
    pending = [entry]
    while pending and len(found) < MAX_FILES:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        for name in POINTERS:
            file = f"{path}/{name}".rstrip("/")
            target = _read(file).removeprefix("gitdir:").strip()
            if target and "\n" not in target and "\0" not in target:
                named = os.path.join(os.path.dirname(file), target)
                real = os.path.realpath(named)
                if os.path.normpath(named) != real:
                    found[named] = None  # by this name too: a link on the way could be replaced
                pending.append(real)
    return list(found)


def find_run_files(git: str) -> Iterator[str]:
    """Yield what runs, or names what runs, in a repository, its worktrees and its submodules."""
    pending = [git]
    for path in pending:
        is_repository = path == git or os.path.lexists(f"{path}/HEAD")
        if is_repository:
            yield from (f"{path}/{name}" for name in GIT)
            yield from _links_in(f"{path}/hooks")
        for directory in ("modules/", "worktrees/") if is_repository else ("",):
            # A submodule's name may have slashes in it.
            names = _names(f"{path}/{directory}")[: MAX_DIRECTORIES - len(pending)]
            pending += [f"{path}/{directory}{name}" for name in names]


def find_named(
    top: str, directories: Iterable[str], home: str, shared: Iterable[Setting]
) -> Iterator[str]:
    """Yield what the settings of a repository at `top`, and `shared` ones, name in it."""
    left = MAX_WORDS
    files = [f"{directory}/{name}" for directory in directories for name in SETTINGS]
    for file, key, value in (*read_settings(files, home), *shared):
        exact = os.path.join(top, _expand(value, home))
        if key in DIRECTORIES_OF_HOOKS:
            yield exact
            yield from _links_in(exact)
        elif key.startswith("include") and key.endswith(".path"):
            yield os.path.join(os.path.dirname(file), _expand(value, home))
        else:
            for word in (value, *value.translate(SEPARATORS).split())[:left]:
                left -= 1
                plain = word.removeprefix("$PWD/").removeprefix("${PWD}/")
                for base in (top, os.path.dirname(file)):
                    path = os.path.join(base, _expand(plain, home))
                    if plain and _is_file(path):
                        yield path


def read_settings(files: Iterable[str], home: str) -> list[Setting]:
    """Return (file, section and key, value) of these files and of those that they include."""
    found: list[Setting] = []
    pending = list(files)
    for file in pending:
        for key, value in _parse(_read(file)):
            found.append((file, key, value))
            if key.startswith("include") and key.endswith(".path") and len(pending) < MAX_FILES:
                pending.append(os.path.join(os.path.dirname(file), _expand(value, home)))
    return found


def read_user_settings(home: str) -> list[Setting]:
    """Return the settings for every repository of the user, and of the system."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    files = ["/etc/gitconfig", *(f"{home}/{name}" for name in USER_SETTINGS)]
    return read_settings([*files, f"{config}/git/config"] if config else files, home)


def _links_in(directory: str) -> list[str]:
    """Return hooks that are links, such as to scripts of the project."""
    paths = [f"{directory}/{name}" for name in _names(directory)[:MAX_DIRECTORIES]]
    return [path for path in paths if os.path.islink(path)]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _parse(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in text.replace("\\\n", "").splitlines():
        rest = line.strip()
        if rest.startswith("["):
            quoted = '"' in rest.partition("]")[0]
            head, _, rest = rest[1:].partition('"]' if quoted else "]")
            section = head.split(" ")[0].split(".")[0].lower()
        key, mark, value = rest.partition("=")
        if not mark:
            value = key  # Mercurial's `%include FILE`
        # A `#` in quotes is part of the value, and one behind them begins a comment: take both.
        for one in dict.fromkeys((value, value.partition("#")[0].partition(";")[0])):
            if key.strip():
                yield f"{section}.{key.strip().lower()}", one.strip().replace('"', "")


def _expand(path: str, home: str) -> str:
    return home + path[1:] if path.startswith("~/") else path


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read(path: str) -> str:
    """Return the text of a regular file, "" if it is anything else: a target may plant a FIFO."""
    if not _is_file(path):
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(fd, MAX_BYTES).decode(errors="surrogateescape")
        finally:
            os.close(fd)
    except OSError:
        return ""
