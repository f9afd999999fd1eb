"""Test the Python preload, a module that corral makes Python load before the server.

The tests run on any system. Stubs imitate an AppContainer: they replace the calls that Windows
denies in a container, and fail as these calls do.
"""

import builtins
import os
import subprocess
import sys
import tempfile
import types

import pytest

from corral.platforms.windows.files.file_trees import Listing
from corral.platforms.windows.runtime_copies import python_preload as preload
from corral.platforms.windows.runtime_copies import store

DENIED = PermissionError(13, "Access is denied")


@pytest.fixture
def container(monkeypatch, tmp_path):
    """Imitate the behaviour of Python 3.12.4 and newer in an AppContainer on Windows Server 2025."""
    mkdir, lstat, realpath, open_file, os_open = os.mkdir, os.lstat, os.path.realpath, open, os.open
    named, closed = [], set()

    def closing_mkdir(path, mode=0o777, *, dir_fd=None):
        mkdir(path, mode, dir_fd=dir_fd)
        if mode == 0o700:
            closed.add(str(path))

    def guarded_lstat(path, **options):
        if not str(path).startswith(str(tmp_path)):
            raise DENIED
        return lstat(path, **options)

    def no_final_path(path, *, strict=False):
        if strict:
            raise DENIED
        return realpath(path)

    def without_nul(call):
        def opened(path, *arguments, **options):
            if path in preload.NUL and "opener" not in options:
                raise DENIED
            return call(path, *arguments, **options)

        return opened

    pipes = types.SimpleNamespace(
        **{name: lambda name, *more: named.append(name) for name in preload.PIPE_CALLS}
    )
    monkeypatch.setitem(sys.modules, "_winapi", pipes)
    monkeypatch.setattr(os, "mkdir", closing_mkdir)
    monkeypatch.setattr(os, "lstat", guarded_lstat)
    monkeypatch.setattr(os.path, "realpath", no_final_path)
    monkeypatch.setattr(os, "open", without_nul(os_open))
    monkeypatch.setattr(builtins, "open", without_nul(open_file))
    monkeypatch.setattr("io.open", open_file)
    monkeypatch.setenv("TEMP", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return types.SimpleNamespace(closed=closed, named=named, pipes=pipes)


def test_a_temporary_directory_is_open_to_its_maker(container):
    # Without the preload, even the process that made the directory cannot open it.
    assert tempfile.mkdtemp() in container.closed
    preload.install()
    assert tempfile.mkdtemp() not in container.closed
    os.makedirs(os.path.join(tempfile.mkdtemp(), "a", "b"), 0o700)
    assert len(container.closed) == 1


def test_a_strict_realpath_works(container, tmp_path):
    with pytest.raises(PermissionError):
        os.path.realpath(tmp_path, strict=True)
    preload.install()
    assert os.path.realpath(tmp_path, strict=True) == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        os.path.realpath(tmp_path / "none", strict=True)
    with pytest.raises(PermissionError):
        os.path.realpath("/etc", strict=True)


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("\\\\.\\pipe\\python-pipe-1", "\\\\.\\pipe\\LOCAL\\python-pipe-1"),
        ("\\\\.\\PIPE\\pyc-1", "\\\\.\\pipe\\LOCAL\\pyc-1"),
        ("\\\\.\\pipe\\local\\x", "\\\\.\\pipe\\local\\x"),
        ("C:\\pipe\\x", "C:\\pipe\\x"),
    ],
)
def test_pipes_have_local_names(container, name, opened):
    preload.install()
    for call in preload.PIPE_CALLS:
        getattr(container.pipes, call)(name, 1)
    assert container.named == [opened] * 3


