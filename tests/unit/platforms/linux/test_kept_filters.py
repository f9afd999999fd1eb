"""Test the cache of compiled seccomp filters: a cached filter is not compiled again, but a damaged
file or another user's file is ignored.
"""

import os
import subprocess
import sys

import pytest

from corral.abi.private_directory import MAX_KEPT_FILES
from corral.platforms.linux.mechanisms import seccomp

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX owners")
STEP = seccomp.Seccomp(machine="x86_64", subprocess=False, unix_sockets=False, notices=True)
QUIET = seccomp.Seccomp(machine="x86_64", subprocess=False, unix_sockets=False)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Set up a home directory without cached filters. Return a list that gets an entry for each
    step whose filter is compiled.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = []
    real = seccomp._compile
    monkeypatch.setattr(
        seccomp, "_compile", lambda step, *a, **k: found.append(step) or real(step, *a, **k)
    )
    return found


def load(step=STEP):
    """Empty the cache in memory, so that filters are loaded as in a new process. Return all
    filters.
    """
    seccomp._init.clear()
    seccomp._templates.clear()
    seccomp.load_filters([step])
    return (seccomp.init_filter(step.machine), dict(seccomp._templates))


def test_a_second_run_compiles_nothing(compiled):
    first = load()
    # STEP reports denied calls to the supervisor through a seccomp listener, and QUIET does not.
    # The target gets QUIET if corral runs under a filter, such as an outer sandbox's, that forbids
    # a listener.
    assert compiled == [STEP, QUIET]
    assert load() == first
    assert compiled == [STEP, QUIET]
    assert len(set(first[1].values())) == 2


def test_the_cookie_is_inserted_into_a_cached_filter(compiled):
    load()
    load()
    cookie = (1 << 63 | 5, 6, 7)
    program = seccomp.target_filter(STEP, cookie)
    assert program == seccomp._compile(STEP, cookie, own_pid=None)


@pytest.mark.parametrize("at", [0, 3, 9, 60, 1000, -1], ids=str)
def test_a_damaged_file_is_compiled_again(compiled, at):
    first = load()
    path = seccomp._path(seccomp._key(STEP))
    with open(path, "r+b") as file:
        content = bytearray(file.read())
        content[at] ^= 0x10
        file.seek(0)
        file.write(content)
    assert load() == first
    assert compiled == [STEP, QUIET] * 2
    assert load() == first
    assert compiled == [STEP, QUIET] * 2  # the damaged file was replaced


@pytest.mark.parametrize("left", [0, 7, 8, 12, 500], ids=str)
@pytest.mark.parametrize("filled", [False, True], ids=["short", "zeros"])
def test_a_truncated_file_is_compiled_again(compiled, left, filled):
    first = load()
    path = seccomp._path(seccomp._key(STEP))
    size = os.stat(path).st_size
    os.truncate(path, left)
    if filled:
        os.truncate(path, size)
    assert load() == first
    assert compiled == [STEP, QUIET] * 2


def test_filters_with_different_options_are_compiled_separately(compiled):
    load()
    for change in ("subprocess", "unix_sockets", "duty_cycle"):
        step = seccomp.replace(STEP, **{change: True})
        assert load(step) != load()
        assert step in compiled


def test_a_changed_rule_is_compiled_again(compiled, tmp_path, monkeypatch):
    source = tmp_path / "rules.py"
    source.write_text("one")
    monkeypatch.setattr(seccomp, "SOURCES", (*seccomp.SOURCES, str(source)))
    load()
    load()
    assert compiled == [STEP, QUIET]
    seen = source.stat()
    os.utime(source, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    load()
    assert compiled == [STEP, QUIET] * 2
    source.write_text("longer")
    os.utime(source, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    load()
    assert compiled == [STEP, QUIET] * 3


def test_a_cached_filter_that_others_could_write_is_ignored(compiled):
    first = load()
    os.chmod(seccomp._path(seccomp._key(STEP)), 0o660)
    assert load() == first
    assert compiled == [STEP, QUIET] * 2


def test_a_link_to_a_cached_filter_is_not_followed(compiled, tmp_path):
    first = load()
    path = seccomp._path(seccomp._key(STEP))
    os.rename(path, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path)
    assert load() == first
    assert compiled == [STEP, QUIET] * 2


def test_every_run_compiles_if_the_cache_cannot_be_written(compiled, tmp_path):
    (tmp_path / ".cache").write_text("not a directory")
    assert load() == load()
    assert compiled == [STEP, QUIET] * 2


def test_the_cache_key_depends_on_every_module_that_determines_a_filter(tmp_path):
    code = (
        "import os, sys\n"
        "from corral.abi import whole_file  # writes the files and decides no filter\n"
        "from corral.platforms.linux.mechanisms import seccomp\n"
        "before = set(sys.modules)\n"
        "options = dict.fromkeys(('subprocess', 'unix_sockets', 'notices', 'watch_paths'), True)\n"
        "seccomp.load_filters([seccomp.Seccomp(machine='x86_64', **options)])\n"
        "new = [sys.modules[name].__file__ for name in set(sys.modules) - before if 'corral' in name]\n"
        "folder = os.path.dirname(seccomp.__file__)\n"
        "named = {os.path.realpath(os.path.join(folder, name)) for name in seccomp.SOURCES}\n"
        "print(len(new), {seccomp.__file__, *new} == named)\n"
    )
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "5 True\n"
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "0 False\n"  # the filter is cached, so nothing is imported


def test_a_bounded_number_of_filters_is_kept_and_the_newest_stays(compiled):
    load(QUIET)
    own = seccomp._path(seccomp._key(STEP))
    for number in range(2 * MAX_KEPT_FILES):
        path = os.path.join(os.path.dirname(own), f"old-{number}")
        with open(path, "wb"):
            os.utime(path, (number, number))
    load()
    kept = os.listdir(os.path.dirname(own))
    assert len(kept) == MAX_KEPT_FILES
    assert os.path.basename(own) in kept
    compiled.clear()
    load(QUIET)
    assert compiled == []  # corral removes the oldest files, and QUIET's file is newer
