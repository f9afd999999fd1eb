"""Test which files corral opens for a report or an audit."""

import os
import sys

import pytest

from corral.abi.output_file import open_output


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in directories")
def test_the_refusal_of_a_pipe_names_a_pipe_with_and_without_a_reader(tmp_path):
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a plain file"):
        open_output(path, os.O_WRONLY)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a plain file"):
        open_output(path, os.O_WRONLY)
    os.close(reader)
    # Sanity check: a plain file is opened.
    os.close(open_output(str(tmp_path / "file"), os.O_WRONLY))
