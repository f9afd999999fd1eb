"""Test `network.listen`: the target's port can be reached only on the host's loopback."""

import contextlib
import os
import socket
import subprocess

import pytest

pytestmark = pytest.mark.parametrize("tier", ["walled", "bare", "replaced"], indirect=True)

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
    """Return the server's answer, or the name of the exception if there is no answer."""
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


def test_only_a_published_port_is_reached(user):
    first, second = free_ports(2)
    with serving(user, ("--listen", str(first)), first, second):
        assert ask(first) == b"open hello"
        assert ask(first) == b"open hello"
        assert ask(second) == "ConnectionRefusedError"
    assert ask(first) == "ConnectionRefusedError"


def test_no_port_is_reached_without_the_flag(user):
    first, second = free_ports(2)
    if user.tier != "walled":  # without namespaces, a target without network grants gets no sockets
        done = user.run(user.python, "-c", SERVER, str(first), str(second))
        assert b"PermissionError" in done.stderr
        return
    with serving(user, (), first, second):
        assert ask(first) == "ConnectionRefusedError"


def test_a_published_port_listens_on_loopback_only(user):
    """Connect to 127.0.0.2, in place of the address of a network card. The host has this address,
    but the port is not published there.
    """
    first, second = free_ports(2)
    with serving(user, ("--listen", str(first)), first, second):
        assert ask(first, "127.0.0.2") == "ConnectionRefusedError"
        assert ask(first) == b"open hello"


def test_a_port_without_a_listener_inside_is_closed(user):
    first, second, third = free_ports(3)
    with serving(user, ("--listen", str(first), "--listen", str(third)), first, second):
        assert ask(third) in {b"", "ConnectionResetError", "ConnectionRefusedError"}
        assert ask(first) == b"open hello"


def test_a_run_is_refused_if_the_port_that_it_publishes_is_taken(user):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = user.run("true", flags=("--listen", port))
    # Sanity check: now the port is free, so corral can publish it.
    assert user.run("true", flags=("--listen", port)).returncode == 0
    assert done.returncode == 125
    assert (b"published_ports" if user.tier == "walled" else b"brokered_sockets") in done.stderr
    assert port.encode() in done.stderr


def test_a_published_port_opens_no_connection_to_the_host(user):
    """Check that a target with a published port still cannot reach the host. With namespaces, a
    process of corral enters the target's network namespace to connect to the port. The target
    itself never leaves this namespace.
    """
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


def policy_of(user, name, port, *, everywhere):
    path = user.home / f"{name}-{user.tier}.toml"
    text = f"version = 1\n[network]\nlisten = [{port}]\nlisten_everywhere = {everywhere}\n"
    path.write_text(text.replace("True", "true").replace("False", "false"))
    os.chown(path, user.uid, user.uid)
    return str(path)


@pytest.mark.parametrize("everywhere", [True, False])
def test_other_addresses_are_published_only_on_request(user, everywhere):
    first, second = free_ports(2)
    policy = policy_of(user, f"everywhere-{first}", first, everywhere=everywhere)
    with serving(user, ("--policy", policy), first, second):
        assert ask(first) == b"open hello"
        answer = b"open hello" if everywhere else "ConnectionRefusedError"
        assert ask(first, "127.0.0.2") == answer


def test_a_server_that_binds_all_addresses_is_reached(user):
    """Listen on all addresses, as most servers do. Without namespaces, corral binds the socket to
    loopback instead.
    """
    first, second = free_ports(2)
    both = "AF_INET6, dualstack_ipv6=True"
    for address, family in (("0.0.0.0", "AF_INET"), ("::", both)):
        code = SERVER.replace('("127.0.0.1", port)', f'("{address}", port), family=socket.{family}')
        argv = user.corral_argv(
            "run", "--listen", str(first), "--", user.python, "-c", code, str(first), str(second)
        )
        pipe = subprocess.PIPE
        process = user.popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout.readline() == b"ready\n"
            assert ask(first) == b"open hello"
            assert ask(first, "127.0.0.2") == "ConnectionRefusedError"
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
