"""Test how private directories are removed while another process replaces files in them. Also test
how the home that a server keeps between runs gets its links to granted paths.
"""

from __future__ import annotations

import errno
import os
import sys

import pytest

from corral.abi import linux
from corral.platforms.run_records import Budget, is_run_name

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX directories")
if sys.platform != "win32":
    from corral.platforms.posix import run_directories


@pytest.fixture
def left(tmp_path):
    path = tmp_path / "left"
    (path / "home" / "inner").mkdir(parents=True)
    (path / "home" / "file").touch()
    return path


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.mkdir(mode=0o755)
    (path / "file").touch()
    yield path
    assert os.listdir(path) == ["file"]
    assert os.stat(path).st_mode & 0o777 == 0o755


def swap_before(monkeypatch, name, path, victim):
    """Replace `path` with a link to `victim` just before `os`'s function `name` first runs."""
    real = getattr(os, name)

    def swapped(*arguments, **options):
        monkeypatch.setattr(os, name, real)
        os.rename(path, f"{path}-moved")
        os.symlink(victim, path)
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, swapped)


@pytest.mark.parametrize("when", ["fstat", "scandir", "rmdir"])
def test_a_top_directory_that_becomes_a_link_is_not_followed(left, victim, monkeypatch, when):
    swap_before(monkeypatch, when, left, victim)
    run_directories.remove(str(left), Budget())
    assert left.is_symlink()


@pytest.mark.parametrize("when", ["chmod", "unlink"])
def test_an_inner_directory_that_becomes_a_link_is_not_followed(left, victim, monkeypatch, when):
    swap_before(monkeypatch, when, left / "home", victim)
    run_directories.remove(str(left), Budget())


def test_a_leftover_directory_that_nothing_changes_is_removed_entirely(left):
    run_directories.remove(str(left), Budget())
    assert not left.exists()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can chown")
@pytest.mark.parametrize("name", ["home", "home/inner"])
def test_another_users_directory_in_a_kept_home_is_not_emptied(left, name):
    """Put another user's directory into the home that a server keeps between runs. A target that
    runs as root may be able to move such a directory there, although it cannot delete the files in
    it. When corral removes the home, it must not delete these files either.
    """
    (left / name / "kept").touch()
    os.chmod(left / name, 0o755)
    os.chown(left / name, 12345, 12345)
    run_directories.remove(str(left), Budget())
    assert (left / name / "kept").exists()
    assert (left / name).stat().st_mode & 0o777 == 0o755
    os.chown(left / name, 0, 0)
    run_directories.remove(str(left), Budget())
    assert not left.exists()  # Sanity check: root's own directory is removed


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can chown")
def test_the_targets_directories_in_a_work_directory_are_removed():
    """Remove directories that belong to another user id. If root runs corral, the target has its
    own user id and owns the directories that it makes.
    """
    path = run_directories.work_directory(f"1-{os.urandom(4).hex()}")
    for name in ("", "/home", "/home/inner", "/tmp"):
        os.mkdir(path + name, 0o700)
    for name in ("/home", "/home/inner", "/tmp"):
        os.chown(path + name, 12345, 12345)
    run_directories.remove(path, Budget())
    assert not os.path.exists(path)


def test_removal_stops_at_its_budget(left):
    for number in range(20):
        (left / "home" / str(number)).touch()
    run_directories.remove(str(left), Budget(10))
    assert left.exists()
    for _ in range(4):
        run_directories.remove(str(left), Budget(10))
    assert not left.exists()


def test_only_names_of_runs_are_recognized():
    assert is_run_name("1-0123abcd")
    for text in (
        "",
        "1",
        "1-",
        "-0123abcd",
        "1-0123ABCD",
        "1-0123abcde",
        "1-0123abc/",
        "../0123abcd",
    ):
        assert not is_run_name(text)


