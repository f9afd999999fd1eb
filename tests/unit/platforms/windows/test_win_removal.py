"""Test that corral can remove any tree that a target can make."""

import os

import pytest

from corral.plan.model import Results
from corral.platforms.windows.files import file_trees


def deep(top, levels, name):
    """Make nested directories one by one, as a target would, because the whole path may be too long
    for one call.
    """
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs directories that can be opened")
@pytest.mark.parametrize(("levels", "name"), [(3000, "d"), (40, "x" * 200)])
def test_a_very_deep_tree_is_removed(tmp_path, levels, name):
    """Make a tree that is deeper than Python's recursion limit, or whose paths are longer than this
    system allows.
    """
    top = tmp_path / "private"
    top.mkdir()
    deep(str(top), levels, name)
    file_trees.remove(str(top))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.links
def test_the_target_of_a_link_is_not_removed(tmp_path):
    top, outside = tmp_path / "private", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    (outside / "file").touch()
    (top / "directory").symlink_to(outside)
    (top / "file").symlink_to(outside / "file")
    file_trees.remove(str(top))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").exists()


def test_removing_a_missing_directory_is_not_an_error(tmp_path):
    file_trees.remove(str(tmp_path / "none"))


def test_a_failing_release_does_not_prevent_the_others():
    done = []

    def broken():
        raise ValueError("not expected")

    def resisting():
        raise OSError("in the way")

    acts = (lambda: done.append(1), broken, resisting, lambda: done.append(2))
    kinds = [
        type(f"Made{number}", (), {"release": staticmethod(act)}) for number, act in enumerate(acts)
    ]
    results = Results()
    for kind in kinds:
        results.add(kind())
    with pytest.raises(ValueError, match="not expected"):
        results.release()
    assert done == [2, 1]
    assert [results.find(kind) for kind in kinds] == [None] * len(kinds)
