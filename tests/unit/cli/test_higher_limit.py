"""Test the flag that corral suggests for a limit that a target hit."""

import shlex

import pytest

from corral.cli import run_flags
from corral.cli.higher_limit import find_higher_limit
from corral.cli.option_parser import parse


@pytest.mark.parametrize(
    ("name", "asked", "flag"),
    [
        ("memory", "128M", "--max-memory 256M"),
        ("memory", "1G", "--max-memory 2G"),
        ("memory", "1000001", "--max-memory 2000002"),
        ("cpu_time", "90s", "--max-cpu-time 3m"),
        ("pids", "40", "--max-pids 80"),
        ("timeout", "500ms", "--timeout 1s"),
    ],
)
def test_the_suggested_flag_doubles_the_limit(name, asked, flag):
    assert find_higher_limit(name, asked) == flag
    options, rest = parse(run_flags.FLAGS, shlex.split(flag))
    assert rest == []
    assert run_flags.to_manifest(options) is not None  # `run` accepts the value


def test_no_flag_is_suggested_beyond_the_highest_value():
    assert find_higher_limit("pids", str(1 << 22)) == ""
