"""Test how `corral learn` turns the denials of a watched run into proposals."""

import shlex
import sys

import pytest

from corral.denials.records import Denial

if sys.platform != "linux":
    pytest.skip("runs are watched on Linux only", allow_module_level=True)

from corral.learn.proposals import Learned, Proposal
from corral.learn.watched_run import _judge_denials, to_denials
from corral.plan.model import Held, Plan
from corral.programs.model import Program


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


def test_a_learned_memory_limit_names_the_limit_that_was_too_low():
    held = Held(control="memory", asked="1G", stated=False, mechanism="rlimit", status="applied")
    program = Program(path="/bin/true", argv=("true",))
    plan = Plan(program=program, steps=(), controls=(held,), environment=())
    wanted = Proposal(flag="--max-memory", path="2G", why="the server asked for 1500 MiB of memory")
    [row] = to_denials(Learned(proposed=(wanted,)), plan)
    assert row.describe() == "denied: memory beyond 1G; --max-memory 2G"


def test_memory_that_is_never_proposed_is_described_without_a_flag():
    never = (("90000 MiB of memory", "more than this machine has"),)
    plan = Plan(
        program=Program(path="/bin/true", argv=("true",)), steps=(), controls=(), environment=()
    )
    [row] = to_denials(Learned(never=never), plan)
    assert row.describe() == "denied: 90000 MiB of memory (more than this machine has)"
