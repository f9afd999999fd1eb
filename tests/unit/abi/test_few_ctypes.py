"""Test `few_ctypes`, which calls C functions through CPython's private module `_ctypes`. If
`_ctypes` lacks a function, `few_ctypes` uses ctypes instead.
"""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(importlib.util.find_spec("corral").origin).parents[1]
USE = """
import os, sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "without":
    import _ctypes
    class Other:
        def __getattr__(self, name):
            sys.modules["_ctypes"] = _ctypes
            raise AttributeError(name)
    sys.modules["_ctypes"] = Other()
from corral.abi import few_ctypes
libc = few_ctypes.PyDLL(None, use_errno=True)
buffer = few_ctypes.create_string_buffer(b"ab\\0cd", 5)
assert bytes(buffer) == b"ab\\0cd"
assert bytes(few_ctypes.create_string_buffer(b"ab")) == b"ab\\0"
assert bytes(few_ctypes.create_string_buffer(3)) == bytes(3)
assert libc.close(-1) == -1 and few_ctypes.get_errno() == 9
pair = (few_ctypes.c_int * 2)()
assert libc.pipe(pair) == 0
read = libc.read
read.restype = few_ctypes.c_long
read.argtypes = [few_ctypes.c_int, few_ctypes.c_void_p, few_ctypes.c_long]
os.write(pair[1], b"hello")
place = few_ctypes.create_string_buffer(5)
assert read(pair[0], few_ctypes.addressof(place), 5) == 5 and place.value == b"hello"
os.write(pair[1], b"x")
number = few_ctypes.c_int(0)
assert read(pair[0], few_ctypes.byref(number), 1) == 1 and number.value == 120
words = (few_ctypes.c_char_p * 2)(b"word", None)
assert words[0] == b"word" and words[1] is None
few_ctypes.pythonapi.PyOS_BeforeFork()
few_ctypes.pythonapi.PyOS_AfterFork_Parent()
print("ctypes" in sys.modules)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="calls POSIX functions")
@pytest.mark.parametrize(("module", "imported"), [("with", "False"), ("without", "True")])
def test_c_functions_give_the_same_results_through_underscore_ctypes_and_ctypes(module, imported):
    """Call C functions through `_ctypes`, and then through ctypes. The results must be the same."""
    argv = [sys.executable, "-I", "-S", "-c", USE, str(SOURCE), module]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, imported), done.stderr