def test_links_are_made_without_following_links_of_a_target(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for path in (home, elsewhere):
        path.mkdir()
    (home / "led").symlink_to(elsewhere)
    (home / "taken").write_text("the server's own")
    granted = str(tmp_path / "granted")
    names = ("notes", "a/b/notes", "led/notes", "taken/notes")
    run_directories.make_links(str(home), [(name, granted) for name in names])
    assert os.readlink(home / "notes") == os.readlink(home / "a/b/notes") == granted
    assert list(elsewhere.iterdir()) == []
    assert (home / "taken").read_text() == "the server's own"


@pytest.fixture(params=["renameat2", "rename"])
def renaming(request, monkeypatch):
    """Return the module and the name of the call that renames a server's own file: renameat2 on
    Linux, and rename on other systems and on file systems such as NFS.
    """
    if request.param == "renameat2" and sys.platform != "linux":
        pytest.skip("this system has no renameat2")
    if request.param == "rename":
        monkeypatch.setattr(linux, "renameat2", _unsupported)
    return (linux if request.param == "renameat2" else os), request.param


def _unsupported(*_):
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no renameat2")
def test_a_servers_own_file_is_renamed_in_one_step(tmp_path, monkeypatch):
    """Check that corral makes no placeholder at the new name. A placeholder would remain if corral
    were killed before the rename.
    """
    (tmp_path / "out.txt").write_text("the server's own")
    (tmp_path / "reports").mkdir()
    names, made, rename = ["out.txt", "reports"], [], linux.renameat2

    def watched(*arguments):
        made.extend(os.listdir(tmp_path))
        rename(*arguments)

    monkeypatch.setattr(linux, "renameat2", watched)
    for name in names:
        run_directories.make_links(str(tmp_path), [(name, "/granted")])
    assert sorted(made) == ["out.txt", "out.txt", "out.txt.before-grant", "reports", "reports"]


@pytest.mark.usefixtures("renaming")
def test_a_servers_own_file_does_not_hide_a_grant(tmp_path):
    """Create a file, a directory and a link, and then grant paths with the same names. Each of the
    three must be kept, under a new name.
    """
    (tmp_path / "out.txt").write_text("the server's own")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/one").touch()
    (tmp_path / "link").symlink_to("out.txt")
    links = [(name, f"/granted/{name}") for name in ("out.txt", "reports", "link")]
    for _ in range(2):  # the second run finds the links of the first
        run_directories.make_links(str(tmp_path), links)
        for name, target in links:
            assert os.readlink(tmp_path / name) == target
    assert (tmp_path / "out.txt.before-grant").read_text() == "the server's own"
    assert (tmp_path / "reports.before-grant/one").exists()
    assert os.readlink(tmp_path / "link.before-grant") == "out.txt"


def test_two_runs_at_once_do_not_replace_the_servers_own_file(tmp_path, monkeypatch, renaming):
    """Start another run of the server just before the file is renamed. The file must survive under
    its new name.
    """
    (tmp_path / "out.txt").write_text("the server's own")
    links, rename, others = [("out.txt", "/granted")], getattr(*renaming), []

    def late(*arguments, **options):
        if not others:
            others.append("began")
            run_directories.make_links(str(tmp_path), links)
        rename(*arguments, **options)

    monkeypatch.setattr(*renaming, late)
    run_directories.make_links(str(tmp_path), links)
    assert others  # the other run did start
    assert os.readlink(tmp_path / "out.txt") == "/granted"
    assert (tmp_path / "out.txt.before-grant").read_text() == "the server's own"


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_full_disk_is_an_error_if_a_file_must_be_renamed(
    tmp_path, monkeypatch, renaming, is_directory
):
    """Make the rename fail because the disk is full. The next start must rename the file."""
    own, links = tmp_path / "out.txt", [("out.txt", "/granted")]
    if is_directory:
        own.mkdir()
    else:
        own.write_text("the server's own")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(*renaming, full)
        with pytest.raises(OSError, match="No space left"):
            run_directories.make_links(str(tmp_path), links)
    assert os.listdir(tmp_path) == ["out.txt"]
    run_directories.make_links(str(tmp_path), links)
    assert os.readlink(own) == "/granted"
    aside = tmp_path / "out.txt.before-grant"
    assert aside.is_dir() if is_directory else aside.read_text() == "the server's own"


@pytest.mark.usefixtures("renaming")
@pytest.mark.parametrize("ending", [".before-grant", "x" * 245])
def test_a_servers_own_file_stays_if_it_cannot_be_renamed(tmp_path, ending):
    """Let the file's new name be taken, or be longer than 255 bytes. The start must not fail."""
    name = "out" + ending.removeprefix(".before-grant")
    for path in (name, "out.before-grant"):
        (tmp_path / path).write_text(path)
    run_directories.make_links(str(tmp_path), [(name, "/granted"), ("notes", "/granted")])
    assert (tmp_path / name).read_text() == name
    assert (tmp_path / "out.before-grant").read_text() == "out.before-grant"
    assert os.readlink(tmp_path / "notes") == "/granted"


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root can give files away"
)
def test_a_file_in_place_of_a_new_directory_keeps_its_owner(tmp_path, monkeypatch):
    """Check that corral does not change the owner of a file through a hard link. While corral
    prepares a run, the target of another run with the same home can remove a directory that corral
    has just made, and put a hard link in its place.
    """
    home, victim, make = tmp_path / "home", tmp_path / "victim", os.mkdir
    home.mkdir()
    victim.touch()
    os.chown(home, 4321, 4321)

    def replaced(name, mode, *, dir_fd):
        make(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.link(victim, home / name)

    with monkeypatch.context() as changed:
        changed.setattr(os, "mkdir", replaced)
        run_directories.make_links(str(home), [("a/notes", "/granted")])
    assert os.path.samefile(home / "a", victim)
    assert os.stat(victim).st_uid == 0
    run_directories.make_links(str(home), [("b/notes", "/granted")])
    assert os.stat(home / "b").st_uid == 4321  # Sanity check: a directory gets the home's owner


@pytest.mark.parametrize("name", ["{long}", "a/{long}", "{long}/notes"])
def test_a_link_that_cannot_be_made_is_an_error(tmp_path, name):
    """Use a name longer than 255 bytes, which the kernel refuses for every user. The target cannot
    have caused this, so corral must fail instead of skipping the link.
    """
    name = name.format(long="x" * 256)
    with pytest.raises(OSError, match="File name too long") as error:
        run_directories.make_links(str(tmp_path), [("notes", "/granted"), (name, "/granted")])
    assert error.value.filename == f"{tmp_path}/{name}"
    assert os.readlink(tmp_path / "notes") == "/granted"


@pytest.mark.skipif(os.geteuid() == 0, reason="file permissions do not apply to root")
def test_a_directory_that_the_server_closed_gets_no_link(tmp_path):
    """Remove all permissions from a directory in the server's home, as the server itself can do.
    corral must skip the link in this directory, because an error would also prevent every later run
    of the server.
    """
    (tmp_path / "closed").mkdir(mode=0)
    links = [("closed/notes", "/granted"), ("notes", "/granted")]
    run_directories.make_links(str(tmp_path), links)
    assert os.readlink(tmp_path / "notes") == "/granted"


def test_making_links_in_a_missing_directory_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        run_directories.make_links(str(tmp_path / "missing"), [("notes", "/granted")])


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root's targets have another id"
)
def test_concurrent_first_starts_of_roots_target_make_one_home(tmp_path):
    """Let six runs make the same home at once, and repeat this a hundred times. Without a lock,
    about one start in several hundred failed, because another run had already given the home to the
    target.
    """
    failed = 0
    for number in range(100):
        home = tmp_path / f"{number}" / "homes" / "server"
        home.parent.parent.mkdir()
        step = run_directories.State(
            path=str(home), inside="/state", server=("server",), owner=(65534, 65534)
        )
        waiting, start = os.pipe()
        started = [fork_start(step, waiting, start) for _ in range(6)]
        os.close(start)
        failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in started)
        os.close(waiting)
        assert home.stat().st_uid == 65534
        assert sorted(os.listdir(home.parent)) == ["server", "server.server"]
    assert failed == 0


def fork_start(step, waiting, start):
    """Fork a process that applies the step once all other processes have closed `start`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.close(start)
        os.read(waiting, 1)
        step.apply(None)
        code = 0
    finally:
        os._exit(code)
