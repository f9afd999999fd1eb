"""Attack `corral learn` and `wrap --learn` with a server that tries to get more access than its
user notices.
"""

import json
import os
import pty
import shlex
import subprocess
import sys
import termios

import pytest

from users import SYSTEM_PYTHON

TAKE_TERMINAL = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
WAITS_FOR_A_LINE = """
import os, select, sys, termios
try:
    open(sys.argv[1])
except OSError:
    pass
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
os.write(2, b"continue? ")
select.select([0], [], [])  # the line stays in the terminal
"""


class Terminal:
    """A program on a terminal. The test types into the terminal and reads it, like a person."""

    def __init__(self, user, argv):
        self.fd, own = pty.openpty()
        take = [user.python, "-c", TAKE_TERMINAL, *argv]
        self.process = user.popen(take, stdin=own, stdout=own, stderr=own)
        os.close(own)
        self.shown = b""

    def wait_for(self, text):
        """Read until the program shows `text`, and return True. Return False if the program ends
        first.
        """
        at = len(self.shown)
        while text not in self.shown[at:]:
            try:
                self.shown += os.read(self.fd, 4096)
            except OSError:  # EIO: the program has ended
                return False
        return True

    def write(self, text):
        os.write(self.fd, text)


@pytest.fixture
def diary(user):
    path = user.home / "diary"
    path.write_text("dear diary")
    os.chown(path, user.owner, user.owner)
    return path


@pytest.mark.parametrize("answer", [b"n\n", b"y\n"])
def test_only_what_is_typed_after_a_question_answers_it(user, diary, scratch, answer):
    """Run a server that asks a question, but does not read what the user types. corral must not
    take this as the answer to its own question.
    """
    policy = scratch / "policy.toml"
    words = ("learn", "--output", str(policy), "--", SYSTEM_PYTHON, "-c", WAITS_FOR_A_LINE)
    terminal = Terminal(user, user.corral_argv(*words, str(diary)))
    assert terminal.wait_for(b"continue? "), terminal.shown
    assert b"the server waits for a client's messages on this terminal" in terminal.shown
    terminal.write(b"y\n" * 9)
    asked = terminal.wait_for(b"[y/N]")
    while asked:
        is_diary = str(diary).encode() in terminal.shown.rpartition(b"corral: ")[2]
        assert termios.tcgetattr(terminal.fd)[3] & termios.ECHO  # the terminal shows typed text
        terminal.write(answer if is_diary else b"n\n")
        asked = terminal.wait_for(b"[y/N]")
    assert terminal.process.wait(60) == 0, terminal.shown
    os.close(terminal.fd)
    assert policy.exists() == (answer == b"y\n"), terminal.shown


ASKS = """
import json, sys
for path, mode in json.loads(sys.argv[1]):
    try:
        open(path, mode)
    except OSError:
        pass
"""


def learn(user, asked, *flags):
    words = ("--", SYSTEM_PYTHON, "-c", ASKS, json.dumps(asked))
    done = user.corral("learn", *flags, *words, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_a_pasted_proposal_runs_nothing_else(user):
    """Let `learn` propose a file whose name contains a quote and a command. A shell must read the
    printed path as one word.
    """
    path = user.home / "a'; touch escaped; echo '\x1b[2J\"'"
    path.write_text("x")
    done = learn(user, [[str(path), "r"]])
    [line] = [line for line in done.stderr.decode().splitlines() if "; --read " in line]
    typed = line.rpartition("; --read ")[2]
    subprocess.run(["sh", "-c", f"true --read {typed}"], cwd=user.home, check=True, timeout=60)
    assert not (user.home / "escaped").exists(), typed
    assert len(shlex.split(typed)) == 1


def test_a_flood_of_paths_hides_neither_secrets_nor_questions(user):
    folder = user.home / "work"
    (user.home / ".ssh").mkdir()
    asked = []
    for number in range(300):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "file").write_text("x")
        asked.append([str(folder / str(number) / "file"), "r"])
    asked.append([str(user.home / ".ssh/config"), "w"])
    found = json.loads(learn(user, asked, "--json").stdout)
    assert str(user.home / ".ssh/config") in [path for path, _ in found["never"]]
    assert len(found["proposed"]) < 100
    assert "250 further paths" in [what for what, _ in found["never"]]


