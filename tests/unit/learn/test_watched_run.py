"""Test how `corral learn` turns the denials of a watched run into proposals."""

import shlex
import sys

import pytest

from corral.denials.records import Denial

if sys.platform != "linux":
    pytest.skip("runs are watched on Linux only", allow_module_level=True)

from corral.learn.watched_run import _judge_denials


@pytest.mark.parametrize(
    "value", ["api.example.com:443", "[2001:db8::1]:443", "it's.example", "''"]
)
def test_a_proposal_has_the_flag_and_the_value_that_the_denial_suggests(value):
    flag = f"--allow-net {shlex.quote(value)}"
    denial = Denial(kind="name", destination=value, allow=flag)
    [proposal] = _judge_denials((denial,)).proposed
    assert (proposal.flag, proposal.path) == ("--allow-net", value)
    assert shlex.split(proposal.typed()) == ["--allow-net", value]


def test_a_flag_without_a_value_is_proposed_without_one():
    denial = Denial(kind="start", destination="/bin/sh", allow="--allow-subprocess")
    [proposal] = _judge_denials((denial,)).proposed
    assert (proposal.flag, proposal.path, proposal.typed()) == (
        "--allow-subprocess", "", "--allow-subprocess",
    )  # fmt: skip
