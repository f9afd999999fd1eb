"""Find the files, directories and programs that a repository makes git, Mercurial or Jujutsu use.

The host's git uses them when the user types `git status`, so a target must not change them. corral
makes the files that are found here read-only. The functions deliberately find more files than git
would use, because a file that is read-only without need does less harm than a missed file that git
runs.
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
"""Files that contain the path of a directory to use: `.git` itself if it is a file, and files in a
`.git`, `.hg` or `.jj` directory.
"""
SETTINGS = ("config", "config.worktree", "hgrc", "repo/config.toml")
USER_SETTINGS = (".gitconfig", ".config/git/config", ".hgrc", ".config/hg/hgrc")
SEPARATORS = str.maketrans(dict.fromkeys("\"':;,=!()[]{}&|<>`\\", " "))
HG_INCLUDE = "%include"
DIRECTORIES_OF_HOOKS = frozenset({"core.hookspath", "init.templatedir"})
MAX_FILES = 20
MAX_WORDS = 10_000
MAX_DIRECTORIES = 10_000
MAX_BYTES = 1 << 20
MAX_INDEX_BYTES = 1 << 26
"""The maximum number of bytes to read from a repository's indexes. A target could leave huge
indexes to delay the next start.
"""
MAX_INDEXES = 100
MAX_PATH_BYTES = 4096
GITLINK = b"\0\0\xe0\0"
"""The mode of an index entry for a nested repository, such as a submodule."""


def find_directories(entry: str) -> list[str]:
    """Return `entry`, and every directory that its pointer files (POINTERS) lead to.

    `entry` is a `.git`, `.hg` or `.jj`.
    """
    found: dict[str, None] = {}
    pending = [entry]
    while pending and len(found) < MAX_FILES:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        for name in POINTERS:
            file = f"{path}/{name}".rstrip("/")
            target = _until_zero(_read(file)).removeprefix("gitdir:").strip()
            if target and "\n" not in target:
                named = os.path.join(os.path.dirname(file), target)
                real = os.path.realpath(named)
                if os.path.normpath(named) != real:
                    # Return the path with its symlinks too, because a target could replace these
                    # symlinks.
                    found[named] = None
                pending.append(real)
    return list(found)


def find_run_files(git: str) -> Iterator[str]:
    """Yield the files that git runs, and the files that name programs to run.

    Search the repository, its worktrees and its submodules.
    """
    pending = [git]
    for path in pending:
        is_repository = path == git or os.path.lexists(f"{path}/HEAD")
        if is_repository:
            yield from (f"{path}/{name}" for name in GIT)
            yield from _links_in(f"{path}/hooks")
        for directory in ("modules/", "worktrees/") if is_repository else ("",):
            # A submodule's name may contain slashes, and its repository is then deeper. So also
            # search directories that are not repositories themselves.
            names = _names(f"{path}/{directory}")[: MAX_DIRECTORIES - len(pending)]
            pending += [f"{path}/{directory}{name}" for name in names]


def find_named(
    top: str, directories: Iterable[str], home: str, shared: Iterable[Setting]
) -> Iterator[str]:
    """Yield the files that the settings of a repository name.

    The settings are read from the files in `directories`. `shared` contains settings that apply to
    all repositories. If the path of a hooks directory is relative, it is looked up in `top`, the
    repository's working directory. The path of an included file is looked up in the directory of
    the settings file. Other paths are looked up in both directories.
    """
    left = [MAX_WORDS]
    files = [f"{directory}/{name}" for directory in directories for name in SETTINGS]
    for file, key, value in (*read_settings(files, home), *shared):
        exact = os.path.join(top, _expand(value, home))
        if key in DIRECTORIES_OF_HOOKS:
            yield exact
            yield from _links_in(exact)
        elif key.startswith("include") and key.endswith(".path"):
            yield os.path.join(os.path.dirname(file), _expand(value, home))
        else:
            yield from _files_in_words(value, (top, os.path.dirname(file)), home, left)


def _files_in_words(
    value: str, bases: tuple[str, ...], home: str, left: list[int]
) -> Iterator[str]:
    """Yield the existing files that the words in a setting's value may refer to.

    A word may be a path, `$(...)/FILE`, `$NAME/FILE`, or a file in a directory that another word
    names (as after `cd DIRECTORY`). Relative paths are looked up in each of `bases`. Read at most
    `left[0]` words, and reduce `left[0]` by the number of words read.
    """
    words = (value, *value.translate(SEPARATORS).split())[: left[0]]
    left[0] -= len(words)
    plain = [word.partition("/")[2] if word.startswith("$") else word for word in words]
    plain += [word.lstrip("/") for word in plain if word.startswith("/")]
    paths = [_expand(word, home) for word in dict.fromkeys(plain) if word]
    inner = [f"{base}/{path}" for base in bases for path in paths if not path.startswith("/")]
    entered = [path for path in inner if os.path.isdir(path)][:MAX_FILES]
    for base in (*bases, *entered):
        for path in (os.path.join(base, path) for path in paths):
            if os.path.isfile(path):
                yield path


def find_submodules(top: str, directories: Iterable[str]) -> Iterator[str]:
    """Yield the directories of the submodules below `top`, which git treats as repositories.

    Read them from git's index, because only the index lists all of them. A submodule that was never
    initialised is an empty directory, but git would use a `.git` that a target puts there.
    """
    left = MAX_INDEX_BYTES
    for directory in directories:
        shared = [name for name in _names(directory) if name.startswith("sharedindex.")]
        for name in ("index", *shared[:MAX_INDEXES]):
            data = _read_bytes(f"{directory}/{name}", left)
            left -= len(data)
            # Parsing all entries of an index is slow, so first look for the mode of a gitlink. Most
            # indexes have none.
            if GITLINK in data:
                hash_bytes = 32 if "sha256" in _read(f"{directory}/config") else 20
                yield from (os.path.join(top, path) for path in _gitlinks(data, hash_bytes))


def _gitlinks(data: bytes, hash_bytes: int) -> Iterator[str]:
    """Yield the paths of gitlinks (entries for submodules) in an index, see gitformat-index(5).

    Stop at an invalid entry.
    """
    version, path, at = int.from_bytes(data[4:8], "big"), b"", 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        mode, flags = data[at + 24 : at + 28], at + 40 + hash_bytes
        extended = version > 2 and int.from_bytes(data[flags : flags + 1], "big") & 0x40
        start = flags + (4 if extended else 2)
        if version == 4:
            dropped, start = _read_offset(data, start)
            path = path[: max(len(path) - dropped, 0)]
        end = data.find(b"\0", start)
        if end < 0 or end - start > MAX_PATH_BYTES or len(path) > MAX_PATH_BYTES:
            return
        path = (path if version == 4 else b"") + data[start:end]
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
        if mode == GITLINK and path:
            yield os.fsdecode(path)


def _read_offset(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in the offset encoding of gitformat-pack(5), and the position after the
    number.
    """
    value = -1
    for byte in data[at : at + 10]:
        at += 1
        value = (value + 1 << 7) | byte & 0x7F
        if byte < 0x80:
            break
    return max(value, 0), at


