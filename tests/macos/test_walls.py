"""Try forbidden acts from inside Seatbelt: each act is denied under the profile and succeeds
without it.
"""

import os
import socket
import sys

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "darwin", reason="only macOS has Seatbelt, libproc and jetsam"
)
EPERM, EAGAIN, EACCES = 1, 35, 13
READ = "answer = open(sys.argv[1]).read()"
WRITE = "open(sys.argv[1], 'a').close(); answer = 'written'"
LIST = "os.listdir(sys.argv[1]); answer = 'listed'"
CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).close(); answer = 'connected'"
UNIX = (
    "import socket\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); answer = 'connected'"
)
SEND = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', int(sys.argv[1]))); answer = 'sent'"
FORK = "pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); answer = 'forked'"
EXEC = "os.execv('/bin/echo', ['echo', '\"executed\"'])"
SIGNAL = "os.kill(int(sys.argv[1]), 0); answer = 'signalled'"
PROCARGS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
mib = (ctypes.c_int * 3)(1, 49, int(sys.argv[1]))  # CTL_KERN, KERN_PROCARGS2
size = ctypes.c_size_t(0)
if libc.sysctl(mib, 3, None, ctypes.byref(size), None, 0):
    raise OSError(ctypes.get_errno(), '')
answer = 'seen'
"""
MACH = """
import ctypes
libc = ctypes.CDLL(None)
port, name = ctypes.c_uint(), ctypes.c_uint.in_dll(libc, 'bootstrap_port')
answer = libc.bootstrap_look_up(name, sys.argv[1].encode(), ctypes.byref(port))
"""


@pytest.fixture
def secret(mac):
    path = f"{mac.place}/secret"
    with open(path, "w") as file:
        file.write("told")
    return path


def test_an_ungranted_file_cannot_be_read(mac, secret):
    assert mac.inside(READ, secret) == EPERM
    assert mac.inside(READ, secret, flags=("--read", secret)) == "told"
    assert mac.outside(READ, secret) == "told"


def test_a_read_grant_is_read_only(mac, secret):
    assert mac.inside(WRITE, secret, flags=("--read", mac.place)) == EPERM
    assert mac.inside(WRITE, secret, flags=("--write", mac.place)) == "written"


def test_user_names_cannot_be_listed(mac):
    assert mac.inside(LIST, "/Users") == EPERM
    assert mac.outside(LIST, "/Users") == "listed"


def test_a_secret_in_a_grant_is_hidden_and_a_hook_is_read_only(mac):
    hidden, hook = f"{mac.place}/.env", f"{mac.place}/.git/hooks/pre-commit"
    os.makedirs(os.path.dirname(hook))
    with open(hidden, "w") as file:
        file.write("told")
    flags = ("--write", mac.place)
    assert mac.inside(READ, hidden, flags=flags) == EPERM
    assert mac.inside(WRITE, hook, flags=flags) == EPERM
    move = "os.rename(sys.argv[1] + '/.git', sys.argv[1] + '/x'); answer = 'moved'"
    assert mac.inside(move, mac.place, flags=flags) == EPERM
    link = "os.link(sys.argv[1] + '/.env', sys.argv[1] + '/x'); answer = 'linked'"
    assert mac.inside(link, mac.place, flags=flags) == EPERM
    assert mac.inside(WRITE, f"{mac.place}/other", flags=flags) == "written"
    assert mac.outside(READ, hidden) == "told"


def test_loopback_is_closed_for_tcp_and_udp(mac):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert mac.inside(CONNECT, port) == EPERM
        assert mac.outside(CONNECT, port) == "connected"
        assert mac.inside(SEND, port) == EPERM
        assert mac.outside(SEND, port) == "sent"


def test_the_hosts_unix_sockets_cannot_be_reached(mac):
    path = f"/private/tmp/corral-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        try:
            assert mac.inside(UNIX, path) == EPERM
            assert mac.outside(UNIX, path) == "connected"
        finally:
            os.unlink(path)


def test_a_target_starts_no_process_and_no_other_program(mac):
    assert mac.inside(FORK) in {EPERM, EAGAIN}
    assert mac.inside(EXEC) in {EPERM, EACCES}
    assert (mac.outside(FORK), mac.outside(EXEC)) == ("forked", "executed")
    assert (
        mac.inside(
            "import threading; t = threading.Thread(target=int); t.start(); t.join(); answer = 'ran'"
        )
        == "ran"
    )


def test_child_processes_run_behind_the_same_wall(mac, secret):
    code = "import subprocess; answer = subprocess.run(['/bin/cat', sys.argv[1]], capture_output=True).stdout.decode()"
    assert mac.inside(code, secret, flags=("--allow-subprocess",)) == ""
    assert mac.inside(code, secret, flags=("--allow-subprocess", "--read", secret)) == "told"


def test_the_hosts_processes_cannot_be_signalled(mac):
    me = str(os.getpid())
    for flags in ((), ("--allow-subprocess",)):
        assert mac.inside(SIGNAL, me, flags=flags) == EPERM
    assert mac.outside(SIGNAL, me) == "signalled"


def test_arguments_and_environments_of_other_processes_are_hidden(mac):
    me = str(os.getpid())
    assert mac.inside(PROCARGS, me) == EPERM
    assert mac.outside(PROCARGS, me) == "seen"


@pytest.mark.parametrize(
    "name",
    ["com.apple.coreservices.launchservicesd", "com.apple.SecurityServer", "com.apple.pboard"],
)
def test_mach_services_that_act_for_any_caller_are_denied(mac, name):
    assert mac.inside(MACH, name) != 0
    assert mac.inside(MACH, "com.apple.system.opendirectoryd.libinfo") == 0


def test_the_callers_descriptors_are_not_inherited(mac, secret):
    with open(secret) as file:
        inherited = os.dup2(file.fileno(), 77)
        done = mac.run(sys.executable, "-c", "import os; os.fstat(77)", pass_fds=(inherited,))
        os.close(inherited)
    assert b"Bad file descriptor" in done.stderr


def test_the_callers_environment_is_not_inherited(mac):
    done = mac.run("/usr/bin/env", env={**os.environ, "PLANTED": "1"})
    assert b"PLANTED" not in done.stdout
    assert b"TMPDIR=/private/tmp/corral-" in done.stdout


def test_ungranted_files_look_absent(mac, secret):
    """Check access(2), which node's existsSync calls. Seatbelt has a separate operation for it."""
    there = "answer = os.access(sys.argv[1], os.F_OK)"
    assert mac.inside(there, secret) is False
    assert mac.inside(there, secret, flags=("--read", mac.place)) is True
    assert mac.inside(there, sys.executable) is True


