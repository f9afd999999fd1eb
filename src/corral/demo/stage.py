"""What the demo is played with: a throw-away home, project, listeners and bystander, and the acts.

Nothing of the user's is touched: keys, tokens and files are made up here, in one directory that is
removed at the end, and so are the sockets and the process that the acts are aimed at.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager

from corral.demo.run import PACKAGES, Act, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

BYSTANDER = "corral.demo.bystander"
TOKEN = "DEMO_API_TOKEN"  # noqa: S105 - the name of one
LONGEST = 60  # of a directory, since the path of a unix socket has 108 bytes at most
PATIENCE = 5.0


class Stage:
    """A context manager; its attributes are paths, ports and secrets."""

    def __init__(self) -> None:
        self._open = ExitStack()
        names = ("key", "credentials", "token", "host", "memory", "name")
        self.secret = {name: f"{name}-{secrets.token_hex(8)}" for name in names}

    def open(self) -> None:
        with ExitStack() as opening:
            self._build(opening)
            self._open = opening.pop_all()

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self, opening: ExitStack) -> None:
        place = tempfile.gettempdir()
        place = place if len(place) <= LONGEST else "/tmp"  # noqa: S108 - mkdtemp is safe there
        made = opening.enter_context(tempfile.TemporaryDirectory(prefix="corral-demo-", dir=place))
        root = os.path.realpath(made)
        self.home, self.project = f"{root}/home", f"{root}/project"
        self.granted, self.temporary = f"{root}/granted", f"{root}/temporary"
        for path in (self.project, self.granted, self.temporary):
            os.mkdir(path)
        if sys.platform != "win32" and os.geteuid() == 0:
            # Without namespaces a target of root's has another id, to which this must be open.
            os.chmod(root, 0o711)  # noqa: S103 - nobody can list it
            os.chmod(self.granted, 0o777)  # noqa: S103 - below a directory that only root can list
        self.key, self.credentials = f"{self.home}/.ssh/id_ed25519", f"{self.home}/.aws/credentials"
        _plant(self.key, f"fake private key {self.secret['key']}\n")
        _plant(self.credentials, f"[default] secret_access_key = {self.secret['credentials']}\n")
        self.fifo, self.socket = f"{self.granted}/fifo", f"{self.granted}/socket"
        _make_fifo(self.fifo)
        self._listen(opening)
        self.bystander = opening.enter_context(_Bystander(self.secret["name"]))
        self.address = self.bystander.keep(self.secret["memory"])

    def environment(self) -> dict[str, str]:
        """The user's own, but with a home, a place for files and a token to steal."""
        made = {"HOME": self.home, "TMPDIR": self.temporary, TOKEN: self.secret["token"]}
        return {**os.environ, **made}

    @contextmanager
    def reading_fifo(self) -> Iterator[Callable[[], bool]]:
        """Gives a function that says whether anybody still holds the other end."""
        if sys.platform == "win32":
            raise OSError("the stage has a FIFO")
        fd = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)

        def held() -> bool:
            try:
                os.read(fd, 1)
            except BlockingIOError:
                return True
            return False

        try:
            yield held
        finally:
            os.close(fd)

    def _listen(self, opening: ExitStack) -> None:
        tcp = opening.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = opening.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix = opening.enter_context(_unix_listener(self.socket))
        self.tcp, self.udp = int(tcp.getsockname()[1]), int(udp.getsockname()[1])
        opening.enter_context(_answering([tcp, unix], udp, self.secret["host"].encode()))


