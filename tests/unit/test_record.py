"""Test that records are frozen and keyword-only, like those of `dataclass(frozen=True,
kw_only=True)`.
"""

import pytest

from corral.record import astuple, fields, record, replace


@record
class Point:
    """A point."""

    x: int
    y: int = 7

    def sum(self) -> int:
        return self.x + self.y


@record
class Other:
    x: int
    y: int = 7


def test_fields_keep_their_order():
    assert fields(Point) == fields(Point(x=1)) == ("x", "y")
    assert astuple(Point(x=1)) == (1, 7)


def test_a_record_class_keeps_its_defaults_methods_and_docstring():
    assert Point(x=1).sum() == 8
    assert Point.__doc__ == "A point."
    assert Point.__name__ == Point.__qualname__ == "Point"
    assert Point.__module__ == __name__


@pytest.mark.parametrize(
    ("values", "said"), [({}, "'x'"), ({"y": 1}, "'x'"), ({"x": 1, "z": 2}, "'z'")]
)
def test_wrong_fields_are_named(values, said):
    with pytest.raises(TypeError, match=said):
        Point(**values)


def test_positional_arguments_are_not_accepted():
    with pytest.raises(TypeError):
        Point(1, 2)


@pytest.mark.parametrize("name", ["x", "z"])
def test_records_are_frozen(name):
    point = Point(x=1)
    with pytest.raises(AttributeError):
        setattr(point, name, 2)
    with pytest.raises(AttributeError):
        del point.x
    assert point == Point(x=1)


def test_equality_needs_the_same_class_and_values():
    assert Point(x=1) == Point(x=1, y=7)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Other(x=1)
    assert Point(x=1) != (1, 7)
    assert hash(Point(x=1)) == hash(Point(x=1))
    assert len({Point(x=1), Point(x=1), Other(x=1)}) == 2


def test_a_record_with_a_mutable_value_has_no_hash():
    with pytest.raises(TypeError):
        hash(Point(x=[]))


def test_the_repr_shows_all_fields():
    assert repr(Point(x=1)) == "Point(x=1, y=7)"


def test_replace_returns_a_changed_copy():
    point = Point(x=1)
    assert replace(point, y=2) == Point(x=1, y=2)
    assert point == Point(x=1)
    with pytest.raises(TypeError):
        replace(point, z=1)


def test_patterns_match_fields_by_name():
    match Point(x=1):
        case Point(x=1, y=seven):
            assert seven == 7
        case _:
            pytest.fail("no match")
