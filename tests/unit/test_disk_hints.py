"""Test two things: the hint for a disk error is a command with an existing path, and a file keeps
its old content if the disk is full.
"""

import errno
import os

import pytest

from corral.abi.whole_file import replace_file
from corral.disk_hints import disk_hint

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_hint_names_an_existing_path(tmp_path):
    hint = disk_hint(FULL, str(tmp_path / "absent/file"), "go elsewhere")
    assert f"`df -h {tmp_path}; df -i {tmp_path}`" in hint
    assert hint.endswith(", or go elsewhere")


def test_other_errors_have_the_usual_hint(tmp_path):
    error = PermissionError(errno.EACCES, "Permission denied")
    assert disk_hint(error, str(tmp_path), "go elsewhere") == "go elsewhere"
    assert disk_hint(error, str(tmp_path)) == ""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no rlimits")
def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    """Limit the size of files, so that only part of the content can be written, as on a full
    disk.
    """
    import resource
    import signal

    path = tmp_path / "file"
    replace_file(str(path), b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(OSError, match=r"File too large.*file'$") as caught:
            replace_file(str(path), bytes(10000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.errno == errno.EFBIG
    assert (os.listdir(tmp_path), path.read_bytes()) == (["file"], b"before")
