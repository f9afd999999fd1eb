"""Test when corral assumes that other programs have its streams, too."""

import subprocess
import sys

import pytest

import corral

CODE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.linux import stream_relay
parent = os.getppid() if sys.argv[2] == "parent" else int(sys.argv[2])
print(stream_relay._is_orphan(parent))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this module's calls")
@pytest.mark.parametrize(("parent", "is_orphan"), [("0", True), ("1", True), ("parent", False)])
def test_a_parent_outside_of_the_pid_namespace_or_pid_1_counts_as_lost(parent, is_orphan):
    """The parent is 0 if it is in another PID namespace, as after `unshare --pid` or `docker exec`.
    Sanity check: the test itself is an ordinary parent.
    """
    source = corral.__path__[0].rpartition("/")[0]
    argv = [sys.executable, "-c", CODE, source, parent]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"{is_orphan}\n"
