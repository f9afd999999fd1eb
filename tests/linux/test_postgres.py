"""Connect a database client in the sandbox to a real server on the host's loopback. Only the
server's port is allowed.
"""

import glob
import os
import socket
import subprocess

import pytest

pytestmark = pytest.mark.rig("postgres")


def program(name):
    return max(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))


@pytest.fixture(scope="module")
def database(package):
    """Start a database server and return its port. The server refuses to run as root, so it runs as
    another user.
    """
    place = package.parent / "postgres" if os.geteuid() == 0 else package.parent / "pg"
    place.mkdir()
    ids = {}
    if os.geteuid() == 0:
        import pwd

        nobody = pwd.getpwnam("nobody")
        os.chown(place, nobody.pw_uid, nobody.pw_gid)
        ids = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(place)}
    common = {"env": environment, "cwd": place, **ids}
    make = [program("initdb"), "-D", str(place / "data"), "-U", "user", "-A", "trust", "--no-sync"]
    done = subprocess.run(make, capture_output=True, check=False, **common)
    assert done.returncode == 0, done.stderr.decode()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    argv = [program("postgres"), "-D", str(place / "data"), "-p", str(port), "-k", str(place)]
    argv += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    server = subprocess.Popen(argv, stderr=subprocess.PIPE, **common)
    for line in server.stderr:
        if b"ready to accept connections" in line:
            break
    yield port
    server.terminate()
    server.communicate()


@pytest.mark.parametrize("tier", ["walled", "bare", "replaced"], indirect=True)
def test_psql_reaches_the_allowed_server_and_no_other(user, database):
    psql = program("psql")
    words = ("-h", "127.0.0.1", "-p", str(database), "-U", "user", "-d", "postgres", "-Atc")
    query = "select sum(n) from generate_series(1, 100000) n"
    done = user.run(psql, *words, query, flags=("--allow-net", f"127.0.0.1:{database}"))
    assert (done.returncode, done.stdout) == (0, b"5000050000\n"), done.stderr
    denied = user.run(psql, *words, query)
    assert denied.returncode == 2
    assert any(
        text in denied.stderr
        for text in (b"Connection refused", b"could not connect", b"could not create socket")
    )
