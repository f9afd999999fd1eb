"""Test command lines and environment blocks. A parser that does not share code with corral reads
them by the documented rules.
"""

import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.errors import CommandError
from corral.programs.windows_command_line import (
    MAX_BATCH_LENGTH,
    MAX_LENGTH,
    batch_line,
    environment_block,
    is_batch,
    quote,
    quoted,
    start_line,
    utf16_length,
)

ROOT = r"C:\Windows"
NASTY = st.text(st.sampled_from(list('ab\\\\\\"" \t\n%&^|é\U0001f600\ud800')), max_size=12)
TEXT = st.one_of(NASTY, st.text(st.characters(exclude_characters="\0"), max_size=30))
NAMES = TEXT.filter(lambda text: '"' not in text and text)


def split(line):
    """Split a command line as CommandLineToArgvW does. This function is written from the
    documentation alone, so it is independent of corral's code.
    """
    arguments, at = [], 0
    if line.startswith('"'):
        end = line.index('"', 1)
        arguments.append(line[1:end])
        at = end + 1
    else:
        while at < len(line) and line[at] not in " \t":
            at += 1
        arguments.append(line[:at])
    while True:
        while at < len(line) and line[at] in " \t":
            at += 1
        if at == len(line):
            return arguments
        word, inside = "", False
        while at < len(line) and (inside or line[at] not in " \t"):
            slashes = 0
            while at < len(line) and line[at] == "\\":
                slashes += 1
                at += 1
            if at < len(line) and line[at] == '"':
                word += "\\" * (slashes // 2)
                if slashes % 2:
                    word += '"'
                elif inside and line[at + 1 : at + 2] == '"':
                    word += '"'
                    at += 1
                else:
                    inside = not inside
                at += 1
            else:
                word += "\\" * slashes
                if not slashes and at < len(line):
                    word += line[at]
                    at += 1
        arguments.append(word)


def test_the_tests_own_parser_reads_the_examples_in_microsofts_manual():
    """Check this file's `split` with Microsoft's own table of arguments and results."""
    assert split('x "a b c" d e') == ["x", "a b c", "d", "e"]
    assert split('x "ab\\"c" "\\\\" d') == ["x", 'ab"c', "\\", "d"]
    assert split('x a\\\\\\b d"e f"g h') == ["x", "a\\\\\\b", "de fg", "h"]
    assert split('x a\\\\\\"b c d') == ["x", 'a\\"b', "c", "d"]
    assert split('x a\\\\\\\\"b c" d e') == ["x", "a\\\\b c", "d", "e"]


@given(NAMES, st.lists(TEXT, max_size=6))
@example("C:\\a\\", ["", "\\", '"', "\\\\", 'a\\"b', "a b\\\\", "\t"])
def test_quoted_arguments_are_read_back(program, rest):
    assert split(quoted([program, *rest])) == [program, *rest]


@given(st.text(st.sampled_from(list('ab\\" \t')), max_size=10))
def test_an_argument_is_quoted_as_python_quotes_it(argument):
    """Compare corral's quoting with Python's, which is an independent implementation."""
    mine = quote(argument)
    theirs = subprocess.list2cmdline([argument])
    assert split(f"x {mine}") == split(f"x {theirs}") == ["x", argument]


@pytest.mark.parametrize("argv", [[], [""], ['a"b'], ["a", "b\0c"]])
def test_arguments_that_no_command_line_can_have_are_refused(argv):
    with pytest.raises(CommandError) as caught:
        start_line(argv, system_root=ROOT)
    assert caught.value.exit_code == 126


def test_the_longest_command_line_is_accepted_and_a_longer_one_refused():
    head = utf16_length(quoted(["a", ""])) - 2
    fits = "x" * (MAX_LENGTH - 1 - head)
    assert utf16_length(start_line(["a", fits], system_root=ROOT)[1]) == MAX_LENGTH - 1
    with pytest.raises(CommandError, match="longer than 32766"):
        start_line(["a", fits + "x"], system_root=ROOT)
    with pytest.raises(CommandError, match="longer than 32766"):
        start_line(["a", "\U0001f600" * (MAX_LENGTH // 2)], system_root=ROOT)


@pytest.mark.parametrize(
    "path",
    [
        "x.bat", r"C:\d\X.CMD", "x.bat.", "x.cmd . .", "d/x.cmd ", "C:x.cmd", "x.cmd::$DATA",
        r"C:\d\x.bat:stream", r"\\?\C:\d\x.cmd",
    ],
)  # fmt: skip
def test_every_spelling_of_a_batch_file_is_recognized(path):
    assert is_batch(path)


@pytest.mark.parametrize("path", ["cmd", "x.exe", r"C:\x.bat\y.exe", "x.batch", "bat", "x.com"])
def test_other_files_are_not_batch_files(path):
    assert not is_batch(path)


INJECTIONS = [
    '"&calc',
    "%PATH%",
    "a&b",
    "a|b",
    "<x",
    ">x",
    "^",
    "!PATH!",
    "a\nb",
    "a\rb",
    "(",
    ")",
    '"',
    "\x1a",
]


@pytest.mark.parametrize("argument", INJECTIONS, ids=repr)
def test_arguments_that_cmd_would_reinterpret_are_refused(argument):
    with pytest.raises(CommandError, match=r"which cmd\.exe would interpret") as caught:
        start_line(["x.cmd", argument], system_root=ROOT)
    assert caught.value.exit_code == 126
    # Sanity check: a program that is not a batch file gets the same argument unchanged.
    assert split(start_line(["x.exe", argument], system_root=ROOT)[1]) == ["x.exe", argument]


@pytest.mark.parametrize("path", ["a&b.cmd", "%TEMP%\\x.cmd", 'a"b.cmd', "a^b.bat"])
def test_paths_that_cmd_would_reinterpret_are_refused(path):
    with pytest.raises(CommandError):
        start_line([path], system_root=ROOT)


def test_a_batch_file_runs_in_the_real_cmd():
    application, line = start_line(
        [r"C:\Program Files (x86)\x.cmd", "a b", "c;d=e,f", "C:\\"], system_root=ROOT
    )
    assert application == r"C:\Windows\System32\cmd.exe"
    assert line == (
        '"C:\\Windows\\System32\\cmd.exe" /d /s /e:on /v:off /c '
        '""C:\\Program Files (x86)\\x.cmd" "a b" "c;d=e,f" "C:\\\\""'
    )


def test_a_line_that_cmd_would_cut_is_refused():
    head = utf16_length(batch_line(r"C:\Windows\System32\cmd.exe", ["x.cmd", ""]))
    assert start_line(["x.cmd", "x" * (MAX_BATCH_LENGTH - 1 - head)], system_root=ROOT)
    with pytest.raises(CommandError, match="longer than 8190"):
        start_line(["x.cmd", "x" * (MAX_BATCH_LENGTH - head)], system_root=ROOT)


def read_block(block):
    text = block.decode("utf-16-le", "surrogatepass")
    assert text.endswith("\0\0")
    return [tuple(line.split("=", 1)) for line in text[:-2].split("\0") if line]


VARIABLE_NAMES = st.text(st.characters(exclude_characters="\0="), min_size=1, max_size=10)
VALUES = st.text(st.characters(exclude_characters="\0"), max_size=20)


@given(st.dictionaries(VARIABLE_NAMES, VALUES, max_size=8))
def test_the_environment_block_has_every_variable_once_and_sorted(variables):
    try:
        block = environment_block(variables.items())
    except ValueError:
        assert len({name.upper() for name in variables}) < len(variables)
        return
    assert dict(read_block(block)) == variables
    assert len(block) % 2 == 0


def test_variables_are_sorted_as_windows_sorts_them():
    names = ["b", "A_", "AB", "a", "Path", "é", "\uffff", "\U0001f600"]
    found = [name for name, _ in read_block(environment_block((name, "") for name in names))]
    # Windows converts names to upper case and then compares their UTF-16 code units. So a surrogate
    # pair sorts before U+FFFF, and the underscore sorts after A to Z.
    assert found == ["a", "AB", "A_", "b", "Path", "é", "\U0001f600", "\uffff"]


def test_an_empty_environment_block_has_two_zeros():
    assert environment_block([]) == bytes(4)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ([("", "x")], "cannot be the name"),
        ([("=C:", "C:\\")], "cannot be the name"),
        ([("a=b", "x")], "cannot be the name"),
        ([("a\0b", "x")], "cannot be the name"),
        ([("a", "x\0PATH=evil")], "NUL"),
        ([("Path", "1"), ("PATH", "2")], "twice"),
        ([("a", "1"), ("a", "1")], "twice"),
        ([("a", "x" * MAX_LENGTH)], "longer"),
    ],
)
def test_ambiguous_variables_are_refused(variables, message):
    with pytest.raises(ValueError, match=message):
        environment_block(variables)
