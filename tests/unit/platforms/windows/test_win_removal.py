"""What a target could write is gone afterwards, whatever it made of it."""

import os

import pytest

from corral.plan.model import Results
from corral.platforms.windows.files import file_trees


def deep(top, levels, name):
    """Directories within directories, deeper than any path: made as a target would, one by one."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="directories cannot be opened there")
@pytest.mark.parametrize(("levels", "name"), [(3000, "d"), (40, "x" * 200)])
def test_a_tree_without_end(tmp_path, levels, name):
    """Deeper than Python's own recursion, and longer than this system's paths."""
    top = tmp_path / "private"
    top.mkdir()
    deep(str(top), levels, name)
    file_trees.remove(str(top))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.links
def test_what_a_link_leads_to_stays(tmp_path):
    top, outside = tmp_path / "private", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    (outside / "file").touch()
    (top / "directory").symlink_to(outside)
    (top / "file").symlink_to(outside / "file")
    file_trees.remove(str(top))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").exists()


def test_what_is_not_there_is_no_problem(tmp_path):
    file_trees.remove(str(tmp_path / "none"))


def test_one_undoing_that_breaks_keeps_no_other_from_being_done():
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
