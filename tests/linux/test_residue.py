"""Check, with and without namespaces, that many runs, parallel runs and runs killed by SIGKILL
leave no files or processes.

Other programs may use the machine at the same time. Therefore the tests look only for processes
whose command line contains an argument that nothing else on the machine uses, for the pids of their
own corral processes, and for files in the home of this test session.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
from traces import PATIENCE, STAGED, Traces, ended, wait_until_gone

import rigs

LONG = "long" in rigs.declared()
KILLS = 200 if LONG else 20
LAUNCHES = 1000
ENOUGH = 300 if LONG else 60
SECONDS = 2
"""The test makes ENOUGH launches, and then more until this many seconds have passed."""

WHAT_IS_THERE = """
import json, os, re, sys, threading, time
sys.path.insert(0, sys.argv[1])
import corral

def tree(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *tree(child)]
    except OSError:
        pass  # the process has ended in the meantime
    return found

def cgroups():
    with open("/proc/self/mountinfo") as file:
        tops = [line.split(" ")[4] for line in file if " - cgroup2 " in line]
    return sorted(path for top in tops for path, _, _ in os.walk(top) if "corral" in path)

def there():
    with open("/proc/self/mountinfo") as file:
        mounts = sorted(line.split(" ")[0] for line in file if re.fullmatch(staged, line.split(" ")[4]))
    return {
        "processes": sorted(tree(os.getpid())),
        "threads": threading.active_count(),
        "mounts": mounts,
        "cgroups": cgroups(),
        "temporary": sorted(n for n in os.listdir("/tmp") if n.startswith(f"corral-{os.getuid()}-{os.getpid()}-")),
        "home": sorted(os.path.join(at, n) for at, ds, fs in os.walk(os.environ["HOME"]) for n in ds + fs),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
    }

def settled(before):
    # A supervisor that has reported the outcome may need a moment to end, so wait, but not for ever.
    end = time.monotonic() + 60
    while (now := there()) != before and time.monotonic() < end:
        for pid in set(now["processes"]) - set(before["processes"]):
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            import select
            select.select([fd], [], [], 1)
            os.close(fd)
    return now

def once():
    with corral.launch(["/bin/true"], {"filesystem": {}}, stdin=DEVNULL, stdout=DEVNULL) as sandbox:
        return sandbox.wait()

DEVNULL = -3
assert once() == 0
(zygote,) = [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]
before = settled({**there(), "processes": [zygote]})
assert before["processes"] == [zygote]
"""
IN_A_ROW = """
start, count = time.monotonic(), 0
while count < most and (count < least or time.monotonic() - start < seconds):
    assert once() == 0
    count += 1
print(json.dumps({"count": count, "before": before, "after": settled(before)}))
"""
AT_ONCE = """
codes = []
gate = threading.Barrier(most)
def one():
    gate.wait()
    codes.append(once())
