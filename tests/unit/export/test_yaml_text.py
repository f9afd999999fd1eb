"""Test that an independent YAML parser reads the same data from the YAML that corral writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.export.yaml_text import format_documents

yaml = pytest.importorskip("yaml")
TEXTS = st.one_of(
    st.text(), st.sampled_from(["yes", "No", "null", "~", "1", "0x1", "1.5", "a: b", "- a", "# a", "", " a", "a\nb\n", "a\n b\nc\n", "2026-01-01", "=", "<<", "\x85", "\u2028"])
)  # fmt: skip
KEYS = TEXTS.filter(lambda text: len(text) < 80)  # YAML limits the length of keys
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(), st.none())
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(KEYS, inner)), max_leaves=20
)


@given(st.lists(st.dictionaries(KEYS, VALUES, min_size=1), min_size=1, max_size=3))
def test_written_yaml_is_read_back(documents):
    assert list(yaml.safe_load_all(format_documents(documents))) == documents
