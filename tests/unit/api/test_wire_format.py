"""Test that plans, endings and errors survive encoding and decoding unchanged, and that the decoder
creates nothing but corral's own records.
"""

import marshal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api import wire_format
from corral.errors import (
    ChangedPathsError,
    CommandError,
    LaunchError,
    PolicyError,
    SandboxError,
    SupervisionError,
)
from corral.plan.model import Held, Plan
from corral.platforms.contract import Ending, Reaped
from corral.platforms.linux.mechanisms.landlock import Landlock
from corral.platforms.posix.rlimits import Rlimits
from corral.policy.model import CONTROLS
from corral.programs.model import Program
from corral.record import replace

# File names are bytes, and Python represents bytes that are not valid UTF-8 as lone surrogates. So
# some of the generated strings contain lone surrogates.
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
endings = st.builds(
    Ending,
    reaped=st.builds(
        Reaped,
        status=st.none() | st.integers(0, 0xFFFF),
        cpu=st.floats(0, 1e6),
        memory=numbers,
        hit=lists,
        restored=lists,
    ),
    reason=st.sampled_from(["", "timeout", "signal"]),
    wall=st.floats(0, 1e6),
    replaced=lists,
)


@given(plans)
def test_a_decoded_plan_equals_the_original(plan):
    assert wire_format.decode(wire_format.encode(plan), Plan) == plan


@given(plans)
def test_a_supervisor_gets_a_plan_without_the_parts_for_the_report(plan):
    got = wire_format.decode(wire_format.encode_plan(plan), Plan)
    assert (got.watched, got.warnings, got.program.notes) == ((), (), ())
    kept = {"watched": plan.watched, "warnings": plan.warnings}
    assert replace(got, program=replace(got.program, notes=plan.program.notes), **kept) == plan


def test_defaults_are_not_sent():
    sent = marshal.loads(wire_format.encode(Landlock(read=("/",), write=())))
    assert set(sent) == {"$", "read", "write"}


@given(endings)
def test_a_decoded_ending_equals_the_original(ending):
    assert wire_format.decode(wire_format.encode(ending), Ending) == ending


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
def test_only_classes_that_corral_sends_are_decoded(name):
    with pytest.raises((ValueError, AttributeError)):
        wire_format.decode(marshal.dumps({"$": name, "args": "x"}), Plan)


NO_PLANS = [{}, {"$": 1}, [], None, ({"$": "corral.plan.host:Host"},)]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", *map(marshal.dumps, NO_PLANS)])
def test_an_invalid_plan_is_an_error(raw):
    with pytest.raises((ValueError, KeyError, AttributeError, EOFError, TypeError)):
        wire_format.decode(raw, Plan)


@pytest.mark.parametrize(
    "error",
    [
        SandboxError("it failed", hint="try again", details=("one", "two")),
        PolicyError("it is never granted", details=("one",)),
        SupervisionError("it could not be watched", hint="raise the limit"),
        LaunchError("landlock", "it is disabled", hint="enable it"),
        CommandError("there is no such program", exit_code=127),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_decoded_error_equals_the_original(error):
    found = wire_format.decode_error(wire_format.encode_error(error))
    assert (type(found), vars(found)) == (type(error), vars(error))


def test_a_decoded_error_with_its_own_fields_becomes_an_error_of_its_base_class():
    error = ChangedPathsError({"/a": ("/b", "/c")}, "it resolves elsewhere", hint="look at it")
    found = wire_format.decode_error(wire_format.encode_error(error))
    assert (type(found), str(found)) == (PolicyError, "it resolves elsewhere")


def test_a_decoded_system_error_keeps_its_number_and_file():
    error = OSError(28, "No space left on device", "/full")
    found = wire_format.decode_error(wire_format.encode_error(error))
    assert isinstance(found, OSError)
    assert (found.errno, found.strerror, found.filename) == (28, error.strerror, "/full")
