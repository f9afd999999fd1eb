"""Test policy files: corral reports every mistake with its position, and does not apply a file with
mistakes.
"""

import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.errors import ManifestError
from corral.formats import jsonc, toml
from corral.formats.positions import BrokenFileError, line_numbers
from corral.network.rules import parse_entry
from corral.policy import manifest
from corral.policy.model import Limits

GOOD = """\
version = 1
[server]
command = ["node", "dist/index.js"]
[limits]
memory = "1G"      # whole tree
cpu = "500m"
timeout = "none"
[network]
allow = ["api.github.com", "*.example.com:8443", "10.0.0.5:5432"]
listen = [8080]
[filesystem]
read  = ["~/notes"]
write = ["./data"]
unix_sockets = []
state = false
[subprocess]
allow = false
[environment]
pass = ["LANG"]
set = { LOG_LEVEL = "info" }
secrets = ["GITHUB_TOKEN"]
[degrade]
allow = ["cpu"]
[windows]
app_container = true
network = "none"
[macos]
seatbelt = "auto"
"""
GOOD_JSON = json.dumps(
    {
        "version": 1,
        "limits": {"memory": "1G", "cpu": 0.5},
        "network": {"allow": ["a.example"], "listen": [1]},
        "environment": {"set": {"A": "b"}},
    },
    indent=1,
)


def mistakes(text, parse=manifest.parse_toml):
    with pytest.raises(ManifestError) as caught:
        parse(text, "policy")
    return [tuple(one) for one in caught.value.mistakes]


def test_every_written_value_is_read():
    found = manifest.parse_toml(GOOD, "policy")
    assert found.command == ("node", "dist/index.js")
    assert found.limits == {"memory": 1 << 30, "cpu": 500, "timeout": None}
    assert found.allow == ("api.github.com", "*.example.com:8443", "10.0.0.5:5432")
    assert found.listen == (8080,)
    assert (found.read, found.write, found.unix_sockets) == (("~/notes",), ("./data",), ())
    assert (found.state, found.subprocess) == (False, False)
    assert found.pass_names == ("LANG",)
    assert found.set_values == (("LOG_LEVEL", "info"),)
    assert found.secret_names == ("GITHUB_TOKEN",)
    assert found.degrade == ("cpu",)
    assert (found.app_container, found.windows_network, found.minifilter) == (True, "none", None)
    assert found.seatbelt == "auto"
    assert found.locate("limits.cpu") == "policy:6: limits.cpu"
    assert found.lines["environment.set.LOG_LEVEL"] == 20


def test_json_and_toml_give_the_same_manifest():
    toml = 'version = 1\n[limits]\nmemory = "2G"\n[network]\nlisten = [1, 2]\n'
    data = '{"version": 1, "limits": {"memory": "2G"}, "network": {"listen": [1, 2]}}'
    one, other = manifest.parse_toml(toml, "x"), manifest.parse_json(data, "x")
    assert (one.limits, one.listen) == (other.limits, other.listen)


def test_all_mistakes_are_reported_with_their_lines():
    text = """\
[limits]
memroy = "1G"
memory = "-1G"
pids = true
[network]
allow = [
  "fine.example",
  "not a host",  # here
]
listen = [0]
[enviroment]
[environment]
pass = ["A=B", "X"]
set = { X = "\\u0000" }
"""
    found = {key: (line, words) for _, line, key, words in mistakes(text)}
    assert {key: line for key, (line, _) in found.items()} == {
        "limits.memroy": 2, "limits.memory": 3, "limits.pids": 4, "network.allow[1]": 8, "network.listen[0]": 10,
        "enviroment": 11, "environment.pass[0]": 13, "environment.set.X": 14, "version": None,
    }  # fmt: skip
    assert "did you mean memory?" in found["limits.memroy"][1]
    assert "did you mean environment?" in found["enviroment"][1]


