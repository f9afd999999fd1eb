"""Test that corral refuses write access to every file that a later run of corral starts or loads.
It must recognize such a file by any of its paths.
"""

import os
import site
import sys

import pytest

from corral import __main__ as entry
from corral import directories
from corral.paths.followed_links import follow
from corral.policy import own_files
from corral.policy.own_files import check_own, own_paths, refuse_hard_links
from corral.policy.path_grants import Refused, make_grant

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")


@pytest.fixture
def home(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path


def refused(home, path):
    grant = make_grant("write", str(path))
    with pytest.raises(Refused) as error:
        check_own(grant, own_paths(str(home)), {})
    # Sanity check: a read grant is allowed
    check_own(make_grant("read", str(path)), own_paths(str(home)), {})
    return str(error.value)


def allowed(home, path):
    check_own(make_grant("write", str(path)), own_paths(str(home)), {})


def test_the_program_and_links_to_it_cannot_be_written(home, monkeypatch):
    for name in ("bin", "tools/v1", "real"):
        (home / name).mkdir(parents=True)
    (home / "real/corral").write_text("")
    (home / "tools/v1/corral").symlink_to(home / "real/corral")
    (home / "tools/current").symlink_to("v1")
    (home / "bin/corral").symlink_to("../tools/current/corral")
    allowed(home, home / "bin")
    monkeypatch.setenv("PATH", f"/nowhere:{home / 'bin'}:/usr/bin")
    for name in ("bin", "tools", "tools/v1", "real", "real/corral"):
        assert "corral's program" in refused(home, home / name)
    allowed(home, home / "data")


def test_the_parent_of_private_directories_of_runs_cannot_be_written(home, monkeypatch):
    """Check that the directory above all runs' private directories cannot be granted for writing. A
    target without namespaces could use such a grant to rename its own private directory or another
    run's.
    """
    (home / "tmp/deep").mkdir(parents=True)
    (home / "link").symlink_to("tmp")
    monkeypatch.setattr(directories, "WORK_DIRECTORIES", str(home / "link/corral-"))
    assert "private directories of runs" in refused(home, home / "tmp")
    assert "private directories of runs" in refused(home, home / "link")
    allowed(home, home / "tmp/deep")


def test_the_started_program_cannot_be_written(home, monkeypatch):
    (home / "data/corral").write_text("")
    allowed(home, home / "data")
    monkeypatch.setattr(sys, "argv", [str(home / "data/corral")])
    assert "corral's program" in refused(home, home / "data")


def test_directories_of_modules_cannot_be_written(home, monkeypatch):
    (home / "data/deep").mkdir()
    for path in (home / "data", home / "data/absent.zip", home / "data/deep"):
        monkeypatch.setattr(sys, "path", [*sys.path, str(path)])
        assert "corral's modules" in refused(home, home / "data")
        monkeypatch.undo()
    allowed(home, home / "data")


@pytest.mark.parametrize("value", ["{}", "/nowhere:{}/deep", ":/nowhere", "/nowhere:"])
def test_directories_of_pythonpath_cannot_be_written(home, monkeypatch, value):
    """Check that the directories in PYTHONPATH cannot be granted for writing. An empty entry means
    the working directory.
    """
    monkeypatch.chdir(home / "data")
    allowed(home, home / "data")
    monkeypatch.setenv("PYTHONPATH", value.format(home / "data"))
    assert "PYTHONPATH" in refused(home, home / "data")


def test_the_users_site_cannot_be_written(home, monkeypatch):
    monkeypatch.setattr(site, "USER_SITE", str(home / "data/lib/site-packages"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    allowed(home, home / "data")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    # The grant is refused although the user's site-packages directory does not exist yet.
    refused(home, home / "data")


def test_a_module_cannot_be_written_under_another_name(home, monkeypatch):
    package, cache = home / "site/corral", home / "data/archive/x"
    package.mkdir(parents=True)
    cache.mkdir(parents=True)
    (package / "errors.py").write_text("")
    monkeypatch.setattr(own_files, "_code", lambda: str(package))
    grant = make_grant("write", str(home / "data"))
    assert own_files.find_hard_links() == frozenset()
    refuse_hard_links(grant, own_files.find_hard_links())
    os.link(package / "errors.py", cache / "any name")
    linked = own_files.find_hard_links()
    with pytest.raises(Refused, match="hard link to corral's code"):
        refuse_hard_links(grant, linked)
    with pytest.raises(Refused, match="is a hard link to corral's code"):
        refuse_hard_links(make_grant("write", str(cache / "any name")), linked)
    refuse_hard_links(make_grant("read", str(home / "data")), linked)
    (home / "other").mkdir()
    refuse_hard_links(make_grant("write", str(home / "other")), linked)
    monkeypatch.setattr(own_files, "MAX_ENTRIES", 1)
    for name in ("a", "b"):
        (home / "other" / name).write_text("")
    with pytest.raises(Refused, match="too many files") as error:
        refuse_hard_links(make_grant("write", str(home / "other")), linked)
    assert error.value.hint.endswith("uv tool install --reinstall --link-mode=copy .")


def test_every_link_on_the_path_to_corral_is_found(home):
    (home / "a").symlink_to("data")
    (home / "data/b").symlink_to(home / "a/c")
    (home / "data/c").symlink_to("../data")
    links = [str(home / name) for name in ("a", "data/b", "a", "data/c")]
    assert follow(str(home / "a/b/x")) == (links, str(home / "data/x"))
    (home / "loop").symlink_to("loop")
    assert follow(str(home / "loop")) == ([str(home / "loop")] * 41, "")
    assert follow(str(home / "data/../absent/")) == ([], str(home / "absent"))
    assert follow("/..") == ([], "/")


def test_the_entry_point_removes_pythonpath_and_the_users_site(home, monkeypatch):
    own = os.path.dirname(os.path.dirname(entry.__file__))
    standard = os.path.dirname(os.__file__)
    user_site = str(home / "user-site")
    monkeypatch.setattr(site, "USER_SITE", user_site)
    monkeypatch.setenv("PYTHONPATH", f"{home}/one/:two:{own}")
    monkeypatch.chdir(home / "data")
    kept = [standard, f"{standard}/lib-dynload", own, "/somewhere/site-packages"]
    foreign = [str(home / "bin"), str(home / "one"), "two", "", str(home / "data"), user_site]
    monkeypatch.setattr(sys, "path", [*foreign, *kept])
    entry.remove_foreign_paths()
    assert sys.path == (kept if not sys.flags.safe_path else [foreign[0], *kept])
    # If corral is installed in the user's site-packages, this directory stays on the path.
    monkeypatch.setattr(site, "USER_SITE", own)
    entry.remove_foreign_paths()
    assert own in sys.path