def test_a_nul_device_that_cannot_be_opened_is_replaced_by_an_empty_file(container, tmp_path):
    with pytest.raises(PermissionError):
        os.open("nul", os.O_RDWR)
    with pytest.raises(PermissionError):
        open("nul", "w").close()
    preload.install()
    descriptor = os.open("nul", os.O_RDWR)  # `subprocess` opens NUL in this way for DEVNULL
    done = subprocess.run(["cat"], stdin=descriptor, stdout=subprocess.PIPE, check=True)
    assert done.stdout == b""
    os.close(descriptor)
    with open("NUL", "w") as file:
        file.write("text")
    with open("nul") as file:
        assert file.read() == ""
    with open(tmp_path / "plain", "w") as file:  # Sanity check: other files are not replaced
        file.write("text")
    assert (tmp_path / "plain").read_text() == "text"


def test_the_nul_device_is_not_replaced_if_it_can_be_opened(container, monkeypatch):
    monkeypatch.setattr(preload, "is_nul_open", lambda: True)
    before = os.open
    preload.install()
    assert os.open == before
    # The preload does not repair NUL, so opening it still fails, as the fixture makes it fail.
    with pytest.raises(PermissionError):
        open("nul").close()


def test_a_hidden_environment_file_reads_as_empty(container, tmp_path, monkeypatch):
    """Make `open` fail for an existing `.env`. pydantic-settings would fail with this
    PermissionError, so the preload opens an empty file instead.
    """
    for name in (".env", ".Env.local", "secret", ".envrc"):
        (tmp_path / name).write_text("TOKEN=told")
    call = builtins.open

    def denied(file, *arguments, **options):
        if "opener" not in options and isinstance(file, (str, os.PathLike)):
            raise DENIED
        return call(file, *arguments, **options)

    monkeypatch.setattr(builtins, "open", denied)
    # Without the preload, the file cannot be opened.
    with pytest.raises(PermissionError):
        open(tmp_path / ".env").close()
    preload.install()
    for path in (tmp_path / ".env", str(tmp_path / ".Env.local")):
        with open(path, encoding="utf-8") as file:
            assert file.read() == ""
    assert (tmp_path / ".env").read_text() == ""
    for path, mode in ((".env", "w"), (".env", "r+"), ("secret", "r"), (".envrc", "r")):
        with pytest.raises(PermissionError):
            open(tmp_path / path, mode).close()


def test_readable_environment_files_are_read(container, tmp_path):
    (tmp_path / ".env").write_text("TOKEN=told")
    preload.install()
    assert (tmp_path / ".env").read_text() == "TOKEN=told"
    with pytest.raises(FileNotFoundError):
        open(tmp_path / ".env.local").close()


def test_python_loads_the_preload_by_itself(tmp_path):
    """Check that Python loads the preload even in isolated mode, and that the preload imports
    nothing but `__future__`.
    """
    listing = Listing(directories=("", "Lib", "Lib\\site-packages"), files=())
    for name, text in store._preload_texts(listing):
        (tmp_path / name.rpartition("\\")[2]).write_text(text)
    code = (
        "import site, sys; before = set(sys.modules); site.addsitedir(sys.argv[1]);"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path)], capture_output=True, check=True
    )
    assert done.stdout.split() == [b"['__future__',", b"'corral_python_preload']"]


def test_a_changed_preload_makes_another_copy(tmp_path, monkeypatch):
    (tmp_path / "prefix" / "Lib" / "site-packages").mkdir(parents=True)
    program = store.Program(
        path="x",
        argv=("x",),
        reads=(str(tmp_path / "prefix"),),
        why=("the prefix of python",),
        search=("x",),
    )

    def planned():
        (tree,) = store.plan(program, directory="C:\\store").trees
        return tree

    first = planned()
    names = [name for name, _ in first.texts]
    assert [name.rpartition("\\")[2] for name in names] == [
        "corral_python_preload.py",
        "corral_python_preload.pth",
    ]
    (tmp_path / "other.py").write_text("pass")
    monkeypatch.setattr(store, "PYTHON_PRELOAD", str(tmp_path / "other.py"))
    assert planned().directory != first.directory
