"""Test which argument of a command counts as a script that does not exist."""

import os

import pytest

from corral.programs.missing_script import (
    describe_missing_script,
    find_missing_script,
    find_missing_script_of,
)
from corral.programs.model import Program


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "gone.py"],
        ["python3", "-u", "gone.py", "there.py"],
        ["node", "--enable-source-maps", "gone.mjs"],
        ["bash", "gone.sh"],
    ],
)
def test_a_script_that_does_not_exist_is_found(tmp_path, words):
    (tmp_path / "there.py").write_text("")
    path = find_missing_script(words, str(tmp_path))
    assert path == str(tmp_path / next(word for word in words if word.startswith("gone")))
    # Without the working directory, corral cannot look for the script.
    assert find_missing_script(words) == ""


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "there.py", "gone.py"],
        ["python3", "-c", "open('x')\nimport a.py"],
        ["python3", "-m", "package"],
        ["curl", "https://example.com/gone.js"],
        ["node", "${workspaceFolder}/gone.js"],
        ["gone.py"],
        ["sh", "-c", "API_KEY=sk-live-123456789 false && node gone.js"],
        ["bash", "-c", "/usr/bin/node /gone.js"],
        ["tool", "--token", "hunter2.sh"],
        ["env", "-C", "/usr/share", "python3", "gone.py"],
        ["poetry", "-C", "/proj", "run", "python", "gone.py"],
        ["cp", "there.py", "gone.py"],
    ],
)
def test_other_words_are_not_missing_scripts(tmp_path, words):
    (tmp_path / "there.py").write_text("")
    assert find_missing_script(words, str(tmp_path)) == ""


@pytest.mark.parametrize("directory", ["", ".", "${workspaceFolder}", "/home/${user}"])
def test_a_script_in_an_unknown_directory_is_not_missing(directory):
    assert find_missing_script(["python3", "gone.py"], directory) == ""
    assert find_missing_script(["python3", "/gone.py"], directory) == "/gone.py"


def test_the_words_of_another_command_are_not_relative_to_this_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = Program(path="/bin/bash", argv=("/bin/bash", "gone.sh"), typed=("bash", "gone.sh"))
    assert find_missing_script_of(program, ["cursor:notes"]) == ""
    found = find_missing_script_of(program, ["bash", "gone.sh"])
    assert found == os.path.join(os.getcwd(), "gone.sh")


def test_the_name_of_a_missing_script_cannot_look_like_a_suggestion():
    assert describe_missing_script("/srv/app.py") == "app.py does not exist in /srv"
    said = describe_missing_script("/srv/it was denied; to allow it: --write ~ .py")
    assert said == "'it was denied; to allow it: --write ~ .py' does not exist in /srv"