CLONE = """
import ctypes
if ctypes.CDLL(None, use_errno=True).clonefile(sys.argv[1].encode(), sys.argv[2].encode(), 0):
    raise OSError(ctypes.get_errno(), '')
answer = 'cloned'
"""
STAT = "answer = os.stat(sys.argv[1]).st_size"


def test_a_clone_copies_no_hidden_file(mac):
    """Check that clones are denied. macOS checks permissions only for the top directory of a clone.
    So if a directory could be cloned, the clone would contain the hidden files in it.
    """
    os.makedirs(f"{mac.place}/project")
    with open(f"{mac.place}/project/.env", "w") as file:
        file.write("told")
    inside = CLONE.replace("sys.argv[2]", "(os.environ['HOME'] + '/copy')")
    for name in ("project", "project/.env"):
        flags = ("--read", f"{mac.place}/project")
        assert mac.inside(inside, f"{mac.place}/{name}", flags=flags) == EPERM
    assert mac.outside(CLONE, f"{mac.place}/project", f"{mac.place}/copy") == "cloned"


def test_a_hidden_environment_file_is_visible_and_unreadable(mac):
    for name in (".env", "deeper/.env.local"):
        path = f"{mac.place}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("told")
        assert mac.inside(STAT, path, flags=("--read", mac.place)) == 4
        assert mac.inside(READ, path, flags=("--read", mac.place)) == EPERM
        assert mac.inside(READ, path, flags=("--read", path)) == "told"


def test_a_repository_below_a_grant_is_read_only(mac):
    hook = f"{mac.place}/vendor/x/.git/hooks/post-checkout"
    os.makedirs(os.path.dirname(hook))
    assert mac.inside(WRITE, hook, flags=("--write", mac.place)) == EPERM
    make = "os.makedirs(sys.argv[1]); answer = 'made'"
    for name, answer in ((".git", EPERM), (".GIT", EPERM), ("git", "made")):
        assert mac.inside(make, f"{mac.place}/new/{name}", flags=("--write", mac.place)) == answer
    named = ("--write", mac.place, "--write", f"{mac.place}/vendor/x/.git")
    assert mac.inside(WRITE, f"{mac.place}/vendor/x/.git/HEAD", flags=named) == "written"


def test_errors_for_ungranted_names_are_recorded(mac, record_property):
    """Use paths that are not granted. Record the errors in the test report, because Apple does not
    document which call fails with EPERM and which with ENOENT.
    """
    acts = {
        "stat": "os.stat(sys.argv[1]); answer = 0",
        "open": "open(sys.argv[1]); answer = 0",
        "access": "answer = int(os.access(sys.argv[1], 0))",
        "execve": "os.execv(sys.argv[1], ['x'])",
    }
    for path in ("/nope", "/.env", os.path.expanduser("~/nope")):
        for name, code in acts.items():
            answer = mac.inside(code, path)
            record_property(f"{name} {os.path.basename(path)}", answer)
            assert answer in {EPERM, 2, 0}


def test_a_repository_cannot_be_created_in_a_grant(mac):
    put = "os.makedirs(sys.argv[1] + '/x/hooks'); os.rename(sys.argv[1] + '/x', sys.argv[1] + sys.argv[2]); answer = 'put'"
    assert mac.inside(put, mac.place, "/.git", flags=("--write", mac.place)) == EPERM
    os.rmdir(f"{mac.place}/x/hooks")
    os.rmdir(f"{mac.place}/x")
    assert mac.inside(put, mac.place, "/other", flags=("--write", mac.place)) == "put"


def test_a_grant_whose_path_is_spelled_in_another_case_works(mac, secret):
    """Grant a path in upper case. Most volumes ignore case, but Seatbelt compares paths in the
    spelling that the kernel uses, so corral has to find this spelling.
    """
    with open(f"{mac.place}/.env", "w") as file:
        file.write("hidden")
    other = os.path.join(os.path.dirname(mac.place), os.path.basename(mac.place).upper())
    if not os.path.exists(other):
        pytest.skip("this volume is case-sensitive")
    flags = ("--read", other)
    assert mac.inside(READ, secret, flags=flags) == "told"
    assert mac.inside(READ, f"{mac.place}/.env", flags=flags) == EPERM
