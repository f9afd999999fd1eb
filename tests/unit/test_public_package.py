"""Test the package's metadata, its version, and the messages on systems that corral does not
support.
"""

import ast
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import corral
import debian_python
import rigs
from corral.clients import file_formats
from corral.clients.catalogue import NAMES

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCE = pathlib.Path(corral.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEADING = re.compile(r"^## \[(?P<version>[^]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def test_the_package_has_no_dependencies():
    assert PROJECT["dependencies"] == []
    assert PROJECT["optional-dependencies"]["yaml"] == ["pyyaml>=6"]


def test_the_api_reference_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^::: |`)corral\.(\w+)`?", text, re.MULTILINE))
    assert named == {*corral.__all__, "mcp"}


def test_both_scripts_are_the_same_command():
    scripts = PROJECT["scripts"]
    assert scripts["corral"] == scripts["mcp-corral"] == "corral.__main__:main"


def test_the_version_is_written_once():
    assert PROJECT["dynamic"] == ["version"]
    written = [
        path
        for path in SOURCE.rglob("*.py")
        if f'"{corral.__version__}"' in path.read_text("utf-8")
    ]
    assert written == [SOURCE / "__init__.py"]


def test_the_changelog_fits_the_version():
    """Check that the changelog starts with Unreleased, that every release has a date, and that the
    newest release is `corral.__version__`.
    """
    found = [
        (row["version"], row["date"])
        for row in HEADING.finditer((ROOT / "CHANGELOG.md").read_text("utf-8"))
    ]
    assert found[0] == ("Unreleased", None)
    assert all(date for _, date in found[1:])
    assert not found[1:] or found[1][0] == corral.__version__


def test_the_readme_counts_the_clients_that_it_does_not_name():
    text = (ROOT / "README.md").read_text("utf-8")
    line = re.search(r"corral wrap (\w+) .*# also (.*) and (\d+) others: docs/clients", text)
    named = {line[1], *line[2].split(", ")}
    assert named <= set(NAMES)
    assert len(named) + int(line[3]) == len(NAMES)


def old_pythons() -> list[pathlib.Path]:
    rigs.need("pyenv")
    found = pathlib.Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3")
    return [python for python in found if int(python.parts[-3].split(".")[1]) < 11]


def test_an_old_python_gets_a_one_line_message():
    pythons = old_pythons()
    if not pythons:
        pytest.skip("pyenv has no Python older than 3.11")
    for python in pythons:
        done = subprocess.run(
            [python, "-m", "corral", "doctor"], env={"PYTHONPATH": str(SOURCE.parent)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        version = ".".join(python.parts[-3].split(".")[:2])
        assert done.returncode == 1
        assert done.stderr == f"corral: needs Python 3.11 or newer, but this is {version}\n"


@pytest.mark.rig("debian_python")
def test_python_3_9_gets_a_one_line_message():
    words = [debian_python.find(), "-m", "corral"]
    done = subprocess.run(
        [*words, "doctor"], env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = "corral: needs Python 3.11 or newer, but this is 3.9\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_an_old_python_can_parse_the_modules_that_print_the_message(name):
    ast.parse((SOURCE / name).read_text("utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize(
    ("prefix", "start"),
    [
        ("/home/u/.local/share/pipx/venvs/mcp-corral", "pipx inject mcp-corral pyyaml"),
        (
            "/home/u/.local/share/uv/tools/mcp-corral",
            "in corral's clone: uv tool install '.[yaml]'",
        ),
        ("/home/u/.cache/uv/archive-v0/abc", "uvx --with pyyaml mcp-corral"),
        ("/home/u/project/.venv", f"{sys.executable} -m pip install pyyaml"),
    ],
)
def test_the_hint_for_yaml_matches_the_installation(prefix, start):
    assert file_formats._installation(prefix).startswith(start)
