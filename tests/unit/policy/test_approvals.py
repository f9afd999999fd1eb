"""Test the user's approvals of manifests, with which servers ask for grants. An approval applies to
exactly the content that the user was shown, and is stored in a directory that only the user can
write to.
"""

import json
import os
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.directories import Directories, directories
from corral.errors import ManifestError, PolicyError
from corral.policy import approvals, user_config
from corral.policy.merge import merge
from corral.policy.model import Source

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX modes and links")
MANIFEST = 'version = 1\n[filesystem]\nwrite = ["./data"]\n'


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Move the user's configuration directory into the test's directory."""
    for name in ("XDG_CONFIG_HOME", "APPDATA", "LOCALAPPDATA", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return os.path.join(directories().config, approvals.STORE)


@pytest.fixture
def server(tmp_path):
    path = tmp_path / "server"
    (path / "data").mkdir(parents=True)
    (path / "corral.toml").write_text(MANIFEST)
    return path


def run(server, tmp_path):
    manifest, digest = approvals.request_for(str(server))
    source = Source(manifest=manifest, trust="request", approved=approvals.is_approved(digest))
    return merge([source], home=str(tmp_path / "home"), cwd=str(tmp_path))


def test_a_request_counts_after_its_approval(store, server, tmp_path):
    with pytest.raises(PolicyError, match="more than you approved"):
        run(server, tmp_path)
    approval = approvals.approve(str(server))
    [grant] = run(server, tmp_path).grants
    assert (grant.path, grant.access) == (str(server / "data"), "write")
    assert approvals.list_approvals() == [approval]
    assert approval.directory == str(server)
    assert approval.asks == (f"read and write {server / 'data'}",)
    assert approvals.revoke(approval.digest)
    assert not approvals.revoke(approval.digest)
    with pytest.raises(PolicyError, match="more than you approved"):
        run(server, tmp_path)


def change_text(server):
    (server / "corral.toml").write_text(MANIFEST + "# more\n")


def change_place(server):
    server.rename(server.parent / "moved")
    return server.parent / "moved"


def change_link(server):
    (server / "data").rmdir()
    (server / "data").symlink_to(server.parent)


def change_name(server):
    (server / "corral.toml").unlink()
    (server / "corral.json").write_text('{"version": 1, "filesystem": {"write": ["./data"]}}')


def test_an_approval_that_could_not_be_read_again_is_an_error(store, server):
    """Approve a manifest that is small enough, although its stored approval would be too large to
    be read again: its paths need three times as many bytes in the approval. Nothing must be stored.
    """

    def ask(count: int) -> None:
        paths = ",\n".join(f'"{("é" * 60 + "/") * 30}{at}"' for at in range(count))
        text = f"version = 1\n[filesystem]\nread = [{paths}]\n"
        (server / "corral.toml").write_text(text, encoding="utf-8")

    ask(250)
    with pytest.raises(PolicyError, match="is larger than 1 MiB"):
        approvals.approve(str(server))
    assert approvals.list_approvals() == []
    ask(10)
    assert approvals.is_approved(approvals.approve(str(server)).digest)


@pytest.mark.parametrize(
    "change",
    [change_text, change_place, pytest.param(change_link, marks=pytest.mark.links), change_name],
)
def test_any_change_needs_a_new_approval(store, server, change):
    approvals.approve(str(server))
    assert approvals.is_approved(approvals.request_for(str(server))[1])
    server = change(server) or server
    assert not approvals.is_approved(approvals.request_for(str(server))[1])


@pytest.mark.links
def test_a_link_swapped_after_the_digest_was_taken_is_noticed(store, server, tmp_path):
    approvals.approve(str(server))
    manifest, digest = approvals.request_for(str(server))
    source = Source(manifest=manifest, trust="request", approved=approvals.is_approved(digest))
    assert merge([source], home=str(tmp_path / "home"), cwd=str(tmp_path)).grants
    (tmp_path / "elsewhere").mkdir()
    (server / "data").rmdir()
    (server / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PolicyError, match="no longer leads to the file that you approved"):
        merge([source], home=str(tmp_path / "home"), cwd=str(tmp_path))


def test_a_request_that_changed_after_it_was_shown_is_not_approved(store, server):
    shown = approvals.request_for(str(server))[1]
    change_text(server)
    with pytest.raises(PolicyError, match="changed while you read it"):
        approvals.approve(str(server), expected=shown)
    assert approvals.list_approvals() == []
    assert approvals.approve(str(server), expected=approvals.request_for(str(server))[1])


def test_directories_without_a_request_need_no_approval(store, server):
    (server / "corral.toml").unlink()
    assert approvals.request_for(str(server)) is None
    with pytest.raises(PolicyError, match="nothing to approve"):
        approvals.approve(str(server))


def test_two_manifests_in_a_directory_are_an_error(store, server):
    (server / "corral.json").write_text('{"version": 1}')
    with pytest.raises(PolicyError, match="both"):
        approvals.request_for(str(server))


@pytest.mark.links
def test_a_manifest_is_never_read_through_a_link(store, server, tmp_path):
    (tmp_path / "other.toml").write_text(MANIFEST)
    (server / "corral.toml").unlink()
    (server / "corral.toml").symlink_to(tmp_path / "other.toml")
    with pytest.raises(ManifestError):
        approvals.request_for(str(server))


@POSIX
def test_the_store_of_approvals_is_private_and_replaced_as_a_whole(store, server):
    approval = approvals.approve(str(server))
    assert stat.S_IMODE(os.lstat(store).st_mode) == 0o700
    path = os.path.join(store, approval.digest)
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    assert os.listdir(store) == [approval.digest]
    approvals.approve(str(server))
    assert os.listdir(store) == [approval.digest]


def loosen_file(path):
    os.chmod(path, 0o666)


def loosen_store(path):
    os.chmod(os.path.dirname(path), 0o777)


def link_file(path):
    os.rename(path, path + ".real")
    os.symlink(path + ".real", path)


def link_store(path):
    store = os.path.dirname(path)
    os.rename(store, store + ".real")
    os.symlink(store + ".real", store)


def empty_file(path):
    with open(path, "w", encoding="ascii"):
        pass


def other_digest(path):
    with open(path, "w", encoding="ascii") as file:
        json.dump({"digest": "0" * 64}, file)


def nest_file(path):
    with open(path, "w", encoding="ascii") as file:
        file.write("[" * 500_000)


@POSIX
@pytest.mark.parametrize(
    "spoil", [loosen_file, loosen_store, link_file, link_store, empty_file, other_digest, nest_file]
)
def test_a_broken_store_approves_nothing(store, server, spoil):
    approval = approvals.approve(str(server))
    assert approvals.is_approved(approval.digest)
    spoil(os.path.join(store, approval.digest))
    assert not approvals.is_approved(approval.digest)
    assert approvals.list_approvals() == []


@POSIX
@pytest.mark.parametrize("spoil", [loosen_store, link_store])
def test_a_broken_store_accepts_no_approvals(store, server, spoil):
    spoil(os.path.join(store, approvals.approve(str(server)).digest))
    with pytest.raises(PolicyError, match="only you can write"):
        approvals.approve(str(server))


@POSIX
def test_a_file_of_another_user_approves_nothing(store, server):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    approval = approvals.approve(str(server))
    os.chown(os.path.join(store, approval.digest), 12345, 12345)
    assert not approvals.is_approved(approval.digest)


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a" * 64 + "/", "A" * 64, "/etc/passwd", "0" * 63, "\0" * 64]
)
def test_an_approval_can_be_revoked_only_by_its_digest(store, server, name):
    approvals.approve(str(server))
    assert not approvals.is_approved(name)
    assert not approvals.revoke(name)


@given(
    st.lists(st.binary(max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=3), max_size=3),
)
def test_different_contents_have_different_digests(contents, subject):
    found = {}
    for content in contents:
        for split in range(len(subject) + 1):
            real_paths = tuple((text, "") for text in subject[split:])
            key = (content, tuple(subject[:split]), real_paths)
            assert found.setdefault(approvals.request_digest(*key), key) == key


# The tests below check the paths of corral's configuration, state and cache directories, and the
# ceilings in `config.toml`.


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="only other systems use XDG")
def test_relative_xdg_variables_are_ignored():
    environ = {
        "HOME": "/h",
        "XDG_CONFIG_HOME": "relative",
        "XDG_STATE_HOME": "/s",
        "XDG_CACHE_HOME": "",
    }
    found = directories(environ)
    assert found == Directories(
        config="/h/.config/corral", state="/s/corral", cache="/h/.cache/corral"
    )


def test_without_a_configuration_there_are_no_ceilings(tmp_path):
    assert user_config.load(str(tmp_path)).ceilings is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[ceilings]\nmemroy = 1", "ceilings.memroy"), ("[limits]\nmemory = '1G'", "limits"), ("ceilings = 1", "ceilings"),
        ("[ceilings]\nmemory = -1", "ceilings.memory"), ("[ceilings]\n'a.b' = 1", "ceilings.'a.b'"), ("x", ""),
    ],
)  # fmt: skip
def test_mistakes_in_ceilings_are_named(tmp_path, text, key):
    (tmp_path / "config.toml").write_text(text)
    (tmp_path / "config.toml").chmod(0o600)
    with pytest.raises(ManifestError) as caught:
        user_config.load(str(tmp_path))
    assert caught.value.mistakes[0][2] == key


@POSIX
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_ceilings_that_other_users_could_write_are_refused(tmp_path, mode):
    path = tmp_path / "config.toml"
    path.write_text('[ceilings]\nmemory = "1G"\n')
    path.chmod(0o644)
    assert user_config.load(str(tmp_path)).ceilings.limits == {"memory": 1 << 30}
    path.chmod(mode)
    with pytest.raises(PolicyError) as caught:
        user_config.load(str(tmp_path))
    assert "chmod go-w" in caught.value.hint


@POSIX
def test_ceilings_of_another_user_are_refused(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    path = tmp_path / "config.toml"
    path.write_text("[ceilings]\n")
    path.chmod(0o644)
    os.chown(path, 12345, 12345)
    with pytest.raises(PolicyError, match="belongs to user 12345"):
        user_config.load(str(tmp_path))
