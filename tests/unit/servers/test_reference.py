"""Test how corral distinguishes commands from references to servers, such as `npm:server`.

corral refuses an ambiguous word, and a name that npm or pip would read as an option or a path.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.what_to_run import _may_be_reference
from corral.errors import SandboxError
from corral.record import replace
from corral.servers.reference import Reference, normalize_name, parse_reference

GOOD = {
    "npm:server": Reference(kind="npm", text="", name="server"),
    "npm:server@1.2.3": Reference(kind="npm", text="", name="server", version="1.2.3"),
    "npm:@scope/server": Reference(kind="npm", text="", name="@scope/server"),
    "npm:@scope/server@2.0.0-rc.1#tool": Reference(
        kind="npm", text="", name="@scope/server", version="2.0.0-rc.1", program="tool"
    ),
    "pypi:mcp-server-time": Reference(kind="pypi", text="", name="mcp-server-time"),
    "pypi:MCP_Server.Time==1!2.0+local": Reference(
        kind="pypi", text="", name="mcp-server-time", version="1!2.0+local"
    ),
    "pypi:name[b,A]==1": Reference(
        kind="pypi", text="", name="name", version="1", extras=("a", "b")
    ),
    "./server.mcpb": Reference(kind="bundle", text="", name="./server.mcpb"),
    "old.DXT": Reference(kind="bundle", text="", name="old.DXT"),
    "io.github.user/weather": Reference(kind="registry", text="", name="io.github.user/weather"),
    "io.github.user/weather@1.0": Reference(
        kind="registry", text="", name="io.github.user/weather", version="1.0"
    ),
    "mcp:example.com/a": Reference(kind="registry", text="", name="example.com/a"),
    "cursor:github": Reference(kind="client", text="", name="cursor:github"),
    "claude-desktop:my server": Reference(kind="client", text="", name="claude-desktop:my server"),
}


@pytest.mark.parametrize("word", GOOD)
def test_references_are_recognized(word):
    assert parse_reference(word) == replace(GOOD[word], text=word)
    assert _may_be_reference(word)


COMMANDS = [
    "node",
    "/usr/bin/node",
    "./server",
    "bin/server",
    "../x/y",
    ".venv/bin/python",
    "a.b",
    "-c",
]


@pytest.mark.parametrize("word", COMMANDS)
def test_commands_are_recognized(word):
    assert parse_reference(word) is None


def test_a_plain_command_is_recognized_by_its_characters():
    """Check that corral recognizes a plain command by its characters alone. Otherwise the reference
    parser would have to be imported in every run.
    """
    assert not any(map(_may_be_reference, ["node", "/usr/bin/node", "bin/server", "./server"]))


def test_a_name_that_is_also_a_file_is_refused(tmp_path, monkeypatch):
    """Check that corral refuses a word that is both a file and a package, so that the user must
    choose. Otherwise a file with the package's name in the current directory could decide what
    runs.
    """
    monkeypatch.chdir(tmp_path)
    assert parse_reference("my.tools/serve").kind == "registry"
    (tmp_path / "my.tools").mkdir()
    (tmp_path / "my.tools" / "serve").touch()
    with pytest.raises(SandboxError, match="is both a file here") as caught:
        parse_reference("my.tools/serve")
    assert caught.value.hint.startswith("type ./my.tools/serve for the file")
    assert parse_reference("./my.tools/serve") is None
    assert parse_reference("mcp:my.tools/serve").kind == "registry"


BAD = [
    "npm:", "npm:@scope", "npm:@/x", "npm:@scope/", "npm:../x", "npm:a/b", "npm:--global",
    "npm:x@", "npm:x@--registry", "npm:x@http://evil", "npm:x@file:..", "npm:x y",
    "npm:x#../../y", "npm:x#-e", "npm:.hidden", "npm:" + "x" * 300,
    "pypi:", "pypi:--index-url", "pypi:x==", "pypi:x==1,2", "pypi:x>=1", "pypi:x @ http://evil",
    "pypi:x[", "pypi:x[]", "pypi:x[a", "pypi:x==1\n--index-url=http://evil", "pypi:x#a/b",
    "mcp:nodots/x", "mcp:a.b/c/d", "mcp:a.b/c@", "mcp:../x",
]  # fmt: skip


@pytest.mark.parametrize("word", BAD, ids=repr)
def test_text_that_a_tool_would_read_differently_is_refused(word):
    with pytest.raises(SandboxError, match="not a reference"):
        parse_reference(word)


@given(st.sampled_from(["npm:", "pypi:", "mcp:", ""]), st.text(max_size=40))
def test_names_and_versions_never_contain_options_or_paths(scheme, text):
    try:
        found = parse_reference(scheme + text)
    except SandboxError:
        return
    if found is None or found.kind in {"bundle", "client"}:
        return
    for word in (found.version, found.program, *found.name.split("/"), *found.extras):
        assert not word.startswith(("-", "."))
        assert not set(word) & set(" \t\r\n\0/\\:;,=<>'\"$`")


def test_all_spellings_of_a_project_are_normalized_to_one():
    assert normalize_name("A__b.-c") == "a-b-c"


NAMES = st.text(alphabet="aZ0._-~+", min_size=1, max_size=8)


@given(st.sampled_from(["npm:", "npm:@a/", "npm:@", "pypi:", "pypi:a["]), NAMES)
def test_no_name_becomes_an_option_or_a_path(start, name):
    """Try random names. They include names such as `_x`, which would be normalized to `-x`, a pip
    option.
    """
    text = start + name + {"pypi:a[": "]", "npm:@": "/b"}.get(start, "")
    try:
        found = parse_reference(text)
    except SandboxError:
        return
    for word in (*found.name.removeprefix("@").split("/"), *found.extras):
        assert word[0].isalnum(), text
    assert not found.requirement().startswith(("-", "."))


@pytest.mark.parametrize(
    "text", ["pypi:_x", "pypi:_-x", "pypi:a[_b]", "npm:_x", "npm:~x", "npm:@_a/b", "npm:@a/-b"]
)
def test_a_name_starts_with_a_letter_or_digit(text):
    with pytest.raises(SandboxError):
        parse_reference(text)
