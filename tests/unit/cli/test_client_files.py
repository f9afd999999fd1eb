"""Test the errors for a client's file that corral cannot read."""

from __future__ import annotations

import os
import sys

import pytest

from corral import cli
from corral.clients.edit_file import read_client_file
from corral.errors import SandboxError

CONTENTS = {
    "empty.json": b"\n",
    "latin.json": b'{"mcpServers": {"caf\xe9": {}}}',
    "cut.json": b'{"mcpServers": {',
    "notes.txt": b"text",
}


@pytest.mark.parametrize("name", [*CONTENTS, "directory.json", "fifo.json", "missing.json"])
def test_each_error_has_a_hint_that_mends_the_file(tmp_path, capfd, name):
    path = tmp_path / name
    if name in CONTENTS:
        path.write_bytes(CONTENTS[name])
    elif name == "directory.json":
        path.mkdir()
    elif name == "fifo.json":
        if sys.platform == "win32":
            pytest.skip("Windows has no FIFOs")
        os.mkfifo(path)
    with pytest.raises(SandboxError) as caught:
        read_client_file(str(path))
    hint = caught.value.hint
    assert hint
    for words in (["status"], ["wrap", "--check"]):
        assert cli.main([*words, str(path)]) == 1
        shown = capfd.readouterr().out
        assert f"hint: {hint}\n" in shown
        # The hint must not be to wrap the file, because `wrap` cannot read it either.
        assert f"hint: corral wrap {path}" not in shown


def test_the_hint_for_a_bare_server_is_to_wrap_its_file(tmp_path, capfd):
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"notes": {"command": "python3"}}}')
    assert cli.main(["wrap", "--check", str(path)]) == 1
    assert f"hint: corral wrap {path}\n" in capfd.readouterr().out