class _Bystander:
    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            command(BYSTANDER, name), cwd=PACKAGES, bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid

    def keep(self, secret: str) -> int:
        """Where in its memory it has it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None  # noqa: S101 - PIPE
        assert stdout is not None  # noqa: S101 - PIPE
        stdin.write(secret.encode() + b"\n")
        return int(stdout.readline())

    def ended(self, expected: bool) -> bool:  # noqa: FBT001 - a witness is asked with one word
        try:
            return self._process.wait(PATIENCE if expected else 0) is not None
        except subprocess.TimeoutExpired:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)


def _make_fifo(path: str) -> None:
    if sys.platform == "win32":
        raise OSError("there are no FIFOs here")
    os.mkfifo(path)


def _unix_listener(path: str) -> socket.socket:
    if sys.platform == "win32":
        raise OSError("there are no unix sockets here")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


@contextmanager
def _answering(
    streams: list[socket.socket], datagrams: socket.socket, answer: bytes
) -> Iterator[None]:
    """Whoever comes gets `answer`, until the context ends."""
    import selectors

    stop, stopped = socket.socketpair()
    with stop, stopped, selectors.DefaultSelector() as selector:
        for sock in (*streams, datagrams, stopped):
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)

        def serve() -> None:
            while True:
                for key, _ in selector.select():
                    if key.fileobj is stopped:
                        return
                    try:
                        _answer(key.fileobj, datagrams, answer)  # type: ignore[arg-type]
                    except OSError:
                        pass  # it went away

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.send(b".")
            thread.join()


def _answer(ready: socket.socket, datagrams: socket.socket, answer: bytes) -> None:
    if ready is datagrams:
        _, sender = ready.recvfrom(512)
        ready.sendto(answer, sender)
        return
    connection, _ = ready.accept()
    with connection:
        connection.sendall(answer)


def _plant(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def acts(stage: Stage) -> list[Act]:
    return [*_permitted(stage), *_thefts(stage), *_reaches(stage), *_greed()]


def _permitted(stage: Stage) -> list[Act]:
    note = f"{stage.granted}/note"
    return [
        Act(name="add two numbers", tool="add", arguments={"a": 2, "b": 3}, proof="5"),
        Act(
            name="write into a granted directory",
            tool="write_file",
            arguments={"path": note, "text": "hello"},
            witness=lambda _: os.path.isfile(note),
        ),
        Act(
            name="read what was written", tool="read_file", arguments={"path": note}, proof="hello"
        ),
    ]


def _thefts(stage: Stage) -> list[Act]:
    plan, pid = f"{stage.project}/plan", stage.bystander.pid
    secret = stage.secret
    place = {"address": stage.address, "size": len(secret["memory"])}
    rows: list[tuple[str, str, dict[str, object], str, str]] = [
        ("read the SSH key", "read_file", {"path": stage.key}, "filesystem", secret["key"]),
        (
            "read cloud credentials", "read_file", {"path": stage.credentials}, "filesystem",
            secret["credentials"],
        ),
        ("read a token", "read_environment", {"name": TOKEN}, "environment", secret["token"]),
        ("see other processes", "list_processes", {"pid": pid}, "filesystem", secret["name"]),
        (
            "read another's memory", "read_memory", {"pid": pid, **place}, "syscalls",
            secret["memory"],
        ),
    ]  # fmt: skip
    made = [
        Act(name=name, tool=tool, arguments=arguments, control=control, proof=proof)
        for name, tool, arguments, control, proof in rows
    ]
    return [
        *made,
        Act(
            name="write into a project",
            tool="write_file",
            arguments={"path": plan, "text": "changed"},
            control="filesystem",
            witness=lambda _: os.path.exists(plan),
        ),
        Act(
            name="kill another process",
            tool="send_signal",
            arguments={"pid": pid, "number": int(signal.SIGTERM)},
            control="tree",
            witness=stage.bystander.ended,
        ),
    ]


def _reaches(stage: Stage) -> list[Act]:
    left, right = secrets.randbelow(9000) + 1000, secrets.randbelow(9000) + 1000
    sum_up = {"command": f"echo $(({left} * {right}))"}
    host = stage.secret["host"]
    rows: list[tuple[str, str, dict[str, object], str, str]] = [
        ("connect to the host by TCP", "connect_tcp", {"port": stage.tcp}, "network", host),
        ("ask the host by UDP", "ask_udp", {"port": stage.udp}, "network", host),
        ("connect to a unix socket", "connect_unix", {"path": stage.socket}, "syscalls", host),
        ("start a shell", "run_shell", {**sum_up}, "subprocess", str(left * right)),
        ("attack the kernel", "call_kernel", {}, "syscalls", ""),
    ]
    return [
        Act(name=name, tool=tool, arguments=arguments, control=control, proof=proof)
        for name, tool, arguments, control, proof in rows
    ]


def _greed() -> list[Act]:
    rows: list[tuple[str, str, dict[str, object], str]] = [
        ("eat memory", "reserve_memory", {"mebibytes": 1280}, "memory"),
        ("start 200 threads", "start_threads", {"count": 200}, "pids"),
        ("hold 200 files open", "open_files", {"count": 200}, "fds"),
        ("fill the disk", "fill_disk", {"mebibytes": 16}, "disk"),
    ]
    return [
        Act(name=name, tool=tool, arguments=arguments, control=control)
        for name, tool, arguments, control in rows
    ]
