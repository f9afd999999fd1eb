"""Test sizes, durations and CPU shares: valid strings are parsed, invalid ones are refused, and
formatting reverses parsing.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral import units

HUGE = (1 << 63) - 1
TRICKS = [
    "", " ", "1 G", " 1G", "1G ", "1G\n", "\t1G", "1\u00a0G", "-1G", "+1G", "-0", "1e3", "0x10", "1_000",
    "\u0661G", "\uff11G", "1\u2007G", "1.G", ".5G", "1..5G", "1.5.5G", "G", "NaN", "nan", "inf", "-inf",
    "None", "NONE", "null", "1GG", "1Gi", "1P", "\u212aiB", "9" * 5000, "0." + "0" * 5000 + "1",
]  # fmt: skip
NOT_AMOUNTS = [True, False, None, [], {}, (), b"1G", object(), math.nan, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("64M", 64 << 20), ("1.5G", 3 << 29), ("1GiB", 1 << 30), ("1", 1), (1, 1), ("1024B", 1024),
        ("4k", 4096), ("2T", 2 << 40), ("1.0009765625K", 1025), (HUGE, HUGE), ("none", None),
    ],
)  # fmt: skip
def test_valid_sizes_are_read(written, size):
    assert units.parse_size(written) == size


@pytest.mark.parametrize(
    "written", [*TRICKS, *NOT_AMOUNTS, 0, "0", "0G", -1, HUGE + 1, "8388608T", 1.5]
)
def test_invalid_sizes_are_refused(written):
    with pytest.raises(ValueError):
        units.parse_size(written)


def test_the_error_for_an_ambiguous_unit_names_the_right_one():
    with pytest.raises(ValueError, match="write 1G"):
        units.parse_size("1GB")


@pytest.mark.parametrize(
    ("written", "duration"),
    [
        ("500ms", 500),
        ("60s", 60_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("0.5s", 500),
        ("none", None),
    ],
)
def test_valid_durations_are_read(written, duration):
    assert units.parse_duration(written) == duration


@pytest.mark.parametrize(
    "written",
    [*TRICKS, *NOT_AMOUNTS, 0, 60, 1.5, "0s", "0.1ms", "1M", "1S", "1d", "5 m", "1h30m", "-5s"],
)
def test_invalid_durations_are_refused(written):
    with pytest.raises(ValueError):
        units.parse_duration(written)


def test_an_error_for_a_bare_duration_names_the_units():
    for written in (60, "60"):
        with pytest.raises(ValueError, match="write 60s"):
            units.parse_duration(written)


@pytest.mark.parametrize(
    ("written", "cpu"),
    [
        ("500m", 500),
        (0.5, 500),
        ("0.5", 500),
        (2, 2000),
        ("2", 2000),
        (0.57, 570),
        (0.001, 1),
        ("none", None),
    ],
)
def test_valid_cpu_shares_are_read(written, cpu):
    assert units.parse_cpu(written) == cpu


@pytest.mark.parametrize(
    "written",
    [
        *TRICKS,
        *NOT_AMOUNTS,
        0,
        0.0,
        -1,
        -0.5,
        1e300,
        10**9,
        "0m",
        "0.0001",
        0.0001,
        "500M",
        "500mm",
    ],
)
def test_invalid_cpu_shares_are_refused(written):
    with pytest.raises(ValueError):
        units.parse_cpu(written)


def test_a_bare_integer_is_millicores_on_the_command_line_only():
    assert units.parse_cpu_flag("100") == 100
    assert units.parse_cpu_flag("10") == 10
    assert units.parse_cpu_flag("2m") == 2
    assert units.parse_cpu_flag("2.0") == 2000
    with pytest.raises(ValueError, match=r"could mean cores or millicores: write 2\.0 or 2m"):
        units.parse_cpu_flag("2")
    assert units.parse_cpu("100") == 100_000
    assert units.parse_cpu_flag("0.5") == units.parse_cpu_flag("500m") == 500
    for written in TRICKS:
        with pytest.raises(ValueError):
            units.parse_cpu_flag(written)


@given(st.integers(1, HUGE))
def test_formatted_values_are_read_back(value):
    assert units.parse_size(units.format_size(value)) == value
    assert units.parse_duration(units.format_duration(value)) == value
    share = value % units.MAX_CPU + 1
    assert units.parse_cpu(units.format_cpu(share)) == share


def test_no_limit_is_formatted_as_none():
    assert {units.format_size(None), units.format_duration(None), units.format_cpu(None)} == {
        "none"
    }


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none())
def test_random_text_is_a_value_or_an_error_with_a_message(value):
    for parse in (units.parse_size, units.parse_duration, units.parse_cpu):
        found, words = outcome(parse, value)
        assert words.isprintable()
        assert bool(words) or found is None or 0 < found <= HUGE


def outcome(parse, value):
    try:
        return parse(value), ""
    except ValueError as error:
        return None, str(error)


def test_the_error_for_a_duration_of_zero_does_not_advise_a_refused_value():
    for written in ("0", 0, "00"):
        with pytest.raises(ValueError, match='write 500ms, 60s, 5m, 1h or "none"'):
            units.parse_duration(written)
    with pytest.raises(ValueError, match="write 1s"):  # Sanity check
        units.parse_duration("1")