def test_a_policy_with_unusual_names_can_be_read_again(user, scratch):
    """Let `learn` write a policy with names that need different escapes in TOML and in JSON. A run
    with this policy must be able to read these files. Also use a name that is not UTF-8, which TOML
    cannot contain.
    """
    names = ["\U0001f4c1 notes", "del\x7f", "tab\t", 'quote"']
    odd = os.fsdecode(b"not-\xff-text")
    for name in (*names, odd):
        (user.home / name).mkdir()
        (user.home / name / "file").write_text("x")
    policy = scratch / "policy.toml"
    asked = [[str(user.home / name / "file"), "r"] for name in (*names, odd)]
    done = learn(user, asked, "--accept", "--output", str(policy))
    assert b"a policy cannot contain" in done.stderr
    reads = "import sys\nfor path in sys.argv[1:]: print(open(path).read())"
    paths = [str(user.home / name / "file") for name in names]
    run = user.run(SYSTEM_PYTHON, "-c", reads, *paths, flags=("--policy", str(policy)))
    assert run.stdout == b"x\n" * len(names), run.stderr


MAPS = """
import mmap
try:
    mmap.mmap(-1, 1 << 46)
except OSError:
    pass
"""


def test_no_more_memory_is_proposed_than_the_machine_has(user):
    done = user.corral("learn", "--", SYSTEM_PYTHON, "-c", MAPS, timeout=120)
    assert b"more than this machine has" in done.stderr, done.stderr
    assert b"--max-memory" not in done.stderr


ASKS_FOR_NAMES = """
import socket, sys
for number in range(300):
    try:
        socket.getaddrinfo(f"n{number}.example.test", 443)
    except OSError:
        pass
try:
    open(sys.argv[1])
except OSError:
    pass
"""


def test_a_flood_of_names_does_not_hide_secrets_from_why(user):
    (user.home / ".ssh").mkdir()
    key = user.home / ".ssh" / "id_rsa"
    key.write_text("a key")
    flags = ("--learn-until", "2099-01-01T00:00:00Z", "--allow-net", "example.com")
    words = (SYSTEM_PYTHON, "-c", ASKS_FOR_NAMES, str(key))
    done = user.run(*words, flags=flags, timeout=120)
    assert b"this run was watched" in done.stderr, done.stderr
    told = user.corral("why").stdout.decode()
    assert f"access to {key} (may contain secrets" in told
    assert "n0.example.test" in told  # Sanity check: `why` also lists the host names of the flood


UNANSWERED = """
import ctypes, os, sys
kind, place, uid, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, kind, options=None, flags=0):
    if libc.mount(source, place.encode(), kind, flags, options):
        sys.exit(os.strerror(ctypes.get_errno()))
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None) == 0
if kind == "fuse":
    # No process reads the requests of this file system.
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(b"unanswered", b"fuse", b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device)
else:
    mount(b"files", b"tmpfs")
    open(place + "/asked", "w").close()
pid = os.fork()
if pid == 0:
    os.setgroups([]), os.setgid(int(uid)), os.setuid(int(uid))
    os.execv(command[0], command)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("how", ["its path", "a link"])
@pytest.mark.parametrize("kind", ["fuse", "tmpfs"])
def test_a_file_system_that_never_answers_does_not_block_learn(user, scratch, kind, how):
    """Make the target ask for a file on a FUSE file system that never answers. `learn` must not
    wait for an answer. As a sanity check, do the same with tmpfs, which answers.
    """
    if os.geteuid():
        pytest.skip("only root can mount file systems")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this kernel has no FUSE")
    place = scratch / "remote"
    place.mkdir()
    (scratch / "link").symlink_to(place)
    asked = f"{place if how == 'its path' else scratch / 'link'}/asked"
    code = f"import os; os.path.exists({asked!r})"
    argv = user.corral_argv("learn", "--", user.python, "-c", code)
    command = [sys.executable, "-c", UNANSWERED, kind, str(place), str(user.uid), *argv]
    done = subprocess.run(
        command, env=user.environment(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused = f"the target asked for {asked}: never proposed, on a network file system"
    assert (refused in done.stderr.decode()) == (kind == "fuse")
    assert (f"--read {asked}" in done.stderr.decode()) == (kind == "tmpfs")
