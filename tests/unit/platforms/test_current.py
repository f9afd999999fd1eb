"""Test that corral refuses to run on a system that it does not support."""

import sys

import pytest

from corral.errors import SandboxError
from corral.platforms import current


def test_an_unsupported_system_is_named(monkeypatch):
    assert current.load()  # Sanity check: this system is supported
    monkeypatch.setattr(sys, "platform", "freebsd14")
    with pytest.raises(SandboxError, match="corral does not support this system: freebsd14"):
        current.load()
