"""Cause denials, run the target again with the flags that the denials suggest, and check that the
denied acts then succeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest
from traces import PATIENCE

from corral.abi.linux_syscalls import TABLES
from corral.platforms.linux import denied_starts

CLONE = TABLES[os.uname().machine]["clone"]
PREFIX = b"corral: denied: "
START = """
import subprocess
try:
    answer = subprocess.run(["/bin/true", "--token=hunter2"]).returncode
except OSError as error:
    answer = error.errno
"""


def denied(done) -> list[str]:
    lines = done.stderr.splitlines()
    return [line.removeprefix(PREFIX).decode() for line in lines if line.startswith(PREFIX)]


def try_code(user, code, *arguments, flags=(), **options):
    script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
    done = user.run(user.python, "-c", script, *arguments, flags=flags, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done


def flag_of(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text.rpartition("; ")[2]))


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_denied_start_names_the_program_and_its_flag(user):
    answer, done = try_code(user, START)
    assert answer == 1
    assert denied(done) == ["start of true; --allow-subprocess"]
    assert b"hunter2" not in done.stderr
    answer, done = try_code(user, START, flags=flag_of(denied(done)[0]))
    assert (answer, denied(done)) == (0, [])


STARTS = {
    "os.system": "os.system('/bin/true')",
    "posix_spawn": "os.posix_spawn('/bin/true', ['/bin/true'], {})",
    "execv": "os.execv('/bin/true', ['true'])",
    "thread": (
        "import threading, subprocess\n"
        "    def run():\n"
        "        try:\n            subprocess.run(['/bin/true'])\n        except OSError:\n            pass\n"
        "    one = threading.Thread(target=run); one.start(); one.join()"
    ),
}


@pytest.mark.parametrize("how", STARTS)
def test_denied_programs_are_named(user, how):
    code = f"try:\n    {STARTS[how]}\nexcept OSError:\n    pass"
    _, done = try_code(user, code)
    wanted = "sh" if how == "os.system" else "true"
    assert denied(done) == [f"start of {wanted}; --allow-subprocess"]


def test_a_denied_fork_is_not_reported_as_a_program(user):
    _, done = try_code(user, "try:\n    os.fork()\nexcept OSError:\n    pass")
    (line,) = denied(done)
    assert line.startswith("start of a process by python")


def test_corrals_own_check_before_the_start_is_not_reported_as_a_denial(user):
    assert denied(user.run("/bin/true")) == []


def test_forty_starts_of_eight_threads_are_all_denied(user):
    code = """
import threading
codes = []
def start():
    for _ in range(5):
        try:
            os.fork()
            codes.append(0)
        except OSError as error:
            codes.append(error.errno)
threads = [threading.Thread(target=start) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
answer = codes
"""
    assert try_code(user, code)[0] == [1] * 40


FLOOD = """
import os, sys
codes = []
for number in range(int(sys.argv[1])):
    if number == 64:
        os.write(1, b"paced\\n")
    try:
        os.fork()
    except OSError as error:
        codes.append(error.errno)
print(len(codes), set(codes), flush=True)
sys.stdin.read()
"""
STARTS_OF_A_FLOOD = 320
PACED_STARTS = STARTS_OF_A_FLOOD - denied_starts.BURST
MAX_SHARE = 0.15
"""The largest share of its time that a flood may take from the supervisor. After a burst the
supervisor answers at most 64 starts a second, and each answer takes about 0.3 ms. A supervisor that
polls in a loop would be busy all the time.
"""


def read_effort(pid: int) -> tuple[float, int, int]:
    """Return how many seconds of CPU time a process has used, how often it has waited, and how many
    bytes it has read.
    """
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    with open(f"/proc/{pid}/status") as file:
        waits = next(line for line in file if line.startswith("voluntary_ctxt_switches"))
    with open(f"/proc/{pid}/io") as file:
        read = int(file.readline().removeprefix("rchar:"))
    cpu = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return cpu, int(waits.split()[1]), read


def test_a_flood_of_starts_costs_the_supervisor_little(user, scratch):
    """Start a flood of processes. After a burst, the supervisor answers each start only after a
    pause. While a start waits for the answer, it must cost the supervisor no CPU time. The
    supervisor must read program names only for the first 64 starts.
    """
    report = scratch / "report"
    arguments = ("--report", str(report), "--", user.python, "-c", FLOOD, str(STARTS_OF_A_FLOOD))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = user.popen(user.corral_argv("run", *arguments), **pipes)
    assert process.stdout.readline() == b"paced\n"
    burst, _, _ = read_effort(process.pid)
    assert process.stdout.readline() == b"%d {1}\n" % STARTS_OF_A_FLOOD
    cpu, waits, read = read_effort(process.pid)
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors.count(PREFIX) == 1
    (row,) = json.loads(report.read_text())["denials"]
    assert row["count"] == STARTS_OF_A_FLOOD
    assert cpu - burst < PACED_STARTS / denied_starts.RATE * MAX_SHARE
    assert waits < STARTS_OF_A_FLOOD * 8
    assert read < 64 << 20


INTERRUPTED = """
import ctypes, signal, time
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, lambda *_: sum(range(300)))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
end = time.monotonic() + 3
results = set()
while time.monotonic() < end:
    results.add(libc.syscall(int(sys.argv[1]), signal.SIGCHLD, 0, 0, 0, 0))
