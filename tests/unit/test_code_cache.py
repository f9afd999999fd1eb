"""Test the single file that caches the compiled code of corral's modules. A module is loaded from
it only while the module's source is unchanged.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import corral

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pread")

SOURCE = pathlib.Path(corral.__file__).parent
START = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from corral import code_cache
code_cache.use()
import corral.units, corral.plan.model
told = {
    name: type(module.__loader__).__module__
    for name, module in sys.modules.items() if name.startswith("corral")
}
told["marked"] = getattr(corral.units, "MARKED", None)
told["used"] = any(bool(getattr(one, "entries", None)) for one in sys.meta_path)
if os.environ.get("KEEP"):
    code_cache.keep()
os.write(2, json.dumps(told).encode())
"""
CACHE = "corral.code_cache"


@pytest.fixture
def site(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(site, *flags, keep=True, **more):
    argv = [sys.executable, "-I", *flags, "-c", START, str(site)]
    env = {"KEEP": "1"} if keep else {}
    done = subprocess.run(argv, env=env, stderr=subprocess.PIPE, check=False, **more)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stderr)


def find_file(site):
    return next((site / "corral" / "__pycache__").glob("*.all"), None)


def test_the_second_start_loads_modules_from_the_cache_file(site):
    first, second = start(site), start(site)
    assert CACHE not in first.values()
    for name in ("corral.units", "corral.plan", "corral.plan.model", "corral.record"):
        assert second[name] == CACHE
    left = [path.name for path in (site / "corral" / "__pycache__").iterdir()]
    assert [name for name in left if ".all." in name] == []


def test_the_cache_file_is_written_only_if_modules_are_missing(site):
    start(site)
    before = find_file(site).stat()
    start(site)
    after = find_file(site).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    start(site, keep=False)
    find_file(site).unlink()
    start(site, keep=False)
    assert find_file(site) is None


def test_a_changed_source_is_compiled_again(site):
    start(site)
    units = site / "corral" / "units.py"
    units.write_text(units.read_text() + "\nMARKED = 1\n")
    told = start(site)
    assert (told["marked"], told["corral.units"]) == (1, "_frozen_importlib_external")
    assert told["corral.record"] == CACHE
    told = start(site)
    assert (told["marked"], told["corral.units"]) == (1, CACHE)


def test_a_source_replaced_with_the_same_size_and_time_is_compiled_again(site):
    """Check that the cache file is not used after a source was replaced by a file with the same
    size and time. Unlike a `.pyc` file, the cache file also records a source's inode and change
    time.
    """
    start(site)
    units = site / "corral" / "units.py"
    seen = units.stat()
    other = site / "other.py"
    other.write_bytes(units.read_bytes())
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.replace(units)
    assert start(site)["corral.units"] != CACHE


def test_a_removed_source_is_not_found(site):
    start(site)
    (site / "corral" / "record.py").unlink()
    argv = [sys.executable, "-I", "-c", START, str(site)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "No module named 'corral.record'" in done.stderr


def damage_version(content):
    return content.replace(sys.version.encode(), sys.version.encode().swapcase())


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\xff" * 100,
        lambda content: content[:3],
        lambda content: content[:200],
        damage_version,
    ],
    ids=["empty", "garbage", "header", "index", "interpreter"],
)
def test_a_damaged_cache_file_is_not_used(site, damage):
    start(site)
    path = find_file(site)
    path.write_bytes(damage(path.read_bytes()))
    told = start(site)
    assert (told["used"], told["corral.units"]) == (False, "_frozen_importlib_external")
    assert start(site)["corral.units"] == CACHE  # the previous start has written the file again


def test_the_cache_file_is_not_used_if_a_standard_stream_is_closed(site):
    start(site)
    assert start(site, preexec_fn=lambda: os.close(0))["used"] is False
    assert start(site)["used"] is True


def test_no_cache_file_is_written_if_python_writes_no_bytecode(site):
    start(site, "-B")
    assert find_file(site) is None


def test_a_directory_that_cannot_be_written_is_not_an_error(site):
    """Make a directory with the name of the cache file, so that not even root can write the file.
    The start must succeed without the cache file, and leave no temporary files.
    """
    start(site, keep=False)
    path = site / "corral" / "__pycache__" / f"corral.{sys.implementation.cache_tag}.pyc.all"
    path.mkdir()
    assert start(site)["used"] is False
    assert list(path.parent.glob("*.all.*")) == []


@pytest.mark.parametrize("reused", [False, True])
def test_a_closed_descriptor_is_not_read(site, reused):
    """Close the descriptor of the cache file, as corral's processes do. Later imports must use
    Python's own loader, even if (`reused`) the descriptor's number now belongs to another file.
    """
    start(site)
    code = f"""
import os, sys
sys.path.insert(0, sys.argv[1])
from corral import code_cache
code_cache.use()
(finder,) = [one for one in sys.meta_path if isinstance(one, code_cache.Finder)]
os.closerange(3, 100)
if {reused}:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 1000)
    os.dup2(reading, 20)
    for fd in range(3, 20):
        os.dup2(20, fd)
import corral.units
assert "corral.units" in finder.entries
print(corral.units.format_size(1 << 20))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1M\n", done.stderr
