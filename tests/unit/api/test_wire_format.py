"""Plans and reports survive the way to a supervisor; nothing but records of corral's is made from text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api import wire_format
from corral.plan.model import Held, Plan
from corral.platforms.linux.mechanisms.landlock import Landlock
from corral.platforms.posix.rlimits import Rlimits
from corral.policy.model import CONTROLS
from corral.programs.model import Program
from corral.supervisor.report import Outcome, Report, Usage

# File names are bytes: what is no UTF-8 is carried by lone surrogates.
words = st.text() | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
lists = st.lists(words, max_size=4).map(tuple)
numbers = st.integers(min_value=0, max_value=2**63)
helds = st.builds(
    Held,
    control=st.sampled_from(CONTROLS),
    asked=words,
    stated=st.booleans(),
    mechanism=words,
    status=st.sampled_from(["verified", "applied", "degraded", "not asked"]),
    why=words,
)
steps = st.builds(Landlock, read=lists, write=lists) | st.builds(
    Rlimits, values=st.lists(st.tuples(words, numbers), max_size=3).map(tuple)
)
plans = st.builds(
    Plan,
    program=st.builds(Program, path=words, argv=lists, cwd=words),
    steps=st.lists(steps, max_size=4).map(tuple),
    controls=st.lists(helds, max_size=4).map(tuple),
    environment=st.lists(st.tuples(words, words), max_size=4).map(tuple),
    secret_names=lists,
    timeout=st.none() | numbers,
    warnings=lists,
)
reports = st.builds(
    Report,
    command=lists,
    outcome=st.builds(
        Outcome,
        kind=st.sampled_from(["exited", "timeout"]),
        exit_code=st.integers(0, 255),
        signal=st.none() | st.integers(1, 64),
        detail=words,
    ),
    controls=st.lists(helds, max_size=3).map(tuple),
    usage=st.builds(Usage, wall_ms=numbers, cpu_ms=numbers),
    warnings=lists,
)


@given(plans)
def test_a_plan_comes_back_as_it_was(plan):
    assert wire_format.decode(wire_format.encode(plan), Plan) == plan


@given(reports)
def test_a_report_comes_back_as_it_was(report):
    assert wire_format.decode(wire_format.encode(report), Report) == report


@given(plans)
def test_what_travels_is_one_line_of_ascii(plan):
    assert wire_format.encode(plan).isascii()
    assert b"\n" not in wire_format.encode(plan)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "corral.cli:main",
        "corral.api.sandbox:os",
        "corral.api.sandbox:Sandbox",
        "corralled.evil:Thing",
        "corral:run",
        "",
    ],
)
def test_nothing_but_a_record_of_corrals_is_made(name):
    with pytest.raises((ValueError, AttributeError)):
        wire_format.decode(json.dumps({"$": name, "args": "x"}).encode(), Plan)


@pytest.mark.parametrize("raw", [b"", b"{", b"{}", b'{"$": 1}', b"\xff", b"[]"])
def test_what_is_no_plan_is_an_error(raw):
    with pytest.raises((ValueError, KeyError, AttributeError)):
        wire_format.decode(raw, Plan)
