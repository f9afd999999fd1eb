"""Test positions in JSON, TOML and YAML: every value has a span, and every error has a line."""

import json
import math
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.formats import jsonc, positions, toml, yaml
from corral.formats.positions import BrokenFileError, Splice, same, splice

MEGABYTES = 2_000_000
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
KEYS = st.text().filter(lambda key: key != jsonc.PROTOTYPE)  # the readers refuse this key
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
)


def check_spans(form, text, value):
    """Parse the text of each value's span, and check that the result is this value."""
    if value.start >= 0 and form is jsonc:
        assert same(jsonc.load(text[value.start : value.end]), value.data)
    for below in [*(value.members or {}).values(), *(value.items or ())]:
        check_spans(form, text, below)


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 1, 2, "\t"]), st.booleans())
def test_json_values_have_positions(value, indent, ascii_only):
    """Check the data and the position of every value, including values in lists and objects."""
    whole = {"mcpServers": value, "history": [value]}
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only)
    found = jsonc.read(text)
    assert same(found.data, whole)
    assert same(jsonc.load(text), whole)
    check_spans(jsonc, text, found)
    listed = found.members["mcpServers"]
    assert len(listed.members or listed.items or ()) == (
        len(value) if isinstance(value, dict | list) else 0
    )
    assert same(jsonc.read(json.dumps(value)).data, value)


COMMENTED = """\ufeff// first
{ /* a "quoted" } thing */ "a": [1, 2, /* , */ ], // "x": 3,
  "b": {"c": "// no comment", "d": "/* nor this */",},
}
// last"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_json_comments_and_trailing_commas_are_accepted(newline):
    text = COMMENTED.replace("\n", newline)
    expected = {"a": [1, 2], "b": {"c": "// no comment", "d": "/* nor this */"}}
    assert jsonc.read(text).data == expected == jsonc.load(text)
    check_spans(jsonc, text, jsonc.read(text))


BROKEN_JSON = {
    '{"x": [NaN]}': (1, 8),
    '{"mcpServers": {"a": 1, "a": 2}}': (1, 25),
    "{": (1, 2),
    '{"a": 1': (1, 8),
    '{"a": 1 "b": 2}': (1, 9),
    '{\n  "a": [1, 2\n': (3, 1),
    '{"a": "unended}': (1, 7),
    '{"a": 1}\n}': (2, 1),
    '{"a": tru}': (1, 7),
    '{"a": 01e}': (1, 7),
    "{'a': 1}": (1, 2),
    '{"a": 1, "a": 2}': (1, 10),
    '{"a" 1}': (1, 6),
    '{"a": /* 1}': (1, 7),
    "[1,,2]": (1, 4),
    '{"a": "\\x"}': (1, 7),
    '["a\nb"]': (1, 2),
}


@pytest.mark.parametrize("text", BROKEN_JSON)
def test_json_errors_have_positions(text):
    with pytest.raises(BrokenFileError, match="^line {}, column {}: ".format(*BROKEN_JSON[text])):
        jsonc.read(text)


@pytest.mark.parametrize("form", [jsonc, toml, yaml])
def test_deeply_nested_text_is_an_error(form):
    for deep in ("[" * 5_000, "[" * 5_000 + "]" * 5_000):
        with pytest.raises(BrokenFileError):
            form.read(f"x = {deep}" if form is toml else deep)


DEPTH = 20_000


@pytest.mark.parametrize(
    ("opening", "closing", "expected"),
    [
        ("[", "]", {(0,) * depth: depth + 2 for depth in range(1, 5)}),
        ('{"a":', "}", {("a",) * depth: depth + 1 for depth in range(1, 5)}),
        ('[{"a":', "}]", {(0,): 2, (0, "a"): 2, (0, "a", 0): 3, (0, "a", 0, "a"): 3}),
    ],
    ids=["lists", "tables", "both"],
)
def test_json_is_read_without_recursion(opening, closing, expected):
    text = f"\n{opening}" * DEPTH + "1" + closing * DEPTH
    found = jsonc.Reader(text, max_depth=len(text)).document()
    assert positions.line_numbers(text, found) == expected
    with pytest.raises(BrokenFileError, match="nested too deeply"):
        jsonc.read(text)


def test_toml_is_read_without_recursion():
    """Locate values that are nested too deeply for a recursive reader. `toml.locate` usually gets
    the values that `tomllib` has parsed. But `tomllib` does not accept lists of this depth, only
    dotted keys, so the test builds the values itself.
    """
    path = ".".join(["a"] * 900)
    expected: dict[str, object] = {"b": 1}
    for _ in range(1_800):
        expected = {"a": expected}
    text = f"[{path}]\n{path}.b = 1\n"
    assert same(toml.locate(text, expected).data, expected)
    assert positions.line_numbers(text, toml.read(text)) == {("a",) * n: 1 for n in range(1, 5)}
    listed: object = 1
    for _ in range(DEPTH):
        listed = [{"k": listed}]
    text = "x = " + "[{k=" * DEPTH + "1" + "}]" * DEPTH
    assert same(toml.locate(text, {"x": listed}).data, {"x": listed})


@settings(deadline=None)
@given(st.binary(max_size=60).map(lambda data: data.decode("utf-8", "replace")))
def test_no_text_crashes_a_parser(text):
    for form in (jsonc, toml, yaml):
        try:
            form.read(text)
        except BrokenFileError:
            continue


TOML = '''\ufeff# first
title = "x" # "y"
[mcp_servers.a]
command = 'c:\\x'   # [no]
args = [ "one", # 1, 2
  """two