threads = [threading.Thread(target=one) for _ in range(most)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps({"count": codes.count(0), "before": before, "after": settled(before)}))
"""


def through_the_api(user, code, **numbers):
    values = "".join(f"{name} = {value}\n" for name, value in numbers.items())
    values += f"staged = {STAGED.pattern!r}\n"
    argv = [*user.host, user.python, "-c", values + WHAT_IS_THERE + code, str(user.package)]
    process = user.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.timeout(600)
def test_many_runs_in_a_row_leave_no_files_or_processes(user):
    numbers = {"most": LAUNCHES, "least": LAUNCHES if LONG else ENOUGH, "seconds": SECONDS}
    seen = through_the_api(user, IN_A_ROW, **numbers)
    assert seen["count"] >= ENOUGH
    assert seen["after"] == seen["before"]


def test_two_hundred_runs_at_once_leave_no_files_or_processes(user):
    seen = through_the_api(user, AT_ONCE, most=200)
    assert seen["count"] == 200
    assert seen["after"] == seen["before"]


class Killings:
    """Start runs, kill them at different moments, and list their leftovers."""

    def __init__(self, user):
        self.user = user
        self.traces = Traces()
        self.pids: list[int] = []
        self.cgroups = cgroups()
        self.hold, self._end = os.pipe()

    def start(self, *arguments, **options):
        null = subprocess.DEVNULL
        streams = {"stdin": self.hold, "stdout": subprocess.PIPE, "stderr": null}
        return self.user.popen(self.user.corral_argv(*arguments), **streams, **options)

    def run(self, **options):
        """Start a target that waits for its stdin, on which nothing ever arrives."""
        command = ("/bin/sh", "-c", "echo ready; read line", self.traces.argument)
        return self.start("run", "--", *command, **options)

    def kill(self, process, seconds):
        ended(process.pid, seconds)
        process.kill()
        process.communicate()
        self.pids.append(process.pid)
        wait_until_gone(self.traces.argument)

    def finish(self, *arguments):
        process = self.start(*arguments)
        out = process.communicate(timeout=PATIENCE)[0]
        assert process.returncode == 0
        return out

    def left(self):
        directories = [f"corral-{self.user.uid}-{pid}-" for pid in self.pids]
        found = {
            **self.traces.left(),
            "locks": [name for name in self._locks() if int(name.split("-")[0]) in self.pids],
            "directories": [n for n in os.listdir("/tmp") if n.startswith(tuple(directories))],
            "cgroups": sorted(cgroups() - self.cgroups),
        }
        return {name: what for name, what in found.items() if what}

    def _locks(self):
        runs = self.user.home / ".cache" / "corral" / "runs"
        return os.listdir(runs) if runs.exists() else []

    def close(self):
        os.close(self.hold)
        os.close(self._end)


def cgroups() -> set[str]:
    rows = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    tops = [row.split(" ")[4] for row in rows if " - cgroup2 " in row]
    return {path for top in tops for path, _, _ in os.walk(top) if "corral" in path}


pytestmark = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)


@pytest.fixture
def killings(user):
    chosen = Killings(user)
    controls = json.loads(chosen.finish("explain", "--json", "--", "/bin/true"))["controls"]
    tree = next(held["mechanism"] for held in controls if held["control"] == "tree")
    assert ("guardian" in tree) == (user.tier == "bare"), tree
    yield chosen
    chosen.close()


def time_to_ready(killings) -> float:
    start = time.monotonic()
    process = killings.run()
    assert process.stdout.readline() == b"ready\n"
    taken = time.monotonic() - start
    killings.kill(process, 0)
    return taken


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broom", ["clean", "run"])
def test_clean_or_the_next_run_removes_all_leftovers_of_a_run_killed_at_any_moment(killings, broom):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    longest = 1.2 * max(time_to_ready(killings) for _ in range(3))
    for _ in range(KILLS // 2):
        killings.kill(killings.run(), chance.uniform(0.001, longest))
    killings.finish(*(("clean",) if broom == "clean" else ("run", "--", "/bin/true")))
    assert killings.left() == {}


def test_the_search_for_leftovers_finds_those_of_a_killed_run(killings):
    """Sanity check for the tests above: the leftovers of a killed run are found, and `corral
    clean` lists them.
    """
    time_to_ready(killings)
    left = killings.left()
    assert len(left["locks"]) == 1
    if killings.user.tier == "bare":
        (directory,) = left["directories"]
        assert json.loads(killings.finish("clean", "--json")) == [f"/tmp/{directory}"]
    else:
        assert "directories" not in left
        assert json.loads(killings.finish("clean", "--json")) == left.get("cgroups", [])
    assert killings.left() == {}


def test_killing_corrals_whole_process_group_leaves_no_files_or_processes(killings):
    """Kill corral's whole process group, as a client does when it gives up. One process of corral
    is in another group, but must end as well: init, or without namespaces the subreaper.
    """
    process = killings.run(start_new_session=True)
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    killings.pids.append(process.pid)
    wait_until_gone(killings.traces.argument)
    killings.finish("clean")
    assert killings.left() == {}


def test_killing_doctor_while_it_probes_the_host_leaves_no_files_or_processes(killings):
    """Kill `corral doctor` while it probes the host. The processes of its probes must end as
    well.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(8):
        killings.kill(killings.start("doctor", "--json"), chance.uniform(0.05, 1))
        assert [pid for pid in orphans(killings.user) if not ended(pid)] == []
    assert killings.left() == {}


def orphans(user) -> list[int]:
    """Return the pids of `corral doctor` and its children that run from the tests' copy of the
    package.
    """
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(user.package).encode() in words and b"doctor" in words:
            found.append(int(name))
    return found
