"""Test the cache of findings. corral must use a cache file only if the same user wrote it, and only
under the same seccomp filter.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from corral.plan.host import Finding
from corral.platforms.linux.outer_filter import CALLS
from corral.supervisor import findings
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
listens = how == "listen"
action = seccomp.KILL_PROCESS if how == "kill" else seccomp.errno_action(1 if listens else int(how))
rules[table[denied]] = action
program = seccomp.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=seccomp.errno_action(38))
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
listener = abi.seccomp_set_filter(program, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER if listens else 0)
if listens:
    os.set_inheritable(listener, True)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Cache:
    """A user's cache of findings, in a home directory that belongs to one test."""

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
    # Sanity check for all tests that use this fixture: the stored findings are read.
    assert found.loaded() == ["planted"]
    return found


def other(user) -> int:
    return ORDINARY - 1 if user.uid == ORDINARY else ORDINARY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_read(user, cache):
    os.chown(cache.path, other(user), other(user))
    os.chmod(cache.path, 0o644)
    assert cache.loaded() is None


def test_a_file_that_others_can_write_is_not_read(cache):
    os.chmod(cache.path, 0o666)
    assert cache.loaded() is None


def test_a_link_to_a_file_is_not_read(cache):
    os.rename(cache.path, f"{cache.path}.kept")
    os.symlink(f"{cache.path}.kept", cache.path)
    assert cache.loaded() is None


def test_a_pipe_in_place_of_the_cache_file_does_not_block(user, cache):
    os.unlink(cache.path)
    os.mkfifo(cache.path, 0o600)
    os.chown(cache.path, user.uid, user.uid)
    assert cache.loaded() is None


def test_findings_that_are_not_text_are_ignored(cache):
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


def test_root_does_not_read_the_findings_of_another_users_home(user, scratch):
    """Store findings as root. Then make another user the owner of the home directory and of the
    findings. Root must neither read these findings nor store others there.
    """
    if user.uid or os.geteuid():
        pytest.skip("only root can run this test")
    cache = Cache(user, scratch)
    cache.does("store")
    for directory, _, names in os.walk(scratch):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(path, ORDINARY, ORDINARY)
    assert cache.loaded() is None
    shutil.rmtree(os.path.dirname(cache.directory))
    cache.does("store")
    assert not os.path.exists(os.path.dirname(cache.directory))
    for directory, _, _ in os.walk(scratch):
        os.chown(directory, 0, 0)
    cache.does("store")
    assert cache.loaded() == ["planted"]  # Sanity check: root reads the cache in its own home


ROOTS = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.linux import cache_key
libc, top = ctypes.CDLL(None), sys.argv[2].encode()

def made(result):
    assert result == 0
    os.chdir("/")
    namespace = os.fork() or os._exit(libc.unshare(0x10000000) != 0)
    refused = os.waitpid(namespace, 0)[1] != 0
    print(refused, cache_key._root(), flush=True)

made(0)
made(libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None))  # private
assert libc.mount(b"/", top, None, 0x5000, None) == 0  # MS_BIND | MS_REC
os.chdir(top)
child = os.fork()
if child == 0:
    os.chroot(".")
    made(0)
    os._exit(0)
