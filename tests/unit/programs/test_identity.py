"""Test which commands corral identifies only together with a directory, and which servers keep a
separate home for each directory in which they start.
"""

import pytest

from corral.programs.identity import home_words, with_directory
from corral.programs.model import Program
from corral.record import replace


def program(top, *typed, own="", visible=True, server=()):
    """Return a program that starts in `top`, as `resolve` would return it."""
    argv = tuple(own if own.endswith(f"/{word}") else word for word in typed)
    return with_directory(
        Program(
            path="/usr/bin/x", argv=("/usr/bin/x", *argv[1:]), typed=typed, own_file=own, server=server,
            cwd=str(top) if visible else "",
        ),
        cwd=str(top),
    )  # fmt: skip


@pytest.mark.parametrize("visible", [True, False])
def test_a_command_without_a_file_of_its_own_depends_on_a_visible_directory(tmp_path, visible):
    found = program(tmp_path, "python3", "-m", "server", visible=visible)
    assert found.directory == (str(tmp_path) if visible else "")
    words = ("/usr/bin/x", "-m", "server")
    assert home_words(found) == (("", str(tmp_path), *words) if visible else words)


@pytest.mark.parametrize(
    "word",
    [
        "server.py", "./server.py", "server.py:app", "--require=./server.py", "--app=server.py:x",
        "server", "server:app", "--require=./server", "-javaagent:./server.py", "pkg",
    ],
)  # fmt: skip
@pytest.mark.parametrize("server", [(), ("pypi:fastmcp", "run")])
def test_a_launcher_depends_on_the_directory_of_a_file_that_its_arguments_name(
    tmp_path, word, server
):
    (tmp_path / "server.py").touch()
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__main__.py").touch()
    typed = ("fastmcp", "run", word)
    found = program(tmp_path, *typed, own="/opt/bin/fastmcp", server=server)
    assert (found.directory, found.home_per_directory) == (str(tmp_path), True)
    unseen = program(tmp_path, *typed, own="/opt/bin/fastmcp", server=server, visible=False)
    assert not unseen.home_per_directory
    absent = program(tmp_path, "fastmcp", "run", "other.py", own="/opt/bin/fastmcp", server=server)
    assert (absent.directory, absent.home_per_directory) == ("", False)


@pytest.mark.parametrize("words", [("python3", "srv/"), ("python3", "./srv/."), ("node", "srv")])
def test_a_script_that_is_named_by_a_relative_directory_belongs_to_its_project(tmp_path, words):
    found = program(tmp_path, *words, own=str(tmp_path / "srv"), visible=False)
    assert found.directory == str(tmp_path)
    absolute = program(tmp_path, words[0], str(tmp_path / "srv"), own=str(tmp_path / "srv"))
    assert absolute.directory == ""


def test_a_relative_program_belongs_to_its_project(tmp_path):
    assert program(tmp_path, ".venv/bin/python", "-m", "x", visible=False).directory == str(
        tmp_path
    )


def test_the_home_of_a_package_does_not_depend_on_the_start_directory(tmp_path):
    server = ("npm:notes", "serve", ".", str(tmp_path))
    (tmp_path / "package.json").touch()
    for own in ("/cache/notes/index.js", ""):
        found = program(tmp_path, "node", own, *server[1:], own=own, server=server)
        assert (found.directory, home_words(found)) == ("", server)


def test_a_relative_script_keeps_its_home_but_its_runs_belong_to_their_directory(tmp_path):
    script = tmp_path / "server.py"
    for name in ("server.py", "config.json"):
        (tmp_path / name).touch()
    found = program(tmp_path, "python3", "server.py", "config.json", own=str(script))
    assert found.directory == str(tmp_path)
    assert home_words(found) == ("/usr/bin/x", str(script), "config.json")
    absolute = program(tmp_path, "python3", str(script), "config.json", own=str(script))
    assert absolute.directory == ""
    assert home_words(absolute) == home_words(found)


def test_no_command_has_the_words_of_another_commands_home_in_a_directory(tmp_path):
    divided = program(tmp_path, "python3", "-m", "server")
    for extra in (("", str(tmp_path)), (str(tmp_path), "")):
        other = program(tmp_path, "python3", "-m", "server", *extra, visible=False)
        assert home_words(other) != home_words(divided)
    assert home_words(divided)[0] == ""
    assert home_words(replace(divided, home_per_directory=False))[0] != ""
