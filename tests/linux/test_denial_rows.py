"""Start servers that need something that corral denies. They must work with the flag that corral
names.

Some denials are reported during the run, with their flag. For the others the run refers to `corral
learn`, which finds the flag.
"""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import socket
import tempfile
import threading

import pytest

from world import PUBLIC, Inhabitant, make_world

BOTH_TIERS = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
UNSEEN = (
    b"corral: denied: connection to an unknown address (without namespaces corral cannot see the "
    b"address; `corral learn` shows it)"
)
LEARN = b"corral: the target ended with an error; `corral learn` shows the files it looked for"
SERVER = """
import os, socket, subprocess, sys
BUILT_IN = "11.0.0.2:8080"
mode, *rest = sys.argv[1:]
home = os.path.expanduser("~")
if mode == "read":
    print(open(rest[0] if rest else home + "/data.txt").read())
elif mode == "name":
    with socket.create_connection((rest[0], 80), timeout=30) as end:
        print(end.recv(9).decode())
elif mode == "address":
    address, port = (rest[0] if rest else os.environ.get("SERVER_ADDRESS", BUILT_IN)).split(":")
    with socket.create_connection((address, int(port)), timeout=30) as end:
        print(end.recv(9).decode())
elif mode == "start":
    subprocess.run(["/bin/echo", "started"], check=True)
elif mode == "home":
    open(home + "/out.txt", "w").write("written")
elif mode == "own":
    open(os.path.join(os.path.dirname(__file__), "log.txt"), "a").write("logged")
elif mode == "variable":
    print(os.environ[rest[0]] if rest else os.environ["NOTES_API_TOKEN"], os.environ.get("NOTES_COLOUR"))
elif mode == "socket":
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(rest[0] if rest else os.path.join(os.path.dirname(__file__), "..", "sockets", "s"))
        print(end.recv(9).decode())
elif mode == "memory":
    print(len(bytearray(1_100_000_000)))
"""
ADDRESS = f"{PUBLIC}:8080"