def test_the_error_for_a_misplaced_key_names_its_place():
    [(_, line, key, words)] = mistakes('version = 1\nmemory = "1G"\n')
    assert (line, key) == (2, "memory")
    assert "limits.memory" in words


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version = 1\nx = \n", 2),
        ("version = 1\n[limits\n", 2),
        ('a = "', 1),
        ("a = 1\na = 2\n", 2),
        ("\0", 1),
    ],
)
def test_toml_syntax_errors_have_their_line(text, line):
    [(_, found, key, words)] = mistakes(text)
    assert (found, key) == (line, "")
    assert words.startswith("not valid TOML")
    assert words.isprintable()


def test_json_syntax_errors_have_their_line():
    [(_, line, _, words)] = mistakes('{\n "version": 1,\n}', manifest.parse_json)
    assert line in {2, 3}  # which line it is depends on Python's version
    assert words.startswith("not valid JSON")


def test_many_duplicate_keys_take_little_time():
    text = '{"version": 1' + ',\n"version": 1' * 50_000 + "}"
    found = mistakes(text, manifest.parse_json)
    assert [line for _, line, _, _ in found[:2]] == [2, 3]
    deep = '{"a":' * 500 + '{"b": 1' + ',\n"b": 1' * 50_000 + "}" * 501
    found = mistakes(deep, manifest.parse_json)
    assert {key for _, _, key, words in found if words == "written twice"} == {"b"}


def test_duplicate_json_keys_are_refused():
    text = '{\n"version": 1,\n"limits": {"memory": "1G",\n "memory": "2G"},\n"version": 1}'
    found = mistakes(text, manifest.parse_json)
    assert [(line, key) for _, line, key, _ in found] == [(4, "limits.memory"), (5, "version")]
    lists = '{"version": 1, "network": {"listen": [1, 2],\n"listen": [3]}}'
    assert [(one[1], one[2]) for one in mistakes(lists, manifest.parse_json)] == [
        (2, "network.listen")
    ]


@pytest.mark.parametrize(
    "constant", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 5000, '"\\ud800"', "null"]
)
def test_json_beyond_the_standard_is_refused(constant):
    for table in (f'"limits": {{"cpu": {constant}}}', f'"filesystem": {{"read": [{constant}]}}'):
        assert mistakes(f'{{"version": 1, {table}}}', manifest.parse_json)