def read_settings(files: Iterable[str], home: str) -> list[Setting]:
    """Return (file, "section.key", value) for each setting in these files.

    Also read the settings files that these files include.
    """
    found: list[Setting] = []
    pending = list(files)
    for file in pending:
        for key, value in _parse(_read(file)):
            found.append((file, key, value))
            is_include = key.startswith("include") and key.endswith(".path")
            if (is_include or value.startswith(HG_INCLUDE)) and len(pending) < MAX_FILES:
                named = _expand(value.removeprefix(HG_INCLUDE).strip(), home)
                pending.append(os.path.join(os.path.dirname(file), named))
    return found


def read_user_settings(home: str) -> list[Setting]:
    """Return the settings that apply to all repositories: the user's own and the system's."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    files = ["/etc/gitconfig", *(f"{home}/{name}" for name in USER_SETTINGS)]
    return read_settings([*files, f"{config}/git/config"] if config else files, home)


def _links_in(directory: str) -> list[str]:
    """Return the symbolic links in a hooks directory.

    Hooks are often links to scripts of the project, which git then runs.
    """
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
            value = key  # without "=", the line may be Mercurial's `%include FILE`
        # In quotes, `#` and `;` are part of the value. Elsewhere they begin a comment. Quotes are
        # not parsed here, so yield both the whole value and the part before `#` or `;`.
        for one in dict.fromkeys((value, value.partition("#")[0].partition(";")[0])):
            if key.strip():
                plain = _until_zero(one).strip().replace('"', "")
                yield f"{section}.{key.strip().lower()}", plain


def _until_zero(text: str) -> str:
    """Return a string up to its first zero byte, because git also ends a path there.

    Python refuses a path that contains a zero byte. Without this function, a target could write
    such a path into a repository, and so make every later run fail.
    """
    return text.partition("\0")[0]


def _expand(path: str, home: str) -> str:
    return home + path[1:] if path.startswith("~/") else path


def _read(path: str) -> str:
    return _read_bytes(path, MAX_BYTES).decode(errors="surrogateescape")


def _read_bytes(path: str, most: int) -> bytes:
    """Return up to `most` bytes of a regular file. Return b"" for other files, such as a FIFO."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return b""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # Do not ask for `most` bytes if the file is smaller, because Python would allocate a
            # buffer of this size, and that takes longer than reading a small file.
            return os.read(fd, min(most, found.st_size))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return b""
