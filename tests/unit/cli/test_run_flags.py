"""Test that each flag of `run` sets the key that the schema names for it."""

import pytest

from corral.cli import run_flags
from corral.cli.option_parser import UsageError, help_lines, parse
from corral.platforms.deadlines import GRACE_SECONDS
from corral.policy import schema
from corral.policy.model import Limits, format_limit


def manifest(*words):
    options, rest = parse(run_flags.FLAGS, words)
    assert rest == []
    return run_flags.to_manifest(options)


def test_every_flag_of_the_schema_exists_once():
    names = [flag.name for flag in run_flags.FLAGS]
    assert len(names) == len(set(names))
    assert {key.flag for key in schema.KEYS if key.flag} <= set(names)
    for flag in run_flags.FLAGS:
        assert not flag.key or schema.BY_PATH[flag.key].flag == flag.name


def test_flags_that_are_no_part_of_a_policy_change_no_policy():
    assert manifest() is None
    assert manifest("--profile", "x", "--config", "a=b", "--with", "y") is None
    assert manifest("--strict").strict
    assert manifest("--best-effort").best_effort


def test_env_passes_or_sets_variables():
    assert manifest("--env", "A").set_values is None
    assert manifest("--env", "A=b").pass_names is None
    found = manifest("--env", "A", "--env", "B=c=d", "--env", "E=", "--secret", "S")
    assert found.pass_names == ("A",)
    assert found.set_values == (("B", "c=d"), ("E", ""))
    assert found.secret_names == ("S",)


@pytest.mark.parametrize("flag", ["--max-memory", "--max-pids", "--timeout", "--read", "--listen"])
def test_an_empty_value_is_an_error(flag):
    with pytest.raises(UsageError, match=f"{flag} needs a value"):
        manifest(flag, "")


def test_the_help_names_the_grace_before_a_kill():
    [line] = [line for line in help_lines(run_flags.FLAGS) if "--timeout" in line]
    assert f"{GRACE_SECONDS:g} s" in line


@pytest.mark.parametrize(
    "flag", [flag for flag in run_flags.FLAGS if flag.key.startswith("limits.")], ids=str
)
def test_the_help_of_a_limit_names_its_default(flag):
    name = flag.key.removeprefix("limits.")
    assert f"(default: {format_limit(name, getattr(Limits(), name))})" in flag.help
