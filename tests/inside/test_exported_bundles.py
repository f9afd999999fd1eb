"""Run this folder's attacks in a real runc, in bundles that `corral export oci` wrote.

A bundle must block every attack that a run of corral blocks. The only exceptions are those that the
export names in its list of controls.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile

import pytest
from attempts import PRELUDE, give, give_directory, inside, outside
from test_exec import CHILDREN
from test_filesystem import OPEN_SECRETS, WRITES
from test_ipc import CONNECT, Host
from test_kernel import DENIED, NESTED
from test_network import FAMILIES
from test_processes import LOOK
from test_quotas import INOTIFY, SYSTEM_V, quotas
from test_repositories import PLANT
from test_resources import FILL, FORKS

pytestmark = pytest.mark.rig("runc")

# Two kinds of attacks are left out. A bundle's filter cannot deny exec (the export's list of
# controls says so), because runc executes the target after installing the filter. Attacks on PID 1
# make no sense, because in a bundle the target itself is PID 1.
CODES = {"DENIED": DENIED, "NESTED": NESTED, "FAMILIES": FAMILIES, "CHILDREN": CHILDREN}


@pytest.fixture
def scratch(user):
    """Create a directory that a bundle's target can reach. This target is not root, even if the
    user is.
    """
    path = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="corral-export-"))
    path.chmod(0o755)
    os.chown(path, user.owner, user.owner)
    yield path
    shutil.rmtree(path)


def in_bundle(user, scratch, code, *arguments, flags=()):
    return in_listed_bundle(user, scratch, code, *arguments, flags=flags)[0]


def in_listed_bundle(user, scratch, code, *arguments, flags=()):
    """Run code in a new bundle. Return its answer, and {control: remark} from the export's list of
    controls.
    """
    bundle = scratch / "bundle"
    script = f"import json, os, sys\nanswer = None\n{PRELUDE}{code}\nprint(json.dumps(answer))"
    words = ("-o", str(bundle), "--force", "--json", *flags, "--", "/usr/bin/python3", "-c", script)
    done = user.corral("export", "oci", *words, *arguments)
    assert done.returncode == 0, done.stderr.decode()
    listed = {one["control"]: one["why"] for one in json.loads(done.stdout)["controls"]}
    name = f"corral-attack-{os.getpid()}-{user.name}"
    argv = ["runc", "--root", str(scratch / "runc"), "run", "-b", str(bundle), name]
    process = user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err.decode()
    return json.loads(out.decode().splitlines()[-1]), listed


def check_blocked(free, walled, seen):
    """Check that a bundle denies every attack that succeeds outside and fails in a run of corral."""
    blocked = {name for name, said in free.items() if said == "done" != walled[name]}
    assert blocked  # sanity check: a run of corral blocks some attacks
    assert seen.keys() == walled.keys()
    assert not [name for name in blocked if seen[name] == "done"]
    assert not [name for name, said in seen.items() if said == "done" and walled[name] != "done"]


@pytest.mark.parametrize("name", CODES)
def test_a_bundle_blocks_the_same_attacks_as_a_run(user, scratch, name):
    code = CODES[name]
    check_blocked(outside(user, code), inside(user, code), in_bundle(user, scratch, code))


def test_shared_quotas_of_the_kernel_are_out_of_reach(user, scratch):
    path = give(user, scratch / "file", "text")
    (scratch / "file.d").mkdir()
    (scratch / "file.d").chmod(0o777)
    flags = ("--read", path)
    free, walled = outside(user, quotas(), path), inside(user, quotas(), path, flags=flags)
    seen = in_bundle(user, scratch, quotas(), path, flags=flags)
    check_blocked(free, walled, seen)
    assert seen["exchange"] == "done"  # sanity check: an allowed act succeeds


def test_sockets_of_the_host_are_not_reached(user, scratch):
    """Try to connect to abstract sockets, to a socket in /tmp like an ssh-agent's, and to a socket in a grant."""
    name = f"corral-{os.getpid()}-{user.name}"
    granted, agent = give_directory(user, scratch / "granted"), f"/tmp/{name}-agent"
    addresses = {
        "abstract": [1, "\0" + name],
        "datagram": [2, f"\0{name}-datagram"],
        "agent": [1, agent],
        "granted": [1, f"{granted}/docker.sock"],
    }
    host, table = Host(), f"{addresses!r}.items()"
    code = f"{CONNECT}answer = {{name: tried(connect, *where) for name, where in {table}}}"
    try:
        for kind, address in addresses.values():
            host.add(socket.AF_UNIX, socket.SocketKind(kind), address)
        assert outside(user, code) == dict.fromkeys(addresses, "done")
        assert host.arrived() == len(addresses)  # sanity check: outside, every listener is reached
        seen = in_bundle(user, scratch, code, flags=("--read", granted))
        assert "done" not in seen.values()
        assert host.arrived() == 0
    finally:
        for end in host.sockets:
            end.close()
        if os.path.lexists(agent):
            os.unlink(agent)