"quoted" ""two""\\
  """, ''\'three''\', 4.5, [1979-05-27 07:32:00, nan], {k = "v]", "l" = 1},
]
[mcp_servers.a.env] # table
"K.1" = "v"
[[array]]
x = 1
[array.below]
y = 2
[[array.list]]
z = 3
[mcp_servers]
b = { command = "b", env.X = "1", args=[] }
c.command = "c"
"d e".'f' = true
'''


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_toml_values_have_positions(newline):
    text = TOML.replace("\n", newline)
    found = toml.read(text)
    loaded = toml.load(text)
    servers = found.members["mcp_servers"]
    assert same(found.data["mcp_servers"]["a"]["env"], {"K.1": "v"})
    assert servers.data.keys() == loaded["mcp_servers"].keys()
    assert "array" not in found.data
    command = servers.members["a"].members["command"]
    assert text[command.start : command.end] == r"'c:\x'"
    args = servers.members["a"].members["args"]
    spans = [text[item.start : item.end] for item in args.items]
    assert spans[0] == '"one"'
    assert spans[1].startswith('"""two')
    assert spans[1].endswith('"""')
    assert spans[2:] == ["'''three'''", "4.5", "[1979-05-27 07:32:00, nan]", '{k = "v]", "l" = 1}']
    assert math.isnan(args.data[4][1])
    inline = servers.members["b"].members["env"].members["X"]
    assert text[inline.start : inline.end] == '"1"'
    assert servers.members["b"].flow
    assert not servers.members["a"].flow


@pytest.mark.parametrize("text", ["a = ", "[x", "a = 1\na = 2", 'a = "x', "a = [1", "= 1"])
def test_toml_errors_are_reported(text):
    with pytest.raises(BrokenFileError):
        toml.read(text)