signal.setitimer(signal.ITIMER_REAL, 0)
results.add(libc.syscall(int(sys.argv[1]), signal.SIGCHLD, 0, 0, 0, 0))  # not interrupted
answer = sorted(results)
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_starts_that_signals_interrupt_do_not_end_the_supervisor(user):
    """Let signals interrupt calls that start a process, before the supervisor looks for the name of
    the program. The kernel then no longer shows the thread's stack pointer, with which the
    supervisor finds the name. The supervisor must nevertheless deny the starts and report them.
    """
    answer, done = try_code(user, INTERRUPTED, str(CLONE))
    assert answer == [-1]
    assert denied(done)


WIDE_STACK = """
import ctypes, mmap, signal
libc = ctypes.CDLL(None, use_errno=True)
LISTS, WORDS, PAGE = 1000, 31, 4096
texts = mmap.mmap(-1, LISTS * WORDS * PAGE)
lists = (ctypes.c_uint64 * (LISTS * (WORDS + 1)))()
first = ctypes.addressof(ctypes.c_char.from_buffer(texts))
for number in range(LISTS * WORDS):
    texts[number * PAGE : number * PAGE + 2] = b"a\\0"
    lists[number // WORDS * (WORDS + 1) + number % WORDS] = first + number * PAGE
for number in range(LISTS):
    lists[number * (WORDS + 1) + WORDS] = 1  # an invalid pointer ends the list
size = ctypes.sizeof(ctypes.c_uint64) * (WORDS + 1)
pointers = [ctypes.c_uint64(ctypes.addressof(lists) + number * size) for number in range(LISTS)]
print(libc.syscall(int(sys.argv[1]), signal.SIGCHLD, 0, 0, 0, 0, 0, *pointers), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_the_supervisor_reads_only_part_of_a_huge_argument_list_of_the_target(user):
    """Fill the target's stack with pointers to 1000 lists of strings on 31,000 pages (127 MB), and
    try to start a process.

    To name the denied program, the supervisor searches the stack for a list of arguments. It must
    give up after some of the pages, so that a target cannot keep it busy.
    """
    argv = user.corral_argv("run", "--", user.python, "-c", "import sys" + WIDE_STACK, str(CLONE))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = user.popen(argv, **pipes)
    assert process.stdout.readline() == b"-1\n"
    with open(f"/proc/{process.pid}/io") as file:
        read = int(file.readline().removeprefix("rchar:"))
    _, errors = process.communicate(timeout=PATIENCE)
    assert b"denied: start of a process by python" in errors
    assert 1 << 20 < read < 64 << 20


def test_a_killed_supervisor_ends_a_target_that_waits_for_an_answer(user):
    code = "import os\nprint('up', flush=True)\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    process = user.popen(
        user.corral_argv("run", "--", user.python, "-c", code),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    assert process.stdout.read() == b""  # end of file: the target has ended
    process.stdout.close()


KEPT = """
import os, sys
try:
    os.execv("/bin/true", ["true"])
