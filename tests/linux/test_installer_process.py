"""Test the installation of a package whose client has ended. The installer must finish without the
client, but must not start the server. `corral ps` must list the installer, and the user must be
able to end it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import signal
import subprocess
import threading

import pytest

from corral.servers.packages.installer_process import install_apart

REFERENCE = "npm:server@1.0.0"
SERVER = """
require("fs").appendFileSync(process.env.MARKS, "started\\n");
console.log("ready");
"""
# The tests run only as an ordinary user, because root would get the same results.
pytestmark = pytest.mark.parametrize("user", ["ordinary"], indirect=True)


class Client:
    """A client that starts `corral run` for a package. The registry can hold back the package's
    archive, so that a test can act while the installation is not finished.
    """

    def __init__(self, user, scratch, registry, env) -> None:
        self.user, self.registry = user, registry
        self.archive = registry.publish_npm(
            "server", "1.0.0", {"main.js": SERVER}, bin={"server": "main.js"}
        )
        self.marks = scratch / "work" / "marks"
        self.env = {**env, "MARKS": str(self.marks)}

    def start(self) -> subprocess.Popen:
        words = ("run", "--write", str(self.marks.parent), "--env", "MARKS", REFERENCE)
        pipe = subprocess.PIPE
        return self.user.popen(
            self.user.corral_argv(*words), env=self.env, stdin=pipe, stdout=pipe, stderr=pipe,
            start_new_session=True,
        )  # fmt: skip

    def start_and_hold(self) -> subprocess.Popen:
        """Start `corral run`, and return as soon as the package manager waits for the archive."""
        self.registry.held[self.archive] = threading.Event()
        process = self.start()
        assert self.registry.reached.wait(60)
        return process

    def release(self) -> None:
        self.registry.held.pop(self.archive).set()

    def installers(self) -> list[dict]:
        runs = json.loads(self.user.corral("ps", "--json", env=self.env).stdout)
        return [run for run in runs if run["run"].startswith("install-")]

    def wait_for_installer(self) -> None:
        """Wait for the package's lock, which the installer holds until it ends."""
        for path in pathlib.Path(self.env["XDG_CACHE_HOME"], "corral", "store", "locks").iterdir():
            if len(path.name) == 64:
                with path.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX)

    def is_installed(self) -> bool:
        return bool(json.loads(self.user.corral("cache", "ls", "--json", env=self.env).stdout))

    def has_started_server(self) -> bool:
        return self.marks.exists()


@pytest.fixture
def client(user, scratch, registry, env, npm):
    work = scratch / "work"
    work.mkdir(mode=0o700)
    os.chown(work, user.uid, user.uid)
    made = Client(user, scratch, registry, env)
    yield made
    user.corral("clean", env=made.env)


def end_by_signal(process: subprocess.Popen) -> None:
    """Stop the client's process group with SIGTERM, as the Python SDK does."""
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(90) == -signal.SIGTERM
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def crash(process: subprocess.Popen) -> None:
    """Close the client's ends of the streams, as if the client had died."""
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    assert process.wait(90) == -signal.SIGPIPE


@pytest.mark.parametrize("go_away", [end_by_signal, crash], ids=["signal", "crash"])
def test_an_installer_continues_after_its_client_has_ended(client, go_away):
    process = client.start_and_hold()
    # Sanity check: `ps` does not list an installer that still has its client.
    assert client.installers() == []
    go_away(process)
    (run,) = client.installers()
    assert (run["server"], run["command"]) == (REFERENCE, ["installing", REFERENCE])
    client.release()
    client.wait_for_installer()
    assert client.is_installed()
    assert not client.has_started_server()
    assert client.installers() == []
    with client.start() as process:
        assert process.communicate(timeout=60)[0] == b"ready\n"
    assert client.has_started_server()
    assert client.registry.asked.count(client.archive) == 1


def test_a_second_start_waits_for_the_same_installer(client):
    end_by_signal(client.start_and_hold())
    with client.start() as process:
        assert b"another process is installing npm:server@1.0.0" in process.stderr.readline()
        client.release()
        assert process.communicate(timeout=60)[0] == b"ready\n"
    assert client.registry.asked.count(client.archive) == 1


@pytest.mark.parametrize("alone", [False, True], ids=["with its client", "alone"])
def test_kill_9_of_corral_ends_the_installer(client, alone):
    process = client.start_and_hold()
    if alone:
        end_by_signal(process)
        os.kill(client.installers()[0]["pid"], signal.SIGKILL)
    else:
        with process:
            process.kill()
    # The installer has ended unfinished, because the registry still holds back the archive.
    client.wait_for_installer()
    assert not client.is_installed()
    assert client.installers() == []


def test_clean_ends_an_installer_without_a_client(client):
    process = client.start_and_hold()
    with process:
        before = client.user.corral("clean", env=client.env)
        # Sanity check: `clean` does not end an installer that still has its client.
        assert b"ended" not in before.stdout
        end = threading.Thread(target=process.wait)
        end.start()
        os.killpg(process.pid, signal.SIGTERM)
        end.join(30)
    done = client.user.corral("clean", env=client.env)
    assert b"ended the installation of npm:server@1.0.0\n" in done.stdout
    client.wait_for_installer()
    assert not client.is_installed()
    assert client.installers() == []


def test_an_ended_input_does_not_count_as_an_ended_client(client):
    """Close stdin at once, as in `echo ... | corral run`. The caller still waits for output, so the
    server must start.
    """
    process = client.start_and_hold()
    with process:
        process.stdin.close()
        client.release()
        assert process.stdout.read() == b"ready\n"
    assert client.has_started_server()


@pytest.mark.parametrize("seconds", [0, 600], ids=["over", "not over"])
def test_an_installer_without_a_client_has_a_time_limit(user, scratch, monkeypatch, seconds):
    """End corral during an installation. The installer has a time limit for the work that it does
    after that. With a limit of 0 it must end at once. With a long limit it must be able to finish.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(scratch))
    reader, writer = os.pipe()
    word, say = os.pipe()
    corral = os.fork()
    if corral == 0:
        os.close(say)
        os.close(reader)
        install_apart(
            lambda: os.write(writer, b"waits") and os.read(word, 1) and os.write(writer, b"done"),
            "npm:x",
            max_alone_seconds=seconds,
        )
        os._exit(0)
    os.close(writer)
    os.close(word)
    assert os.read(reader, 5) == b"waits"
    os.kill(corral, signal.SIGTERM)
    os.waitpid(corral, 0)
    if seconds:
        os.write(say, b"x")
        assert os.read(reader, 4) == b"done"
    assert os.read(reader, 1) == b""  # the installer has ended
    os.close(reader)
    os.close(say)
