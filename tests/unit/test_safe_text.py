"""Test that untrusted text is printed safely, and that only real digests count as digests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.safe_text import INVISIBLE, is_digest, printable, shown


@given(st.text())
def test_printed_text_has_no_control_characters(text):
    assert shown(text).isprintable()
    assert printable(text).isprintable()


@pytest.mark.parametrize("one", sorted(INVISIBLE))
def test_invisible_letters_are_escaped(one):
    assert one.isprintable()
    assert printable(f"~/notes{one}") == f"~/notes\\u{ord(one):04x}"
    assert shown(f"~/notes{one}") == f"'~/notes\\u{ord(one):04x}'"
    assert printable("~/notes é 한국어 ❤️") == "~/notes é 한국어 ❤️"


@pytest.mark.parametrize(
    "text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "\u0661" * 64, None, 1]
)
def test_only_64_lowercase_hexadecimal_digits_count_as_a_digest(text):
    assert not is_digest(text)
    assert is_digest("0123456789abcdef" * 4)
