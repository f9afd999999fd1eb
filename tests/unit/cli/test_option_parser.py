"""Test the option parser, which must not crash on random input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli import run_flags
from corral.cli.option_parser import Flag, UsageError, help_lines, parse

FLAGS = (
    Flag(name="--size", value="SIZE", help="one value"),
    Flag(name="--read", value="PATH", many=True, help="several values"),
    Flag(name="--strict", help="a switch"),
    Flag(name="--verbose", short="-v", help="a switch with a short name"),
)
NAMES = [name for flag in FLAGS for name in (flag.name, flag.short) if name]


def test_options_end_at_the_first_word_or_at_a_double_dash():
    assert parse(FLAGS, ["--strict", "cmd", "--size", "1"])[1] == ["cmd", "--size", "1"]
    assert parse(FLAGS, ["--strict", "--", "--size", "1"])[1] == ["--size", "1"]
    assert parse(FLAGS, ["--", "--"])[1] == ["--"]
    assert parse(FLAGS, ["-", "x"])[1] == ["-", "x"]
    assert parse(FLAGS, [])[1] == []


@pytest.mark.parametrize("words", [["--size", "1G"], ["--size=1G"]])
def test_a_value_follows_its_flag_or_is_joined_to_it(words):
    options, rest = parse(FLAGS, [*words, "cmd"])
    assert (options.get("--size"), rest) == ("1G", ["cmd"])


@pytest.mark.parametrize("value", ["a=b", "=", "--other", "-", "-1"])
def test_a_value_may_look_like_a_flag(value):
    assert parse(FLAGS, [f"--size={value}"])[0].get("--size") == value
    assert parse(FLAGS, ["--size", value])[0].get("--size") == value


@pytest.mark.parametrize("value", ["--", "--strict", "--size", "-v"])
def test_a_flag_does_not_take_the_following_option_as_its_value(value):
    """Check that the parser refuses `--read -- server`, which is what a shell makes of `--read
    $UNSET -- server`. If the parser took `--` as the path, corral would grant a file named `--` and
    run a different command.
    """
    with pytest.raises(UsageError) as caught:
        parse(FLAGS, ["--read", value, "cmd"])
    assert caught.value.message == "--read needs a value: PATH"
    # Sanity check: after `=` the same text is a value.
    assert parse(FLAGS, [f"--read={value}"])[0].all("--read") == (value,)


@pytest.mark.parametrize("words", [["--size", ""], ["--size="], ["--read", "a", "--read", ""]])
def test_an_empty_value_counts_as_missing(words):
    with pytest.raises(UsageError, match=r"needs a value"):
        parse(FLAGS, words)


def test_an_empty_word_is_refused_except_in_the_command():
    with pytest.raises(UsageError, match="an argument is empty"):
        parse(FLAGS, ["--strict", "", "x"])
    with pytest.raises(UsageError, match="an argument is empty"):
        parse(FLAGS, ["x", ""], anywhere=True)
    # Sanity check: a command's own arguments may be empty.
    assert parse(FLAGS, ["cmd", ""])[1] == ["cmd", ""]
    assert parse(FLAGS, ["--", "cmd", ""])[1] == ["cmd", ""]


def test_repeatable_flags_collect_their_values():
    options, _ = parse(FLAGS, ["--read", "a", "--read=b"])
    assert options.all("--read") == ("a", "b")
    assert options.all("--size") == ()
    assert options.get("--size") is None


def test_a_short_name_means_the_long_flag():
    assert parse(FLAGS, ["-v"])[0].has("--verbose")
    assert not parse(FLAGS, ["--strict"])[0].has("--verbose")


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["--sise", "1"], "--sise", "did you mean --size?"),
        (["--sise=1"], "--sise", "did you mean --size?"),
        (["--qqqqqq"], "--qqqqqq", None),
        (["--size"], "--size needs a value: SIZE", None),
        (["--strict=yes"], "--strict takes no value", None),
        (["--size", "1", "--size", "2"], "--size is given twice", None),
        (["-x"], "-x", None),
    ],
)
def test_an_error_names_the_wrong_flag(words, said, hint):
    with pytest.raises(UsageError) as caught:
        parse(FLAGS, words)
    assert said in caught.value.message
    assert caught.value.exit_code == 2
    if hint:
        assert caught.value.hint == hint


@given(st.lists(st.text() | st.sampled_from([*NAMES, "--", "-", "--size=1", "--strict=1"])))
def test_random_words_are_parsed_or_are_a_usage_error(words):
    try:
        options, rest = parse(FLAGS, words)
    except UsageError:
        return
    assert words[len(words) - len(rest) :] == rest
    assert set(options.values) <= {flag.name for flag in FLAGS}
    assert all(not options.get(flag.name) for flag in FLAGS if not flag.value)


def test_help_has_a_line_for_every_flag():
    lines = help_lines(FLAGS)
    assert len(lines) == len(FLAGS)
    assert all(
        flag.help in line and flag.name in line for flag, line in zip(FLAGS, lines, strict=True)
    )
    assert help_lines(()) == []


@pytest.mark.parametrize(("word", "key"), [("--max-io", "limits.io"), ("--limits.io", "limits.io")])
def test_the_error_for_a_policy_key_without_a_flag_names_the_key(word, key):
    with pytest.raises(UsageError) as error:
        parse(run_flags.FLAGS, [word, "1M"])
    assert error.value.hint == f"{key} has no option: set it in a policy (--policy FILE)"
    with pytest.raises(UsageError) as error:  # Sanity check: this key does have a flag
        parse(run_flags.FLAGS, ["--max-memry", "1M"])
    assert error.value.hint == "did you mean --max-memory?"