os.waitpid(child, 0)
pivot_root = 155 if os.uname().machine == "x86_64" else 41
made(libc.syscall(pivot_root, b".", b".") or libc.umount2(b".", 2))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root directory")
def test_a_chroot_and_a_pivoted_root_have_different_cache_keys(user, scratch):
    """Compare the cache keys in a chroot and after pivot_root to the same mount. They must differ,
    because the kernel refuses user namespaces only in the chroot.
    """
    argv = [sys.executable, "-c", ROOTS, str(user.package), str(scratch)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    host, again, chroot, pivoted = (line.split(" ", 1) for line in said)
    assert [line[0] for line in (host, chroot, pivoted)] == ["False", "True", "False"]
    assert chroot[1] not in {host[1], again[1], pivoted[1]}
    argv = [sys.executable, "-c", ROOTS, str(user.package), str(scratch)]
    later = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert later[0] == said[0]  # Sanity check: a second process has the same key


def test_different_outer_filters_have_different_cache_keys(cache):
    # This test does not deny `clone` and `prctl`, because no program runs without them.
    denied = sorted({name for name, _ in CALLS} - {"clone", "prctl"})
    keys = {name: cache.under_filter("key", name, "1") for name in denied}
    keys["another answer"] = cache.under_filter("key", "mount", "38")
    keys["a listener"] = cache.under_filter("key", "mount", "listen")
    keys["no filter"] = cache.does("key")
    assert len(set(keys.values())) == len(keys)
    # Sanity check: the same filter gives the same key.
    assert cache.under_filter("key", "mount", "1") == keys["mount"]


def test_findings_under_one_filter_are_not_used_under_another(cache):
    cache.under_filter("store", "setns", "1")
    assert json.loads(cache.under_filter("load", "setns", "1")) == ["planted"]
    assert json.loads(cache.under_filter("load", "landlock_create_ruleset", "1")) is None
    assert json.loads(cache.under_filter("load", "setns", "listen")) is None


def test_a_filter_that_kills_does_not_kill_corral(cache):
    killed = cache.under_filter("key", "mount", "kill")
    assert "killed" in killed
    assert killed != cache.under_filter("key", "unshare", "kill")


def test_the_outer_filter_is_not_examined_if_there_is_none(cache):
    if "Seccomp:\t0" not in pathlib.Path("/proc/self/status").read_text(encoding="ascii"):
        pytest.skip("this host has an outer filter")
    code = CODE + "print('corral.platforms.linux.outer_filter' in sys.modules)"
    argv = [sys.executable, "-ISc", code, str(cache.user.package), "key"]
    assert subprocess.run(argv, capture_output=True, check=True).stdout.endswith(b"False\n")


class Backend:
    """A fake backend that runs only the requested probes, and records their names."""

    __file__ = findings.current.load().__file__

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.status = dict.fromkeys(("quick", "slow", "busy"), "proven")

    def cache_key(self):
        return ("this machine",)

    def probe(self, wanted=()):
        self.asked.append(set(wanted))
        return tuple(
            Finding(
                capability=name,
                status=status if not wanted or name in wanted else "unknown",
                evidence="-",
            )
            for name, status in self.status.items()
        )


@pytest.fixture
def backend(monkeypatch, tmp_path):
    made = Backend()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(findings.current, "load", lambda: made)
    return made


def statuses(*wanted: str) -> dict[str, str]:
    host = findings.current_host(wanted=lambda: wanted)
    return {item.capability: item.status for item in host.findings}


def test_an_untried_capability_is_probed_when_it_is_needed(backend):
    assert statuses("quick") == {"quick": "proven", "slow": "unknown", "busy": "unknown"}
    assert statuses("quick") == {"quick": "proven", "slow": "unknown", "busy": "unknown"}
    assert backend.asked == [{"quick"}]  # only one probe: the second request read the cache
    assert statuses("quick", "slow") == {"quick": "proven", "slow": "proven", "busy": "unknown"}
    assert statuses("no probe's") == statuses("slow")
    assert backend.asked == [{"quick"}, {"slow"}]
    assert statuses() == dict.fromkeys(backend.status, "proven")
    assert backend.asked[-1] == {"busy"}
    statuses()
    assert len(backend.asked) == 3


def test_a_capability_with_an_unknown_result_is_probed_again_by_the_next_run(backend):
    backend.status["busy"] = "unknown"
    assert statuses("quick", "busy")["busy"] == "unknown"
    backend.status["busy"] = "absent"
    assert statuses("quick")["busy"] == "unknown"
    assert statuses("busy")["busy"] == "absent"
    assert backend.asked == [{"quick", "busy"}, {"busy"}]