except OSError:
    pass
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_supervisor_has_recorded_its_denials(user):
    argv = user.corral_argv("run", "--", user.python, "-c", KEPT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = user.popen(argv, **pipes)
    assert process.stdout.readline() == b"up\n"
    assert b"denied: start of true" in process.stderr.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    shown = user.corral("why", "--", user.python, "-c", KEPT)
    assert b"denied: start of true; --allow-subprocess" in shown.stdout


OWN_FILE = """
import os, sys
try:
    with open(os.path.join(os.path.dirname(__file__), "log.txt"), "a") as file:
        file.write("x")
    print("wrote")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_write_to_the_servers_own_directory_names_a_flag_that_allows_it(user, scratch):
    server, log = scratch / "server.py", scratch / "log.txt"
    server.write_text(OWN_FILE)
    server.chmod(0o644)
    scratch.chmod(0o755)
    done = user.run(user.python, str(server))
    assert done.stdout in {b"OSError\n", b"PermissionError\n"}, done.stderr
    (line,) = denied(done)
    assert line == (
        f"write to the server's own files: {log} (read-only; first `touch {log}`); --write {log}"
    )
    log.touch()
    os.chown(log, user.owner, user.owner)
    done = user.run(user.python, str(server), flags=flag_of(line))
    assert (done.stdout, denied(done)) == (b"wrote\n", [])
    assert log.read_text() == "x"


OWN_DIRECTORY = """
import os
try:
    os.mkdir(os.path.join(os.path.dirname(__file__), "sub"))
except OSError:
    pass
"""


@pytest.mark.parametrize("command", ["run", "learn"])
def test_a_denied_mkdir_among_the_servers_own_files_names_mkdir(user, scratch, command):
    server, made = scratch / "server.py", scratch / "sub"
    server.write_text(OWN_DIRECTORY)
    server.chmod(0o644)
    scratch.chmod(0o755)
    done = user.corral(command, "--", user.python, str(server))
    assert f"read-only; first `mkdir -p {made}`" in done.stderr.decode()
    made.mkdir()
    os.chown(made, user.owner, user.owner)
    done = user.corral(command, "--write", str(made), "--", user.python, str(server))
    assert b"mkdir -p" not in done.stderr


@pytest.mark.parametrize("command", ["run", "learn"])
def test_no_command_is_suggested_for_a_path_that_contains_a_secret(user, scratch, command):
    """Use a directory whose name is a secret. corral prints the name as `***`. It must not suggest
    a command with `***`, because a shell would expand this to all files of the directory.
    """
    server = scratch / "server.py"
    server.write_text(OWN_DIRECTORY.replace('"sub"', 'os.environ["NAME"]'))
    server.chmod(0o644)
    scratch.chmod(0o755)
    shown = []
    # With `--env` the value is not a secret. As a sanity check, corral must then suggest commands.
    for flag in ("--secret", "--env"):
        words = ("--", user.python, str(server))
        done = user.corral(command, flag, "NAME", *words, env=user.environment(NAME="plainName42"))
        shown.append(done.stderr.decode())
    assert "***" in shown[0]
    assert not any(word in shown[0] for word in ("mkdir", "--write"))
    assert f"first `mkdir -p {scratch}/plainName42`" in shown[1]


ATOMIC_SAVE = """
import sys
try:
    with open(sys.argv[1] + ".tmp", "w") as file:
        file.write("new")
    os.replace(sys.argv[1] + ".tmp", sys.argv[1])
    answer = "saved"
except OSError as error:
    answer = type(error).__name__
"""


@pytest.fixture(params=["/var/lib", "/tmp"])
def notes(request, user):
    """Make a file in a directory of the target's user, below /var/lib or /tmp. With namespaces, the
    target has a private /tmp.
    """
    if not os.access(request.param, os.W_OK):
        pytest.skip(f"only root can make a directory in {request.param}")
    top = tempfile.mkdtemp(prefix="corral-notes-", dir=request.param)
    place = pathlib.Path(top, "notes")
    place.mkdir()
    os.chmod(top, 0o755)
    file = place / "memory.json"
    file.write_text("old")
    for path in (place, file):
        os.chown(path, user.owner, user.owner)
    yield file
    shutil.rmtree(top)


def is_private(user, path) -> bool:
    return user.tier == "walled" and path.is_relative_to("/tmp")


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
@pytest.mark.parametrize("flag", ["--read", "--write"])
def test_a_file_beside_a_granted_file_names_a_flag_that_allows_it(user, notes, flag):
    flags = (flag, str(notes))
    answer, done = try_code(user, ATOMIC_SAVE, str(notes), flags=flags)
    assert answer in {"OSError", "PermissionError"}
    why = "its /tmp is private" if is_private(user, notes) else "read-only"
    why += f"; in place of `--read {notes}`" if flag == "--read" else ""
    line = f"access to {notes}.tmp ({why}); --write {notes.parent}"
    assert denied(done) == [line]
    # Drop a read grant of the file, because it would keep the file read-only. Keep a write grant.
    kept = flags if flag == "--write" else ()
    flags = (*kept, *flag_of(line))
    answer, done = try_code(user, ATOMIC_SAVE, str(notes), flags=flags)
    assert (answer, denied(done)) == ("saved", [])
    assert notes.read_text() == "new"


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_directory_beside_a_granted_file_names_a_flag_that_allows_it(user, notes):
    code = """
for name in ("", "/sub"):
    with contextlib.suppress(OSError):
        os.mkdir(os.path.dirname(sys.argv[1]) + name)
"""
    code, made = f"import contextlib\n{code}", notes.parent / "sub"
    _, done = try_code(user, code, str(notes), flags=("--write", str(notes)))
    (line,) = denied(done)
    assert line.startswith(f"access to {made} (")
    assert line.endswith(f"; --write {notes.parent}")
    assert not made.exists()
    _, done = try_code(user, code, str(notes), flags=flag_of(line))
    assert denied(done) == []
    assert made.is_dir()


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_no_flag_is_suggested_for_a_file_beside_a_grant_in_a_shared_directory(user, notes):
    code = "try:\n    open(sys.argv[1], 'w').close()\nexcept OSError:\n    answer = 'denied'"
    path = notes.parent.parent.parent / "corral-other"
    answer, done = try_code(user, code, str(path), flags=("--write", str(notes)))
    if is_private(user, path):
        assert (answer, denied(done)) == (None, [])
        return
    assert answer == "denied"
    why = "read-only: let the server use a directory of its own, which you can grant"
    assert denied(done) == [f"access to {path} ({why})"]


def test_a_read_only_file_in_a_write_grant_cannot_be_replaced(user, notes):
    """Grant a directory for writing, and a file in it only for reading. The target must not be able
    to replace the file. Sanity check: it can, if the file is also granted for writing.
    """
    flags = ("--write", str(notes.parent), "--read", str(notes))
    answer, _ = try_code(user, ATOMIC_SAVE, str(notes), flags=flags)
    assert (answer, notes.read_text()) == ("OSError", "old")
    answer, _ = try_code(user, ATOMIC_SAVE, str(notes), flags=(*flags, "--write", str(notes)))
    assert (answer, notes.read_text()) == ("saved", "new")


def test_a_granted_file_stays_writable_in_a_directory_that_a_mask_protects(user):
    """Grant write access to a project and to one of its git hooks. corral makes the hooks in a
    granted project read-only. The target must still be able to write to the granted hook, but not
    to another one.
    """
    place = user.home / "project"
    hooks = place / ".git" / "hooks"
    hooks.mkdir(parents=True)
    granted, other = hooks / "granted", hooks / "other"
    for path in (granted, other):
        path.write_text("old")
    for path in (place, place / ".git", hooks, granted, other):
        os.chown(path, user.owner, user.owner)
    code = """
answer = []
for path in sys.argv[1:]:
    try:
        open(path, "w").close()
        answer.append(True)
    except OSError:
        answer.append(False)
"""
    flags = ("--write", str(place), "--write", str(granted))
    answer, _ = try_code(user, code, str(granted), str(other), flags=flags)
    assert answer == [True, False]


def test_files_that_the_target_may_create_are_not_reported(user, scratch):
    code = """
for path in ("~/x", "/tmp/x", sys.argv[1] + "/x"):
    open(os.path.expanduser(path), "w").close()
os.makedirs(sys.argv[1], exist_ok=True)
"""
    _, done = try_code(user, code, str(scratch), flags=("--write", str(scratch)))
    assert denied(done) == []


LOOK_UP = """
import socket
try:
    socket.getaddrinfo(sys.argv[1], 80)
    answer = "found"
except socket.gaierror as error:
    answer = error.errno
"""


def test_a_name_is_reported_without_an_allowlist(user, scratch):
    report, audit = scratch / "report", scratch / "audit"
    flags = ("--report", str(report), "--audit", str(audit))
    answer, done = try_code(user, LOOK_UP, "api.example.test", flags=flags)
    assert answer == socket.EAI_NONAME
    assert denied(done) == ["name api.example.test; --allow-net api.example.test"]
    (row,) = json.loads(report.read_text())["denials"]
    assert (row["kind"], row["allow"]) == ("name", "--allow-net api.example.test")
    rows = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [row["kind"] for row in rows][-1] == "end"
    assert rows[0]["destination"] == "api.example.test"
    # With the flag that the denial suggests, the gateway resolves the name.
    answer, _ = try_code(user, LOOK_UP, "api.example.test", flags=flag_of(denied(done)[0]))
    assert answer == "found"


CONNECT = """
import socket
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as end:
        answer = end.recv(9).decode()
except ConnectionRefusedError:
    answer = "refused"
"""


def test_a_loopback_service_of_the_host_is_named_with_its_flag(user):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer, done = try_code(user, CONNECT, str(port))
        assert answer == "refused"
        (line,) = denied(done)
        assert line == (
            f"connection to 127.0.0.1:{port} (nothing in the sandbox listens there; "
            f"the sandbox does not share the host's loopback); --allow-net 127.0.0.1:{port}"
        )
        argv = user.corral_argv("run", *flag_of(line), "--", user.python, "-c")
        code = f"import sys\nsys.argv[1:] = ['{port}']\n{CONNECT}\nprint(answer)"
        process = user.popen([*argv, code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        end, _ = server.accept()
        with end:
            end.sendall(b"from host")
        assert process.communicate(timeout=PATIENCE)[0] == b"from host\n"


UNSEEN = (
    "connection to an unknown address (without namespaces corral cannot see the address; "
    "`corral learn` shows it)"
)
NETWORK_ACTS = {
    "name": ("socket.getaddrinfo('api.example.test', 80)", "--allow-net api.example.test"),
    "loopback": ("socket.create_connection(('127.0.0.1', 9))", "--allow-net 127.0.0.1:9"),
    "datagram": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()", ""),
}


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
@pytest.mark.parametrize("act", NETWORK_ACTS)
def test_without_namespaces_run_reports_an_unknown_address_and_learn_shows_it(user, scratch, act):
    code, flag = NETWORK_ACTS[act]
    code = f"import socket\ntry:\n    {code}\nexcept OSError as error:\n    answer = error.errno"
    report = scratch / "report"
    _, done = try_code(user, code, flags=("--report", str(report)))
    assert denied(done) == [UNSEEN]
    (row,) = json.loads(report.read_text())["denials"]
    assert (row["kind"], row["allow"]) == ("address", "")
    learned = user.corral("learn", "--", user.python, "-c", code).stderr.decode()
    assert flag in learned
    assert denied(try_code(user, "import socket\nsocket.socketpair()")[1]) == []


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_without_namespaces_an_unused_ipv6_socket_is_not_reported(user):
    """Make an IPv6 socket, but do not connect it. Libraries do so to see whether the host has IPv6,
    so corral must not report the denial.
    """
    code = "import socket\ntry:\n    socket.socket(socket.AF_INET6)\nexcept OSError as error:\n"
    answer, done = try_code(user, code + "    answer = error.errno")
    assert (answer, denied(done)) == (1, [])


def test_connections_of_a_target_to_itself_are_not_reported(user):
    code = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    for _ in range(300):
        with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
            one.send(b"x")
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1] + [0] * 7))
"""
    assert denied(try_code(user, code)[1]) == []


WRITE = """
path = os.path.expanduser(sys.argv[1])
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "w") as file:
    file.write("x")
"""
THROWN = b"corral: discarded after the run: "


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_file_written_to_the_private_home_is_reported_as_discarded(user, scratch):
    report = scratch / "report"
    _, done = try_code(user, WRITE, "~/data/out.txt", flags=("--report", str(report)))
    (line,) = [one for one in done.stderr.splitlines() if one.startswith(THROWN)]
    text = line.removeprefix(THROWN).decode()
    assert text == ("~/data/out.txt (1 bytes); to keep it: `mkdir -p ~/data`, then --write ~/data")
    found = json.loads(report.read_text())
    assert found["discarded"] == [{"path": "~/data/out.txt", "bytes": 1}]
    assert found["discarded_whole"]


def test_the_suggested_flag_keeps_a_file_that_was_discarded_without_it(user):
    data = user.home / "data"
    data.mkdir()
    os.chown(data, user.owner, user.owner)
    _, done = try_code(user, WRITE, "~/data/out.txt")
    assert b"; --write ~/data keeps it" in done.stderr
    _, done = try_code(user, WRITE, "~/data/out.txt", flags=("--write", str(data)))
    assert THROWN not in done.stderr
    assert (data / "out.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("path", "sensitive"),
    [
        ("~/.bashrc", True),
        ("~/.ssh/authorized_keys", True),
        ("~/x/.git/config", True),
        ("~/x/y", False),
    ],
)
def test_no_flag_is_suggested_for_a_sensitive_file_that_was_discarded(user, path, sensitive):
    _, done = try_code(user, WRITE, path)
    assert THROWN + path.encode() in done.stderr
    assert (b"--write" in done.stderr) != sensitive


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        (".git/config", True),
        (".env", True),
        (".envrc", True),
        (".vscode/new", True),
        ("plain", False),
    ],
)
def test_no_flag_is_suggested_for_a_sensitive_file_in_a_read_grant(user, name, sensitive):
    """Try to write to files in a read grant. For a sensitive file, corral must not suggest a flag
    that allows the write, because the target chooses the files, and `corral grant` would offer
    every suggested flag to the user.
    """
    place = user.home / "place"
    for path in (place, place / ".git", place / ".vscode"):
        path.mkdir()
        os.chown(path, user.owner, user.owner)
    code = "try:\n    open(sys.argv[1], 'w')\nexcept OSError:\n    pass"
    _, done = try_code(user, code, str(place / name), flags=("--read", str(place)))
    assert f"access to {place / name}".encode() in done.stderr
    assert (b"--write" in done.stderr) != sensitive