@pytest.mark.parametrize(
    "opener", ["[", "{", '{"a":', "[[", "a=[", "a={b=", "[a.", "a.", '"', "'''", "#"]
)
def test_a_megabyte_of_nesting_is_an_error(opener):
    text = opener * (manifest.MAX_FILE_SIZE // len(opener))
    for parse in (manifest.parse_toml, manifest.parse_json):
        assert mistakes(text, parse)
    assert mistakes("version = 1\na = " + text)
    assert mistakes("a." * 500_000 + "b = 1\n")


@pytest.mark.parametrize("version", ["0", "2", "1.0", "true", '"1"', "[1]"])
def test_only_version_1_is_accepted(version):
    assert mistakes(f"version = {version}\n")[0][2] == "version"


def test_a_long_list_of_mistakes_is_cut():
    found = mistakes("".join(f"key{number} = 1\n" for number in range(5_000)))
    assert len(found) == manifest.MAX_MISTAKES + 1
    assert "more mistakes" in found[-1][3]


@pytest.mark.parametrize("key", ["\x1b[2J", "\u202e", "a\nb", "x" * 5000, "", "a.b"])
def test_hostile_keys_are_printable_in_messages(key):
    for one in mistakes(
        json.dumps({"version": 1, key: 1, "limits": {key: 2}}), manifest.parse_json
    ):
        assert one[2].isprintable()
        assert one[3].isprintable()
        assert len(one[2]) < 200


def test_values_that_may_be_secret_are_not_quoted():
    for _, _, _, words in mistakes('version = 1\n[environment]\nset = { A = "hunter2\\u0000" }\n'):
        assert "hunter2" not in words


def test_more_than_64_ports_in_a_policy_are_an_error():
    assert parse_entry("a.example:1-65")
    assert mistakes('version = 1\n[network]\nallow = ["a.example:1-65"]\n')[0][2] == "network.allow"
    assert manifest.parse_toml('version = 1\n[network]\nallow = ["a.example:1-64"]\n', "x").allow


def test_flags_make_a_manifest():
    found = manifest.from_flags(
        {
            "limits.cpu": "100", "limits.pids": "12", "limits.timeout": "none",
            "network.allow": ["API.example:8000-8002"], "network.listen": ["80"],
            "environment.set": {"A": "b"}, "subprocess.allow": True, "filesystem.read": ["caf\udce9"],
        },
        strict=True,
    )  # fmt: skip
    assert found.limits == {"cpu": 100, "pids": 12, "timeout": None}
    assert (found.allow, found.listen) == (("api.example:8000-8002",), (80,))
    assert (found.subprocess, found.strict, found.best_effort) == (True, True, None)
    assert found.locate("limits.cpu") == "--max-cpu"


def test_mistakes_in_flags_name_the_flag():
    with pytest.raises(ManifestError) as caught:
        manifest.from_flags(
            {"limits.memory": "64 M", "network.listen": ["http"], "limits.pids": "\u0661"}
        )
    assert {one[2] for one in caught.value.mistakes} == {"--max-memory", "--listen", "--max-pids"}
    assert all(one[0] == "command line" for one in caught.value.mistakes)


def test_load_reads_a_file(tmp_path):
    (tmp_path / "p.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    (tmp_path / "p.json").write_text(GOOD_JSON)
    (tmp_path / "policy").write_text(GOOD_JSON)
    found = manifest.load(str(tmp_path / "p.toml"))
    assert (found.directory, found.file) == (str(tmp_path), str(tmp_path / "p.toml"))
    assert (
        manifest.load(str(tmp_path / "p.json")).limits
        == manifest.load(str(tmp_path / "policy")).limits
    )


def test_load_refuses_files_that_are_too_large_or_not_utf8_text(tmp_path):
    (tmp_path / "big").write_bytes(b"#" * (manifest.MAX_FILE_SIZE + 1))
    (tmp_path / "fits").write_bytes(b"version = 1\n" + b"#" * (manifest.MAX_FILE_SIZE - 12))
    (tmp_path / "latin").write_bytes(b"version = 1\n# caf\xe9\n")
    assert manifest.load(str(tmp_path / "fits")).version == 1
    for name in ("big", "latin", "absent", "."):
        with pytest.raises(ManifestError):
            manifest.load(str(tmp_path / name))
    with pytest.raises(ManifestError):
        manifest.load("nul\0")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(ManifestError, match="not a regular file"):
            manifest.load(str(tmp_path / "fifo"))


@pytest.mark.links
def test_a_link_is_followed_only_on_request(tmp_path):
    (tmp_path / "policy").write_text("version = 1\n")
    (tmp_path / "link").symlink_to("policy")
    assert manifest.read_file(str(tmp_path / "policy"), follow=False) == b"version = 1\n"
    assert manifest.load(str(tmp_path / "link")).version == 1
    with pytest.raises(ManifestError):
        manifest.read_file(str(tmp_path / "link"), follow=False)


def test_links_are_refused_on_systems_without_o_nofollow(tmp_path, monkeypatch):
    """Imitate Windows, which lacks the O_NOFOLLOW flag. On such a system corral compares the opened
    file with the result of lstat.
    """
    monkeypatch.delattr(os, "O_NOFOLLOW", raising=False)
    (tmp_path / "policy").write_text("version = 1\n")
    (tmp_path / "other").write_text("version = 1\n")
    assert manifest.read_file(str(tmp_path / "policy"), follow=False) == b"version = 1\n"
    elsewhere = os.lstat(tmp_path / "other")
    monkeypatch.setattr(os, "lstat", lambda _path: elsewhere)
    assert manifest.load(str(tmp_path / "policy")).version == 1
    with pytest.raises(ManifestError, match="is a symlink"):
        manifest.read_file(str(tmp_path / "policy"), follow=False)


def refusal(parse, *arguments):
    """Return the ManifestError that the parser raises, or None if it accepts the input. Any other
    exception fails the test.
    """
    try:
        found = parse(*arguments)
    except ManifestError as error:
        return error
    assert found.version == 1
    assert all(name in Limits.__match_args__ for name in found.limits)
    return None


def clean(parse, text):
    if error := refusal(parse, text, "policy"):
        assert error.mistakes
        assert all(one[1] is None or 1 <= one[1] <= text.count("\n") + 1 for one in error.mistakes)
        assert all(line.isprintable() for line in error.message.split("\n"))


@given(st.text())
@example("\r")
@example("a = 1979-99-99")
@example("[[a]]\nb=1")
@example('""=1')
def test_any_text_is_read_or_refused(text):
    clean(manifest.parse_toml, text)
    clean(manifest.parse_json, text)


@settings(max_examples=300)
@given(st.data())
def test_changed_manifests_are_read_or_refused(data):
    parse, text = data.draw(
        st.sampled_from([(manifest.parse_toml, GOOD), (manifest.parse_json, GOOD_JSON)])
    )
    alphabet = (
        st.sampled_from(list("[]{}\"'=.,:#\n\\ -0123456789eanit\0\u202e\ud800")) | st.characters()
    )
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + "".join(data.draw(st.lists(alphabet, max_size=4))) + text[end:]
    clean(parse, text)


@given(st.binary())
def test_any_bytes_are_read_or_refused(content):
    for name in ("policy.toml", "policy.json", "policy"):
        error = refusal(manifest.parse_bytes, content, name)
        assert error is None or error.mistakes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
TABLES = st.sampled_from(
    ["limits", "network", "filesystem", "environment", "server", "windows", "x"]
)


@given(
    st.dictionaries(
        TABLES, JSON | st.dictionaries(st.sampled_from(["allow", "set", "memory", "read"]), JSON)
    )
)
def test_any_data_is_read_or_refused(data):
    error = refusal(manifest.from_data, {"version": 1, **data}, "policy")
    assert error is None or error.mistakes


NAMES = st.sampled_from(["a", "b-c", '"q.r"', "'s t'", '"u"'])
SCALARS = st.sampled_from(
    [
        "1",
        '"x"',
        "'y'",
        '"""\nk = 1\n"""',
        "'''\n[t]\n'''",
        '"a\\"b"',
        '""""q""""',
        "1979-05-27 07:32:00",
        "true",
        '"#"',
    ]
)


@st.composite
def toml_document(draw):
    """Draw a TOML document with comments and line breaks in unusual places, together with the line
    of each key.
    """
    lines, expected = [], {}

    def bare(name):
        return name.strip("\"'")

    for table in draw(st.lists(NAMES, unique_by=bare, max_size=4)):
        lines += draw(st.lists(st.sampled_from(["", "# c = 1", "   # [x]"]), max_size=2))
        lines.append(f"[ t . {table} ] # [no]")
        expected["t", bare(table)] = sum(line.count("\n") + 1 for line in lines)
        for name in draw(st.lists(NAMES, unique_by=bare, max_size=4)):
            line = sum(line.count("\n") + 1 for line in lines) + 1
            path = ("t", bare(table), bare(name))
            value, inner = (
                draw(st.sampled_from(["scalar", "list", "inline", "dotted"])),
                draw(SCALARS),
            )
            if value == "list":
                lines.append(f"{name} = [ # [\n\n {inner}, # ]\n {inner}\n,]")
                expected[path] = line
                expected[*path, 0] = line + 2
                expected[*path, 1] = line + 3 + inner.count("\n")
            elif value == "inline":
                lines.append(f"{name} = {{ i = {inner}, j = [{{}}, []] }} # }}")
                expected[path] = line
                expected[*path, "i"] = line
                expected[*path, "j"] = line + inner.count("\n")
            elif value == "dotted":
                lines.append(f"{name} . d = {inner}")
                expected[path] = expected[*path, "d"] = line
            else:
                lines.append(f"{name} = {inner}")
                expected[path] = line
    return "\n".join(lines) + "\n", expected


@given(toml_document())
def test_toml_keys_have_the_right_lines(document):
    import tomllib

    text, expected = document
    found = line_numbers(text, toml.locate(text, tomllib.loads(text)))
    assert {path: line for path, line in found.items() if path in expected} == expected


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.sampled_from([None, 0, 2, "\n"]))
def test_json_keys_have_the_right_lines(data, indent):
    data = json.loads(json.dumps(data).replace("NaN", "0").replace("Infinity", "0"))
    text = json.dumps(data, indent=indent)
    repeated = []
    found = line_numbers(text, jsonc.Reader(text, repeated=repeated).document())
    assert repeated == []
    assert {path[0] for path in found if len(path) == 1} == set(data)
    lines = text.split("\n")
    for path, line in found.items():
        if isinstance(path[-1], str):
            assert json.dumps(path[-1]) in lines[line - 1]


@given(st.text())
def test_keys_that_are_not_in_the_data_have_no_line_numbers(text):
    """Locate the keys of an empty document in random texts. No line may be found, because there are
    no keys.
    """
    try:
        found = toml.locate(text, {})
    except BrokenFileError:
        return
    assert line_numbers(text, found) == {}


@pytest.mark.parametrize(
    "text",
    [
        "a", "localhost", "api.github.com", "API.GitHub.com", "*.example.com", "*.example.com:8443", "a.b:1-64",
        "1.2.3.4", "1.2.3.4:5", "10.0.0.0/8", "10.0.0.0/8:443", "0.0.0.0/0", "::1", "[::1]", "[::1]:443", "fd00::/8",
        "[fd00::/8]:1-2", "xn--bcher-kva.example", "1a.example", "::ffff:1.2.3.4", "a" * 63 + ".b",
    ],
)  # fmt: skip
def test_valid_destinations_are_accepted(text):
    assert parse_entry(str(parse_entry(text))) == parse_entry(text)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a b", "a\0", "a\n", "a.", ".a", "a..b", "-a", "a-", "a_b", "*", "*.", "*.com", "*a.com", "a.*.com", "a*",
        "b\u00fccher.example", "\u212a.example", "a:0", "a:65536", "a:", "a:80-", "a:-80", "a:90-80", "a:08", "a:+1", "a:\u0661",
        "a:http", "a/8", "1.2.3", "1.2.3.4.5", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "1.2.3.256",
        "1.2.3.04", "1.2.3.4/33", "1.2.3.4/8", "1.2.3.0/08", "[::1", "::1]", "[::1]443", "[a]:1", "[1.2.3.4]:1", "fe80::1%eth0",
        ":::", "::1/129", "fd00::1/8", "http://a", "u@a", "a:1:2", "a" * 64, ".".join(["a" * 60] * 5), "foo.0x1f", "a.1", "a/",
    ],
)  # fmt: skip
def test_invalid_destinations_are_errors(text):
    with pytest.raises(ValueError) as caught:
        parse_entry(text)
    assert str(caught.value)
    assert str(caught.value).isprintable()


@given(st.text())
def test_any_text_is_a_destination_or_an_error(text):
    try:
        found = parse_entry(text)
    except ValueError:
        return
    assert parse_entry(str(found)) == found
    assert text.isascii()
