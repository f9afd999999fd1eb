"""Test that every function that reads TOML from a server's author takes a bounded time."""

import pytest

from corral.errors import ManifestError, SandboxError
from corral.formats import toml
from corral.formats.bounded_toml import MAX_DOTS, find_long_key, parse_toml
from corral.formats.positions import BrokenFileError
from corral.policy.manifest import decode_toml
from corral.programs.version_managers import _mise_tools
from corral.programs.workspaces import lists_package
from corral.servers.bundles.uv_dependencies import _read_dependencies

# tomllib would take hours to parse this key.
HOSTILE = "x = 1\n" + ".".join(["a"] * 400_000) + " = 1\n"


@pytest.mark.parametrize("text", [HOSTILE, "x = " + "[" * 100_000, "x = ", "x = 1e"])
def test_toml_that_is_slow_to_parse_is_refused(text):
    with pytest.raises(ValueError):
        parse_toml(text)


def test_the_line_of_a_long_key_is_found():
    assert find_long_key(HOSTILE) == 2
    assert find_long_key("x = 1\ny = '" + "." * MAX_DOTS + "'") == 0
    assert parse_toml("a.b = [1]\r\n") == {"a": {"b": [1]}}


def test_every_reader_of_toml_refuses_text_that_is_slow_to_parse(tmp_path):
    with pytest.raises(ManifestError, match=r"x:2: more than 1000 dots"):
        decode_toml(HOSTILE, "x")
    with pytest.raises(BrokenFileError, match="too many dots in line 2"):
        toml.read(HOSTILE)
    project = tmp_path / "pyproject.toml"
    project.write_text(HOSTILE)
    with pytest.raises(SandboxError, match=r"pyproject\.toml is not valid TOML"):
        _read_dependencies(str(project))
    assert not lists_package(str(tmp_path), str(tmp_path / "inner"))
    assert list(_mise_tools(str(project))) == []
    # Sanity check: the same readers accept ordinary text.
    project.write_text("""
        [project]
        dependencies = ["mcp"]
        [tool.uv.workspace]
        members = ["inner"]
        [tools]
        node = "24"
    """)
    assert _read_dependencies(str(project)) == ["mcp"]
    assert lists_package(str(tmp_path), str(tmp_path / "inner"))
    assert list(_mise_tools(str(project))) == [("node", "24")]


def deep(lines: int) -> str:
    key = ".".join(["a"] * MAX_DOTS)
    return f"[{key}]\n" + "".join(f"k{at}.{key} = 1\n" for at in range(lines))


def test_many_long_keys_below_a_deep_table_are_refused():
    """Use many lines, each of which is short enough. `tomllib` would take minutes to parse them
    all, so there must also be a limit for all lines together.
    """
    with pytest.raises(ValueError, match="or in the lines before it"):
        parse_toml(deep(500))
    with pytest.raises(ManifestError, match="too many in the file up to this line"):
        decode_toml(deep(500), "x")
    # Even for a key without a dot, tomllib walks through all names in the header of the key's
    # table.
    plain = "".join(f"k{at} = 1\n" for at in range(50_000))
    with pytest.raises(ValueError, match="or in the lines before it"):
        parse_toml(f"[{'.'.join(['a'] * MAX_DOTS)}]\n{plain}")
    assert len(parse_toml(plain)) == 50_000
    assert parse_toml(f"[a.b.c]\n{plain}")
    # Sanity checks: a few such keys are accepted, and so is a long list of hosts.
    assert parse_toml(deep(2))
    hosts = ", ".join(f'"h{at}.example.com:443"' for at in range(400))
    assert parse_toml(f"[network]\nallow = [{hosts}]\n")
