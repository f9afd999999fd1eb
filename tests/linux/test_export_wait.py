"""Test the process that keeps an exported pod alive. The test runs it as PID 1 of a PID
namespace.
"""

import json
import subprocess
import sys

from corral.export.kubernetes import WAIT

# After `unshare`, the first child is PID 1 of the new PID namespace. The second child is also in
# this namespace, but its parent is outside, as with `kubectl exec`. The second child leaves an
# orphan that ends when the pipe is closed.
HARNESS = """
import ctypes, json, os, pathlib, select, signal, sys
USER, PID = 0x10000000, 0x20000000
CHILD = 1 << signal.SIGCHLD - 1
if ctypes.CDLL(None, use_errno=True).unshare(USER | PID):
    sys.exit(os.strerror(ctypes.get_errno()))

def status(pid):
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {"State": "gone"}
    return dict(line.split(":\\t", 1) for line in lines)

def is_waiting(seen):
    return seen["State"].startswith("S") and int(seen["SigIgn"], 16) & CHILD

def until(found):
    for _ in range(100 * int(sys.argv[2])):
        if found():
            return True
        select.select([], [], [], 0.01)
    return False

init = os.fork()
if init == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
until(lambda: is_waiting(status(init)))
alive, end = os.pipe()
session = os.fork()
if session == 0:
    os.close(end)
    if os.fork() == 0:
        os.read(alive, 1)
    os._exit(0)
os.waitpid(session, 0)
(orphan,) = [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*") if status(path.name).get("PPid") == str(init)]
before = status(orphan)["State"]
os.close(end)
reaped = until(lambda: status(orphan)["State"] == "gone")
pidfd = os.pidfd_open(init)
os.kill(init, signal.SIGTERM)
ended = bool(select.select([pidfd], [], [], int(sys.argv[2]))[0])
os.kill(init, signal.SIGKILL)
print(json.dumps({"orphan": before[0], "reaped": reaped, "ended": ended}))
"""


def try_as_init(code, seconds):
    argv = [sys.executable, "-c", HARNESS, code, str(seconds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_waiting_process_ends_at_once_and_reaps_orphans():
    """Let an orphan end, and then send SIGTERM to the waiting process. It must reap the orphan, and
    end. As a sanity check, a PID 1 that only calls sigwait neither reaps the orphan nor gets the
    signal.
    """
    seen = try_as_init(WAIT, 60)
    assert seen["orphan"] in "SR"
    assert (seen["reaped"], seen["ended"]) == (True, True)
    naive = try_as_init("import signal; signal.sigwait([signal.SIGTERM])", 1)
    assert (naive["reaped"], naive["ended"]) == (False, False)
