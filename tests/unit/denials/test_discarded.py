"""Test the message about discarded files, and the commands that it suggests."""

import shlex
import subprocess

import pytest

from corral.denials.discarded import describe_discarded
from corral.denials.records import Discarded


@pytest.mark.parametrize("name", ["notes", "it's here", "'quoted'", "two words"])
def test_mkdir_is_suggested_only_if_the_directory_is_missing(tmp_path, name):
    rows = [Discarded(path=f"~/{name}/file", bytes=5)]
    missing = describe_discarded(rows, home=str(tmp_path), whole=True)
    (tmp_path / name).mkdir()
    existing = describe_discarded(rows, home=str(tmp_path), whole=True)
    flag = f"--write ~/{shlex.quote(name)}"
    assert missing.endswith(f"; to keep it: `mkdir -p ~/{shlex.quote(name)}`, then {flag}")
    assert existing.endswith(f"; {flag} keeps it")


@pytest.mark.parametrize(
    ("path", "granted"),
    [
        ("~/.local/share/memory.json", "~/.local/share/memory.json"),
        ("~/Documents/memory.json", "~/Documents/memory.json"),
        ("~/.config/memory.json", "~/.config/memory.json"),
        ("~/.local/share/server/memory.json", "~/.local/share/server"),
    ],
)
def test_a_write_grant_is_never_suggested_for_a_directory_that_programs_share(
    tmp_path, path, granted
):
    """Check that corral suggests only the file if other programs use its directory. With a grant of
    the whole directory, the target could put files there that these programs run.
    """
    line = describe_discarded([Discarded(path=path, bytes=5)], home=str(tmp_path), whole=True)
    assert line.endswith(f"then --write {granted}")
    command = line.partition("`")[2].partition("`")[0]
    subprocess.run(
        ["/bin/sh", "-c", command], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True
    )
    assert (tmp_path / granted.removeprefix("~/")).exists()
