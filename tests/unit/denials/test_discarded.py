"""Test the line that describes discarded files, and the commands in it."""

import shlex

import pytest

from corral.denials.discarded import describe_discarded
from corral.denials.records import Discarded


@pytest.mark.parametrize("name", ["notes", "it's here", "'quoted'", "two words"])
def test_a_path_is_created_only_if_it_is_missing(tmp_path, name):
    rows = [Discarded(path=f"~/{name}/file", bytes=5)]
    missing = describe_discarded(rows, home=str(tmp_path), whole=True)
    (tmp_path / name).mkdir()
    existing = describe_discarded(rows, home=str(tmp_path), whole=True)
    flag = f"--write ~/{shlex.quote(name)}"
    assert missing.endswith(f"; to keep it: `mkdir -p ~/{shlex.quote(name)}`, then {flag}")
    assert existing.endswith(f"; {flag} keeps it")
