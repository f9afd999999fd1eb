"""`network.listen`: a port of the target's, on the host's loopback and nowhere else."""

import contextlib
import socket
import subprocess

SERVER = """
import socket, sys, threading
def serve(port, word):
    with socket.create_server(("127.0.0.1", port)) as listener:
        if word == b"open":
            print("ready", flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                client.sendall(word + b" " + client.recv(100))
threading.Thread(target=serve, args=(int(sys.argv[2]), b"closed"), daemon=True).start()
serve(int(sys.argv[1]), b"open")
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [item.getsockname()[1] for item in held]


def ask(port, host="127.0.0.1"):
    """What the server answers, or why it could not be asked."""
    try:
        with socket.create_connection((host, port), timeout=10) as client:
            client.sendall(b"hello")
            client.shutdown(socket.SHUT_WR)
            return client.makefile("rb").read()
    except OSError as error:
        return type(error).__name__


@contextlib.contextmanager
def serving(user, flags, *ports):
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", SERVER, *map(str, ports))
    process = user.popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_an_opened_port_is_reached_and_no_other(user):
    first, second = free_ports(2)
    with serving(user, ("--listen", str(first)), first, second):
        assert ask(first) == b"open hello"
        assert ask(first) == b"open hello"
        assert ask(second) == "ConnectionRefusedError"
    assert ask(first) == "ConnectionRefusedError"


def test_without_it_nothing_is_reached(user):
    first, second = free_ports(2)
    with serving(user, (), first, second):
        assert ask(first) == "ConnectionRefusedError"


def test_only_loopback_listens(user):
    """127.0.0.2 is another address of this host's, as a real one would be."""
    first, second = free_ports(2)
    with serving(user, ("--listen", str(first)), first, second):
        assert ask(first, "127.0.0.2") == "ConnectionRefusedError"
        assert ask(first) == b"open hello"


def test_a_port_that_nobody_serves_inside(user):
    first, second, third = free_ports(3)
    with serving(user, ("--listen", str(first), "--listen", str(third)), first, second):
        assert ask(third) in {b"", "ConnectionResetError"}
        assert ask(first) == b"open hello"


def test_a_port_that_is_taken_refuses_the_run(user):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = user.run("true", flags=("--listen", port))
    assert done.returncode == 125
    assert b"published_ports" in done.stderr
    assert port.encode() in done.stderr


def test_a_listening_port_gives_no_way_out(user):
    """The socket maker stands in the target's network namespace, not the target in the host's."""
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as host:
        code = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {host.getsockname()[1]}), timeout=5)
    answer = "reached"
except OSError as error:
    answer = type(error).__name__
"""
        assert user.inside(code, flags=("--listen", str(port))) == "ConnectionRefusedError"
        assert user.outside(code) == "reached"