def test_discarded_caches_and_temporary_files_are_not_reported(user):
    for path in ("~/.cache/a/b", "/tmp/x/y"):
        _, done = try_code(user, WRITE, path)
        assert THROWN not in done.stderr
    assert THROWN not in user.run("/bin/true").stderr


def test_hostile_names_do_not_reach_the_terminal(user):
    code = """
home = os.path.expanduser("~")
open(home + "/\\x1b[31mred\\nnext", "w").write("x")
os.mkfifo(home + "/pipe")
os.mkdir(home + "/closed", 0)
for number in range(150):
    open(f"{home}/f{number}", "w").close()
"""
    _, done = try_code(user, code)
    (line,) = [one for one in done.stderr.splitlines() if one.startswith(THROWN)]
    assert b"\x1b" not in done.stderr
    assert b"(and others)" in line


LONG_NAME = """
import os
os.chdir(os.path.expanduser("~"))
for _ in range(12):
    os.mkdir("\\x01" * 200)
    os.chdir("\\x01" * 200)
open("file", "w").close()
for _ in range(14):
    os.write(2, b"x" * 4096)
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_long_message_to_a_full_stderr_pipe_does_not_keep_corral_from_ending(user):
    """Let the target fill the stderr pipe except for one or two pages, and leave behind a file
    whose printed name has 10,000 bytes. corral must not block on the message about the file.
    """
    reading, writing = os.pipe()
    process = user.popen(
        user.corral_argv("run", "--", user.python, "-c", LONG_NAME), stderr=writing
    )
    os.close(writing)
    try:
        assert process.wait(PATIENCE) == 0
        assert THROWN in os.read(reading, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(reading)


OUTER = """
import os, subprocess, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler
machine = os.uname().machine
rules = dict.fromkeys(TABLES[machine].values(), seccomp_compiler.ALLOW)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
program = seccomp_compiler.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=seccomp_compiler.ALLOW)
listener = abi.seccomp_set_filter(program, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""


def test_process_starts_are_denied_but_not_reported_if_corral_cannot_have_a_listener(user):
    """Run under a seccomp listener, as in some container runtimes. The kernel allows only one
    listener, so corral cannot have its own, and cannot report denied starts.
    """
    inner = f"import json, os, sys\n{START}\nprint(answer)"
    argv = user.corral_argv("run", "--", user.python, "-c", inner)
    command = [user.python, "-c", OUTER, str(user.package), *argv]
    process = user.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with contextlib.closing(process.stdout), contextlib.closing(process.stderr):
        out, err = process.communicate(timeout=PATIENCE)
    assert out == b"1\n", err
    assert PREFIX not in err


def test_no_flag_is_suggested_for_an_argument_that_names_a_sensitive_path(user, scratch):
    """Let the target's arguments name sensitive paths, existing and new ones. corral must not
    suggest a flag for them, because a project may have chosen the arguments.
    """
    environment = user.environment(HOME=str(scratch))
    for name in (".config/autostart", ".ssh", "data"):
        path = scratch / name
        path.mkdir(parents=True)
        os.chown(path, user.uid, user.uid)
        path.parent.chmod(0o755)
    (scratch / "linked").mkdir()
    (scratch / ".aws").symlink_to("linked")
    names = (".config/autostart/x.desktop", ".ssh", ".ssh/authorized_keys", "linked", "data/new")
    paths = [f"{scratch}/{name}" for name in names]
    done = user.corral("run", "--", "/bin/true", *paths, env=environment)
    *sensitive, ordinary = [
        line for line in done.stderr.decode().splitlines() if "denied: " in line
    ]
    assert [line.partition(" (")[0].rpartition(" ")[2] for line in sensitive] == paths[:4]
    assert not any("--" in line for line in sensitive), sensitive
    assert ordinary.endswith(f"; --write {scratch}/data")


def test_an_argument_that_names_an_ungranted_path_is_reported(user):
    notes = user.home / "named"
    notes.mkdir(exist_ok=True)
    os.chown(notes, user.owner, user.owner)
    code = "answer = os.path.isdir(sys.argv[1])"
    answer, done = try_code(user, code, str(notes))
    assert not answer
    (line,) = denied(done)
    assert line == f"access to {notes}; --read {notes}"
    answer, done = try_code(user, code, str(notes), flags=flag_of(line))
    assert (answer, denied(done)) == (True, [])


@pytest.mark.parametrize("how", ["flag", "policy"])
def test_a_variable_passed_by_name_that_names_an_ungranted_path_is_reported(user, how):
    notes = user.home / "named"
    notes.mkdir(exist_ok=True)
    os.chown(notes, user.owner, user.owner)
    code = "answer = os.path.isdir(os.environ['NOTES'])"
    policy = json.dumps({"version": 1, "environment": {"pass": ["NOTES", "NOT_SET"]}})
    flags = ("--env", "NOTES") if how == "flag" else ("--policy", policy)
    env = user.environment(NOTES=str(notes), OTHER=str(notes.parent / "other"))
    answer, done = try_code(user, code, flags=flags, env=env)
    assert not answer
    assert denied(done) == [f"access to {notes}; --read {notes}"]
    answer, done = try_code(user, code, flags=(*flags, "--read", str(notes)), env=env)
    assert (answer, denied(done)) == (True, [])


def test_a_relative_argument_is_taken_from_the_directory_of_the_start(user):
    notes = user.home / "near" / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    code = "answer = None"
    _, done = try_code(user, code, "./notes", "--x=../near/notes", "notes", cwd=notes.parent)
    assert denied(done) == [f"access to {notes}; --read {notes}"]
    _, done = try_code(user, code, "./notes", cwd=user.home)
    assert denied(done) == []


def test_a_target_that_fails_at_once_is_reported_with_corral_learn(user):
    line = b"corral: the target ended with an error; `corral learn` shows the files it looked for"
    assert line in user.run("/bin/false").stderr
    assert line not in user.run("/bin/true").stderr
