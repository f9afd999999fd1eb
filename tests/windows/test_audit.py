"""Check that Windows does not change the line endings of the audit file."""

from __future__ import annotations

import os

import pytest

from corral.denials.audit import Audit, open_audit, verify
from corral.denials.records import Denials


def write(path, destination):
    fd = open_audit(str(path))
    try:
        denials = Denials(audit=Audit(fd))
        denials.add("name", destination, allow=destination)
        denials.close()
    finally:
        os.close(fd)


def test_the_next_run_continues_the_chain(tmp_path):
    path = tmp_path / "audit"
    write(path, "a.example")
    write(path, "b.example")
    found = verify(str(path))
    assert (found.lines, found.broken, found.ended) == (4, None, True)
    assert b"\r" not in path.read_bytes()


def test_one_run_at_a_time_writes_an_audit(tmp_path):
    path = tmp_path / "audit"
    fd = open_audit(str(path))
    with pytest.raises(BlockingIOError):
        open_audit(str(path))
    os.close(fd)
    write(path, "a.example")
    assert verify(str(path)).broken is None
