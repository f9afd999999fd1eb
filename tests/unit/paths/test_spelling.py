"""Test names on file systems that ignore case. These tests imitate such a file system, and
`tests/vm/test_file_systems_emulated.py` uses a real one.
"""

import os

from corral.paths import spelling
from corral.paths.spelling import true_spelling


def test_names_that_differ_in_case_are_two_files(tmp_path):
    for name in ("Name", "nAME", "grün", "12"):
        (tmp_path / name).mkdir()
        assert true_spelling(str(tmp_path / name)) == str(tmp_path / name)


def test_a_name_in_another_case_is_replaced_by_the_name_that_its_directory_lists(
    tmp_path, monkeypatch
):
    """Make two hard links to one file, and let the directory list only one of them. For corral this
    looks like one file in a directory that ignores case, so it must use the listed name.
    """
    (tmp_path / "Name").touch()
    os.link(tmp_path / "Name", tmp_path / "nAME")
    monkeypatch.setattr(spelling.os, "listdir", lambda _: ["Name"])
    assert true_spelling(str(tmp_path / "nAME")) == str(tmp_path / "Name")


def test_the_spelling_of_a_name_is_unknown_if_its_directory_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError

    (tmp_path / "ü").touch()
    monkeypatch.setattr(spelling.os, "listdir", refuse)
    assert true_spelling(str(tmp_path / "ü")) == ""
