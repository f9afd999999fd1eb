"""Test the wrappers around Linux's system calls with real calls."""

import os
import pathlib
import subprocess
import sys

import pytest

import corral

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="calls Linux")
SET = """
import os
from corral.abi import linux as abi
try:
    abi.unshare(abi.CLONE_NEWUSER | abi.CLONE_NEWUTS)
except OSError as error:
    print("cannot unshare:", error)
else:
    abi.sethostname("größer")
    print(ascii(os.uname().nodename))
"""


def test_a_host_name_is_set_with_all_its_bytes():
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(corral.__file__).parents[1])}
    words = [sys.executable, "-X", "utf8", "-c", SET]
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    if said.startswith("cannot unshare"):
        pytest.skip(said)
    assert said == "'gr\\xf6\\xdfer'\n"