YAML = """\ufeff# first
mcpServers:
- name: a # the first
  command: &anchor npx
  args: # these
  - -y
  - 'it''s' # tail
  -
    "x: y"
- {name: b, command: "b", args: [1, two]}
- name: c
  command: |
    folded
    text

  args: []
other: *anchor
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_yaml_values_have_positions(newline):
    text = YAML.replace("\n", newline)
    found = yaml.read(text)
    first, second, third = found.members["mcpServers"].items
    spans = [text[item.start : item.end] for item in first.members["args"].items]
    assert spans == ["-y", "'it''s'", '"x: y"']
    assert first.members["args"].end == first.members["args"].items[-1].end
    assert first.members["command"].shared
    assert not first.members["args"].shared
    assert second.flow
    assert not first.flow
    block = third.members["command"]
    assert text[block.start : block.end].endswith("text")
    assert same(found.data, yaml.load(text))


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(9)
)
BROKEN_YAML = {
    "a: [1": "line 1",
    "a: b: c": "line 1",
    "a: 1\na: 2": "line 2, column 1: the key 'a' appears twice",
    "a: &x [*x]": "an alias contains itself",
    "--- 1\n--- 2": "line 2",
    "a: !!python/object:os.system x": "could not determine a constructor",
    "a: 2020-99-99": "month must be in",
    "\t- a": "line 1",
    LAUGHS: "expand to too many values",
    "": "the file is empty",
}


@pytest.mark.parametrize("text", BROKEN_YAML, ids=range(len(BROKEN_YAML)))
def test_yaml_errors_are_reported(text):
    with pytest.raises(BrokenFileError, match=BROKEN_YAML[text]):
        yaml.read(text)


@pytest.mark.parametrize("text", ["a: " + "1:" * 200_000 + "1", "a: " + "1:" * 200_000 + "1.5", "a: !!int '" + "1:" * 200_000 + "1'"])  # fmt: skip
def test_a_long_yaml_number_to_the_base_of_60_is_refused(text):
    """Check that corral refuses a number that PyYAML would take a minute to parse."""
    for read in (yaml.read, yaml.load):
        with pytest.raises(BrokenFileError, match="this number is too long"):
            read(text)
    for ordinary, value in (("1:30:00", 5400), ("'" + "1:" * 50 + "'", "1:" * 50)):
        assert yaml.read(f"a: {ordinary}").data == yaml.load(f"a: {ordinary}") == {"a": value}


def test_a_yaml_file_that_needs_minutes_is_refused():
    with pytest.raises(BrokenFileError, match="too large"):
        yaml.read("- x\n" * (yaml.MAX_CHARACTERS // 4 + 1))
    assert yaml.read("- x\n" * 1000).data == ["x"] * 1000


def test_values_in_a_yaml_mapping_with_a_merge_key_are_marked_as_shared():
    text = "base: &b {args: [x]}\ns:\n  <<: *b\n  command: c\n"
    entry = yaml.read(text).members["s"]
    assert entry.members["command"].shared


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quoted_text_is_read_back(text):
    assert jsonc.load(jsonc.quote(text)) == text
    assert toml.load(f"x = {toml.quote(text)}") == {"x": text}
    assert yaml.load(f"- {yaml.quote(text)}") == [text]
    assert yaml.load(f"[{yaml.quote(text)}, {yaml.quote(text)}]") == [text, text]


def test_positions_of_replacements_refer_to_the_original_text_in_any_order():
    changes = [Splice(start=0, end=1, text="xyz"), Splice(start=3, end=3, text="-")]
    assert splice("abcd", changes) == "xyzbc-d"
    assert splice("abcd", changes[::-1]) == "xyzbc-d"


def test_lines_and_columns_count_from_one():
    assert positions.line_and_column("ab\ncd", 0) == (1, 1)
    assert positions.line_and_column("ab\ncd", 4) == (2, 2)


def test_values_are_compared_with_their_types_and_the_order_of_keys():
    assert not same(1, True)
    # Dictionaries with a different order of keys are not the same.
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same([1], [1, 2])
    assert same({"a": [math.nan, "x"]}, {"a": [math.nan, "x"]})


@pytest.mark.parametrize("text", ["x: !!timestamp soon\n", "x: !!int many\n", "x: !!float f\n"])
def test_an_invalid_yaml_tag_is_an_error(text):
    with pytest.raises(BrokenFileError, match=r"line 1|invalid|could not"):
        yaml.read(text)
    assert yaml.read("x: !!timestamp 2001-01-01\n").members


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {"a": {"command": "' + "x" * MEGABYTES + '"}}}',
        '{"mcpServers": {"a": {"command": "' + "\\n" * MEGABYTES + '"}}}',
        "{/*" + "x" * MEGABYTES + '*/ "a": 1,}',
        "{" + " /**/" * (MEGABYTES // 5) + '"a": 1,}',
    ],
    ids=["a text", "escapes", "a comment", "comments"],
)
def test_a_large_file_needs_little_memory(text):
    """Check that reading a large file takes little memory. `corral status` reads files that a
    project contains, and these may be large.
    """
    tracemalloc.start()
    try:
        jsonc.read(text)
        jsonc.load(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * len(text)


@pytest.mark.parametrize("line_break", ["\r", "\u2028", "\u2029"])
def test_a_comment_in_which_some_clients_see_a_line_break_is_refused(line_break):
    """Check that a comment with this line break is refused. For some clients the comment ends
    there, and the rest of the line is data.
    """
    hidden = f'{{"a": 1 // x{line_break}, "b": 2\n}}'
    with pytest.raises(BrokenFileError, match="this comment contains a line break"):
        jsonc.read(hidden)
    for ordinary in ("\n", "\r\n"):
        assert jsonc.read(hidden.replace(line_break, ordinary)).data == {"a": 1, "b": 2}
    assert jsonc.read('{"a": 1} // end').data == {"a": 1}
    assert jsonc.read('{"a": "// b"}').data == {"a": "// b"}


@pytest.mark.parametrize("line_break", ["\x85", "\u2028", "\u2029"])
def test_a_yaml_file_in_which_some_clients_see_other_lines_is_refused(line_break):
    """Check that a file is refused if YAML 1.1 and YAML 1.2 disagree about its lines. In YAML 1.1
    this character is a line break, so the first line contains two values. In YAML 1.2 the whole
    first line is a comment.
    """
    text = f"#{line_break}a: 1{line_break}b: |\n  a: 2\n"
    with pytest.raises(BrokenFileError, match="not all clients"):
        yaml.read(text)
    assert yaml.read(text.replace(line_break, "\n")).data == {"a": 1, "b": "a: 2\n"}


@pytest.mark.parametrize("text", ['{"__proto__": {"servers": {}}}', '{"servers": {"a": {"__proto__": 1}}}', '{"\\u005f_proto__": 1}'])  # fmt: skip
def test_a_key_from_which_clients_inherit_values_is_refused(text):
    with pytest.raises(BrokenFileError, match="as a part of its table"):
        jsonc.read(text)
    assert jsonc.read(text.replace("proto", "other")).data
