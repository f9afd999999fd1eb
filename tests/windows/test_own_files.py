"""Test corral's own directories and output on Windows."""

from __future__ import annotations

import os

from corral.abi import win32, win32_files
from corral.abi.private_directory import make_private_directory
from corral.abi.win32_security import read_security
from corral.platforms.windows.files import access_list
from corral.platforms.windows.mechanisms.restricted_token import own_sids


def test_a_private_directory_belongs_to_the_user_and_can_be_made_twice(tmp_path):
    before = win32.open_handles()
    path = str(tmp_path / "above" / "own")
    make_private_directory(path)
    make_private_directory(path)
    with win32_files.open_itself(path) as opened:
        found = read_security(opened.value)
    assert access_list.has_entry(found, own_sids()[0])
    with open(os.path.join(path, "file"), "x"):
        pass
    assert win32.open_handles() == before


def test_output_marks_survive_a_pipe_without_utf8_mode(corral):
    """Check that marks such as [✓] are printed correctly without UTF-8 mode. Without this mode,
    Python on Windows writes to a pipe in the system's code page.
    """
    environment = {**os.environ, "PYTHONUTF8": "0"}
    done = corral("doctor", env=environment)
    assert done.stdout.decode().startswith("[✓] OS: windows")
    plain = corral("doctor", env={**environment, "PYTHONIOENCODING": "cp1252"})
    assert plain.stdout.startswith(b"[+] OS: windows")