def test_processes_of_the_host_are_not_visible(user, scratch):
    code = f"{LOOK}answer = {{name: tried(looked, int(sys.argv[1]), name) for name in NAMES}}"
    waiting = [user.python, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with user.popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as victim:
        victim.stdout.readline()
        free = outside(user, code, str(victim.pid))
        seen = in_bundle(user, scratch, code, str(victim.pid))
    # Sanity check: outside, both files can be read.
    assert free["status"] == free["cmdline"] == "done"
    assert seen == dict.fromkeys(free, "ENOENT")


def test_a_fork_bomb_reaches_the_limit(user, scratch):
    code = f"{FORKS}\nchildren, said = more(100)\nanswer = [len(children), said]\nend(children)"
    limited = ("--allow-subprocess", "--max-pids", "32")
    assert in_bundle(user, scratch, code, flags=limited) == [31, "EAGAIN"]
    free = in_bundle(user, scratch, code, flags=("--allow-subprocess", "--max-pids", "200"))
    assert free == [100, "done"]  # sanity check: under a higher limit every attempt succeeds


def test_the_number_of_open_descriptors_is_limited(user, scratch):
    code = """
import resource
def opened():
    return [os.dup(0) for _ in range(100)]
def raised():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
try:
    raised()
    answer = ["raised"]
except ValueError:
    answer = ["held"]
answer.append(tried(opened))
"""
    assert in_bundle(user, scratch, code, flags=("--max-fds", "64")) == ["held", "EMFILE"]
    # Sanity check: under a higher limit every attempt succeeds.
    assert in_bundle(user, scratch, code, flags=("--max-fds", "2000"))[1] == "done"


def test_each_private_directory_has_the_disk_limit(user, scratch):
    """Fill the private directories. In a bundle each of them has its own limit, as the export's
    list of controls says. In a run of corral they share one limit.
    """
    code = FILL + "answer = fill(int(sys.argv[1]))"
    flags = ("--max-disk", "4M")
    (written, said), listed = in_listed_bundle(user, scratch, code, str(64 << 20), flags=flags)
    assert said == "ENOSPC"
    assert written <= 4 * (4 << 20)
    assert "each private directory" in listed["disk"]
    assert in_bundle(user, scratch, code, str(2 << 20), flags=flags) == [2 << 20, "done"]


def test_quotas_that_a_bundle_does_not_limit_are_on_its_list(user, scratch):
    code = (
        f"{INOTIFY.replace('N.update(EXTRA)', '')}\ntaken = answer[0]{SYSTEM_V}\nanswer += [taken]"
    )
    seen, listed = in_listed_bundle(user, scratch, code, "2000")
    assert seen[:3] == [2000] * 3
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as file:
        assert seen[3] > int(file.read()) // 4
    for words in ("inotify", "System V"):
        assert words in listed["fds"]


def test_secrets_and_hooks_in_a_write_grant_are_out_of_reach(user, scratch):
    """Try to read secrets and to change hooks. Sanity check: in the same grant, the target can
    write and read other files.
    """
    if user.uid == 0:
        pytest.skip("root's target is not root, so root exports no write grant of its own files")
    project = scratch / "project"
    give_directory(user, project / ".git/hooks")
    give_directory(user, project / ".git/objects")
    give(user, project / ".git/HEAD", "ref: refs/heads/main\n")
    give(user, project / ".git/config", "")
    give(user, project / ".env", "TOKEN=secret")
    give(user, project / "notes.txt", "notes")
    names = (".git/hooks/pre-commit", ".git/config", "src/free")
    flags = ("--write", str(project))
    planted = in_bundle(user, scratch, PLANT, str(project), *names, flags=flags)
    assert planted == {names[0]: "EROFS", names[1]: "EROFS", names[2]: "done"}
    code = "answer = [got(path) for path in sys.argv[1:]]"
    paths = (str(project / ".env"), str(project / "notes.txt"))
    assert in_bundle(user, scratch, code, *paths, flags=flags) == ["", "notes"]
    assert outside(user, code, *paths) == ["TOKEN=secret", "notes"]


def test_ungranted_files_are_out_of_reach(user, scratch):
    """Try to use ungranted files. Sanity check: outside, and in a write grant, the same acts
    succeed.
    """
    secret, granted = scratch / "key.txt", scratch / "project"
    granted.mkdir()
    secret.write_text("key")
    os.chown(secret, user.owner, user.owner)
    os.chown(granted, user.owner, user.owner)
    if user.uid == 0:  # the target of root's bundle is not root, so it cannot use root's files
        flags, places = (), ("/usr",)
    else:
        flags, places = ("--write", str(granted)), (str(granted), "/usr")
    assert outside(user, OPEN_SECRETS, str(secret)) == {str(secret): "done"}
    seen = in_bundle(user, scratch, OPEN_SECRETS, str(secret), flags=flags)
    assert seen == {str(secret): "ENOENT"}
    written = in_bundle(user, scratch, WRITES, *places, flags=flags)
    assert set(written["/usr"].values()) <= {"EROFS", "EPERM", "EACCES"}
    if user.uid:
        assert written[str(granted)]["create"] == "done"
