"""Test that the home directory and /etc are not granted, and that the error suggests smaller grants
that work.
"""

import os
import shlex
import sys

import pytest

from corral.errors import PolicyError
from corral.policy import home_grants
from corral.policy.manifest import from_data
from corral.policy.merge import merge
from corral.policy.model import Source
from corral.policy.secret_files import ETC_SECRETS

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "all" / "me"
    for name in ("notes", "my src", "bin", ".ssh", ".config/gh", "snap/firefox", "closed"):
        (home / name).mkdir(parents=True)
    (home / "file").write_text("")
    (home / "linked").symlink_to("notes")
    (home / "bad\x1bname").mkdir()
    # Replace `os.access`, because root can read a directory whatever its mode is.
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("closed"))
    return home


def grant(home, access, *paths, approved_request=False):
    manifest = from_data({"version": 1, "filesystem": {access: [*map(str, paths)]}}, "x")
    if approved_request:
        source = Source(manifest=manifest, trust="request", approved=True)
    else:
        source = Source(manifest=manifest)
    return merge([source], home=str(home), cwd=str(home)).grants


@POSIX
@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize("approved", [False, True])
def test_a_home_and_directories_above_it_are_refused_with_working_flags(home, access, approved):
    for path in ("~", str(home), str(home.parent), "/", f"{home}/notes/..", str(home) + "//"):
        with pytest.raises(PolicyError, match="a home directory, which is never granted") as error:
            grant(home, access, path, approved_request=approved)
        words = shlex.split(str(error.value.hint).partition(": ")[2])
        assert words[::2] == [f"--{access}"] * 2
        assert words[1::2] == [str(home / "my src"), "~/notes"]
        assert len(grant(home, access, *words[1::2])) == 2


@POSIX
def test_the_home_is_refused_under_another_name(home, tmp_path):
    (tmp_path / "other").symlink_to(home)
    with pytest.raises(PolicyError, match="is a home directory"):
        grant(home, "read", tmp_path / "other")


@POSIX
@pytest.mark.parametrize("said", ["/", "/nonexistent/elsewhere"])
def test_the_home_in_the_user_database_is_refused_too(home, monkeypatch, said):
    monkeypatch.setattr(home_grants, "recorded_home", lambda: str(home))
    for path in (home, home.parent):
        with pytest.raises(PolicyError, match="a home directory"):
            grant(said, "read", path)
    assert grant(said, "read", home / "notes")


@POSIX
@pytest.mark.parametrize("path", ["/home", "/Users"])
def test_the_directory_of_all_homes_is_refused_to_root_too(home, path):
    if not os.path.isdir(path):
        pytest.skip(f"no {path} here")
    with pytest.raises(PolicyError, match="contains a home directory"):
        grant(home, "read", path)


@POSIX
def test_at_most_ten_flags_are_printed(home):
    for number in range(20):
        (home / f"n{number}").mkdir()
    with pytest.raises(PolicyError) as error:
        grant(home, "read", "~")
    assert str(error.value.hint).count("--read") == 10


@POSIX
def test_a_suggested_directory_for_writing_does_not_contain_corral(home, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(home / "notes" / "venv"))
    with pytest.raises(PolicyError) as error:
        grant(home, "write", "~")
    assert "notes" not in str(error.value.hint)


@POSIX
def test_an_empty_home_still_has_a_hint(tmp_path):
    (tmp_path / "me").mkdir()
    with pytest.raises(PolicyError) as error:
        grant(tmp_path / "me", "read", "~")
    assert "make a directory" in str(error.value.hint)


@POSIX
@pytest.mark.parametrize("access", ["read", "write"])
def test_etc_is_refused(home, access):
    with pytest.raises(PolicyError, match="passwords and keys"):
        grant(home, access, "/etc")


@POSIX
def test_secrets_below_etc_are_refused_and_certificates_are_accepted(home, monkeypatch, tmp_path):
    etc = tmp_path / "etc"
    monkeypatch.setattr(home_grants, "ETC", str(etc))
    for name in ("ssl/private", "ssl/certs", "ssh", "NetworkManager/system-connections", "cron.d"):
        (etc / name).mkdir(parents=True)
    for name in ("shadow", "ssh/ssh_config", "hosts"):
        (etc / name).write_text("")
    for name in ("shadow", "ssh", "ssh/ssh_config", "ssl", "ssl/private", "NetworkManager", ""):
        with pytest.raises(PolicyError, match=r"passwords (or|and) keys"):
            grant(home, "read", etc / name)
    for name in ("ssl/certs", "cron.d", "hosts"):
        assert grant(home, "read", etc / name)


def test_the_table_of_secrets_in_etc_has_the_usual_names():
    assert {"shadow", "gshadow", "sudoers", "ssh", "ssl/private"} < set(ETC_SECRETS)
    assert not [name for name in ETC_SECRETS if name.startswith("/")]
