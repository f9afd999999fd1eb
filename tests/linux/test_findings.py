"""The cache of findings: believed only if this user wrote it, under exactly this outer filter."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from corral.platforms.linux.outer_filter import CALLS
from users import ORDINARY

CODE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from corral.plan.host import Finding
from corral.supervisor import findings
act = sys.argv[2]
if act == "path":
    print(findings._path(findings._key()))
elif act == "store":
    findings.store([Finding(capability="planted", status="proven", evidence="-")])
elif act == "load":
    found = findings.load()
    print(json.dumps(found and [one.capability for one in found]))
elif act == "key":
    print(findings._key())
"""
FILTER = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler as seccomp
machine, denied, how = os.uname().machine, sys.argv.pop(1), sys.argv.pop(1)
table = TABLES[machine]
rules = dict.fromkeys(table.values(), seccomp.ALLOW)
action = seccomp.KILL_PROCESS if how == "kill" else seccomp.errno_action(int(how))
rules[table[denied]] = action
program = seccomp.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=seccomp.errno_action(38))
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
abi.seccomp_set_filter(program)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Cache:
    """Findings of a user, with a home of the test's own."""

    def __init__(self, user, home):
        self.user, self.home = user, str(home)
        self.path = self.does("path").strip()
        self.directory = os.path.dirname(self.path)

    def does(self, act: str, *launcher: str) -> str:
        env = {**self.user.environment(), "HOME": self.home}
        argv = [*launcher, self.user.python, "-ISc", CODE, str(self.user.package), act]
        with self.user.popen(argv, env=env, stdout=subprocess.PIPE) as running:
            text, _ = running.communicate(timeout=60)
        assert running.returncode == 0
        return text.decode()

    def loaded(self, *launcher: str):
        return json.loads(self.does("load", *launcher))

    def under_filter(self, act: str, denied: str, how: str) -> str:
        return self.does(act, self.user.python, "-ISc", FILTER, str(self.user.package), denied, how)


@pytest.fixture
def cache(user, scratch):
    os.chown(scratch, user.uid, user.uid)
    found = Cache(user, scratch)
    found.does("store")
    assert found.loaded() == ["planted"]  # the control of every test here
    return found


def other(user) -> int:
    return ORDINARY - 1 if user.uid == ORDINARY else ORDINARY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user(user, cache):
    os.chown(cache.path, other(user), other(user))
    os.chmod(cache.path, 0o644)
    assert cache.loaded() is None


def test_a_file_that_others_can_write(cache):
    os.chmod(cache.path, 0o666)
    assert cache.loaded() is None


def test_a_link_to_a_file(cache):
    os.rename(cache.path, f"{cache.path}.kept")
    os.symlink(f"{cache.path}.kept", cache.path)
    assert cache.loaded() is None


def test_a_pipe_does_not_block(user, cache):
    os.unlink(cache.path)
    os.mkfifo(cache.path, 0o600)
    os.chown(cache.path, user.uid, user.uid)
    assert cache.loaded() is None


def test_what_is_no_text(cache):
    with open(cache.path, "ab") as file:
        file.write(b"\xff\xfe")
    assert cache.loaded() is None


@pytest.mark.parametrize("level", ["findings", "corral"])
def test_a_link_to_a_directory_is_neither_read_nor_written(cache, level):
    path = cache.directory if level == "findings" else os.path.dirname(cache.directory)
    os.rename(path, f"{path}-kept")
    os.symlink(f"{path}-kept", path)
    assert cache.loaded() is None
    os.unlink(cache.path)
    cache.does("store")
    assert not os.path.lexists(cache.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("level", ["findings", "corral"])
def test_a_directory_of_another_user_is_neither_read_nor_written(user, cache, level):
    path = cache.directory if level == "findings" else os.path.dirname(cache.directory)
    os.chown(path, other(user), other(user))
    os.chmod(path, 0o755)
    assert cache.loaded() is None
    os.unlink(cache.path)
    cache.does("store")
    assert os.listdir(cache.directory) == []


def test_root_does_not_believe_the_findings_of_the_home_that_it_runs_with(user, scratch):
    """The attack: a user writes the file for root's key, and root runs with this user's HOME."""
    if user.uid or os.geteuid():
        pytest.skip("this is about root")
    cache = Cache(user, scratch)
    cache.does("store")
    for directory, _, names in os.walk(scratch):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(path, ORDINARY, ORDINARY)
    assert cache.loaded() is None
    shutil.rmtree(os.path.dirname(cache.directory))
    cache.does("store")
    assert cache.loaded() == ["planted"]  # in directories that root made there


def test_two_outer_filters_are_told_apart(cache):
    denied = sorted({name for name, _ in CALLS} - {"clone", "prctl"})  # without these, nothing runs
    keys = {name: cache.under_filter("key", name, "1") for name in denied}
    keys["another answer"] = cache.under_filter("key", "mount", "38")
    keys["no filter"] = cache.does("key")
    assert len(set(keys.values())) == len(keys)
    assert cache.under_filter("key", "mount", "1") == keys["mount"]  # the control


def test_findings_under_one_filter_are_not_believed_under_another(cache):
    cache.under_filter("store", "setns", "1")
    assert json.loads(cache.under_filter("load", "setns", "1")) == ["planted"]
    assert json.loads(cache.under_filter("load", "landlock_create_ruleset", "1")) is None


def test_a_filter_that_kills_does_not_kill_corral(cache):
    killed = cache.under_filter("key", "mount", "kill")
    assert "killed" in killed
    assert killed != cache.under_filter("key", "unshare", "kill")


def test_nothing_is_asked_without_a_filter(cache):
    if "Seccomp:\t0" not in pathlib.Path("/proc/self/status").read_text(encoding="ascii"):
        pytest.skip("this host has an outer filter")
    code = CODE + "print('corral.platforms.linux.outer_filter' in sys.modules)"
    argv = [sys.executable, "-ISc", code, str(cache.user.package), "key"]
    assert subprocess.run(argv, capture_output=True, check=True).stdout.endswith(b"False\n")
