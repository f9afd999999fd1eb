"""Test printing to streams with any encoding, and to streams that are closed or full."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress

import pytest

from corral.cli import output
from corral.errors import SandboxError


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
    """Check that a pipe gets UTF-8, because JSON requires it. Python's default on Windows is the
    system's code page, which also lacks corral's symbols.
    """
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    found = printed(monkeypatch, encoding, system="win32", line="[✓] it works")
    first, _, rest = found.decode("utf-8").partition("\n")
    assert first == "[✓] it works"
    assert json.loads(rest) == {"name": "\x81é✓"}


def test_an_encoding_set_by_the_user_is_kept_and_marks_are_printed_in_ascii(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "cp437")
    for mark, plain in {"[✓]": "[+]", "[⚠]": "[!]", "✗": "x", "[!]": "[!]"}.items():
        found = printed(monkeypatch, "cp437", system="win32", line=f"{mark} é")
        assert found.decode("cp437").partition("\n")[0] == f"{plain} é"


def test_outside_windows_output_keeps_its_encoding(monkeypatch):
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    found = printed(monkeypatch, "ascii", system="linux", line="[✓] it works")
    assert found.startswith(b"[+] it works\n")


def test_a_question_needs_stderr_but_not_stdout(monkeypatch):
    raw, stderr = piped("utf-8")
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", stderr)
    output.prompt("use it?")
    assert raw.getvalue() == b"corral: use it? "
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SandboxError, match="stderr is closed"):
        output.prompt("use it?")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_a_question_is_not_asked_if_the_text_before_it_cannot_be_written(monkeypatch):
    raw, stderr = piped("utf-8")
    monkeypatch.setattr(sys, "stderr", stderr)
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - closing it fails too
    monkeypatch.setattr(sys, "stdout", full)
    output.write_line("a request")
    with pytest.raises(output.UnwrittenError, match="cannot print"):
        output.prompt("use it?")
    with suppress(OSError):
        full.close()
    assert raw.getvalue() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps the current directory")
def test_a_removed_current_directory_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    # Sanity check: while the current directory exists, the error does not mention it.
    missing = output.from_os_error(FileNotFoundError(2, "No such file or directory"))
    assert missing.message == "No such file or directory"
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        os.path.abspath("relative")
    named = output.from_os_error(caught.value)
    assert named.message.startswith("the current directory cannot be found")
    assert named.hint == "start corral from a directory that exists"


def test_a_table_has_its_header_only_above_rows(capfd):
    output.write_table([("a", "1")], "nothing", header=("NAME", "SIZE"))
    output.write_table([], "nothing", header=("NAME", "SIZE"))
    output.flush()
    assert capfd.readouterr().out == "NAME  SIZE\na     1\nnothing\n"