@pytest.fixture
def server(user):
    """Create a server in its own directory. The files that it needs are outside this directory."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="rows-", dir=user.home))
    (place / "code").mkdir()
    script = place / "code" / "server.py"
    script.write_text(SERVER)
    for path in (place, place / "code", script):
        path.chmod(0o755)
        os.chown(path, user.owner, user.owner)
    yield script
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    yield from make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def inhabitant(user, world):
    yield Inhabitant(user, world)
    world.stop()
    world.forget()


def run(user, script, *words, flags=(), env=None):
    env = user.environment(**env) if env else None
    return user.run(user.python, str(script), *words, flags=tuple(flags), env=env)


def learn(user, script, *words, flags=(), env=None):
    env = user.environment(**env) if env else None
    done = user.corral(
        "learn", *flags, "--", user.python, str(script), *words, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def named(done, about: str) -> list[str]:
    """Return the flag that corral suggests in the only line that contains `about`."""
    lines = [line for line in done.stderr.decode().splitlines() if about in line]
    lines = [line for line in lines if line.startswith("corral: ")]
    assert len(lines) == 1, done.stderr
    flag = lines[0].rpartition("; ")[2]
    return shlex.split(flag.removesuffix(" passes it"))


def missed(user, script, *words, **options):
    """Run the server, and check that the run fails, that corral does not name the cause, and that
    it refers to `corral learn`. Then run `learn`, and return its output.
    """
    done = run(user, script, *words, **options)
    assert done.returncode == 1
    assert LEARN in done.stderr
    assert b"denied" not in done.stderr.replace(UNSEEN, b"")
    return learn(user, script, *words, **options)


def own_file(user, path, text=""):
    path.write_text(text)
    path.chmod(0o644)
    os.chown(path, user.owner, user.owner)
    return path


@BOTH_TIERS
def test_an_ungranted_file_is_found_by_learn(user, server):
    data = own_file(user, user.home / "data.txt", "the data")
    flag = named(missed(user, server, "read"), str(data))
    assert flag == ["--read", str(data)]
    assert run(user, server, "read", flags=flag).stdout == b"the data\n"


@BOTH_TIERS
def test_an_ungranted_file_in_the_arguments_is_reported(user, server):
    data = own_file(user, user.home / "data.txt", "the data")
    done = run(user, server, "read", str(data))
    assert done.returncode == 1
    flag = named(done, f"denied: access to {data}")
    assert run(user, server, "read", str(data), flags=flag).stdout == b"the data\n"


@BOTH_TIERS
def test_an_ungranted_name_without_an_allowlist_is_reported(inhabitant, world, server):
    name = world.name("api.example.test", PUBLIC)
    world.serve(lambda end: end.sendall(b"from far"), port=80)
    done = run(inhabitant, server, "name", name)
    assert done.returncode == 1
    if inhabitant.tier == "bare":
        assert UNSEEN in done.stderr
        flag = named(learn(inhabitant, server, "name", name), f"name {name}")
    else:
        flag = named(done, f"denied: name {name}")
    assert flag == ["--allow-net", name]
    assert run(inhabitant, server, "name", name, flags=flag).stdout == b"from far\n"


@BOTH_TIERS
def test_an_ungranted_name_outside_an_allowlist_is_reported(inhabitant, world, server):
    name = world.name("api.example.test", PUBLIC)
    world.serve(lambda end: end.sendall(b"from far"), port=80)
    before = ("--allow-net", "example.com")
    done = run(inhabitant, server, "name", name, flags=before)
    assert done.returncode == 1
    flag = named(done, f"denied: name {name}")
    assert run(inhabitant, server, "name", name, flags=(*before, *flag)).stdout == b"from far\n"


@BOTH_TIERS
def test_an_ungranted_address_is_found_by_learn(inhabitant, world, server):
    world.serve(lambda end: end.sendall(b"from far"), port=8080)
    flag = named(missed(inhabitant, server, "address"), "connection to")
    assert flag == ["--allow-net", ADDRESS]
    assert run(inhabitant, server, "address", flags=flag).stdout == b"from far\n"


@BOTH_TIERS
@pytest.mark.parametrize("where", ["argument", "variable", "passed", "allowlist"])
def test_an_ungranted_address_in_the_arguments_or_at_the_gateway_is_reported(
    inhabitant, world, server, where
):
    """Name an ungranted address in an argument or in an environment variable, and check that corral
    reports it and suggests the flag that allows it.

    In the case `allowlist`, neither names the address. Here the gateway must report the address
    when the target connects to it.
    """
    world.serve(lambda end: end.sendall(b"from far"), port=8080)
    words = ("address", ADDRESS) if where == "argument" else ("address",)
    before = {
        "argument": (),
        "variable": ("--env", f"SERVER_ADDRESS={ADDRESS}"),
        "passed": ("--env", "SERVER_ADDRESS"),
        "allowlist": ("--allow-net", "example.com:8080"),
    }[where]
    env = {"SERVER_ADDRESS": ADDRESS} if where == "passed" else None
    done = run(inhabitant, server, *words, flags=before, env=env)
    assert b"from far" not in done.stdout
    flag = named(done, f"denied: connection to {ADDRESS}")
    done = run(inhabitant, server, *words, flags=(*before, *flag), env=env)
    assert done.stdout == b"from far\n"


@BOTH_TIERS
def test_a_denied_process_start_is_reported(user, server):
    done = run(user, server, "start")
    assert done.returncode == 1
    flag = named(done, "denied: start of echo")
    assert run(user, server, "start", flags=flag).stdout == b"started\n"


@BOTH_TIERS
def test_a_discarded_file_in_the_home_is_reported(user, server):
    out = user.home / "out.txt"
    out.unlink(missing_ok=True)
    done = run(user, server, "home")
    assert (done.returncode, out.exists()) == (0, False)
    line = next(
        line for line in done.stderr.decode().splitlines() if "discarded after the run" in line
    )
    assert "`touch ~/out.txt`, then --write ~/out.txt" in line
    own_file(user, out)
    assert run(user, server, "home", flags=("--write", str(out))).returncode == 0
    assert out.read_text() == "written"
    out.unlink()


@BOTH_TIERS
def test_a_denied_write_beside_the_server_is_reported(user, server):
    log = server.parent / "log.txt"
    done = run(user, server, "own")
    assert done.returncode == 1
    flag = named(done, f"denied: write to the server's own files: {log}")
    own_file(user, log)
    assert run(user, server, "own", flags=flag).returncode == 0
    assert log.read_text() == "logged"


@BOTH_TIERS
def test_an_ungranted_variable_is_found_by_learn(user, server):
    env = {"NOTES_API_TOKEN": "hunter2", "NOTES_COLOUR": "blue", "UNRELATED_SETTING": "x"}
    done = missed(user, server, "variable", env=env)
    flags = [*named(done, "NOTES_API_TOKEN"), *named(done, "NOTES_COLOUR")]
    assert flags == ["--secret", "NOTES_API_TOKEN", "--env", "NOTES_COLOUR"]
    assert b"hunter2" not in done.stderr
    assert b"UNRELATED" not in done.stderr
    done = run(user, server, "variable", flags=flags, env=env)
    assert done.stdout == b"hunter2 blue\n"


@BOTH_TIERS
def test_an_ungranted_variable_in_the_arguments_is_reported(user, server):
    env = {"NOTES_API_TOKEN": "hunter2"}
    done = run(user, server, "variable", "NOTES_API_TOKEN", env=env)
    flag = named(done, "denied: variable NOTES_API_TOKEN")
    done = run(user, server, "variable", "NOTES_API_TOKEN", flags=flag, env=env)
    assert done.stdout == b"hunter2 None\n"


@BOTH_TIERS
def test_learn_proposes_a_higher_memory_limit_if_memory_was_short(user, server):
    flag = named(missed(user, server, "memory"), "of memory")
    assert flag == ["--max-memory", "2G"]
    assert run(user, server, "memory", flags=flag).stdout == b"1100000000\n"


@pytest.fixture
def unix_socket(user, server):
    """Start a service on the host that listens on a unix socket. The socket is not in the server's
    directory.
    """
    folder = server.parent.parent / "sockets"
    folder.mkdir()
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        for one in (folder, path):
            one.chmod(0o777)
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def answer(listener):
    while True:
        try:
            end, _ = listener.accept()
        except OSError:
            return
        with end:
            end.sendall(b"from host")


def test_an_ungranted_unix_socket_is_found_by_learn(user, server, unix_socket):
    """Check that `learn` reports the path of the ungranted socket. The target gets a socket that
    cannot connect, and `learn` sees the path to which the target tries to connect.
    """
    done = missed(user, server, "socket")
    assert b"from host" not in done.stdout
    flag = named(done, f"the target asked for {unix_socket}: never proposed, a service of the host")
    done = run(user, server, "socket", flags=flag)
    assert done.stdout == b"from host\n", done.stderr


@BOTH_TIERS
def test_an_ungranted_unix_socket_in_the_arguments_is_reported(user, server, unix_socket):
    done = run(user, server, "socket", str(unix_socket))
    assert done.returncode == 1
    flag = named(done, f"denied: connection to {unix_socket}")
    done = run(user, server, "socket", str(unix_socket), flags=flag)
    assert done.stdout == b"from host\n", done.stderr


REACHED = b"corral: allowed, but the host did not reach "


@BOTH_TIERS
def test_an_unreachable_allowed_name_is_reported_once(inhabitant, world, server):
    name = world.name("api.example.test", PUBLIC)
    report = server.parent.parent / "report"
    flags = ("--allow-net", name, "--allow-net", "unknown.test", "--report", str(report))
    done = run(inhabitant, server, "name", name, flags=flags)
    assert b"from far" not in done.stdout
    assert REACHED + b"api.example.test:80 (no connection)\n" in done.stderr
    done = run(inhabitant, server, "name", "unknown.test", flags=flags)
    assert done.stderr.count(REACHED) == 1
    assert REACHED + b"unknown.test:80 (the host found no address for it)\n" in done.stderr
    (row,) = json.loads(report.read_text())["denials"]
    assert (row["kind"], row["allow"]) == ("unreachable", "")
    shown = inhabitant.corral("why", "--", inhabitant.python, str(server), "name", "unknown.test")
    assert b"unreachable" not in shown.stdout + shown.stderr
    world.serve(lambda end: end.sendall(b"from far"), port=80)
    done = run(inhabitant, server, "name", name, flags=flags)
    assert (done.stdout, REACHED in done.stderr) == (b"from far\n", False)
