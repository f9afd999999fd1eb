"""Test how corral lists a tree whose links were chosen by an untrusted author."""

import os

import pytest

from corral.platforms.windows.files import file_trees
from corral.platforms.windows.files.file_trees import Unsuitable, list_files

MANY = 60_000
SHARE = r"\\evil.example\share"


@pytest.fixture
def tree(tmp_path):
    top = tmp_path.resolve() / "python"
    top.mkdir()
    (top / "python.exe").write_text("program")
    return top


@pytest.fixture
def opened(monkeypatch):
    """Return a list that records every path passed to realpath, because realpath makes the system
    follow links.
    """
    paths, real = [], os.path.realpath

    def follow(path):
        paths.append(path)
        return real(path)

    monkeypatch.setattr(file_trees.os.path, "realpath", follow)
    return paths


@pytest.mark.links
def test_a_link_that_names_the_tree_by_another_path_is_followed(tree, opened):
    (tree.parent / "alias").symlink_to(tree)
    (tree / "python3.exe").symlink_to(tree.parent / "alias" / "python.exe")
    assert list_files(str(tree)).links == (("python3.exe", "python.exe"),)
    assert opened == [str(tree.parent / "alias")]


@pytest.mark.links
@pytest.mark.parametrize("hops", [1, 3])
def test_no_link_to_another_machine_is_followed(tree, opened, hops):
    """Use a link that leads to a network share through local links. corral must not let Windows
    follow this link. Otherwise Windows would send the user's credentials to the machine that has
    the share.
    """
    os.symlink(SHARE, tree.parent / "hop0")
    for hop in range(1, hops):
        os.symlink(f"hop{hop - 1}", tree.parent / f"hop{hop}")
    (tree / "python3.exe").symlink_to(tree.parent / f"hop{hops - 1}" / "below" / "python.exe")
    with pytest.raises(Unsuitable, match="link to a path outside this directory"):
        list_files(str(tree))
    assert opened == []


@pytest.mark.links
@pytest.mark.parametrize("text", [SHARE, "../loop/x"])
def test_links_that_lead_nowhere_are_refused_unopened(tree, opened, text):
    os.symlink("loop", tree.parent / "loop")
    os.symlink(text, tree / "python3.exe")
    with pytest.raises(Unsuitable, match="link to a path outside this directory"):
        list_files(str(tree))
    assert opened == []


def test_many_links_are_followed_in_linear_time():
    """Follow many links. This would take minutes if the time grew with the square of their
    number.
    """
    names, files, top = [f"link{number}" for number in range(MANY)], {"file": 1}, frozenset({""})
    followed = file_trees._follow(dict.fromkeys(names, "FILE"), files, top)
    assert followed == dict.fromkeys(names, "file")
    circle = dict(zip(names, [*names[1:], names[0]], strict=True))
    assert file_trees._follow(circle, files, top) == {}
    with pytest.raises(Unsuitable, match="a link to a directory"):
        file_trees._follow({"a": "b", "b": "lib"}, files, top | {"lib"})
