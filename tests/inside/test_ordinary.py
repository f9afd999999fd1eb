"""Run ordinary programs inside the sandbox. This is the sanity check for this folder's attacks:
they must not fail only because nothing works in the sandbox.
"""

from __future__ import annotations

import os

from attempts import BOTH_TIERS, by_tier, give, inside, outside


def test_standard_libraries_find_temporary_files_certificates_and_time_zones(user):
    code = """
import locale, sqlite3, ssl, tempfile, zoneinfo, datetime, pwd, getpass
with tempfile.TemporaryDirectory() as place:
    base = sqlite3.connect(place + "/base.db")
    base.execute("create table t (x)")
    base.execute("insert into t values (42)")
    base.commit()
    rows = base.execute("select x from t").fetchall()
    base.close()
context = ssl.create_default_context()
answer = {
    "temporary": tempfile.gettempdir(),
    "sqlite": rows,
    "authorities": len(context.get_ca_certs()) > 0 or bool(ssl.get_default_verify_paths().capath),
    "zone": str(datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset()),
    "locale": locale.setlocale(locale.LC_ALL, ""),
    "encoding": sys.getfilesystemencoding(),
    "who": [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir == os.environ["HOME"]],
    "home": os.access(os.environ["HOME"], os.W_OK),
    "processors": os.cpu_count() > 0,
}
"""
    assert inside(user, code) == {
        "temporary": "/tmp",
        "sqlite": [[42]],
        "authorities": True,
        "zone": "2:00:00",
        "locale": "C.UTF-8",
        "encoding": "utf-8",
        "who": ["user", True],
        "home": True,
        "processors": True,
    }


@BOTH_TIERS
def test_a_granted_directory_can_be_listed(user, scratch):
    for name in ("one", "two"):
        give(user, scratch / name, name)
    code = "answer = [sorted(os.listdir(sys.argv[1])), got(sys.argv[1] + '/one')]"
    words = (str(scratch),)
    expected = [["one", "two"], "one"]
    assert outside(user, code, *words) == expected
    assert inside(user, code, *words, flags=("--read", str(scratch))) == expected
    assert inside(user, "answer = tried(os.listdir, sys.argv[1])", *words) == by_tier(
        user, "ENOENT", "EACCES"
    )


def test_a_target_that_may_start_processes_can_use_shells_and_multiprocessing(user):
    code = """
import concurrent.futures, multiprocessing, subprocess
answer = [subprocess.check_output("echo $((6 * 7)) | cat", shell=True, text=True).strip()]
queue = multiprocessing.get_context("fork").SimpleQueue()
process = multiprocessing.get_context("fork").Process(target=queue.put, args=(7,))
process.start()
answer.append(queue.get())
process.join()
"""
    assert inside(user, code, flags=("--allow-subprocess",)) == ["42", 7]


def test_shared_memory_and_locks_work(user):
    code = """
import fcntl, threading
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=64)
block.buf[:2] = b"ok"
answer = bytes(block.buf[:2]).decode()
block.close()
block.unlink()
with open("/tmp/lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
"""
    # The flag is needed because Python starts a helper process that keeps track of shared memory.
    assert inside(user, code, flags=("--allow-subprocess",)) == "ok"


def test_asyncio_works(user):
    code = """
import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: (w.write(b"hi"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    said = await reader.read()
    writer.close()
    server.close()
    return said.decode()
answer = asyncio.run(main())
"""
    assert inside(user, code) == "hi"


@BOTH_TIERS
def test_files_made_outside_are_visible_at_once(user, scratch):
    """Write a file on the host during a run. The target must see it, because a grant is the
    directory itself, not a copy.
    """
    import subprocess

    code = "import sys\nfor line in sys.stdin: print(open(line.strip()).read(), flush=True)"
    argv = user.corral_argv("run", "--read", str(scratch), "--", user.python, "-c", code)
    pipe = subprocess.PIPE
    process = user.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
    late = give(user, scratch / "late", "made later")
    out, _ = process.communicate(os.fsencode(late) + b"\n", timeout=60)
    assert (process.returncode, out) == (0, b"made later\n")
