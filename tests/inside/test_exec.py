"""Attack `subprocess = false`: try to start another process, and to execute another program in any way."""

from __future__ import annotations

import pytest
from attempts import BOTH_TIERS, by_tier, has_unix_scope, inside, outside

TRUE = """
import glob, shutil, subprocess, threading
true = next(filter(os.path.exists, ("/usr/bin/true", "/bin/true")))
place = f"{os.environ.get('TMPDIR', '/tmp')}/exec-{os.getpid()}"
os.mkdir(place)
def executable(path, content):
    # The file gets its mode at creation, because without namespaces some hosts deny changes of modes.
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755), "wb") as file:
        file.write(content)
    return path
def copied(name):
    path = f"{place}/{name}"
    if not os.path.exists(path):
        with open(true, "rb") as file:
            executable(path, file.read())
    return path
def linked():
    path = f"{place}/linked"
    os.link(copied("original"), path)
    return path
def pointed():
    path = f"{place}/pointed"
    os.symlink(true, path)
    return path
def script():
    return executable(f"{place}/script", f"#!{true}\\n".encode())
loader = next(iter(glob.glob("/lib64/ld-linux*") + glob.glob("/lib/ld-linux*")))
"""
EXECS = (
    TRUE
    + """
def execve(path, *words, argv=(b"true",)):
    array = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
    call("execve", ctypes.create_string_buffer(path.encode()), array, None, *words)

def memfd():
    fd = call("memfd_create", b"program", 0)
    with open(true, "rb") as file:
        os.write(fd, file.read())
    return fd

def by_descriptor(fd):
    argv = (ctypes.c_char_p * 2)(b"true", None)
    call("execveat", fd, b"", argv, None, 0x1000)

def threaded():
    caught = []
    def act():
        try:
            os.execv(true, ["true"])
        except OSError as error:
            caught.append(error)
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    raise caught[0]

linked_path, pointed_path, script_path = linked(), pointed(), script()
renamed = copied("before")
os.rename(renamed, f"{place}/after")
renamed = f"{place}/after"
acts = {
    "plain": lambda: os.execv(true, ["true"]),
    "other name": lambda: os.execv(true, ["python3"]),
    "by /proc/self/root": lambda: os.execv("/proc/self/root" + true, ["true"]),
    "by /proc/self/exe": lambda: os.execv("/proc/self/exe", ["python3", "-c", ""]),
    "by its loader": lambda: os.execv(loader, [loader, true]),
    "copied": lambda: os.execv(copied("copied"), ["true"]),
    "renamed": lambda: os.execv(renamed, ["true"]),
    "hard-linked": lambda: os.execv(linked_path, ["true"]),
    "symlinked": lambda: os.execv(pointed_path, ["true"]),
    "script": lambda: os.execv(script_path, ["script"]),
    "memfd by execveat": lambda: by_descriptor(memfd()),
    "memfd by number": lambda: os.execve(memfd(), ["true"], {}),
    "memfd by /proc": lambda: os.execv(f"/proc/self/fd/{memfd()}", ["true"]),
    "opened by execveat": lambda: by_descriptor(os.open(true, os.O_RDONLY)),
    "opened as a path": lambda: by_descriptor(os.open(true, os.O_PATH)),
    "execveat by path": lambda: call("execveat", -100, true.encode(), (ctypes.c_char_p * 2)(b"t", None), None, 0),
    "in a thread": threaded,
    "zeros in the registers": lambda: execve(true, 0, 0, 0),
    "ones in the registers": lambda: execve(true, -1, -1, -1),
    "small guesses": lambda: execve(true, 1, 2, 3),
    "addresses": lambda: execve(true, id(os), id(sys), id(errno)),
    "random": lambda: execve(true, *struct.unpack("=3Q", os.urandom(24))),
}
answer = {name: in_child(act) for name, act in acts.items()}
shutil.rmtree(place)
"""
)


@BOTH_TIERS
def test_a_target_cannot_execute_a_second_program(user):
    free = outside(user, EXECS)
    assert free == dict.fromkeys(free, "done")
    assert inside(user, EXECS, flags=("--allow-subprocess",)) == free
    assert inside(user, EXECS) == dict.fromkeys(free, "EPERM")


CHILDREN = (
    TRUE
    + """
def forked():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def called(name, *arguments):
    pid = call(name, *arguments)
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def spawned():
    assert os.waitpid(os.posix_spawn(true, ["true"], {}), 0)[1] == 0

def by_shell():
    # system() returns the status of the shell, or -1 with errno.
    ctypes.set_errno(0)
    if libc.system(b"exit 0") != 0:
        raise OSError(ctypes.get_errno(), "")

def in_threads():
    caught = []
    def act():
        try:
            spawned()
        except OSError as error:
            caught.append(error)
    threads = [threading.Thread(target=act) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(caught) in (0, 4)
    if caught:
        raise caught[0]

def without_signal():
    pid = call("clone", 0, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0x40000000)  # __WALL

acts = {
    "fork": forked,
    "vfork": lambda: subprocess.run([true], check=True),
    "raw fork": lambda: called("clone", 17, 0, 0, 0, 0),
    "clone without a signal": without_signal,
    "posix_spawn": spawned,
    "system": by_shell,
    "subprocess, forked": lambda: subprocess.run([true], check=True, start_new_session=True),
    "subprocess by a shell": lambda: subprocess.run("exit 0", shell=True, check=True),
    "popen": lambda: os.popen("exit 0").close(),
    "threads": in_threads,
}
answer = {name: tried(act) for name, act in acts.items()}
shutil.rmtree(place)
"""
)


