"""Test that corral's output can be written to a stream with any encoding."""

from __future__ import annotations

import io
import json
import sys

import pytest

from corral.cli import output


def piped(encoding: str) -> tuple[io.BytesIO, io.TextIOWrapper]:
    raw = io.BytesIO()
    return raw, io.TextIOWrapper(raw, encoding=encoding, newline="\n")


def printed(monkeypatch, encoding: str, *, system: str, line: str) -> bytes:
    raw, stream = piped(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "platform", system)
    output.use_utf8()
    output.write_line(line)
    output.write_json({"name": "\x81é✓"})
    stream.flush()
    return raw.getvalue()


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "cp932", "utf-8"])
def test_a_pipe_on_windows_gets_utf8(monkeypatch, encoding):
    """Check the bytes in the pipe. By default Python would write in the system's code page, which
    lacks corral's symbols, and JSON has to be UTF-8.
    """
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    found = printed(monkeypatch, encoding, system="win32", line="[✓] it works")
    first, _, rest = found.decode("utf-8").partition("\n")
    assert first == "[✓] it works"
    assert json.loads(rest) == {"name": "\x81é✓"}


def test_an_encoding_set_by_the_user_is_used_with_plain_marks(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "cp437")
    for mark, plain in {"[✓]": "[+]", "[⚠]": "[!]", "✗": "x", "[!]": "[!]"}.items():
        found = printed(monkeypatch, "cp437", system="win32", line=f"{mark} é")
        assert found.decode("cp437").partition("\n")[0] == f"{plain} é"


def test_other_systems_keep_their_encoding(monkeypatch):
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    found = printed(monkeypatch, "ascii", system="linux", line="[✓] it works")
    assert found.startswith(b"[+] it works\n")