@BOTH_TIERS
def test_a_target_cannot_start_a_second_process(user):
    free = outside(user, CHILDREN)
    assert free == dict.fromkeys(free, "done")
    assert inside(user, CHILDREN, flags=("--allow-subprocess",)) == free
    assert inside(user, CHILDREN) == dict.fromkeys(free, "EPERM")


SECOND_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
reading, writing = os.pipe()
one = interpreters.create()
script = f'''
import os
try:
    said = str(os.waitpid(os.posix_spawn("/usr/bin/true", ["true"], {{}}), 0)[1])
except OSError as error:
    said = "errno %d" % error.errno
os.write({writing}, said.encode())
'''
interpreters.run_string(one, script)
answer = os.read(reading, 64).decode()
"""


@BOTH_TIERS
def test_a_second_interpreter_in_the_same_process_starts_nothing(user):
    assert outside(user, SECOND_INTERPRETER) == "0"
    assert inside(user, SECOND_INTERPRETER, flags=("--allow-subprocess",)) == "0"
    assert inside(user, SECOND_INTERPRETER) == "errno 1"


@BOTH_TIERS
def test_a_shell_as_target_has_only_its_builtins(user):
    """Run `sh` as the target, to show that the denial does not depend on Python. Only builtins of
    `sh` may run.
    """
    script = (
        "echo builtin; /usr/bin/true && echo executed; (echo subshell); exec /usr/bin/echo replaced"
    )
    done = user.run("/bin/sh", "-c", script)
    assert done.stdout == b"builtin\n"
    done = user.run("/bin/sh", "-c", script, flags=("--allow-subprocess",))
    assert done.stdout == b"builtin\nexecuted\nsubshell\nreplaced\n"


@BOTH_TIERS
@pytest.mark.rig("node")
def test_node_as_target_starts_nothing(user):
    script = """
const {spawnSync, execFileSync} = require("child_process");
const {Worker} = require("worker_threads");
const seen = {spawn: spawnSync("/usr/bin/true").error?.code ?? "done"};
new Worker(`require("worker_threads").parentPort.postMessage(
    require("child_process").spawnSync("/usr/bin/true").error?.code ?? "done")`, {eval: true})
    .on("message", said => { seen.worker = said; console.log(JSON.stringify(seen)); });
"""
    assert user.run("node", "-e", script).stdout == b'{"spawn":"EPERM","worker":"EPERM"}\n'
    allowed = user.run("node", "-e", script, flags=("--allow-subprocess",))
    assert allowed.stdout == b'{"spawn":"done","worker":"done"}\n'


@BOTH_TIERS
@pytest.mark.parametrize("flags", [(), ("--allow-subprocess",)], ids=["alone", "subprocess"])
def test_a_target_can_start_threads(user, flags):
    code = """
import threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
answer = sorted(done)
"""
    assert inside(user, code, flags=flags) == list(range(16))


@BOTH_TIERS
def test_a_childs_child_is_behind_the_same_walls(user, scratch):
    """Check that a grandchild of the target cannot open ungranted files or make a Unix socket.

    With Landlock's unix socket scope the grandchild can make a socket, but cannot connect it to the
    host's sockets.
    """
    code = """
import socket, subprocess
source = '''
import os, socket, sys
said = []
for act in (lambda: open("/etc/shadow"), lambda: os.listdir(sys.argv[1]), lambda: os.mkdir("/usr/x"),
            lambda: socket.socket(socket.AF_UNIX)):
    try:
        act()
        said.append(0)
    except OSError as error:
        said.append(error.errno)
print(*said)
'''
line = subprocess.check_output(["/bin/sh", "-c", '"$@"', "sh", sys.executable, "-c", source, sys.argv[1]])
answer = [errno.errorcode[int(word)] if int(word) else "done" for word in line.split()]
"""
    flags = ("--allow-subprocess",)
    shadow, listed, made = by_tier(user, ("ENOENT", "ENOENT", "EROFS"), ("EACCES",) * 3)
    unix = "done" if has_unix_scope(user) else "EPERM"
    assert inside(user, code, str(scratch), flags=flags) == [shadow, listed, made, unix]
    reading = (*flags, "--read", str(scratch))
    assert inside(user, code, str(scratch), flags=reading) == [shadow, "done", made, unix]
